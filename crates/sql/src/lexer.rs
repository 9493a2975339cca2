//! Cuts SQL into lexemes, with the rules of PostgreSQL's `src/backend/parser/scan.l`
//! (<https://www.postgresql.org/docs/current/sql-syntax-lexical.html>).
//!
//! The lexer tells what is inside quotes and comments, and what is not. If the answer depends on something
//! that the text does not say, the lexer stops with a [`Doubt`]. It never allocates, and it looks at each
//! byte a bounded number of times.
//!
//! Encodings: PostgreSQL lexes after conversion to the server's encoding, this lexer before it. In UTF-8 and
//! every encoding that a server can have this makes no difference. In the others (SJIS, BIG5, GBK, UHC,
//! JOHAB, GB18030) the second byte of a character may look like ASCII, but never like a quote, a dollar, a
//! blank, a dash or a star. So a byte above 127 is a doubt if the next byte is a character that it could
//! matter for.

use std::iter::FusedIterator;

use crate::scan::chunks::{self, CHUNK};

mod quotes;

pub use quotes::quote_identifier;

#[cfg(test)]
mod tests;

/// One token of SQL: a word, a literal, an operator or a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lexeme<'a> {
    /// The class of the lexeme, which says how to read `text`.
    pub kind: Kind,
    /// The bytes of the lexeme. For the quoted kinds: the bytes between the quotes, with escapes and doubled
    /// quotes still in them.
    pub text: &'a [u8],
}

/// The class of a [`Lexeme`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or an identifier without quotes; letters in any case.
    Word,
    /// `"..."`.
    QuotedWord,
    /// `U&"..."`: an identifier with escapes, so its real name differs from its bytes.
    UnicodeWord,
    /// `'...'`. A `B`, `X` or `N` before the quote is a lexeme of its own, a [`Kind::Word`].
    Text,
    /// `E'...'`.
    EscapeText,
    /// `U&'...'`.
    UnicodeText,
    /// `$tag$...$tag$`.
    DollarText,
    /// A number without sign.
    Number,
    /// A parameter such as `$1`; the text is the digits.
    Param,
    /// One or more of ``~ ! @ # ^ & | ` ? + - * / % < > =``.
    Operator,
    /// One of `( ) [ ] , ; : .`
    Symbol,
}

/// The reason why the lexer cannot go on. PostgreSQL itself may be able to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// A quote or a comment has no end. PostgreSQL would report an error.
    Unterminated,
    /// The end of a string depends on `standard_conforming_strings`.
    Backslash,
    /// The meaning depends on the client's encoding.
    Encoding,
    /// An `E'...'` string that may continue on the next line.
    Continuation,
    /// A number or parameter directly followed by letters: versions of PostgreSQL differ in how they read it.
    Number,
    /// A character that is not part of SQL.
    Character,
}

/// An iterator over the lexemes of a text, without blanks and comments. After an error it returns `None`.
#[derive(Debug, Clone)]
pub struct Lexer<'a> {
    sql: &'a [u8],
    /// Offset of the next lexeme, or of the blanks and comments before it; the end of the text after an
    /// error.
    at: usize,
}

impl<'a> Lexer<'a> {
    /// Starts at the beginning of `sql`, which is in the client's encoding.
    #[must_use]
    pub fn new(sql: &'a [u8]) -> Self {
        Self { sql, at: 0 }
    }

