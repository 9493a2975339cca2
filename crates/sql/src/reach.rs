//! Tells whether a statement only reads.
//!
//! A text certainly reads if it is one query that changes nothing, waits for no lock that another transaction
//! holds on a row, and runs no user's code; it may still wait for a lock on a whole table. In doubt the
//! answer must be "no", which costs speed, never correctness. The text alone does not tell what a name stands
//! for, so the caller, which knows the catalog, is asked about each name.

mod built_in;
mod locals;
mod one_server;
mod outside;
mod single_row;
mod tables;
mod varying;

use crate::lexer::{Kind, Lexer};
use built_in::{FUNCTIONS, KEYWORDS};

pub use locals::sets_locally;
pub use one_server::{AtStandby, at_standby};
pub use outside::outside_name;
pub use single_row::{ComparedValue, Equality, single_table_equalities};
pub use tables::names_only_tables;
pub use varying::varying_name;

#[cfg(test)]
mod tests;

/// The role that a name has in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRole {
    /// The name of anything: a table, a column, a type, a function.
    Mentioned,
    /// The name of a function that is called, and that is not a built-in one known to only read.
    Called,
}

/// The longest name that PostgreSQL does not cut (`NAMEDATALEN`). A longer one may be another name.
const NAME_BYTES_MAX: usize = 63;

/// PostgreSQL's own names that are harmless, although other names that begin with `pg_` may not be.
const HARMLESS: [&[u8]; 4] = [b"pg_catalog", b"pg_column_size", b"pg_size_pretty", b"pg_typeof"];

/// Returns a number by which names, as the catalog has them, are compared. All names with letters beyond
/// ASCII have the number 0: how PostgreSQL folds them depends on its encoding.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    // FNV-1a.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in name {
        if !byte.is_ascii() {
            return 0;
        }
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.max(1)
}

/// Returns whether `sql` is certainly a single query that only reads. The caller's `allows` gets the
/// [`name_hash`] of each name in it and returns whether the name may be used in this role.
///
/// Takes time linear in the length of `sql` and allocates nothing; the caller bounds the length.
#[must_use]
pub fn certainly_reads(sql: &[u8], allows: impl FnMut(NameRole, u64) -> bool) -> bool {
    scan(sql, allows, |_| {})
}

/// Returns the part of `sql` for which [`certainly_reads`] says no: a word, or an empty text if the whole is
/// no such query. `None` if it says yes.
#[must_use]
pub fn doubtful_part(sql: &[u8], mut allows: impl FnMut(NameRole, u64) -> bool) -> Option<&[u8]> {
    let (mut refused, mut last) = (None, &b""[..]);
    let judge = |role, name| {
        let allowed = allows(role, name);
        refused = refused.or((!allowed).then_some(name));
        allowed
    };
    if scan(sql, judge, |part| last = part) {
        return None;
    }
    let has_hash =
        |text: &[u8], hash| name_hash(text) == hash || name_hash(&text.to_ascii_lowercase()) == hash;
    let named = refused.and_then(|hash| find_name(sql, |text| has_hash(text, hash)));
    Some(named.unwrap_or(last))
}

/// Returns the first word of `sql`, with or without quotes, for which `is_it` returns `true`.
#[must_use]
pub fn find_name(sql: &[u8], is_it: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
    let words = Lexer::new(sql).map_while(Result::ok);
    let words = words.filter(|lexeme| matches!(lexeme.kind, Kind::Word | Kind::QuotedWord));
    words.map(|lexeme| lexeme.text).find(|text| is_it(text))
}

#[inline]
fn scan<'a>(
    sql: &'a [u8],
    allows: impl FnMut(NameRole, u64) -> bool,
    mut sees: impl FnMut(&'a [u8]),
) -> bool {
    let mut scan = Scan { allows, before: Before::Start, word: None, depth: 0, ended: false };
    for lexeme in Lexer::new(sql) {
        let Ok(lexeme) = lexeme else {
            sees(b"");
            return false;
        };
        sees(lexeme.text);
        let reads = match lexeme.kind {
            Kind::Word => scan.word(lexeme.text),
            Kind::QuotedWord => scan.quoted_word(lexeme.text),
            Kind::UnicodeWord => false,
            Kind::Symbol => scan.symbol(lexeme.text),
            Kind::Operator => scan.other(Before::Other),
            Kind::Text | Kind::EscapeText | Kind::UnicodeText | Kind::DollarText | Kind::Number => {
                scan.other(Before::Other)
            }
            Kind::Param => scan.other(Before::Operand),
        };
        if !reads {
            return false;
        }
    }
    scan.settle() && scan.before != Before::Start && scan.depth == 0
}

/// The lexeme before the next one, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing but opening parentheses and semicolons.
    Start,
    /// A word.
    Word,
    /// AS, WITH or RECURSIVE: the next word is a new name and calls nothing.
    Naming,
    /// FOR or KEY: a SHARE after it locks rows.
    Locking,
    /// `)`, `]` or a parameter: a word after the dot that follows may be a function's name.
    Operand,
    /// A dot after a word.
    Dot,
    /// A dot after something else than a word.
    DotOfOperand,
    /// Any other lexeme.
    Other,
}

