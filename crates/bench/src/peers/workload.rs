//! The loads that poolers are compared by, and what is measured in them.

use crate::peers::options::Options;
use crate::pgbench::{Load, Protocol, Script};

/// The most clients that any load but `idle` has.
pub(super) const MOST_CLIENTS: u32 = 200;

/// One load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    /// Its name on the command line and in files.
    pub(super) key: &'static str,
    /// What it is, in a line.
    pub(super) title: &'static str,
    /// `default_pool_size` of the poolers.
    pub(super) pool_size: u32,
    /// What is done.
    pub(super) kind: Kind,
}

/// What is done in a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// pgbench.
    Pgbench(Load),
    /// pgbench, while the pooler's system calls are counted.
    Syscalls(Load),
    /// `COPY ... TO STDOUT` of so many rows of [`COPY_ROW_BYTES`] bytes.
    CopyOut { rows: u32 },
    /// Clients that log in and do nothing.
    Idle { clients: u32 },
}

/// Bytes of a row of the load `copy`, its newline included.
pub(super) const COPY_ROW_BYTES: u32 = 1000;
/// One gigabyte (10^9 bytes).
const COPY_ROWS: u32 = 1_000_000;

/// What a run measures. Each has a name in tables (with its unit) and in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    Tps,
    P50Ms,
    P99Ms,
    Failed,
    PoolerUsPerTransaction,
    BackendUsPerTransaction,
    ServerConnections,
    SyscallsPerTransaction,
    MegabytesPerSecond,
    PoolerMsPerGigabyte,
    BackendMsPerGigabyte,
    FreshClientBytes,
    UsedClientBytes,
    UsedClientRssBytes,
}

impl Metric {
    /// Head of a table's column.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Tps => "TPS",
            Self::P50Ms => "p50 ms",
            Self::P99Ms => "p99 ms",
            Self::Failed => "failed",
            Self::PoolerUsPerTransaction => "pooler us/tx",
            Self::BackendUsPerTransaction => "backend us/tx",
            Self::ServerConnections => "servers",
            Self::SyscallsPerTransaction => "syscalls/tx",
            Self::MegabytesPerSecond => "MB/s",
            Self::PoolerMsPerGigabyte => "pooler ms/GB",
            Self::BackendMsPerGigabyte => "backend ms/GB",
            Self::FreshClientBytes => "bytes/client, logged in",
            Self::UsedClientBytes => "bytes/client, used once",
            Self::UsedClientRssBytes => "RSS bytes/client, used once",
        }
    }

    /// Name in JSON.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Tps => "tps",
            Self::P50Ms => "latency_p50_ms",
            Self::P99Ms => "latency_p99_ms",
            Self::Failed => "failed",
            Self::PoolerUsPerTransaction => "pooler_cpu_us_per_transaction",
            Self::BackendUsPerTransaction => "backend_cpu_us_per_transaction",
            Self::ServerConnections => "server_connections_peak",
            Self::SyscallsPerTransaction => "pooler_syscalls_per_transaction",
            Self::MegabytesPerSecond => "megabytes_per_second",
            Self::PoolerMsPerGigabyte => "pooler_cpu_ms_per_gigabyte",
            Self::BackendMsPerGigabyte => "backend_cpu_ms_per_gigabyte",
            Self::FreshClientBytes => "private_dirty_bytes_per_client_logged_in",
            Self::UsedClientBytes => "private_dirty_bytes_per_client_used",
            Self::UsedClientRssBytes => "rss_bytes_per_client_used",
        }
    }

    /// Whether dividing it by a peer's value says something.
    pub(super) fn has_ratio(self) -> bool {
        !matches!(self, Self::Failed | Self::ServerConnections)
    }
}

/// Names and titles, for `--help` and `--only`.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    all(&Options::default()).into_iter().map(|workload| (workload.key, workload.title))
}

/// Every load, in the order they run.
pub(super) fn all(options: &Options) -> Vec<Workload> {
    use Protocol::{Extended, Prepared, Simple};
    use Script::{SelectOne, SelectOnly, TpcB};
    let load = |script, protocol, clients| Load {
        script,
        protocol,
        clients,
        reconnect: false,
        seconds: options.seconds,
    };
    let workload = |key, title, pool_size, kind| Workload { key, title, pool_size, kind };
    let pgbench = |key, title, pool_size, load| workload(key, title, pool_size, Kind::Pgbench(load));
    let by_key = |key, title, pool_size, protocol, clients| {
        pgbench(key, title, pool_size, load(SelectOnly, protocol, clients))
    };
    vec![
        by_key("select-20", "SELECT by key, 20 clients, pool 10", 10, Simple, 20),
        by_key("select-200", "SELECT by key, 200 clients, pool 25", 25, Simple, 200),
        by_key("narrow-200", "SELECT by key, 200 clients, pool 10", 10, Simple, 200),
        pgbench("select1", "SELECT 1, 20 clients, pool 10", 10, load(SelectOne, Simple, 20)),
        pgbench("tpcb", "TPC-B, 50 clients, pool 20", 20, load(TpcB, Simple, 50)),
        by_key("extended", "SELECT by key, extended protocol, 20 clients, pool 10", 10, Extended, 20),
        by_key("prepared", "SELECT by key, prepared statements, 20 clients, pool 10", 10, Prepared, 20),
        by_key("extended-200", "SELECT by key, extended protocol, 200 clients, pool 25", 25, Extended, 200),
        by_key("prepared-200", "SELECT by key, prepared statements, 200 clients, pool 25", 25, Prepared, 200),
        pgbench(
            "reconnect",
            "SELECT by key, a new connection each time, 20 clients, pool 10",
            10,
            Load { reconnect: true, ..load(SelectOnly, Simple, 20) },
        ),
        by_key("latency", "SELECT by key, one client", 10, Simple, 1),
        workload("copy", "COPY TO STDOUT of 1 GB, one client", 10, Kind::CopyOut { rows: COPY_ROWS }),
        workload("idle", "memory of idle clients", 10, Kind::Idle { clients: options.idle_clients }),
        workload(
            "syscalls",
            "system calls per transaction (needs perf), 20 clients, pool 10",
            10,
            Kind::Syscalls(load(SelectOnly, Simple, 20)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_clients_within_limits() {
        let all = all(&Options::default());
        let mut keys: Vec<_> = all.iter().map(|workload| workload.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all.len());
        for workload in all {
            if let Kind::Pgbench(load) | Kind::Syscalls(load) = workload.kind {
                assert!(load.clients <= MOST_CLIENTS);
            }
        }
    }
}
