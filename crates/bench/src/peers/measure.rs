//! Runs one load against every target, round by round.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::idle;
use crate::peers::options::Options;
use crate::peers::report::Results;
use crate::peers::syscalls::SyscallCounter;
use crate::peers::workload::{COPY_ROW_BYTES, Kind, Metric, Workload};
use crate::pgbench::{Load, Outcome, Pgbench, Protocol};
use crate::processes::interrupt::Interrupt;
use crate::processes::process;
use crate::processes::sampler::{ConnectionCounter, CpuMark};
use crate::processes::scratch::Scratch;
use crate::relay::Relay;
use crate::report::progress::Progress;
use crate::report::stats::short;
use crate::servers::cluster::{Cluster, DATABASE, USER};
use crate::servers::pooler::{Pooler, PoolerOptions, PoolerProgram};
use pgweir_client::{Address, Login};

/// Before the first round every target runs for this long, unmeasured: caches fill and pools open.
const WARM_UP_S: u32 = 1;
const COPY_LIMIT: Duration = Duration::from_secs(300);

/// What a load goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Name in tables.
    pub(super) name: String,
    /// `None` is a direct connection.
    pub(super) program: Option<PoolerProgram>,
}

impl Target {
    pub(super) fn direct() -> Self {
        Self { name: "direct".to_owned(), program: None }
    }

    pub(super) fn pooler(program: PoolerProgram) -> Self {
        Self { name: program.name.clone(), program: Some(program) }
    }

    /// Why this load cannot go through this target, if so.
    fn refusal(&self, workload: &Workload) -> Option<&'static str> {
        match (&self.program, workload.kind) {
            (None, Kind::Idle { .. } | Kind::Syscalls(_)) => Some("is about the pooler only"),
            (Some(program), Kind::Idle { .. } | Kind::Syscalls(_)) if program.is_pgpool() => {
                Some("it has a process for each client, and one process is looked at")
            }
            (Some(program), Kind::Pgbench(Load { protocol: Protocol::Prepared, .. }))
                if !program.has_prepared_statements() =>
            {
                Some("this version has no prepared statements in transaction pooling")
            }
            _ => None,
        }
    }
}

/// The throw-away cluster and what measures on it. The fields go in this order: server before files.
pub(super) struct Bench<'a> {
    pub(super) cluster: Cluster,
    /// The network between, if one was asked for.
    pub(super) relay: Option<Relay>,
    pub(super) pgbench: Pgbench,
    pub(super) psql: PathBuf,
    pub(super) options: &'a Options,
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: Progress,
    pub(super) scratch: Scratch,
}

/// A target that is ready for a load.
struct Ready {
    /// Place in the list of targets.
    index: usize,
    name: String,
    pooler: Option<Pooler>,
    address: Address,
}

impl Ready {
    fn pid(&self) -> Option<u32> {
        self.pooler.as_ref().map(Pooler::id)
    }
}

/// Values of one run.
type Sample = Vec<(Metric, f64)>;

