//! What the runs of an experiment say together: medians, ratios, and whether they may be believed.

use super::catalog::{Experiment, Step};
use super::conclusion::{DIRECT, conclusion};
use super::monitor::Reading;
use super::run::Run;
use crate::report::stats::{median, short, spread};
use crate::report::table::Table;

/// Rounds that lie further apart than this are not to be concluded from.
const SPREAD_MAX: f64 = 0.15;

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    Tps,
    P50Ms,
    P99Ms,
    ConnectMs,
    Failed,
    PeakConnections,
    PeakSharePercent,
    PeakActive,
    PeakIdle,
    PoolerUs,
    PostgresUs,
}

impl Metric {
    pub(super) const ALL: [Self; 11] = [
        Self::Tps,
        Self::P50Ms,
        Self::P99Ms,
        Self::ConnectMs,
        Self::Failed,
        Self::PeakConnections,
        Self::PeakSharePercent,
        Self::PeakActive,
        Self::PeakIdle,
        Self::PoolerUs,
        Self::PostgresUs,
    ];

    /// Head of a table's column, and the name in JSON.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Tps => ("TPS", "tps"),
            Self::P50Ms => ("p50 ms", "latency_p50_ms"),
            Self::P99Ms => ("p99 ms", "latency_p99_ms"),
            Self::ConnectMs => ("connect ms", "connect_ms"),
            Self::Failed => ("failed", "failed"),
            Self::PeakConnections => ("conns", "server_connections_peak"),
            Self::PeakSharePercent => ("% used", "max_connections_used_percent"),
            Self::PeakActive => ("active", "active_peak"),
            Self::PeakIdle => ("idle", "idle_peak"),
            Self::PoolerUs => ("pooler us/tx", "pooler_cpu_us_per_transaction"),
            Self::PostgresUs => ("PG us/tx", "postgres_cpu_us_per_transaction"),
        }
    }

    /// What it is, for readers who see it for the first time.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Tps => "transactions a second, as pgbench counts them",
            Self::P50Ms => "half of the transactions took at most so many milliseconds",
            Self::P99Ms => "99 of 100 transactions took at most so many milliseconds",
            Self::ConnectMs => "how long a client takes to connect, on average",
            Self::Failed => "transactions that failed",
            Self::PeakConnections => "connections that PostgreSQL had at the same time, at most",
            Self::PeakSharePercent => {
                "the same as a share of max_connections, which is all that PostgreSQL accepts"
            }
            Self::PeakActive => "of these, the largest number that were running a statement",
            Self::PeakIdle => "of these, the largest number that had nothing to do",
            Self::PoolerUs => "CPU time of the pooler for a transaction, microseconds",
            Self::PostgresUs => "CPU time of PostgreSQL for a transaction, microseconds",
        }
    }

    fn has_ratio(self) -> bool {
        matches!(
            self,
            Self::Tps | Self::P50Ms | Self::P99Ms | Self::ConnectMs | Self::PoolerUs | Self::PostgresUs
        )
    }

    fn of(self, run: &Run, max_connections: u32) -> Option<f64> {
        let percentile = |wanted: f64| {
            run.latency_ms.iter().find(|(share, _)| (share - wanted).abs() < 1e-9).map(|(_, value)| *value)
        };
        let peak = |value: fn(&Reading) -> f64| run.readings.iter().map(value).max_by(f64::total_cmp);
        let each_us = |value: fn(&Reading) -> Option<f64>| {
            let used_ms = value(run.readings.last()?)? - value(run.readings.first()?)?;
            (run.transactions > 0.0).then(|| used_ms.max(0.0) * 1000.0 / run.transactions)
        };
        match self {
            Self::Tps => run.tps.filter(|_| has_ended(run)),
            Self::P50Ms => percentile(50.0),
            Self::P99Ms => percentile(99.0),
            Self::ConnectMs => run.connect_ms,
            Self::Failed => run.tps.filter(|_| has_ended(run)).map(|_| run.failed + f64::from(run.aborted)),
            Self::PeakConnections => peak(|reading| reading.connections),
            Self::PeakSharePercent => peak(|reading| reading.connections)
                .map(|peak| peak * 100.0 / f64::from(max_connections.max(1))),
            Self::PeakActive => peak(|reading| reading.active),
            Self::PeakIdle => peak(|reading| reading.idle),
            Self::PoolerUs => each_us(|reading| reading.pooler_cpu_ms),
            Self::PostgresUs => each_us(|reading| reading.postgres_cpu_ms),
        }
    }
}

