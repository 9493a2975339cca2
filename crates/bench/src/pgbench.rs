//! Runs pgbench and gathers what it measured.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::BenchError;
use crate::pgbench_output::{Latencies, progress, summary};
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Finished};
use crate::processes::scratch::Scratch;
use crate::servers::cluster::{DATABASE, USER};
use pgweir_client::Address;

/// How long after its time a run may take to end before it is called stuck.
const GRACE: Duration = Duration::from_secs(60);

/// pgbench's built-in scripts that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// One SELECT by primary key (`-S`).
    SelectOnly,
    /// `SELECT 1`: nothing but the way there and back.
    SelectOne,
    /// Five statements in a transaction, like TPC-B.
    TpcB,
    /// The script that was given to [`Pgbench::with_hot`].
    Hot,
}

/// `--protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// One Query message a statement.
    Simple,
    /// Parse, Bind, Execute each time.
    Extended,
    /// Parse once, then Bind and Execute.
    Prepared,
}

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// What a transaction is.
    pub(crate) script: Script,
    /// How it is sent.
    pub(crate) protocol: Protocol,
    /// Clients at the same time.
    pub(crate) clients: u32,
    /// A new connection for each transaction (`-C`).
    pub(crate) reconnect: bool,
    /// How long, seconds.
    pub(crate) seconds: u32,
}

impl Load {
    /// The share of transactions whose latency is logged: writing it down must not become the load.
    fn sampling_rate(&self) -> f64 {
        if self.script != Script::TpcB && !self.reconnect { 0.1 } else { 1.0 }
    }

    fn arguments(&self, select_one: &Path, hot: &Path) -> Vec<String> {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = u32::try_from(threads).unwrap_or(1).min(self.clients);
        let script = match self.script {
            Script::SelectOnly => "--builtin=select-only".to_owned(),
            Script::TpcB => "--builtin=tpcb-like".to_owned(),
            Script::SelectOne => format!("--file={}", select_one.display()),
            Script::Hot => format!("--file={}", hot.display()),
        };
        let protocol = match self.protocol {
            Protocol::Simple => "simple",
            Protocol::Extended => "extended",
            Protocol::Prepared => "prepared",
        };
        let mut arguments = vec![
            "--no-vacuum".to_owned(),
            script,
            format!("--protocol={protocol}"),
            format!("--client={}", self.clients),
            format!("--jobs={threads}"),
            format!("--time={}", self.seconds),
            "--progress=1".to_owned(),
        ];
        if self.reconnect {
            arguments.push("--connect".to_owned());
        }
        arguments
    }
}

/// What a run gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Transactions that were processed.
    pub(crate) transactions: u64,
    /// Transactions that failed.
    pub(crate) failed: u64,
    /// Transactions a second.
    pub(crate) tps: f64,
    /// Median latency, milliseconds; `None` when nothing was logged.
    pub(crate) p50_ms: Option<f64>,
    /// 99th percentile of the latency, milliseconds.
    pub(crate) p99_ms: Option<f64>,
}

/// pgbench, with the place for its logs.
#[derive(Debug)]
pub(crate) struct Pgbench {
    program: PathBuf,
    logs: PathBuf,
    /// A file with `SELECT 1`.
    select_one: PathBuf,
    /// The file for [`Script::Hot`]; empty as long as there is none.
    hot: PathBuf,
}

impl Pgbench {
    /// Uses `program` and a folder in `scratch`.
    ///
    /// # Errors
    /// The folder could not be made.
    pub(crate) fn new(program: &Path, scratch: &Scratch) -> Result<Self, BenchError> {
        let select_one = scratch.path().join("select1.sql");
        scratch.write(&select_one, "SELECT 1;\n")?;
        let logs = scratch.folder("pgbench")?;
        Ok(Self { program: program.to_owned(), logs, select_one, hot: PathBuf::new() })
    }

    /// Returns pgbench with `script` as [`Script::Hot`].
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn with_hot(self, scratch: &Scratch, script: &str) -> Result<Self, BenchError> {
        let hot = scratch.path().join("hot.sql");
        scratch.write(&hot, script)?;
        Ok(Self { hot, ..self })
    }

