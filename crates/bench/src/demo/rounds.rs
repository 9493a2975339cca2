//! The runs of the demo, which take turns in rounds: medians over the rounds, their table, and the sentence under it.

use crate::pgbench::{Outcome, Script};
use crate::processes::machine::Business;
use crate::report::stats::{median, short, spread};
use crate::report::table::Table;

/// Rates that differ by less than this share are level, however little the rounds vary.
const LEVEL: f64 = 0.03;

/// The loads, in the order of the table.
pub(super) const SCRIPTS: [Script; 2] = [Script::SelectOnly, Script::TpcB];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Through {
    Direct,
    Pooler,
}

impl Through {
    /// The word of the table, which is also the application_name of the clients.
    pub(super) fn name(self) -> &'static str {
        match self {
            Through::Direct => "direct",
            Through::Pooler => "pgweir",
        }
    }
}

/// One run of a load.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) script: Script,
    pub(super) through: Through,
    pub(super) clients: u32,
    /// The largest number of connections to PostgreSQL.
    pub(super) servers: u64,
    pub(super) outcome: Outcome,
    /// CPU time of the pooler for each transaction, microseconds; `None` without a pooler.
    pub(super) pooler_us: Option<f64>,
}

/// The runs of one load through one way, in all rounds.
struct Runs<'a>(Vec<&'a Run>);

impl<'a> Runs<'a> {
    fn of(runs: &'a [Run], script: Script, through: Through) -> Self {
        Self(runs.iter().filter(|run| run.script == script && run.through == through).collect())
    }

    fn middle(&self, value: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(&self.0.iter().filter_map(|run| value(run)).collect::<Vec<_>>())
    }

    /// Transactions a second in each round in which a transaction ended. A round in which clients only connected has no rate.
    fn rates(&self) -> Vec<f64> {
        self.0.iter().filter(|run| has_ended(&run.outcome)).map(|run| run.outcome.tps).collect()
    }

    fn clients(&self) -> u32 {
        self.0.iter().map(|run| run.clients).max().unwrap_or(0)
    }

    fn servers(&self) -> u64 {
        self.0.iter().map(|run| run.servers).max().unwrap_or(0)
    }

    /// The number of failed transactions of all rounds; `None` if no transaction ended.
    fn failed(&self) -> Option<u64> {
        let has_any = self.0.iter().any(|run| has_ended(&run.outcome));
        has_any.then(|| self.0.iter().map(|run| run.outcome.failed).sum())
    }
}

fn has_ended(outcome: &Outcome) -> bool {
    outcome.transactions + outcome.failed > 0
}

pub(super) fn title_of(script: Script) -> &'static str {
    match script {
        Script::SelectOnly | Script::SelectOne | Script::Hot => "select",
        Script::TpcB => "read and write",
    }
}

/// The table of all runs: medians over the rounds, the sum of failures, the largest number of connections.
pub(super) fn table(runs: &[Run]) -> String {
    let head = [
        "load",
        "through",
        "clients",
        "TPS",
        "p50 ms",
        "p99 ms",
        "failed",
        "server connections",
        "pooler CPU us/tx",
    ];
    let mut table = Table::new(&head, 2);
    for script in SCRIPTS {
        for through in [Through::Direct, Through::Pooler] {
            let of = Runs::of(runs, script, through);
            let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            table.row(vec![
                title_of(script).to_owned(),
                through.name().to_owned(),
                of.clients().to_string(),
                cell(median(&of.rates()).map(|tps| format!("{tps:.0}"))),
                cell(of.middle(|run| run.outcome.p50_ms).map(short)),
                cell(of.middle(|run| run.outcome.p99_ms).map(short)),
                cell(of.failed().map(|failed| failed.to_string())),
                of.servers().to_string(),
                cell(of.middle(|run| run.pooler_us).map(short)),
            ]);
        }
    }
    table.render()
}

