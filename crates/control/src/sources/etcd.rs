//! `discovery=etcd`: Patroni's keys in etcd.
//!
//! The keys are read, then watched until one changes, then read again: every five seconds at the latest, because a watch may be lost without
//! a word, and renewing a lease makes no event.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgweir_core::source::{Announced, SourceMember, SourceRole, SourceWord};
use pgweir_settings::SourceUrl;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::gateway::{Gateway, has_events, number};
use super::json::{self, is_name, text, too_many};
use super::patroni::{agent, refusal};
use super::{Agents, Login, Spec, World};

/// The maximum time between two readings of the keys, whatever the watch reports.
const READ_AGAIN: Duration = Duration::from_secs(5);
/// The minimum time between two readings.
const APART: Duration = Duration::from_millis(10);
/// The pause after which all endpoints are tried again, if none could be asked.
const TRY_AGAIN: Duration = Duration::from_millis(200);

pub(super) async fn ask(
    spec: &Spec,
    world: &World,
    endpoints: &[SourceUrl],
    login: Option<&Login>,
    prefix: &str,
    agents: &Agents,
) {
    let (mut at, mut failures) = (0, 0);
    while let Some(endpoint) = endpoints.get(at) {
        let mut reader =
            Reader { spec, world, endpoint, login, prefix, agents, token: None, has_read: false };
        let why = reader.run().await;
        at = (at + 1) % endpoints.len();
        failures = if reader.has_read { 1 } else { failures + 1 };
        // The other endpoints are asked without a pause.
        if failures >= endpoints.len() {
            world.report(spec, Err(why));
            sleep(TRY_AGAIN).await;
            failures = 0;
        }
    }
    world.report(spec, Err("etcd_endpoints is empty".to_owned()));
}

/// The reading from one endpoint.
struct Reader<'a> {
    spec: &'a Spec,
    world: &'a World,
    endpoint: &'a SourceUrl,
    login: Option<&'a Login>,
    prefix: &'a str,
    agents: &'a Agents,
    /// The token that etcd gives a user in exchange for the password.
    token: Option<String>,
    has_read: bool,
}

impl Reader<'_> {
    /// Reads and watches until one of them fails. Returns the reason.
    async fn run(&mut self) -> String {
        loop {
            let revision = match self.read().await {
                Ok(revision) => revision,
                Err(why) => return why,
            };
            self.has_read = true;
            // The end of the time is no error: the keys are read again in any case.
            if let Ok(Err(why)) = timeout(READ_AGAIN, self.watch(revision + 1)).await {
                return why;
            }
            sleep(APART).await;
        }
    }

    /// Reads the keys and reports them. Returns their revision.
    async fn read(&mut self) -> Result<u64, String> {
        if let Some(login) = self.login.filter(|_| self.token.is_none()) {
            self.token = Some(self.gateway().sign_in(login).await?);
        }
        let (key, end) = range(self.prefix);
        let answer = self.gateway().call("/v3/kv/range", &json!({"key": key, "range_end": end})).await?;
        let revision = number(answer.get("header").and_then(|header| header.get("revision")));
        let revision = revision.ok_or_else(|| format!("{}: the answer has no revision", self.endpoint))?;
        let keys = Keys::read(&answer, self.prefix).map_err(|why| format!("{}: {why}", self.endpoint))?;
        let (word, agents) = keys
            .word(self.endpoint, &self.spec.allowed)
            .map_err(|why| format!("{}: {why}", self.endpoint))?;
        *self.agents.borrow_mut() = agents.into_iter().collect();
        self.world.report(self.spec, Ok(word));
        Ok(revision)
    }

    fn gateway(&self) -> Gateway<'_> {
        let Reader { spec, world, endpoint, token, .. } = self;
        Gateway { client: &world.client, endpoint, token: token.as_deref(), limit: spec.timeout }
    }

    /// Waits until a key has changed in this revision or later.
    async fn watch(&self, revision: u64) -> Result<(), String> {
        let (key, end) = range(self.prefix);
        let gateway = self.gateway();
        let create = json!({"key": key, "range_end": end, "start_revision": revision.to_string()});
        let mut stream = gateway.watch(create).await?;
        while let Some(line) = stream.line().await.map_err(|why| gateway.fault(&why))? {
            if has_events(&line).map_err(|why| gateway.fault(&why))? {
                return Ok(());
            }
        }
        Err(gateway.fault("the watch has ended"))
    }
}

