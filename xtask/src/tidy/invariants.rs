//! The invariants of ARCHITECTURE.md and the list of their tests agree: each invariant has a test, and each test that is named exists.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

pub(super) const LIST: &str = "tests/invariant-tests.txt";
/// The beginning of an invariant in ARCHITECTURE.md. The invariant ends with the bold words.
const BEGINNING: &str = "**Invariant: ";

/// Invariants without a test, tests without an invariant, and names of tests that no source has.
pub(super) fn problems(sources: &[(PathBuf, Source)], document: &str, list: &str) -> Vec<Problem> {
    let tests = tests(list);
    let invariants = invariants(document);
    let problem = |line, text| Problem::new(Path::new(LIST), line, text);
    let untested = invariants
        .iter()
        .filter(|invariant| tests.get(*invariant).is_none_or(|(_, tests)| tests.is_empty()))
        .map(|invariant| problem(0, format!("no test is named for the invariant `{invariant}`")));
    let unknown = tests
        .iter()
        .filter(|(words, _)| !invariants.contains(words))
        .map(|(words, (line, _))| problem(*line, format!("ARCHITECTURE.md has no invariant `{words}`")));
    let missing = tests
        .values()
        .flat_map(|(_, tests)| tests)
        .filter(|(_, test)| !exists(sources, test))
        .map(|(line, test)| problem(*line, format!("there is no function {test}")));
    untested.chain(unknown).chain(missing).collect()
}

/// The words of each invariant, on one line.
fn invariants(document: &str) -> Vec<String> {
    let words = document.split(BEGINNING).skip(1).filter_map(|rest| rest.split("**").next());
    words.map(|words| words.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// By the words of an invariant: its line in the list, and its tests with theirs.
type Tests<'a> = BTreeMap<String, (usize, Vec<(usize, &'a str)>)>;

fn tests(list: &str) -> Tests<'_> {
    let mut found = Tests::new();
    let mut last = String::new();
    for (number, line) in (1..).zip(list.lines()) {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        match line.strip_prefix("  ") {
            Some(test) => found.entry(last.clone()).or_default().1.push((number, test)),
            None => {
                last = line.to_owned();
                found.entry(last.clone()).or_default().0 = number;
            }
        }
    }
    found
}

/// Whether a source has this `file::function`.
fn exists(sources: &[(PathBuf, Source)], test: &str) -> bool {
    let Some((file, function)) = test.split_once("::") else { return false };
    let wanted = format!("fn {function}(");
    let source = sources.iter().find(|(path, _)| path == Path::new(file));
    source.is_some_and(|(_, source)| source.lines().any(|(_, line)| line.trim_start().starts_with(&wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "# A\n\n**Invariant: no `pool` sees\nanother.** Text.\n\n**Invariant: calls go down** (here).\n";
    const LIST_OF_BOTH: &str =
        "# Head\n\nno `pool` sees another.\n  a.rs::one\n\ncalls go down\n  a.rs::two\n";

    fn found(list: &str) -> Vec<String> {
        let sources = [(PathBuf::from("a.rs"), Source::new("#[test]\nfn one() {}\n    fn two() {}\n"))];
        problems(&sources, DOCUMENT, list).into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn a_list_that_agrees_has_no_problem() {
        assert!(found(LIST_OF_BOTH).is_empty());
    }

    #[test]
    fn an_invariant_without_a_test_is_found() {
        let list = LIST_OF_BOTH.replace("  a.rs::two\n", "");
        assert_eq!(found(&list), ["no test is named for the invariant `calls go down`"]);
    }

    #[test]
    fn words_that_are_no_invariant_and_tests_that_are_none_are_found() {
        let list = format!("{LIST_OF_BOTH}  a.rs::three\n\nall is well\n  a.rs::one\n");
        let expected = ["ARCHITECTURE.md has no invariant `all is well`", "there is no function a.rs::three"];
        assert_eq!(found(&list), expected);
    }
}
