//! `pgweir bench saturation | reconnect | storm | overhead | thousand | all`: the experiments that articles show to say why one
//! needs a pooler, on the reader's own machine, in one word.
//!
//! A run is one command against one target; targets take turns round by round, so that whatever else happens on the machine
//! happens to all of them. A pooler is started for its run and stopped after it: its connections must not count for the other poolers.

mod catalog;
mod chart;
pub(crate) mod compare;
mod conclusion;
mod html;
mod json;
pub(crate) mod load;
mod monitor;
mod options;
mod results;
mod run;
mod server;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::machine;
use crate::processes::sampler::MachineCpu;
use crate::processes::scratch::{self, RunAs, Scratch, write_output};
use crate::processes::tools::{self, PostgresTools, find_pgbench};
use crate::report::progress::{Progress, note, say};
use crate::report::stats::made;
use crate::servers::cluster::RESERVED;
use crate::servers::pgpool;
use crate::servers::pooler::{Pooler, PoolerOptions};
use catalog::{ALL, Experiment, Step};
use monitor::{Monitor, Watched};
use options::{Options, Target, TargetKind};
use results::{Results, TargetFacts};
use run::{Run, Runner};
use server::Server;

/// Tables, WAL and logs of the largest experiment, and with `--quick`.
const NEEDED_MB: u64 = 4000;
const NEEDED_QUICK_MB: u64 = 1500;
/// The widest load's clients, and their server's and pooler's sockets.
const FILES: u32 = 6000;
/// The hypervisor took more than this share of the time: the machine was not ours.
const STEAL_MAX: f64 = 0.02;
/// A load average per CPU above this, before anything was started: other programs work here.
const LOAD_MAX: f64 = 0.3;

/// Whether an experiment is called so.
#[must_use]
pub(crate) fn is_known(name: &str) -> bool {
    name == "all" || ALL.iter().any(|experiment| experiment.key == name)
}

/// Names and titles, for help.
pub(crate) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALL.iter().map(|experiment| (experiment.key, experiment.title))
}

/// Why a machine is too noisy to conclude from what was measured on it.
fn noise(steal: Option<f64>, load_before: f64, cpus: usize) -> Vec<String> {
    let mut reasons = Vec::new();
    if let Some(steal) = steal.filter(|steal| *steal > STEAL_MAX) {
        reasons.push(format!("the hypervisor took {:.1} % of the machine's time", steal * 100.0));
    }
    #[expect(clippy::cast_precision_loss, reason = "few CPUs")]
    if load_before > LOAD_MAX * cpus as f64 {
        reasons.push(format!(
            "others were at work: the load average was {load_before:.1} on {cpus} CPUs before"
        ));
    }
    reasons
}

/// What all experiments of a command share.
struct Bench {
    options: Options,
    tools: Option<PostgresTools>,
    pgbench: PathBuf,
    interrupt: Interrupt,
    progress: Progress,
    /// Before the first experiment: load before a later one comes from the previous experiment.
    load_before: f64,
}

/// Runs experiments; see [`crate::bench`].
pub(crate) fn run(experiment: &str, args: Vec<OsString>) -> Result<(), BenchError> {
    let Some(options) = Options::parse(experiment, args)? else {
        say!("{}", options::help());
        return Ok(());
    };
    let interrupt = Interrupt::install()?;
    machine::raise_file_limit(FILES)?;
    let mut progress = Progress::new();
    let tools = match options.postgres {
        Some(_) => None,
        None => Some(tools::find_or_install(&interrupt, &mut |what| progress.detail(what))?),
    };
    let pgbench = tools.as_ref().map_or_else(find_pgbench, |tools| Ok(tools.pgbench.clone()))?;
    let started = timestamp();
    let output = options
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from(format!("pgweir-bench-{experiment}-{started}")));
    // Told before half an hour has gone by, not after.
    scratch::prepare_output(&output)?;
    let load_before = load_average();
    let mut bench = Bench { options, tools, pgbench, interrupt, progress, load_before };
    let mut all = Vec::new();
    let mut ended = Ok(());
    for experiment in bench.options.experiments.clone() {
        ended = bench.experiment(experiment, &mut all);
        if ended.is_err() {
            break;
        }
    }
    drop(bench);
    all.retain(|results| !results.runs.is_empty());
    for results in &all {
        say!("{}", results.text());
    }
    if all.is_empty() {
        // Only removed if nothing is in it.
        let _ = fs::remove_dir(&output);
        return ended;
    }
    write_output(&output, "report.json", &json::report(&all, &started).to_string())?;
    write_output(&output, "report.html", &html::page(&all, &started))?;
    say!("\nwritten to {}: report.html, report.json\n", output.display());
    ended?;
    match all
        .iter()
        .flat_map(|results| results.left_out.iter().map(move |(target, why)| (results, target, why)))
        .next()
    {
        Some((results, target, why)) => {
            Err(BenchError::failed(format!("{} was left out", results.targets[*target].name), why))
        }
        None => Ok(()),
    }
}

