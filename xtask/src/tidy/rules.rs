//! Rules about the shape of files and functions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

/// A Rust file that is longer has more than one idea in it.
pub(super) const FILE_LINES_MAX: usize = 1000;
/// A function that is longer does not fit any screen.
pub(super) const FUNCTION_LINES_MAX: usize = 100;
/// What a function should fit into.
pub(super) const FUNCTION_LINES_GOAL: usize = 70;

/// A folder with more Rust files has more than one subject.
const FOLDER_FILES_MAX: usize = 14;

/// Files that may be longer, with the reason: tables, where splitting would hide the one order that they have.
const TABLES: &[(&str, &str)] = &[];

/// Rules for every text file.
pub(super) fn text(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            problems.push(Problem::new(path, index + 1, "blanks at the end of the line"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        problems.push(Problem::new(path, text.lines().count(), "the last line has no end"));
    }
    problems
}

/// Rules for the folders of a crate's sources: `files` are all files of the workspace.
pub(super) fn folders(files: &[PathBuf]) -> Vec<Problem> {
    let mut counts: BTreeMap<&Path, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let is_source = file.starts_with("crates") && file.iter().nth(2).is_some_and(|part| part == "src");
        if let Some(folder) = file.parent().filter(|_| is_source) {
            *counts.entry(folder).or_default() += 1;
        }
    }
    let full = counts.into_iter().filter(|(_, count)| *count > FOLDER_FILES_MAX);
    let text = |count| format!("{count} Rust files, more than {FOLDER_FILES_MAX}: group them into folders");
    full.map(|(folder, count)| Problem::new(folder, 0, text(count))).collect()
}

/// Rules for Rust files.
pub(super) fn rust(path: &Path, text: &str, source: &Source) -> Vec<Problem> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    let is_table = TABLES.iter().any(|(table, _)| path == Path::new(table));
    if lines > FILE_LINES_MAX && !is_table {
        problems.push(Problem::new(
            path,
            0,
            format!("{lines} lines, more than {FILE_LINES_MAX}: split it by idea"),
        ));
    }
    // `tests.rs` says it all: the tests of the module of that name.
    if !has_head(text) && path.file_name().is_none_or(|name| name != "tests.rs") {
        problems.push(Problem::new(path, 1, "no //! head that says what this file is for"));
    }
    if !path.starts_with("crates/net") {
        let lines = source.lines().filter(|(_, line)| crate::tidy::source::has_word(line, "unsafe"));
        problems.extend(lines.map(|(line, _)| Problem::new(path, line, "unsafe outside of crates/net")));
    }
    let problem = |line| Problem::new(path, line, "no test runs an example in documentation: write ```text");
    problems.extend(examples(text).map(problem));
    problems
}

/// The lines at which examples in documentation begin that could be run: `make test` does not look for them, which takes longer
/// than all unit tests.
fn examples(text: &str) -> impl Iterator<Item = usize> {
    let fences = text.lines().zip(1..).filter_map(|(line, number)| {
        let line = line.trim_start();
        let said = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some((number, said.trim().strip_prefix("```")?))
    });
    fences.step_by(2).filter(|(_, language)| *language != "text").map(|(number, _)| number)
}

/// Whether the first thing in the file, inner attributes aside, is its documentation.
fn has_head(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("#!["));
    first.is_some_and(|line| line.starts_with("//! "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust_problems(path: &str, text: &str) -> Vec<String> {
        rust(Path::new(path), text, &Source::new(text)).into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn heads_are_required() {
        assert!(rust_problems("crates/x/src/a.rs", "#![no_main]\n//! Why.\nfn f() {}\n").is_empty());
        assert_eq!(rust_problems("crates/x/src/a.rs", "// Why.\nfn f() {}\n").len(), 1);
        assert!(rust_problems("crates/x/src/a/tests.rs", "use super::*;\n").is_empty());
    }

    #[test]
    fn unsafe_stands_in_net_only() {
        let text = "//! unsafe in words is fine.\nunsafe fn f() {}\n";
        assert_eq!(rust_problems("crates/core/src/a.rs", text), ["unsafe outside of crates/net"]);
        assert!(rust_problems("crates/net/src/sys.rs", text).is_empty());
    }

    #[test]
    fn long_files_are_named() {
        let text = format!("//! Long.\n{}", "fn f() {}\n".repeat(FILE_LINES_MAX));
        assert_eq!(rust_problems("crates/x/src/a.rs", &text).len(), 1);
    }

    #[test]
    fn full_folders_are_named() {
        let files = |folder: &str, count| -> Vec<PathBuf> {
            (0..count).map(|number| Path::new(folder).join(format!("{number}.rs"))).collect()
        };
        let mut all = files("crates/x/src", FOLDER_FILES_MAX);
        all.extend(files("crates/x/src/room", FOLDER_FILES_MAX));
        all.extend(files("crates/x/tests", FOLDER_FILES_MAX + 1));
        all.push("crates/x/src/table.txt".into());
        assert!(folders(&all).is_empty());
        all.push("crates/x/src/room/one_more.rs".into());
        let found: Vec<PathBuf> = folders(&all).into_iter().map(|problem| problem.path).collect();
        assert_eq!(found, [Path::new("crates/x/src/room")]);
    }

    #[test]
    fn examples_are_no_tests() {
        let text =
            "//! Why.\n//! ```text\n//! a\n//! ```\nfn f() {}\n/// ```\n/// f();\n/// ```\nfn g() {}\n";
        assert_eq!(examples(text).collect::<Vec<_>>(), [6]);
        assert_eq!(rust_problems("crates/x/src/a.rs", text).len(), 1);
    }

    #[test]
    fn line_ends_are_clean() {
        let found: Vec<usize> =
            text(Path::new("a"), "ok\nbad \nbad\t\nno end").iter().map(|p| p.line).collect();
        assert_eq!(found, [2, 3, 4]);
        assert!(text(Path::new("a"), "").is_empty());
    }
}
