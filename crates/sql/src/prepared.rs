//! Which prepared statements a text names: EXECUTE, DEALLOCATE, PREPARE.
//!
//! What this file is for: what a client prepared through the protocol is known to servers by another name; where SQL names it, that
//! name has to mean it. It must never guess: a name that can not be read is not told.

use crate::lexer::{Kind, Lexeme, Lexer};

/// What a text does with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameUse {
    /// EXECUTE.
    Executes,
    /// DEALLOCATE.
    Ends,
    /// PREPARE.
    Prepares,
}

/// Tells `found` of every name, and whether its letters are to be folded to lower case.
pub fn prepared_names<'a>(sql: &'a [u8], mut found: impl FnMut(NameUse, &'a [u8], bool)) {
    let mut open = None;
    // What can not be lexed any more names nothing that could be told.
    for lexeme in Lexer::new(sql).map_while(Result::ok) {
        let opens = match lexeme.kind {
            Kind::Word if is(&lexeme, b"execute") => Some(NameUse::Executes),
            Kind::Word if is(&lexeme, b"deallocate") => Some(NameUse::Ends),
            // DEALLOCATE PREPARE name.
            Kind::Word if is(&lexeme, b"prepare") => open.or(Some(NameUse::Prepares)),
            _ => None,
        };
        if opens.is_some() {
            open = opens;
            continue;
        }
        match (open.take(), lexeme.kind) {
            (Some(NameUse::Ends), Kind::Word) if is(&lexeme, b"all") => {}
            (Some(NameUse::Prepares), Kind::Word) if is(&lexeme, b"transaction") => {}
            (Some(name_use), Kind::Word) => found(name_use, lexeme.text, true),
            (Some(name_use), Kind::QuotedWord) if !lexeme.text.contains(&b'"') => {
                found(name_use, lexeme.text, false);
            }
            _ => {}
        }
    }
}

fn is(lexeme: &Lexeme<'_>, word: &[u8]) -> bool {
    lexeme.text.eq_ignore_ascii_case(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_with_what_is_done_to_them() {
        use NameUse::{Ends, Executes, Prepares};
        for (sql, expected) in [
            ("EXECUTE a1 (1, 'deallocate b')", vec![(Executes, "a1", true)]),
            ("deallocate \"A b\"", vec![(Ends, "A b", false)]),
            (
                "deallocate prepare x; /* execute y */ prepare z as select 1",
                vec![(Ends, "x", true), (Prepares, "z", true)],
            ),
            ("create table t as execute q", vec![(Executes, "q", true)]),
            ("deallocate all", vec![]),
            ("prepare transaction 'x'", vec![]),
            ("deallocate \"a\"\"b\"", vec![]),
            ("select execute from t", vec![(Executes, "from", true)]),
            ("execute 'x", vec![]),
        ] {
            let mut all = Vec::new();
            prepared_names(sql.as_bytes(), |name_use, name, folds| {
                all.push((name_use, std::str::from_utf8(name).expect("it is ASCII"), folds));
            });
            assert_eq!(all, expected, "{sql}");
        }
    }
}