impl Bench {
    /// Prepares a server, runs every step in every round, and takes everything down again. What was measured is in `all`
    /// even if this fails.
    fn experiment(
        &mut self,
        experiment: &'static Experiment,
        all: &mut Vec<Results>,
    ) -> Result<(), BenchError> {
        note!("{}: {}", experiment.key, experiment.title);
        let needed_mb = if self.options.quick { NEEDED_QUICK_MB } else { NEEDED_MB };
        let needed_mb = if self.options.postgres.is_some() { 500 } else { needed_mb };
        let scratch = Scratch::create(RunAs::detect()?, needed_mb)?;
        let mut server = Server::prepare(
            experiment,
            &self.options,
            self.tools.as_ref(),
            &self.pgbench,
            &scratch,
            &self.interrupt,
            &mut self.progress,
        )?;
        let steal_from = MachineCpu::now();
        all.push(self.empty_results(experiment, &server));
        let results = all.last_mut().expect("pushed above");
        let ended = self.rounds(experiment, &mut server, &scratch, results);
        results.steal = steal_from.and_then(|from| Some(from.steal_until(MachineCpu::now()?)));
        ended
    }

    fn empty_results(&self, experiment: &'static Experiment, server: &Server) -> Results {
        let postgres = format!("{}.{}", server.version / 10_000, server.version % 10_000);
        let facts = |target: &Target| TargetFacts {
            name: target.name.clone(),
            version: match &target.kind {
                TargetKind::Direct => format!("PostgreSQL {postgres}"),
                TargetKind::Program(program) => program.version(),
                TargetKind::Running(_) => String::new(),
            },
        };
        Results {
            experiment,
            targets: self.options.targets.iter().map(facts).collect(),
            postgres: postgres.clone(),
            max_connections: server.max_connections,
            scale: server.scale,
            rounds: self.options.rounds,
            quick: self.options.quick,
            commands: Vec::new(),
            runs: Vec::new(),
            left_out: Vec::new(),
            steal: None,
            load_before: self.load_before,
            cpus: machine::Machine::look().cpus,
        }
    }

    fn rounds(
        &mut self,
        experiment: &'static Experiment,
        server: &mut Server,
        scratch: &Scratch,
        results: &mut Results,
    ) -> Result<(), BenchError> {
        for round in 1..=self.options.rounds {
            for step in 0..experiment.steps.len() {
                for target in 0..self.options.targets.len() {
                    if results.left_out.iter().any(|(out, _)| *out == target)
                        || !self.is_to_run(experiment, step, target, round)
                    {
                        continue;
                    }
                    self.turn(experiment, server, scratch, results, (step, target, round))?;
                }
            }
        }
        Ok(())
    }

    /// That a server refuses is tried once, and not what would be a repetition of another step through poolers; nor what has
    /// more clients than the server has connections through Pgpool-II, which has one for each.
    fn is_to_run(&self, experiment: &Experiment, step: usize, target: usize, round: u32) -> bool {
        let this = &experiment.steps[step];
        let again = experiment.steps.iter().skip(step + 1).any(|later| later.pooled == this.pooled);
        let needed = this.pooled_clients() + pgpool::SPARE_CHILDREN + RESERVED;
        match (&self.options.targets[target].kind, this.refused_directly) {
            (TargetKind::Program(program), _)
                if needed > experiment.max_connections && program.is_pgpool() =>
            {
                false
            }
            (_, false) => true,
            (TargetKind::Direct, true) => round == 1,
            (_, true) => !again,
        }
    }

    /// One run, with what surrounds it; what goes wrong with a target is noted, what goes wrong with the server ends all.
    fn turn(
        &mut self,
        experiment: &'static Experiment,
        server: &mut Server,
        scratch: &Scratch,
        results: &mut Results,
        (step, target, round): (usize, usize, u32),
    ) -> Result<(), BenchError> {
        let (name, step_name) = (&self.options.targets[target].name, experiment.steps[step].name);
        self.progress.phase(&format!("round {round}, {step_name}, {name}"));
        server.settle(&self.interrupt)?;
        match self.one_run(experiment, server, scratch, results, step, target) {
            Ok(run) => {
                let said = match (run.tps, &run.refusal) {
                    (Some(tps), None) => made(tps, run.transactions + run.failed),
                    (Some(tps), Some(reason)) => format!("{tps:.0} TPS, some refused: \"{reason}\""),
                    (None, reason) => format!("refused: \"{}\"", reason.as_deref().unwrap_or("no summary")),
                };
                self.progress.done(&said);
                results.runs.push(Run { step, target, round, ..run });
                self.interrupt.check()
            }
            Err(BenchError::Interrupted) => Err(BenchError::Interrupted),
            Err(full @ BenchError::DiskFull { .. }) => Err(full),
            Err(error) => {
                self.progress.done(&format!("failed: {error}"));
                server.check_after_failure(&self.interrupt)?;
                results.left_out.push((target, error.to_string()));
                Ok(())
            }
        }
    }