/// A word that may be called: the next lexeme decides.
#[derive(Clone, Copy)]
struct Word {
    hash: u64,
    /// `true` if the caller need not be asked about a call of this word.
    is_free: bool,
}

struct Scan<F> {
    allows: F,
    before: Before,
    word: Option<Word>,
    /// The number of open parentheses and brackets.
    depth: usize,
    /// `true` after a semicolon that follows the statement.
    ended: bool,
}

impl<F: FnMut(NameRole, u64) -> bool> Scan<F> {
    /// Reports the last word as a mention, because no parenthesis follows it. Returns whether it is allowed.
    fn settle(&mut self) -> bool {
        match self.word.take() {
            Some(word) => (self.allows)(NameRole::Mentioned, word.hash),
            None => true,
        }
    }

    fn word(&mut self, text: &[u8]) -> bool {
        if !self.settle() || self.ended || text.len() > NAME_BYTES_MAX {
            return false;
        }
        let mut lower = [0; NAME_BYTES_MAX];
        let name = &mut lower[..text.len()];
        name.copy_from_slice(text);
        name.make_ascii_lowercase();
        let name = &*name;
        let behind_dot = matches!(self.before, Before::Dot | Before::DotOfOperand);
        if self.before == Before::Start {
            if !matches!(name, b"select" | b"values" | b"table" | b"with") {
                return false;
            }
        // Not only as the first word: a WITH can hold a change, and SELECT ... FOR SHARE locks rows.
        } else if !behind_dot && changes(name) || self.before == Before::Locking && name == b"share" {
            return false;
        }
        if is_system_name(name) || !self.named(name, !behind_dot && is_in(KEYWORDS, name)) {
            return false;
        }
        self.before = match name {
            _ if behind_dot => Before::Word,
            b"as" | b"with" | b"recursive" => Before::Naming,
            b"for" | b"key" => Before::Locking,
            _ => Before::Word,
        };
        true
    }

    fn quoted_word(&mut self, text: &[u8]) -> bool {
        // A doubled quote inside the name is a name of its own kind, too rare to be read.
        let odd = |byte: &u8| *byte == b'"' || byte.is_ascii_control();
        if !self.settle() || self.ended || text.len() > NAME_BYTES_MAX || text.iter().any(odd) {
            return false;
        }
        if self.before == Before::Start || is_system_name(text) || !self.named(text, false) {
            return false;
        }
        self.before = Before::Word;
        true
    }

    fn named(&mut self, name: &[u8], is_keyword: bool) -> bool {
        let is_given = self.before == Before::Naming;
        let is_free = is_keyword || is_given || is_in(FUNCTIONS, name);
        self.word = Some(Word { hash: name_hash(name), is_free });
        // `(x).f` means `f(x)` if `f` is not a column.
        self.before != Before::DotOfOperand || self.calls_known()
    }

    /// Returns whether the last word may be called.
    fn calls_known(&mut self) -> bool {
        self.word.is_none_or(|word| word.is_free || (self.allows)(NameRole::Called, word.hash))
    }

    fn symbol(&mut self, text: &[u8]) -> bool {
        if text == b"(" && !self.calls_known() || !self.settle() {
            return false;
        }
        match text {
            b"(" | b"[" => self.depth += 1,
            b")" | b"]" if self.depth == 0 => return false,
            b")" | b"]" => self.depth -= 1,
            _ => {}
        }
        match text {
            b";" if self.depth > 0 => return false,
            b";" => {
                self.ended |= self.before != Before::Start;
                return true;
            }
            _ if self.ended => return false,
            b"(" if self.before == Before::Start => return true,
            _ if self.before == Before::Start => return false,
            b"." if matches!(self.before, Before::Word | Before::Naming | Before::Locking) => {
                self.before = Before::Dot;
            }
            b"." => self.before = Before::DotOfOperand,
            b")" | b"]" => self.before = Before::Operand,
            _ => self.before = Before::Other,
        }
        true
    }

    fn other(&mut self, before: Before) -> bool {
        let fine = self.settle() && !self.ended && self.before != Before::Start;
        self.before = before;
        fine
    }
}

/// Returns whether a word may begin a change, or a lock of rows, wherever it occurs. A column of that name
/// only makes the answer a "no".
fn changes(name: &[u8]) -> bool {
    matches!(name, b"insert" | b"update" | b"delete" | b"merge" | b"into" | b"copy" | b"execute" | b"call")
}

/// Returns whether a name of PostgreSQL's own, other than its functions, may show or change the state of the
/// server.
fn is_system_name(name: &[u8]) -> bool {
    name == b"information_schema" || name.starts_with(b"pg_") && !HARMLESS.contains(&name)
}

fn is_in(list: &[&str], name: &[u8]) -> bool {
    list.binary_search_by(|known| known.as_bytes().cmp(name)).is_ok()
}
