//! Findings about pools: at their limit, waiting, failing, switched off.

use super::place;
use crate::finding::{Finding, count, seconds};
use crate::snapshot::{Pool, Snapshot};

/// The wait from which clients that wait although servers are free are worth a finding.
const WAIT_LONG_US: u64 = 1_000_000;

/// Returns findings about failed logins to PostgreSQL: the pooler's, and those that were tried for this
/// report.
pub(super) fn failures(snapshot: &Snapshot) -> Vec<Finding> {
    let retry_s = snapshot.settings.server_login_retry_s;
    let failing = snapshot.pools.iter().filter_map(|pool| Some((pool, pool.failure.as_deref()?)));
    let pools = failing.map(|(pool, why)| {
        Finding::error(
            "server_login_failing",
            format!("pool {}: the last connection to a server failed: {why}", pool.name()),
            format!("remove that cause; pgweir tries again {retry_s} s after a failure (server_login_retry)"),
        )
    });
    let tried = snapshot.probes.iter().filter_map(|probe| {
        let why = probe.result.as_ref().err()?;
        let at = place(&probe.host, probe.port);
        Some(Finding::error(
            "server_login_failed",
            format!("database {}: a login as {} at {at} failed: {why}", probe.database, probe.user),
            "remove that cause, then try it with pgweir check --connect",
        ))
    });
    pools.chain(tried).collect()
}

/// Returns findings about pools whose servers are all busy, and about waiting clients.
pub(super) fn limits(snapshot: &Snapshot) -> Vec<Finding> {
    snapshot.pools.iter().filter_map(|pool| of_pool(snapshot, pool)).collect()
}

fn of_pool(snapshot: &Snapshot, pool: &Pool) -> Option<Finding> {
    let (name, waiting, size) = (pool.name(), pool.waiting, pool.size);
    let queue = format!(
        "{} {}, the longest for {}",
        count(waiting, "client"),
        if waiting == 1 { "waits" } else { "wait" },
        seconds(pool.wait_oldest_us)
    );
    let is_full = size > 0 && pool.active >= size;
    if is_full && waiting > 0 {
        let text = format!("pool {name}: {} of {size} servers are busy and {queue}", pool.active);
        return Some(Finding::error("pool_at_limit", text, remedy(snapshot, pool)));
    }
    if is_full {
        let text = format!("pool {name}: {} of {size} servers are busy; no client waits yet", pool.active);
        return Some(Finding::warning("pool_full", text, remedy(snapshot, pool)));
    }
    let is_explained = pool.failure.is_some() || database_is_off(snapshot, &pool.database);
    if waiting == 0 || is_explained || pool.wait_oldest_us < WAIT_LONG_US {
        return None;
    }
    Some(Finding::warning(
        "clients_waiting",
        format!("pool {name}: {queue}, and {} of {size} servers are busy", pool.active),
        "compare max_db_connections and max_user_connections with SHOW DATABASES and SHOW USERS, and read the log",
    ))
}

fn database_is_off(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.databases.iter().any(|database| database.name == name && database.is_paused)
}

/// Returns the advice for a pool at its limit, which depends on what its servers are busy with.
fn remedy(snapshot: &Snapshot, pool: &Pool) -> String {
    let of_pool =
        snapshot.probes.iter().filter(|probe| probe.database == pool.database && probe.user == pool.user);
    let idle: u64 =
        of_pool.filter_map(|probe| probe.result.as_ref().ok()).map(|limits| limits.idle_in_transaction).sum();
    if pool.pinned * 2 >= pool.active && pool.pinned > 0 {
        return format!(
            "have clients give up what keeps {} between transactions (SHOW SERVERS_EXTENDED names it), or raise pool_size",
            count(pool.pinned, "server")
        );
    }
    if idle * 2 >= pool.active && idle > 0 {
        return format!(
            "shorten transactions ({} idle in transaction), or raise pool_size",
            if idle == 1 { "1 server is".to_owned() } else { format!("{idle} servers are") }
        );
    }
    "shorten transactions, or raise pool_size if PostgreSQL has processors to spare".to_owned()
}

/// Returns findings about PAUSE and DISABLE, which are easily forgotten.
pub(super) fn switched_off(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for database in &snapshot.databases {
        let name = &database.name;
        if database.is_paused {
            let pools = snapshot.pools.iter().filter(|pool| pool.database == *name);
            let waiting: u64 = pools.map(|pool| pool.waiting).sum();
            let text = format!("database {name} is paused and {} in its queue", are(waiting));
            found.push(Finding::warning(
                "database_paused",
                text,
                format!("run RESUME {name} on the console"),
            ));
        }
        if database.is_disabled {
            let text = format!("database {name} is disabled: new clients are refused");
            found.push(Finding::warning(
                "database_disabled",
                text,
                format!("run ENABLE {name} on the console"),
            ));
        }
    }
    found
}

