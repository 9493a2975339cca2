//! Turns pgpool's nodes and health checks into a cluster: pgweir watches the nodes itself, follows the
//! primary, and promotes none.

use std::collections::BTreeMap;

use super::reads::{reads, weights};
use crate::dialect::{self, Given, Takes};
use crate::kinds::{Kind, add_database};
use crate::plan::{Cluster, Database, Node, Secret};
use crate::reader::Reader;
use crate::tree::Table;

/// The name of the one cluster.
const CLUSTER: &str = "main";
/// The bounds of `check_interval_ms` and `check_timeout_ms`.
const INTERVAL_MS: (u64, u64) = (50, 60_000);
const TIMEOUT_MS: (u64, u64) = (10, 60_000);
/// pgweir's own `primary_max_age_ms`, into which the checks must fit.
const PRIMARY_MAX_AGE_MS: u64 = 10_000;
/// pgpool's own numbers, for keys that the file does not have.
const SEARCH_MS: u64 = 300_000;
const TIMEOUT_DEFAULT_MS: u64 = 20_000;
const RETRY_DELAY_DEFAULT_MS: u64 = 1_000;
/// The user that pgpool's checks log in as if the file names none.
const CHECK_USER: &str = "nobody";
/// The time that clients wait for a primary, for pgpool's "until one is found".
const FOREVER_S: u64 = 86_400;

/// A server of the file.
pub(super) struct Backend {
    pub(super) line: u32,
    pub(super) index: u32,
    pub(super) host: String,
    pub(super) port: u16,
    /// `backend_application_nameN`.
    pub(super) name: Option<String>,
    /// `backend_weightN`.
    pub(super) weight: Option<f64>,
    /// `true` if the node has the flag ALWAYS_PRIMARY.
    pub(super) is_primary: bool,
}

/// Writes the nodes as a cluster that serves all databases.
pub(super) fn cluster(table: &Table, backends: &[Backend], reader: &mut Reader<'_, '_>) {
    let names = names(backends);
    let given: Vec<Option<f64>> = backends.iter().map(|backend| backend.weight).collect();
    let weights = weights(&given);
    let differ = weights.iter().any(|weight| *weight != weights[0]);
    for ((backend, name), weight) in backends.iter().zip(&names).zip(weights) {
        let weight = differ.then_some(weight);
        let node = Node { name: name.clone(), host: backend.host.clone(), port: backend.port, weight };
        reader.plan.nodes.push(node);
    }
    let mut cluster = Cluster { name: CLUSTER.to_owned(), nodes: names, ..Cluster::default() };
    check_user(table, &mut cluster, reader);
    checks(table, &mut cluster, reader);
    reads(table, &mut cluster, reader);
    let search_ms = time_ms(table, "search_primary_node_timeout").unwrap_or(SEARCH_MS);
    let wait_s = if search_ms == 0 { FOREVER_S } else { search_ms.div_ceil(1000) };
    cluster.options.insert("primary_wait", wait_s.to_string());
    if search_ms == 0 {
        let why =
            "pgpool searches until it finds a primary; clients of pgweir wait for a day (`primary_wait`)";
        reader.differs(line(table, "search_primary_node_timeout"), "search_primary_node_timeout", why);
    }
    reader.plan.clusters.push(cluster);
    let database =
        Database { name: "*".to_owned(), cluster: Some(CLUSTER.to_owned()), ..Database::default() };
    add_database(&mut reader.plan, database);
}

/// Returns `backend_application_nameN` if all nodes have one that can be a name, and numbers otherwise.
fn names(backends: &[Backend]) -> Vec<String> {
    let is_plain = |name: &String| {
        !name.is_empty()
            && name.bytes().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, b'_' | b'-'))
    };
    let own: Vec<String> =
        backends.iter().filter_map(|backend| backend.name.clone().filter(is_plain)).collect();
    let differ = own.iter().collect::<std::collections::BTreeSet<_>>().len() == backends.len();
    if differ { own } else { backends.iter().map(|backend| format!("node{}", backend.index)).collect() }
}