/// Whether any transaction came to an end. If clients were only connecting, a rate of 0 would be no measurement.
fn has_ended(run: &Run) -> bool {
    run.interrupted || run.transactions + run.failed + f64::from(run.aborted) > 0.0
}

/// What is known about a target.
#[derive(Clone, Debug)]
pub(super) struct TargetFacts {
    pub(super) name: String,
    pub(super) version: String,
}

/// An experiment, as far as it went.
pub(super) struct Results {
    pub(super) experiment: &'static Experiment,
    pub(super) targets: Vec<TargetFacts>,
    pub(super) postgres: String,
    pub(super) max_connections: u32,
    pub(super) scale: u32,
    pub(super) rounds: u32,
    pub(super) quick: bool,
    /// Step, target, and the command as one would type it.
    pub(super) commands: Vec<(usize, usize, String)>,
    pub(super) runs: Vec<Run>,
    /// Targets that ended or failed on the way.
    pub(super) left_out: Vec<(usize, String)>,
    /// Of the machine's time while it ran, what the hypervisor took; and the load average before.
    pub(super) steal: Option<f64>,
    pub(super) load_before: f64,
    pub(super) cpus: usize,
}

impl Results {
    pub(super) fn runs_of(&self, step: usize, target: usize) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.step == step && run.target == target)
    }

    pub(super) fn values(&self, step: usize, target: usize, metric: Metric) -> Vec<f64> {
        let whole = self.runs_of(step, target).filter(|run| !run.interrupted || metric == Metric::Tps);
        whole.filter_map(|run| metric.of(run, self.max_connections)).collect()
    }

    pub(super) fn median(&self, step: usize, target: usize, metric: Metric) -> Option<f64> {
        median(&self.values(step, target, metric))
    }

    /// Why the server or pooler refused clients in this step, if it did.
    pub(super) fn refusal(&self, step: usize, target: usize) -> Option<&str> {
        self.runs_of(step, target).find_map(|run| run.refusal.as_deref())
    }

    /// What any target measured in this step.
    pub(super) fn metrics(&self, step: usize) -> Vec<Metric> {
        let any = |metric: &Metric| {
            (0..self.targets.len()).any(|target| !self.values(step, target, *metric).is_empty())
        };
        Metric::ALL.into_iter().filter(any).collect()
    }

    /// pgweir's medians divided by each other target's: the other poolers' first, which do the same work.
    pub(super) fn ratios(&self, step: usize) -> Vec<(String, Vec<(Metric, f64)>)> {
        let Some(ours) = self.targets.iter().position(|target| target.name == "pgweir") else {
            return Vec::new();
        };
        let against = |other: usize| {
            let ratio = |metric: Metric| {
                let theirs = self.median(step, other, metric).filter(|value| *value > 0.0)?;
                Some((metric, self.median(step, ours, metric)? / theirs))
            };
            let metrics = self.metrics(step).into_iter().filter(|metric| metric.has_ratio());
            (self.targets[other].name.clone(), metrics.filter_map(ratio).collect::<Vec<_>>())
        };
        let mut others: Vec<usize> = (0..self.targets.len()).filter(|index| *index != ours).collect();
        others.sort_by_key(|index| self.targets[*index].name == DIRECT);
        others.into_iter().map(against).filter(|(_, ratios)| !ratios.is_empty()).collect()
    }

    /// The report for the terminal.
    pub(super) fn text(&self) -> String {
        let conclusion = conclusion(std::slice::from_ref(self));
        let mut text = format!("\n{}: {}\n\n{conclusion}\n", self.experiment.key, self.experiment.title);
        for (index, step) in self.experiment.steps.iter().enumerate() {
            if self.runs.iter().any(|run| run.step == index) {
                text.push_str(&format!("\n{}\n{}", step.name, self.table(index).render()));
            }
            for (target, facts) in self.targets.iter().enumerate() {
                if let Some(reason) = self.refusal(index, target) {
                    text.push_str(&format!(
                        "  {}: {}\n",
                        facts.name,
                        self.refusal_text(step, index, target, reason)
                    ));
                }
            }
        }
        for (target, reason) in &self.left_out {
            text.push_str(&format!("  {}: left out, {reason}\n", self.targets[*target].name));
        }
        text.push_str(&format!("\nPublished: {}.\n", self.experiment.published));
        for warning in self.warnings() {
            text.push_str(&format!("Careful: {warning}\n"));
        }
        text
    }

    /// Which clients were refused, and why.
    pub(super) fn refusal_text(&self, step: &Step, index: usize, target: usize, reason: &str) -> String {
        let aborted: u32 = self.runs_of(index, target).map(|run| run.aborted).max().unwrap_or(0);
        let who = if aborted > 0 { format!("{aborted} clients") } else { step.name.to_owned() };
        format!("{who} refused, \"{reason}\"")
    }

    fn table(&self, step: usize) -> Table {
        let metrics = self.metrics(step);
        let mut head = vec!["through"];
        head.extend(metrics.iter().map(|metric| metric.names().0));
        let mut table = Table::new(&head, 1);
        for (target, facts) in self.targets.iter().enumerate() {
            if self.runs_of(step, target).next().is_none() {
                continue;
            }
            let cell =
                |metric: &Metric| self.median(step, target, *metric).map_or_else(|| "-".to_owned(), short);
            table.row(std::iter::once(facts.name.clone()).chain(metrics.iter().map(cell)).collect());
        }
        for (name, ratios) in self.ratios(step) {
            let cell = |metric: &Metric| {
                let ratio = ratios.iter().find(|(found, _)| found == metric);
                ratio.map_or_else(String::new, |(_, ratio)| format!("{ratio:.2}x"))
            };
            table.row(std::iter::once(format!("pgweir / {name}")).chain(metrics.iter().map(cell)).collect());
        }
        table
    }

    /// Reasons not to trust the figures.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (index, step) in self.experiment.steps.iter().enumerate() {
            for (target, facts) in self.targets.iter().enumerate() {
                let far =
                    spread(&self.values(index, target, Metric::Tps)).filter(|spread| *spread > SPREAD_MAX);
                if let Some(spread) = far {
                    let percent = spread * 100.0;
                    let name = &facts.name;
                    warnings.push(format!("{}, {name}: the rounds' TPS lie {percent:.0} % apart", step.name));
                }
            }
        }
        if self.rounds < 2 {
            warnings.push("one round does not tell how far the figures vary".to_owned());
        }
        warnings.extend(super::noise(self.steal, self.load_before, self.cpus));
        if self.runs.iter().any(|run| run.interrupted) {
            warnings.push("interrupted: what was running then is counted until the signal".to_owned());
        }
        warnings
    }

    /// The round of a step whose TPS is nearest to the median: its series stand for the others in charts.
    pub(super) fn typical(&self, step: usize, target: usize) -> Option<&Run> {
        let middle = self.median(step, target, Metric::Tps)?;
        let distance = |run: &&Run| (run.tps.unwrap_or(f64::MAX) - middle).abs();
        self.runs_of(step, target)
            .filter(|run| run.readings.len() > 1)
            .min_by(|left, right| distance(left).total_cmp(&distance(right)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_clients_only_connected_has_no_rate() {
        let connecting = Run { tps: Some(0.0), ..Run::default() };
        assert_eq!((Metric::Tps.of(&connecting, 100), Metric::Failed.of(&connecting, 100)), (None, None));
        let failing = Run { tps: Some(0.0), failed: 3.0, ..Run::default() };
        assert_eq!((Metric::Tps.of(&failing, 100), Metric::Failed.of(&failing, 100)), (Some(0.0), Some(3.0)));
        let good = Run { tps: Some(12.5), transactions: 25.0, ..Run::default() };
        assert_eq!((Metric::Tps.of(&good, 100), Metric::Failed.of(&good, 100)), (Some(12.5), Some(0.0)));
    }
}
