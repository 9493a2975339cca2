//! Tools around the pooler: a demonstration in one command, and comparisons side by side with other poolers.
//!
//! Two entry points, [`demo`] and [`bench`], are subcommands of the `pgweir` binary. Both start a throw-away PostgreSQL
//! cluster, start poolers for it as separate processes, and load them with pgbench. Nothing here is
//! part of the data plane: this crate may block, sleep and look at the clock. It must never touch a database that it did
//! not create, and whatever ends it (the end, an error, Ctrl-C, SIGKILL), it leaves neither processes nor files behind.
#![allow(
    clippy::disallowed_methods,
    reason = "a tool with its own process: it measures time, waits and has threads that read pipes"
)]

use std::ffi::OsString;
use std::process::ExitCode;

mod demo;
mod error;
mod experiments;
mod generator;
mod idle;
mod load;
mod peers;
mod pgbench;
mod pgbench_output;
mod processes;
mod relay;
mod report;
mod servers;

pub use error::BenchError;
use report::progress::{note, say};

const BENCH_HELP: &str = "\
usage: pgweir bench EXPERIMENT [options]

experiments, as published in articles on why one needs a pooler; table, charts and JSON:
{experiments}
other comparisons:
  load        a load of one's own: rates, mixes, idle and thinking clients, bursts
  peers       pgweir, other poolers and a direct connection, side by side in interleaved rounds
  compare     two reports (A.json B.json)

about the load generator:
  generator   compares it with pgbench: requests per CPU second, and the latencies both report
  stand-in    a server that answers everything at once, to measure clients and poolers alone
  relay       passes bytes on later, as a network of some length would

`pgweir bench EXPERIMENT --help` lists the options of one.
";

/// `pgweir demo ...`: a throw-away PostgreSQL, a pgweir that connects to it, the same load on both, a table.
///
/// `args` are the arguments after the word `demo`. The exit codes are those of [`BenchError::exit_code`].
#[must_use]
pub fn demo(args: Vec<OsString>) -> ExitCode {
    finish("pgweir demo", demo::run(args))
}

/// `pgweir bench EXPERIMENT ...`: comparisons. `args` are the arguments after the word `bench`.
#[must_use]
pub fn bench(args: Vec<OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let experiment = args.next().map(|word| word.to_string_lossy().into_owned());
    let result = match experiment.as_deref() {
        Some("peers") => peers::run(args.collect()),
        Some("compare") => experiments::compare::run(args.collect()),
        Some(name) if experiments::is_known(name) => experiments::run(name, args.collect()),
        Some("relay") => relay::run(args.collect()),
        Some("load") => experiments::load::run(args.collect()),
        Some("generator") => generator::run(args.collect()),
        Some("stand-in") => generator::stand_in(args.collect()),
        Some("-h" | "--help" | "help") | None => {
            say!("{}", bench_help());
            Ok(())
        }
        Some(other) => {
            Err(BenchError::Usage(format!("no experiment is called \"{other}\"; see pgweir bench --help")))
        }
    };
    finish("pgweir bench", result)
}

fn bench_help() -> String {
    let names = experiments::names().map(|(name, title)| format!("  {name:<11} {title}\n"));
    BENCH_HELP.replace("{experiments}\n", &(names.collect::<String>() + "  all         all of these\n"))
}

/// Says what went wrong on one line, and turns it into the exit code.
fn finish(program: &str, result: Result<(), BenchError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(BenchError::Interrupted) => {
            note!("{program}: interrupted; everything it had started is stopped and removed");
            ExitCode::from(BenchError::Interrupted.exit_code())
        }
        Err(error) => {
            note!("{program}: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
