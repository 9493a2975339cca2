//! The tables of states in ARCHITECTURE.md are complete: each variant of the enums of states is in its table, and each name in a table is
//! a variant.

use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

pub(super) const DOCUMENT: &str = "ARCHITECTURE.md";
/// An enum of states: its file, its name, and the first cell of the head of its table.
const TABLES: [(&str, &str, &str); 4] = [
    ("crates/core/src/worker/unpooled/mod.rs", "UnpooledState", "a client in no pool is"),
    ("crates/core/src/pool/client/state.rs", "ClientState", "a client of a pool is"),
    ("crates/core/src/pool/server/state.rs", "ServerState", "a server is"),
    ("crates/core/src/pool/server/state.rs", "ServerTask", "a linked server's task is"),
];

/// The states that only the code or only the document has.
pub(super) fn problems(sources: &[(PathBuf, Source)], document: &str) -> Vec<Problem> {
    TABLES.iter().flat_map(|table| differences(sources, document, table)).collect()
}

fn differences(
    sources: &[(PathBuf, Source)],
    document: &str,
    (file, name, head): &(&str, &str, &str),
) -> Vec<Problem> {
    let source = sources.iter().find(|(path, _)| path == Path::new(file));
    let variants = source.map(|(_, source)| variants(source, name)).unwrap_or_default();
    let states = states(document, head);
    if variants.is_empty() || states.is_empty() {
        let text = format!(
            "there is no enum {name}, or no table `{head}` in {DOCUMENT}: see xtask/src/tidy/states.rs"
        );
        return vec![Problem::new(Path::new(file), 0, text)];
    }
    let is_missing = |(_, variant): &&(usize, &str)| !states.iter().any(|(_, state)| state == variant);
    let missing = variants.iter().filter(is_missing).map(|(line, variant)| {
        let text = format!("{name}::{variant} is not in the table `{head}` of {DOCUMENT}");
        Problem::new(Path::new(file), *line, text)
    });
    let is_unknown = |(_, state): &&(usize, &str)| !variants.iter().any(|(_, variant)| variant == state);
    let unknown = states.iter().filter(is_unknown).map(|(line, state)| {
        Problem::new(Path::new(DOCUMENT), *line, format!("{name} has no state {state}"))
    });
    missing.chain(unknown).collect()
}

/// The variants of an enum, with their lines.
fn variants<'a>(source: &'a Source, name: &str) -> Vec<(usize, &'a str)> {
    let opening = format!("enum {name} {{");
    let inside = source.lines().skip_while(|(_, line)| !line.trim_end().ends_with(&opening)).skip(1);
    let inside = inside.take_while(|(_, line)| !line.starts_with('}'));
    inside.filter_map(|(number, line)| Some((number, variant(line)?))).collect()
}

/// The variant that is declared on this line.
fn variant(line: &str) -> Option<&str> {
    let rest =
        line.strip_prefix("    ").filter(|rest| rest.starts_with(|sign: char| sign.is_ascii_uppercase()))?;
    rest.split(|sign: char| !sign.is_alphanumeric()).next()
}

/// The states in the first column of the table with this head, with their lines. A row may name several states.
fn states<'a>(document: &'a str, head: &str) -> Vec<(usize, &'a str)> {
    let lines = (1..).zip(document.lines());
    let rows = lines.skip_while(|(_, line)| first_cell(line) != Some(head)).skip(2);
    let rows = rows.map_while(|(number, line)| Some((number, first_cell(line)?)));
    rows.flat_map(|(number, cell)| cell.split(", ").map(move |state| (number, state))).collect()
}

fn first_cell(line: &str) -> Option<&str> {
    line.strip_prefix('|')?.split('|').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "# A\n\n| a server is | what |\n|---|---|\n| Dialing, Idle | a |\n| Linked | b |\n\n| Other | c |\n";

    fn found(text: &str) -> Vec<(usize, String)> {
        let sources = [(PathBuf::from(TABLES[2].0), Source::new(text))];
        let problems = differences(&sources, TABLE, &TABLES[2]);
        problems.into_iter().map(|problem| (problem.line, problem.text)).collect()
    }

    #[test]
    fn a_state_that_the_table_lacks_is_found() {
        let text = "pub(crate) enum ServerState {\n    /// A.\n    Dialing(Dial),\n    Idle,\n    Linked {\n        id: u8,\n    },\n    \
                    Asked,\n}\n";
        let expected = "ServerState::Asked is not in the table `a server is` of ARCHITECTURE.md";
        assert_eq!(found(text), [(8, expected.to_owned())]);
    }

    #[test]
    fn a_state_that_the_code_lacks_is_found() {
        let text = "pub(crate) enum ServerState {\n    Dialing(Dial),\n    Idle,\n}\n\nenum Other {\n    Linked,\n}\n";
        assert_eq!(found(text), [(6, "ServerState has no state Linked".to_owned())]);
    }

    #[test]
    fn an_enum_or_a_table_that_is_gone_is_found() {
        assert_eq!(found("pub(crate) enum Renamed {\n    Idle,\n}\n").len(), 1);
        let sources = [(PathBuf::from(TABLES[2].0), Source::new("enum ServerState {\n    Idle,\n}\n"))];
        assert_eq!(differences(&sources, "# No table\n", &TABLES[2]).len(), 1);
    }
}
