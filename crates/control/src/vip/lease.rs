//! The lease in etcd that decides which pooler has the virtual address: two keys, of which one ends with the lease.
//!
//! The value of both is the address of the pooler's HTTP server: it names the pooler, and is where others ask it. A process that
//! replaces another one has the same name, and goes on with its lease.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgweir_settings::SourceUrl;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::decide::Lease;
use crate::sources::Login;
use crate::sources::gateway::{Gateway, has_events, number};
use crate::sources::http::{Client, Stream};

/// The keys of all virtual addresses.
const PREFIX: &str = "/pgweir/vip/";
/// The longest time that a question to etcd may take: the end of the process waits for one.
const QUESTION_MAX: Duration = Duration::from_secs(2);
/// The longest name of a pooler that is believed.
const NAME_BYTES_MAX: usize = 255;

/// The lease, as this pooler knows it.
pub(super) struct Register {
    client: Client,
    endpoints: Vec<SourceUrl>,
    login: Option<Login>,
    /// The endpoint that is asked: the one that answered last, or the next one.
    at: usize,
    token: Option<String>,
    key: String,
    last_key: String,
    ttl: Duration,
    /// The lease of this pooler; `None` while the pooler has none.
    lease: Option<u64>,
    watch: Option<Stream>,
}

/// The answer of etcd about the lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// The pooler that has the lease, and the lease's number.
    holder: Option<(String, u64)>,
    /// The pooler that had the lease last.
    pub(super) last: Option<String>,
    revision: u64,
}

impl Reading {
    /// Returns the pooler that has the lease.
    pub(super) fn holder(&self) -> Option<&str> {
        self.holder.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the lease, as the pooler `me` sees it.
    pub(super) fn lease(&self, me: Option<&str>) -> Lease {
        match self.holder() {
            None => Lease::Free,
            Some(name) if Some(name) == me => Lease::Own,
            Some(_) => Lease::Other,
        }
    }
}

impl Register {
    pub(super) fn new(
        client: Client,
        endpoints: Vec<SourceUrl>,
        login: Option<Login>,
        address: &str,
        ttl: Duration,
    ) -> Register {
        let key = format!("{PREFIX}{address}");
        let last_key = format!("{PREFIX}{address}/last");
        Register {
            client,
            endpoints,
            login,
            at: 0,
            token: None,
            key,
            last_key,
            ttl,
            lease: None,
            watch: None,
        }
    }

    /// Returns whether this pooler has a lease as far as it knows.
    pub(super) fn has_lease(&self) -> bool {
        self.lease.is_some()
    }

    /// Uses another client from now on.
    pub(super) fn use_client(&mut self, client: Client) {
        self.client = client;
    }

    /// The time that a question may take, with all its requests.
    fn limit(&self) -> Duration {
        (self.ttl / 4).min(QUESTION_MAX)
    }

    /// Returns the client for other poolers.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Renews the lease and reads the keys. An answer that is older than the lease lives is an error: the process was stopped meanwhile.
    pub(super) async fn read(&mut self, me: Option<&str>) -> Result<Reading, String> {
        let began = Instant::now();
        let reading = self.within(self.limit(), Register::renew_and_read).await?;
        if began.elapsed() > self.ttl {
            return Err("the answer came too late".to_owned());
        }
        if let Some((name, lease)) = &reading.holder {
            // A lease of this name is that of the process that this one has replaced.
            self.lease = (Some(name.as_str()) == me).then_some(*lease);
        }
        Ok(reading)
    }

    /// Tries to become the pooler that has the lease. The next reading tells whether it has.
    pub(super) async fn campaign(&mut self, me: &str) -> Result<(), String> {
        let me = me.to_owned();
        self.within(self.limit(), async |register: &mut Register| register.put(&me).await).await
    }

    /// Gives the lease back, so that another pooler can have it at once.
    pub(super) async fn revoke(&mut self) -> Result<(), String> {
        let Some(lease) = self.lease.take() else { return Ok(()) };
        let body = json!({"ID": lease.to_string()});
        self.within(self.limit(), async |register: &mut Register| {
            register.call("/v3/lease/revoke", &body).await.map(drop)
        })
        .await
    }

