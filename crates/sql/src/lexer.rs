//! Cuts SQL into lexemes, with the rules of PostgreSQL's `src/backend/parser/scan.l`
//! (<https://www.postgresql.org/docs/current/sql-syntax-lexical.html>).
//!
//! What this file is for: to know what is inside of quotes and comments, and what is not. Where the answer depends on
//! something that the text does not say, the lexer stops with a [`Doubt`]. It never allocates and looks at each byte
//! a bounded number of times.
//!
//! About encodings: PostgreSQL lexes after conversion to the server's encoding, this lexer before. In UTF-8 and every
//! encoding that a server can have this makes no difference. In the others (SJIS, BIG5, GBK, UHC, JOHAB, GB18030) the
//! second byte of a character may look like ASCII, never like a quote, a dollar, a blank, a dash or a star; so a byte
//! above 127 that is followed by one of the characters that it could matter for is a doubt.

use std::iter::FusedIterator;

use crate::scan::chunks::{self, CHUNK};

mod quotes;

#[cfg(test)]
mod tests;

/// A piece of SQL that stands for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lexeme<'a> {
    /// What it is.
    pub kind: Kind,
    /// The bytes of it. For the quoted kinds: what is between the quotes, as it stands there.
    pub text: &'a [u8],
}

/// What a lexeme is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A keyword or an identifier without quotes; letters in any case.
    Word,
    /// `"..."`.
    QuotedWord,
    /// `U&"..."`: an identifier whose real text is not what stands there.
    UnicodeWord,
    /// `'...'` (also with `B`, `X` or `N` before it, which is then a word).
    Text,
    /// `E'...'`.
    EscapeText,
    /// `U&'...'`.
    UnicodeText,
    /// `$tag$...$tag$`.
    DollarText,
    /// A number without sign.
    Number,
    /// `$1`: the text is the digits.
    Param,
    /// One or more of ``~ ! @ # ^ & | ` ? + - * / % < > =``.
    Operator,
    /// One of `( ) [ ] , ; : .`
    Symbol,
}

/// Why the lexer cannot go on. PostgreSQL may well know how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// A quote or a comment has no end. PostgreSQL would report an error.
    Unterminated,
    /// Where a string ends depends on `standard_conforming_strings`.
    Backslash,
    /// The meaning depends on the client's encoding.
    Encoding,
    /// An `E'...'` string that may be continued on the next line.
    Continuation,
    /// A number or parameter with letters behind it: versions differ.
    Number,
    /// A character that is no part of SQL.
    Character,
}

/// Iterates over the lexemes of a text; blanks and comments are left out. After an error there is nothing more.
#[derive(Debug, Clone)]
pub struct Lexer<'a> {
    sql: &'a [u8],
    /// Where the next lexeme, or what is before it, begins; the end of the text after an error.
    at: usize,
}

impl<'a> Lexer<'a> {
    /// Starts at the beginning of `sql`, which is in the client's encoding.
    #[must_use]
    pub fn new(sql: &'a [u8]) -> Self {
        Self { sql, at: 0 }
    }

    /// What has not been looked at yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.sql.get(self.at..).unwrap_or_default()
    }

    /// Tells `sink` of the next lexeme; false at the end. After an error it must not be called again.
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

    /// A word. It must not end in half of a character, see the head of this file.
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

    /// Whether a letter that may say what kind of quoted text follows does so.
    #[inline]
    fn is_prefix(&self) -> bool {
        matches!(self.sql.get(self.at + 1), Some(b'\'' | b'&'))
    }

    /// A quoted text whose kind is said by letters before its quote, or a word after all.
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

    /// Takes a quoted text: `opening` bytes, then up to where `find_end` says, then one closing quote.
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

    /// Digits with at most one point and an exponent. Other forms (hexadecimal, underscores) are newer than the
    /// oldest server, for which they end the number and begin a word.
    #[inline]
    fn number<S: Sink<'a>>(&mut self, sink: &mut S) -> Result<(), Doubt> {
        let mut to = self.digits_end(self.at);
        if let Some(b'.' | b'e' | b'E') = self.sql.get(to) {
            to = self.fraction_end(to);
        }
        self.numeral(sink, Kind::Number, self.at, to)
    }

    /// Where a number ends whose whole part ends at `to`.
    fn fraction_end(&self, mut to: usize) -> usize {
        if self.sql.get(to) == Some(&b'.') {
            to = self.digits_end(to + 1);
        }
        if let Some(b'e' | b'E') = self.sql.get(to) {
            let digits = to + 1 + usize::from(matches!(self.sql.get(to + 1), Some(b'+' | b'-')));
            let end = self.digits_end(digits);
            // Without digits the letter begins a word, which is refused then.
            to = if end > digits { end } else { to };
        }
        to
    }

    /// Takes a number or parameter, behind which no letters may stand.
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

    /// An operator; a comment ends it.
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

/// Takes lexemes, one by one.
pub(crate) trait Sink<'a> {
    /// A word. `head` is its first eight bytes, folded (see [`chunks::fold`]), with zeros behind a shorter one.
    fn word(&mut self, head: u64, text: &'a [u8]);

    /// A name in double quotes.
    fn quoted_word(&mut self, kind: Kind, text: &'a [u8]);

    /// A constant or a parameter.
    fn literal(&mut self, kind: Kind, text: &'a [u8]);

    /// An operator.
    fn operator(&mut self, text: &'a [u8]);

    /// A symbol, which is one byte.
    fn symbol(&mut self, byte: u8, text: &'a [u8]);
}

/// For callers that want them one by one.
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

/// How far it is from `at` to the next line end, for the inside of a `--` comment.
fn line_len(sql: &[u8], at: usize) -> usize {
    chunks::count_until(sql, at, b'\n', b'\r')
}

/// Where the comment ends whose inside `at` is in; comments nest.
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

/// What a lexeme is that begins with a byte.
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
    /// Nothing in SQL begins so.
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
