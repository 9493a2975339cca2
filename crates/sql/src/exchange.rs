//! Finds literals that can be replaced by others of their kind without changing any other lexeme.
//!
//! Programs that write values into their statements send texts that differ in nothing else. The result of
//! [`traits()`] for one such text holds for all of them, because it never looks into a literal; so it is
//! enough to see that a text is a known one with other literals. A literal whose end depends on more than
//! itself must never be called exchangeable.
//!
//! [`traits()`]: crate::traits()

use std::ops::Range;

use crate::lexer::{Doubt, Kind, Lexer};
use crate::scan::chunks::{self, CHUNK};

/// The kind of a literal that can be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Literal {
    /// A number of digits alone, not followed by anything that could belong to a number or word.
    Digits,
    /// `'...'` without a quote or a backslash inside.
    Quoted,
}

/// Calls `found` with the place of each exchangeable literal of `sql`, quotes included, in order.
///
/// # Errors
///
/// The lexer is in doubt about the text: nothing in it can be exchanged.
pub fn exchangeable(sql: &[u8], mut found: impl FnMut(Literal, Range<usize>)) -> Result<(), Doubt> {
    let mut lexer = Lexer::new(sql);
    while let Some(lexeme) = lexer.next() {
        let lexeme = lexeme?;
        let rest = lexer.rest();
        let end = sql.len() - rest.len();
        let literal = match lexeme.kind {
            Kind::Number => Literal::Digits,
            Kind::Text => Literal::Quoted,
            _ => continue,
        };
        let len = lexeme.text.len() + if literal == Literal::Quoted { 2 } else { 0 };
        let from = end - len;
        if literal_len(literal, &sql[from..]) == Some(len)
            // A point, exponent or quote right after the literal would change where another literal in its
            // place ends.
            && !matches!(rest.first(), Some(b'.' | b'e' | b'E' | b'\''))
        {
            found(literal, from..end);
        }
    }
    Ok(())
}

/// Returns the length, quotes included, of the literal of this kind at the start of `text`. The caller must
/// compare the bytes after it with those after the literal that was exchanged.
#[must_use]
#[inline]
pub fn literal_len(literal: Literal, text: &[u8]) -> Option<usize> {
    match literal {
        Literal::Digits => {
            let mut end = 0;
            loop {
                let len = chunks::digits_len(chunks::load(text, end));
                end += len;
                if len < CHUNK {
                    return (end > 0).then_some(end);
                }
            }
        }
        Literal::Quoted => {
            let (b'\'', _) = text.split_first()? else { return None };
            let end = 1 + chunks::count_until(text, 1, b'\'', b'\\');
            (text.get(end) == Some(&b'\'')).then_some(end + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::traits;

    /// The literals of a text, as it stands there.
    fn found(sql: &str) -> Vec<&str> {
        let mut all = Vec::new();
        exchangeable(sql.as_bytes(), |_, at| all.push(&sql[at])).expect("it can be lexed");
        all
    }

    #[test]
    fn only_literals_that_end_by_themselves_are_found() {
        for (sql, literals) in [
            ("select 1, 22 , -3;", &["1", "22", "3"][..]),
            ("select a1, 'it', 'it''s', e'x', 'x\\y', $1, $$1$$", &["'it'"]),
            ("select 1.5, 1e5, .5, 7", &["5", "7"]),
            ("select \"a 1\" /* 1 */ -- 1\n", &[]),
            ("select N'a', B'1', x[1:2]", &["'a'", "'1'", "1", "2"]),
            ("select ''", &["''"]),
        ] {
            assert_eq!(found(sql), literals, "{sql}");
        }
        assert!(exchangeable(b"select 1, 'x", |_, _| ()).is_err());
    }

    /// Pieces of which texts are put together: those that literals and what is around them could be confused by.
    fn piece() -> impl Strategy<Value = String> {
        let fixed = proptest::sample::select(vec![
            "select", " ", "\n", "1", "22", "0", "'a'", "'", "''", "\"", "\\", "$1", "$$", "$a$", "e",
            "E'x'", "x", ".", "-", "--", "/*", "*/", "(", ")", ";", "=", "set a", "nextval", "B", "U&", "é",
            ",",
        ]);
        prop_oneof![4 => fixed.prop_map(str::to_owned), 1 => "[0-9]{1,12}", 1 => "'[a-z0-9 ;-]{0,12}'"]
    }

    proptest! {
        #[test]
        fn another_literal_changes_nothing_else(
            pieces in proptest::collection::vec(piece(), 0..14),
            digits in "[0-9]{1,20}",
            inside in "[^'\\\\]{0,20}",
        ) {
            let sql = pieces.concat();
            let mut other = Vec::new();
            let mut at = 0;
            let done = exchangeable(sql.as_bytes(), |literal, place| {
                other.extend_from_slice(&sql.as_bytes()[at..place.start]);
                match literal {
                    Literal::Digits => other.extend_from_slice(digits.as_bytes()),
                    Literal::Quoted => other.extend_from_slice(format!("'{inside}'").as_bytes()),
                }
                at = place.end;
            });
            if done.is_err() {
                return Ok(());
            }
            other.extend_from_slice(&sql.as_bytes()[at..]);
            prop_assert_eq!(traits(sql.as_bytes()), traits(&other), "{:?}", String::from_utf8_lossy(&other));
        }
    }
}
