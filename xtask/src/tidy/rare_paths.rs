//! Each rare path of core that is named is taken somewhere: a name without a place would be missed in every run, and a run could not say why.

use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

const CORE: &str = "crates/core/src";
/// The table of the names.
const TABLE: &str = "crates/core/src/stats/rare_path.rs";

/// Names of the table that no other file of core mentions.
pub(super) fn problems(sources: &[(PathBuf, Source)]) -> Vec<Problem> {
    let table = sources.iter().find(|(path, _)| path == Path::new(TABLE));
    let Some((path, table)) = table else { return Vec::new() };
    let places = sources.iter().filter(|(path, _)| path.starts_with(CORE) && path != Path::new(TABLE));
    let lines: Vec<&str> =
        places.flat_map(|(_, source)| source.lines_without_tests().map(|(_, line)| line)).collect();
    let names = table.lines().filter_map(|(number, line)| Some((number, name(line)?)));
    names
        .filter(|(_, name)| {
            let word = format!("RarePath::{name}");
            !lines.iter().any(|line| super::source::has_word(line, &word))
        })
        .map(|(number, name)| Problem::new(path, number, format!("no place takes RarePath::{name}")))
        .collect()
}

/// The name that a row of the table begins with: `LedgerFull: Seeds, "..";`.
fn name(line: &str) -> Option<&str> {
    let (name, rest) = line.trim_start().split_once(": ")?;
    let is_row = ["Seeds,", "ClusterSeeds,", "CacheSeeds,", "Conversations,"]
        .iter()
        .any(|reach| rest.starts_with(reach));
    is_row.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_place_is_found() {
        let table =
            Source::new("rare_paths! {\n    Taken: Seeds, \"a\";\n    Missed: ClusterSeeds, \"b\";\n}\n");
        let place = Source::new("fn f() { cx.driver.reached(RarePath::Taken); }\n");
        let sources = [(PathBuf::from(TABLE), table), (Path::new(CORE).join("pool/a.rs"), place)];
        let found: Vec<String> = problems(&sources).into_iter().map(|problem| problem.text).collect();
        assert_eq!(found, ["no place takes RarePath::Missed"]);
    }
}
