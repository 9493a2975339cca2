//! The tables that a query names. The scanner tells whether a text names only tables of a list; in doubt the answer is no. Tables that a view
//! or a function reads are not in the text.

use super::NAME_BYTES_MAX;
use crate::lexer::{Kind, Lexer};

/// The largest depth of parentheses that the scanner follows.
const DEPTH_MAX: u32 = 64;

/// The functions whose syntax has the word FROM inside of the parentheses.
const CALLS_WITH_FROM: [&[u8]; 4] = [b"extract", b"overlay", b"substring", b"trim"];

/// Words that end the list of tables of a FROM.
const CLAUSES: [&[u8]; 12] = [
    b"except",
    b"fetch",
    b"for",
    b"group",
    b"having",
    b"intersect",
    b"limit",
    b"offset",
    b"order",
    b"union",
    b"where",
    b"window",
];

/// Returns whether `sql`, a single query, certainly names only tables and views that `allows` accepts. `allows` gets the schema, empty if the
/// text names none, and the name. A name that WITH gives counts as a table, a function does not.
///
/// Takes time linear in the length of `sql` and allocates nothing.
#[must_use]
pub fn names_only_tables(sql: &[u8], allows: impl FnMut(&[u8], &[u8]) -> bool) -> bool {
    let mut scan = Scan {
        allows,
        schema: Name::default(),
        table: Name::default(),
        at: At::Elsewhere,
        words: [Word::None; 2],
        depth: 0,
        in_from: 0,
        in_call: 0,
    };
    for lexeme in Lexer::new(sql) {
        let Ok(lexeme) = lexeme else { return false };
        let fits = match lexeme.kind {
            Kind::Word => scan.word(lexeme.text),
            Kind::QuotedWord => scan.quoted_word(lexeme.text),
            Kind::UnicodeWord => false,
            Kind::Symbol => scan.symbol(lexeme.text),
            _ => scan.other(),
        };
        if !fits {
            return false;
        }
    }
    scan.at != At::Relation && scan.at != At::DotOfName && scan.settle()
}

/// The place of the next lexeme.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// No table can come next.
    Elsewhere,
    /// A table, a function or an opening parenthesis follows.
    Relation,
    /// A table's name, or a part of it, was read.
    Name,
    /// A dot in a table's name was read.
    DotOfName,
    /// A dot outside of a table's name was read.
    Dot,
}

/// A word that was read, as far as it matters to the next ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    None,
    As,
    Is,
    Not,
    Distinct,
    CallWithFrom,
    Other,
}

#[derive(Clone, Copy)]
struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl Default for Name {
    fn default() -> Name {
        Name { bytes: [0; NAME_BYTES_MAX], len: 0 }
    }
}