    /// Waits until the key has changed since the last reading. Without a watch it does not return.
    pub(super) async fn changed(&mut self) {
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

    /// Asks an endpoint. After a failure the next one is asked the next time.
    async fn within<T>(
        &mut self,
        limit: Duration,
        ask: impl AsyncFnOnce(&mut Register) -> Result<T, String>,
    ) -> Result<T, String> {
        let said = match timeout(limit, ask(self)).await {
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

    async fn call(&mut self, path: &str, body: &Value) -> Result<Value, String> {
        if let Some(login) = self.login.as_ref().filter(|_| self.token.is_none()) {
            self.token = Some(self.gateway()?.sign_in(login).await?);
        }
        self.gateway()?.call(path, body).await
    }

    async fn renew_and_read(&mut self) -> Result<Reading, String> {
        if let Some(lease) = self.lease {
            let answer = self.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()})).await?;
            let ttl_s = number(answer.get("result").and_then(|result| result.get("TTL"))).unwrap_or(0);
            if ttl_s == 0 {
                self.lease = None;
            }
        }
        let keys =
            [&self.key, &self.last_key].map(|key| json!({"request_range": {"key": STANDARD.encode(key)}}));
        let answer = self.call("/v3/kv/txn", &json!({"compare": [], "success": keys})).await?;
        let reading = reading(&answer).ok_or_else(|| "the answer of etcd is not understood".to_owned())?;
        if self.watch.is_none() {
            let revision = (reading.revision + 1).to_string();
            let create = json!({"key": STANDARD.encode(&self.key), "start_revision": revision});
            let gateway = Gateway { limit: self.limit() / 2, ..self.gateway()? };
            // Without a watch the keys are still read at intervals.
            self.watch = gateway.watch(create).await.ok();
        }
        Ok(reading)
    }

    async fn put(&mut self, me: &str) -> Result<(), String> {
        let lease = match self.lease {
            Some(lease) => lease,
            None => {
                let answer =
                    self.call("/v3/lease/grant", &json!({"TTL": self.ttl.as_secs().to_string()})).await?;
                number(answer.get("ID")).ok_or("etcd gave no lease")?
            }
        };
        let (key, last_key, value) =
            (STANDARD.encode(&self.key), STANDARD.encode(&self.last_key), STANDARD.encode(me));
        // The key exists as long as a pooler has the lease.
        let compare = json!([{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}]);
        let put = json!({"request_put": {"key": key, "value": value, "lease": lease.to_string()}});
        let put_last = json!({"request_put": {"key": last_key, "value": value}});
        let answer =
            self.call("/v3/kv/txn", &json!({"compare": compare, "success": [put, put_last]})).await?;
        if answer.get("succeeded").and_then(Value::as_bool) == Some(true) {
            self.lease = Some(lease);
        } else {
            self.lease = None;
            // If this fails, the lease ends by itself; no key has it.
            let _ = self.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).await;
        }
        Ok(())
    }
}

/// Reads the answer about both keys; `None` if it is not understood.
fn reading(answer: &Value) -> Option<Reading> {
    let revision = number(answer.get("header")?.get("revision"))?;
    let responses = answer.get("responses")?.as_array()?;
    let pair = |place: usize| responses.get(place)?.get("response_range")?.get("kvs")?.get(0);
    let name = |pair: &Value| {
        let value = STANDARD.decode(pair.get("value")?.as_str()?).ok()?;
        let is_plain = value.len() <= NAME_BYTES_MAX && value.iter().all(u8::is_ascii_graphic);
        String::from_utf8(value).ok().filter(|_| is_plain)
    };
    // A value that is not understood is that of another pooler.
    let holder = pair(0).map(|pair| (name(pair).unwrap_or_default(), number(pair.get("lease")).unwrap_or(0)));
    Some(Reading { holder, last: pair(1).and_then(name), revision })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(holder: Option<&str>, last: Option<&str>) -> Value {
        let range = |value: Option<&str>, lease: &str| match value {
            Some(value) => {
                json!({"response_range": {"kvs": [{"value": STANDARD.encode(value), "lease": lease}]}})
            }
            None => json!({"response_range": {"header": {}}}),
        };
        json!({"header": {"revision": "7"}, "succeeded": true, "responses": [range(holder, "12"), range(last, "0")]})
    }

    #[test]
    fn the_name_in_the_key_says_whose_the_lease_is() {
        let me = Some("http://10.0.0.1:9127");
        let lease = |holder| reading(&answer(holder, None)).expect("it is understood").lease(me);
        assert_eq!(lease(None), Lease::Free);
        assert_eq!(lease(me), Lease::Own);
        assert_eq!(lease(Some("http://10.0.0.2:9127")), Lease::Other);
        assert_eq!(lease(Some("two words")), Lease::Other, "a value that is not understood is not free");
        let said = reading(&answer(None, me)).expect("it is understood");
        assert_eq!((said.last.as_deref(), said.revision), (me, 7));
        let nameless = reading(&answer(me, None)).expect("it is understood").lease(None);
        assert_eq!(nameless, Lease::Other, "a pooler that does not know its own name has no lease");
    }

    #[test]
    fn an_answer_without_responses_says_nothing() {
        for bad in [
            json!({}),
            json!({"header": {"revision": "7"}}),
            json!([]),
            json!({"header": 1, "responses": []}),
        ] {
            assert_eq!(reading(&bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_panic(value in any::<String>()) {
            let said = reading(&answer(Some(&value), Some(&value))).expect("it is understood");
            prop_assert!(said.lease(Some("me")) != Lease::Free);
            prop_assert!(said.last.is_none_or(|name| name.len() <= NAME_BYTES_MAX));
        }
    }
}
