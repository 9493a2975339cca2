//! Findings about PostgreSQL: enough connections for the pools, limits of roles and databases, timeouts.

use std::collections::BTreeMap;

use super::place;
use crate::finding::{Finding, count};
use crate::snapshot::{Database, Limits, Probe, Snapshot};

/// The number of databases that are named in the sum of a server's pools.
const DATABASES_SHOWN_MAX: usize = 5;

/// The age from which an idle transaction is worth a finding.
const IDLE_LONG_S: u64 = 10;

/// Returns the logins that succeeded.
fn logins(snapshot: &Snapshot) -> impl Iterator<Item = (&Probe, &Limits)> {
    snapshot.probes.iter().filter_map(|probe| Some((probe, probe.result.as_ref().ok()?)))
}

/// Compares the number of connections that the pools of each server may open with what the server accepts.
pub(super) fn connections(snapshot: &Snapshot) -> Vec<Finding> {
    let mut servers: BTreeMap<(&str, u16), &Limits> = BTreeMap::new();
    for (probe, limits) in logins(snapshot) {
        servers.entry((&probe.host, probe.port)).or_insert(limits);
    }
    servers.into_iter().filter_map(|(server, limits)| of_server(snapshot, server, limits)).collect()
}

fn of_server(snapshot: &Snapshot, server: (&str, u16), limits: &Limits) -> Option<Finding> {
    let accepted = limits.max_connections.saturating_sub(limits.superuser_reserved + limits.reserved);
    let reserved = match limits.reserved {
        0 => format!("superuser_reserved_connections {}", limits.superuser_reserved),
        more => format!(
            "superuser_reserved_connections {} and reserved_connections {more}",
            limits.superuser_reserved
        ),
    };
    let accepts =
        format!("PostgreSQL accepts {accepted} (max_connections {} less {reserved})", limits.max_connections);
    let at = place(server.0, server.1);
    let databases: Vec<&Database> =
        snapshot.databases.iter().filter(|database| database.places().any(|place| place == server)).collect();
    let endless: Vec<&str> = databases
        .iter()
        .filter(|database| database.servers_max().is_none())
        .map(|database| &*database.name)
        .collect();
    if !endless.is_empty() {
        return Some(Finding::warning(
            "pool_size_unlimited",
            format!("server {at}: the pools of {} have no limit; {accepts}", endless.join(", ")),
            "set pool_size or max_db_connections, so that the pools together stay below what PostgreSQL accepts",
        ));
    }
    let sum: u64 = databases.iter().filter_map(|database| database.servers_max()).sum();
    if sum <= accepted {
        return None;
    }
    let mut parts: Vec<String> =
        databases.iter().take(DATABASES_SHOWN_MAX).map(|database| part(database)).collect();
    if databases.len() > DATABASES_SHOWN_MAX {
        parts.push(format!("{} more databases", databases.len() - DATABASES_SHOWN_MAX));
    }
    Some(Finding::error(
        "postgres_connections",
        format!("server {at}: the pools may open {sum} connections ({}), but {accepts}", parts.join(", ")),
        "lower the pool sizes or set max_db_connections, or raise max_connections in PostgreSQL",
    ))
}

/// Returns how the number of a database is computed, as text.
fn part(database: &Database) -> String {
    let Database { name, pools, pool_size, reserve_pool_size, max_connections, .. } = database;
    let sum = database.servers_max().unwrap_or_default();
    if sum == *max_connections {
        return format!("{name}: max_db_connections {sum}");
    }
    let each = if *reserve_pool_size > 0 {
        format!("{pool_size} + {reserve_pool_size}")
    } else {
        pool_size.to_string()
    };
    format!("{name}: {} of {each}", count(*pools, "pool"))
}

/// Returns findings about `CONNECTION LIMIT` of roles and databases.
pub(super) fn role_and_database_limits(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for (probe, limits) in logins(snapshot) {
        let Some(database) = snapshot.databases.iter().find(|database| database.name == probe.database)
        else {
            continue;
        };
        let of_pool = database.pool_size + database.reserve_pool_size;
        let (name, user) = (&database.name, &probe.user);
        if let Some(max) = limits.role_max.filter(|max| of_pool > *max) {
            found.push(Finding::error(
                "role_connection_limit",
                format!("pool {name}/{user} may open {of_pool} connections, but the role {user} has CONNECTION LIMIT {max}"),
                format!("lower pool_size, or run ALTER ROLE {user} CONNECTION LIMIT {of_pool}"),
            ));
        }
        let whole = database.servers_max().unwrap_or(of_pool);
        if let Some(max) = limits.database_max.filter(|max| whole > *max) {
            found.push(Finding::error(
                "database_connection_limit",
                format!("the pools of database {name} may open {whole} connections, but it has CONNECTION LIMIT {max} in PostgreSQL"),
                format!("lower the pool sizes, or raise the limit to {whole} with ALTER DATABASE ... CONNECTION LIMIT"),
            ));
        }
    }
    found.dedup();
    found
}

