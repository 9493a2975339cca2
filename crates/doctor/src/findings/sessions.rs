//! Findings about clients: pins, and clients that do not read.

use std::collections::BTreeMap;

use crate::finding::{Finding, count};
use crate::snapshot::{Lagging, Snapshot};

/// The number of lagging clients that are listed; the others are only counted.
const LAGGING_SHOWN_MAX: usize = 10;

/// Returns findings about clients that keep their server between transactions, by database and reason.
pub(super) fn pins(snapshot: &Snapshot) -> Vec<Finding> {
    let mut by_reason: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for pinned in &snapshot.pinned {
        for reason in pinned.reasons.split(", ").filter(|reason| !reason.is_empty()) {
            *by_reason.entry((&pinned.database, reason)).or_default() += 1;
        }
    }
    by_reason
        .into_iter()
        .map(|((database, reason), clients)| {
            let pools = snapshot.pools.iter().filter(|pool| pool.database == database);
            // Without a limit there is always another server.
            let size: u64 = pools
                .map(|pool| if pool.size == 0 { u64::MAX / 4 } else { pool.size })
                .fold(0, u64::saturating_add);
            let verb = if clients == 1 { "keeps its server" } else { "keep their servers" };
            let text = format!(
                "database {database}: {} {verb} between transactions: {reason}",
                count(clients, "client")
            );
            let make = if clients.saturating_mul(2) >= size { Finding::warning } else { Finding::note };
            make("pinned", text, remedy(reason).to_owned())
        })
        .collect()
}

/// Returns the advice for ending a pin. The reasons are those of SHOW SERVERS_EXTENDED.
fn remedy(reason: &str) -> &'static str {
    match reason {
        "temporary objects" => {
            "drop temporary tables when they are no longer needed, or create them ON COMMIT DROP"
        }
        "held cursors" => "close cursors that were declared WITH HOLD",
        "advisory locks" => "unlock them, or lock for the transaction only (pg_advisory_xact_lock)",
        "listening" => "run UNLISTEN when notifications are no longer needed",
        "prepared statements" => "deallocate them, or prepare them by the protocol instead of SQL's PREPARE",
        "sequences" => "use INSERT ... RETURNING, or sequence_affinity = wait",
        "pgweir.pin" => "the application asked for it: have it reset pgweir.pin",
        "loaded libraries" => "load the library with session_preload_libraries instead of LOAD",
        "temporary replication slots" => "drop the replication slot",
        "many settings" | "settings of unknown names" => "set fewer parameters, or use SET LOCAL",
        _ => {
            "have the clients run DISCARD ALL when they need the state no longer; docs/session-state.md says more"
        }
    }
}

/// Returns findings about clients that do not read, and so hold their server for that time.
pub(super) fn lagging(snapshot: &Snapshot) -> Vec<Finding> {
    let mut clients: Vec<&Lagging> = snapshot.lagging.iter().collect();
    clients.sort_by_key(|client| std::cmp::Reverse(client.bytes));
    let remedy = "have it read faster, or fetch less at a time (a cursor, LIMIT); its server waits meanwhile";
    let say = |client: &&Lagging| {
        let Lagging { database, user, address, application_name, bytes, watched_s } = client;
        let named = if application_name.is_empty() { String::new() } else { format!(", {application_name}") };
        let text = format!(
            "database {database}: the client {user} at {address}{named} does not read: {bytes} bytes have been waiting for {watched_s} s"
        );
        Finding::warning("client_lags", text, remedy)
    };
    let mut found: Vec<Finding> = clients.iter().take(LAGGING_SHOWN_MAX).map(say).collect();
    if clients.len() > LAGGING_SHOWN_MAX {
        let more = clients.len() - LAGGING_SHOWN_MAX;
        found.push(Finding::warning("client_lags", format!("{more} more clients do not read"), remedy));
    }
    found
}

/// Returns findings about counters that must stay 0.
pub(super) fn violations(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for pool in &snapshot.pools {
        let name = pool.name();
        if pool.multiplex_violations > 0 {
            found.push(Finding::error(
                "multiplex_violations",
                format!(
                    "pool {name}: total_multiplex_violations is {}; it must stay 0",
                    pool.multiplex_violations
                ),
                "set multiplex_depth = 0, and report it with the log lines of level ERROR",
            ));
        }
        if pool.session_differences > 0 {
            found.push(Finding::error(
                "session_differences",
                format!("pool {name}: total_session_differences is {}; it must stay 0", pool.session_differences),
                "report it with the log lines of level ERROR; these servers were closed and served no other client",
            ));
        }
        if pool.wrong_answers > 0 {
            found.push(Finding::error(
                "cache_wrong",
                format!("pool {name}: wrong in SHOW CACHE is {}; it must stay 0", pool.wrong_answers),
                "set query_cache = off, and report it with the log lines of level ERROR",
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::snapshot::{Pinned, Pool};

    fn pinned(reasons: &str) -> Pinned {
        Pinned { database: "shop".into(), reasons: reasons.into() }
    }

    fn pool(size: u64) -> Pool {
        Pool { database: "shop".into(), user: "alice".into(), size, ..Pool::default() }
    }

    #[test]
    fn pins_are_counted_by_reason() {
        let snapshot = Snapshot {
            pools: vec![pool(3)],
            pinned: vec![pinned("advisory locks"), pinned("advisory locks, listening")],
            ..Snapshot::default()
        };
        let found = pins(&snapshot);
        let told: Vec<_> = found.iter().map(|finding| (finding.severity, &*finding.text)).collect();
        assert_eq!(
            told,
            [
                (
                    Severity::Warning,
                    "database shop: 2 clients keep their servers between transactions: advisory locks"
                ),
                (Severity::Note, "database shop: 1 client keeps its server between transactions: listening"),
            ]
        );
        assert!(found[0].remedy.contains("pg_advisory_xact_lock"));
        assert_eq!(pins(&Snapshot::default()), []);
        let endless = Snapshot { pools: vec![pool(0)], ..snapshot };
        assert!(pins(&endless).iter().all(|finding| finding.severity == Severity::Note));
    }

    #[test]
    fn clients_that_lag_are_named_the_worst_first() {
        let client = |bytes| Lagging {
            database: "shop".into(),
            user: "alice".into(),
            address: "10.0.0.1:5000".into(),
            application_name: "report".into(),
            bytes,
            watched_s: 1,
        };
        let snapshot = Snapshot { lagging: (1..=12).map(client).collect(), ..Snapshot::default() };
        let found = lagging(&snapshot);
        assert_eq!(found.len(), 11);
        assert_eq!(
            found[0].text,
            "database shop: the client alice at 10.0.0.1:5000, report does not read: 12 bytes have been waiting for 1 s"
        );
        assert_eq!(found[10].text, "2 more clients do not read");
        assert_eq!(lagging(&Snapshot::default()), []);
    }

    #[test]
    fn counters_that_must_stay_0() {
        let bad = Pool { multiplex_violations: 1, session_differences: 2, wrong_answers: 3, ..pool(1) };
        let found = violations(&Snapshot { pools: vec![pool(1), bad], ..Snapshot::default() });
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|finding| finding.severity == Severity::Error));
        assert!(found[1].text.contains("total_session_differences is 2"));
        assert!(found[2].text.contains("wrong in SHOW CACHE is 3"));
    }
}
