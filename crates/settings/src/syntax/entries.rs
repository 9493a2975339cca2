//! The entries of all sections but `[pgbouncer]`: turns one line into one options struct.

use std::collections::BTreeMap;

use crate::config::{DATABASE_NAME_MAX, Place};
use crate::error::{LoadError, Warning};
use crate::password::masked_pairs;
use crate::syntax::connstr;
use crate::syntax::slips::did_you_mean;
use crate::table::{
    CACHE_ROWS, CLUSTER_ROWS, CacheRule, ClusterOptions, DATABASE_ROWS, Database, Kind, NODE_ROWS,
    NodeOptions, PEER_ID_MAX, PEER_ROWS, Peer, ROUTE_ROWS, RouteLine, Row, Status, USER_ROWS, UserOptions,
    row,
};
use crate::{ADMIN_DATABASE, Discovery};

/// A `name = value` line.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
    pub(crate) place: &'a Place,
}

impl Entry<'_> {
    /// Returns a fault in PgBouncer's words, followed by the reason. `value` is the part of the value that
    /// may be shown.
    pub(crate) fn fault(&self, value: &str, reason: &str) -> LoadError {
        let Self { name, place, .. } = self;
        let remark = if [" ;", " #"].iter().any(|sign| value.contains(sign)) {
            " (a comment needs its own line)"
        } else {
            ""
        };
        let text = format!(
            "invalid value \"{value}\" for parameter {name} in configuration ({place}): {reason}{remark}"
        );
        place.error(text, format!("invalid value \"{value}\" for \"{name}\": {reason}{remark}"))
    }

    /// Returns a fault of an entry that has pairs; `rows` has the known keys.
    fn fault_of_pairs<T>(&self, rows: &'static [Row<T>], reason: &str) -> LoadError {
        self.fault(&shown(self.value, rows), reason)
    }
}

/// Returns the pairs of an entry with their secrets masked.
fn shown<T>(value: &str, rows: &'static [Row<T>]) -> String {
    let kind = |key: &str| row(rows, key).map(|row| row.kind);
    masked_pairs(value, |key| {
        key == "reserve_pool"
            || kind(key).is_some_and(|kind| !matches!(kind, Kind::Secret | Kind::TextWithSecret))
    })
}

/// The result of reading an entry.
pub(crate) struct Outcome<T> {
    /// The options; `None` if the entry as a whole is refused.
    pub(crate) options: Option<T>,
    pub(crate) faults: Vec<LoadError>,
    pub(crate) warnings: Vec<Warning>,
}

impl<T> Outcome<T> {
    fn refused(fault: LoadError) -> Self {
        Self { options: None, faults: vec![fault], warnings: Vec::new() }
    }
}

/// The warning about a setting that does nothing yet.
pub(crate) fn not_yet(what: &str) -> String {
    format!("setting {what} is accepted, not yet in effect")
}

pub(crate) fn database(entry: &Entry<'_>) -> Outcome<Database> {
    let name = entry.name;
    if name == ADMIN_DATABASE {
        return Outcome::refused(
            entry.fault_of_pairs(DATABASE_ROWS, &format!("database name \"{name}\" is reserved")),
        );
    }
    if name.len() > DATABASE_NAME_MAX {
        let reason = format!("too long db name: it has more than {DATABASE_NAME_MAX} bytes");
        return Outcome::refused(entry.fault_of_pairs(DATABASE_ROWS, &reason));
    }
    let empty = Database { name: name.to_owned(), ..Database::default() };
    if ["postgres://", "postgresql://"].iter().any(|scheme| entry.value.starts_with(scheme)) {
        let reason = "a URL is not understood here; write host=... port=... dbname=..., and user=... password=... if all clients share a user";
        return Outcome::refused(entry.fault_of_pairs(DATABASE_ROWS, reason));
    }
    let mut outcome = options(entry, empty, DATABASE_ROWS, "connection");
    outcome.warnings.extend(empty_host(entry));
    outcome.faults.extend(beside_cluster(entry));
    outcome
}

