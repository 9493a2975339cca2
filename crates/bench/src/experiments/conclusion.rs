//! What a report says in one sentence: pgweir's transactions beside those of the other poolers first, then of direct connections.

use super::results::{Metric, Results};
use crate::report::stats::spread;

/// Ratios that are this near to 1 are level, however little the rounds vary.
const LEVEL: f64 = 0.03;

/// The name of what goes past all poolers.
pub(super) const DIRECT: &str = "direct";

/// The ratios of one target over all steps.
struct Against {
    name: String,
    lowest: f64,
    highest: f64,
    /// How far the rounds of either lie apart.
    noise: f64,
}

impl Against {
    fn clause(&self) -> String {
        let whose = if self.name == DIRECT { "direct connections" } else { &self.name };
        let level = LEVEL.max(self.noise);
        let (lowest, highest) = (self.lowest, self.highest);
        if (lowest - 1.0).abs() <= level && (highest - 1.0).abs() <= level {
            return format!("about as many transactions as {whose}");
        }
        let times = match (format!("{lowest:.2}"), format!("{highest:.2}")) {
            (low, high) if low == high => low,
            (low, high) => format!("{low} to {high}"),
        };
        format!("{times} times the transactions of {whose}")
    }
}

/// The conclusion of one experiment, or of several.
pub(super) fn conclusion(all: &[Results]) -> String {
    let mut found: Vec<Against> = Vec::new();
    for results in all {
        for step in 0..results.experiment.steps.len() {
            for (name, ratios) in results.ratios(step) {
                let tps = ratios.iter().find(|(metric, _)| *metric == Metric::Tps);
                if let Some((_, ratio)) = tps {
                    note(&mut found, &name, *ratio, noise(results, step, &name));
                }
            }
        }
    }
    found.sort_by_key(|against| against.name == DIRECT);
    let clauses: Vec<String> = found.iter().map(Against::clause).collect();
    let Some((last, others)) = clauses.split_last() else {
        return "There is nothing to compare: pgweir and another target must both have finished a step."
            .to_owned();
    };
    let scope = match all {
        [one] => one.experiment.key.to_owned(),
        _ => format!("{} experiments", all.len()),
    };
    let list = if others.is_empty() { last.clone() } else { format!("{}, and {last}", others.join(", ")) };
    format!("In {scope}, pgweir made {list}.")
}

fn note(found: &mut Vec<Against>, name: &str, ratio: f64, noise: f64) {
    if let Some(known) = found.iter_mut().find(|known| known.name == name) {
        known.lowest = known.lowest.min(ratio);
        known.highest = known.highest.max(ratio);
        known.noise = known.noise.max(noise);
    } else {
        found.push(Against { name: name.to_owned(), lowest: ratio, highest: ratio, noise });
    }
}

fn noise(results: &Results, step: usize, name: &str) -> f64 {
    let targets = results.targets.iter().enumerate();
    let both = targets.filter(|(_, target)| target.name == name || target.name == "pgweir");
    let spreads = both.filter_map(|(target, _)| spread(&results.values(step, target, Metric::Tps)));
    spreads.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn against(name: &str, lowest: f64, highest: f64, noise: f64) -> String {
        Against { name: name.to_owned(), lowest, highest, noise }.clause()
    }

    #[test]
    fn what_differs_by_less_than_the_rounds_do_is_level() {
        assert_eq!(against("old", 0.98, 1.02, 0.0), "about as many transactions as old");
        assert_eq!(against("old", 0.91, 1.02, 0.1), "about as many transactions as old");
        assert_eq!(against(DIRECT, 0.91, 0.91, 0.05), "0.91 times the transactions of direct connections");
        assert_eq!(against("old", 1.02, 2.10, 0.05), "1.02 to 2.10 times the transactions of old");
    }
}
