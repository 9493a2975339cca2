//! Identifiers as SQL spells them, and dotted names made of them.
//!
//! PostgreSQL folds and cuts names (`scansup.c`) by rules that depend on the server's encoding and on how it
//! was built. This file reads only names that are the same everywhere, and returns `None` for all others.

use std::borrow::Cow;

use crate::lexer::{Kind, Lexeme};

/// The length to which PostgreSQL cuts longer identifiers (`NAMEDATALEN`).
const IDENTIFIER_BYTES_MAX: usize = 63;

/// Returns an identifier with its letters in the case that they were written in. `None` if it cannot be told
/// how PostgreSQL reads it.
fn identifier<'a>(lexeme: Lexeme<'a>) -> Option<Cow<'a, [u8]>> {
    let name = match lexeme.kind {
        Kind::Word => Cow::Borrowed(lexeme.text),
        Kind::QuotedWord => undouble(lexeme.text, b'"'),
        Kind::UnicodeWord => Cow::Owned(code_points(&undouble(lexeme.text, b'"'))?),
        _ => return None,
    };
    (!name.is_empty() && name.len() <= IDENTIFIER_BYTES_MAX && name.is_ascii()).then_some(name)
}

/// Returns a name whose parts have dots between them, and the place after it. `lexeme` returns the lexeme at
/// a place.
pub(crate) fn dotted_name<'a>(
    lexeme: impl Fn(usize) -> Option<Lexeme<'a>>,
    at: usize,
) -> Option<(Cow<'a, [u8]>, usize)> {
    let mut name = identifier(lexeme(at)?)?;
    let mut next = at + 1;
    while lexeme(next).is_some_and(|dot| dot.kind == Kind::Symbol && dot.text == b".") {
        let name = name.to_mut();
        name.push(b'.');
        name.extend_from_slice(&identifier(lexeme(next + 1)?)?);
        next += 2;
    }
    // UESCAPE after the name changes the character that marks its code points.
    let escapes =
        |lexeme: Lexeme<'_>| lexeme.kind == Kind::Word && lexeme.text.eq_ignore_ascii_case(b"uescape");
    (!lexeme(next).is_some_and(escapes)).then_some((name, next))
}

/// Returns the inside of a quoted text with each doubled quote as one.
pub(crate) fn undouble(text: &[u8], quote: u8) -> Cow<'_, [u8]> {
    if !text.contains(&quote) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        out.push(byte);
        if byte == quote {
            bytes.next();
        }
    }
    Cow::Owned(out)
}

/// Returns the text with code points replaced by their characters: `\0061`, `\+000061`, and `\\` for a
/// backslash. `None` for characters beyond ASCII.
fn code_points(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let (from, digits) = match text.get(at + 1) {
            _ if byte != b'\\' => {
                out.push(byte);
                at += 1;
                continue;
            }
            Some(b'\\') => {
                out.push(byte);
                at += 2;
                continue;
            }
            Some(b'+') => (at + 2, 6),
            _ => (at + 1, 4),
        };
        let digits =
            text.get(from..from + digits).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        let code = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        out.push(u8::try_from(code).ok().filter(|byte| matches!(byte, 1..=0x7f))?);
        at = from + digits.len();
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lexer;

    fn name(sql: &str) -> Option<(String, usize)> {
        let lexemes: Vec<_> = Lexer::new(sql.as_bytes()).flatten().collect();
        let (name, next) = dotted_name(|at| lexemes.get(at).copied(), 0)?;
        Some((String::from_utf8(name.into_owned()).expect("text"), next))
    }

    #[test]
    fn a_name_is_read_however_it_is_spelled() {
        for (sql, expected, next) in [
            ("tenant = 1", "tenant", 1),
            ("tenant.id", "tenant.id", 3),
            ("\"Tenant\" . /* x */ \"a\"\"b\" = 1", "Tenant.a\"b", 3),
            ("\"tenant.id\" to 1", "tenant.id", 1),
            ("U&\"\\0074e\"", "te", 1),
            ("U&\"t\\0065n\\+000061nt\\\\\".id", "tenant\\.id", 3),
            ("a.b.c.d", "a.b.c.d", 7),
        ] {
            assert_eq!(name(sql), Some((expected.to_owned(), next)), "{sql}");
        }
    }

    #[test]
    fn what_may_be_another_name_is_not_read() {
        let long = format!("a.{}", "b".repeat(64));
        for sql in [
            &long,
            "'a'",
            "1",
            "tenant.",
            "tenant.1",
            "größe.x",
            "\"größe\"",
            "U&\"gr\\00f6\"",
            "U&\"a\\00\"",
            "U&\"a\\\"",
            "U&\"!0061\" uescape '!'",
            "U&\"\\+110000\"",
            "U&\"\\0000\"",
            "",
        ] {
            assert_eq!(name(sql), None, "{sql}");
        }
    }
}
