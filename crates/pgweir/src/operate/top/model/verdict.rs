//! The verdict: the number of waiting clients, the longest wait, and a finding for each cause, with its remedy.

use std::collections::HashMap;

use pgweir_doctor::printable;
use pgweir_settings::ADMIN_DATABASE;

use super::reading::{Reading, Row};
use super::value::{counted, duration};

/// A wait of this length is worth attention, microseconds.
const WAIT_LONG_US: u64 = 1_000_000;
/// A wait of this length is bad, microseconds.
const WAIT_BAD_US: u64 = 10_000_000;
/// The part of a limit from which on the limit is named.
const NEARLY: f64 = 0.9;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// Clients fail, or wait for long.
    Bad,
    /// Clients may soon fail or wait.
    Attention,
    Good,
}

/// A cause, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) tone: Tone,
    pub(crate) text: String,
    pub(crate) remedy: String,
}

/// The state of the pooler in a sentence, and its causes, the worst first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) tone: Tone,
    /// "12 clients wait, the longest for 3.2 s"
    pub(crate) headline: String,
    pub(crate) findings: Vec<Finding>,
}

/// Why the clients of a pool wait, or would wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Suspended,
    Paused,
    /// The pool's cluster has no primary; the name is empty if several clusters have none.
    NoPrimary(String),
    /// The text is PostgreSQL's or the system's.
    CannotConnect(String),
    /// All servers of the pool are busy: their number, and those that are busy for no statement.
    Full {
        servers: u64,
        idle_in_transaction: u64,
        pinned: u64,
    },
    /// `max_db_connections` is reached: this number.
    DatabaseLimit(u64),
    /// `max_user_connections` is reached: this number.
    UserLimit(u64),
    /// Servers are being opened: their number.
    Opening(u64),
}

impl Cause {
    /// The cause in two words, for a column.
    pub(crate) fn word(&self) -> String {
        match self {
            Cause::Suspended => "suspended".to_owned(),
            Cause::Paused => "paused".to_owned(),
            Cause::NoPrimary(_) => "no primary".to_owned(),
            Cause::CannotConnect(_) => "cannot connect".to_owned(),
            Cause::Full { .. } => "all servers busy".to_owned(),
            Cause::DatabaseLimit(_) => "database limit".to_owned(),
            Cause::UserLimit(_) => "user limit".to_owned(),
            Cause::Opening(_) => "opening servers".to_owned(),
        }
    }

    /// The cause in a sentence, and what helps.
    fn told(&self, database: &str) -> (String, String) {
        match self {
            Cause::Suspended => ("pgweir is suspended".to_owned(), "RESUME".to_owned()),
            Cause::Paused => ("paused".to_owned(), format!("RESUME {database}")),
            Cause::NoPrimary(cluster) if cluster.is_empty() => {
                ("its cluster has no primary".to_owned(), "see the view of nodes".to_owned())
            }
            Cause::NoPrimary(cluster) => {
                (format!("cluster {cluster} has no primary"), "see the view of nodes".to_owned())
            }
            Cause::CannotConnect(why) => (
                format!("cannot connect: {why}"),
                "check host, port and password, and that PostgreSQL runs".to_owned(),
            ),
            Cause::Full { servers, idle_in_transaction, pinned } => {
                let idle = Some(*idle_in_transaction).filter(|number| *number > 0);
                let kept = Some(*pinned).filter(|number| *number > 0);
                let of_idle = idle.map(|number| format!("{number} idle in transaction"));
                let of_kept = kept.map(|number| format!("{number} kept by their client"));
                let parts: Vec<String> = of_idle.into_iter().chain(of_kept).collect();
                let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
                let remedy = if idle.is_some() {
                    "end transactions sooner, or raise pool_size"
                } else {
                    "raise pool_size, or make statements shorter"
                };
                let all = if *servers == 1 {
                    "its only server is busy".to_owned()
                } else {
                    format!("all {servers} servers are busy")
                };
                (format!("{all}{parts}"), remedy.to_owned())
            }
            Cause::DatabaseLimit(limit) => (
                format!("max_db_connections ({limit}) is reached"),
                "raise it, or make statements shorter".to_owned(),
            ),
            Cause::UserLimit(limit) => (
                format!("max_user_connections ({limit}) is reached"),
                "raise it, or make statements shorter".to_owned(),
            ),
            Cause::Opening(number) => (
                format!("{} being opened", counted(*number, "server")),
                "see the log if this lasts".to_owned(),
            ),
        }
    }
}

