//! `pgweir bench load`: a load of one's own making, from our generator, directly and through poolers in interleaved rounds.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::*;
use serde_json::{Map, Value, json};

use super::options::{Target, TargetKind, peer};
use crate::error::BenchError;
use crate::load::{self, Latency, Mix, Outcome, Pace, Plan, Protocol};
use crate::processes::interrupt::Interrupt;
use crate::processes::machine;
use crate::processes::sampler::CpuMark;
use crate::processes::scratch::{RunAs, Scratch, prepare_output, write_output};
use crate::processes::tools::{self, find_program};
use crate::report::progress::{Progress, say};
use crate::report::stats::{made, median, short};
use crate::report::table::Table;
use crate::servers::cluster::{Cluster, ClusterOptions, Entry};
use crate::servers::pooler::{Pooler, PoolerOptions, PoolerProgram};
use pgweir_client::Login;
use pgweir_client::parse_url;

const HELP: &str = "\
usage: pgweir bench load [options]

A load from pgweir's own generator, directly and through poolers, in interleaved rounds, on a throw-away
PostgreSQL; or with --postgres on any server or pooler. With --rate the load is an open loop: transactions begin
at that rate whatever the server does, and latency counts from when each was to begin, so that what waits is not
forgotten (no coordinated omission).

options:
  --clients N       clients (default 50)
  --idle-clients N  further clients that log in and do nothing (default 0)
  --rate N          transactions a second (default: a closed loop, as fast as answers come)
  --burst N         with --rate: so many come at the same moment (default 1)
  --think-ms N      without --rate: clients wait so long between transactions, on average (default 0)
  --mix FILE        what is sent; default is pgbench's SELECT by key. A file has [name weight] lines and below each
                    its statements, a line each; {1..100} is a random number
  --statement SQL   one statement in place of a mix
  --protocol NAME   simple, extended or prepared (default simple)
  --reconnect       a new connection for each transaction
  --tls             encrypted connections, with --postgres (certificates are not checked)
  --threads N       threads of the generator (default 1)
  --seconds N       length of one run (default 10)
  --rounds N        interleaved rounds (default 3)
  --pool N          default_pool_size of the poolers (default 20)
  --scale N         pgbench's scale (default 10)
  --peer NAME       another pooler: pgbouncer, NAME=/path (default: pgbouncer where installed)
  --no-peer         do not look for PgBouncer
  --postgres URL    only this server or pooler; nothing is initialised there
  --output DIR      write load.json there
  -h, --help        this text
";

const MAX_CONNECTIONS: u32 = 100;
const SHARED_BUFFERS_MB: u32 = 256;
const NEEDED_MB: u64 = 1000;

struct Options {
    plan: Plan,
    rounds: u32,
    pool: u32,
    scale: u32,
    postgres: bool,
    targets: Vec<Target>,
    output: Option<PathBuf>,
}

/// A run's outcome, with the CPU time it cost.
struct Sample {
    outcome: Outcome,
    pooler_us: Option<f64>,
    postgres_us: Option<f64>,
}

/// Runs the load; see [`crate::bench`].
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let Some(options) = parse(args)? else {
        say!("{HELP}");
        return Ok(());
    };
    if let Some(output) = &options.output {
        prepare_output(output)?;
    }
    let interrupt = Interrupt::install()?;
    machine::raise_file_limit((options.plan.clients + options.plan.idle_clients) * 2)?;
    let mut progress = Progress::new();
    let mut all: Vec<(String, Vec<Sample>)> = Vec::new();
    let ended = if options.postgres {
        on_server(&options, &interrupt, &mut progress, &mut all)
    } else {
        on_throw_away(&options, &interrupt, &mut progress, &mut all)
    };
    drop(progress);
    all.retain(|(_, samples)| !samples.is_empty());
    if !all.is_empty() {
        say!("{}", text(&options, &all));
        if let Some(output) = &options.output {
            write(output, &json(&options, &all))?;
        }
    } else if let Some(output) = &options.output {
        // Only removed if nothing is in it.
        let _ = std::fs::remove_dir(output);
    }
    ended.and_then(|()| succeeded(&all))
}

