//! What was measured, as a table with ratios, as JSON, and as bars.

use std::fmt::Write as _;

use crate::peers::measure::Target;
use crate::peers::options::Options;
use crate::peers::workload::{Metric, Workload};
use crate::processes::machine::Machine;
use crate::report::json::Json;
use crate::report::stats::{median, short, spread};
use crate::report::svg::{Bar, Group, Panel};
use crate::report::table::Table;

/// Rounds that lie further apart than this are not to be concluded from.
const SPREAD_MAX: f64 = 0.15;
/// The hypervisor took more than this share of the time: the machine was not ours.
const STEAL_MAX: f64 = 0.02;

/// The rounds of one load.
#[derive(Debug)]
pub(super) struct Results {
    /// The load.
    pub(super) workload: Workload,
    /// By target: what each round gave.
    samples: Vec<Vec<Vec<(Metric, f64)>>>,
    /// By target: why it is missing.
    left_out: Vec<Option<String>>,
}

impl Results {
    pub(super) fn new(workload: Workload, targets: usize) -> Self {
        Self { workload, samples: vec![Vec::new(); targets], left_out: vec![None; targets] }
    }

    pub(super) fn add(&mut self, target: usize, sample: Vec<(Metric, f64)>) {
        self.samples[target].push(sample);
    }

    pub(super) fn leave_out(&mut self, target: usize, reason: &str) {
        self.left_out[target] = Some(reason.to_owned());
    }

    pub(super) fn is_left_out(&self, target: usize) -> bool {
        self.left_out[target].is_some()
    }

    pub(super) fn has_samples(&self) -> bool {
        self.samples.iter().any(|rounds| !rounds.is_empty())
    }

    fn values(&self, target: usize, metric: Metric) -> Vec<f64> {
        let of_round = |sample: &Vec<(Metric, f64)>| {
            sample.iter().find(|(found, _)| *found == metric).map(|(_, value)| *value)
        };
        self.samples[target].iter().filter_map(of_round).collect()
    }

    fn median(&self, target: usize, metric: Metric) -> Option<f64> {
        median(&self.values(target, metric))
    }

    /// Everything that any target measured, in the order of [`Metric`].
    fn metrics(&self) -> Vec<Metric> {
        let mut metrics: Vec<Metric> =
            self.samples.iter().flatten().flatten().map(|(metric, _)| *metric).collect();
        metrics.sort_unstable();
        metrics.dedup();
        metrics
    }
}

/// Everything that goes into the report.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) options: &'a Options,
    pub(super) targets: &'a [Target],
    pub(super) postgres_version: String,
    pub(super) results: Vec<Results>,
    /// The share of time that the hypervisor took.
    pub(super) steal: Option<f64>,
}

