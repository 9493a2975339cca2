//! What a database's catalog says of the answers that can be followed: the tables whose changes are all in the stream, and the functions of users.
//! A statement can be followed if it reads such tables alone, and if nothing else decides on its answer but the text, its values and the
//! session's settings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pgweir_sql::{NameRole, certainly_reads, find_name, name_hash, outside_name};

use crate::pool::cache::wal::changes::Touched;
use crate::pool::cache::wal::decoder::ChangedRows;
use crate::pool::cache::wal::row_key::KeyColumns;

/// The catalog of a database.
#[derive(PartialEq, Eq, Default, Debug)]
pub(crate) struct Catalog {
    /// The tables that can be followed, by number, with their primary keys if changes of their rows can be told apart.
    tables: HashMap<u32, Option<KeyColumns>>,
    /// The names of functions of users that may depend on anything, as hashes in order.
    impure: Box<[u64]>,
    /// The names of functions of users that depend on their arguments alone, as hashes in order.
    pure: Box<[u64]>,
}

/// The reason why a statement cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outside<'a> {
    /// The word stands for something that is in no table, or may be: the time, a function that may read anything, a hidden column.
    Word(&'a [u8]),
    /// The text or a value has the name of a day that PostgreSQL may read as a time: `now`, `today`, `tomorrow` or `yesterday`.
    Day,
}

impl Catalog {
    /// Builds the value from lists as the server gives them: tables separated by commas, a table with its key as in `16385:id=23+a=25`; names
    /// by line ends.
    pub(crate) fn of(tables: &[u8], impure: &[u8], pure: &[u8]) -> Option<Catalog> {
        let tables = std::str::from_utf8(tables).ok()?.split(',').filter(|part| !part.is_empty());
        let tables = tables.map(|table| match table.split_once(':') {
            Some((number, key)) => Some((number.parse().ok()?, KeyColumns::parse(key))),
            None => Some((table.parse().ok()?, None)),
        });
        let tables = tables.collect::<Option<_>>()?;
        let hashes = |names: &[u8]| -> Box<[u64]> {
            let names = names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty());
            let mut hashes: Vec<u64> = names.map(name_hash).collect();
            hashes.sort_unstable();
            hashes.dedup();
            hashes.into()
        };
        Some(Catalog { tables, impure: hashes(impure), pure: hashes(pure) })
    }

    /// Returns the number of tables that can be followed.
    pub(crate) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// Whether all these tables can be followed.
    pub(crate) fn follows(&self, tables: &[u32]) -> bool {
        tables.iter().all(|table| self.tables.contains_key(table))
    }

    /// Returns the primary key of the table if there is only this one, and if changes of its rows can be told apart.
    pub(crate) fn key_of(&self, tables: &[u32]) -> Option<&KeyColumns> {
        match tables {
            [table] => self.tables.get(table)?.as_ref(),
            _ => None,
        }
    }

    /// Returns what a received transaction has touched. Rows count by their keys only if the stream has the same key of the table as this
    /// catalog: answers depend on keys of this one.
    pub(crate) fn touched(&self, changed: BTreeMap<u32, ChangedRows>) -> Arc<[(u32, Touched)]> {
        let touched = changed.into_iter().map(|(table, rows)| match rows {
            ChangedRows::Keys(columns, keys) if self.key_of(&[table]) == Some(&*columns) => {
                (table, Touched::Rows(keys.into_iter().collect()))
            }
            ChangedRows::Keys(..) | ChangedRows::All => (table, Touched::All),
        });
        touched.collect()
    }

    /// Whether a function of users that may do anything has this name, as the catalog spells it.
    pub(crate) fn is_impure(&self, name: &[u8]) -> bool {
        self.impure.binary_search(&name_hash(name)).is_ok()
    }

    /// Returns the reason why the answer to a text may depend on more than tables and settings; `None` if it certainly does not.
    /// `messages` are those that the client sent, with the values.
    pub(crate) fn outside<'a>(&self, text: &'a [u8], messages: &[u8]) -> Option<Outside<'a>> {
        if let Some(word) = outside_name(text) {
            return Some(Outside::Word(word));
        }
        if names_day(text) || may_hide_letters(text) || names_day(messages) || has_json_escape(messages) {
            return Some(Outside::Day);
        }
        let mut refused = None;
        let mut allows = |role: NameRole, name: u64| {
            let allowed = match role {
                NameRole::Mentioned => self.impure.binary_search(&name).is_err(),
                NameRole::Called => name != 0 && self.pure.binary_search(&name).is_ok(),
            };
            if !allowed {
                refused.get_or_insert(name);
            }
            allowed
        };
        if certainly_reads(text, &mut allows) {
            return None;
        }
        let is_refused = |word: &[u8]| {
            refused
                .is_some_and(|name| name_hash(word) == name || name_hash(&word.to_ascii_lowercase()) == name)
        };
        Some(Outside::Word(find_name(text, is_refused).unwrap_or_default()))
    }
}

/// Reads a list of numbers that are separated by commas.
pub(crate) fn numbers(list: &[u8]) -> Option<Vec<u32>> {
    let list = std::str::from_utf8(list).ok()?;
    list.split(',').filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect()
}

/// Whether the bytes have the name of a day, in any case, with no letter next to it. PostgreSQL reads such a word in a literal, or in a value, as
/// a time that depends on the present one. Between its letters may be a backslash, a quote (in ranges and arrays), or the end of a line and of a
/// part of the literal.
pub(crate) fn names_day(bytes: &[u8]) -> bool {
    if has_day(bytes) {
        return true;
    }
    if !bytes.iter().any(|byte| matches!(byte, b'\\' | b'"' | b'\'')) {
        return false;
    }
    let plain: Vec<u8> = bytes.iter().copied().filter(|byte| !matches!(byte, b'\\' | b'"')).collect();
    has_day(&plain) || has_day(&joined(&plain))
}

