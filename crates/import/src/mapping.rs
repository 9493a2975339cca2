//! The tables that say what each key becomes. The readers use them, and the pages in `docs/migrate` are made
//! from them.

use std::fmt::Write as _;

use crate::dialect::Takes;
use crate::kinds;

/// The fate of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key becomes a setting of the whole process.
    Setting(&'static str),
    /// The key becomes a setting of pools: of a database or a user if they differ, else of the process.
    Pool(&'static str),
    /// The reader of the kind handles the key; the text says what it becomes.
    Reader(&'static str),
    /// The key need not be carried over; the text says why.
    Needless(&'static str),
    /// The key has no counterpart; the text says why and what to do.
    Missing(&'static str),
    /// The key belongs to another one, and does nothing unless that is switched on.
    With(&'static str),
}

/// A key of a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The key's name with its tables; `*` means a table of any name. A `#` at the end means a number, a `*`
    /// any ending.
    pub key: &'static str,
    /// The kind of value that the key takes.
    pub takes: Takes,
    /// The fate of the key.
    pub outcome: Outcome,
    /// For a key that is carried over: its default, if that differs from pgweir's. For other keys: the values
    /// that ask for nothing.
    pub usual: &'static [&'static str],
    /// A remark for the page.
    pub note: &'static str,
}

/// The keys of one file.
pub struct Table {
    /// The name of the table on the page.
    pub name: &'static str,
    /// The table's rows.
    pub rows: &'static [Row],
}

impl Row {
    /// Creates a row.
    pub(crate) const fn new(
        key: &'static str,
        takes: Takes,
        outcome: Outcome,
        usual: &'static [&'static str],
    ) -> Row {
        Row { key, takes, outcome, usual, note: "" }
    }

    /// Adds a note for the page.
    pub(crate) const fn noted(self, note: &'static str) -> Row {
        Row { note, ..self }
    }

    /// Returns whether this row is for the key.
    pub(crate) fn is_for(&self, key: &str) -> bool {
        match (self.key.strip_suffix('#'), self.key.strip_suffix('*')) {
            (Some(stem), _) => key
                .strip_prefix(stem)
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())),
            (_, Some(stem)) => key.starts_with(stem),
            _ => self.key == key,
        }
    }
}

/// Returns the row for a key. A row with exactly its name takes precedence over one with a pattern.
pub(crate) fn row(rows: &'static [Row], key: &str) -> Option<&'static Row> {
    rows.iter().find(|row| row.key == key).or_else(|| rows.iter().find(|row| row.is_for(key)))
}

/// Returns the tables of all kinds, with their names on the pages.
#[must_use]
pub fn tables() -> Vec<Table> {
    kinds::tables()
}

/// Returns a table as Markdown.
#[must_use]
pub fn markdown(table: &Table) -> String {
    let mut out = String::from("| Key | pgweir | Notes |\n|---|---|---|\n");
    for row in table.rows {
        let (becomes, why) = match row.outcome {
            Outcome::Setting(name) | Outcome::Pool(name) => (format!("`{name}`"), String::new()),
            Outcome::Reader(what) => (what.to_owned(), String::new()),
            Outcome::Needless(why) => ("not needed".to_owned(), sentence(why)),
            Outcome::Missing(why) => ("no counterpart".to_owned(), sentence(why)),
            Outcome::With(key) => (format!("see `{key}`"), String::new()),
        };
        let default = match (row.outcome, row.usual) {
            (Outcome::Setting(_) | Outcome::Pool(_), [default, ..]) => {
                format!("Written as {default} if it is not set.")
            }
            _ => String::new(),
        };
        let notes = [why, sentence(row.note), default];
        let notes: Vec<&str> = notes.iter().map(String::as_str).filter(|note| !note.is_empty()).collect();
        let _ = writeln!(out, "| `{}` | {becomes} | {} |", row.key, notes.join(" "));
    }
    out.replace("|  |", "| |")
}

/// Returns a note as a whole sentence.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => {
            let end = if text.ends_with('.') { "" } else { "." };
            let keep = text.starts_with("pgweir");
            let first = if keep { first.to_string() } else { first.to_uppercase().to_string() };
            format!("{first}{}{end}", letters.as_str())
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pgweir_settings::{DATABASE_ROWS, MAIN_ROWS, USER_ROWS, row as setting};

    use super::*;
    use crate::resolve::global_name;

    #[test]
    fn settings_that_keys_become_exist() {
        for table in tables() {
            for row in table.rows {
                match row.outcome {
                    Outcome::Setting(name) => {
                        assert!(setting(MAIN_ROWS, name).is_some(), "{}: {name}", row.key);
                    }
                    Outcome::Pool(name) => assert!(
                        setting(DATABASE_ROWS, name).is_some()
                            || setting(USER_ROWS, name).is_some()
                            || setting(MAIN_ROWS, global_name(name)).is_some(),
                        "{}: {name}",
                        row.key
                    ),
                    Outcome::With(key) => {
                        assert!(table.rows.iter().any(|row| row.key == key), "{}: {key}", row.key);
                    }
                    Outcome::Reader(_) | Outcome::Needless(_) | Outcome::Missing(_) => {}
                }
            }
        }
    }

    #[test]
    fn no_key_stands_twice_in_a_table() {
        for table in tables() {
            let keys: BTreeSet<_> = table.rows.iter().map(|row| row.key).collect();
            assert_eq!(keys.len(), table.rows.len(), "{}", table.name);
        }
    }

    #[test]
    fn patterns() {
        let numbered = Row::new("backend_weight#", Takes::Count, Outcome::Needless("x"), &[]);
        assert!(numbered.is_for("backend_weight0") && numbered.is_for("backend_weight12"));
        assert!(!numbered.is_for("backend_weight") && !numbered.is_for("backend_weight0x"));
        let any = Row::new("wd_*", Takes::Anything, Outcome::Needless("x"), &[]);
        assert!(any.is_for("wd_port0") && !any.is_for("wc"));
    }
}