impl Report<'_> {
    /// The report for the terminal.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for results in &self.results {
            let _ = write!(
                text,
                "\n{}: {}\n\n{}",
                results.workload.key,
                results.workload.title,
                self.table(results)
            );
            for (target, reason) in self.targets.iter().zip(&results.left_out) {
                if let Some(reason) = reason {
                    let _ = writeln!(text, "  {}: left out, {reason}", target.name);
                }
            }
        }
        let rounds = self.options.rounds;
        let _ = writeln!(
            text,
            "\nMedians of {rounds} interleaved rounds of {} s; {}.",
            self.options.seconds,
            self.setting()
        );
        for warning in self.warnings() {
            let _ = writeln!(text, "Careful: {warning}");
        }
        text
    }

    /// One load: a row for each target, then the ratios of pgweir to each other target.
    fn table(&self, results: &Results) -> String {
        let metrics = results.metrics();
        let mut head = vec!["through"];
        head.extend(metrics.iter().map(|metric| metric.label()));
        let mut table = Table::new(&head, 1);
        for (index, target) in self.targets.iter().enumerate() {
            if results.samples[index].is_empty() {
                continue;
            }
            let cell = |metric: &Metric| results.median(index, *metric).map_or_else(|| "-".to_owned(), short);
            table.row(std::iter::once(target.name.clone()).chain(metrics.iter().map(cell)).collect());
        }
        for (name, ratios) in self.ratios(results) {
            let cell = |metric: &Metric| {
                let ratio = ratios.iter().find(|(found, _)| found == metric);
                ratio.map_or_else(String::new, |(_, ratio)| format!("{ratio:.2}x"))
            };
            table.row(std::iter::once(format!("pgweir / {name}")).chain(metrics.iter().map(cell)).collect());
        }
        table.render()
    }

    /// pgweir's medians divided by those of each other target.
    fn ratios(&self, results: &Results) -> Vec<(String, Vec<(Metric, f64)>)> {
        let Some(ours) = self.targets.iter().position(|target| target.name == "pgweir") else {
            return Vec::new();
        };
        let against = |other: usize| {
            let ratio = |metric: Metric| {
                let theirs = results.median(other, metric).filter(|value| *value != 0.0)?;
                Some((metric, results.median(ours, metric)? / theirs))
            };
            let metrics = results.metrics().into_iter().filter(|metric| metric.has_ratio());
            (self.targets[other].name.clone(), metrics.filter_map(ratio).collect::<Vec<_>>())
        };
        let others = (0..self.targets.len()).filter(|index| *index != ours);
        others.map(against).filter(|(_, ratios)| !ratios.is_empty()).collect()
    }

    fn setting(&self) -> String {
        let Machine { cpu, cpus, kernel, .. } = Machine::look();
        let network = match self.options.round_trip_us {
            0 => String::new(),
            us => format!("{us} us of round trip added before PostgreSQL, "),
        };
        format!("{network}{}, {cpus} CPUs ({cpu}), Linux {kernel}", self.postgres_version)
    }

    /// Reasons not to trust the figures.
    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for results in &self.results {
            for (index, target) in self.targets.iter().enumerate() {
                let far = spread(&results.values(index, Metric::Tps)).filter(|spread| *spread > SPREAD_MAX);
                if let Some(spread) = far {
                    let (key, name) = (results.workload.key, &target.name);
                    warnings.push(format!(
                        "{key} through {name}: the rounds' TPS lie {:.0} % apart",
                        spread * 100.0
                    ));
                }
            }
        }
        if let Some(steal) = self.steal.filter(|steal| *steal > STEAL_MAX) {
            warnings.push(format!("the hypervisor took {:.1} % of the machine's time", steal * 100.0));
        }
        warnings
    }

    /// The report for programs: every round's values, medians and ratios.
    pub(super) fn json(&self) -> Json {
        let machine = Machine::look();
        let machine = Json::Object(vec![
            ("cpu", Json::text(machine.cpu)),
            ("cpus", Json::Number(u32::try_from(machine.cpus).unwrap_or(u32::MAX).into())),
            ("memory_mib", Json::Number(u32::try_from(machine.memory_mib).unwrap_or(u32::MAX).into())),
            ("kernel", Json::text(machine.kernel)),
            ("steal", self.steal.map_or(Json::Null, Json::Number)),
        ]);
        let version = |target: &Target| {
            let version = target
                .program
                .as_ref()
                .map_or_else(|| self.postgres_version.clone(), |program| program.version());
            (target.name.clone(), Json::text(version))
        };
        Json::Object(vec![
            ("experiment", Json::text("peers")),
            ("machine", machine),
            ("versions", Json::Map(self.targets.iter().map(version).collect())),
            ("rounds", self.options.rounds.into()),
            ("seconds", self.options.seconds.into()),
            ("scale", self.options.scale.into()),
            ("added_round_trip_us", self.options.round_trip_us.into()),
            ("warnings", Json::List(self.warnings().into_iter().map(Json::text).collect())),
            (
                "workloads",
                Json::List(self.results.iter().map(|results| self.workload_json(results)).collect()),
            ),
        ])
    }

    fn workload_json(&self, results: &Results) -> Json {
        let metrics = results.metrics();
        let target_json = |(index, target): (usize, &Target)| {
            let metric_json = |metric: &Metric| {
                let values = results.values(index, *metric);
                let middle = median(&values).map_or(Json::Null, Json::Number);
                let rounds = Json::List(values.into_iter().map(Json::Number).collect());
                (metric.key().to_owned(), Json::Object(vec![("median", middle), ("rounds", rounds)]))
            };
            let reason = results.left_out[index].as_ref().map_or(Json::Null, Json::text);
            let fields =
                vec![("left_out", reason), ("metrics", Json::Map(metrics.iter().map(metric_json).collect()))];
            (target.name.clone(), Json::Object(fields))
        };
        let ratio_json = |(name, ratios): (String, Vec<(Metric, f64)>)| {
            let ratios =
                ratios.into_iter().map(|(metric, ratio)| (metric.key().to_owned(), Json::Number(ratio)));
            (name, Json::Map(ratios.collect()))
        };
        Json::Object(vec![
            ("name", Json::text(results.workload.key)),
            ("title", Json::text(results.workload.title)),
            ("pool_size", results.workload.pool_size.into()),
            ("targets", Json::Map(self.targets.iter().enumerate().map(target_json).collect())),
            ("pgweir_divided_by", Json::Map(self.ratios(results).into_iter().map(ratio_json).collect())),
        ])
    }

    /// The report as pictures: throughput, the pooler's CPU, the tail of the latency, memory.
    pub(super) fn panels(&self) -> Vec<Panel> {
        let metrics = [
            Metric::Tps,
            Metric::PoolerUsPerTransaction,
            Metric::P99Ms,
            Metric::SyscallsPerTransaction,
            Metric::MegabytesPerSecond,
            Metric::PoolerMsPerGigabyte,
            Metric::UsedClientBytes,
        ];
        metrics
            .into_iter()
            .map(|metric| self.panel(metric))
            .filter(|panel| !panel.groups.is_empty())
            .collect()
    }

    fn panel(&self, metric: Metric) -> Panel {
        let group = |results: &Results| {
            let bar = |(index, target): (usize, &Target)| {
                Some(Bar { series: index, name: target.name.clone(), value: results.median(index, metric)? })
            };
            let bars = self.targets.iter().enumerate().filter_map(bar).collect();
            Group { name: results.workload.key.to_owned(), bars }
        };
        let groups = self.results.iter().map(group).filter(|group| !group.bars.is_empty()).collect();
        Panel { title: metric.label().to_owned(), groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::workload;
    use crate::servers::pooler::PoolerProgram;

    fn program(name: &str) -> Target {
        Target::pooler(PoolerProgram { name: name.to_owned(), path: "/nonexistent".into() })
    }

    fn report<'a>(options: &'a Options, targets: &'a [Target]) -> Report<'a> {
        let workload = workload::all(options).swap_remove(0);
        let mut results = Results::new(workload, targets.len());
        for (tps, pooler_us) in [(100.0, 20.0), (400.0, 10.0), (110.0, 12.0)] {
            results.add(1, vec![(Metric::Tps, tps), (Metric::PoolerUsPerTransaction, pooler_us)]);
            results.add(2, vec![(Metric::Tps, 55.0), (Metric::PoolerUsPerTransaction, 24.0)]);
        }
        results.leave_out(0, "not today");
        Report {
            options,
            targets,
            postgres_version: "PostgreSQL".to_owned(),
            results: vec![results],
            steal: Some(0.5),
        }
    }

    #[test]
    fn medians_ratios_and_warnings_are_in_the_text() {
        let options = Options::default();
        let targets = [Target::direct(), program("pgweir"), program("pgbouncer")];
        let text = report(&options, &targets).text();
        assert!(text.contains("pgweir                110          12.0"), "{text}");
        assert!(text.contains("pgweir / pgbouncer  2.00x         0.50x"), "{text}");
        assert!(text.contains("direct: left out, not today"), "{text}");
        assert!(text.contains("select-20 through pgweir: the rounds' TPS lie 273 % apart"), "{text}");
        assert!(text.contains("the hypervisor took 50.0 %"), "{text}");
    }

    #[test]
    fn json_has_every_round() {
        let options = Options::default();
        let targets = [Target::direct(), program("pgweir"), program("pgbouncer")];
        let json = report(&options, &targets).json().to_string();
        assert!(json.contains("\"rounds\": [100, 400, 110]"), "{json}");
        assert!(json.contains("\"left_out\": \"not today\""), "{json}");
    }

    #[test]
    fn panels_without_values_are_left_out() {
        let options = Options::default();
        let targets = [Target::direct(), program("pgweir"), program("pgbouncer")];
        let report = report(&options, &targets);
        let titles: Vec<String> = report.panels().into_iter().map(|panel| panel.title).collect();
        assert_eq!(titles, ["TPS", "pooler us/tx"]);
    }
}