impl Name {
    /// `None`: PostgreSQL may read another name.
    fn of(text: &[u8], folds: bool) -> Option<Name> {
        let is_plain = |byte: &u8| byte.is_ascii() && *byte != b'"' && !byte.is_ascii_control();
        if text.len() > NAME_BYTES_MAX || !text.iter().all(is_plain) {
            return None;
        }
        let mut name = Name { len: text.len(), ..Name::default() };
        name.bytes[..text.len()].copy_from_slice(text);
        if folds {
            name.bytes.make_ascii_lowercase();
        }
        Some(name)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

struct Scan<F> {
    allows: F,
    schema: Name,
    table: Name,
    at: At,
    /// The word before, and the one before that, if nothing else stands between.
    words: [Word; 2],
    depth: u32,
    /// By depth: a comma leads to another table.
    in_from: u64,
    /// By depth: the parenthesis is that of a call of [`CALLS_WITH_FROM`].
    in_call: u64,
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Scan<F> {
    fn has(&self, set: u64) -> bool {
        set & (1 << self.depth) != 0
    }

    /// A name that was read is a table's.
    fn settle(&mut self) -> bool {
        match self.at {
            At::Name => {
                self.at = At::Elsewhere;
                (self.allows)(self.schema.as_bytes(), self.table.as_bytes())
            }
            _ => true,
        }
    }

    fn named(&mut self, name: Name) {
        self.schema = if self.at == At::DotOfName { self.table } else { Name::default() };
        self.table = name;
        self.at = At::Name;
        self.words = [Word::Other, Word::None];
    }

    fn word(&mut self, text: &[u8]) -> bool {
        let Some(name) = Name::of(text, true) else { return false };
        if self.at == At::DotOfName {
            self.named(name);
            return true;
        }
        let is_free = self.at == At::Dot || self.words[0] == Word::As;
        if !self.settle() {
            return false;
        }
        let word = name.as_bytes();
        let begins_query = matches!(word, b"select" | b"values" | b"with" | b"table");
        match (self.at, word) {
            (At::Relation, b"only" | b"lateral") => return true,
            (At::Relation, _) if !begins_query => {
                self.named(name);
                return true;
            }
            _ => {}
        }
        self.at = At::Elsewhere;
        if !is_free {
            self.keyword(word);
        }
        let kind = match word {
            _ if is_free => Word::Other,
            b"as" => Word::As,
            b"is" => Word::Is,
            b"not" => Word::Not,
            b"distinct" => Word::Distinct,
            word if CALLS_WITH_FROM.contains(&word) => Word::CallWithFrom,
            _ => Word::Other,
        };
        self.words = [kind, self.words[0]];
        true
    }

    fn keyword(&mut self, word: &[u8]) {
        let bit = 1 << self.depth;
        let compares = matches!(self.words, [Word::Distinct, Word::Is | Word::Not]);
        match word {
            b"from" if compares || self.has(self.in_call) => {}
            b"from" | b"join" => {
                self.in_from |= bit;
                self.at = At::Relation;
            }
            b"table" => self.at = At::Relation,
            b"select" => self.in_from &= !bit,
            word if CLAUSES.contains(&word) => self.in_from &= !bit,
            _ => {}
        }
    }

    fn quoted_word(&mut self, text: &[u8]) -> bool {
        let Some(name) = Name::of(text, false) else { return false };
        if matches!(self.at, At::DotOfName | At::Relation) {
            self.named(name);
            return true;
        }
        let settled = self.settle();
        self.at = At::Elsewhere;
        self.words = [Word::Other, Word::None];
        settled
    }

    fn symbol(&mut self, text: &[u8]) -> bool {
        let word = std::mem::replace(&mut self.words, [Word::None; 2])[0];
        if text == b"." {
            self.at = match self.at {
                At::Name => At::DotOfName,
                At::Elsewhere => At::Dot,
                _ => return false,
            };
            return true;
        }
        let is_relation = self.at == At::Relation;
        match text {
            b"(" if self.at == At::Name => self.at = At::Elsewhere,
            b"(" if is_relation => {}
            _ if is_relation || self.at == At::DotOfName || !self.settle() => return false,
            _ => self.at = At::Elsewhere,
        }
        match text {
            b"(" | b"[" => {
                self.depth += 1;
                if self.depth >= DEPTH_MAX {
                    return false;
                }
                let bit = 1 << self.depth;
                self.in_from = if is_relation { self.in_from | bit } else { self.in_from & !bit };
                let is_call = word == Word::CallWithFrom;
                self.in_call = if is_call { self.in_call | bit } else { self.in_call & !bit };
            }
            b")" | b"]" => {
                let Some(depth) = self.depth.checked_sub(1) else { return false };
                self.depth = depth;
            }
            b"," if self.has(self.in_from) => self.at = At::Relation,
            _ => {}
        }
        true
    }

    fn other(&mut self) -> bool {
        self.words = [Word::None; 2];
        if matches!(self.at, At::Relation | At::DotOfName) || !self.settle() {
            return false;
        }
        self.at = At::Elsewhere;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables that a text names as `schema.table`, if they are told.
    fn tables(sql: &str) -> Option<String> {
        let mut all = Vec::new();
        let certain = names_only_tables(sql.as_bytes(), |schema, table| {
            let dot = if schema.is_empty() { "" } else { "." };
            let [schema, table] = [schema, table].map(|name| String::from_utf8_lossy(name).into_owned());
            all.push(format!("{schema}{dot}{table}"));
            true
        });
        certain.then(|| all.join(" "))
    }

    #[test]
    fn each_table_is_found() {
        for (sql, expected) in [
            ("select 1", ""),
            ("select * from a", "a"),
            ("select * from A x, s.\"B\" as y, db.s.c where x.a, d", "a s.B s.c"),
            ("select * from a join b on a.x = b.limit, c", "a b c"),
            ("select * from a join b using (x, y), c", "a b c"),
            ("select * from (a join b on true) join lateral (select * from c, d) e on true", "a b c d"),
            ("select * from only (a), generate_series(1, 2) g, b", "a b"),
            (
                "select (select x from b), (table c) from a where exists (select from d order by x, y)",
                "b c a d",
            ),
            ("table a", "a"),
            ("values ((select 1 from a), 2), (3, 4)", "a"),
            ("with x as (select * from a) select * from x union all select 1, 2 from b, c", "a x b c"),
            ("select extract(year from t), trim(both from u), substring(v from 2) from a", "a"),
            ("select extract(year from (select t from b)) from a", "b a"),
            ("select x is not distinct from y, x is distinct from z from a", "a"),
            ("select distinct from a", "a"),
            ("select a.from, b as from, c from d group by e, f", "d"),
            ("select * from a as x (p, q), b", "a b"),
            ("select * from a[1]", "a"),
        ] {
            assert_eq!(tables(sql).as_deref(), Some(expected), "{sql}");
        }
    }

    #[test]
    fn a_text_in_doubt_names_any() {
        for sql in [
            "select * from",
            "select * from a.",
            "select * from 'a'",
            "select * from U&\"a\"",
            "select * from \u{e9}",
            "select * from $1",
            "select * from a,",
            "select ')",
            ")",
        ] {
            assert_eq!(tables(sql), None, "{sql}");
        }
        assert_eq!(tables(&"(".repeat(100)), None);
        assert!(!names_only_tables(b"select * from a, b", |_, table| table == b"a"));
    }
}