/// The number of server connections of a pool.
pub(crate) fn servers(pool: &Row) -> u64 {
    let columns =
        ["sv_active", "sv_active_cancel", "sv_being_canceled", "sv_idle", "sv_used", "sv_tested", "sv_login"];
    columns.iter().map(|column| pool.number(column)).sum()
}

/// The number of servers that a pool may have; 0 if there is no limit. The size of the user goes before that of the database.
pub(crate) fn limit(reading: &Reading, pool: &Row) -> u64 {
    let of_user = reading.user(pool.text("user")).and_then(|row| row.known("pool_size"));
    let of_database = || reading.database(pool.text("database")).map(|row| row.number("pool_size"));
    of_user.or_else(of_database).unwrap_or_default()
}

/// Whether the row of a client is one whose transaction is open while no statement runs.
pub(crate) fn is_idle_in_transaction(client: &Row) -> bool {
    client.text("state") == "active"
        && client.number("transaction_us") > 0
        && client.micros("wait", "wait_us") == 0
}

/// The number of clients that are idle in a transaction, by their pool (database, user).
fn idle_in_transaction(reading: &Reading) -> HashMap<(&str, &str), u64> {
    let mut found = HashMap::new();
    for client in reading.clients.iter().flatten().filter(|client| is_idle_in_transaction(client)) {
        *found.entry((client.text("database"), client.text("user"))).or_default() += 1;
    }
    found
}

/// The cause of each row of SHOW POOLS, in the order of the rows; `None` if nothing holds the pool's clients.
pub(crate) fn causes(reading: &Reading) -> Vec<Option<Cause>> {
    let idle = idle_in_transaction(reading);
    reading.pools.iter().map(|pool| cause(reading, pool, &idle)).collect()
}

fn cause(reading: &Reading, pool: &Row, idle: &HashMap<(&str, &str), u64>) -> Option<Cause> {
    let (name, user) = (pool.text("database"), pool.text("user"));
    if name == ADMIN_DATABASE {
        return None;
    }
    let database = reading.database(name);
    let (servers, waiting) = (servers(pool), pool.number("cl_waiting"));
    if reading.is_state("suspended") {
        return Some(Cause::Suspended);
    }
    if database.is_some_and(|row| row.text("paused") == "1") || reading.is_state("paused") {
        return Some(Cause::Paused);
    }
    if waiting > 0 && servers == 0 && database.is_some_and(|row| row.text("host").is_empty()) {
        let mut held = reading.clusters.iter().filter(|row| row.text("state") == "held");
        if let Some(cluster) = held.next() {
            let name = if held.next().is_some() { "" } else { cluster.text("cluster") };
            return Some(Cause::NoPrimary(printable(name)));
        }
    }
    let failure = pool.text("connect_failure");
    if !failure.is_empty() {
        return Some(Cause::CannotConnect(printable(&reason(failure))));
    }
    if waiting == 0 {
        return None;
    }
    let limit = limit(reading, pool);
    if limit > 0 && servers >= limit && pool.number("sv_login") < servers {
        let idle_in_transaction = idle.get(&(name, user)).copied().unwrap_or_default();
        return Some(Cause::Full { servers, idle_in_transaction, pinned: pool.number("sv_pinned") });
    }
    let reached = |row: Option<&Row>, column| {
        let row = row?;
        let limit = row.known(column).filter(|limit| *limit > 0)?;
        (row.number("current_connections") >= limit).then_some(limit)
    };
    if let Some(limit) = reached(database, "max_connections") {
        return Some(Cause::DatabaseLimit(limit));
    }
    if let Some(limit) = reached(reading.user(user), "max_user_connections") {
        return Some(Cause::UserLimit(limit));
    }
    Some(pool.number("sv_login")).filter(|number| *number > 0).map(Cause::Opening)
}

/// The reason of a failed connection, without words that stand beside it: "Connection refused (10.0.0.5:5432)".
fn reason(failure: &str) -> String {
    let begins = ["connection to server failed: ", "connect failed: "];
    let text = begins.iter().find_map(|begin| failure.strip_prefix(begin)).unwrap_or(failure);
    let place = text.strip_prefix("connect to ").and_then(|rest| rest.split_once(" failed: "));
    place.map_or_else(|| text.to_owned(), |(place, why)| format!("{why} ({place})"))
}

