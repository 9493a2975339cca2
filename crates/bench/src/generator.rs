//! `pgweir bench generator`: is our load generator good enough to measure by? It is compared with pgbench against a server
//! that answers at once (whose CPU time is the smaller?) and against one that takes its time (do both see the same
//! latencies?). `pgweir bench stand-in` is that server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lexopt::prelude::*;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::error::BenchError;
use crate::load::{self, Mix, Pace, Plan, Protocol, StandIn};
use crate::pgbench_output::{Latencies, summary};
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Process, STOP_PLAIN};
use crate::processes::scratch::{RunAs, Scratch};
use crate::processes::tools::find_pgbench;
use crate::report::progress::{Progress, note, say};
use crate::report::stats::{median, short};
use crate::report::table::Table;
use crate::servers::cluster::free_port;
use pgweir_client::Client;
use pgweir_client::{Address, Login};

const HELP: &str = "\
usage: pgweir bench generator [options]

Compares the load generator of pgweir bench with pgbench, on the same closed-loop load: requests per second
of CPU time against a server that answers at once, and latencies against one that takes its time. Over a unix
socket the CPU time is mostly the generator's; over TCP most of it is the kernel's, which is the same for both.

options:
  --rounds N      interleaved rounds (default 3)
  --seconds N     length of one run (default 4)
  --clients N     clients (default 50)
  --delay-ms N    what the slow server takes (default 20)
  -h, --help      this text
";

const STAND_IN_HELP: &str = "\
usage: pgweir bench stand-in [--port N] [--socket-dir DIR] [--delay-ms N]

A server on 127.0.0.1 (or on a unix socket in DIR) that lets everybody in and answers every statement with one
row, at once or after --delay-ms milliseconds, until Ctrl-C. --port defaults to 54320.
";

const SCRIPT: &str = "\\set aid random(1, 100000)\nSELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n";
const START_LIMIT: Duration = Duration::from_secs(10);
const SLOW_CLIENTS: u32 = 8;
const GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
struct Options {
    rounds: u32,
    seconds: u32,
    clients: u32,
    delay_ms: u32,
}

/// What one run gave.
#[derive(Clone, Copy)]
struct Sample {
    requests: f64,
    cpu_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    mean_ms: f64,
}

/// A stand-in as a separate process.
struct Server {
    _process: Process,
    address: Address,
}

/// Runs the comparison.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let Some(options) = parse(args)? else {
        say!("{HELP}");
        return Ok(());
    };
    let interrupt = Interrupt::install()?;
    let pgbench = find_pgbench()?;
    let scratch = Scratch::create(RunAs::detect()?, 100)?;
    let script = scratch.path().join("select.sql");
    scratch.write(&script, SCRIPT)?;
    let mut progress = Progress::new();
    let mut rows = Table::new(
        &["server", "generator", "requests/CPU s", "requests/s", "mean ms", "p50 ms", "p99 ms"],
        2,
    );
    let mut verdicts = Vec::new();
    let sockets = Some(scratch.path());
    for (name, delay_ms, sockets) in
        [("unix, at once", 0, sockets), ("TCP, at once", 0, None), ("TCP, slow", options.delay_ms, None)]
    {
        let server = Server::start(delay_ms, sockets, &interrupt)?;
        // Few clients where latencies are compared: neither program may be what is waited for.
        let clients = if delay_ms == 0 { options.clients } else { options.clients.min(SLOW_CLIENTS) };
        let load = Options { clients, ..options };
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 1..=options.rounds {
            progress.phase(&format!("{name}, round {round}"));
            // Each goes first in every other round: a machine that becomes slower meanwhile must not tell them apart.
            let own_first = if round % 2 == 0 { Some(run_own(&load, &server, &interrupt)?) } else { None };
            theirs.push(run_pgbench(&pgbench, &script, &load, &server, &scratch, &interrupt)?);
            ours.push(match own_first {
                Some(sample) => sample,
                None => run_own(&load, &server, &interrupt)?,
            });
            progress.done("");
        }
        verdicts.push(format!("{name}: {}", verdict(delay_ms == 0, &ours, &theirs)));
        let (theirs, ours) = (middle(&theirs), middle(&ours));
        for (generator, sample) in [("pgbench", theirs), ("pgweir", ours)] {
            rows.row(vec![
                name.to_owned(),
                generator.to_owned(),
                short(sample.requests / sample.cpu_s),
                short(sample.requests / f64::from(options.seconds)),
                format!("{:.3}", sample.mean_ms),
                format!("{:.3}", sample.p50_ms),
                format!("{:.3}", sample.p99_ms),
            ]);
        }
    }
    drop(progress);
    say!("\n{}\n{}\n", rows.render(), verdicts.join("\n"));
    Ok(())
}