    /// The part of the text that the lexer has not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.sql.get(self.at..).unwrap_or_default()
    }

    /// Passes the next lexeme to `sink`. Returns `false` at the end of the text. After an error it must not
    /// be called again.
    #[inline(always)]
    pub(crate) fn step<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<bool, Doubt> {
        let mut at = self.at;
        loop {
            let Some(&byte) = self.sql.get(at) else {
                self.at = at;
                return Ok(false);
            };
            let class = class::OF[usize::from(byte)];
            if class == Class::Blank {
                at += 1;
                continue;
            }
            self.at = at;
            match class {
                Class::Word => self.word(sink)?,
                Class::Symbol => {
                    self.at = at + 1;
                    sink.symbol(byte, &self.sql[at..=at]);
                }
                Class::Digit => self.number(sink)?,
                Class::Prefix if !self.is_prefix() => self.word(sink)?,
                Class::Minus if self.sql.get(at + 1) == Some(&b'-') => {
                    // A comment is skipped in this loop, so `step` always returns with a lexeme, at the end,
                    // or with a doubt.
                    at += 2 + line_len(self.sql, at + 2);
                    continue;
                }
                Class::Slash if self.sql.get(at + 1) == Some(&b'*') => {
                    at = comment_end(self.sql, at + 2)?;
                    continue;
                }
                Class::Operator | Class::Minus | Class::Slash => self.operator(sink),
                Class::Quote => {
                    let text = self.quoted(1, quotes::standard)?;
                    sink.literal(Kind::Text, text);
                }
                Class::DoubleQuote => {
                    let text = self.quoted(1, quotes::plain::<b'"'>)?;
                    sink.quoted_word(Kind::QuotedWord, text);
                }
                Class::Prefix => self.prefixed(sink)?,
                Class::Dollar => self.dollar(sink)?,
                Class::Blank | Class::Foreign => return Err(Doubt::Character),
            }
            return Ok(true);
        }
    }

    /// Reads a word, which must not end in half of a character (see the head of this file).
    #[inline(always)]
    fn word<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<(), Doubt> {
        let from = self.at;
        let chunk = chunks::load(self.sql, from);
        let mut len = chunks::word_len(chunk);
        let head = chunks::first(chunks::fold(chunk), len);
        let mut to = from + len;
        while len == CHUNK {
            len = chunks::word_len(chunks::load(self.sql, to));
            to += len;
        }
        let text = self.sql.get(from..to).unwrap_or_default();
        if let (Some(0x80..), Some(b':'..=b'~')) = (text.last(), self.sql.get(to)) {
            return Err(Doubt::Encoding);
        }
        self.at = to;
        sink.word(head, text);
        Ok(())
    }

    /// Returns whether the letter at this place (`E` or `U`) is the prefix of a quoted text and not the
    /// beginning of a word.
    #[inline]
    fn is_prefix(&self) -> bool {
        matches!(self.sql.get(self.at + 1), Some(b'\'' | b'&'))
    }

    /// Reads a text whose prefix (`E`, `U&`) says how it is quoted; or a word, if the letter is no prefix
    /// after all.
    fn prefixed<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<(), Doubt> {
        match self.rest() {
            [b'e' | b'E', b'\'', ..] => sink.literal(Kind::EscapeText, self.quoted(2, quotes::escape)?),
            [b'u' | b'U', b'&', b'\'', ..] => {
                sink.literal(Kind::UnicodeText, self.quoted(3, quotes::plain::<b'\''>)?);
            }
            [b'u' | b'U', b'&', b'"', ..] => {
                sink.quoted_word(Kind::UnicodeWord, self.quoted(3, quotes::plain::<b'"'>)?);
            }
            _ => return self.word(sink),
        }
        Ok(())
    }

    /// Reads a quoted text: `opening` bytes, the inside up to the offset that `find_end` returns, and one
    /// closing quote.
    #[inline]
    fn quoted(
        &mut self,
        opening: usize,
        find_end: impl FnOnce(&[u8], usize) -> Result<usize, Doubt>,
    ) -> Result<&'a [u8], Doubt> {
        let from = self.at + opening;
        let to = find_end(self.sql, from)?;
        self.at = to + 1;
        Ok(self.sql.get(from..to).unwrap_or_default())
    }

    fn dollar<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<(), Doubt> {
        let from = self.at + 1;
        let to = self.digits_end(from);
        if to > from {
            return self.numeral(sink, Kind::Param, from, to);
        }
        let (from, to, next) = quotes::dollar(self.sql, self.at)?;
        self.at = next;
        sink.literal(Kind::DollarText, self.sql.get(from..to).unwrap_or_default());
        Ok(())
    }

    /// Reads digits with at most one point and an exponent. Newer forms (hexadecimal, underscores) end the
    /// number and begin a word, as they do for the oldest supported server.
    #[inline]
    fn number<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<(), Doubt> {
        let mut to = self.digits_end(self.at);
        if let Some(b'.' | b'e' | b'E') = self.sql.get(to) {
            to = self.fraction_end(to);
        }
        self.numeral(sink, Kind::Number, self.at, to)
    }

    /// Returns the end of a number whose whole part ends at `to`.
    fn fraction_end(&self, mut to: usize) -> usize {
        if self.sql.get(to) == Some(&b'.') {
            to = self.digits_end(to + 1);
        }
        if let Some(b'e' | b'E') = self.sql.get(to) {
            let digits = to + 1 + usize::from(matches!(self.sql.get(to + 1), Some(b'+' | b'-')));
            let end = self.digits_end(digits);
            // Without digits the letter begins a word, and `numeral` refuses the number.
            to = if end > digits { end } else { to };
        }
        to
    }

    /// Reads a number or parameter. A letter directly after it is a doubt.
    #[inline]
    fn numeral<S: Sink<'a>>(
        &mut self,
        sink: &mut S,
        kind: Kind,
        from: usize,
        to: usize,
    ) -> Result<(), Doubt> {
        if self.sql.get(to).copied().is_some_and(is_word_part) {
            return Err(Doubt::Number);
        }
        self.at = to;
        sink.literal(kind, self.sql.get(from..to).unwrap_or_default());
        Ok(())
    }

    #[inline]
    fn digits_end(&self, mut at: usize) -> usize {
        loop {
            let len = chunks::digits_len(chunks::load(self.sql, at));
            at += len;
            if len < CHUNK {
                return at;
            }
        }
    }

    /// Reads an operator. A comment ends it.
    #[inline]
    fn operator<S: Sink<'a>>(&mut self, sink: &mut S) {
        let from = self.at;
        let mut to = from + 1;
        while let Some(&byte) = self.sql.get(to) {
            let next = self.sql.get(to + 1);
            let goes_on = match class::OF[usize::from(byte)] {
                Class::Operator => true,
                Class::Minus => next != Some(&b'-'),
                Class::Slash => next != Some(&b'*'),
                _ => false,
            };
            if !goes_on {
                break;
            }
            to += 1;
        }
        self.at = to;
        sink.operator(self.sql.get(from..to).unwrap_or_default());
    }
}

