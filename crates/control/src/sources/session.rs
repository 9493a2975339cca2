//! A lease in etcd, and requests to one endpoint after the other. It does not know what the keys mean.

use std::time::Duration;

use pgweir_settings::SourceUrl;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Login;
use super::gateway::{Gateway, has_events, number};
use super::http::{Client, Stream};

/// The longest time that a question to etcd may take: the end of the process waits for one.
const QUESTION_MAX: Duration = Duration::from_secs(2);

/// The connection of this process to etcd.
pub(crate) struct Session {
    client: Client,
    endpoints: Vec<SourceUrl>,
    login: Option<Login>,
    /// The endpoint that is asked: the one that answered last, or the next one.
    at: usize,
    token: Option<String>,
    ttl: Duration,
    /// The lease of this process; `None` while it has none.
    pub(crate) lease: Option<u64>,
    watch: Option<Stream>,
}

impl Session {
    /// Returns a session whose leases live for `ttl`.
    pub(crate) fn new(
        client: Client,
        endpoints: Vec<SourceUrl>,
        login: Option<Login>,
        ttl: Duration,
    ) -> Session {
        Session { client, endpoints, login, at: 0, token: None, ttl, lease: None, watch: None }
    }

    /// Uses another client from now on.
    pub(crate) fn use_client(&mut self, client: Client) {
        self.client = client;
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The time that a question may take, with all its requests.
    fn limit(&self) -> Duration {
        (self.ttl / 4).min(QUESTION_MAX)
    }

    /// Asks an endpoint, with any number of requests. After a failure the next one is asked the next time.
    pub(crate) async fn ask<T>(
        &mut self,
        ask: impl AsyncFnOnce(&mut Session) -> Result<T, String>,
    ) -> Result<T, String> {
        let said = match timeout(self.limit(), ask(self)).await {
            Ok(said) => said,
            Err(_) => {
                Err(self.gateway().map_or_else(|why| why, |gateway| gateway.fault("no answer in time")))
            }
        };
        if said.is_err() {
            self.at = (self.at + 1) % self.endpoints.len().max(1);
            self.token = None;
            self.watch = None;
        }
        said
    }

    fn gateway(&self) -> Result<Gateway<'_>, String> {
        let endpoint = self.endpoints.get(self.at).ok_or("etcd_endpoints is empty")?;
        Ok(Gateway { client: &self.client, endpoint, token: self.token.as_deref(), limit: self.limit() })
    }

    /// Sends a request, and returns the answer.
    pub(crate) async fn call(&mut self, path: &str, body: &Value) -> Result<Value, String> {
        if let Some(login) = self.login.as_ref().filter(|_| self.token.is_none()) {
            self.token = Some(self.gateway()?.sign_in(login).await?);
        }
        self.gateway()?.call(path, body).await
    }

    /// Renews the lease, if there is one. If it is over, there is none any more.
    pub(crate) async fn renew(&mut self) -> Result<(), String> {
        let Some(lease) = self.lease else { return Ok(()) };
        let answer = self.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()})).await?;
        let ttl_s = number(answer.get("result").and_then(|result| result.get("TTL"))).unwrap_or(0);
        if ttl_s == 0 {
            self.lease = None;
        }
        Ok(())
    }

    /// Returns a new lease. It is not the lease of this process yet.
    pub(crate) async fn grant(&mut self) -> Result<u64, String> {
        let ttl_s = self.ttl.as_secs().to_string();
        let answer = self.call("/v3/lease/grant", &json!({"TTL": ttl_s})).await?;
        Ok(number(answer.get("ID")).ok_or("etcd gave no lease")?)
    }

    /// Gives the lease back, if there is one: its keys are gone at once.
    pub(crate) async fn revoke(&mut self) -> Result<(), String> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        let body = json!({"ID": lease.to_string()});
        self.ask(async |session: &mut Session| session.call("/v3/lease/revoke", &body).await.map(drop)).await
    }

    /// Begins a watch, unless there is one. Without a watch the keys are still read at intervals.
    pub(crate) async fn watch(&mut self, create: Value) {
        if self.watch.is_none()
            && let Ok(gateway) = self.gateway()
        {
            let gateway = Gateway { limit: self.limit() / 2, ..gateway };
            self.watch = gateway.watch(create).await.ok();
        }
    }

    /// Waits until a watched key has changed. Without a watch it does not return.
    pub(crate) async fn changed(&mut self) {
        while let Some(watch) = &mut self.watch {
            match watch.line().await {
                Ok(Some(line)) if has_events(&line) == Ok(false) => {}
                Ok(Some(line)) if has_events(&line) == Ok(true) => return,
                // The keys are read at intervals, and that begins another watch.
                _ => self.watch = None,
            }
        }
        std::future::pending::<()>().await;
    }
}
