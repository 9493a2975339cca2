//! Finds the names of settings that a text may set other than by a SET statement: with `set_config`, or with
//! SQL in strings and in the bodies of routines.
//!
//! No list of PostgreSQL shows settings that users made up (`app.tenant`), so a server can be asked only for
//! those whose names are known. The file may find too many names, and reports if a name cannot be read. It
//! must never report a name as read that may be another one.

use std::borrow::Cow;

use crate::lexer::{Kind, Lexeme, Lexer};
use crate::scan::identifiers::{dotted_name, undouble};

mod dynamic;
mod raw;

#[cfg(test)]
mod tests;

/// The names of settings that a text may set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingNames {
    /// Names with a dot in them, in lower case. Names without a dot are PostgreSQL's own, which its lists
    /// show.
    pub names: Vec<Box<[u8]>>,
    /// Parameters of the statement, counted from 1, whose values are such names.
    pub parameters: Vec<usize>,
    /// `true` if the text may set settings whose names are not in `names`.
    pub unreadable: bool,
}

/// The number of levels of strings within strings that are lexed.
const DEPTH_MAX: usize = 4;

impl SettingNames {
    /// Returns the names in a text that a client sends. `in_strings`: strings in the text may be SQL that is
    /// run.
    #[must_use]
    pub fn of(sql: &[u8], in_strings: bool) -> SettingNames {
        let mut names = SettingNames::default();
        names.read(sql, 0, in_strings);
        names
    }

    /// Returns the names in the body of a routine.
    #[must_use]
    pub fn of_body(body: &[u8]) -> SettingNames {
        let mut names = SettingNames::default();
        names.read(body, 1, true);
        names
    }

    /// Returns the names in a parameter's value, which the statement may run as SQL.
    #[must_use]
    pub fn of_value(value: &[u8]) -> SettingNames {
        let mut names = SettingNames::default();
        names.read_string(value, 0);
        names
    }

    /// Returns the names in a text whose beginning is not known, or that may be read in more than one way:
    /// every word counts, wherever it occurs. Words that begin in the last `overlap` bytes are left for the
    /// next part.
    #[must_use]
    pub fn of_part(part: &[u8], overlap: usize) -> SettingNames {
        let mut names = SettingNames::default();
        names.read_raw(part, part.len().saturating_sub(overlap));
        names
    }

    /// Adds a name, which may have any form.
    pub fn add(&mut self, name: &[u8]) {
        if !name.is_ascii() {
            // PostgreSQL reads the name under the encoding that its client has at that time.
            self.unreadable = true;
        } else if name.contains(&b'.') {
            let name = name.to_ascii_lowercase();
            if !self.names.iter().any(|known| **known == *name) {
                self.names.push(name.into());
            }
        }
    }

    fn read(&mut self, sql: &[u8], depth: usize, in_strings: bool) {
        let mut lexer = Lexer::new(sql);
        let mut lexemes = Vec::new();
        let doubtful = loop {
            let rest = lexer.rest();
            match lexer.next() {
                Some(Ok(lexeme)) => lexemes.push(lexeme),
                Some(Err(_)) => break rest,
                None => break &[],
            }
        };
        let text = Text { lexemes: &lexemes };
        for at in 0..lexemes.len() {
            self.read_lexeme(text, at, depth, in_strings);
        }
        if !doubtful.is_empty() {
            self.read_raw(doubtful, doubtful.len());
        }
    }

    fn read_lexeme(&mut self, text: Text<'_, '_>, at: usize, depth: usize, in_strings: bool) {
        let Some(lexeme) = text.get(at) else { return };
        match lexeme.kind {
            // A SET of the text itself is found by `assignments.rs`; one in a string or a body is not.
            Kind::Word if depth > 0 && text.is(at, b"set") && text.begins_statement(at) => {
                self.read_set(text, at + 1);
            }
            Kind::Word if depth > 0 && text.is(at, b"execute") && !text.is_known_statement(at) => {
                self.unreadable = true;
            }
            Kind::Word if text.is(at, b"set_config") => self.read_call(text, at),
            Kind::QuotedWord if lexeme.text == b"set_config" => self.read_call(text, at),
            // The escapes may spell the name of any function.
            Kind::UnicodeWord if text.is_symbol(at + 1, b"(") => self.unreadable = true,
            Kind::Text if in_strings && !text.is_definition(at) => {
                self.read_string(&undouble(lexeme.text, b'\''), depth);
            }
            Kind::DollarText if in_strings && !text.is_definition(at) => {
                self.read_string(lexeme.text, depth);
            }
            Kind::EscapeText | Kind::UnicodeText if in_strings => match unescape(lexeme) {
                Some(string) => self.read_string(&string, depth),
                None => self.unreadable = true,
            },
            _ => {}
        }
    }

    /// Reads a string that may be run as SQL.
    fn read_string(&mut self, string: &[u8], depth: usize) {
        let telling = [&b"set"[..], b"execute", b"u&\""];
        let has = |word: &&[u8]| string.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
        if !telling.iter().any(has) {
            return;
        }
        if depth < DEPTH_MAX {
            self.read(string, depth + 1, true);
        } else {
            self.read_raw(string, string.len());
        }
    }