/// A receiver of lexemes, with a method for each class.
pub(crate) trait Sink<'a> {
    /// Takes a word. `head` is its first eight bytes, folded (see [`chunks::fold`]), with zeros after a
    /// shorter word.
    fn word(&mut self, head: u64, text: &'a [u8]);

    /// Takes a name in double quotes.
    fn quoted_word(&mut self, kind: Kind, text: &'a [u8]);

    /// Takes a constant or a parameter.
    fn literal(&mut self, kind: Kind, text: &'a [u8]);

    /// Takes an operator.
    fn operator(&mut self, text: &'a [u8]);

    /// Takes a symbol, which is one byte.
    fn symbol(&mut self, byte: u8, text: &'a [u8]);
}

/// Keeps the last lexeme, for callers that want lexemes one by one.
impl<'a> Sink<'a> for Option<Lexeme<'a>> {
    fn word(&mut self, _head: u64, text: &'a [u8]) {
        *self = Some(Lexeme { kind: Kind::Word, text });
    }

    fn quoted_word(&mut self, kind: Kind, text: &'a [u8]) {
        *self = Some(Lexeme { kind, text });
    }

    fn literal(&mut self, kind: Kind, text: &'a [u8]) {
        *self = Some(Lexeme { kind, text });
    }

    fn operator(&mut self, text: &'a [u8]) {
        *self = Some(Lexeme { kind: Kind::Operator, text });
    }

    fn symbol(&mut self, _byte: u8, text: &'a [u8]) {
        *self = Some(Lexeme { kind: Kind::Symbol, text });
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Result<Lexeme<'a>, Doubt>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut lexeme = None;
        if let Err(doubt) = self.step(&mut lexeme) {
            self.at = self.sql.len();
            return Some(Err(doubt));
        }
        lexeme.map(Ok)
    }
}

impl FusedIterator for Lexer<'_> {}

/// Returns the number of bytes from `at`, inside a `--` comment, to the next line end.
fn line_len(sql: &[u8], at: usize) -> usize {
    chunks::count_until(sql, at, b'\n', b'\r')
}

/// Returns the end of the `/* */` comment in which `at` is. Comments nest.
fn comment_end(sql: &[u8], mut at: usize) -> Result<usize, Doubt> {
    let mut depth = 1usize;
    while depth > 0 {
        at += chunks::count_until(sql, at, b'*', b'/');
        match (sql.get(at), sql.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            (Some(b'*'), Some(b'/')) => {
                depth -= 1;
                at += 2;
            }
            (Some(b'/'), Some(b'*')) => {
                depth += 1;
                at += 2;
            }
            _ => at += 1,
        }
    }
    Ok(at)
}

/// The class of lexeme that a byte can begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Blank,
    Word,
    /// A letter that begins a word, or the prefix of a quoted text.
    Prefix,
    Digit,
    Symbol,
    Operator,
    /// An operator or a comment.
    Minus,
    /// An operator or a comment.
    Slash,
    Quote,
    DoubleQuote,
    Dollar,
    /// A byte with which nothing in SQL begins.
    Foreign,
}

mod class {
    use super::Class;

    /// The class of each byte.
    pub(super) const OF: [Class; 256] = {
        let mut of = [Class::Foreign; 256];
        let mut byte = 0;
        while byte < 256 {
            of[byte] = match byte as u8 {
                b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' => Class::Blank,
                b'e' | b'E' | b'u' | b'U' => Class::Prefix,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => Class::Word,
                b'0'..=b'9' => Class::Digit,
                b'(' | b')' | b'[' | b']' | b',' | b';' | b':' | b'.' => Class::Symbol,
                b'~' | b'!' | b'@' | b'#' | b'^' | b'&' | b'|' | b'`' | b'?' => Class::Operator,
                b'+' | b'*' | b'%' | b'<' | b'>' | b'=' => Class::Operator,
                b'-' => Class::Minus,
                b'/' => Class::Slash,
                b'\'' => Class::Quote,
                b'"' => Class::DoubleQuote,
                b'$' => Class::Dollar,
                _ => Class::Foreign,
            };
            byte += 1;
        }
        of
    };
}

fn is_blank(byte: u8) -> bool {
    class::OF[usize::from(byte)] == Class::Blank
}

#[inline]
fn is_word_part(byte: u8) -> bool {
    use Class::{Digit, Dollar, Prefix, Word};
    matches!(class::OF[usize::from(byte)], Word | Prefix | Digit | Dollar)
}