/// A script is not to take for a measurement what measured how fast errors are.
fn succeeded(all: &[(String, Vec<Sample>)]) -> Result<(), BenchError> {
    if all.is_empty() {
        return Err(BenchError::failed("the load", "no client was let in"));
    }
    for (name, samples) in all {
        let sum =
            |count: fn(&Outcome) -> u64| samples.iter().map(|sample| count(&sample.outcome)).sum::<u64>();
        if sum(|outcome| outcome.done) == 0 && sum(|outcome| outcome.failed) > 0 {
            let errors = samples.iter().flat_map(|sample| &sample.outcome.errors);
            let most = errors.max_by_key(|(_, count)| **count).map_or("", |(text, _)| text);
            return Err(BenchError::failed(format!("{name}: every transaction failed"), most));
        }
    }
    Ok(())
}

fn parse(args: Vec<OsString>) -> Result<Option<Options>, BenchError> {
    let (mut clients, mut idle_clients, mut threads, mut seconds, mut rounds) = (50, 0, 1, 10, 3);
    let (mut pool, mut scale, mut burst, mut think_ms, mut rate) = (20, 10, 1, 0, None);
    let (mut mix, mut protocol, mut reconnect, mut tls) = (None, Protocol::Simple, false, false);
    let (mut peers, mut no_peer, mut login, mut output) = (Vec::new(), false, None, None);
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("clients") => clients = within(parser.value()?.parse()?, 1, 60_000)?,
            Long("idle-clients") => idle_clients = within(parser.value()?.parse()?, 0, 60_000)?,
            Long("threads") => threads = within(parser.value()?.parse()?, 1, 256)?,
            Long("seconds") => seconds = within(parser.value()?.parse()?, 1, 86_400)?,
            Long("rounds") => rounds = within(parser.value()?.parse()?, 1, 1000)?,
            Long("pool") => pool = within(parser.value()?.parse()?, 1, MAX_CONNECTIONS - 10)?,
            Long("scale") => scale = within(parser.value()?.parse()?, 1, 1000)?,
            Long("burst") => burst = within(parser.value()?.parse()?, 1, 100_000)?,
            Long("think-ms") => think_ms = within(parser.value()?.parse()?, 0, 3_600_000)?,
            Long("rate") => rate = Some(within(parser.value()?.parse()?, 1, 10_000_000)?),
            Long("mix") => mix = Some(read_mix(Path::new(&parser.value()?))?),
            Long("statement") => mix = Some(Mix::single(&parser.value()?.string()?)?),
            Long("protocol") => {
                let name = parser.value()?.string()?;
                protocol = Protocol::by_name(&name).ok_or_else(|| {
                    BenchError::Usage("--protocol takes simple, extended or prepared".to_owned())
                })?;
            }
            Long("reconnect") => reconnect = true,
            Long("tls") => tls = true,
            Long("peer") => peers.push(peer(&parser.value()?.string()?)?),
            Long("no-peer") => no_peer = true,
            Long("postgres") => login = Some(parse_url(&parser.value()?.string()?, "pgweir-bench")?),
            Long("output") => output = Some(parser.value()?.into()),
            _ => return Err(arg.unexpected().into()),
        }
    }
    if tls && login.is_none() {
        return Err(BenchError::Usage(
            "--tls needs --postgres: the throw-away server has no certificate".to_owned(),
        ));
    }
    let pace = match rate {
        Some(rate) => Pace::Open { rate: f64::from(rate), burst },
        None => Pace::Closed { think: Duration::from_millis(think_ms.into()) },
    };
    let postgres = login.is_some();
    let plan = Plan {
        // Without --postgres each target brings its own.
        login: login.unwrap_or_else(|| Login::trusted(pgweir_client::Address::Loopback(0), "", "", "")),
        tls,
        mix: mix.unwrap_or_else(|| Mix::select_only(scale)),
        protocol,
        clients,
        idle_clients,
        pace,
        reconnect,
        threads,
        duration: Duration::from_secs(seconds.into()),
    };
    let targets = if postgres { Vec::new() } else { targets(peers, no_peer)? };
    Ok(Some(Options { plan, rounds, pool, scale, postgres, targets, output }))
}

