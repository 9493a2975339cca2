//! The tables that SHOW answers with: column names and types.
//!
//! A table that PgBouncer has, has exactly PgBouncer's columns, in its order, as of the version that `compatible_with` names: tools
//! read them by position, or tell the version by their number. What pgweir
//! adds to such a table is in a second table, `<name>_extended`: PgBouncer's columns first, then pgweir's.

use std::borrow::Cow;

use pgweir_settings::CompatibleWith;
use pgweir_wire::backend::{Column, encode_data_row, encode_row_description};

use crate::worker::console::command::{Command, FIXED_PARAMETERS, Topic};
use crate::worker::console::statistics;

/// A column's type, as it is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Text,
    Int4,
    Int8,
    Numeric,
    /// The type of keys. No key is ever shown: the values are NULL.
    Bytea,
}

use Type::{Bytea, Int4, Int8, Numeric, Text};

const SOCKET: [(&str, Type); 21] = [
    ("type", Text),
    ("user", Text),
    ("database", Text),
    ("replication", Text),
    ("state", Text),
    ("addr", Text),
    ("port", Int4),
    ("local_addr", Text),
    ("local_port", Int4),
    ("connect_time", Text),
    ("request_time", Text),
    ("wait", Int4),
    ("wait_us", Int4),
    ("close_needed", Int4),
    ("ptr", Text),
    ("link", Text),
    ("remote_pid", Int4),
    ("tls", Text),
    ("application_name", Text),
    ("prepared_statements", Int4),
    ("id", Int8),
];

/// The columns that CLIENTS_EXTENDED and SERVERS_EXTENDED add. `multiplexed`: 1 for a client with a statement that is queued on a server
/// after another client's; for a server, the number of these clients. Then the reason why a client keeps its server between transactions,
/// and the time since which it does; the age of the transaction; the fingerprint of the running statement.
const SOCKET_OURS: [(&str, Type); 5] = [
    ("multiplexed", Int4),
    ("pinned", Text),
    ("pinned_since", Text),
    ("transaction_us", Int8),
    ("statement", Text),
];

/// The columns that only CLIENTS_EXTENDED adds: in a cluster, the node where the client's transactions run, and the rule that decided it.
const CLIENTS_OURS: [(&str, Type); 2] = [("route", Text), ("route_by", Text)];

const SOCKET_BUFFERS: [(&str, Type); 7] = [
    ("recv_pos", Int4),
    ("pkt_pos", Int4),
    ("pkt_remain", Int4),
    ("send_pos", Int4),
    ("send_remain", Int4),
    ("pkt_avail", Int4),
    ("send_avail", Int4),
];

const CLUSTERS: [(&str, Type); 21] = [
    ("cluster", Text),
    ("primary", Text),
    ("epoch", Int8),
    ("timeline", Int8),
    ("state", Text),
    ("held_clients", Int4),
    ("held_since", Text),
    ("reason", Text),
    ("discovery", Text),
    ("source", Text),
    ("source_age_ms", Int8),
    ("source_error", Text),
    ("switchover", Text),
    ("switchover_error", Text),
    ("fell_back_no_standby", Int8),
    ("fell_back_lag", Int8),
    ("fell_back_behind", Int8),
    ("resolving", Int4),
    ("outcomes_committed", Int8),
    ("outcomes_rolled_back", Int8),
    ("outcomes_unknown", Int8),
];

const ROUTE: [(&str, Type); 6] = [
    ("database", Text),
    ("user", Text),
    ("route", Text),
    ("runs_on", Text),
    ("decided_by", Text),
    ("word", Text),
];

pub(crate) const NODES: [(&str, Type); 25] = [
    ("cluster", Text),
    ("node", Text),
    ("host", Text),
    ("port", Int4),
    ("zone", Text),
    ("role", Text),
    ("state", Text),
    ("state_since", Text),
    ("switch", Text),
    ("weight", Int4),
    ("share", Int4),
    ("timeline", Int8),
    ("position", Text),
    ("lag_bytes", Int8),
    ("lag_ms", Int8),
    ("sv_active", Int4),
    ("sv_idle", Int4),
    ("cl_waiting", Int4),
    ("reads", Int8),
    ("guards", Int8),
    ("guard_misses", Int8),
    ("second_tries", Int8),
    ("misrouted", Int8),
    ("last_check", Text),
    ("last_error", Text),
];

const POOLS: [(&str, Type); 17] = [
    ("database", Text),
    ("user", Text),
    ("cl_active", Int4),
    ("cl_waiting", Int4),
    ("cl_active_cancel_req", Int4),
    ("cl_waiting_cancel_req", Int4),
    ("sv_active", Int4),
    ("sv_active_cancel", Int4),
    ("sv_being_canceled", Int4),
    ("sv_idle", Int4),
    ("sv_used", Int4),
    ("sv_tested", Int4),
    ("sv_login", Int4),
    ("maxwait", Int4),
    ("maxwait_us", Int4),
    ("pool_mode", Text),
    ("load_balance_hosts", Text),
];