/// Returns the range of all keys with this prefix, in the gateway's encoding.
fn range(prefix: &str) -> (String, String) {
    let mut end = prefix.as_bytes().to_vec();
    // The prefix ends with a slash, so there is a next byte.
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    (STANDARD.encode(prefix), STANDARD.encode(end))
}

/// Agents with the names of their nodes.
type AgentList = Vec<(Arc<str>, SourceUrl)>;

/// Patroni's keys, as far as they matter here.
#[derive(Default)]
struct Keys {
    leader: Option<String>,
    /// The name and the value of each member.
    members: Vec<(String, Value)>,
    announced: Option<Announced>,
}

impl Keys {
    /// Reads the answer to a range request. Keys that cannot be understood are left out.
    fn read(answer: &Value, prefix: &str) -> Result<Keys, String> {
        let pairs = answer.get("kvs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut keys = Keys::default();
        for pair in pairs {
            let decoded = |name| STANDARD.decode(text(pair, name)?).ok();
            let (Some(key), value) = (decoded("key"), decoded("value").unwrap_or_default()) else { continue };
            let Some(name) = std::str::from_utf8(&key).ok().and_then(|key| key.strip_prefix(prefix)) else {
                continue;
            };
            match (name, name.strip_prefix("members/")) {
                ("leader", _) => keys.leader = String::from_utf8(value).ok(),
                ("failover", _) => keys.announced = announced(&value),
                (_, Some(name)) => {
                    keys.members.extend(json::parse(&value).ok().map(|value| (name.to_owned(), value)));
                }
                _ => {}
            }
            if let Some(fault) = too_many(keys.members.len()) {
                return Err(fault);
            }
        }
        Ok(keys)
    }

    /// Returns the source's list of nodes, and the agents with the names of their nodes.
    fn word(&self, by: &SourceUrl, allowed: &[String]) -> Result<(SourceWord, AgentList), String> {
        let (mut members, mut agents, mut left_out) = (Vec::new(), Vec::new(), None);
        for (name, value) in &self.members {
            // A node without a server has no address yet.
            let Some((host, port)) = text(value, "conn_url").and_then(address) else { continue };
            if let Some(why) = refusal(name, host, allowed) {
                left_out = Some(why);
                continue;
            }
            let leads = self.leader.as_deref() == Some(name);
            let role = if leads { SourceRole::Primary } else { SourceRole::Other };
            let name: Arc<str> = name.as_str().into();
            if let Some(agent) = text(value, "api_url").and_then(|url| agent(url, allowed)) {
                agents.push((Arc::clone(&name), agent));
            }
            members.push(SourceMember { name, host: host.into(), port, role });
        }
        match left_out {
            Some(why) if members.is_empty() => Err(why),
            _ => Ok((
                SourceWord { by: by.to_string().into(), members, announced: self.announced.clone() },
                agents,
            )),
        }
    }
}

/// Reads the key `failover`: a switchover that begins at once. A scheduled one, and the remains of an old
/// one, do not count.
fn announced(value: &[u8]) -> Option<Announced> {
    let value = json::parse(value).ok()?;
    let name = |key| text(&value, key).filter(|name| is_name(name));
    let is_for_later = value.get("scheduled_at").is_some_and(|at| !at.is_null());
    let begins = name("leader").is_some() || name("member").is_some();
    (begins && !is_for_later).then(|| Announced { to: name("member").map(Into::into) })
}

/// Returns the host and port of `postgres://host:port/postgres`.
fn address(url: &str) -> Option<(&str, u16)> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
    let (host, port) = authority.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok().filter(|port| *port > 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(pairs: &[(&str, &str)]) -> Value {
        let pair = |(key, value): &(&str, &str)| json!({"key": STANDARD.encode(format!("/service/main/{key}")), "value": STANDARD.encode(value)});
        json!({"header": {"revision": "12"}, "kvs": pairs.iter().map(pair).collect::<Vec<_>>()})
    }

    fn word(pairs: &[(&str, &str)]) -> Result<SourceWord, String> {
        let keys = Keys::read(&answer(pairs), "/service/main/")?;
        let by = SourceUrl::parse("http://10.0.0.9:2379").expect("an address");
        keys.word(&by, &["10.0.0.0/16".to_owned()]).map(|(word, _)| word)
    }

    const M1: (&str, &str) = (
        "members/m1",
        r#"{"conn_url":"postgres://10.0.0.1:5432/postgres","api_url":"http://10.0.0.1:8008/patroni","role":"primary"}"#,
    );
    const M2: (&str, &str) =
        ("members/m2", r#"{"conn_url":"postgres://10.0.0.2:5433/postgres","role":"replica"}"#);

    #[test]
    fn the_leader_is_the_primary_and_nothing_else_says_so() {
        let said = word(&[("leader", "m2"), M1, M2, ("config", "{"), ("history", "[]")]).expect("keys");
        let seen: Vec<(&str, &str, u16, SourceRole)> =
            said.members.iter().map(|one| (&*one.name, &*one.host, one.port, one.role)).collect();
        assert_eq!(
            seen,
            [("m1", "10.0.0.1", 5432, SourceRole::Other), ("m2", "10.0.0.2", 5433, SourceRole::Primary)]
        );
        assert_eq!(said.announced, None);
        let none = word(&[M1, M2]).expect("keys");
        assert!(none.members.iter().all(|member| member.role == SourceRole::Other), "no node holds the lock");
    }

    #[test]
    fn a_switchover_is_announced_if_it_begins_at_once() {
        let said = |value: &str| word(&[M1, ("failover", value)]).expect("keys").announced;
        assert_eq!(said(r#"{"leader":"m1","member":"m2"}"#), Some(Announced { to: Some("m2".into()) }));
        assert_eq!(said(r#"{"leader":"m1"}"#), Some(Announced { to: None }));
        for none in [r#"{"leader":"m1","scheduled_at":"2030-01-01T00:00:00+00:00"}"#, "{}", "", "[1]"] {
            assert_eq!(said(none), None, "{none}");
        }
    }

    #[test]
    fn addresses_that_are_not_allowed_are_left_out() {
        let metadata = ("members/m3", r#"{"conn_url":"postgres://169.254.169.254:80/"}"#);
        assert_eq!(word(&[M1, metadata]).expect("one is left").members.len(), 1);
        assert!(word(&[metadata]).expect_err("none is left").contains("allow_discovered_hosts"));
        assert_eq!(address("postgres://[fd00::1]:5432/postgres"), Some(("fd00::1", 5432)));
        assert_eq!(address("postgres://host/postgres"), None);
    }

    #[test]
    fn more_members_than_a_cluster_has_are_an_error() {
        let names: Vec<String> = (0..65).map(|n| format!("members/m{n}")).collect();
        let pairs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "{}")).collect();
        assert!(word(&pairs).expect_err("too many").contains("members"));
    }

    proptest! {
        #[test]
        fn any_keys_are_read_without_panic(key in any::<String>(), value in any::<String>()) {
            let _ = word(&[(&key, &value), ("failover", &value), ("members/a", &value), ("leader", &value)]);
            let url = json!({"conn_url": value, "api_url": key}).to_string();
            for one in word(&[("members/a", &url)]).map(|word| word.members).unwrap_or_default() {
                prop_assert!(is_allowed(&one.host));
            }
        }
    }

    fn is_allowed(host: &str) -> bool {
        pgweir_settings::is_allowed_host(&["10.0.0.0/16".to_owned()], host)
    }
}