/// The sentence under the table: which way was faster, by how much, and how busy the machine was. A warning follows if it was busy.
pub(super) fn sentence(runs: &[Run], business: Option<Business>) -> String {
    let of = |through| SCRIPTS.map(|script| Runs::of(runs, script, through));
    let (pooled, direct) = (of(Through::Pooler), of(Through::Direct));
    let most = |all: &[Runs<'_>]| all.iter().map(Runs::servers).max().unwrap_or(0);
    let outcomes: Vec<String> = SCRIPTS
        .into_iter()
        .zip(pooled.iter().zip(&direct))
        .map(|(script, (pooled, direct))| {
            format!("{} in {}", difference(&pooled.rates(), &direct.rates()), title_of(script))
        })
        .collect();
    let load = business.map(|business| format!("; {}", business.clause())).unwrap_or_default();
    let warning = business.map(Business::warning).unwrap_or_default();
    format!(
        "With {} clients on {} server connections pgweir made, against {} clients that connect directly, {}{load}.{warning}",
        pooled[0].clients(),
        most(&pooled),
        direct[0].clients(),
        outcomes.join(" and "),
    )
}

/// Says what a worker is, and how many of them served the runs.
pub(super) fn workers(number: u32) -> String {
    let workers = if number == 1 { "1 worker".to_owned() } else { format!("{number} workers") };
    format!(
        "pgweir had {workers}: a worker is a thread that serves clients. There is one for each four CPUs, at most eight, unless the setting \
         \"workers\" says otherwise.\n"
    )
}

/// Says by how much the median of `pooled` differs from that of `direct`. Rates that differ by less than their rounds do are level.
fn difference(pooled: &[f64], direct: &[f64]) -> String {
    let (Some(ours), Some(theirs)) = (median(pooled), median(direct).filter(|rate| *rate > 0.0)) else {
        return "no comparison (no transaction ended)".to_owned();
    };
    let noise = [pooled, direct].into_iter().filter_map(spread).fold(LEVEL, f64::max);
    match ours / theirs - 1.0 {
        change if change.abs() <= noise => "about as many transactions a second".to_owned(),
        change if change > 0.0 => format!("{:.0} % more transactions a second", change * 100.0),
        change => format!("{:.0} % fewer transactions a second", -change * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: Script, through: Through, tps: f64, transactions: u64) -> Run {
        let outcome = Outcome { transactions, failed: 0, tps, p50_ms: Some(1.5), p99_ms: None };
        let (clients, servers, pooler_us) = match through {
            Through::Direct => (90, 90, None),
            Through::Pooler => (200, 20, Some(4.0)),
        };
        Run { script, through, clients, servers, outcome, pooler_us }
    }

    /// Three rounds; `direct` is level at 1000.
    fn rounds(select: [f64; 3], write: [f64; 3]) -> Vec<Run> {
        let mut runs = Vec::new();
        for round in 0..3 {
            for (script, rates) in [(Script::SelectOnly, select), (Script::TpcB, write)] {
                runs.push(run(script, Through::Direct, 1000.0, 500));
                runs.push(run(script, Through::Pooler, rates[round], 500));
            }
        }
        runs
    }

    #[test]
    fn the_sentence_agrees_with_the_figures() {
        let runs = rounds([1250.0, 1240.0, 1260.0], [500.0, 500.0, 500.0]);
        assert_eq!(
            sentence(&runs, Some(Business::new(0.1, 1))),
            "With 200 clients on 20 server connections pgweir made, against 90 clients that connect directly, 25 % more transactions a \
             second in select and 50 % fewer transactions a second in read and write; the machine's load was 0.1 on 1 CPU before the runs."
        );
        let busy = sentence(&runs, Some(Business::new(1.7, 2)));
        assert!(
            busy.ends_with(
                "the machine's load was 1.7 on 2 CPUs before the runs. It was busy: run this again when it is idle."
            ),
            "{busy}"
        );
        assert!(sentence(&runs, None).ends_with(" in read and write."));
    }

    #[test]
    fn what_the_rounds_vary_by_is_no_difference() {
        let said = sentence(&rounds([900.0, 1100.0, 1150.0], [1020.0; 3]), None);
        assert_eq!(said.matches("about as many transactions a second in").count(), 2, "{said}");
    }

    #[test]
    fn a_run_in_which_clients_only_connected_has_no_rate() {
        let mut runs = rounds([1250.0; 3], [1000.0; 3]);
        for run in runs.iter_mut().filter(|run| run.script == Script::SelectOnly) {
            run.outcome = Outcome { transactions: 0, failed: 0, tps: 0.0, p50_ms: None, p99_ms: None };
        }
        let table = table(&runs);
        let row = table.lines().find(|line| line.contains("select")).expect("a row of select");
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["select", "direct", "90", "-", "-", "-", "-", "90", "-"]
        );
        let said = sentence(&runs, None);
        assert!(said.contains("no comparison (no transaction ended) in select and about as many"), "{said}");
        // One such round of three does not count.
        let mut runs = rounds([1500.0; 3], [1000.0; 3]);
        runs[1].outcome = Outcome { transactions: 0, failed: 0, tps: 0.0, p50_ms: None, p99_ms: None };
        assert!(sentence(&runs, None).contains("50 % more transactions a second in select"));
    }
}