    fn one_run(
        &mut self,
        experiment: &'static Experiment,
        server: &mut Server,
        scratch: &Scratch,
        results: &mut Results,
        step_index: usize,
        target_index: usize,
    ) -> Result<Run, BenchError> {
        let step = &experiment.steps[step_index];
        let target = &self.options.targets[target_index];
        let mut pooler = match &target.kind {
            TargetKind::Program(program) => {
                let is_ours = target.name == "pgweir";
                let options = self.pooler_options(experiment, step, server, is_ours);
                Some(Pooler::start(program, &options, &server.login, scratch, &self.interrupt)?)
            }
            _ => None,
        };
        let login = match (&target.kind, &pooler) {
            (TargetKind::Running(login), _) => pgweir_client::Login {
                search_path: server.login.search_path.clone(),
                ..login.named(&target.name)
            },
            (_, Some(pooler)) => pooler.login().clone(),
            (_, None) => server.login.named("direct"),
        };
        let text = if pooler.is_none() && matches!(target.kind, TargetKind::Direct) {
            step.direct
        } else {
            step.pooled
        };
        let text = step.quick.filter(|_| self.options.quick).unwrap_or(text);
        let seconds = text.contains("{T}").then(|| self.options.run_seconds(experiment, step.seconds));
        let mut arguments = text.replace("{T}", &seconds.unwrap_or(0).to_string());
        if let Some(script) = step.script {
            let path = scratch.path().join("script.sql");
            scratch.write(&path, script)?;
            arguments = arguments.replace("{F}", &path.display().to_string());
        }
        let place = (step_index, target_index);
        if !results.commands.iter().any(|(step, target, _)| (*step, *target) == place) {
            let line = Runner::command_line(&login, &arguments);
            results.commands.push((step_index, target_index, line));
        }
        let watched = Watched {
            watcher: server.watcher.clone(),
            version: server.version,
            postmaster: server.postmaster(),
            console: pooler.as_ref().and_then(Pooler::console).map(|login| login.named("pgweir-tools")),
            pooler: pooler.as_ref().map(Pooler::id),
        };
        let monitor = Monitor::start(&watched)?;
        let runner = Runner { pgbench: &self.pgbench, scratch, interrupt: &self.interrupt };
        let progress = &mut self.progress;
        let outcome = runner.pgbench(&login, &arguments, seconds, &mut |elapsed, tps| {
            let left =
                seconds.map(|seconds| format!("{:.0} s left, ", (f64::from(seconds) - elapsed).max(0.0)));
            progress.detail(&format!("{}{tps:.0} TPS", left.unwrap_or_default()));
        });
        let readings = monitor.finish();
        if let Some(pooler) = &mut pooler {
            pooler.check()?;
        }
        server.check()?;
        Ok(Run { readings, ..outcome? })
    }

    fn pooler_options(
        &self,
        experiment: &Experiment,
        step: &Step,
        server: &Server,
        is_ours: bool,
    ) -> PoolerOptions {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut settings: Vec<(String, String)> = experiment.settings.iter().map(own).collect();
        if is_ours {
            settings.extend(self.options.config.iter().cloned());
        }
        // On a user's server clients prove themselves with the same password, if there is one.
        let entry = match server.is_users() {
            true if server.login.password().is_none() => crate::servers::cluster::Entry::Trust,
            true => crate::servers::cluster::Entry::Scram,
            false => experiment.entry,
        };
        PoolerOptions {
            pool_size: experiment.pool_size,
            max_client_conn: experiment.max_client_conn,
            clients: step.pooled_clients(),
            port: None,
            mode: experiment.mode,
            entry,
            nodes: Vec::new(),
            cache_rules: Vec::new(),
            settings,
        }
    }
}

/// The load average of the last minute.
fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// `20251121T184500Z`.
fn timestamp() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The date so many days after 1970-01-01 (Gregorian; years that begin in March make leap days come last).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_413), (2025, 11, 21));
    }

    #[test]
    fn a_noisy_machine_is_told() {
        assert!(noise(Some(0.01), 0.1, 2).is_empty());
        assert_eq!(noise(Some(0.1), 3.0, 2).len(), 2);
    }

    #[test]
    fn experiments_are_known_by_name() {
        assert!(is_known("all") && is_known("storm") && !is_known("peers"));
    }
}
