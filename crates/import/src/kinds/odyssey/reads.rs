//! The parts of odyssey.conf for a storage with several hosts: the host on which clients' statements run, and
//! the lag that a host may have.

use crate::dialect::Given;
use crate::kinds::replicas;
use crate::plan::{Cluster, Pool, Secret};
use crate::reader::Reader;
use crate::tree::Table;

/// Odyssey's check of the lag of a storage's hosts.
pub(super) struct Watchdog {
    query: Option<String>,
    user: Option<String>,
    password: Option<Secret>,
    dbname: Option<String>,
}

pub(super) fn watchdog(storage: &Table) -> Option<Watchdog> {
    let (_, _, table) = storage.blocks("watchdog").next()?;
    let text = |key: &str| table.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
    Some(Watchdog {
        query: text("watchdog_lag_query"),
        user: text("storage_user"),
        password: text("storage_password").map(Secret::new),
        dbname: text("storage_db"),
    })
}

/// Returns the first listener. Its `target_session_attrs` and `catchup_timeout` override those of the rules.
pub(super) fn listener(table: &Table) -> Table {
    let first = table.blocks("listen").find(|(_, _, listen)| listen.get("host").is_some());
    first.map(|(_, _, listen)| listen.clone()).unwrap_or_default()
}

/// Returns whether the clients of a listener only read.
pub(super) fn is_read_only(listen: &Table) -> bool {
    listen.text("target_session_attrs").is_some_and(|text| route_of(text) == Some("standby"))
}

fn route_of(text: &str) -> Option<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "read-write" | "primary" => Some("primary"),
        "read-only" | "standby" => Some("standby"),
        "prefer-standby" => Some("prefer-standby"),
        _ => None,
    }
}

/// Sets where the statements of one rule's clients run, and what their cluster needs for it.
pub(super) fn reads(
    reader: &mut Reader<'_, '_>,
    line: u32,
    pool: &mut Pool,
    table: &Table,
    listener: &Table,
    watchdog: Option<&Watchdog>,
) {
    let given = |key: &str| listener.text(key).or(table.text(key));
    let route = given("target_session_attrs").and_then(route_of);
    pool.settings.insert("route", Given::Text(route.unwrap_or("auto").to_owned()));
    let database = pool.database.clone();
    let what = format!("target_session_attrs of {database}");
    if route.is_none() {
        let why = "Odyssey takes any host for a connection, and a change fails on a replica; `route=auto` sends only reads to standbys. The hosts \
                   are taken for one primary and its standbys";
        if !reader.plan.pools.iter().any(|known| known.database == database) {
            reader.differs(line, &what, why);
        }
        replicas::tell_session(reader, line, &what, table.text("pool"));
    }
    let limit_ms =
        given("catchup_timeout").and_then(|text| text.parse::<u64>().ok()).filter(|limit| *limit > 0);
    let limit_ms = limit_ms.map(|limit| limit.saturating_mul(1000).min(i32::MAX.unsigned_abs().into()));
    let entry = reader.plan.databases.iter().find(|entry| entry.name == database);
    let Some(name) = entry.and_then(|entry| entry.cluster.clone()) else { return };
    let Some(cluster) = reader.plan.clusters.iter_mut().find(|cluster| cluster.name == name) else { return };
    if let Some(watchdog) = watchdog {
        watch(cluster, watchdog);
    }
    let known = cluster.options.get("lag_limit_ms").and_then(|known| known.parse::<u64>().ok());
    if let Some(limit) = limit_ms {
        cluster.options.insert("lag_limit_ms", known.map_or(limit, |known| known.min(limit)).to_string());
    }
    if let (Some(limit), Some(known)) = (limit_ms, known.filter(|known| Some(*known) != limit_ms)) {
        let why = format!(
            "rules of one storage have different ones; pgweir has one for all clients of a cluster: {} ms",
            known.min(limit)
        );
        reader.differs(line, "catchup_timeout", &why);
    }
}

/// Sets the query of the lag, and the user that runs it.
fn watch(cluster: &mut Cluster, watchdog: &Watchdog) {
    if let Some(query) = &watchdog.query {
        let query = query.trim().trim_end_matches(';');
        cluster
            .options
            .insert("lag_query", format!("SELECT extract(epoch FROM clock_timestamp()) - ({query})"));
    }
    if let Some(user) = &watchdog.user {
        cluster.options.insert("check_user", user.clone());
        cluster.check_password.clone_from(&watchdog.password);
    }
    if let Some(dbname) = &watchdog.dbname {
        cluster.options.insert("check_dbname", dbname.clone());
    }
}
