//! Finds the values drawn from sequences that a text asks for: `lastval()` and `currval(...)`.
//!
//! If a session may hold values that other clients drew, the server can be asked whether the text would
//! return such a value (see `sequences.rs` in core). The file must never guess: an argument that could be
//! anything is [`Unreadable`].

use crate::assignments::Unreadable;
use crate::lexer::{Kind, Lexeme, Lexer};

/// A value that a text asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question<'a> {
    /// `lastval()`.
    Last,
    /// `currval(...)`: its argument as it was written, made of nothing but literals, casts and `pg_get_serial_sequence`.
    Current(&'a [u8]),
}

/// Calls `found` for every such question in `sql`.
///
/// # Errors
///
/// [`Unreadable`] if there may be questions for which `found` was not called, or if an argument cannot be
/// read.
pub fn questions<'a>(sql: &'a [u8], mut found: impl FnMut(Question<'a>)) -> Result<(), Unreadable> {
    let mut lexer = Lexer::new(sql);
    while let Some(lexeme) = lexer.next().transpose().map_err(|_| Unreadable)? {
        match lexeme.kind {
            Kind::Word | Kind::QuotedWord if is(&lexeme, b"lastval") => found(Question::Last),
            Kind::Word | Kind::QuotedWord if is(&lexeme, b"currval") => {
                found(Question::Current(argument(sql, &mut lexer)?));
            }
            // SQL inside the string may be run, and an escaped name may be one of these functions.
            Kind::DollarText | Kind::UnicodeWord => return Err(Unreadable),
            _ => {}
        }
    }
    Ok(())
}

/// Returns the text between the parentheses that follow.
fn argument<'a>(sql: &'a [u8], lexer: &mut Lexer<'a>) -> Result<&'a [u8], Unreadable> {
    let mut next = || lexer.next().transpose().ok().flatten().map(|lexeme| (lexeme, lexer.rest().len()));
    let (_, left) = next().filter(|(lexeme, _)| lexeme.text == b"(").ok_or(Unreadable)?;
    let begin = sql.len() - left;
    let mut depth = 0_usize;
    loop {
        let (lexeme, left) = next().ok_or(Unreadable)?;
        match (lexeme.kind, lexeme.text) {
            (Kind::Symbol, b"(") => depth += 1,
            (Kind::Symbol, b")") if depth == 0 => {
                return sql.get(begin..sql.len() - left - 1).ok_or(Unreadable);
            }
            (Kind::Symbol, b")") => depth -= 1,
            (Kind::Symbol, b"," | b":" | b".") | (Kind::Text, _) => {}
            (Kind::Word, _) => {
                let known = [&b"pg_get_serial_sequence"[..], b"pg_catalog", b"regclass", b"text"];
                if !known.iter().any(|known| is(&lexeme, known)) {
                    return Err(Unreadable);
                }
            }
            _ => return Err(Unreadable),
        }
    }
}

fn is(lexeme: &Lexeme<'_>, name: &[u8]) -> bool {
    lexeme.text.eq_ignore_ascii_case(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sql: &str) -> Option<Vec<String>> {
        let mut all = Vec::new();
        let read = questions(sql.as_bytes(), |question| {
            all.push(match question {
                Question::Last => "last".to_owned(),
                Question::Current(argument) => String::from_utf8_lossy(argument).into_owned(),
            });
        });
        read.ok().map(|()| all)
    }

    #[test]
    fn what_is_plainly_asked_for_is_told() {
        for (sql, expected) in [
            ("select LASTVAL()", vec!["last"]),
            ("select pg_catalog.currval ( 'a.s' )", vec![" 'a.s' "]),
            ("select currval('s'::regclass), \"lastval\"()", vec!["'s'::regclass", "last"]),
            (
                "insert into b values (currval(pg_get_serial_sequence('t', 'id')), 'currval')",
                vec!["pg_get_serial_sequence('t', 'id')"],
            ),
            ("select 'lastval()' -- lastval", vec![]),
        ] {
            assert_eq!(asked(sql), Some(expected.into_iter().map(str::to_owned).collect()), "{sql}");
        }
    }

    #[test]
    fn what_could_be_anything_is_not() {
        for sql in [
            "select currval($1)",
            "select currval(name) from s",
            "select currval((select 's'))",
            "select currval(f('s'))",
            "select currval(E's')",
            "select currval('a' || 'b')",
            "select currval('s'",
            "select currval",
            r"select currval('a\'), lastval()",
            "do $$begin perform lastval(); end$$",
            "select U&\"lastval\"()",
        ] {
            assert_eq!(asked(sql), None, "{sql}");
        }
    }
}
