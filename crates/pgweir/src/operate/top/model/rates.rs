//! Rates between two readings: differences of totals, divided by the time between them.

use std::collections::HashMap;

use super::reading::{Reading, Row};

/// SHOW STATEMENTS has no more rows than this. In a full list a statement that was not there before may have old totals.
const LIST_FULL: usize = 200;

/// The rates of the whole pooler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Time between the two readings, seconds.
    pub(crate) elapsed_s: f64,
    pub(crate) statements: f64,
    pub(crate) transactions: f64,
    pub(crate) logins: f64,
    pub(crate) bytes_received: f64,
    pub(crate) bytes_sent: f64,
    /// Mean time of a statement, microseconds; `None` if there was none.
    pub(crate) statement_us: Option<f64>,
    /// Average number of clients that waited for a server.
    pub(crate) waiting: f64,
    /// Average number of transactions that were open.
    pub(crate) in_transaction: f64,
}

/// The rates of a statement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StatementRates {
    pub(crate) calls: f64,
    /// Average number of executions at the same time, those that wait for a server included.
    pub(crate) load: f64,
    /// Mean time of an execution, microseconds; `None` if there was none.
    pub(crate) mean_us: Option<f64>,
    /// Part of its time that was waiting for a server.
    pub(crate) wait_share: Option<f64>,
    pub(crate) rows: f64,
    pub(crate) errors: f64,
}

/// The rates between two readings; `None` if the pooler was started again in between, or the readings have the same time.
pub(crate) fn rates(earlier: &Reading, now: &Reading) -> Option<Rates> {
    let elapsed_s = elapsed_s(earlier, now)?;
    let sum = |reading: &Reading, column| reading.stats.iter().map(|row| row.number(column)).sum::<u64>();
    let since = |column| sum(now, column).checked_sub(sum(earlier, column)).map(|number| number as f64);
    let statements = since("total_query_count")?;
    let statement_us = since("total_query_time")?;
    Some(Rates {
        elapsed_s,
        statements: statements / elapsed_s,
        transactions: since("total_xact_count")? / elapsed_s,
        logins: since("total_client_login_count").unwrap_or_default() / elapsed_s,
        bytes_received: since("total_received")? / elapsed_s,
        bytes_sent: since("total_sent")? / elapsed_s,
        statement_us: (statements > 0.0).then(|| statement_us / statements),
        waiting: since("total_wait_time")? / elapsed_s / 1e6,
        in_transaction: since("total_xact_time")? / elapsed_s / 1e6,
    })
}

fn elapsed_s(earlier: &Reading, now: &Reading) -> Option<f64> {
    let elapsed = now.taken.checked_sub(earlier.taken)?;
    (!elapsed.is_zero()).then_some(elapsed.as_secs_f64())
}

/// The place that a statement's numbers are found by: its database, user and text.
pub(crate) fn statement_key(row: &Row) -> String {
    [row.text("database"), row.text("user"), row.text("query")].join("\0")
}

/// The rates of each row of SHOW STATEMENTS, in the order of the rows; `None` if they are not known.
pub(crate) fn statements(earlier: Option<&Reading>, now: &Reading) -> Vec<Option<StatementRates>> {
    let Some((earlier, elapsed_s)) = earlier.and_then(|earlier| Some((earlier, elapsed_s(earlier, now)?)))
    else {
        return vec![None; now.statements.len()];
    };
    let is_full = earlier.statements.len() >= LIST_FULL;
    let (before, after) = (by_key(earlier), by_key(now));
    let of_row = |row: &Row| {
        let key = statement_key(row);
        // Which of two rows with the same text is which cannot be told.
        after.get(&key).copied().flatten()?;
        match before.get(&key) {
            Some(old) => {
                let old = (*old)?;
                // A smaller number: the pooler had forgotten the statement in between, and counts from 0 again.
                let is_same = row.number("calls") >= old.number("calls");
                Some(statement(row, |column| if is_same { old.number(column) } else { 0 }, elapsed_s))
            }
            None if is_full => None,
            None => Some(statement(row, |_| 0, elapsed_s)),
        }
    };
    now.statements.iter().map(of_row).collect()
}

/// The rows of SHOW STATEMENTS by their keys; `None` for a key that several rows have, as long texts are cut.
fn by_key(reading: &Reading) -> HashMap<String, Option<&Row>> {
    let mut found = HashMap::new();
    for row in &reading.statements {
        found.entry(statement_key(row)).and_modify(|other| *other = None).or_insert(Some(row));
    }
    found
}

