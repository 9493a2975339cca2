//! The tables that SHOW answers with: column names and types, in PgBouncer's order. Columns of ours come at the end.

use pgweir_wire::backend::{Column, encode_command_complete, encode_data_row, encode_row_description};

use super::command::Topic;

/// A column's type, as it is announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Type {
    Text,
    Int4,
    Int8,
    Numeric,
}

use Type::{Int4, Int8, Numeric, Text};

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

/// Of a client: whether it is aboard a server behind others. Of a server: how many are.
const RIDING: (&str, Type) = ("riding", Int4);

const SOCKET_BUFFERS: [(&str, Type); 7] = [
    ("recv_pos", Int4),
    ("pkt_pos", Int4),
    ("pkt_remain", Int4),
    ("send_pos", Int4),
    ("send_remain", Int4),
    ("pkt_avail", Int4),
    ("send_avail", Int4),
];

const STATS: [(&str, Type); 25] = [
    ("database", Text),
    ("total_server_assignment_count", Numeric),
    ("total_xact_count", Numeric),
    ("total_query_count", Numeric),
    ("total_received", Numeric),
    ("total_sent", Numeric),
    ("total_xact_time", Numeric),
    ("total_query_time", Numeric),
    ("total_wait_time", Numeric),
    ("total_client_parse_count", Numeric),
    ("total_server_parse_count", Numeric),
    ("total_bind_count", Numeric),
    ("total_client_login_count", Numeric),
    ("avg_server_assignment_count", Numeric),
    ("avg_xact_count", Numeric),
    ("avg_query_count", Numeric),
    ("avg_recv", Numeric),
    ("avg_sent", Numeric),
    ("avg_xact_time", Numeric),
    ("avg_query_time", Numeric),
    ("avg_wait_time", Numeric),
    ("avg_client_parse_count", Numeric),
    ("avg_server_parse_count", Numeric),
    ("avg_bind_count", Numeric),
    ("avg_client_login_count", Numeric),
];

const STATS_AVERAGES: [(&str, Type); 13] = [
    ("database", Text),
    ("server_assignment_count", Numeric),
    ("xact_count", Numeric),
    ("query_count", Numeric),
    ("bytes_received", Numeric),
    ("bytes_sent", Numeric),
    ("xact_time", Numeric),
    ("query_time", Numeric),
    ("wait_time", Numeric),
    ("avg_client_parse_count", Numeric),
    ("avg_server_parse_count", Numeric),
    ("avg_bind_count", Numeric),
    ("avg_client_login_count", Numeric),
];

const STATS_TOTALS: [(&str, Type); 13] = [
    ("database", Text),
    ("server_assignment_count", Numeric),
    ("xact_count", Numeric),
    ("query_count", Numeric),
    ("bytes_received", Numeric),
    ("bytes_sent", Numeric),
    ("xact_time", Numeric),
    ("query_time", Numeric),
    ("wait_time", Numeric),
    ("client_parse_count", Numeric),
    ("server_parse_count", Numeric),
    ("bind_count", Numeric),
    ("client_login_count", Numeric),
];

/// The counters by the names of SHOW TOTALS, which differ from the columns of SHOW STATS.
pub(crate) const TOTALS: [&str; 12] = [
    "server_assignment_count",
    "xact_count",
    "query_count",
    "client_bytes",
    "server_bytes",
    "xact_time",
    "query_time",
    "wait_time",
    "ps_client_parse_count",
    "ps_server_parse_count",
    "ps_bind_count",
    "client_login_count",
];

const POOLS: [(&str, Type); 24] = [
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
    ("sv_short_target", Int4),
    ("sv_short", Int4),
    ("cl_riding", Int4),
    ("total_ridden", Int8),
    ("total_requeued", Int8),
    ("total_ride_violations", Int8),
    ("total_target_changes", Int8),
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
    ("scram_client_key", Text),
    ("scram_server_key", Text),
];

fn columns(topic: Topic) -> Vec<(&'static str, Type)> {
    match topic {
        Topic::Clients | Topic::Servers => SOCKET.into_iter().chain([RIDING]).collect(),
        Topic::Sockets | Topic::ActiveSockets => SOCKET.into_iter().chain(SOCKET_BUFFERS).collect(),
        Topic::Config => vec![("key", Text), ("value", Text), ("default", Text), ("changeable", Text)],
        Topic::Databases => DATABASES.to_vec(),
        Topic::DnsHosts => vec![("hostname", Text), ("ttl", Int8), ("addrs", Text)],
        Topic::DnsZones => vec![("zonename", Text), ("serial", Int8), ("count", Int4)],
        Topic::Fds => FDS.to_vec(),
        Topic::Help => Vec::new(),
        Topic::Lists => vec![("list", Text), ("items", Int4)],
        Topic::Mem => {
            vec![("name", Text), ("size", Int4), ("used", Int4), ("free", Int4), ("memtotal", Int8)]
        }
        Topic::Peers => vec![("peer_id", Int4), ("host", Text), ("port", Int4), ("pool_size", Int4)],
        Topic::PeerPools => vec![
            ("peer_id", Int4),
            ("cl_active_cancel_req", Int4),
            ("cl_waiting_cancel_req", Int4),
            ("sv_active_cancel", Int4),
            ("sv_login", Int4),
        ],
        Topic::Pools => POOLS.to_vec(),
        Topic::State => vec![("key", Text), ("value", Text)],
        Topic::Stats => STATS.to_vec(),
        Topic::StatsAverages => STATS_AVERAGES.to_vec(),
        Topic::StatsTotals => STATS_TOTALS.to_vec(),
        Topic::Totals => vec![("name", Text), ("value", Numeric)],
        Topic::Users => USERS.to_vec(),
        Topic::Version => vec![("version", Text)],
    }
}

/// The names of a topic's columns.
pub(crate) fn column_names(topic: Topic) -> Vec<&'static str> {
    columns(topic).into_iter().map(|(name, _)| name).collect()
}

impl Type {
    /// Type OID and length, as in pg_type.dat.
    fn wire(self) -> (u32, i16) {
        match self {
            Text => (25, -1),
            Int4 => (23, 4),
            Int8 => (20, 8),
            Numeric => (1700, -1),
        }
    }
}

/// The whole answer to a SHOW, up to CommandComplete.
pub(crate) fn encode(out: &mut Vec<u8>, topic: Topic, rows: &[Vec<Option<String>>]) {
    let columns = columns(topic);
    let described: Vec<Column<'_>> = columns
        .iter()
        .map(|&(name, kind)| {
            let (type_oid, type_len) = kind.wire();
            Column { name, type_oid, type_len }
        })
        .collect();
    encode_row_description(out, &described);
    for row in rows {
        debug_assert_eq!(row.len(), columns.len(), "a row has a value for each column");
        let cells: Vec<Option<&[u8]>> = row.iter().map(|cell| cell.as_ref().map(String::as_bytes)).collect();
        encode_data_row(out, &cells);
    }
    encode_command_complete(out, "SHOW");
}

/// The answer to SHOW of a parameter: one text column named after it.
pub(crate) fn encode_parameter(out: &mut Vec<u8>, name: &str, value: &str) {
    encode_row_description(out, &[Column { name, type_oid: 25, type_len: -1 }]);
    encode_data_row(out, &[Some(value.as_bytes())]);
    encode_command_complete(out, "SHOW");
}
