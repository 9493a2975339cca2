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

/// Why the lexer can not go on. PostgreSQL may well know how.
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
    rest: &'a [u8],
}

impl<'a> Lexer<'a> {
    /// Starts at the beginning of `sql`, which is in the client's encoding.
    #[must_use]
    pub fn new(sql: &'a [u8]) -> Self {
        Self { rest: sql }
    }

    /// What has not been looked at yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn lexeme(&mut self) -> Result<Option<Lexeme<'a>>, Doubt> {
        self.rest = skip_blanks(self.rest)?;
        let kind = match self.rest {
            [] => return Ok(None),
            [b'\'', ..] => return self.quoted(Kind::Text, 1, quotes::standard),
            [b'e' | b'E', b'\'', ..] => return self.quoted(Kind::EscapeText, 2, quotes::escape),
            [b'u' | b'U', b'&', b'\'', ..] => {
                return self.quoted(Kind::UnicodeText, 3, quotes::plain::<b'\''>);
            }
            [b'u' | b'U', b'&', b'"', ..] => return self.quoted(Kind::UnicodeWord, 3, quotes::plain::<b'"'>),
            [b'"', ..] => return self.quoted(Kind::QuotedWord, 1, quotes::plain::<b'"'>),
            [b'$', ..] => return self.dollar(),
            [b'0'..=b'9', ..] => return self.number(),
            [b'(' | b')' | b'[' | b']' | b',' | b';' | b':' | b'.', ..] => {
                return Ok(self.cut(Kind::Symbol, 1));
            }
            [first, ..] if is_word_start(*first) => Kind::Word,
            [first, ..] if is_operator(*first) => Kind::Operator,
            _ => return Err(Doubt::Character),
        };
        let len = if kind == Kind::Word { word_len(self.rest)? } else { operator_len(self.rest) };
        Ok(self.cut(kind, len))
    }

    /// Takes the next `len` bytes.
    fn cut(&mut self, kind: Kind, len: usize) -> Option<Lexeme<'a>> {
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(Lexeme { kind, text })
    }

    /// Takes a quoted text: `opening` bytes, then what `find_end` says, then one closing quote.
    fn quoted(
        &mut self,
        kind: Kind,
        opening: usize,
        find_end: impl FnOnce(&[u8]) -> Result<usize, Doubt>,
    ) -> Result<Option<Lexeme<'a>>, Doubt> {
        let inside = self.rest.get(opening..).ok_or(Doubt::Unterminated)?;
        let end = find_end(inside)?;
        let (text, closing) = inside.split_at_checked(end).ok_or(Doubt::Unterminated)?;
        self.rest = closing.get(1..).ok_or(Doubt::Unterminated)?;
        Ok(Some(Lexeme { kind, text }))
    }

    fn dollar(&mut self) -> Result<Option<Lexeme<'a>>, Doubt> {
        let behind = self.rest.get(1..).unwrap_or_default();
        let digits = count(behind, |byte| byte.is_ascii_digit());
        if digits == 0 {
            let (text, rest) = quotes::dollar(self.rest)?;
            self.rest = rest;
            return Ok(Some(Lexeme { kind: Kind::DollarText, text }));
        }
        let (text, rest) = behind.split_at_checked(digits).ok_or(Doubt::Number)?;
        if rest.first().copied().is_some_and(is_word_part) {
            return Err(Doubt::Number);
        }
        self.rest = rest;
        Ok(Some(Lexeme { kind: Kind::Param, text }))
    }

    /// Digits with at most one point and an exponent. Other forms (hexadecimal, underscores) are newer than the
    /// oldest server, for which they end the number and begin a word.
    fn number(&mut self) -> Result<Option<Lexeme<'a>>, Doubt> {
        let digits =
            |from: usize| count(self.rest.get(from..).unwrap_or_default(), |byte| byte.is_ascii_digit());
        let mut len = digits(0);
        if self.rest.get(len) == Some(&b'.') {
            len += 1;
            len += digits(len);
        }
        if let Some(b'e' | b'E') = self.rest.get(len) {
            let sign = usize::from(matches!(self.rest.get(len + 1), Some(b'+' | b'-')));
            let exponent = digits(len + 1 + sign);
            // Without digits the letter begins a word, which the next check refuses.
            len += if exponent > 0 { 1 + sign + exponent } else { 0 };
        }
        if self.rest.get(len).copied().is_some_and(is_word_part) {
            return Err(Doubt::Number);
        }
        Ok(self.cut(Kind::Number, len))
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Result<Lexeme<'a>, Doubt>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let lexeme = self.lexeme();
        if lexeme.is_err() {
            self.rest = &[];
        }
        lexeme.transpose()
    }
}