/// The columns that POOLS_EXTENDED adds.
const POOLS_OURS: [(&str, Type); 15] = [
    ("sv_short_target", Int4),
    ("sv_short", Int4),
    ("cl_multiplexed", Int4),
    ("total_multiplexed", Int8),
    ("total_requeued", Int8),
    ("total_multiplex_violations", Int8),
    ("total_target_changes", Int8),
    ("sv_pinned", Int4),
    ("total_session_replays", Int8),
    ("total_session_audits", Int8),
    ("total_session_remembered", Int8),
    ("total_pins", Int8),
    ("total_session_checks", Int8),
    ("total_session_differences", Int8),
    ("connect_failure", Text),
];

const DATABASES: [(&str, Type); 17] = [
    ("name", Text),
    ("host", Text),
    ("port", Int4),
    ("database", Text),
    ("force_user", Text),
    ("pool_size", Int4),
    ("min_pool_size", Int4),
    ("reserve_pool_size", Int4),
    ("server_lifetime", Int4),
    ("pool_mode", Text),
    ("load_balance_hosts", Text),
    ("max_connections", Int4),
    ("current_connections", Int4),
    ("max_client_connections", Int4),
    ("current_client_connections", Int4),
    ("paused", Int4),
    ("disabled", Int4),
];

const USERS: [(&str, Type); 8] = [
    ("name", Text),
    ("pool_size", Text),
    ("reserve_pool_size", Text),
    ("pool_mode", Text),
    ("max_user_connections", Int4),
    ("current_connections", Int4),
    ("max_user_client_connections", Int4),
    ("current_client_connections", Int4),
];

const FDS: [(&str, Type); 15] = [
    ("fd", Int4),
    ("task", Text),
    ("user", Text),
    ("database", Text),
    ("addr", Text),
    ("port", Int4),
    ("cancel", Int8),
    ("link", Int4),
    ("client_encoding", Text),
    ("std_strings", Text),
    ("datestyle", Text),
    ("timezone", Text),
    ("password", Text),
    ("scram_client_key", Bytea),
    ("scram_server_key", Bytea),
];

const PERCENTILES: [(&str, Type); 10] = [
    ("database", Text),
    ("user", Text),
    ("part", Text),
    ("count", Numeric),
    ("mean_us", Numeric),
    ("p50_us", Numeric),
    ("p90_us", Numeric),
    ("p95_us", Numeric),
    ("p99_us", Numeric),
    ("max_us", Numeric),
];

const CACHE: [(&str, Type); 30] = [
    ("database", Text),
    ("user", Text),
    ("state", Text),
    ("answers", Numeric),
    ("bytes", Numeric),
    ("hits", Numeric),
    ("misses", Numeric),
    ("fills", Numeric),
    ("too_long", Numeric),
    ("unfit", Numeric),
    ("evicted", Numeric),
    ("age_p50_ms", Numeric),
    ("age_max_ms", Numeric),
    ("coalesced", Numeric),
    ("expired", Numeric),
    ("own_changes", Numeric),
    ("redefined", Numeric),
    ("purged", Numeric),
    ("saved_us", Numeric),
    ("dropped_by_write", Numeric),
    ("not_fresh", Numeric),
    ("refused_unsettled", Numeric),
    ("follow_state", Text),
    ("follow_reason", Text),
    ("follow_since", Text),
    ("follow_tables", Numeric),
    ("lag_bytes", Numeric),
    ("dropped_by_key", Numeric),
    ("verified", Numeric),
    ("wrong", Numeric),
];

const STATEMENTS: [(&str, Type); 19] = [
    ("database", Text),
    ("user", Text),
    ("calls", Numeric),
    ("total_us", Numeric),
    ("mean_us", Numeric),
    ("p50_us", Numeric),
    ("p95_us", Numeric),
    ("p99_us", Numeric),
    ("max_us", Numeric),
    ("wait_us", Numeric),
    ("server_us", Numeric),
    ("client_us", Numeric),
    ("rows", Numeric),
    ("bytes", Numeric),
    ("errors", Numeric),
    ("query", Text),
    ("cache", Text),
    ("cache_hits", Numeric),
    ("cache_saved_us", Numeric),
];

const VIP: [(&str, Type); 6] = [
    ("address", Text),
    ("interface", Text),
    ("state", Text),
    ("lease", Text),
    ("holder", Text),
    ("error", Text),
];

