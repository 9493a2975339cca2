//! Finds the settings that the SET and RESET statements of a text change.
//!
//! A session that ran nothing but such statements need not be asked for all its settings, and the values that
//! a client started with can be restored after its RESET. The file must never guess: a statement that is not
//! plainly one of the forms in PostgreSQL's documentation (SET, RESET, SET ROLE, SET SESSION AUTHORIZATION)
//! is [`Unreadable`].

use std::borrow::Cow;

use crate::lexer::{Kind, Lexeme, Lexer};
use crate::scan::identifiers::dotted_name;

/// One change of a setting by a statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment<'a> {
    /// The setting's name, without quotes and blanks (letters in any case), or its canonical name if SQL has
    /// a phrase for it (`TIME ZONE`). `None` means all settings.
    pub name: Option<Cow<'a, [u8]>>,
    /// `true` if the setting returns to the value that the session started with.
    pub to_default: bool,
    /// `true` if the change lasts until the transaction ends.
    pub local: bool,
}

/// The error for a text of which it cannot be told what it assigns or asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

/// Calls `found` for every assignment in `sql`. Statements of other kinds are skipped.
///
/// # Errors
///
/// [`Unreadable`] if there may be assignments for which `found` was not called.
pub fn assignments<'a>(sql: &'a [u8], mut found: impl FnMut(Assignment<'a>)) -> Result<(), Unreadable> {
    let mut lexer = Lexer::new(sql);
    let mut statement: [Option<Lexeme<'a>>; HEAD] = [None; HEAD];
    let (mut len, mut last) = (0, None);
    loop {
        let lexeme = lexer.next().transpose().map_err(|_| Unreadable)?;
        match lexeme {
            Some(lexeme) if !(lexeme.kind == Kind::Symbol && lexeme.text == b";") => {
                if let Some(place) = statement.get_mut(len) {
                    *place = Some(lexeme);
                }
                len += 1;
                last = Some(lexeme);
            }
            end => {
                read(&statement[..len.min(HEAD)], len, last, &mut found)?;
                (len, last) = (0, None);
                if end.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

/// The number of lexemes at the start of a statement that decide: `SET SESSION a . b . c =` and a few more. A
/// name of more parts is not read.
const HEAD: usize = 12;

fn read<'a>(
    head: &[Option<Lexeme<'a>>],
    len: usize,
    last: Option<Lexeme<'a>>,
    found: &mut impl FnMut(Assignment<'a>),
) -> Result<(), Unreadable> {
    let words =
        |at: usize, word: &[u8]| head.get(at).copied().flatten().is_some_and(|lexeme| is(lexeme, word));
    if words(0, b"discard") && words(1, b"all") && len == 2 {
        found(Assignment { name: None, to_default: true, local: false });
        return Ok(());
    }
    let sets = words(0, b"set");
    if !sets && !words(0, b"reset") {
        return Ok(());
    }
    let mut at = 1;
    let local = sets && words(1, b"local");
    if local || sets && words(1, b"session") && !words(2, b"authorization") && !words(2, b"characteristics") {
        at += 1;
    }
    let to_default = !sets || last.is_some_and(|last| is(last, b"default")) && len > at + 1;
    let mut tell = |name| found(Assignment { name, to_default, local });
    let known = |name: &'static [u8]| Some(Cow::Borrowed(name));
    match head.get(at).copied().flatten() {
        Some(word) if is(word, b"all") && !sets && len == 2 => tell(None),
        // SET TRANSACTION and SET CONSTRAINTS end with their transaction.
        Some(word) if sets && (is(word, b"transaction") || is(word, b"constraints")) => {}
        Some(word) if is(word, b"session") && words(at + 1, b"authorization") => {
            tell(known(b"session_authorization"));
            // SET SESSION AUTHORIZATION ends a SET ROLE, too.
            tell(known(b"role"));
        }
        // SET SESSION CHARACTERISTICS AS TRANSACTION sets these three, whatever modes it lists.
        Some(word) if is(word, b"session") => {
            for name in [
                "default_transaction_isolation",
                "default_transaction_read_only",
                "default_transaction_deferrable",
            ] {
                tell(known(name.as_bytes()));
            }
        }
        Some(word) if is(word, b"time") && words(at + 1, b"zone") => {
            let to_default = to_default || last.is_some_and(|last| is(last, b"local"));
            found(Assignment { name: known(b"TimeZone"), to_default, local });
        }
        // `SET names = ...` would set a setting with that name. The same holds for SCHEMA and ROLE below.
        Some(word) if is(word, b"names") && sets && !is_sign(head, at + 1) => {
            let to_default = to_default || len == at + 1;
            found(Assignment { name: known(b"client_encoding"), to_default, local });
        }
        Some(word) if is(word, b"schema") && sets && !is_sign(head, at + 1) => tell(known(b"search_path")),
        Some(word) if is(word, b"role") && sets && !is_sign(head, at + 1) => tell(known(b"role")),
        _ => {
            let named = dotted_name(|at| head.get(at).copied().flatten(), at);
            if named.is_none() && local && !to_default && head.get(at).is_some() {
                // The setting has its old value again when the transaction ends, whichever setting it is.
                return Ok(());
            }
            let (name, next) = named.ok_or(Unreadable)?;
            if !is_sign(head, next) && (sets || len != next) {
                return Err(Unreadable);
            }
            tell(Some(name));
        }
    }
    Ok(())
}

/// Returns whether the lexeme at `at` is `=` or TO.
fn is_sign(head: &[Option<Lexeme<'_>>], at: usize) -> bool {
    let lexeme = head.get(at).copied().flatten();
    lexeme.is_some_and(|lexeme| lexeme.kind == Kind::Operator && lexeme.text == b"=" || is(lexeme, b"to"))
}

fn is(lexeme: Lexeme<'_>, word: &[u8]) -> bool {
    lexeme.kind == Kind::Word && lexeme.text.eq_ignore_ascii_case(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sql: &str) -> Result<Vec<String>, Unreadable> {
        let mut all = Vec::new();
        assignments(sql.as_bytes(), |found| {
            let name = found.name.map_or(Cow::Borrowed(&b"*"[..]), |name| name);
            let name = String::from_utf8_lossy(&name);
            let default = if found.to_default { " default" } else { "" };
            let local = if found.local { " local" } else { "" };
            all.push(format!("{name}{default}{local}"));
        })?;
        Ok(all)
    }

    #[test]
    fn the_forms_of_the_documentation_are_read() {
        for (sql, expected) in [
            ("set search_path = a, b", &["search_path"][..]),
            ("SET Session work_mem TO '1MB';", &["work_mem"]),
            ("set local x = 1", &["x local"]),
            ("set x to default", &["x default"]),
            ("reset x", &["x default"]),
            ("RESET ALL", &["* default"]),
            ("Discard All;", &["* default"]),
            ("discard plans", &[]),
            ("set time zone 'UTC'", &["TimeZone"]),
            ("set time zone local", &["TimeZone default"]),
            ("set timezone = 'UTC'", &["timezone"]),
            ("reset time zone", &["TimeZone default"]),
            ("set names 'UTF8'", &["client_encoding"]),
            ("set schema 'a'", &["search_path"]),
            ("set role none", &["role"]),
            ("set session authorization default", &["session_authorization default", "role default"]),
            ("set session role a", &["role"]),
            ("set a.b_c = 1; select 1; reset y; set transaction read only", &["a.b_c", "y default"]),
            ("begin; update t set a = 1; commit", &[]),
            (
                "set \"X\" = 1; set a . \"B.c\" to default; reset U&\"d\\002ee\"",
                &["X", "a.B.c default", "d.e default"],
            ),
            ("set local a./**/b = 1; set local größe.x = 1", &["a.b local"]),
        ] {
            assert_eq!(
                read(sql).as_deref(),
                Ok(expected.iter().map(|&s| s.to_owned()).collect::<Vec<_>>().as_slice()),
                "{sql}"
            );
        }
    }

    #[test]
    fn what_is_not_plain_is_not_read() {
        for sql in [
            "set größe.x = 1",
            "set a.b.c.d.e.f = 1",
            "set xml option document",
            "set 1",
            "select 'a\\'",
            "set",
            "reset a b",
        ] {
            assert_eq!(read(sql), Err(Unreadable), "{sql}");
        }
    }
}
