//! The keys of shared limits in etcd: a report for each pooler, under its lease, the division, and the pooler that leads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::divide::PoolerId;
use super::documents::{Division, Document, division_to_value, read_division};
use super::member::Snapshot;
use crate::sources::gateway::number;
use crate::sources::session::Session;

/// The keys with a prefix.
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: prefix.to_owned() }
    }

    fn division(&self) -> String {
        STANDARD.encode(format!("{}division", self.prefix))
    }

    fn leader(&self) -> String {
        STANDARD.encode(format!("{}leader", self.prefix))
    }

    fn member(&self, id: &PoolerId) -> String {
        STANDARD.encode(format!("{}members/{id}", self.prefix))
    }

    /// The key of a process that has handed its name over and has not ended.
    fn handed_over(&self, id: &PoolerId) -> String {
        STANDARD.encode(format!("{}handed_over/{id}", self.prefix))
    }

    fn range(&self) -> Value {
        let mut end = self.prefix.clone().into_bytes();
        // The prefix ends with a slash, so there is a next byte.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        json!({"key": STANDARD.encode(&self.prefix), "range_end": STANDARD.encode(end)})
    }

    /// Reads all keys, and watches them from then on.
    pub(super) async fn read(&self, session: &mut Session) -> Result<Snapshot, String> {
        let mut range = self.range();
        let answer = session.call("/v3/kv/range", &range).await?;
        let revision = number(answer.get("header").and_then(|header| header.get("revision")));
        let revision = revision.ok_or("the answer of etcd has no revision")?;
        range["start_revision"] = json!((revision + 1).to_string());
        session.watch(range).await;
        self.snapshot(&answer)
    }

    fn snapshot(&self, answer: &Value) -> Result<Snapshot, String> {
        let mut snapshot = Snapshot::default();
        let pairs = answer.get("kvs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        for pair in pairs {
            let decoded = |name| STANDARD.decode(pair.get(name)?.as_str()?).ok();
            let key = decoded("key").and_then(|key| String::from_utf8(key).ok()).unwrap_or_default();
            let value = decoded("value").unwrap_or_default();
            let at = number(pair.get("mod_revision")).ok_or("a key in etcd has no revision")?;
            let not_understood = |why| format!("the key {key} in etcd is not understood: {why}");
            let Some(name) = key.strip_prefix(&self.prefix) else { continue };
            match (name, name.split_once('/')) {
                ("division", _) => {
                    snapshot.division = read_division(&value).map_err(not_understood)?;
                    snapshot.division_at = at;
                }
                ("leader", _) => snapshot.leader = String::from_utf8(value).ok(),
                (_, Some(("members", id))) => {
                    let document = Document::read(&value).map_err(not_understood)?;
                    snapshot.members.insert(id.to_owned(), (document, at));
                }
                (_, Some(("handed_over", id))) => {
                    snapshot.handed_over.insert(id.to_owned());
                }
                _ => {}
            }
        }
        Ok(snapshot)
    }

    /// Writes this pooler's report, if neither the division nor the report has changed since they were written at these revisions. Returns the
    /// revision of the new report; `None` if one of them has changed.
    pub(super) async fn write_report(
        &self,
        session: &mut Session,
        (id, document): (&PoolerId, &Document),
        (own_at, division_at): (u64, u64),
    ) -> Result<Option<u64>, String> {
        let lease = session.lease.ok_or("there is no lease")?.to_string();
        let key = self.member(id);
        let value = STANDARD.encode(document.to_value().to_string());
        let compare = json!([unchanged(&key, own_at), unchanged(&self.division(), division_at)]);
        let mut puts = vec![json!({"request_put": {"key": key, "value": value, "lease": lease}})];
        if document.is_handed_over {
            puts.push(json!({"request_put": {"key": self.handed_over(id), "value": "", "lease": lease}}));
        }
        commit(session, &json!({"compare": compare, "success": puts})).await
    }

    /// Writes the division, if it has not changed since that revision. Returns whether it was written.
    pub(super) async fn write_division(
        &self,
        session: &mut Session,
        division: &Division,
        division_at: u64,
    ) -> Result<bool, String> {
        let key = self.division();
        let value = STANDARD.encode(division_to_value(division).to_string());
        let put = json!({"request_put": {"key": key, "value": value}});
        let body = json!({"compare": [unchanged(&key, division_at)], "success": [put]});
        Ok(commit(session, &body).await?.is_some())
    }

    /// Tries to become the leader, if there is none.
    pub(super) async fn campaign(&self, session: &mut Session, id: &PoolerId) -> Result<(), String> {
        let lease = session.lease.ok_or("there is no lease")?.to_string();
        let key = self.leader();
        let put = json!({"request_put": {"key": key, "value": STANDARD.encode(id), "lease": lease}});
        commit(session, &json!({"compare": [unchanged(&key, 0)], "success": [put]})).await.map(drop)
    }
}

/// Returns a condition: the key was last written at this revision; 0 if it does not exist.
fn unchanged(key: &str, at: u64) -> Value {
    json!({"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string()})
}

/// Sends a transaction. Returns its revision; `None` if a condition does not hold.
async fn commit(session: &mut Session, body: &Value) -> Result<Option<u64>, String> {
    let answer = session.call("/v3/kv/txn", body).await?;
    let has_succeeded = answer.get("succeeded").and_then(Value::as_bool) == Some(true);
    let revision = number(answer.get("header").and_then(|header| header.get("revision")));
    let revision = revision.ok_or("the answer of etcd has no revision")?;
    Ok(has_succeeded.then_some(revision))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn pair(key: &str, value: &str, at: &str) -> Value {
        json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value), "mod_revision": at})
    }

    #[test]
    fn keys_are_read_with_their_revisions() {
        let document = Document { label: "h:1/0".to_owned(), ..Document::default() }.to_value().to_string();
        let division = division_to_value(&BTreeMap::new()).to_string();
        let answer = json!({"kvs": [
            pair("/p/division", &division, "7"), pair("/p/leader", "a", "8"), pair("/p/members/h:1/0#f", &document, "9"),
            pair("/p/handed_over/b", "", "10"), pair("/q/division", "?", "11"), pair("/p/other", "?", "12"),
        ]});
        let seen = Keys::new("/p/").snapshot(&answer).expect("it is understood");
        assert_eq!((seen.division_at, seen.leader.as_deref()), (7, Some("a")));
        assert_eq!(seen.members["h:1/0#f"].1, 9);
        assert_eq!(seen.handed_over, BTreeSet::from(["b".to_owned()]));
        let bad = json!({"kvs": [pair("/p/members/a", "{", "7")]});
        assert!(Keys::new("/p/").snapshot(&bad).is_err(), "a pooler with an unknown part counts as nothing");
    }
}