fn statement(row: &Row, before: impl Fn(&str) -> u64, elapsed_s: f64) -> StatementRates {
    let since = |column: &str| row.number(column).saturating_sub(before(column)) as f64;
    let (calls, total_us) = (since("calls"), since("total_us"));
    StatementRates {
        calls: calls / elapsed_s,
        load: total_us / 1e6 / elapsed_s,
        mean_us: (calls > 0.0).then(|| total_us / calls),
        wait_share: (total_us > 0.0).then(|| since("wait_us") / total_us),
        rows: since("rows") / elapsed_s,
        errors: since("errors") / elapsed_s,
    }
}

/// The reads per second of each row of SHOW NODES, in the order of the rows; `None` if they are not known.
pub(crate) fn reads(earlier: Option<&Reading>, now: &Reading) -> Vec<Option<f64>> {
    let of_row = |row: &Row| {
        let earlier = earlier?;
        let is_same =
            |old: &&Row| old.text("cluster") == row.text("cluster") && old.text("node") == row.text("node");
        let old = earlier.nodes.iter().find(is_same)?;
        let reads = row.number("reads").checked_sub(old.number("reads"))?;
        Some(reads as f64 / elapsed_s(earlier, now)?)
    };
    now.nodes.iter().map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, statements: &[(&str, &str, &str)]) -> Reading {
        let statement = |(query, calls, total_us): &(&str, &str, &str)| {
            Row::of(&[
                ("database", "app"),
                ("user", "u"),
                ("query", query),
                ("calls", calls),
                ("total_us", total_us),
            ])
        };
        Reading {
            taken: Duration::from_secs(seconds),
            statements: statements.iter().map(statement).collect(),
            ..Reading::default()
        }
    }

    fn stats(seconds: u64, count: &str, time: &str) -> Reading {
        let row = |count: &str, time: &str| {
            Row::of(&[
                ("total_query_count", count),
                ("total_query_time", time),
                ("total_xact_count", count),
                ("total_xact_time", time),
                ("total_wait_time", "0"),
                ("total_received", "0"),
                ("total_sent", "0"),
            ])
        };
        Reading {
            taken: Duration::from_secs(seconds),
            stats: vec![row(count, time), row("1", "0")],
            ..Reading::default()
        }
    }

    #[test]
    fn totals_of_all_databases_become_rates() {
        let rates = rates(&stats(10, "100", "5000000"), &stats(12, "300", "6000000")).expect("two readings");
        assert_eq!((rates.elapsed_s, rates.statements, rates.transactions), (2.0, 100.0, 100.0));
        assert_eq!((rates.statement_us, rates.in_transaction), (Some(5000.0), 0.5));
    }

    #[test]
    fn a_pooler_that_was_started_again_has_no_rates_yet() {
        assert_eq!(rates(&stats(10, "100", "0"), &stats(12, "3", "0")), None);
        assert_eq!(rates(&stats(10, "100", "0"), &stats(10, "200", "0")), None);
    }

    #[test]
    fn a_statement_counts_by_its_difference() {
        let earlier = at(0, &[("old", "1000", "9000000"), ("forgotten", "50", "1")]);
        let now =
            at(2, &[("old", "1010", "9500000"), ("forgotten", "4", "2000000"), ("new", "2", "1000000")]);
        let found = statements(Some(&earlier), &now);
        let seen = |place: usize| {
            let rates = found[place].expect("known");
            (rates.calls, rates.load, rates.mean_us)
        };
        assert_eq!(seen(0), (5.0, 0.25, Some(50_000.0)));
        assert_eq!(seen(1), (2.0, 1.0, Some(500_000.0)));
        assert_eq!(seen(2), (1.0, 0.5, Some(500_000.0)));
        assert_eq!(statements(None, &now), [None; 3]);
        let twice = at(2, &[("cut", "1", "1"), ("cut", "9", "9")]);
        assert_eq!(statements(Some(&earlier), &twice), [None; 2]);
    }

    #[test]
    fn a_statement_that_enters_a_full_list_has_no_rate_yet() {
        let texts: Vec<String> = (0..LIST_FULL).map(|number| format!("q{number}")).collect();
        let many: Vec<_> = texts.iter().map(|text| (text.as_str(), "1", "1")).collect();
        assert_eq!(statements(Some(&at(0, &many)), &at(1, &[("new", "5000", "900")])), [None]);
    }

    #[test]
    fn reads_of_nodes_are_differences() {
        let node = |reads| Row::of(&[("cluster", "main"), ("node", "m2"), ("reads", reads)]);
        let earlier = Reading { nodes: vec![node("10")], ..at(0, &[]) };
        let now = Reading { nodes: vec![node("30")], ..at(4, &[]) };
        assert_eq!(reads(Some(&earlier), &now), [Some(5.0)]);
        assert_eq!(reads(None, &now), [None]);
    }
}
