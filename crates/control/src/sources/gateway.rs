//! Requests to etcd through its JSON gateway (`/v3/`): <https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/>. It does not know what the keys
//! mean.

use std::time::Duration;

use pgweir_settings::SourceUrl;
use serde_json::{Value, json};

use super::Login;
use super::http::{Call, Client, Reply, Stream};
use super::json::{parse, quoted, text};

/// One endpoint of etcd, and how it is asked.
pub(crate) struct Gateway<'a> {
    pub(crate) client: &'a Client,
    pub(crate) endpoint: &'a SourceUrl,
    /// The token that etcd gave the user in exchange for the password; `None` if etcd has no users.
    pub(crate) token: Option<&'a str>,
    /// The time that an answer may take.
    pub(crate) limit: Duration,
}

impl Gateway<'_> {
    /// Returns a token for a user.
    pub(crate) async fn sign_in(&self, login: &Login) -> Result<String, String> {
        let body = json!({"name": login.user, "password": login.password.reveal()});
        let answer = self.call("/v3/auth/authenticate", &body).await?;
        let token = text(&answer, "token").map(str::to_owned);
        token.ok_or_else(|| self.fault("the answer has no token"))
    }

    /// Sends a request, and returns the answer.
    pub(crate) async fn call(&self, path: &str, body: &Value) -> Result<Value, String> {
        let call = Call::post(path, body.to_string()).with(self.token.map(str::to_owned));
        let Reply { status, body } = self.client.call(self.endpoint, call, self.limit).await?;
        match status {
            200 => parse(&body).map_err(|why| self.fault(&why)),
            _ => Err(self.fault(&format!("status {status}: {}", quoted(&body)))),
        }
    }

    /// Begins a watch. Each line of the stream is for [`has_events`].
    pub(crate) async fn watch(&self, create: Value) -> Result<Stream, String> {
        let body = json!({"create_request": create}).to_string();
        let call = Call::post("/v3/watch", body).with(self.token.map(str::to_owned));
        self.client.open(self.endpoint, call, self.limit).await
    }

    /// Returns a fault with the endpoint's address.
    pub(crate) fn fault(&self, why: &str) -> String {
        format!("{}: {why}", self.endpoint)
    }
}

/// Returns whether a line of a watch tells a change. The error is the reason why the watch has ended.
pub(crate) fn has_events(line: &[u8]) -> Result<bool, String> {
    let message = parse(line)?;
    let result = message.get("result").ok_or_else(|| quoted(line))?;
    if result.get("canceled").and_then(Value::as_bool) == Some(true) {
        return Err("the watch was canceled".to_owned());
    }
    Ok(result.get("events").and_then(Value::as_array).is_some_and(|events| !events.is_empty()))
}

/// Returns a number. The gateway writes 64-bit numbers as texts.
pub(crate) fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_watch() {
        assert_eq!(has_events(br#"{"result":{"created":true}}"#), Ok(false));
        assert_eq!(has_events(br#"{"result":{"events":[{"type":"DELETE"}]}}"#), Ok(true));
        assert_eq!(has_events(br#"{"result":{"canceled":true}}"#), Err("the watch was canceled".to_owned()));
        assert!(
            has_events(br#"{"error":{"message":"no leader"}}"#).expect_err("an error").contains("no leader")
        );
        assert!(has_events(b"{").is_err());
    }

    #[test]
    fn numbers_are_texts_or_numbers() {
        assert_eq!(number(Some(&json!("7587862094"))), Some(7_587_862_094));
        assert_eq!(number(Some(&json!(5))), Some(5));
        assert_eq!((number(Some(&json!("-1"))), number(None)), (None, None));
    }
}