/// Returns findings about idle transactions, which hold servers.
pub(super) fn idle_in_transaction(snapshot: &Snapshot) -> Vec<Finding> {
    let of = |(probe, limits): (&Probe, &Limits)| {
        let (idle, oldest_s) = (limits.idle_in_transaction, limits.idle_in_transaction_oldest_s);
        (idle > 0 && oldest_s >= IDLE_LONG_S).then(|| {
            let verb = if idle == 1 { "is" } else { "are" };
            Finding::warning(
                "idle_in_transaction",
                format!(
                    "database {}: {} of {} {verb} idle in transaction, the oldest for {oldest_s} s",
                    probe.database,
                    count(idle, "session"),
                    probe.user
                ),
                "find in the application what waits between BEGIN and COMMIT, and set idle_transaction_timeout",
            )
        })
    };
    logins(snapshot).filter_map(of).collect()
}

/// Returns findings about timeouts of PostgreSQL that work against the pooler's, or that neither side has.
/// Databases with the same finding are reported together.
pub(super) fn timeouts(snapshot: &Snapshot) -> Vec<Finding> {
    let settings = &snapshot.settings;
    let named = |fits: &dyn Fn(&Limits) -> bool| {
        let mut names: Vec<&str> =
            logins(snapshot).filter(|(_, limits)| fits(limits)).map(|(probe, _)| &*probe.database).collect();
        names.dedup();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let mut found = Vec::new();
    if let Some(names) = named(&|limits| limits.idle_session_timeout_ms > 0) {
        found.push(Finding::warning(
            "idle_session_timeout",
            format!("PostgreSQL closes idle connections of the pools of {names} (idle_session_timeout)"),
            "run ALTER ROLE ... SET idle_session_timeout = 0 for the pools' users; server_idle_timeout closes what is not needed",
        ));
    }
    let query_ms = settings.query_timeout_s * 1000.0;
    if let Some(names) = named(&|limits| query_ms > 0.0 && limits.statement_timeout_ms as f64 > query_ms) {
        found.push(Finding::warning(
            "query_timeout_below_statement_timeout",
            format!(
                "query_timeout ({} s) ends before PostgreSQL's statement_timeout for {names}: the client is disconnected and its server closed",
                settings.query_timeout_s
            ),
            "set query_timeout above statement_timeout, so that a long statement is cancelled and the session goes on",
        ));
    }
    let has_own = settings.idle_transaction_timeout_s > 0.0 || settings.transaction_timeout_s > 0.0;
    if let Some(names) = named(&|limits| !has_own && limits.idle_in_transaction_timeout_ms == 0) {
        found.push(Finding::note(
            "no_idle_transaction_timeout",
            format!("nothing ends a transaction that is idle in {names}: a client that forgets COMMIT holds a server"),
            "set idle_transaction_timeout, or idle_in_transaction_session_timeout in PostgreSQL",
        ));
    }
    if let Some(names) = named(&|limits| query_ms == 0.0 && limits.statement_timeout_ms == 0) {
        found.push(Finding::note(
            "no_statement_timeout",
            format!("nothing ends a statement that runs too long in {names}"),
            "set statement_timeout in PostgreSQL for the pools' users",
        ));
    }
    if let Some(names) = named(&|limits| limits.connection_check_ms == Some(0)) {
        found.push(Finding::note(
            "no_client_connection_check",
            format!(
                "if pgweir is killed or its machine fails, statements that run in {names} go on: PostgreSQL does not look for its client"
            ),
            "set client_connection_check_interval in PostgreSQL, for example to 10s; pgweir itself cancels the statements of clients that have vanished (cancel_vanished_after)",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::snapshot::Settings;

    fn database(name: &str, pools: u64) -> Database {
        Database {
            name: name.into(),
            hosts: vec!["db".into()],
            port: 5432,
            pools,
            pool_size: 20,
            ..Database::default()
        }
    }

    fn limits() -> Limits {
        Limits { max_connections: 100, superuser_reserved: 3, ..Limits::default() }
    }

    fn of(databases: Vec<Database>, limits: Limits) -> Snapshot {
        let probe = |database: &Database| Probe {
            database: database.name.clone(),
            user: "alice".into(),
            host: "db".into(),
            port: 5432,
            result: Ok(limits.clone()),
        };
        Snapshot { probes: databases.iter().map(probe).collect(), databases, ..Snapshot::default() }
    }

    #[test]
    fn pools_that_may_open_more_than_postgresql_accepts() {
        assert_eq!(connections(&of(vec![database("a", 3), database("b", 1)], limits())), []);
        let found = connections(&of(vec![database("a", 3), database("b", 2)], limits()));
        assert_eq!(found.len(), 1, "one for each server: {found:?}");
        assert_eq!(
            found[0].text,
            "server db:5432: the pools may open 100 connections (a: 3 pools of 20, b: 2 pools of 20), but PostgreSQL \
             accepts 97 (max_connections 100 less superuser_reserved_connections 3)"
        );
        assert_eq!(found[0].severity, Severity::Error);
        let exactly = Limits { max_connections: 103, ..limits() };
        assert_eq!(connections(&of(vec![database("a", 5)], exactly.clone())), []);
        let reserved = Limits { reserved: 1, ..exactly };
        let found = connections(&of(vec![database("a", 5)], reserved));
        assert!(found[0].text.contains("accepts 99 ") && found[0].text.contains("reserved_connections 1)"));
    }

    #[test]
    fn a_limit_of_the_database_bounds_its_pools() {
        let bounded = Database { max_connections: 30, ..database("a", 50) };
        assert_eq!(connections(&of(vec![bounded.clone()], limits())), []);
        let found = connections(&of(vec![bounded, database("b", 4)], limits()));
        assert!(
            found[0].text.contains("110 connections (a: max_db_connections 30, b: 4 pools of 20)"),
            "{found:?}"
        );
        let reserve = Database { reserve_pool_size: 5, ..database("a", 4) };
        let found = connections(&of(vec![reserve], limits()));
        assert!(found[0].text.contains("100 connections (a: 4 pools of 20 + 5)"), "{found:?}");
        let other = Database { hosts: vec!["other".into()], ..database("b", 90) };
        assert_eq!(connections(&of(vec![database("a", 1), other], limits())), [], "another server");
    }

    #[test]
    fn a_pool_without_a_limit() {
        let endless = Database { pool_size: 0, ..database("a", 1) };
        let found = connections(&of(vec![endless], limits()));
        assert_eq!((found[0].severity, found[0].code), (Severity::Warning, "pool_size_unlimited"));
    }

    #[test]
    fn limits_of_roles_and_databases() {
        let tight = Limits { role_max: Some(19), database_max: Some(39), ..limits() };
        let found = role_and_database_limits(&of(vec![database("a", 2)], tight));
        let codes: Vec<_> = found.iter().map(|finding| finding.code).collect();
        assert_eq!(codes, ["role_connection_limit", "database_connection_limit"]);
        assert!(found[0].text.contains("may open 20") && found[0].text.ends_with("LIMIT 19"), "{found:?}");
        let wide = Limits { role_max: Some(20), database_max: Some(40), ..limits() };
        assert_eq!(role_and_database_limits(&of(vec![database("a", 2)], wide)), []);
    }

    #[test]
    fn old_transactions_that_do_nothing() {
        let idle = Limits { idle_in_transaction: 2, idle_in_transaction_oldest_s: 10, ..limits() };
        let found = idle_in_transaction(&of(vec![database("a", 1)], idle.clone()));
        assert_eq!(
            found[0].text,
            "database a: 2 sessions of alice are idle in transaction, the oldest for 10 s"
        );
        let young = Limits { idle_in_transaction_oldest_s: 9, ..idle };
        assert_eq!(idle_in_transaction(&of(vec![database("a", 1)], young)), []);
    }

    #[test]
    fn timeouts_that_contradict_or_that_neither_side_has() {
        let codes = |settings: Settings, limits: Limits| {
            let snapshot = Snapshot { settings, ..of(vec![database("a", 1), database("b", 1)], limits) };
            timeouts(&snapshot)
                .into_iter()
                .map(|finding| (finding.code, finding.severity))
                .collect::<Vec<_>>()
        };
        let none = (Settings::default(), limits());
        assert_eq!(
            codes(none.0, none.1),
            [("no_idle_transaction_timeout", Severity::Note), ("no_statement_timeout", Severity::Note)]
        );
        let set = Settings { idle_transaction_timeout_s: 60.0, query_timeout_s: 30.0, ..Settings::default() };
        assert_eq!(codes(set.clone(), Limits { statement_timeout_ms: 30_000, ..limits() }), []);
        assert_eq!(
            codes(
                set.clone(),
                Limits { statement_timeout_ms: 30_001, idle_session_timeout_ms: 1, ..limits() }
            ),
            [
                ("idle_session_timeout", Severity::Warning),
                ("query_timeout_below_statement_timeout", Severity::Warning)
            ]
        );
        let unchecked = Limits { connection_check_ms: Some(0), ..limits() };
        let told = codes(
            Settings { idle_transaction_timeout_s: 1.0, query_timeout_s: 1.0, ..Settings::default() },
            unchecked,
        );
        assert_eq!(told, [("no_client_connection_check", Severity::Note)]);
        let theirs = Limits { statement_timeout_ms: 1, idle_in_transaction_timeout_ms: 1, ..limits() };
        assert_eq!(codes(Settings::default(), theirs), []);
    }

    #[test]
    fn databases_with_the_same_timeouts_are_told_together() {
        let found = timeouts(&of(vec![database("a", 1), database("b", 1)], limits()));
        assert!(found[0].text.contains("in a, b:"), "{found:?}");
    }
}