/// The verdict on a reading. `clients_max` is `max_client_conn`, 0 if it is not known.
pub(crate) fn verdict(reading: &Reading, clients_max: u64) -> Verdict {
    let pools: Vec<&Row> = reading.pools.iter().collect();
    let waiting: u64 = pools.iter().map(|pool| pool.number("cl_waiting")).sum();
    let longest_us = pools.iter().map(|pool| wait_us(pool)).max().unwrap_or_default();
    let mut findings = of_pools(reading);
    findings.extend(of_clusters(reading));
    findings.extend(of_process(reading, clients_max));
    findings.sort_by_key(|(finding, wait_us)| (finding.tone, std::cmp::Reverse(*wait_us)));
    let findings: Vec<Finding> = findings.into_iter().map(|(finding, _)| finding).collect();
    let headline = match waiting {
        0 => "no client waits".to_owned(),
        1 => format!("1 client waits for {}", duration(longest_us)),
        _ => format!("{} wait, the longest for {}", counted(waiting, "client"), duration(longest_us)),
    };
    let worst = findings.first().map_or(Tone::Good, |finding| finding.tone);
    Verdict { tone: worst.min(tone_of_wait(longest_us)), headline, findings }
}

fn wait_us(pool: &Row) -> u64 {
    pool.micros("maxwait", "maxwait_us")
}

fn tone_of_wait(wait_us: u64) -> Tone {
    match wait_us {
        WAIT_BAD_US.. => Tone::Bad,
        WAIT_LONG_US.. => Tone::Attention,
        _ => Tone::Good,
    }
}

/// One finding for each pool that has a cause, with its longest wait.
fn of_pools(reading: &Reading) -> Vec<(Finding, u64)> {
    let mut found = Vec::new();
    for (pool, cause) in reading.pools.iter().zip(causes(reading)) {
        let (Some(cause), waiting, wait_us) = (cause, pool.number("cl_waiting"), wait_us(pool)) else {
            continue;
        };
        let tone = match cause {
            Cause::Suspended => Tone::Bad,
            Cause::CannotConnect(_) | Cause::NoPrimary(_) | Cause::Paused if waiting > 0 => Tone::Bad,
            Cause::CannotConnect(_) | Cause::NoPrimary(_) | Cause::Paused => Tone::Attention,
            // More clients wait than are served, so this is more than a burst.
            _ if waiting >= servers(pool).max(1) => tone_of_wait(wait_us).min(Tone::Attention),
            _ => tone_of_wait(wait_us),
        };
        // A short wait is usual while a pool grows, and when clients come in a burst.
        if tone == Tone::Good {
            continue;
        }
        let name = pool_name(reading, pool);
        let who = if waiting > 0 {
            format!("{} waiting", counted(waiting, "client"))
        } else {
            "no client waits".to_owned()
        };
        let (text, remedy) = cause.told(&printable(pool.text("database")));
        found.push((Finding { tone, text: format!("{name}: {text}, {who}"), remedy }, wait_us));
    }
    found
}

/// The name of a pool: its database, and its user if the database has several pools.
fn pool_name(reading: &Reading, pool: &Row) -> String {
    let database = pool.text("database");
    let is_alone = reading.pools.iter().filter(|other| other.text("database") == database).count() < 2;
    printable(&if is_alone { database.to_owned() } else { format!("{database} ({})", pool.text("user")) })
}

fn of_clusters(reading: &Reading) -> Vec<(Finding, u64)> {
    let mut found = Vec::new();
    let mut note = |tone, text: String, remedy: String| {
        found.push((Finding { tone, text: printable(&text), remedy: printable(&remedy) }, 0));
    };
    for row in &reading.clusters {
        let name = row.text("cluster");
        if row.text("state") == "held" {
            let (held, reason) = (counted(row.number("held_clients"), "client"), row.text("reason"));
            note(
                Tone::Bad,
                format!("cluster {name} has no primary, {held} waiting: {reason}"),
                "see the view of nodes".to_owned(),
            );
        }
        if !row.text("switchover").is_empty() {
            note(
                Tone::Attention,
                format!("cluster {name}: switchover, {}", row.text("switchover")),
                format!("SWITCHOVER {name} CANCEL ends it"),
            );
        }
    }
    for row in &reading.nodes {
        let (name, state) = (format!("{}.{}", row.text("cluster"), row.text("node")), row.text("state"));
        if matches!(state, "down" | "refused") {
            note(
                Tone::Attention,
                format!("node {name} is {state}: {}", row.text("last_error")),
                "see the view of nodes".to_owned(),
            );
        } else if matches!(row.text("switch"), "draining" | "detached") {
            note(
                Tone::Attention,
                format!("node {name} is {}", row.text("switch")),
                format!("ATTACH NODE {name}"),
            );
        }
    }
    found
}

