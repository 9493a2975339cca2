//! The features of a pool do not call one another: each has its room, and `relay` and `moves` ask them in a stated order. See
//! ARCHITECTURE.md, "The moments of a transaction".
//!
//! Types of another room may be used: a client's session is a fact that several features read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::tidy::Problem;
use crate::tidy::source::Source;

const POOL: &str = "crates/core/src/pool";
/// The rooms of features: a folder, or a file.
const ROOMS: [&str; 6] = ["begin", "listen", "multiplex", "prepared", "sequences", "session"];
/// What a room may call in another one, each with the reason.
const ALLOWED: [(&str, &str, &str); 2] = [
    ("listen", "quote_identifier", "a function of a name alone"),
    ("sequences", "executed_name", "a function of a text alone"),
];

/// Which room a function belongs to, by its name: methods of `Pool`, and functions without an owner.
#[derive(Default)]
pub(super) struct Functions {
    methods: BTreeMap<String, &'static str>,
    free: BTreeMap<String, &'static str>,
}

/// The room of a file, if it is a feature's.
fn room(path: &Path) -> Option<&'static str> {
    let inside = path.strip_prefix(POOL).ok()?;
    let name = Path::new(inside.iter().next()?).file_stem()?;
    ROOMS.into_iter().find(|room| name == *room)
}

impl Functions {
    /// Those that the rooms define.
    pub(super) fn of(files: &[(PathBuf, Source)]) -> Functions {
        let mut functions = Functions::default();
        for (path, source) in files {
            let Some(room) = room(path) else { continue };
            let mut in_pool = false;
            for (_, line) in source.lines_without_tests() {
                in_pool = is_in_pool(line, in_pool);
                if let Some(name) = line.strip_prefix("    ").filter(|_| in_pool).and_then(defined) {
                    functions.methods.insert(name.to_owned(), room);
                } else if let Some(name) = defined(line) {
                    functions.free.insert(name.to_owned(), room);
                }
            }
        }
        functions
    }

    /// The calls of this file into another room.
    pub(super) fn problems(&self, path: &Path, source: &Source) -> Vec<Problem> {
        let Some(own) = room(path) else { return Vec::new() };
        let mut problems = Vec::new();
        let mut found = |number: usize, name: &str, rooms: &BTreeMap<String, &'static str>| {
            let other = rooms.get(name).filter(|other| **other != own);
            let allowed = ALLOWED.iter().any(|(room, allowed, _)| (*room, *allowed) == (own, name));
            if let Some(other) = other.filter(|_| !allowed) {
                let text = format!("{own} calls `{name}` of {other}: features do not call one another");
                problems.push(Problem::new(path, number, text));
            }
        };
        let (mut in_pool, mut before) = (false, "");
        for (number, line) in source.lines_without_tests() {
            in_pool = is_in_pool(line, in_pool);
            if in_pool {
                // A long chain has its receiver on the line before.
                let chained =
                    line.trim_start().strip_prefix('.').filter(|_| before.trim_end().ends_with("self"));
                let calls = line.split("self.").skip(1).chain(chained);
                calls.filter_map(called).for_each(|name| found(number, name, &self.methods));
            }
            if let Some(imported) = line.trim_start().strip_prefix("use crate::pool::") {
                let names = imported.split(|sign: char| !sign.is_alphanumeric() && sign != '_');
                names.for_each(|name| found(number, name, &self.free));
            }
            before = line;
        }
        problems
    }
}

/// Whether the lines from this one on are methods of `Pool`.
fn is_in_pool(line: &str, before: bool) -> bool {
    line.starts_with("impl Pool {") || before && !line.starts_with('}')
}

/// The function that is defined on this line, which begins with it.
fn defined(line: &str) -> Option<&str> {
    let rest = ["pub(crate) ", "pub(super) ", "pub "].iter().find_map(|word| line.strip_prefix(word));
    name(rest.unwrap_or(line).strip_prefix("fn ")?)
}

/// The method that is called, if the text begins with a call.
fn called(text: &str) -> Option<&str> {
    let name = name(text)?;
    text[name.len()..].starts_with(['(', ':']).then_some(name)
}

fn name(text: &str) -> Option<&str> {
    let end = text.find(|sign: char| !sign.is_alphanumeric() && sign != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (Path::new(POOL).join(path), Source::new(text))).collect();
        let functions = Functions::of(&files);
        let problems = files.iter().flat_map(|(path, source)| functions.problems(path, source));
        problems.map(|problem| (problem.text, problem.line)).collect()
    }

    const SESSION: (&str, &str) =
        ("session/a.rs", "impl Pool {\n    pub(crate) fn learn(&self) {}\n}\n\npub(crate) fn quote() {}\n");

    #[test]
    fn calls_into_another_room_are_found() {
        let text = "use crate::pool::session::a::{Pins, quote};\nimpl Pool {\n    fn f(&self) {\n        self.learn();\n        \
                    self\n            .learn();\n    }\n}\n";
        let lines: Vec<usize> =
            found(&[SESSION, ("begin.rs", text)]).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, [1, 4, 6]);
    }

    #[test]
    fn calls_in_the_same_room_and_of_others_are_none() {
        let own = "use crate::pool::session::a::quote;\nimpl Pool {\n    fn f(&self) {\n        self.learn();\n    }\n}\n";
        let other = "impl Touched {\n    fn f(&self) {\n        self.learn();\n    }\n}\n";
        assert!(
            found(&[SESSION, ("session/b.rs", own), ("relay/c.rs", own), ("listen/d.rs", other)]).is_empty()
        );
    }
}