impl Bench<'_> {
    /// Runs a load in all rounds. A target that fails is left out from then on, with its reason in the results.
    pub(super) fn measure(&mut self, targets: &[Target], results: &mut Results) -> Result<(), BenchError> {
        let workload = results.workload.clone();
        if matches!(workload.kind, Kind::Syscalls(_)) && !SyscallCounter::works(self.interrupt) {
            self.progress.phase(workload.key);
            self.progress.done("left out: perf cannot count system calls here");
            return Ok(());
        }
        let mut ready = Vec::new();
        for (index, target) in targets.iter().enumerate() {
            match target.refusal(&workload) {
                Some(reason) => results.leave_out(index, reason),
                None => ready.push(self.prepare(index, target, &workload)?),
            }
        }
        for round in 1..=self.options.rounds {
            for target in &mut ready {
                if results.is_left_out(target.index) {
                    continue;
                }
                self.progress.phase(&format!("{}, round {round}, {}", workload.key, target.name));
                match self.run_once(&workload, target) {
                    Ok(sample) => {
                        self.progress.done(&headline(&sample));
                        results.add(target.index, sample);
                    }
                    Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                    Err(error) => {
                        self.progress.done(&format!("failed: {error}"));
                        self.cluster.check_after_failure(self.interrupt)?;
                        results.leave_out(target.index, &error.to_string());
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts a target's pooler with the load's settings, and warms it up.
    fn prepare(&mut self, index: usize, target: &Target, workload: &Workload) -> Result<Ready, BenchError> {
        self.progress.phase(&format!("{}, preparing {}", workload.key, target.name));
        let pooler = match &target.program {
            None => None,
            Some(program) => Some(self.start_pooler(program, workload)?),
        };
        let address = pooler.as_ref().map_or_else(|| self.server().address, Pooler::address);
        if let Kind::Pgbench(load) | Kind::Syscalls(load) = workload.kind {
            let warm_up = Load { seconds: WARM_UP_S, ..load };
            // A failure will show again, and be reported, in the first round.
            let warmed = self.pgbench.run(&warm_up, &target.name, &address, self.interrupt, &mut |_, _| {});
            if matches!(warmed, Err(BenchError::Interrupted)) {
                return Err(BenchError::Interrupted);
            }
        }
        Ok(Ready { index, name: target.name.clone(), pooler, address })
    }

    /// How the server is reached: through the network between, if there is one.
    fn server(&self) -> Login {
        let login = self.cluster.login();
        match &self.relay {
            Some(relay) => Login { address: Address::Loopback(relay.port()), ..login },
            None => login,
        }
    }

    fn start_pooler(&self, program: &PoolerProgram, workload: &Workload) -> Result<Pooler, BenchError> {
        let clients = match workload.kind {
            Kind::Idle { clients } => clients,
            Kind::Pgbench(load) | Kind::Syscalls(load) => load.clients,
            Kind::CopyOut { .. } => 1,
        };
        let options = PoolerOptions {
            pool_size: workload.pool_size,
            max_client_conn: clients + 100,
            clients,
            ..PoolerOptions::default()
        };
        Pooler::start(program, &options, &self.server(), &self.scratch, self.interrupt)
    }

    fn run_once(&mut self, workload: &Workload, target: &mut Ready) -> Result<Sample, BenchError> {
        self.cluster.settle(self.interrupt)?;
        let result = match workload.kind {
            Kind::Pgbench(load) => self.run_pgbench(&load, target),
            Kind::Syscalls(load) => self.run_syscalls(&load, target),
            Kind::CopyOut { rows } => self.run_copy(rows, target),
            Kind::Idle { clients } => self.run_idle(clients, workload, target),
        };
        // That the pooler died says more than that a client lost its connection.
        if let (Err(error), Some(pooler)) = (&result, &mut target.pooler)
            && !matches!(error, BenchError::Interrupted)
        {
            pooler.check()?;
        }
        result
    }

    fn run_pgbench(&mut self, load: &Load, target: &Ready) -> Result<Sample, BenchError> {
        let counter = ConnectionCounter::start(&self.cluster, &target.name)?;
        let before = CpuMark::take(target.pid(), self.cluster.postmaster());
        let outcome = self.pgbench_with_progress(load, target);
        let after = CpuMark::take(target.pid(), self.cluster.postmaster());
        let servers = counter.peak();
        let outcome = outcome?;
        let transactions = float(outcome.transactions.max(1));
        let per_transaction = |used_us: Option<f64>| used_us.map(|used_us| used_us / transactions);
        // A rate of 0 would be no measurement if clients were only connecting.
        let has_ended = outcome.transactions + outcome.failed > 0;
        let values = [
            (Metric::Tps, has_ended.then_some(outcome.tps)),
            (Metric::P50Ms, outcome.p50_ms),
            (Metric::P99Ms, outcome.p99_ms),
            (Metric::Failed, has_ended.then(|| float(outcome.failed))),
            (Metric::PoolerUsPerTransaction, per_transaction(before.pooler_us(&after))),
            (Metric::BackendUsPerTransaction, per_transaction(before.backends_us(&after))),
            (Metric::ServerConnections, Some(float(servers))),
        ];
        Ok(known(values))
    }

    fn run_syscalls(&mut self, load: &Load, target: &Ready) -> Result<Sample, BenchError> {
        let pid = target.pid().expect("a direct connection has no pooler and is left out");
        let counter = SyscallCounter::start(pid, &self.scratch)?;
        let outcome = self.pgbench_with_progress(load, target);
        let calls = counter.finish()?;
        let outcome = outcome?;
        let per_transaction = float(calls) / float(outcome.transactions.max(1));
        Ok(vec![(Metric::SyscallsPerTransaction, per_transaction), (Metric::Tps, outcome.tps)])
    }

    fn pgbench_with_progress(&mut self, load: &Load, target: &Ready) -> Result<Outcome, BenchError> {
        let progress = &mut self.progress;
        let seconds = f64::from(load.seconds);
        self.pgbench.run(load, &target.name, &target.address, self.interrupt, &mut |elapsed, tps| {
            progress.detail(&format!("{:.0} s left, {tps:.0} TPS", (seconds - elapsed).max(0.0)));
        })
    }

    fn run_copy(&mut self, rows: u32, target: &Ready) -> Result<Sample, BenchError> {
        let width = COPY_ROW_BYTES - 1;
        let sql = format!("COPY (SELECT repeat('x', {width}) FROM generate_series(1, {rows})) TO STDOUT");
        let (host, port) = target.address.host_and_port();
        let mut command = Command::new(&self.psql);
        command.args([
            "--no-psqlrc",
            "--host",
            &host,
            "--port",
            &port,
            "--username",
            USER,
            "--command",
            &sql,
            DATABASE,
        ]);
        let gigabytes = f64::from(rows) * f64::from(COPY_ROW_BYTES) / 1e9;
        let before = CpuMark::take(target.pid(), self.cluster.postmaster());
        let begin = Instant::now();
        self.discard_output(command)?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = CpuMark::take(target.pid(), self.cluster.postmaster());
        let ms_per_gigabyte = |used_us: Option<f64>| used_us.map(|used_us| used_us / 1000.0 / gigabytes);
        Ok(known([
            (Metric::MegabytesPerSecond, Some(gigabytes * 1000.0 / seconds)),
            (Metric::PoolerMsPerGigabyte, ms_per_gigabyte(before.pooler_us(&after))),
            (Metric::BackendMsPerGigabyte, ms_per_gigabyte(before.backends_us(&after))),
        ]))
    }

    /// Runs psql with its output into `/dev/null`: a pipe to us would be one more thing that is measured.
    fn discard_output(&self, mut command: Command) -> Result<(), BenchError> {
        let said = self.scratch.path().join("psql.err");
        command.stdout(Stdio::null()).stderr(process::log_file(&said)?);
        let mut psql = process::Process::spawn(&mut command, "psql", process::STOP_PLAIN)?;
        let until = Instant::now() + COPY_LIMIT;
        let status = loop {
            if let Some(status) = psql.ended() {
                break status;
            }
            if Instant::now() >= until {
                return Err(BenchError::failed(
                    format!("COPY did not end within {} s", COPY_LIMIT.as_secs()),
                    "",
                ));
            }
            self.interrupt.sleep(Duration::from_millis(1))?;
        };
        if status.success() {
            return Ok(());
        }
        Err(BenchError::failed("psql failed", &std::fs::read_to_string(said).unwrap_or_default()))
    }

    /// Memory is weighed on a pooler that has just started: what other workloads left in it would be shared out.
    fn run_idle(
        &mut self,
        clients: u32,
        workload: &Workload,
        target: &mut Ready,
    ) -> Result<Sample, BenchError> {
        let old = target.pooler.take().expect("a direct connection has no pooler and is left out");
        let program = old.program().clone();
        drop(old);
        let pooler = self.start_pooler(&program, workload)?;
        let (address, pid) = (pooler.address(), pooler.id());
        target.pooler = Some(pooler);
        let progress = &mut self.progress;
        let cost =
            idle::weigh(clients, &address, pid, self.interrupt, &mut |how_far| progress.detail(how_far))?;
        Ok(vec![
            (Metric::FreshClientBytes, cost.fresh_bytes),
            (Metric::UsedClientBytes, cost.used_bytes),
            (Metric::UsedClientRssBytes, cost.used_rss_bytes),
        ])
    }
}

fn known<const N: usize>(values: [(Metric, Option<f64>); N]) -> Sample {
    values.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect()
}

/// The first two values, for the progress line.
fn headline(sample: &Sample) -> String {
    let text = |(metric, value): &(Metric, f64)| format!("{} {}", metric.label(), short(*value));
    sample.iter().take(2).map(text).collect::<Vec<_>>().join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}