fn of_process(reading: &Reading, clients_max: u64) -> Vec<(Finding, u64)> {
    let mut found = Vec::new();
    let mut note = |tone, text: String, remedy: String| found.push((Finding { tone, text, remedy }, 0));
    for row in &reading.databases {
        let name = printable(row.text("name"));
        if row.text("disabled") == "1" {
            note(
                Tone::Attention,
                format!("{name} is disabled: new clients are refused"),
                format!("ENABLE {name}"),
            );
        }
        let has_pool = reading.pools.iter().any(|pool| pool.text("database") == row.text("name"));
        if row.text("paused") == "1" && !has_pool {
            note(Tone::Attention, format!("{name} is paused"), format!("RESUME {name}"));
        }
    }
    let clients: u64 = reading.databases.iter().map(|row| row.number("current_client_connections")).sum();
    if clients_max > 0 && clients as f64 >= NEARLY * clients_max as f64 {
        let tone = if clients >= clients_max { Tone::Bad } else { Tone::Attention };
        note(
            tone,
            format!("{clients} of {clients_max} clients are connected"),
            "raise max_client_conn".to_owned(),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(pairs: &[(&str, &str)]) -> Row {
        let base = [("name", "app"), ("host", "h"), ("pool_size", "2"), ("max_connections", "0")];
        let kept: Vec<_> =
            base.into_iter().filter(|(name, _)| pairs.iter().all(|(other, _)| other != name)).collect();
        Row::of(&[&kept[..], pairs].concat())
    }

    fn pool(pairs: &[(&str, &str)]) -> Row {
        Row::of(&[&[("database", "app"), ("user", "u")][..], pairs].concat())
    }

    fn waiting(pairs: &[(&str, &str)]) -> Reading {
        let wait = [("cl_waiting", "12"), ("maxwait", "3"), ("maxwait_us", "240000")];
        Reading {
            pools: vec![pool(&[&wait[..], pairs].concat())],
            databases: vec![database(&[])],
            ..Reading::default()
        }
    }

    fn first(reading: &Reading) -> (Tone, String, String) {
        let verdict = verdict(reading, 0);
        let finding = verdict.findings.first().expect("a finding");
        (finding.tone, finding.text.clone(), finding.remedy.clone())
    }

    #[test]
    fn nothing_waits() {
        let reading = Reading {
            pools: vec![pool(&[("sv_active", "2")])],
            databases: vec![database(&[])],
            ..Reading::default()
        };
        let good = verdict(&reading, 100);
        assert_eq!((good.tone, &*good.headline, good.findings.len()), (Tone::Good, "no client waits", 0));
    }

    #[test]
    fn a_full_pool_is_told_with_what_holds_its_servers() {
        let mut reading = waiting(&[("sv_active", "2"), ("sv_pinned", "1")]);
        let client =
            [("database", "app"), ("user", "u"), ("state", "active"), ("transaction_us", "5"), ("wait", "0")];
        reading.clients = Some(vec![Row::of(&client)]);
        let all = verdict(&reading, 0);
        assert_eq!((all.tone, &*all.headline), (Tone::Attention, "12 clients wait, the longest for 3.2 s"));
        assert_eq!(
            all.findings[0].text,
            "app: all 2 servers are busy (1 idle in transaction, 1 kept by their client), 12 clients waiting"
        );
        assert_eq!(all.findings[0].remedy, "end transactions sooner, or raise pool_size");
    }

    #[test]
    fn a_short_wait_is_a_finding_if_more_clients_wait_than_are_served() {
        let findings = |waiting: &str| {
            let wait =
                [("cl_waiting", waiting), ("maxwait", "0"), ("maxwait_us", "300000"), ("sv_active", "2")];
            let reading =
                Reading { pools: vec![pool(&wait)], databases: vec![database(&[])], ..Reading::default() };
            verdict(&reading, 0)
        };
        let (few, many) = (findings("1"), findings("2"));
        assert_eq!((few.tone, few.findings.len()), (Tone::Good, 0));
        assert_eq!((many.tone, many.findings[0].tone), (Tone::Attention, Tone::Attention));
    }

    #[test]
    fn the_size_of_a_user_goes_before_that_of_the_database() {
        let mut reading = waiting(&[("sv_active", "2"), ("sv_login", "1")]);
        reading.users = vec![Row::of(&[("name", "u"), ("pool_size", "5")])];
        assert_eq!(causes(&reading), [Some(Cause::Opening(1))]);
        reading.users = vec![Row::of(&[("name", "u"), ("pool_size", "")])];
        assert!(matches!(causes(&reading)[0], Some(Cause::Full { servers: 3, .. })));
    }

    #[test]
    fn each_cause_is_named() {
        let mut reading = waiting(&[("sv_active", "1"), ("connect_failure", "Connection refused")]);
        assert!(first(&reading).1.starts_with("app: cannot connect: Connection refused, 12 clients waiting"));
        assert_eq!(reason("connect failed: connect to 10.0.0.5:1 failed: refused"), "refused (10.0.0.5:1)");
        assert_eq!(reason("password authentication failed"), "password authentication failed");
        reading.databases = vec![database(&[("paused", "1")])];
        assert_eq!(
            first(&reading),
            (Tone::Bad, "app: paused, 12 clients waiting".to_owned(), "RESUME app".to_owned())
        );
        reading.state = vec![Row::of(&[("key", "suspended"), ("value", "yes")])];
        assert!(first(&reading).1.contains("pgweir is suspended"));

        let mut reading = waiting(&[("sv_active", "1")]);
        reading.databases = vec![database(&[("max_connections", "1"), ("current_connections", "1")])];
        assert!(first(&reading).1.contains("max_db_connections (1) is reached"));
        let mut reading = waiting(&[("sv_active", "1")]);
        reading.users =
            vec![Row::of(&[("name", "u"), ("max_user_connections", "1"), ("current_connections", "1")])];
        assert!(first(&reading).1.contains("max_user_connections (1) is reached"));
        assert_eq!(causes(&waiting(&[("sv_active", "1")])), [None]);
    }

    #[test]
    fn a_cluster_without_a_primary_is_the_cause() {
        let mut reading = waiting(&[]);
        reading.databases = vec![database(&[("host", "")])];
        reading.clusters = vec![Row::of(&[
            ("cluster", "main"),
            ("state", "held"),
            ("held_clients", "12"),
            ("reason", "m1 down"),
        ])];
        assert_eq!(causes(&reading), [Some(Cause::NoPrimary("main".to_owned()))]);
        let texts: Vec<String> =
            verdict(&reading, 0).findings.into_iter().map(|finding| finding.text).collect();
        assert_eq!(
            texts,
            [
                "app: cluster main has no primary, 12 clients waiting",
                "cluster main has no primary, 12 clients waiting: m1 down"
            ]
        );
    }

    #[test]
    fn what_may_soon_be_wrong_is_told_after_what_is() {
        let mut reading = waiting(&[("connect_failure", "refused")]);
        let busy = [("name", "b"), ("disabled", "1"), ("current_client_connections", "95")];
        reading.databases.push(database(&busy));
        reading.nodes = vec![
            Row::of(&[("cluster", "main"), ("node", "m2"), ("state", "down"), ("last_error", "timeout")]),
            Row::of(&[("cluster", "main"), ("node", "m3"), ("state", "standby"), ("switch", "draining")]),
        ];
        let texts: Vec<String> =
            verdict(&reading, 100).findings.into_iter().map(|finding| finding.text).collect();
        assert!(texts[0].starts_with("app: cannot connect"), "{texts:?}");
        for expected in [
            "node main.m2 is down: timeout",
            "node main.m3 is draining",
            "b is disabled: new clients are refused",
            "95 of 100 clients are connected",
        ] {
            assert!(texts.iter().any(|text| text == expected), "{expected}: {texts:?}");
        }
    }
}
