//! `pgweir bench peers`: the same loads through pgweir, other poolers and directly, in interleaved rounds (A B C, A B C, ...),
//! so that whatever else happens on the machine happens to all of them.

mod measure;
mod options;
mod report;
mod syscalls;
mod workload;

use std::ffi::OsString;
use std::fs;

use crate::error::BenchError;
use crate::pgbench::Pgbench;
use crate::processes::install;
use crate::processes::interrupt::Interrupt;
use crate::processes::machine;
use crate::processes::sampler::MachineCpu;
use crate::processes::scratch::{RunAs, Scratch, prepare_output, write_output};
use crate::processes::tools::{self, find_program};
use crate::relay::Relay;
use crate::report::progress::{Progress, say};
use crate::report::svg;
use crate::servers::cluster::{Cluster, ClusterOptions, Entry};
use crate::servers::pooler::PoolerProgram;

use measure::{Bench, Target};
use options::Options;
use report::{Report, Results};

const NEEDED_MB: u64 = 2000;
const SHARED_BUFFERS_MB: u32 = 512;
/// The direct runs of the widest load need a connection for each client, while the poolers keep theirs.
const MAX_CONNECTIONS: u32 = 400;
/// And where Pgpool-II is among the targets, which keeps one for each client, too.
const MAX_CONNECTIONS_PGPOOL: u32 = 700;

/// Runs the comparison; see [`crate::bench`].
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let Some(options) = Options::parse(args)? else {
        say!("{}", options::help());
        return Ok(());
    };
    if let Some(output) = &options.output {
        prepare_output(output)?;
    }
    let interrupt = Interrupt::install()?;
    let mut progress = Progress::new();
    let targets = targets(&options, &interrupt, &mut progress)?;
    machine::raise_file_limit(workload::MOST_CLIENTS.max(options.idle_clients))?;
    progress.phase("looking for PostgreSQL");
    let tools = tools::find_or_install(&interrupt, &mut |what| progress.detail(what))?;
    let postgres_version = tools::version_of(&tools.postgres);
    progress.done(&postgres_version);
    let scratch = Scratch::create(RunAs::detect()?, NEEDED_MB)?;
    progress.phase("starting a throw-away PostgreSQL and filling its tables");
    let cluster_options = ClusterOptions {
        max_connections: max_connections(&targets),
        shared_buffers_mb: SHARED_BUFFERS_MB,
        entry: Entry::Trust,
    };
    let mut cluster = Cluster::start(&tools, &scratch, cluster_options, &interrupt)?;
    cluster.fill(&tools, options.scale, &interrupt, &mut |done| progress.detail(done))?;
    progress.done(&format!("scale {}", options.scale));
    let pgbench = Pgbench::new(&tools.pgbench, &scratch)?;
    let steal_from = MachineCpu::now();
    let relay = match options.round_trip_us {
        0 => None,
        round_trip_us => Some(Relay::start(cluster.port(), round_trip_us, &interrupt)?),
    };
    let mut bench = Bench {
        cluster,
        relay,
        pgbench,
        psql: tools.psql,
        options: &options,
        interrupt: &interrupt,
        progress,
        scratch,
    };
    let (results, ended) = measure_all(&mut bench, &targets);
    if results.is_empty() {
        if let Some(output) = &options.output {
            // Only removed if nothing is in it.
            let _ = fs::remove_dir(output);
        }
        return ended;
    }
    let report = Report {
        steal: steal_from.and_then(|from| Some(from.steal_until(MachineCpu::now()?))),
        postgres_version,
        targets: &targets,
        options: &options,
        results,
    };
    drop(bench);
    let text = report.text();
    say!("{text}");
    if let Some(output) = &options.output {
        write_output(output, "report.txt", &text)?;
        write_output(output, "report.json", &report.json().to_string())?;
        write_output(output, "report.svg", &svg::panels(&report.panels()))?;
        say!("written to {}: report.txt, report.json, report.svg\n", output.display());
    }
    ended
}

fn max_connections(targets: &[Target]) -> u32 {
    let mut programs = targets.iter().filter_map(|target| target.program.as_ref());
    if programs.any(PoolerProgram::is_pgpool) { MAX_CONNECTIONS_PGPOOL } else { MAX_CONNECTIONS }
}

/// Runs every workload. What was measured is kept, whatever ended it: Ctrl-C, or a run that failed.
fn measure_all(bench: &mut Bench<'_>, targets: &[Target]) -> (Vec<Results>, Result<(), BenchError>) {
    let mut all = Vec::new();
    for workload in workload::all(bench.options) {
        if !bench.options.wants(workload.key) {
            continue;
        }
        let mut results = Results::new(workload, targets.len());
        let outcome = bench.measure(targets, &mut results);
        if results.has_samples() {
            all.push(results);
        }
        if outcome.is_err() {
            return (all, outcome);
        }
    }
    (all, Ok(()))
}

/// Direct, pgweir, PgBouncer where it is installed (or can be), and what the user named.
fn targets(
    options: &Options,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Vec<Target>, BenchError> {
    let named = |name: &str| options.poolers.iter().any(|pooler| pooler.name == name);
    let mut poolers = Vec::new();
    if !named("pgweir") {
        poolers.push(PoolerProgram::own()?);
    }
    if !named("pgbouncer") {
        progress.phase("looking for PgBouncer");
        let path = find_pgbouncer(options, interrupt, &mut |what| progress.detail(what))?;
        progress.done(
            path.as_ref().map_or("not installed, left out (Debian: apt install pgbouncer)", |_| "found"),
        );
        poolers.extend(path.map(|path| PoolerProgram { name: "pgbouncer".to_owned(), path }));
    }
    poolers.extend(options.poolers.iter().cloned());
    poolers.sort_by_key(|pooler| pooler.name != "pgweir");
    let mut targets = vec![Target::direct()];
    targets.extend(poolers.into_iter().map(Target::pooler));
    Ok(targets)
}

fn find_pgbouncer(
    options: &Options,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<Option<std::path::PathBuf>, BenchError> {
    if let Some(path) = find_program("pgbouncer") {
        return Ok(Some(path));
    }
    if options.install {
        install::packages(&["pgbouncer"], "PgBouncer cannot be installed from here", interrupt, say)?;
    }
    Ok(find_program("pgbouncer"))
}
