//! One run: a step's command against one target, watched.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::monitor::Reading;
use super::server::environment;
use crate::error::BenchError;
use crate::pgbench_output::{Latencies, average_connection_ms, progress, summary};
use crate::processes::interrupt::Interrupt;
use crate::processes::process;
use crate::processes::scratch::Scratch;
use pgweir_client::Login;

/// How long after its time a run may take to end before it is called stuck.
const GRACE: Duration = Duration::from_secs(120);
/// The same for commands that give the number of transactions.
const COUNTED_LIMIT: Duration = Duration::from_secs(3600);

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    /// Step and target, by their places; round from 1.
    pub(super) step: usize,
    pub(super) target: usize,
    pub(super) round: u32,
    /// Transactions a second, as pgbench says; nothing if it gave no summary.
    pub(super) tps: Option<f64>,
    pub(super) transactions: f64,
    pub(super) failed: f64,
    /// Latency percentiles, milliseconds: 50, 90, 95, 99, 99.9.
    pub(super) latency_ms: Vec<(f64, f64)>,
    /// Average time to connect, where pgbench tells it.
    pub(super) connect_ms: Option<f64>,
    /// Clients that pgbench gave up, and the first reason it told.
    pub(super) aborted: u32,
    pub(super) refusal: Option<String>,
    /// Ctrl-C came in the middle of it.
    pub(super) interrupted: bool,
    /// pgbench's progress: seconds, TPS.
    pub(super) progress: Vec<(f64, f64)>,
    /// What was seen meanwhile.
    pub(super) readings: Vec<Reading>,
}

/// pgbench, and where it logs.
pub(super) struct Runner<'a> {
    pub(super) pgbench: &'a Path,
    pub(super) scratch: &'a Scratch,
    pub(super) interrupt: &'a Interrupt,
}

impl Runner<'_> {
    /// The command line, as a user would type it.
    pub(super) fn command_line(login: &Login, arguments: &str) -> String {
        let (host, port) = login.address.host_and_port();
        let options = login
            .search_path
            .as_ref()
            .map(|path| format!("PGOPTIONS='-c search_path={path}' "))
            .unwrap_or_default();
        format!("{options}pgbench -h {host} -p {port} -U {} {arguments} {}", login.user, login.database)
    }

    /// Runs pgbench to its end. A signal ends it early; the run then holds what was seen until then.
    ///
    /// # Errors
    /// pgbench cannot be started, does not end, or says that the disk is full.
    pub(super) fn pgbench(
        &self,
        login: &Login,
        arguments: &str,
        seconds: Option<u32>,
        say: &mut dyn FnMut(f64, f64),
    ) -> Result<Run, BenchError> {
        let logs = self.scratch.path().join("log");
        let _ = fs::remove_dir_all(&logs);
        fs::create_dir(&logs).map_err(BenchError::io("a folder for pgbench's logs"))?;
        let (host, port) = login.address.host_and_port();
        let mut command = Command::new(self.pgbench);
        environment(&mut command, login);
        command.args(["-h", &host, "-p", &port, "-U", &login.user]).args(arguments.split(' '));
        command.args(["--progress=1", "--log", "--log-prefix"]).arg(logs.join("log"));
        command.arg(format!(
            "dbname={} application_name={}",
            quoted(&login.database),
            login.application_name
        ));
        command.current_dir("/");
        let limit = seconds.map_or(COUNTED_LIMIT, |seconds| Duration::from_secs(seconds.into()) + GRACE);
        let mut run = Run::default();
        let begin = Instant::now();
        let finished = process::run(&mut command, "pgbench", limit, self.interrupt, &mut |line| {
            if let Some((seconds, tps)) = line.and_then(progress) {
                run.progress.push((seconds, tps));
                say(seconds, tps);
            }
        });
        let finished = match finished {
            Ok(finished) => finished,
            Err(BenchError::Interrupted) => {
                run.interrupted = true;
                let sum: f64 = run.progress.iter().map(|(_, tps)| tps).sum();
                let whole = begin.elapsed().as_secs_f64().floor().max(1.0);
                run.tps = (!run.progress.is_empty()).then_some(sum / whole);
                return Ok(run);
            }
            Err(error) => return Err(error),
        };
        if process::says_disk_full(&finished.stderr) {
            return Err(process::failure("pgbench", &finished));
        }
        if let Some(summary) = summary(&finished.stdout) {
            run.tps = Some(summary.tps);
            #[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
            let counts = (summary.transactions as f64, summary.failed as f64);
            (run.transactions, run.failed) = counts;
            run.connect_ms = average_connection_ms(&finished.stdout);
            run.latency_ms = percentiles(&logs)?;
        }
        if !finished.status.success() {
            let aborted = finished
                .stderr
                .lines()
                .filter(|line| line.contains(" aborted ") && line.contains("client "))
                .count();
            run.aborted = u32::try_from(aborted).unwrap_or(u32::MAX);
            run.refusal = Some(reason(&finished.stderr));
        }
        // pgbench before version 15 ends well though clients could not connect.
        if run.refusal.is_none() && finished.stderr.contains("FATAL:") {
            run.refusal = Some(reason(&finished.stderr));
        }
        Ok(run)
    }
}

/// For a conninfo string (libpq, section 34.1.1.1).
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// The server's first complaint, or pgbench's.
fn reason(stderr: &str) -> String {
    let fatal = stderr.lines().find_map(|line| line.split_once("FATAL:")).map(|(_, reason)| reason.trim());
    let error = || stderr.lines().find_map(|line| line.split_once("error:")).map(|(_, reason)| reason.trim());
    fatal.or_else(error).unwrap_or("pgbench failed without a word").to_owned()
}

fn percentiles(logs: &Path) -> Result<Vec<(f64, f64)>, BenchError> {
    let mut latencies = Latencies::default();
    let entries = fs::read_dir(logs).map_err(BenchError::io("looking at pgbench's logs"))?;
    for entry in entries.flatten() {
        let file = fs::File::open(entry.path()).map_err(BenchError::io("opening pgbench's log"))?;
        latencies.add_log(BufReader::new(file)).map_err(BenchError::io("reading pgbench's log"))?;
    }
    let shares = [50.0, 90.0, 95.0, 99.0, 99.9];
    let value = |share: f64| Some((share, latencies.quantile_ms(share / 100.0)?));
    Ok(shares.into_iter().filter_map(value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_reason_comes_first() {
        let stderr =
            "pgbench: error: connection to server failed: FATAL:  sorry, too many clients already\nx\n";
        assert_eq!(reason(stderr), "sorry, too many clients already");
        assert_eq!(reason("pgbench: error: no such thing\n"), "no such thing");
    }

    #[test]
    fn names_are_quoted_for_libpq() {
        assert_eq!(quoted("it's"), "'it\\'s'");
    }
}
