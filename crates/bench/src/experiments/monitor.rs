//! Watches the server and the pooler while a load runs: connections by state, transactions, buffers, CPU time, pool counters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::processes::sampler::{children_cpu_ns, family_cpu_ns};
use pgweir_client::Client;
use pgweir_client::Login;

/// How often is looked.
const EVERY: Duration = Duration::from_millis(500);

/// What was seen at one moment. Counters count from an arbitrary beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Seconds since the run began.
    pub(super) at_s: f64,
    /// Connections of clients by state, from pg_stat_activity, without our own.
    pub(super) active: f64,
    pub(super) idle: f64,
    pub(super) idle_in_transaction: f64,
    pub(super) connections: f64,
    /// Transactions of the database, committed and rolled back.
    pub(super) transactions: f64,
    /// Buffers allocated, and written by the background writer, by checkpoints, by backends.
    pub(super) buffers_allocated: f64,
    pub(super) buffers_cleaned: f64,
    pub(super) buffers_checkpoint: f64,
    pub(super) buffers_backend: f64,
    /// CPU time, milliseconds, where it is known.
    pub(super) postgres_cpu_ms: Option<f64>,
    pub(super) pooler_cpu_ms: Option<f64>,
    /// The pooler's own counters, where it has a console.
    pub(super) pool: Option<PoolReading>,
}

/// SHOW POOLS, all pools together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PoolReading {
    pub(super) clients_active: f64,
    pub(super) clients_waiting: f64,
    pub(super) servers_active: f64,
    pub(super) servers_idle: f64,
}

/// What is watched.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// A login that may look at pg_stat_activity.
    pub(super) watcher: Login,
    /// `server_version_num`.
    pub(super) version: u32,
    pub(super) postmaster: Option<u32>,
    /// The pooler's console and process.
    pub(super) console: Option<Login>,
    pub(super) pooler: Option<u32>,
}

/// Watches in the background.
pub(super) struct Monitor {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Reading>>,
}

impl Monitor {
    /// Begins.
    ///
    /// # Errors
    /// The server lets the watcher not in.
    pub(super) fn start(watched: &Watched) -> Result<Self, BenchError> {
        let server = Client::log_in(&watched.watcher).map_err(BenchError::io("watching PostgreSQL"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (ending, watched) = (Arc::clone(&stop), watched.clone());
        Ok(Self { stop, thread: thread::spawn(move || watch(server, &watched, &ending)) })
    }

    /// Ends; what was seen.
    pub(super) fn finish(self) -> Vec<Reading> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        self.thread.join().unwrap_or_default()
    }
}

fn watch(mut server: Client, watched: &Watched, ending: &AtomicBool) -> Vec<Reading> {
    let begin = Instant::now();
    let sql = sql(watched.version);
    let mut console = watched.console.as_ref().and_then(|login| Client::log_in(login).ok());
    let mut readings = Vec::new();
    loop {
        let last = ending.load(Ordering::Relaxed);
        // Other code reports a server that has died.
        let Ok(mut reading) = look(&mut server, &sql) else { break };
        reading.at_s = begin.elapsed().as_secs_f64();
        reading.postgres_cpu_ms = watched.postmaster.and_then(|pid| children_cpu_ns(pid).ok()).map(ms);
        reading.pooler_cpu_ms = watched.pooler.and_then(|pid| family_cpu_ns(pid).ok()).map(ms);
        reading.pool = console.as_mut().and_then(|console| pools(console).ok());
        readings.push(reading);
        if last {
            break;
        }
        thread::park_timeout(EVERY);
    }
    readings
}

#[expect(clippy::cast_precision_loss, reason = "a run's CPU time is far below 2^52 nanoseconds")]
fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// One row of numbers. The views changed in version 17: checkpoints have a separate one, and writes of backends are in
/// pg_stat_io (<https://www.postgresql.org/docs/17/monitoring-stats.html>).
fn sql(version: u32) -> String {
    let written = if version >= 170_000 {
        "(SELECT buffers_written FROM pg_stat_checkpointer), \
         (SELECT coalesce(sum(writes), 0)::bigint FROM pg_stat_io WHERE backend_type = 'client backend')"
    } else {
        "(SELECT buffers_checkpoint FROM pg_stat_bgwriter), (SELECT buffers_backend FROM pg_stat_bgwriter)"
    };
    format!(
        "SELECT count(*) FILTER (WHERE state = 'active'), count(*) FILTER (WHERE state = 'idle'), \
         count(*) FILTER (WHERE state LIKE 'idle in transaction%'), count(*), \
         (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()), \
         (SELECT buffers_alloc FROM pg_stat_bgwriter), (SELECT buffers_clean FROM pg_stat_bgwriter), {written} \
         FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database() \
         AND application_name <> 'pgweir-tools'"
    )
}

fn look(server: &mut Client, sql: &str) -> io::Result<Reading> {
    let rows = server.query(sql)?;
    let row = rows.first().ok_or_else(|| io::Error::other("no row"))?;
    let number = |index: usize| row.get(index).and_then(|text| text.parse().ok()).unwrap_or(0.0);
    Ok(Reading {
        active: number(0),
        idle: number(1),
        idle_in_transaction: number(2),
        connections: number(3),
        transactions: number(4),
        buffers_allocated: number(5),
        buffers_cleaned: number(6),
        buffers_checkpoint: number(7),
        buffers_backend: number(8),
        ..Reading::default()
    })
}

fn pools(console: &mut Client) -> io::Result<PoolReading> {
    let (names, rows) = console.table("SHOW POOLS")?;
    let sum = |name: &str| -> f64 {
        let column = names.iter().position(|found| found == name);
        let not_console = |row: &&Vec<String>| row.first().is_none_or(|database| database != "pgbouncer");
        let value = |row: &Vec<String>| row.get(column?)?.parse::<f64>().ok();
        rows.iter().filter(not_console).filter_map(value).sum()
    };
    Ok(PoolReading {
        clients_active: sum("cl_active"),
        clients_waiting: sum("cl_waiting"),
        servers_active: sum("sv_active"),
        servers_idle: sum("sv_idle") + sum("sv_used"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_views_of_the_version_are_asked() {
        assert!(sql(150_000).contains("buffers_backend FROM pg_stat_bgwriter"));
        assert!(sql(170_000).contains("pg_stat_checkpointer") && sql(180_000).contains("pg_stat_io"));
    }
}