    /// Reads the name after SET.
    fn read_set(&mut self, text: Text<'_, '_>, mut at: usize) {
        let names_one = |at| text.is_symbol(at, b".") || text.is_sign(at);
        if !names_one(at + 1) {
            if text.is(at, b"local") {
                return;
            }
            at += usize::from(text.is(at, b"session"));
        }
        match dotted_name(|at| text.get(at), at) {
            Some((name, next)) if text.is_sign(next) || text.is(next, b"from") => self.add(&name),
            // A phrase (SET TIME ZONE) sets one of PostgreSQL's own settings; prose sets none.
            Some((_, next)) if text.get(next).is_some_and(|next| next.kind != Kind::Operator) => {}
            _ => self.unreadable = true,
        }
    }

    /// Reads a call of `set_config`.
    fn read_call(&mut self, text: Text<'_, '_>, at: usize) {
        if !text.is_symbol(at + 1, b"(") {
            // At the end of a string the arguments are appended when the SQL is run, so they are not known.
            self.unreadable |= text.get(at + 1).is_none();
            return;
        }
        if text.lasts_for_transaction(at + 1) {
            return;
        }
        let behind = if text.is_cast_to_text(at + 3) { at + 6 } else { at + 3 };
        let argument = text.get(at + 2).filter(|_| text.is_symbol(behind, b","));
        let Some(argument) = argument else {
            self.unreadable = true;
            return;
        };
        match argument.kind {
            Kind::Text if !argument.text.contains(&b'\\') => self.add(&undouble(argument.text, b'\'')),
            Kind::DollarText => self.add(argument.text),
            Kind::EscapeText if !argument.text.contains(&b'\\') => self.add(&undouble(argument.text, b'\'')),
            Kind::Param => match std::str::from_utf8(argument.text).map(str::parse) {
                Ok(Ok(number)) => self.parameters.push(number),
                _ => self.unreadable = true,
            },
            // `set_config(NULL, ...)` is an error, so it sets nothing.
            Kind::Word if text.is(at + 2, b"null") => {}
            _ => self.unreadable = true,
        }
    }
}

/// The lexemes of a text.
#[derive(Clone, Copy)]
struct Text<'t, 'a> {
    lexemes: &'t [Lexeme<'a>],
}

impl<'a> Text<'_, 'a> {
    fn get(self, at: usize) -> Option<Lexeme<'a>> {
        self.lexemes.get(at).copied()
    }

    fn is(self, at: usize, word: &[u8]) -> bool {
        self.get(at).is_some_and(|lexeme| lexeme.kind == Kind::Word && lexeme.text.eq_ignore_ascii_case(word))
    }

    fn is_symbol(self, at: usize, symbol: &[u8]) -> bool {
        self.get(at).is_some_and(|lexeme| lexeme.kind == Kind::Symbol && lexeme.text == symbol)
    }

    fn is_operator(self, at: usize, operator: &[u8]) -> bool {
        self.get(at).is_some_and(|lexeme| lexeme.kind == Kind::Operator && lexeme.text == operator)
    }

    /// Returns whether the lexeme at `at` is `=` or TO.
    fn is_sign(self, at: usize) -> bool {
        self.is_operator(at, b"=") || self.is(at, b"to")
    }

    /// Returns whether a statement may begin at `at`. The SET of an UPDATE does not: a name precedes it.
    fn begins_statement(self, at: usize) -> bool {
        let Some(before) = at.checked_sub(1) else { return true };
        let opens = [&b"begin"[..], b"then", b"else", b"loop", b"atomic"];
        self.get(before).is_some_and(|lexeme| !matches!(lexeme.kind, Kind::Word | Kind::QuotedWord))
            || opens.iter().any(|word| self.is(before, word))
    }

    /// Returns whether `::text` or `::varchar` stands at `at`.
    fn is_cast_to_text(self, at: usize) -> bool {
        self.is_symbol(at, b":")
            && self.is_symbol(at + 1, b":")
            && (self.is(at + 2, b"text") || self.is(at + 2, b"varchar"))
    }

    /// Returns whether the last argument of the call whose parenthesis opens at `open` is TRUE.
    fn lasts_for_transaction(self, open: usize) -> bool {
        let mut depth = 0usize;
        for at in open..self.lexemes.len() {
            if self.is_symbol(at, b"(") || self.is_symbol(at, b"[") {
                depth += 1;
            } else if self.is_symbol(at, b")") || self.is_symbol(at, b"]") {
                depth -= 1;
                if depth == 0 {
                    return self.is(at - 1, b"true") && self.is_symbol(at - 2, b",");
                }
            }
        }
        false
    }

    /// Returns whether the string at `at` belongs to a statement that creates a routine, so that it is not
    /// run now.
    fn is_definition(self, at: usize) -> bool {
        let from = (0..at).rev().find(|at| self.is_symbol(*at, b";")).map_or(0, |at| at + 1);
        let replaces = self.is(from + 1, b"or") && self.is(from + 2, b"replace");
        let kind = if replaces { from + 3 } else { from + 1 };
        self.is(from, b"create") && (self.is(kind, b"function") || self.is(kind, b"procedure"))
    }
}

/// Returns the value of a string. `None` if it has escapes other than the usual ones.
fn unescape(lexeme: Lexeme<'_>) -> Option<Cow<'_, [u8]>> {
    let text = undouble(lexeme.text, b'\'');
    if !text.contains(&b'\\') {
        return Some(text);
    }
    if lexeme.kind == Kind::UnicodeText {
        return None;
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' | b'r' | b't' => b' ',
                &other @ (b'\\' | b'\'' | b'"') => other,
                _ => return None,
            },
            _ => byte,
        });
    }
    Some(Cow::Owned(out))
}