/// Refuses an address beside `cluster=`: the addresses are those of the cluster's nodes.
fn beside_cluster(entry: &Entry<'_>) -> Option<LoadError> {
    let pairs = connstr::pairs(entry.value).ok()?;
    let is_given = |name: &str| pairs.iter().any(|(key, _)| *key == name);
    let address = ["host", "port", "load_balance_hosts"].into_iter().find(|name| is_given(name))?;
    let reason = format!("{address} cannot stand beside cluster: the addresses are those of the nodes");
    is_given("cluster").then(|| entry.fault_of_pairs(DATABASE_ROWS, &reason))
}

/// Warns of `host=a,,b` and `host=,`: empty hosts are skipped, and a list without any other means the unix
/// socket.
fn empty_host(entry: &Entry<'_>) -> Option<Warning> {
    let pairs = connstr::pairs(entry.value).unwrap_or_default();
    let (_, list) = pairs.into_iter().rev().find(|(key, _)| *key == "host")?;
    let (empty, hosts): (Vec<&str>, Vec<&str>) =
        list.split(',').map(str::trim).partition(|host| host.is_empty());
    let name = entry.name;
    let text = match (empty.is_empty(), hosts.is_empty()) {
        (true, _) => return None,
        (_, true) => format!("database \"{name}\": the host list is empty, so the unix socket is used"),
        _ => format!("database \"{name}\": the host list has an empty host, which is ignored"),
    };
    Some(entry.place.warning(text))
}

pub(crate) fn user(entry: &Entry<'_>) -> Outcome<UserOptions> {
    options(entry, UserOptions::default(), USER_ROWS, "user")
}

pub(crate) fn cluster(entry: &Entry<'_>) -> Outcome<ClusterOptions> {
    if let Some(reason) = unfit_name(entry, "cluster", "") {
        return Outcome::refused(entry.fault_of_pairs(CLUSTER_ROWS, &reason));
    }
    let mut outcome = options(entry, ClusterOptions::default(), CLUSTER_ROWS, "cluster");
    if let Some(options) = &outcome.options {
        outcome.faults.extend(keys_of_another_way(entry, options.discovery));
    }
    outcome
}

/// The keys that only some ways of discovery accept.
const KEYS_OF_WAYS: [(&str, &[Discovery]); 8] = [
    ("nodes", &[Discovery::Sql]),
    ("host", &[Discovery::Dns]),
    ("port", &[Discovery::Dns]),
    ("patroni_api", &[Discovery::Patroni]),
    ("patroni_user", &[Discovery::Patroni, Discovery::Etcd]),
    ("patroni_password", &[Discovery::Patroni, Discovery::Etcd]),
    ("etcd_prefix", &[Discovery::Etcd]),
    ("source_lost", &[Discovery::Patroni, Discovery::Etcd]),
];

fn keys_of_another_way(entry: &Entry<'_>, way: Discovery) -> Vec<LoadError> {
    let pairs = connstr::pairs(entry.value).unwrap_or_default();
    let wrong = KEYS_OF_WAYS
        .iter()
        .filter(|(name, ways)| !ways.contains(&way) && pairs.iter().any(|(key, _)| key == name));
    let fault = |(name, ways): &(&str, &[Discovery])| {
        let ways: Vec<&str> = ways.iter().map(|way| way.as_str()).collect();
        let reason =
            format!("{name} needs discovery={}, and this cluster has discovery={way}", ways.join(" or "));
        entry.fault_of_pairs(CLUSTER_ROWS, &reason)
    };
    wrong.map(fault).collect()
}

pub(crate) fn node(entry: &Entry<'_>) -> Outcome<NodeOptions> {
    // A discovered node has the name that its source gives it, which may be an address.
    if let Some(reason) = unfit_name(entry, "node", ".:") {
        return Outcome::refused(entry.fault_of_pairs(NODE_ROWS, &reason));
    }
    let mut outcome = options(entry, NodeOptions::default(), NODE_ROWS, "node");
    if outcome.options.as_ref().is_some_and(|node| node.host.contains(',')) {
        outcome
            .faults
            .push(entry.fault_of_pairs(NODE_ROWS, "a node has one host: each node has its own line"));
    }
    outcome
}