fn are(clients: u64) -> String {
    if clients == 1 { "1 client is".to_owned() } else { format!("{clients} clients are") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::snapshot::{Database, Limits, Probe, Settings};

    fn pool(active: u64, waiting: u64) -> Pool {
        Pool {
            database: "shop".into(),
            user: "alice".into(),
            size: 10,
            active,
            waiting,
            wait_oldest_us: 3_200_000,
            ..Pool::default()
        }
    }

    fn probe(result: Result<Limits, String>) -> Probe {
        Probe { database: "shop".into(), user: "alice".into(), host: "db".into(), port: 5432, result }
    }

    fn of(pools: Vec<Pool>, probes: Vec<Probe>) -> Snapshot {
        let settings = Settings { server_login_retry_s: 15.0, ..Settings::default() };
        Snapshot { settings, pools, probes, ..Snapshot::default() }
    }

    #[test]
    fn a_pool_at_its_limit_with_clients_that_wait() {
        let found = &limits(&of(vec![pool(10, 50)], Vec::new()))[0];
        assert_eq!(found.severity, Severity::Error);
        assert_eq!(
            found.text,
            "pool shop/alice: 10 of 10 servers are busy and 50 clients wait, the longest for 3.2 s"
        );
        assert!(found.remedy.contains("raise pool_size"), "{found}");
    }

    #[test]
    fn the_remedy_names_what_holds_the_servers() {
        let pinned = Pool { pinned: 6, ..pool(10, 1) };
        let found = &limits(&of(vec![pinned], Vec::new()))[0];
        assert!(found.remedy.contains("6 servers") && found.text.contains("1 client waits"), "{found}");
        let idle = Limits { idle_in_transaction: 9, ..Limits::default() };
        let found = &limits(&of(vec![pool(10, 5)], vec![probe(Ok(idle))]))[0];
        assert!(found.remedy.contains("9 servers are idle in transaction"), "{found}");
    }

    #[test]
    fn a_full_pool_without_a_queue_is_a_warning_and_a_free_one_nothing() {
        let found = &limits(&of(vec![pool(10, 0)], Vec::new()))[0];
        assert_eq!((found.severity, found.code), (Severity::Warning, "pool_full"));
        assert_eq!(limits(&of(vec![pool(9, 0)], Vec::new())), []);
        let endless = Pool { size: 0, ..pool(500, 0) };
        assert_eq!(limits(&of(vec![endless], Vec::new())), []);
    }

    #[test]
    fn clients_that_wait_beside_free_servers() {
        let found = &limits(&of(vec![pool(3, 2)], Vec::new()))[0];
        assert_eq!((found.severity, found.code), (Severity::Warning, "clients_waiting"));
        let short = Pool { wait_oldest_us: 900_000, ..pool(3, 2) };
        let failing = Pool { failure: Some("refused".into()), ..pool(3, 2) };
        assert_eq!(limits(&of(vec![short, failing], Vec::new())), []);
    }

    #[test]
    fn logins_that_fail_are_told_in_postgresqls_words() {
        let failing = Pool { failure: Some("connection refused".into()), ..pool(0, 1) };
        let refused = probe(Err("28P01: password authentication failed".into()));
        let found = failures(&of(vec![failing, pool(1, 0)], vec![refused, probe(Ok(Limits::default()))]));
        let texts: Vec<_> = found.iter().map(|finding| &*finding.text).collect();
        assert_eq!(
            texts,
            [
                "pool shop/alice: the last connection to a server failed: connection refused",
                "database shop: a login as alice at db:5432 failed: 28P01: password authentication failed",
            ]
        );
        assert!(found[0].remedy.contains("15 s") && found[0].severity == Severity::Error);
    }

    #[test]
    fn paused_and_disabled_databases() {
        let database =
            Database { name: "shop".into(), is_paused: true, is_disabled: true, ..Database::default() };
        let snapshot = Snapshot { databases: vec![database], ..of(vec![pool(0, 2)], Vec::new()) };
        let found = switched_off(&snapshot);
        assert_eq!(
            found.iter().map(|finding| finding.code).collect::<Vec<_>>(),
            ["database_paused", "database_disabled"]
        );
        assert_eq!(found[0].text, "database shop is paused and 2 clients are in its queue");
        assert_eq!(limits(&snapshot), [], "the pause explains that they wait");
    }
}
