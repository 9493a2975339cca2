//! `sim`: runs the simulator over seeds, says what broke and how to repeat it.
//!
//! `sim [--seeds N] [--start S] [--jobs J]` runs N seeds from S on, `sim --crowds N` N worlds of a thousand clients that change
//! what their sessions hold, `sim --clusters N` N worlds in which the servers' primary changes, `sim --caches N` N worlds
//! with a query cache, of which most follow the changes of tables; `sim --seed X`, `sim --thousand X`, `sim --cluster X` and `sim --cache X` run one of each with its whole trace.
//! Exit status 1 when a seed fails, or when thousands never got to what they are for, 2 when the command line is wrong.

// A tool at a terminal: it may look at the clock and use threads.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pgweir_core::Machine;
use pgweir_core::stats::rare_path::{RarePath, Reach};
use pgweir_testkit::sim::check::pairs;
use pgweir_testkit::sim::check::reach::{
    IN_A_HUNDRED, IN_CLUSTERS, IN_FIFTY_FAULTS, IN_TWENTY_THOUSAND, IN_TWO_THOUSAND, WITH_A_CACHE, missing,
};
use pgweir_testkit::sim::plan::Plan;
use pgweir_testkit::sim::report::{Outcome, describe, run_and_trace, run_plan};
use pgweir_testkit::sim::subject::Subject;
use pgweir_testkit::sim::trace::Trace;

struct Options {
    start: u64,
    seeds: u64,
    one: bool,
    kind: Kind,
    jobs: usize,
}

/// The kind of worlds that are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    All,
    Crowds,
    Clusters,
    Cached,
}

impl Options {
    fn plan(&self, seed: u64) -> Plan {
        match self.kind {
            Kind::All => Plan::new(seed, &Machine::profile()),
            Kind::Crowds => Plan::thousand_sessions(seed, &Machine::profile()),
            Kind::Clusters => Plan::cluster(seed, &Machine::profile()),
            Kind::Cached => Plan::cached(seed, &Machine::profile()),
        }
    }
}

const USAGE: &str = "usage: sim [--seeds N | --crowds N | --clusters N | --caches N] [--start S] [--jobs J] | sim --seed X | sim --thousand X | sim --cluster X | sim --cache X";

fn options() -> Result<Options, String> {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut options = Options { start: 1, seeds: 2000, one: false, kind: Kind::All, jobs };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a number"))?;
        let number: u64 = value.parse().map_err(|_| format!("{name}: \"{value}\" is not a number"))?;
        match name.as_str() {
            "--seeds" => options.seeds = number,
            "--crowds" => (options.seeds, options.kind) = (number, Kind::Crowds),
            "--clusters" => (options.seeds, options.kind) = (number, Kind::Clusters),
            "--caches" => (options.seeds, options.kind) = (number, Kind::Cached),
            "--start" => options.start = number,
            "--seed" => (options.start, options.one) = (number, true),
            "--thousand" => (options.start, options.one, options.kind) = (number, true, Kind::Crowds),
            "--cluster" => (options.start, options.one, options.kind) = (number, true, Kind::Clusters),
            "--cache" => (options.start, options.one, options.kind) = (number, true, Kind::Cached),
            "--jobs" => options.jobs = usize::try_from(number.max(1)).unwrap_or(1),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options() {
        Err(why) => {
            eprintln!("sim: {why}\n{USAGE}");
            ExitCode::from(2)
        }
        Ok(options) if options.one => run_one(options.plan(options.start)),
        Ok(options) => run_many(&options),
    }
}

/// One world, with everything it does.
fn run_one(plan: Plan) -> ExitCode {
    let outcome = run_plan::<Machine>(plan, &Trace::keep(1, true));
    println!("{}", describe(&outcome));
    println!("{:?}", outcome.counters);
    if outcome.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The results of all threads.
#[derive(Default)]
struct Found {
    failed: Vec<Outcome>,
    counters: BTreeMap<&'static str, u64>,
    events: u64,
    done: u64,
}

/// The number of seeds that must reach everything in [`pgweir_testkit::sim::check::reach`].
const SEEDS_THAT_SEE_ALL: u64 = 2000;

/// Failures that are worth reading at once; more are only counted.
const FAILURES_SHOWN: usize = 1;

fn run_many(options: &Options) -> ExitCode {
    // A panic of the machine is reported with its seed, not as it happens.
    std::panic::set_hook(Box::new(|_| {}));
    let begin = Instant::now();
    let next = AtomicU64::new(options.start);
    let end = options.start.saturating_add(options.seeds);
    let found = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    note(&found, run_and_trace::<Machine>(|| options.plan(seed)), options.seeds);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.failed.sort_by_key(|outcome| outcome.seed);
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!();
    for outcome in found.failed.iter().take(FAILURES_SHOWN) {
        println!("{}", describe(outcome));
    }
    for outcome in found.failed.iter().skip(FAILURES_SHOWN) {
        if let Some(violation) = &outcome.violation {
            println!("seed {} violated: {}: {}", outcome.seed, violation.check, violation.text);
        }
    }
    let seen: Vec<String> = found
        .counters
        .iter()
        .filter(|(what, _)| !pairs::is_pair(what))
        .map(|(what, times)| format!("{times} {what}"))
        .collect();
    println!("{} seeds, {} events in {seconds:.1} s: {}", found.done, found.events, seen.join(", "));
    println!("{}", pairs::report(&found.counters));
    let sees_all = found.done >= SEEDS_THAT_SEE_ALL;
    let unreached = if sees_all { unreached(options.kind, found.done, &found.counters) } else { Vec::new() };
    if !unreached.is_empty() {
        println!("never happened: {}", unreached.join(", "));
    }
    if found.failed.is_empty() {
        println!("every invariant held");
        if unreached.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    } else {
        println!("{} of {} seeds failed", found.failed.len(), found.done);
        ExitCode::FAILURE
    }
}

/// The names of events, rare paths and pairs of features that so many seeds should have met, and did not.
fn unreached(kind: Kind, seeds: u64, counters: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let (events, reach, pairs): (Vec<&str>, _, Vec<&str>) = match kind {
        Kind::Crowds => return Vec::new(),
        Kind::All => {
            let rarest: &[&str] = if seeds < 20_000 { &[] } else { &IN_TWENTY_THOUSAND };
            let events = [&IN_A_HUNDRED[..], &IN_FIFTY_FAULTS, &IN_TWO_THOUSAND, rarest].concat();
            (events, Reach::Seeds, pairs::wanted(pairs::Plan::One).collect())
        }
        Kind::Clusters => {
            (IN_CLUSTERS.to_vec(), Reach::ClusterSeeds, pairs::wanted(pairs::Plan::Cluster).collect())
        }
        Kind::Cached => (WITH_A_CACHE.to_vec(), Reach::CacheSeeds, Vec::new()),
    };
    let paths = RarePath::ALL.iter().filter(|path| path.reach() == reach).map(|path| path.name());
    let wanted: Vec<&'static str> = events.into_iter().chain(paths).chain(pairs).collect();
    missing(counters, &wanted)
}

fn note(found: &Mutex<Found>, outcome: Outcome, seeds: u64) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    found.done += 1;
    found.events += outcome.events;
    for (what, times) in &outcome.counters {
        *found.counters.entry(what).or_default() += times;
    }
    if outcome.violation.is_some() {
        found.failed.push(outcome);
    }
    let every = if std::io::stderr().is_terminal() { 20 } else { 500 };
    if found.done.is_multiple_of(every) {
        eprint!("\r{} of {seeds} seeds, {} failed ", found.done, found.failed.len());
    }
}