const LIMITS: [(&str, Type); 12] = [
    ("name", Text),
    ("kind", Text),
    ("node", Text),
    ("limit", Int4),
    ("granted", Int4),
    ("held", Int4),
    ("demand", Int4),
    ("poolers", Int4),
    ("kept_back", Int4),
    ("leader", Text),
    ("state", Text),
    ("reason", Text),
];

const CONFIG: [(&str, Type); 4] = [("key", Text), ("value", Text), ("default", Text), ("changeable", Text)];

fn columns(topic: Topic, compatible_with: CompatibleWith) -> Vec<(&'static str, Type)> {
    match topic {
        Topic::Clients | Topic::Servers => SOCKET.to_vec(),
        Topic::ClientsExtended => [&SOCKET[..], &SOCKET_OURS, &CLIENTS_OURS].concat(),
        Topic::ServersExtended => [&SOCKET[..], &SOCKET_OURS].concat(),
        Topic::Sockets | Topic::ActiveSockets => [&SOCKET[..], &SOCKET_BUFFERS].concat(),
        Topic::Cache => CACHE.to_vec(),
        Topic::Clusters => CLUSTERS.to_vec(),
        Topic::Config => CONFIG.to_vec(),
        Topic::ConfigExtended => [&CONFIG[..], &[("source", Text)]].concat(),
        Topic::Databases => DATABASES.to_vec(),
        Topic::DnsHosts => vec![("hostname", Text), ("ttl", Int8), ("addrs", Text)],
        Topic::DnsZones => vec![("zonename", Text), ("serial", Int8), ("count", Int4)],
        Topic::Fds => FDS.to_vec(),
        Topic::Help => Vec::new(),
        Topic::Limits => LIMITS.to_vec(),
        Topic::Lists => vec![("list", Text), ("items", Int4)],
        Topic::Mem => {
            vec![("name", Text), ("size", Int4), ("used", Int4), ("free", Int4), ("memtotal", Int4)]
        }
        Topic::Nodes => NODES.to_vec(),
        Topic::Overlay => vec![("variable", Text), ("value", Text)],
        Topic::Peers => vec![("peer_id", Int4), ("host", Text), ("port", Int4), ("pool_size", Int4)],
        Topic::PeerPools => vec![
            ("peer_id", Int4),
            ("cl_active_cancel_req", Int4),
            ("cl_waiting_cancel_req", Int4),
            ("sv_active_cancel", Int4),
            ("sv_login", Int4),
        ],
        Topic::Percentiles => PERCENTILES.to_vec(),
        Topic::Pools => POOLS.to_vec(),
        Topic::PoolsExtended => [&POOLS[..], &POOLS_OURS].concat(),
        Topic::Statements => STATEMENTS.to_vec(),
        Topic::State => vec![("key", Text), ("value", Text)],
        Topic::Stats | Topic::StatsExtended | Topic::StatsAverages | Topic::StatsTotals => {
            let names = statistics::column_names(topic, compatible_with);
            let numbers = names.into_iter().map(|name| (name, Numeric));
            std::iter::once(("database", Text)).chain(numbers).collect()
        }
        Topic::Totals => vec![("name", Text), ("value", Numeric)],
        Topic::Users => USERS.to_vec(),
        Topic::Version => vec![("version", Text)],
        Topic::Vip => VIP.to_vec(),
    }
}

/// The names of a topic's columns.
pub(crate) fn column_names(topic: Topic, compatible_with: CompatibleWith) -> Vec<&'static str> {
    columns(topic, compatible_with).into_iter().map(|(name, _)| name).collect()
}

impl Type {
    /// A value in the binary format of its type, as its send function in PostgreSQL writes it.
    fn binary(self, text: &str) -> Cow<'_, [u8]> {
        let integer = || text.parse::<i64>().unwrap_or_default();
        match self {
            Text | Bytea => text.as_bytes().into(),
            Int4 => i32::try_from(integer()).unwrap_or(i32::MAX).to_be_bytes().to_vec().into(),
            Int8 => integer().to_be_bytes().to_vec().into(),
            Numeric => binary_numeric(text).into(),
        }
    }

    /// Returns the type's OID and length, as in pg_type.dat.
    fn wire(self) -> (u32, i16) {
        match self {
            Text => (25, -1),
            Bytea => (17, -1),
            Int4 => (23, 4),
            Int8 => (20, 8),
            Numeric => (1700, -1),
        }
    }
}

