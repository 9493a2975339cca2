//! The metrics of prometheus-community's pgbouncer_exporter, with its names and labels, so that dashboards
//! and alerts made for it keep working when the scrape target changes. The values are those of SHOW.

use std::collections::BTreeMap;

use pgweir_core::snapshot::{ClientNumbers, ServerNumbers};
use pgweir_core::stats::Stats;
use pgweir_settings::{ADMIN_DATABASE, Config};

use super::super::api::ShowRow;
use super::super::model::{Model, Sum};
use super::text::{Labels, Number, Page};
use super::{Group, Tables};

/// The name of the console's database, and of the pool that SHOW POOLS lists for it.
const CONSOLE: &str = ADMIN_DATABASE;

/// Items of SHOW LISTS, with their metrics.
pub(super) const LISTS: [(&str, &str, &str); 11] = [
    ("databases", "pgbouncer_databases", "Count of databases"),
    ("users", "pgbouncer_users", "Count of users"),
    ("pools", "pgbouncer_pools", "Count of pools"),
    ("free_clients", "pgbouncer_free_clients", "Count of free clients"),
    ("used_clients", "pgbouncer_used_clients", "Count of used clients"),
    ("login_clients", "pgbouncer_login_clients", "Count of clients in login state"),
    ("free_servers", "pgbouncer_free_servers", "Count of free servers"),
    ("used_servers", "pgbouncer_used_servers", "Count of used servers"),
    ("dns_names", "pgbouncer_cached_dns_names", "Count of DNS names in the cache"),
    ("dns_zones", "pgbouncer_cached_dns_zones", "Count of DNS zones in the cache"),
    ("dns_queries", "pgbouncer_in_flight_dns_queries", "Count of in-flight DNS queries"),
];

/// Columns of SHOW DATABASES, with their metrics.
const DATABASES: [(&str, &str, &str); 6] = [
    ("pool_size", "pgbouncer_databases_pool_size", "Maximum number of server connections"),
    (
        "reserve_pool_size",
        "pgbouncer_databases_reserve_pool",
        "Maximum number of additional connections for this database",
    ),
    (
        "max_connections",
        "pgbouncer_databases_max_connections",
        "Maximum number of allowed connections for this database",
    ),
    (
        "current_connections",
        "pgbouncer_databases_current_connections",
        "Current number of connections for this database",
    ),
    ("paused", "pgbouncer_databases_paused", "1 if this database is currently paused, else 0"),
    ("disabled", "pgbouncer_databases_disabled", "1 if this database is currently disabled, else 0"),
];

