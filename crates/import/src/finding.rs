//! Messages about a configuration: faults, with which nothing is written, and findings, which the
//! administrator has to know.

use std::fmt;

use crate::limits::SHOWN_LEN_MAX;

/// The reason why a configuration cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 if the fault is not in a line.
    pub line: u32,
    /// The fault. It contains no secret.
    pub text: String,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// The key was carried over, but its meaning differs.
    Differs,
    /// The key has no counterpart.
    Missing,
    /// The pooler's documentation, as far as it is known here, has no such key.
    Unknown,
}

/// A key, or something else, that was not carried over unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 if the finding is not about a line.
    pub line: u32,
    /// The kind of the finding.
    pub kind: FindingKind,
    /// The key, or the other subject of the finding.
    pub what: String,
    /// The reason, and what the administrator can do. It contains no secret.
    pub why: String,
}

impl Fault {
    pub(crate) fn of_file(file: &str, text: &str) -> Fault {
        Fault { file: file.to_owned(), line: 0, text: text.to_owned() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.file, self.line)?;
        f.write_str(&shown(&self.text, usize::MAX))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.file, self.line)?;
        let word = match self.kind {
            FindingKind::Differs => "differs",
            FindingKind::Missing => "not carried over",
            FindingKind::Unknown => "unknown key",
        };
        write!(f, "{word}: {}: {}", shown(&self.what, SHOWN_LEN_MAX), shown(&self.why, usize::MAX))
    }
}

fn place(f: &mut fmt::Formatter<'_>, file: &str, line: u32) -> fmt::Result {
    match line {
        0 => write!(f, "{}: ", shown(file, usize::MAX)),
        _ => write!(f, "{}:{line}: ", shown(file, usize::MAX)),
    }
}

/// Returns a text from a file as a part of a message: one line, without control characters, with at most
/// `len_max` characters.
pub(crate) fn shown(text: &str, len_max: usize) -> String {
    let clean = |letter: char| if letter.is_control() { '?' } else { letter };
    let mut out: String = text.chars().take(len_max).map(clean).collect();
    if text.chars().nth(len_max).is_some() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_single_lines() {
        let finding = Finding {
            file: "a.toml".to_owned(),
            line: 7,
            kind: FindingKind::Unknown,
            what: "a\nb\u{1b}[0m".to_owned(),
            why: "why".to_owned(),
        };
        assert_eq!(finding.to_string(), "a.toml:7: unknown key: a?b?[0m: why");
        assert_eq!(Fault::of_file("x", "bad").to_string(), "x: bad");
        assert_eq!(shown(&"ab".repeat(50), 3), "aba...");
    }
}