/// Returns a number in the format of PostgreSQL's numeric_send: digits of base 10,000, the first one's weight, the sign, and the number of
/// decimal places that are shown.
fn binary_numeric(text: &str) -> Vec<u8> {
    const BASE_DIGITS: usize = 4;
    const NEGATIVE: u16 = 0x4000;
    let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let places = fraction.len();
    let padded_whole = format!("{whole:0>width$}", width = whole.len().next_multiple_of(BASE_DIGITS));
    let padded_fraction = format!("{fraction:0<width$}", width = places.next_multiple_of(BASE_DIGITS));
    let groups = |text: &str| -> Vec<u16> {
        text.as_bytes()
            .chunks(BASE_DIGITS)
            .map(|group| {
                group.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit.wrapping_sub(b'0') % 10))
            })
            .collect()
    };
    let whole = groups(&padded_whole);
    let mut weight = whole.len() as i16 - 1;
    let mut digits = [whole, groups(&padded_fraction)].concat();
    let leading = digits.iter().take_while(|&&digit| digit == 0).count();
    digits.drain(..leading);
    weight -= leading as i16;
    while digits.last() == Some(&0) {
        digits.pop();
    }
    if digits.is_empty() {
        weight = 0;
    }
    let head =
        [digits.len() as u16, weight.cast_unsigned(), if negative { NEGATIVE } else { 0 }, places as u16];
    head.into_iter().chain(digits).flat_map(u16::to_be_bytes).collect()
}

/// A row of an answer, as text.
pub(crate) type Row = Vec<Option<String>>;

/// The columns of an answer: name and type.
pub(crate) type Columns = Vec<(&'static str, Type)>;

/// The columns that are requested in binary format, as Bind has it: no value, one value for all columns, or one for each.
#[derive(Clone, Default, Debug)]
pub(crate) struct Formats(Vec<bool>);

impl Formats {
    pub(crate) fn new(binary: impl Iterator<Item = bool>) -> Formats {
        Formats(binary.collect())
    }

    /// Whether the number of values fits an answer with this number of columns.
    pub(crate) fn fit(&self, columns: usize) -> bool {
        matches!(self.0.len(), 0 | 1) || self.0.len() == columns
    }

    fn is_binary(&self, column: usize) -> bool {
        match self.0[..] {
            [] => false,
            [all] => all,
            _ => self.0.get(column).copied().unwrap_or_default(),
        }
    }
}

/// The columns of a command's answer; empty for one that answers without rows.
pub(crate) fn columns_of(command: &Command, compatible_with: CompatibleWith) -> Columns {
    match command {
        Command::Show(topic) => columns(*topic, compatible_with),
        Command::ShowRoute { .. } => ROUTE.to_vec(),
        Command::ShowParameter(index) => vec![(FIXED_PARAMETERS[*index].0, Text)],
        _ => Vec::new(),
    }
}

/// Appends the RowDescription.
pub(crate) fn encode_columns(out: &mut Vec<u8>, columns: &Columns, formats: &Formats) {
    let described: Vec<Column<'_>> = columns
        .iter()
        .enumerate()
        .map(|(index, &(name, kind))| {
            let (type_oid, type_len) = kind.wire();
            Column { name, type_oid, type_len, binary: formats.is_binary(index) }
        })
        .collect();
    encode_row_description(out, &described);
}

/// Appends a DataRow. Values come as text, and are converted if binary ones are requested.
pub(crate) fn encode_row(out: &mut Vec<u8>, columns: &Columns, formats: &Formats, row: &[Option<String>]) {
    debug_assert_eq!(row.len(), columns.len(), "a row has a value for each column");
    let cells: Vec<Option<Cow<'_, [u8]>>> = row
        .iter()
        .zip(columns)
        .enumerate()
        .map(|(index, (cell, (_, kind)))| {
            let text = cell.as_deref()?;
            Some(if formats.is_binary(index) { kind.binary(text) } else { text.as_bytes().into() })
        })
        .collect();
    let cells: Vec<Option<&[u8]>> = cells.iter().map(|cell| cell.as_deref()).collect();
    encode_data_row(out, &cells);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_binary_as_postgresql_sends_them() {
        assert_eq!(*Int4.binary("-2"), [0xff, 0xff, 0xff, 0xfe]);
        assert_eq!(*Int4.binary("99999999999"), i32::MAX.to_be_bytes());
        assert_eq!(*Int8.binary("4294967296"), [0, 0, 0, 1, 0, 0, 0, 0]);
        // As `COPY (SELECT 0::numeric, ...) TO ... WITH BINARY` writes them.
        for (text, expected) in [
            ("0", &[0u16, 0, 0, 0][..]),
            ("7", &[1, 0, 0, 0, 7]),
            ("10000", &[1, 1, 0, 0, 1]),
            ("123456789", &[3, 2, 0, 0, 1, 2345, 6789]),
            ("-12.5", &[2, 0, 0x4000, 1, 12, 5000]),
            ("0.0001", &[1, 0xffff, 0, 4, 1]),
        ] {
            let expected: Vec<u8> = expected.iter().flat_map(|value| value.to_be_bytes()).collect();
            assert_eq!(*Numeric.binary(text), expected, "{text}");
        }
    }
}
