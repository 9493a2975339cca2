//! A finding: a fact with its figures, and the advice that follows from it.

use std::fmt;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Clients are refused or wait now, or will as soon as the pools are full.
    Error,
    /// A number is close to its limit, or a setting does harm under load.
    Warning,
    /// The finding is only information; there is no fault.
    Note,
}

impl Severity {
    /// Returns the word for reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// A name that stays the same, for machines (`pool_at_limit`).
    pub code: &'static str,
    /// The fact, with its figures. It contains no secret.
    pub text: String,
    /// The advice, in one sentence.
    pub remedy: String,
}

impl Finding {
    /// Creates a finding of severity `Error`.
    #[must_use]
    pub fn error(code: &'static str, text: String, remedy: impl Into<String>) -> Finding {
        Finding { severity: Severity::Error, code, text, remedy: remedy.into() }
    }

    /// Creates a finding of severity `Warning`.
    #[must_use]
    pub fn warning(code: &'static str, text: String, remedy: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, code, text, remedy: remedy.into() }
    }

    /// Creates a finding of severity `Note`.
    #[must_use]
    pub fn note(code: &'static str, text: String, remedy: impl Into<String>) -> Finding {
        Finding { severity: Severity::Note, code, text, remedy: remedy.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, remedy) = (printable(&self.text), printable(&self.remedy));
        write!(f, "{:<7}  {text}\n         {remedy}", self.severity.word())
    }
}

/// Removes control characters from names and messages of other programs, which go to a terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns `1 client`, `2 clients`.
pub(crate) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns `3.2 s`.
pub(crate) fn seconds(us: u64) -> String {
    format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_shown_with_its_remedy() {
        let finding = Finding::warning("x", format!("{} wait", count(2, "client")), "raise it");
        assert_eq!(finding.to_string(), "warning  2 clients wait\n         raise it");
        let hostile = Finding::note("x", "a\u{1b}[2J\nb".to_owned(), "c\td");
        assert_eq!(hostile.to_string(), "note     a [2J b\n         c d");
        assert_eq!(count(1, "client"), "1 client");
        assert_eq!(seconds(3_250_000), "3.2 s");
    }
}