fn targets(mut peers: Vec<Target>, no_peer: bool) -> Result<Vec<Target>, BenchError> {
    if peers.is_empty() && !no_peer && find_program("pgbouncer").is_some() {
        peers.push(peer("pgbouncer")?);
    }
    if peers.iter().any(|peer| matches!(peer.kind, TargetKind::Running(_))) {
        return Err(BenchError::Usage(
            "--peer with a URL: use --postgres with it, in a separate run".to_owned(),
        ));
    }
    let mut targets = vec![
        Target { name: "direct".to_owned(), kind: TargetKind::Direct },
        Target { name: "pgweir".to_owned(), kind: TargetKind::Program(PoolerProgram::own()?) },
    ];
    targets.extend(peers);
    Ok(targets)
}

fn within(value: u32, least: u32, most: u32) -> Result<u32, BenchError> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(BenchError::Usage(format!("{value} is not within {least} to {most}")))
}

fn read_mix(path: &Path) -> Result<Mix, BenchError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| BenchError::Usage(format!("--mix: {} cannot be read: {error}", path.display())))?;
    Mix::parse(&text)
}

fn on_server(
    options: &Options,
    interrupt: &Interrupt,
    progress: &mut Progress,
    all: &mut Vec<(String, Vec<Sample>)>,
) -> Result<(), BenchError> {
    all.push(("server".to_owned(), Vec::new()));
    for round in 1..=options.rounds {
        progress.phase(&format!("round {round}"));
        let outcome = make(&options.plan, interrupt, progress)?;
        all[0].1.push(Sample { outcome, pooler_us: None, postgres_us: None });
        interrupt.check()?;
    }
    Ok(())
}

fn on_throw_away(
    options: &Options,
    interrupt: &Interrupt,
    progress: &mut Progress,
    all: &mut Vec<(String, Vec<Sample>)>,
) -> Result<(), BenchError> {
    let tools = tools::find_or_install(interrupt, &mut |what| progress.detail(what))?;
    let scratch = Scratch::create(RunAs::detect()?, NEEDED_MB)?;
    progress.phase("starting a throw-away PostgreSQL and filling its tables");
    let cluster_options = ClusterOptions {
        max_connections: MAX_CONNECTIONS,
        shared_buffers_mb: SHARED_BUFFERS_MB,
        entry: Entry::Trust,
    };
    let mut cluster = Cluster::start(&tools, &scratch, cluster_options, interrupt)?;
    cluster.fill(&tools, options.scale, interrupt, &mut |done| progress.detail(done))?;
    progress.done("");
    all.extend(options.targets.iter().map(|target| (target.name.clone(), Vec::new())));
    for round in 1..=options.rounds {
        for (index, target) in options.targets.iter().enumerate() {
            progress.phase(&format!("round {round}, {}", target.name));
            cluster.settle(interrupt)?;
            let pooler = match &target.kind {
                TargetKind::Program(program) => {
                    let pooler_options = PoolerOptions {
                        pool_size: options.pool,
                        max_client_conn: options.plan.clients + options.plan.idle_clients + 100,
                        clients: options.plan.clients + options.plan.idle_clients,
                        ..PoolerOptions::default()
                    };
                    Some(Pooler::start(program, &pooler_options, &cluster.login(), &scratch, interrupt)?)
                }
                _ => None,
            };
            let login = pooler.as_ref().map_or_else(|| cluster.login(), |pooler| pooler.login().clone());
            let plan = Plan { login, ..options.plan.clone() };
            let pid = pooler.as_ref().map(Pooler::id);
            let before = CpuMark::take(pid, cluster.postmaster());
            let made = make(&plan, interrupt, progress);
            let after = CpuMark::take(pid, cluster.postmaster());
            cluster.check()?;
            match made {
                Ok(outcome) => {
                    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
                    let each = |used: Option<f64>| used.map(|used| used / outcome.done.max(1) as f64);
                    let (pooler_us, postgres_us) =
                        (each(before.pooler_us(&after)), each(before.backends_us(&after)));
                    all[index].1.push(Sample { outcome, pooler_us, postgres_us });
                }
                // That so many do not fit is what is to be seen.
                Err(error) => {
                    progress.done(&error.to_string());
                    cluster.check_after_failure(interrupt)?;
                }
            }
            interrupt.check()?;
        }
    }
    Ok(())
}