    /// Runs a load against `address` under the application_name `name` (without blanks or quotes); `say` gets seconds since the start and current TPS, once a second.
    ///
    /// # Errors
    /// pgbench failed or clients were aborted (its last words are in the error), or a signal came.
    pub(crate) fn run(
        &self,
        load: &Load,
        name: &str,
        address: &Address,
        interrupt: &Interrupt,
        say: &mut dyn FnMut(f64, f64),
    ) -> Result<Outcome, BenchError> {
        self.remove_logs()?;
        let mut command = self.command(address);
        command
            .args(load.arguments(&self.select_one, &self.hot))
            .arg("--log")
            .arg(format!("--sampling-rate={}", load.sampling_rate()));
        command.arg("--log-prefix").arg(self.logs.join("log"));
        command.arg(format!("dbname={DATABASE} application_name={name}"));
        let limit = Duration::from_secs(load.seconds.into()) + GRACE;
        let finished = process::run(&mut command, "pgbench", limit, interrupt, &mut |line| {
            if let Some((seconds, tps)) = line.and_then(progress) {
                say(seconds, tps);
            }
        })?;
        if !finished.status.success() {
            return Err(process::failure("pgbench", &without_progress(finished)));
        }
        let summary = summary(&finished.stdout)
            .ok_or_else(|| BenchError::failed("pgbench gave no summary", &finished.stdout))?;
        let latencies = self.latencies()?;
        Ok(Outcome {
            transactions: summary.transactions,
            failed: summary.failed,
            tps: summary.tps,
            p50_ms: latencies.quantile_ms(0.50),
            p99_ms: latencies.quantile_ms(0.99),
        })
    }

    /// Tries to connect `clients` at once for one transaction each; gives the server's reason if that was refused.
    ///
    /// # Errors
    /// pgbench could not be started, or a signal came.
    pub(crate) fn refusal(
        &self,
        clients: u32,
        address: &Address,
        interrupt: &Interrupt,
    ) -> Result<Option<String>, BenchError> {
        let mut command = self.command(address);
        command.args([
            "--no-vacuum",
            "--select-only",
            "--transactions=1",
            &format!("--client={clients}"),
            DATABASE,
        ]);
        let finished = process::run(&mut command, "pgbench", GRACE, interrupt, &mut |_| {})?;
        if finished.status.success() {
            return Ok(None);
        }
        let reason = finished
            .stderr
            .lines()
            .find_map(|line| line.split_once("FATAL:"))
            .map(|(_, reason)| reason.trim());
        Ok(Some(reason.unwrap_or("pgbench failed").to_owned()))
    }

    fn command(&self, address: &Address) -> Command {
        let (host, port) = address.host_and_port();
        let mut command = Command::new(&self.program);
        command.args(["--host", &host, "--port", &port, "--username", USER]).current_dir("/");
        command
    }

    fn remove_logs(&self) -> Result<(), BenchError> {
        for path in self.log_files()? {
            fs::remove_file(&path).map_err(BenchError::io(format!("removing {}", path.display())))?;
        }
        Ok(())
    }

    fn latencies(&self) -> Result<Latencies, BenchError> {
        let mut latencies = Latencies::default();
        for path in self.log_files()? {
            let what = || format!("reading {}", path.display());
            let file = File::open(&path).map_err(BenchError::io(what()))?;
            latencies.add_log(BufReader::new(file)).map_err(BenchError::io(what()))?;
        }
        Ok(latencies)
    }

    fn log_files(&self) -> Result<Vec<PathBuf>, BenchError> {
        let entries = fs::read_dir(&self.logs).map_err(BenchError::io("looking at pgbench's logs"))?;
        Ok(entries.flatten().map(|entry| entry.path()).collect())
    }
}

/// The reason of a failure should not be hidden behind progress lines and pgbench's own advice.
fn without_progress(mut finished: Finished) -> Finished {
    let tells = |line: &&str| !line.starts_with("progress: ") && !line.contains("Run was aborted");
    finished.stderr = finished.stderr.lines().filter(tells).collect::<Vec<_>>().join("\n");
    finished
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_becomes_the_arguments_of_pgbench() {
        let load = Load {
            script: Script::TpcB,
            protocol: Protocol::Prepared,
            clients: 1,
            reconnect: true,
            seconds: 7,
        };
        let arguments = load.arguments(Path::new("x"), Path::new("y")).join(" ");
        assert_eq!(
            arguments,
            "--no-vacuum --builtin=tpcb-like --protocol=prepared --client=1 --jobs=1 --time=7 --progress=1 --connect"
        );
    }
}