/// Returns the bytes with the parts of each literal that goes on in another line put together.
fn joined(bytes: &[u8]) -> Vec<u8> {
    let is_gap = |part: &[u8]| {
        part.iter().all(u8::is_ascii_whitespace) && part.iter().any(|byte| matches!(byte, b'\n' | b'\r'))
    };
    let mut joined = Vec::with_capacity(bytes.len() + 1);
    for part in bytes.split(|byte| *byte == b'\'') {
        if is_gap(part) {
            // The quote ahead of the gap goes, too.
            joined.pop();
        } else {
            joined.extend_from_slice(part);
            joined.push(b'\'');
        }
    }
    joined
}

/// Whether a value may have letters that JSON writes as numbers.
fn has_json_escape(messages: &[u8]) -> bool {
    messages.windows(2).any(|pair| pair == b"\\u")
}

fn has_day(bytes: &[u8]) -> bool {
    let words = bytes.split(|byte| !byte.is_ascii_alphabetic());
    let days: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];
    words
        .filter(|word| (3..=9).contains(&word.len()))
        .any(|word| days.iter().any(|day| day.eq_ignore_ascii_case(word)))
}

/// Whether a literal of the text may have letters that are written as numbers, such as `E'n\157w'` or `U&'n\006fw'`: then its words are not known.
fn may_hide_letters(text: &[u8]) -> bool {
    let is_escape = |pair: &[u8]| {
        pair[0] == b'\\' && (pair[1].is_ascii_digit() || matches!(pair[1], b'x' | b'u' | b'U' | b'+'))
    };
    text.windows(2).any(is_escape) || text.windows(7).any(|word| word.eq_ignore_ascii_case(b"uescape"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog() -> Catalog {
        Catalog::of(b"16385,16390", b"status\nlook_up", b"double_it\nsimilarity").expect("it is a catalog")
    }

    #[test]
    fn tables_are_followed_if_all_are_in_the_list() {
        let catalog = catalog();
        assert_eq!(catalog.tables(), 2);
        assert!(catalog.follows(&[16385, 16390]) && catalog.follows(&[]));
        assert!(!catalog.follows(&[16385, 1259]));
        assert_eq!(Catalog::of(b"1,x", b"", b""), None);
    }

    #[test]
    fn a_text_depends_on_tables_alone_if_all_its_names_are_harmless() {
        let catalog = catalog();
        for text in [
            "select a, lower(b), count(*) from t where c > $1 group by 1, 2",
            "select double_it(a), date_trunc('day', at) from t",
            "with s as materialized (select * from t) select s.a from s join u on (s.a = u.a)",
            "select 'know this' from t",
        ] {
            assert_eq!(catalog.outside(text.as_bytes(), b""), None, "{text}");
        }
        for (text, word) in [
            ("select look_up(a) from t", "look_up"),
            ("select t.Status from t", "Status"),
            ("select unknown_one(a) from t", "unknown_one"),
            ("select Now()", "Now"),
            ("select current_date", "current_date"),
            ("select ctid from t", "ctid"),
            ("select * from t tablesample system (1)", "tablesample"),
        ] {
            let found = catalog.outside(text.as_bytes(), b"");
            assert_eq!(found, Some(Outside::Word(word.as_bytes())), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_day_in_a_literal_or_value_is_a_time() {
        let catalog = catalog();
        for text in
            ["select * from t where at < 'now'", "select 'TODAY'::date", "select '{now,tomorrow}'::date[]"]
        {
            assert!(
                matches!(catalog.outside(text.as_bytes(), b""), Some(Outside::Word(_) | Outside::Day)),
                "{text}"
            );
        }
        for text in [
            r"select E'n\157w'::date",
            r"select U&'n\006fw'::date",
            "select U&'n!006fw' uescape '!'",
            r"select E'n\ow'::date",
        ] {
            assert_eq!(catalog.outside(text.as_bytes(), b""), Some(Outside::Day), "{text}");
        }
        assert_eq!(catalog.outside(br"select * from t where a ~ '^\d+\s$'", b""), None);
        assert_eq!(
            catalog.outside(b"select * from t where at = any($1)", br#"{"n\ow"}"#),
            Some(Outside::Day)
        );
        for text in [
            "select lower('[n\"o\"w,infinity)'::tstzrange)",
            "select 'n'\n  'ow'::timestamptz",
            "select 'to'\r\n'day'::date",
        ] {
            assert_eq!(catalog.outside(text.as_bytes(), b""), Some(Outside::Day), "{text}");
        }
        assert_eq!(catalog.outside(b"select 'n', 'ow', a\nfrom t where b = 'x'\n and c = 'y'", b""), None);
        // A value takes time that grows with its length alone.
        let blanks = [&b"'"[..], &b" \n".repeat(500_000)].concat();
        assert!(!names_day(&blanks) && names_day(&[&b"'to"[..], &blanks, b"'day'"].concat()));
        assert_eq!(catalog.outside(b"select $1::jsonb", br#"["n\u006fw"]"#), Some(Outside::Day));
        let text = b"select * from t where at < $1";
        assert_eq!(catalog.outside(text, b"B\0\0\0\x10\0\0yesterday\0"), Some(Outside::Day));
        assert_eq!(catalog.outside(text, b"B\0\0\0\x10\0\0yesterdays\0"), None);
    }
}