fn make(plan: &Plan, interrupt: &Interrupt, progress: &mut Progress) -> Result<Outcome, BenchError> {
    let seconds = plan.duration.as_secs_f64();
    let outcome = load::run(plan, interrupt, &mut |elapsed, tps| {
        progress.detail(&format!("{:.0} s left, {tps:.0} TPS", (seconds - elapsed).max(0.0)));
    })?;
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
    let ended = (outcome.done + outcome.failed) as f64;
    progress.done(&made(outcome.tps(), ended));
    Ok(outcome)
}

fn text(options: &Options, all: &[(String, Vec<Sample>)]) -> String {
    let head = [
        "through",
        "TPS",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "mean ms",
        "failed",
        "refused",
        "unfinished",
        "connect ms",
        "late ms",
        "pooler us/tx",
        "PG us/tx",
    ];
    let mut table = Table::new(&head, 1);
    for (name, samples) in all {
        let row = figures(samples).into_iter().map(|(_, value)| value.map_or_else(|| "-".to_owned(), short));
        table.row(std::iter::once(name.clone()).chain(row).collect());
    }
    let mut text = format!("\n{}", table.render());
    if options.plan.mix.scripts.len() > 1 {
        let mut table = Table::new(&["through", "transaction", "share %", "p50 ms", "p99 ms"], 2);
        for (name, samples) in all {
            for (index, script) in options.plan.mix.scripts.iter().enumerate() {
                let of = |value: &dyn Fn(&Latency) -> Option<f64>| {
                    middle(samples, |sample| value(sample.outcome.by_script.get(index)?))
                };
                #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
                let share = middle(samples, |sample| {
                    let all = sample.outcome.latency.count().max(1) as f64;
                    Some(sample.outcome.by_script.get(index)?.count() as f64 * 100.0 / all)
                });
                let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
                table.row(vec![
                    name.clone(),
                    script.name.clone(),
                    cell(share),
                    cell(of(&|latency| latency.quantile_ms(0.5))),
                    cell(of(&|latency| latency.quantile_ms(0.99))),
                ]);
            }
        }
        text.push_str(&format!("\n{}", table.render()));
    }
    for (name, samples) in all {
        for (error, count) in samples.iter().flat_map(|sample| &sample.outcome.errors) {
            text.push_str(&format!("  {name}: {count} x {error}\n"));
        }
    }
    text
}

fn has_ended(outcome: &Outcome) -> bool {
    outcome.done + outcome.failed > 0
}

/// Medians over the rounds, in the order of the table.
#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
fn figures(samples: &[Sample]) -> Vec<(&'static str, Option<f64>)> {
    let latency = |share: f64| middle(samples, |sample| sample.outcome.latency.quantile_ms(share));
    let count = |value: fn(&Outcome) -> u64| middle(samples, |sample| Some(value(&sample.outcome) as f64));
    vec![
        // A rate of 0 would be no measurement if clients were only connecting.
        ("tps", middle(samples, |sample| has_ended(&sample.outcome).then(|| sample.outcome.tps()))),
        ("latency_p50_ms", latency(0.5)),
        ("latency_p90_ms", latency(0.9)),
        ("latency_p99_ms", latency(0.99)),
        ("latency_p99_9_ms", latency(0.999)),
        ("latency_max_ms", latency(1.0)),
        ("latency_mean_ms", middle(samples, |sample| sample.outcome.latency.mean_ms())),
        (
            "failed",
            middle(samples, |sample| has_ended(&sample.outcome).then_some(sample.outcome.failed as f64)),
        ),
        ("refused", count(|outcome| outcome.refused)),
        ("unfinished", count(|outcome| outcome.unfinished)),
        ("connect_p50_ms", middle(samples, |sample| sample.outcome.connecting.quantile_ms(0.5))),
        ("generator_late_p99_ms", middle(samples, |sample| sample.outcome.lateness.quantile_ms(0.99))),
        ("pooler_cpu_us_per_transaction", middle(samples, |sample| sample.pooler_us)),
        ("postgres_cpu_us_per_transaction", middle(samples, |sample| sample.postgres_us)),
    ]
}

