//! Findings about the query cache: the statements that would gain most from it, and the reasons that keep it from the others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::finding::{Finding, count, seconds};
use crate::snapshot::{Snapshot, Statement};

/// The number of statements that are named.
const STATEMENTS_SHOWN_MAX: usize = 10;
/// The number of reasons that are named.
const REASONS_SHOWN_MAX: usize = 5;
/// The time at PostgreSQL below which statements are not worth a finding, all together.
const SERVER_MIN_US: u64 = 1_000_000;
/// The number of characters of a statement's text that are shown.
const TEXT_SHOWN_CHARS: usize = 100;

/// Values of the column `cache` of SHOW STATEMENTS for a statement whose answers are kept.
const KEPT: [&str; 2] = ["yes", "yes, by key"];
/// Reasons that say only that the cache is not used for the statement: it would keep the answer otherwise.
const UNUSED: [&str; 3] = ["off", "no rule", "no comment asks for it"];
/// Reasons that do not concern the cache: the statement is no read.
const NO_READS: [&str; 1] = ["not a SELECT"];

/// Returns the statements that would gain most from the query cache, by their time at PostgreSQL.
pub(super) fn gains(snapshot: &Snapshot) -> Vec<Finding> {
    // An answer that was asked for once cannot be given again.
    let gains = |one: &&Statement| UNUSED.contains(&one.cache.as_str()) && one.calls > 1;
    let mut statements: Vec<&Statement> = snapshot.statements.iter().filter(gains).collect();
    if sum_us(&statements) < SERVER_MIN_US {
        return Vec::new();
    }
    statements.sort_by_key(|one| Reverse(one.server_us));
    let all_us: u64 = snapshot.statements.iter().map(|one| one.server_us).sum();
    let find = |one: &Statement| {
        let Statement { database, user, calls, server_us, cache, .. } = one;
        let percent = server_us * 100 / all_us.max(1);
        let text = format!(
            "pool {database}/{user}: the query cache could keep the answers to a statement that took {} at PostgreSQL, \
             {percent} % of all, in {calls} calls: {}",
            seconds(*server_us),
            shown(&one.text)
        );
        let remedy = match cache.as_str() {
            "off" => "set query_cache = on, with a rule in [cache] that matches it",
            _ => "add a rule to [cache] that matches it",
        };
        let remedy = format!(
            "{remedy}, if an answer may be some seconds old; calls with other values need another answer \
             (docs/configure/query-cache.md)"
        );
        Finding::note("cache_gain", text, remedy)
    };
    statements.into_iter().take(STATEMENTS_SHOWN_MAX).map(find).collect()
}

/// Returns what keeps the query cache from statements that read and take much time, by reason.
pub(super) fn obstacles(snapshot: &Snapshot) -> Option<Finding> {
    let mut by_reason: BTreeMap<&str, Vec<&Statement>> = BTreeMap::new();
    for one in &snapshot.statements {
        let cache = one.cache.as_str();
        if !cache.is_empty()
            && !KEPT.contains(&cache)
            && !UNUSED.contains(&cache)
            && !NO_READS.contains(&cache)
        {
            by_reason.entry(cache).or_default().push(one);
        }
    }
    let mut reasons: Vec<(&str, Vec<&Statement>)> = by_reason.into_iter().collect();
    let all_us: u64 = reasons.iter().map(|(_, statements)| sum_us(statements)).sum();
    if all_us < SERVER_MIN_US {
        return None;
    }
    reasons.sort_by_key(|(_, statements)| Reverse(sum_us(statements)));
    let say = |(reason, statements): &(&str, Vec<&Statement>)| {
        let most = statements.iter().max_by_key(|one| one.server_us);
        let most = most.map(|one| shown(&one.text)).unwrap_or_default();
        let number = count(statements.len() as u64, "statement");
        format!("{reason} ({number}, {}; most: {most})", seconds(sum_us(statements)))
    };
    let said: Vec<String> = reasons.iter().take(REASONS_SHOWN_MAX).map(say).collect();
    Some(Finding::note(
        "cache_obstacles",
        format!(
            "the query cache cannot keep the answers to reads that took {} at PostgreSQL: {}",
            seconds(all_us),
            said.join("; ")
        ),
        "see the column cache of SHOW STATEMENTS; docs/configure/query-cache.md says what removes a reason",
    ))
}

fn sum_us(statements: &[&Statement]) -> u64 {
    statements.iter().map(|one| one.server_us).sum()
}

/// Returns the beginning of a statement's text.
fn shown(text: &str) -> String {
    match text.char_indices().nth(TEXT_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(cache: &str, calls: u64, server_us: u64) -> Statement {
        Statement {
            database: "app".into(),
            user: "alice".into(),
            text: format!("select {server_us}"),
            cache: cache.into(),
            calls,
            server_us,
        }
    }

    fn snapshot(statements: Vec<Statement>) -> Snapshot {
        Snapshot { statements, ..Snapshot::default() }
    }

    #[test]
    fn statements_that_would_gain_are_named_by_their_time() {
        let mut statements: Vec<Statement> =
            (1..=12).map(|number| statement("off", 2, number * 100_000)).collect();
        statements.push(statement("no rule", 9, 5_000_000));
        statements.push(statement("off", 1, 90_000_000));
        statements.push(statement("yes", 9, 90_000_000));
        let found = gains(&snapshot(statements));
        assert_eq!(found.len(), 10);
        assert!(found[0].text.contains("took 5.0 s at PostgreSQL, 2 % of all, in 9 calls: select 5000000"));
        assert!(found[0].remedy.starts_with("add a rule to [cache]"), "{}", found[0].remedy);
        assert!(found[1].text.contains("select 1200000"), "{}", found[1].text);
        assert!(found[1].remedy.starts_with("set query_cache = on"), "{}", found[1].remedy);
    }

    #[test]
    fn little_time_is_worth_no_finding() {
        let little = snapshot(vec![
            statement("off", 1_000, 500_000),
            statement("in a transaction", 1_000, 500_000),
            statement("not a SELECT", 1_000, 50_000_000),
        ]);
        assert_eq!((gains(&little), obstacles(&little)), (vec![], None));
    }

    #[test]
    fn reasons_are_told_with_the_statement_that_takes_most() {
        let found = obstacles(&snapshot(vec![
            statement("in a transaction", 3, 2_000_000),
            statement("in a transaction", 3, 3_000_000),
            statement("function f() may change data", 3, 7_000_000),
            statement("off", 3, 9_000_000),
            statement("yes", 3, 9_000_000),
            statement("yes, by key", 3, 9_000_000),
        ]));
        assert_eq!(
            found.expect("there is one").text,
            "the query cache cannot keep the answers to reads that took 12.0 s at PostgreSQL: \
             function f() may change data (1 statement, 7.0 s; most: select 7000000); \
             in a transaction (2 statements, 5.0 s; most: select 3000000)"
        );
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(shown(&"ä".repeat(100)), "ä".repeat(100));
        assert_eq!(shown(&"ä".repeat(101)), format!("{}...", "ä".repeat(100)));
    }
}