/// Returns the user of the checks: that of pgpool's replication check, which is the one that finds the
/// primary.
fn check_user(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let given = |key: &str| table.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
    let kind = ["sr_check", "health_check"].into_iter().find(|kind| given(&format!("{kind}_user")).is_some());
    let Some(kind) = kind else {
        cluster.options.insert("check_user", CHECK_USER.to_owned());
        let why = "pgpool's checks log in as \"nobody\" if the file names no user, and so does pgweir now: see that it may, or change \
                   `check_user`. It needs LOGIN, and should be a member of `pg_read_all_stats`";
        return reader.differs(0, "sr_check_user", why);
    };
    cluster.options.extend(given(&format!("{kind}_user")).map(|user| ("check_user", user)));
    cluster.options.extend(given(&format!("{kind}_database")).map(|name| ("check_dbname", name)));
    let key = format!("{kind}_password");
    match given(&key) {
        Some(secret) if secret.starts_with("AES") => {
            let why = "it is encrypted with pgpool's key; enter the password as `check_password`, or in the list of users";
            reader.missing(line(table, &key), &key, why);
        }
        Some(secret) => {
            let plain = secret.strip_prefix("TEXT").unwrap_or(&secret);
            cluster.check_password = Some(Secret::new(plain));
        }
        // As in pgpool, the list of users has the password.
        None => {}
    }
}

/// Sets the interval and the timeout of the checks.
fn checks(table: &Table, cluster: &mut Cluster, reader: &mut Reader<'_, '_>) {
    let period = |key| time_ms(table, key).filter(|ms| *ms > 0);
    let options: &mut BTreeMap<&'static str, String> = &mut cluster.options;
    let interval_ms = period("health_check_period").map(|ms| ms.clamp(INTERVAL_MS.0, INTERVAL_MS.1));
    if let Some(interval_ms) = interval_ms {
        options.insert("check_interval_ms", interval_ms.to_string());
        let timeout_ms = time_ms(table, "health_check_timeout").unwrap_or(TIMEOUT_DEFAULT_MS);
        // In pgpool, 0 means no limit.
        let timeout_ms = if timeout_ms == 0 { TIMEOUT_MS.1 } else { timeout_ms };
        let timeout_ms = timeout_ms.clamp(TIMEOUT_MS.0, TIMEOUT_MS.1);
        options.insert("check_timeout_ms", timeout_ms.to_string());
        let needed_ms = timeout_ms.max(interval_ms * 2);
        if needed_ms > PRIMARY_MAX_AGE_MS {
            options.insert("primary_max_age_ms", needed_ms.to_string());
            let why = format!(
                "checks that come or time out so late let a primary count for {needed_ms} ms after its last answer (`primary_max_age_ms`). \
                 pgweir's own values are 1000 for `check_interval_ms` and `check_timeout_ms`, 10000 for this one"
            );
            reader.differs(line(table, "health_check_period"), "health_check_period", &why);
        }
        let retries: u64 =
            table.text("health_check_max_retries").and_then(|text| text.parse().ok()).unwrap_or(0);
        if retries > 0 {
            let delay_ms = time_ms(table, "health_check_retry_delay").unwrap_or(RETRY_DELAY_DEFAULT_MS);
            let down_ms = retries.saturating_mul(delay_ms + timeout_ms).min(i32::MAX.unsigned_abs().into());
            options.insert("down_after_ms", down_ms.to_string());
        }
    }
}

fn time_ms(table: &Table, key: &str) -> Option<u64> {
    let given = dialect::understand_text(Takes::Seconds, Kind::Pgpool, table.text(key)?).ok()?;
    if let Given::TimeMs(ms) = given { Some(ms) } else { None }
}

fn line(table: &Table, key: &str) -> u32 {
    table.get(key).map_or(0, |node| node.line)
}