impl FusedIterator for Lexer<'_> {}

/// What is behind blanks and comments.
fn skip_blanks(mut sql: &[u8]) -> Result<&[u8], Doubt> {
    loop {
        sql = match sql {
            [byte, rest @ ..] if is_blank(*byte) => rest,
            [b'-', b'-', rest @ ..] => line_end(rest),
            [b'/', b'*', rest @ ..] => comment_end(rest)?,
            _ => return Ok(sql),
        }
    }
}

/// The rest of `sql` from its next line end on, for the inside of a `--` comment.
fn line_end(sql: &[u8]) -> &[u8] {
    sql.get(count(sql, |byte| byte != b'\n' && byte != b'\r')..).unwrap_or_default()
}

/// The rest of `sql` behind the comment that it starts in; comments nest.
fn comment_end(mut sql: &[u8]) -> Result<&[u8], Doubt> {
    let mut depth = 1usize;
    while depth > 0 {
        sql = match sql {
            [] => return Err(Doubt::Unterminated),
            [b'*', b'/', rest @ ..] => {
                depth -= 1;
                rest
            }
            [b'/', b'*', rest @ ..] => {
                depth += 1;
                rest
            }
            [_, rest @ ..] => rest,
        }
    }
    Ok(sql)
}

/// Length of the word at the start of `sql`. It must not end in half of a character, see the head of this file.
fn word_len(sql: &[u8]) -> Result<usize, Doubt> {
    let len = count(sql, is_word_part);
    match (len.checked_sub(1).and_then(|last| sql.get(last)), sql.get(len)) {
        (Some(0x80..), Some(b':'..=b'~')) => Err(Doubt::Encoding),
        _ => Ok(len),
    }
}

/// Length of the operator at the start of `sql`: a comment ends it.
fn operator_len(sql: &[u8]) -> usize {
    let len = count(sql, is_operator);
    let comment = sql.windows(2).take(len).position(|pair| matches!(pair, b"--" | b"/*"));
    comment.unwrap_or(len)
}

fn count(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|byte| !wanted(*byte)).unwrap_or(bytes.len())
}

/// What a byte can be.
mod class {
    pub(super) const BLANK: u8 = 1;
    pub(super) const WORD_START: u8 = 2;
    pub(super) const WORD_PART: u8 = 4;
    pub(super) const OPERATOR: u8 = 8;

    /// The classes of each byte.
    pub(super) const OF: [u8; 256] = {
        let mut of = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            of[byte as usize] = match byte as u8 {
                b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' => BLANK,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => WORD_START | WORD_PART,
                b'0'..=b'9' | b'$' => WORD_PART,
                b'~' | b'!' | b'@' | b'#' | b'^' | b'&' | b'|' | b'`' | b'?' => OPERATOR,
                b'+' | b'-' | b'*' | b'/' | b'%' | b'<' | b'>' | b'=' => OPERATOR,
                _ => 0,
            };
            byte += 1;
        }
        of
    };
}

#[inline]
fn is(byte: u8, class: u8) -> bool {
    class::OF[usize::from(byte)] & class != 0
}

fn is_blank(byte: u8) -> bool {
    is(byte, class::BLANK)
}

fn is_word_start(byte: u8) -> bool {
    is(byte, class::WORD_START)
}

fn is_word_part(byte: u8) -> bool {
    is(byte, class::WORD_PART)
}

fn is_operator(byte: u8) -> bool {
    is(byte, class::OPERATOR)
}
