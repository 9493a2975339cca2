//! Finds the prepared statements that a text names in EXECUTE, DEALLOCATE and PREPARE.
//!
//! Servers know a statement that a client prepared through the protocol by another name. If SQL names such a
//! statement, the name has to be translated. The file must never guess: it reports a name that it cannot read
//! as `None`.

use std::borrow::Cow;

use crate::lexer::{Kind, Lexeme, Lexer};

/// The statement in which a text uses a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// EXECUTE.
    Executes,
    /// DEALLOCATE.
    Ends,
    /// PREPARE.
    Prepares,
}

/// The length to which PostgreSQL cuts longer names (`NAMEDATALEN`).
const NAME_BYTES_MAX: usize = 63;

/// Calls `found` for every name, as PostgreSQL reads it; with `None` if that cannot be told.
pub fn prepared_names<'a>(sql: &'a [u8], mut found: impl FnMut(NameUse, Option<Cow<'a, [u8]>>)) {
    let mut open = None;
    for lexeme in Lexer::new(sql) {
        let Ok(lexeme) = lexeme else {
            // The unread rest of the text may name any statement.
            return found(NameUse::Executes, None);
        };
        let opens = match lexeme.kind {
            Kind::Word if is(&lexeme, b"execute") => Some(NameUse::Executes),
            Kind::Word if is(&lexeme, b"deallocate") => Some(NameUse::Ends),
            // DEALLOCATE PREPARE name: PREPARE is a noise word here.
            Kind::Word if is(&lexeme, b"prepare") => open.or(Some(NameUse::Prepares)),
            _ => None,
        };
        if opens.is_some() {
            open = opens;
            continue;
        }
        // The byte at which PostgreSQL cuts a longer name depends on the server's encoding.
        let readable = lexeme.text.len() <= NAME_BYTES_MAX;
        match (open.take(), lexeme.kind) {
            // DEALLOCATE ALL names no single statement.
            (Some(NameUse::Ends), Kind::Word) if is(&lexeme, b"all") => {}
            // PREPARE TRANSACTION names a transaction, not a statement.
            (Some(NameUse::Prepares), Kind::Word) if is(&lexeme, b"transaction") => {}
            (Some(name_use), Kind::Word) => found(name_use, readable.then(|| folded(lexeme.text))),
            (Some(name_use), Kind::QuotedWord) => {
                let readable = readable && !lexeme.text.contains(&b'"');
                found(name_use, readable.then_some(Cow::Borrowed(lexeme.text)));
            }
            (Some(name_use), Kind::UnicodeWord) => found(name_use, None),
            _ => {}
        }
    }
}

fn folded(name: &[u8]) -> Cow<'_, [u8]> {
    match name.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    }
}

fn is(lexeme: &Lexeme<'_>, word: &[u8]) -> bool {
    lexeme.text.eq_ignore_ascii_case(word)
}

/// Returns the name of the statement that a plain EXECUTE runs.
#[must_use]
pub fn executed_name(text: &[u8]) -> Option<Vec<u8>> {
    let rest = text.trim_ascii();
    let rest = rest.get(..8).filter(|verb| verb.eq_ignore_ascii_case(b"execute ")).map(|_| &rest[8..])?;
    let rest = rest.trim_ascii_start();
    let end =
        rest.iter().position(|byte| !(byte.is_ascii_alphanumeric() || *byte == b'_')).unwrap_or(rest.len());
    (end > 0 && !rest.contains(&b';')).then(|| rest[..end].to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_with_what_is_done_to_them() {
        use NameUse::{Ends, Executes, Prepares};
        for (sql, expected) in [
            ("EXECUTE A1 (1, 'deallocate b')", vec![(Executes, Some("a1"))]),
            ("deallocate \"A b\"", vec![(Ends, Some("A b"))]),
            (
                "deallocate prepare x; /* execute y */ prepare z as select 1",
                vec![(Ends, Some("x")), (Prepares, Some("z"))],
            ),
            ("create table t as execute q", vec![(Executes, Some("q"))]),
            ("deallocate all", vec![]),
            ("prepare transaction 'x'", vec![]),
            ("deallocate \"a\"\"b\"", vec![(Ends, None)]),
            ("execute U&\"\\0061\"", vec![(Executes, None)]),
            ("select execute from t", vec![(Executes, Some("from"))]),
            ("execute a; select 'x", vec![(Executes, Some("a")), (Executes, None)]),
        ] {
            let mut all = Vec::new();
            prepared_names(sql.as_bytes(), |name_use, name| {
                let name = name.map(|name| String::from_utf8(name.into_owned()).expect("it is ASCII"));
                all.push((name_use, name));
            });
            let expected: Vec<_> =
                expected.into_iter().map(|(name_use, name)| (name_use, name.map(str::to_owned))).collect();
            assert_eq!(all, expected, "{sql}");
        }
        let long = format!("execute {}", "x".repeat(64));
        prepared_names(long.as_bytes(), |_, name| assert_eq!(name, None, "PostgreSQL cuts it"));
    }
}
