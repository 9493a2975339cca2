//! Phrases that read as a translation, in messages and documents. Comments are left to their reader.

use std::path::Path;

use crate::tidy::Problem;
use crate::tidy::source::Source;

/// Each with what to write in its place.
const PHRASES: [(&str, &str); 54] = [
    ("can not", "cannot"),
    ("for ever", "say until when"),
    ("anew", "again"),
    ("nobody", "name the actor: no client, no server"),
    ("somebody", "name the actor"),
    ("whoever", "name the actor"),
    ("as ever", "leave it out"),
    ("all the same", "leave it out"),
    ("nevertheless", "leave it out, or begin with `although`"),
    ("of its own", "its own, separate, another"),
    ("of their own", "their own, separate, other"),
    ("of your own", "your own"),
    ("has to be one of", "must be one of"),
    ("in front of", "before, ahead of, between"),
    ("how many", "the number of"),
    ("where nothing else is said", "unless stated otherwise"),
    ("in the place of", "instead of"),
    ("half as loaded again", "50 % more loaded"),
    ("a tenth of its part", "10 % of its share"),
    ("behind the answer", "after the answer"),
    ("told behind", "told after"),
    ("behind its COMMIT", "after its COMMIT"),
    ("behind their COMMIT", "after their COMMIT"),
    ("is the patience", "is the time for which a client waits"),
    ("the same in parts", "the same as separate values"),
    ("says nothing of", "does not tell"),
    ("say nothing of", "do not tell"),
    ("of which it has a part", "part of which"),
    ("past pgweir", "without going through pgweir"),
    ("none any more", "no longer counts"),
    ("comes to rest", "becomes idle"),
    ("for good", "permanently"),
    ("in earnest", "in production"),
    ("belongs into", "belongs in"),
    ("belong into", "belong in"),
    ("told in one run", "reported together"),
    ("takes nothing of", "rejects"),
    ("stands in single quotes", "is enclosed in"),
    ("stand in single quotes", "are enclosed in"),
    ("SWITCHOVER is at", "the progress of a SWITCHOVER"),
    ("what becomes of", "what happens to"),
    ("what became of", "what happened to"),
    ("as a rule", "usually"),
    ("once more", "again"),
    ("a look each", "a check each"),
    ("looks whether", "checks whether"),
    ("tries whether", "tests whether"),
    ("held against", "compared with"),
    ("holds against", "compares with"),
    ("in its turn", "then"),
    ("is told of", "gets, learns"),
    ("are told of", "get, learn"),
    ("hears of", "learns of"),
    ("not to be had", "not available"),
];

/// Documents, and what the dashboard and the packages show. The rest of a path may follow.
const DOCUMENTS: [&str; 11] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "deploy",
    "docs",
    "tests/README.md",
    "web/README.md",
    "web/index.html",
    "web/src",
];

/// A document.
pub(super) fn document(path: &Path, text: &str) -> Vec<Problem> {
    if !DOCUMENTS.iter().any(|document| path.starts_with(document)) {
        return Vec::new();
    }
    found(path, text, 1)
}

/// The texts in the code of a crate, tests aside.
pub(super) fn messages(path: &Path, text: &str, source: &Source) -> Vec<Problem> {
    let is_test = path.components().any(|part| part.as_os_str() == "tests")
        || path.starts_with("crates/testkit")
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"));
    if is_test || !path.starts_with("crates") {
        return Vec::new();
    }
    source.strings(text).into_iter().flat_map(|(line, string)| found(path, string, line)).collect()
}

/// The phrases in a text that begins in this line. A line's end, the signs of a comment and the end of a Rust text's line may stand
/// between their words; in quotation marks a word is a name.
fn found(path: &Path, text: &str, first_line: usize) -> Vec<Problem> {
    let words = words(text);
    let mut problems = Vec::new();
    for (phrase, instead) in PHRASES {
        let wanted: Vec<&str> = phrase.split(' ').collect();
        for run in words.windows(wanted.len()) {
            let (begin, end) = (run[0].0, run[run.len() - 1].0 + run[run.len() - 1].1.len());
            let same = run.iter().zip(&wanted).all(|((_, word), wanted)| word.eq_ignore_ascii_case(wanted));
            let close = run.windows(2).all(|pair| {
                let gap = &text[pair[0].0 + pair[0].1.len()..pair[1].0];
                gap.chars().all(|sign| sign.is_whitespace() || "#/;*>\\".contains(sign))
            });
            let is_name = text[..begin].ends_with(['"', '`']) && text[end..].starts_with(['"', '`', '\\']);
            if same && close && !is_name {
                let line = first_line + text[..begin].matches('\n').count();
                problems.push(Problem::new(path, line, format!("\"{phrase}\": write: {instead}")));
            }
        }
    }
    problems
}

/// The words of a text, and where they begin. The letter of `\n` is no part of one.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut begin = None;
    let mut before = ' ';
    for (at, sign) in text.char_indices().chain([(text.len(), ' ')]) {
        let in_word = (sign.is_alphanumeric() || "_-'".contains(sign)) && before != '\\';
        match (in_word, begin) {
            (true, None) => begin = Some(at),
            (false, Some(start)) => {
                words.push((start, &text[start..at]));
                begin = None;
            }
            _ => {}
        }
        before = sign;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(problems: &[Problem]) -> Vec<usize> {
        problems.iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn phrases_are_found_across_lines_and_in_any_case() {
        let text = "It can\nnot.\n# Nobody knows how\n# many; `nobody` is a user, canned nothing, can-not.\n";
        let found = document(Path::new("docs/a.md"), text);
        assert_eq!(lines(&found), [1, 3, 3], "{found:?}");
        assert!(document(Path::new("tests/a.py"), text).is_empty());
    }

    #[test]
    fn messages_are_looked_at_and_neither_comments_nor_tests() {
        let text = "//! Nobody.\nfn f() {\n    say(\"x\\nfor \\\n        ever\");\n    user(\"nobody\");\n}\n\
                    #[cfg(test)]\nmod tests {\n    const A: &str = \"anew\";\n}\n";
        let found = messages(Path::new("crates/a/src/a.rs"), text, &Source::new(text));
        assert_eq!(lines(&found), [3], "{found:?}");
        assert!(messages(Path::new("crates/a/tests/a.rs"), text, &Source::new(text)).is_empty());
    }
}