/// Ratios within each round, whose two runs had the same machine: their median, and how far the rounds lie apart.
fn verdict(at_once: bool, ours: &[Sample], theirs: &[Sample]) -> String {
    let ratios = |value: &dyn Fn(&Sample) -> f64| -> Vec<f64> {
        ours.iter().zip(theirs).map(|(ours, theirs)| value(ours) / value(theirs)).collect()
    };
    if at_once {
        let ratio = median(&ratios(&|sample| sample.requests / sample.cpu_s)).unwrap_or(f64::NAN);
        return format!("requests per CPU second: {ratio:.2} x pgbench's");
    }
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let difference = |value: &dyn Fn(&Sample) -> f64| percent(median(&ratios(value)).unwrap_or(f64::NAN));
    let p99 = ratios(&|sample| sample.p99_ms);
    let least = p99.iter().copied().fold(f64::INFINITY, f64::min);
    let most = p99.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    format!(
        "latencies against pgbench's log: mean {:+.1} %, p50 {:+.1} %, p99 {:+.1} % ({:+.1} to {:+.1} % in single rounds)",
        difference(&|sample| sample.mean_ms),
        difference(&|sample| sample.p50_ms),
        difference(&|sample| sample.p99_ms),
        percent(least),
        percent(most)
    )
}

/// Serves as the stand-in until a signal comes.
pub(crate) fn stand_in(args: Vec<OsString>) -> Result<(), BenchError> {
    let (mut port, mut delay_ms, mut sockets) = (54_320, 0_u32, None);
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => {
                say!("{STAND_IN_HELP}");
                return Ok(());
            }
            Long("port") => port = parser.value()?.parse()?,
            Long("socket-dir") => sockets = Some(PathBuf::from(parser.value()?)),
            Long("delay-ms") => delay_ms = parser.value()?.parse()?,
            _ => return Err(arg.unexpected().into()),
        }
    }
    let interrupt = Interrupt::install()?;
    let server = match &sockets {
        Some(directory) => StandIn::bind_unix(directory, port)?,
        None => StandIn::bind(port)?,
    };
    let server = server.delayed(Duration::from_millis(delay_ms.into()));
    let place = sockets.map_or_else(|| "127.0.0.1".to_owned(), |directory| directory.display().to_string());
    note!("answering on {place}, port {}", server.port());
    server.serve(&interrupt)
}

fn parse(args: Vec<OsString>) -> Result<Option<Options>, BenchError> {
    let mut options = Options { rounds: 3, seconds: 4, clients: 50, delay_ms: 20 };
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        let field = match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("rounds") => &mut options.rounds,
            Long("seconds") => &mut options.seconds,
            Long("clients") => &mut options.clients,
            Long("delay-ms") => &mut options.delay_ms,
            _ => return Err(arg.unexpected().into()),
        };
        *field = parser.value()?.parse()?;
        if !(1..=10_000).contains(field) {
            return Err(BenchError::Usage("numbers are 1 to 10000".to_owned()));
        }
    }
    Ok(Some(options))
}

impl Server {
    /// Over TCP, or on a unix socket in this directory.
    fn start(delay_ms: u32, sockets: Option<&Path>, interrupt: &Interrupt) -> Result<Self, BenchError> {
        let port = free_port()?;
        let address = match sockets {
            Some(directory) => Address::Unix(directory.to_owned(), port),
            None => Address::Loopback(port),
        };
        let own = std::env::current_exe().map_err(BenchError::io("finding pgweir's own executable"))?;
        let mut command = Command::new(own);
        command.args(["bench", "stand-in", "--port", &port.to_string(), "--delay-ms", &delay_ms.to_string()]);
        if let Some(directory) = sockets {
            command.arg("--socket-dir").arg(directory);
        }
        command.stderr(std::process::Stdio::null());
        let process = Process::spawn(&mut command, "stand-in", STOP_PLAIN)?;
        let until = Instant::now() + START_LIMIT;
        while let Err(error) = Client::connect(&address, "bench", "bench") {
            if Instant::now() >= until {
                return Err(BenchError::Io { what: "connecting to the stand-in".to_owned(), source: error });
            }
            interrupt.sleep(Duration::from_millis(20))?;
        }
        Ok(Self { _process: process, address })
    }
}