fn middle(samples: &[Sample], value: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
    median(&samples.iter().filter_map(value).collect::<Vec<_>>())
}

fn json(options: &Options, all: &[(String, Vec<Sample>)]) -> Value {
    let object = |samples: &[Sample]| -> Value {
        Value::Object(
            figures(samples).into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect(),
        )
    };
    let targets: Map<String, Value> = all
        .iter()
        .map(|(name, samples)| {
            let rounds: Vec<Value> = samples.chunks(1).map(object).collect();
            (name.clone(), json!({"medians": object(samples), "rounds": rounds}))
        })
        .collect();
    let plan = &options.plan;
    json!({
        "tool": "pgweir bench load",
        "version": pgweir_version::VERSION,
        "clients": plan.clients,
        "idle_clients": plan.idle_clients,
        "seconds": plan.duration.as_secs(),
        "pace": format!("{:?}", plan.pace),
        "protocol": format!("{:?}", plan.protocol),
        "reconnect": plan.reconnect,
        "pool": options.pool,
        "targets": targets,
    })
}

fn write(folder: &Path, report: &Value) -> Result<(), BenchError> {
    write_output(folder, "load.json", &report.to_string())?;
    say!("written to {}: load.json\n", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Option<Options>, BenchError> {
        parse(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn options_are_read() {
        let options = read(&["--rate", "500", "--burst", "5", "--protocol", "prepared", "--no-peer"]);
        let options = options.expect("good").expect("not help");
        assert_eq!(options.plan.pace, Pace::Open { rate: 500.0, burst: 5 });
        assert_eq!((options.plan.protocol, options.targets.len()), (Protocol::Prepared, 2));
        assert!(read(&["--help"]).expect("good").is_none());
    }

    #[test]
    fn wrong_options_are_refused() {
        for words in [
            &["--clients", "0"][..],
            &["--protocol", "odd"],
            &["--mix", "/nonexistent"],
            &["--tls"],
            &["--peer", "x=postgres://u@h/d"],
            &["--statement", ""],
            &["--statement", "[odd"],
            &["--statement", "select {9..1}"],
        ] {
            assert_eq!(read(words).err().expect("not good").exit_code(), 2, "{words:?}");
        }
    }

    #[test]
    fn a_load_in_which_clients_only_connected_has_no_rate() {
        let of = |done, failed| {
            let outcome =
                Outcome { done, failed, elapsed: Duration::from_secs(2), refused: 1, ..Outcome::default() };
            let figures = figures(&[Sample { outcome, pooler_us: None, postgres_us: None }]);
            let value =
                |wanted| figures.iter().find(|(name, _)| *name == wanted).and_then(|(_, value)| *value);
            (value("tps"), value("failed"), value("refused"))
        };
        assert_eq!(of(0, 0), (None, None, Some(1.0)));
        assert_eq!(of(0, 4), (Some(0.0), Some(4.0), Some(1.0)));
        assert_eq!(of(10, 0), (Some(5.0), Some(0.0), Some(1.0)));
    }

    #[test]
    fn a_load_of_errors_is_no_success() {
        let sample = |done, failed, error: &str| {
            let errors = std::iter::once((error.to_owned(), failed)).collect();
            let outcome = Outcome { done, failed, errors, ..Outcome::default() };
            ("pgweir".to_owned(), vec![Sample { outcome, pooler_us: None, postgres_us: None }])
        };
        assert!(succeeded(&[sample(1, 9, "some")]).is_ok());
        assert!(succeeded(&[sample(0, 0, "too slow to be measured")]).is_ok());
        let error = succeeded(&[sample(1, 0, "none"), sample(0, 9, "42601: odd")]).expect_err("no success");
        assert_eq!(error.to_string(), "pgweir: every transaction failed: 42601: odd");
        assert_eq!(error.exit_code(), 1);
        assert_eq!(succeeded(&[]).expect_err("nothing").exit_code(), 1);
    }
}