pub(super) fn write(page: &mut Page, model: &Model, groups: &[Group<'_>], tables: &Tables, config: &Config) {
    page.single("pgbouncer_up", "The pgbouncer scrape succeeded", 1_u32);
    page.gauge("pgbouncer_version_info", "The pgbouncer version info");
    page.labelled(&[("version", &tables.version)], 1_u32);
    page.single(
        "pgbouncer_config_max_client_connections",
        "Config maximum number of client connections",
        config.main.max_client_conn,
    );
    page.single(
        "pgbouncer_config_max_user_connections",
        "Config maximum number of server connections per user",
        config.main.max_user_connections,
    );
    lists(page, tables);
    clients(page, tables);
    databases(page, tables);
    stats(page, model);
    pools(page, model, groups, tables.names);
    process(page, model);
}

fn lists(page: &mut Page, tables: &Tables) {
    for (list, name, help) in LISTS {
        let row = tables.lists.iter().find(|row| row.get("list") == Some(list));
        if let Some(items) = row.and_then(|row| row.number("items")) {
            page.single(name, help, items);
        }
    }
}

fn clients(page: &mut Page, tables: &Tables) {
    let mut counts: BTreeMap<(&str, &str, &str, &str), u64> = BTreeMap::new();
    for group in &tables.clients {
        let (user, application) =
            if tables.names { (&*group.user, &*group.application_name) } else { ("", "") };
        *counts.entry((&group.database, user, application, group.state)).or_default() +=
            u64::from(group.count);
    }
    page.gauge(
        "pgbouncer_client_connections",
        "Current number of client connections by database, user, application name, and state",
    );
    for ((database, user, application, state), count) in counts {
        page.labelled(
            &[("database", database), ("user", user), ("application_name", application), ("state", state)],
            count,
        );
    }
}

fn databases(page: &mut Page, tables: &Tables) {
    let rows: Vec<_> = tables.databases.iter().map(|row| (row, database_labels(row, tables.names))).collect();
    for (column, name, help) in DATABASES {
        page.gauge(name, help);
        for (row, labels) in &rows {
            page.value(labels, row.number(column).unwrap_or_default());
        }
    }
}

fn database_labels(row: &ShowRow, names: bool) -> Labels {
    let text = |name: &str| row.get(name).unwrap_or_default();
    let shown = |name: &str| if names { text(name) } else { "" };
    Labels::new(&[
        ("name", text("name")),
        ("host", shown("host")),
        ("port", text("port")),
        ("database", shown("database")),
        ("force_user", shown("force_user")),
        ("pool_mode", text("pool_mode")),
    ])
}

/// Writes the metrics of SHOW STATS_TOTALS.
pub(super) fn stats(page: &mut Page, model: &Model) {
    type Column = (&'static str, &'static str, fn(&Stats) -> Number);
    const COLUMNS: [Column; 11] = [
        ("queries_pooled_total", "Total number of SQL queries pooled", |stats| stats.queries.into()),
        (
            "queries_duration_seconds_total",
            "Total number of seconds spent by pgbouncer when actively connected to PostgreSQL, executing queries",
            |stats| Number::Us(stats.query_us),
        ),
        (
            "received_bytes_total",
            "Total volume in bytes of network traffic received by pgbouncer, shown as bytes",
            |stats| stats.received_bytes.into(),
        ),
        (
            "sent_bytes_total",
            "Total volume in bytes of network traffic sent by pgbouncer, shown as bytes",
            |stats| stats.sent_bytes.into(),
        ),
        ("client_wait_seconds_total", "Time spent by clients waiting for a server in seconds", |stats| {
            Number::Us(stats.wait_us)
        }),
        ("sql_transactions_pooled_total", "Total number of SQL transactions pooled", |stats| {
            stats.xacts.into()
        }),
        (
            "server_in_transaction_seconds_total",
            "Total number of seconds spent by pgbouncer when connected to PostgreSQL in a transaction, either idle in transaction or executing queries",
            |stats| Number::Us(stats.xact_us),
        ),
        (
            "client_parses_total",
            "Total number of prepared statement Parse messages received from clients",
            |stats| stats.client_parses.into(),
        ),
        (
            "server_parses_total",
            "Total number of prepared statement Parse messages sent by pgbouncer to PostgreSQL",
            |stats| stats.server_parses.into(),
        ),
        (
            "binds_total",
            "Total number of prepared statements readied for execution with a Bind message",
            |stats| stats.binds.into(),
        ),
        ("server_assignments_total", "Total number of times a server was assigned to a client", |stats| {
            stats.server_assignments.into()
        }),
    ];
    let mut by_database: Vec<(&str, Stats)> = vec![(CONSOLE, Stats::default())];
    for pool in model.pools() {
        let (database, stats) = (&*pool.snapshot.database, &pool.snapshot.stats);
        match by_database.last_mut().filter(|(last, _)| *last == database) {
            Some((_, sum)) => *sum = sum.plus(stats),
            None => {
                let past = model.past(database).map(|past| past.sum.stats).unwrap_or_default();
                by_database.push((database, past.plus(stats)));
            }
        }
    }
    let rows: Vec<_> =
        by_database.iter().map(|(database, stats)| (Labels::new(&[("database", database)]), stats)).collect();
    for (name, help, value) in COLUMNS {
        page.counter(&format!("pgbouncer_stats_totals_{name}"), help);
        for (labels, stats) in &rows {
            page.value(labels, value(stats));
        }
    }
}

/// Writes the metrics of SHOW POOLS.
fn pools(page: &mut Page, model: &Model, groups: &[Group<'_>], names: bool) {
    type Column = (&'static str, &'static str, fn(&Sum) -> Number);
    const fn clients(sum: &Sum) -> &ClientNumbers {
        &sum.clients
    }
    const fn servers(sum: &Sum) -> &ServerNumbers {
        &sum.servers
    }
    const COLUMNS: [Column; 12] = [
        (
            "client_active_connections",
            "Client connections linked to server connection and able to process queries, shown as connection",
            |sum| (clients(sum).linked + clients(sum).idle).into(),
        ),
        (
            "client_active_cancel_connections",
            "Client connections that have forwarded query cancellations to the server and are waiting for the server response",
            |sum| clients(sum).cancels_sent.into(),
        ),
        (
            "client_waiting_connections",
            "Client connections waiting on a server connection, shown as connection",
            |sum| clients(sum).waiting.into(),
        ),
        (
            "client_waiting_cancel_connections",
            "Client connections that have not forwarded query cancellations to the server yet",
            |sum| clients(sum).cancels_waiting.into(),
        ),
        (
            "server_active_connections",
            "Server connections linked to a client connection, shown as connection",
            |sum| servers(sum).active.into(),
        ),
        (
            "server_active_cancel_connections",
            "Server connections that are currently forwarding a cancel request.",
            |sum| servers(sum).active_cancel.into(),
        ),
        (
            "server_being_canceled_connections",
            "Servers that normally could become idle but are waiting to do so until all in-flight cancel requests have completed that were sent to cancel a query on this server.",
            |sum| servers(sum).being_canceled.into(),
        ),
        (
            "server_idle_connections",
            "Server connections idle and ready for a client query, shown as connection",
            |sum| servers(sum).idle.into(),
        ),
        (
            "server_used_connections",
            "Server connections idle more than server_check_delay, needing server_check_query, shown as connection",
            |sum| servers(sum).used.into(),
        ),
        (
            "server_testing_connections",
            "Server connections currently running either server_reset_query or server_check_query, shown as connection",
            |sum| servers(sum).tested.into(),
        ),
        (
            "server_login_connections",
            "Server connections currently in the process of logging in, shown as connection",
            |sum| servers(sum).login.into(),
        ),
        ("client_maxwait_seconds", "Age of oldest unserved client connection, shown as second", |sum| {
            (sum.wait_oldest_us / 1_000_000).into()
        }),
    ];
    let consoles = ClientNumbers { idle: model.consoles(), ..ClientNumbers::default() };
    let console = Sum { clients: consoles, ..Sum::default() };
    let user = if names { CONSOLE } else { "" };
    let its_labels = Labels::new(&[("database", CONSOLE), ("user", user)]);
    for (name, help, value) in COLUMNS {
        page.gauge(&format!("pgbouncer_pools_{name}"), help);
        page.value(&its_labels, value(&console));
        for group in groups {
            page.value(&group.labels, value(&group.sum));
        }
    }
}

/// Writes the metrics that the exporter finds through the pid file.
fn process(page: &mut Page, model: &Model) {
    let process = &model.process;
    if let Some(cpu_s) = process.cpu_s {
        page.counter(
            "pgbouncer_process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
        );
        page.labelled(&[], cpu_s);
    }
    let gauges = [
        ("open_fds", "Number of open file descriptors.", process.open_files),
        ("max_fds", "Maximum number of open file descriptors.", process.open_files_max),
        ("resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes),
        ("virtual_memory_bytes", "Virtual memory size in bytes.", process.virtual_bytes),
        // Prometheus writes -1 if there is no limit.
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            page.single(&format!("pgbouncer_process_{name}"), help, value);
        }
    }
    page.single(
        "pgbouncer_process_virtual_memory_max_bytes",
        "Maximum amount of virtual memory available in bytes.",
        process.virtual_bytes_max.unwrap_or(u64::MAX),
    );
    if let Some(started_s) = process.started_s {
        let help = "Start time of the process since unix epoch in seconds.";
        page.single("pgbouncer_process_start_time_seconds", help, started_s);
    }
}
