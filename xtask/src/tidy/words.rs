//! Words that must not be committed: leftovers in code, hosts of package registries, paths of one machine.

use std::path::Path;

use crate::tidy::Problem;
use crate::tidy::source::{Source, has_word};

/// This file has to name what it looks for.
const THIS_FILE: &str = "xtask/src/tidy/words.rs";

/// Marks of unfinished work.
const UNFINISHED: [&str; 3] = ["TODO", "FIXME", "XXX"];
/// Code that is for the moment only.
const FOR_NOW: [&str; 3] = ["dbg!", "todo!", "unimplemented!"];

/// Lock files and settings must not tie the project to one registry or mirror.
const HOSTS: [&str; 9] = [
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "files.pythonhosted.org",
    "pypi.org/simple",
    "proxy.golang.org",
    "index.crates.io",
    "static.crates.io",
    "repo.maven.apache.org",
    "repo1.maven.org",
];
/// Beginnings of paths that exist on one machine only.
const PATHS: [&str; 2] = ["/work/", "/home/"];

/// Unfinished work, in code and comments.
pub(super) fn leftovers(path: &Path, text: &str, source: &Source) -> Vec<Problem> {
    if path == Path::new(THIS_FILE) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in UNFINISHED.into_iter().filter(|word| has_word(line, word)) {
            problems.push(Problem::new(path, index + 1, format!("{word}: finish it, or write an issue")));
        }
    }
    for (number, line) in source.lines() {
        for word in FOR_NOW.into_iter().filter(|word| has_word(line, word)) {
            problems.push(Problem::new(path, number, format!("{word} is not for committed code")));
        }
    }
    problems
}

/// Hosts and paths, in any text file.
pub(super) fn hosts_and_paths(path: &Path, text: &str) -> Vec<Problem> {
    if path == Path::new(THIS_FILE) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for host in HOSTS.into_iter().filter(|host| line.contains(host)) {
            problems.push(Problem::new(path, index + 1, format!("{host}: name no package registry")));
        }
        for start in PATHS.into_iter().filter(|start| begins_path(line, start)) {
            problems.push(Problem::new(path, index + 1, format!("{start}... is a path of one machine")));
        }
    }
    problems
}

/// Whether `start` stands at the beginning of a path, not within one (`crates/work/x`, `https://host/work/`).
fn begins_path(line: &str, start: &str) -> bool {
    line.match_indices(start).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|character| character.is_alphanumeric() || "_-./}~$".contains(character))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_found_in_comments_and_code() {
        let text = "// TODO later\nfn f() { dbg!(1); }\nlet s = \"dbg!\"; // TODOS are other words\n";
        let problems = leftovers(Path::new("a.rs"), text, &Source::new(text));
        assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn machine_paths_and_hosts_are_found() {
        let text = "see /work/main\nhttps://host/work/x\n\"resolved\": \"https://registry.npmjs.org/pg\"\n$HOME/work/\n";
        let problems = hosts_and_paths(Path::new("a.md"), text);
        assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [1, 3]);
    }
}