pub(crate) fn route(entry: &Entry<'_>) -> Outcome<RouteLine> {
    let empty = RouteLine { name: entry.name.to_owned(), ..RouteLine::default() };
    options(entry, empty, ROUTE_ROWS, "route")
}

pub(crate) fn cache_rule(entry: &Entry<'_>) -> Outcome<CacheRule> {
    let empty = CacheRule { name: entry.name.to_owned(), ..CacheRule::default() };
    options(entry, empty, CACHE_ROWS, "rule")
}

/// Returns a fault if a name has other characters than console commands can take, which name a node as
/// `cluster.node`. `more`: characters that are accepted in addition.
fn unfit_name(entry: &Entry<'_>, what: &str, more: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-') || more.contains(c);
    let fits = entry.name.len() <= DATABASE_NAME_MAX && entry.name.chars().all(is_plain);
    let signs: String = more.chars().map(|sign| format!(", {sign}")).collect();
    (!fits).then(|| {
        format!(
            "the name of a {what} must have letters, digits{signs}, _ and - only, {DATABASE_NAME_MAX} at most"
        )
    })
}

pub(crate) fn peer(entry: &Entry<'_>) -> Outcome<Peer> {
    let id = entry.name.parse().ok().filter(|id| (1..=PEER_ID_MAX).contains(id));
    let Some(id) = id else {
        let reason = format!("the id of a peer must be between 1 and {PEER_ID_MAX}");
        return Outcome::refused(entry.fault_of_pairs(PEER_ROWS, &reason));
    };
    let mut outcome = options(entry, Peer { id, ..Peer::default() }, PEER_ROWS, "peer");
    if outcome.faults.is_empty() && outcome.options.as_ref().is_some_and(|peer| peer.host.is_empty()) {
        outcome.faults.push(entry.fault_of_pairs(PEER_ROWS, "a peer needs a host"));
    }
    outcome
}

/// Reads the pairs of an entry into its struct.
fn options<T: Clone>(entry: &Entry<'_>, empty: T, rows: &'static [Row<T>], what: &str) -> Outcome<T> {
    let pairs = match connstr::pairs(entry.value) {
        Ok(pairs) => pairs,
        Err(reason) => return Outcome::refused(entry.fault_of_pairs(rows, reason)),
    };
    let shown = shown(entry.value, rows);
    let mut options = empty.clone();
    let mut faults = Vec::new();
    let mut given = BTreeMap::new();
    for (key, text) in pairs {
        // PgBouncer's documentation has both names.
        let key = if key == "reserve_pool" { "reserve_pool_size" } else { key };
        let Some(row) = row(rows, key) else {
            let meant = did_you_mean(key, rows.iter().map(|row| row.name));
            let reason = format!("unrecognized {what} parameter: {}{meant}", visible(key, &shown));
            faults.push(entry.fault(&shown, &reason));
            continue;
        };
        match row.assign(&mut options, &text) {
            Ok(()) => {
                given.insert(row.name, row);
            }
            Err(reason) => {
                faults.push(entry.fault(&shown, &wrong_value(key, visible(&text, &shown), &reason)));
            }
        }
    }
    let silent = given.values().filter(|row| row.status == Status::NotYet && !row.same(&options, &empty));
    let warning = |row: &&Row<T>| entry.place.warning(not_yet(&format!("{} of {}", row.name, entry.name)));
    Outcome { warnings: silent.map(warning).collect(), options: Some(options), faults }
}

/// Returns the part of the value that a message may repeat. The rest of an unquoted password with a space in
/// it looks like the next key, so only text before the password is repeated.
fn visible<'a>(text: &'a str, shown: &str) -> &'a str {
    if shown.contains(text) { text } else { "***" }
}

/// The message for a bad value inside an entry. For `pool_mode` and `port` the words are PgBouncer's.
fn wrong_value(key: &str, text: &str, reason: &str) -> String {
    // PgBouncer writes "invalid pool mode: x" and "invalid port: x".
    let key = if key == "pool_mode" { "pool mode" } else { key };
    format!("invalid {key}: {text}: {reason}")
}
