//! The lease in etcd that decides which pooler has the virtual address: two keys, of which one ends with the lease.
//!
//! The value of both is the address of the pooler's HTTP server: it names the pooler, and is where others ask it. A process that
//! replaces another one has the same name, and goes on with its lease.

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgweir_settings::SourceUrl;
use serde_json::{Value, json};

use super::decide::Lease;
use crate::sources::Login;
use crate::sources::gateway::number;
use crate::sources::http::Client;
use crate::sources::session::Session;

/// The keys of all virtual addresses.
const PREFIX: &str = "/pgweir/vip/";
/// The longest name of a pooler that is believed.
const NAME_BYTES_MAX: usize = 255;

/// The lease, as this pooler knows it.
pub(super) struct Register {
    session: Session,
    key: String,
    last_key: String,
    ttl: Duration,
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
        Register {
            session: Session::new(client, endpoints, login, ttl),
            key: format!("{PREFIX}{address}"),
            last_key: format!("{PREFIX}{address}/last"),
            ttl,
        }
    }

    /// Returns whether this pooler has a lease as far as it knows.
    pub(super) fn has_lease(&self) -> bool {
        self.session.lease.is_some()
    }

    /// Uses another client from now on.
    pub(super) fn use_client(&mut self, client: Client) {
        self.session.use_client(client);
    }

    /// Returns the client for other poolers.
    pub(super) fn client(&self) -> &Client {
        self.session.client()
    }

    /// Renews the lease and reads the keys. An answer that is older than the lease lives is an error: the process was stopped meanwhile.
    pub(super) async fn read(&mut self, me: Option<&str>) -> Result<Reading, String> {
        let began = Instant::now();
        let keys = [&self.key, &self.last_key].map(|key| STANDARD.encode(key));
        let reading =
            self.session.ask(async |session: &mut Session| renew_and_read(session, &keys).await).await?;
        if began.elapsed() > self.ttl {
            return Err("the answer came too late".to_owned());
        }
        if let Some((name, lease)) = &reading.holder {
            // A lease of this name is that of the process that this one has replaced.
            self.session.lease = (Some(name.as_str()) == me).then_some(*lease);
        }
        Ok(reading)
    }

    /// Tries to become the pooler that has the lease. Returns whether it has it now. `false` also says that the answer is older than the lease
    /// lives: the next reading tells.
    pub(super) async fn campaign(&mut self, me: &str) -> Result<bool, String> {
        let began = Instant::now();
        let [key, last_key, value] = [&self.key, &self.last_key, me].map(|text| STANDARD.encode(text));
        let put = async |session: &mut Session| put(session, &key, &last_key, &value).await;
        let is_won = self.session.ask(put).await?;
        Ok(is_won && began.elapsed() < self.ttl)
    }

    /// Gives the lease back, so that another pooler can have it at once.
    pub(super) async fn revoke(&mut self) -> Result<(), String> {
        self.session.revoke().await
    }

    /// Waits until the key has changed since the last reading. Without a watch it does not return.
    pub(super) async fn changed(&mut self) {
        self.session.changed().await;
    }
}

async fn renew_and_read(session: &mut Session, keys: &[String; 2]) -> Result<Reading, String> {
    session.renew().await?;
    let ranges = keys.each_ref().map(|key| json!({"request_range": {"key": key}}));
    let answer = session.call("/v3/kv/txn", &json!({"compare": [], "success": ranges})).await?;
    let reading = reading(&answer).ok_or_else(|| "the answer of etcd is not understood".to_owned())?;
    let revision = (reading.revision + 1).to_string();
    session.watch(json!({"key": keys[0], "start_revision": revision})).await;
    Ok(reading)
}

/// Writes the keys if no pooler has the lease. Returns whether they were written.
async fn put(session: &mut Session, key: &str, last_key: &str, value: &str) -> Result<bool, String> {
    let lease = match session.lease {
        Some(lease) => lease,
        None => session.grant().await?,
    };
    // The key exists as long as a pooler has the lease.
    let compare = json!([{"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}]);
    let put = json!({"request_put": {"key": key, "value": value, "lease": lease.to_string()}});
    let put_last = json!({"request_put": {"key": last_key, "value": value}});
    let answer = session.call("/v3/kv/txn", &json!({"compare": compare, "success": [put, put_last]})).await?;
    let is_done = answer.get("succeeded").and_then(Value::as_bool) == Some(true);
    if is_done {
        session.lease = Some(lease);
    } else {
        session.lease = None;
        // If this fails, the lease ends by itself; no key has it.
        let _ = session.call("/v3/lease/revoke", &json!({"ID": lease.to_string()})).await;
    }
    Ok(is_done)
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