fn run_pgbench(
    pgbench: &PathBuf,
    script: &Path,
    options: &Options,
    server: &Server,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Sample, BenchError> {
    let logs = scratch.path().join("log");
    let _ = std::fs::remove_dir_all(&logs);
    std::fs::create_dir(&logs).map_err(BenchError::io("a folder for pgbench's log"))?;
    let mut command = Command::new(pgbench);
    let (host, port) = server.address.host_and_port();
    command.args(["--no-vacuum", "--username=bench", "--log"]).arg(format!("--host={host}"));
    command.arg(format!("--port={port}")).arg(format!("--client={}", options.clients));
    command.arg(format!("--time={}", options.seconds)).arg("--file").arg(script);
    // Writing the log must not be what costs the time.
    command.arg("--sampling-rate=0.1").arg("--log-prefix").arg(logs.join("log")).arg("bench");
    let before = cpu_s(UsageWho::RUSAGE_CHILDREN)?;
    let limit = Duration::from_secs(options.seconds.into()) + GRACE;
    let stdout = process::expect_success(&mut command, "pgbench", limit, interrupt)?;
    let cpu_s = cpu_s(UsageWho::RUSAGE_CHILDREN)? - before;
    let summary = summary(&stdout).ok_or_else(|| BenchError::failed("pgbench gave no summary", &stdout))?;
    let mut latencies = Latencies::default();
    for entry in std::fs::read_dir(&logs).map_err(BenchError::io("looking at pgbench's log"))?.flatten() {
        let file = std::fs::File::open(entry.path()).map_err(BenchError::io("opening pgbench's log"))?;
        latencies.add_log(std::io::BufReader::new(file)).map_err(BenchError::io("reading pgbench's log"))?;
    }
    let quantile = |share| latencies.quantile_ms(share).unwrap_or(f64::NAN);
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    let requests = summary.transactions as f64;
    let mean_ms = latencies.mean_ms().unwrap_or(f64::NAN);
    Ok(Sample { requests, cpu_s, p50_ms: quantile(0.5), p99_ms: quantile(0.99), mean_ms })
}

fn run_own(options: &Options, server: &Server, interrupt: &Interrupt) -> Result<Sample, BenchError> {
    let plan = Plan {
        login: Login::trusted(server.address.clone(), "bench", "bench", "pgweir-bench"),
        tls: false,
        mix: Mix::select_only(1),
        protocol: Protocol::Simple,
        clients: options.clients,
        idle_clients: 0,
        pace: Pace::Closed { think: Duration::ZERO },
        reconnect: false,
        threads: 1,
        duration: Duration::from_secs(options.seconds.into()),
    };
    let before = cpu_s(UsageWho::RUSAGE_SELF)?;
    let outcome = load::run(&plan, interrupt, &mut |_, _| {})?;
    let cpu_s = cpu_s(UsageWho::RUSAGE_SELF)? - before;
    interrupt.check()?;
    let quantile = |share| outcome.latency.quantile_ms(share).unwrap_or(f64::NAN);
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
    let requests = outcome.done as f64;
    let mean_ms = outcome.latency.mean_ms().unwrap_or(f64::NAN);
    Ok(Sample { requests, cpu_s, p50_ms: quantile(0.5), p99_ms: quantile(0.99), mean_ms })
}

/// CPU time of this process, or of its children that have ended, seconds.
fn cpu_s(who: UsageWho) -> Result<f64, BenchError> {
    let usage = getrusage(who)
        .map_err(|errno| BenchError::Io { what: "asking for CPU time".to_owned(), source: errno.into() })?;
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a run are far below 2^52")]
    let seconds = (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1e6;
    Ok(seconds)
}

fn middle(samples: &[Sample]) -> Sample {
    let of = |value: fn(&Sample) -> f64| {
        median(&samples.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
    };
    Sample {
        requests: of(|sample| sample.requests),
        cpu_s: of(|sample| sample.cpu_s),
        p50_ms: of(|sample| sample.p50_ms),
        p99_ms: of(|sample| sample.p99_ms),
        mean_ms: of(|sample| sample.mean_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_compared_with_themselves() {
        let sample = |ms: f64| Sample { requests: ms, cpu_s: 1.0, p50_ms: ms, p99_ms: ms, mean_ms: ms };
        let (ours, theirs) = ([1.0, 22.0, 90.0].map(sample), [1.0, 20.0, 100.0].map(sample));
        assert_eq!(verdict(true, &ours, &theirs), "requests per CPU second: 1.00 x pgbench's");
        let said = verdict(false, &ours, &theirs);
        assert!(said.ends_with("p99 +0.0 % (-10.0 to +10.0 % in single rounds)"), "{said}");
    }
}
