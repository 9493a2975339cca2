//! Findings from the numbers of a snapshot, the most urgent first.

mod cache;
mod following;
mod pools;
mod postgres;
mod sessions;
mod system;

use crate::finding::Finding;
use crate::snapshot::Snapshot;

/// Returns all findings of a snapshot.
#[must_use]
pub fn findings(snapshot: &Snapshot) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(system::suspended(snapshot));
    all.extend(system::virtual_address(snapshot));
    all.extend(system::shared_limits(snapshot));
    all.extend(pools::failures(snapshot));
    all.extend(pools::limits(snapshot));
    all.extend(pools::switched_off(snapshot));
    all.extend(sessions::lagging(snapshot));
    all.extend(sessions::pins(snapshot));
    all.extend(sessions::violations(snapshot));
    all.extend(postgres::connections(snapshot));
    all.extend(postgres::role_and_database_limits(snapshot));
    all.extend(postgres::idle_in_transaction(snapshot));
    all.extend(postgres::timeouts(snapshot));
    all.extend(following::following(snapshot));
    all.extend(system::open_files(snapshot));
    all.extend(system::backlog(snapshot));
    all.extend(system::changed(snapshot));
    all.extend(cache::gains(snapshot));
    all.extend(cache::obstacles(snapshot));
    // The sort is stable: findings of the same severity stay in this order.
    all.sort_by_key(|finding| finding.severity);
    all
}

/// Returns `host:port`, or `the unix socket (port)`.
fn place(host: &str, port: u16) -> String {
    match host {
        "" => format!("unix:{port}"),
        _ => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::snapshot::{Pool, Settings};

    #[test]
    fn nothing_is_found_in_an_empty_snapshot() {
        assert_eq!(findings(&Snapshot::default()), []);
    }

    #[test]
    fn errors_come_first() {
        let pool = Pool { database: "a".into(), user: "u".into(), size: 1, active: 1, ..Pool::default() };
        let failing = Pool { failure: Some("refused".into()), ..pool.clone() };
        let snapshot = Snapshot {
            settings: Settings { listen_backlog: 128, ..Settings::default() },
            somaxconn: Some(64),
            pools: vec![pool, failing],
            ..Snapshot::default()
        };
        let found: Vec<_> = findings(&snapshot).iter().map(|finding| finding.severity).collect();
        assert!(found.is_sorted() && found[0] == Severity::Error, "{found:?}");
        assert!(found.contains(&Severity::Warning), "{found:?}");
    }
}
