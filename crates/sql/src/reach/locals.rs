//! Recognizes statements that set something for one transaction (SET LOCAL, and `set_config` with `true`), as
//! row-level security needs them before the first read.

use crate::lexer::{Kind, Lexeme, Lexer};

/// Returns whether `sql` is one statement that only sets something until its transaction ends. A mode of the
/// transaction itself (`transaction_read_only`) never counts.
#[must_use]
pub fn sets_locally(sql: &[u8]) -> bool {
    let mut lexer = Lexer::new(sql);
    let Some(first) = next(&mut lexer) else { return false };
    match first {
        _ if is_word(first, b"set") => sets(&mut lexer),
        _ if is_word(first, b"select") => calls(&mut lexer).is_some(),
        _ => false,
    }
}

/// Reads the rest of a SET; `true` if it is LOCAL and one statement.
fn sets(lexer: &mut Lexer<'_>) -> bool {
    let is_local = next(lexer).is_some_and(|word| is_word(word, b"local"));
    let Some(name) = next(lexer).filter(|_| is_local) else { return false };
    let is_mode = name.text.len() >= 11 && name.text[..11].eq_ignore_ascii_case(b"transaction");
    if is_mode || !matches!(name.kind, Kind::Word | Kind::QuotedWord) {
        return false;
    }
    let mut ended = false;
    for lexeme in lexer {
        let Ok(lexeme) = lexeme else { return false };
        match is_symbol(lexeme, b";") {
            true => ended = true,
            false if ended => return false,
            false => {}
        }
    }
    true
}

/// Reads the rest of a SELECT; `Some` if it only calls `set_config` with plain values.
fn calls(lexer: &mut Lexer<'_>) -> Option<()> {
    let mut lexeme = next(lexer)?;
    loop {
        if is_word(lexeme, b"pg_catalog") {
            is_symbol(next(lexer)?, b".").then_some(())?;
            lexeme = next(lexer)?;
        }
        is_word(lexeme, b"set_config").then_some(())?;
        is_symbol(next(lexer)?, b"(").then_some(())?;
        let name = next(lexer)?;
        let is_mode = name.text.len() >= 11 && name.text[..11].eq_ignore_ascii_case(b"transaction");
        (name.kind == Kind::Text && !is_mode).then_some(())?;
        is_symbol(next(lexer)?, b",").then_some(())?;
        loop {
            let part = next(lexer)?;
            if is_symbol(part, b",") {
                break;
            }
            let is_plain = matches!(part.kind, Kind::Text | Kind::Number | Kind::Param)
                || is_symbol(part, b":")
                || [&b"text"[..], b"varchar", b"null"].iter().any(|word| is_word(part, word));
            is_plain.then_some(())?;
        }
        is_word(next(lexer)?, b"true").then_some(())?;
        is_symbol(next(lexer)?, b")").then_some(())?;
        // A column alias may follow the call: `SELECT set_config('app.tenant', '7', true) AS tenant`.
        let mut behind = lexer.next();
        if let Some(Ok(word)) = behind
            && is_word(word, b"as")
        {
            (next(lexer)?.kind == Kind::Word).then_some(())?;
            behind = lexer.next();
        }
        match behind {
            None => return Some(()),
            Some(Ok(symbol)) if is_symbol(symbol, b",") => lexeme = next(lexer)?,
            Some(Ok(symbol)) if is_symbol(symbol, b";") => return lexer.next().is_none().then_some(()),
            Some(_) => return None,
        }
    }
}

fn next<'a>(lexer: &mut Lexer<'a>) -> Option<Lexeme<'a>> {
    lexer.next()?.ok()
}

fn is_word(lexeme: Lexeme<'_>, word: &[u8]) -> bool {
    lexeme.kind == Kind::Word && lexeme.text.eq_ignore_ascii_case(word)
}

fn is_symbol(lexeme: Lexeme<'_>, symbol: &[u8]) -> bool {
    lexeme.kind == Kind::Symbol && lexeme.text == symbol
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_for_one_transaction_are_told_from_the_rest() {
        for sql in [
            "set local app.user = 'x'",
            "SET LOCAL role app;",
            "set local search_path to a, b",
            "select set_config('app.user', $1, true)",
            "SELECT pg_catalog.set_config('a.b', $1::text, TRUE) AS x, set_config('c.d', '1', true);",
        ] {
            assert!(sets_locally(sql.as_bytes()), "{sql}");
        }
        for sql in [
            "",
            "set",
            "set app.user = 'x'",
            "set session app.user = 'x'",
            "set local transaction_read_only = off",
            "set local app.user = 'x'; select 1",
            "select set_config('a.b', $1, false)",
            "select set_config('transaction_read_only', 'off', true)",
            "select set_config($1, $2, true)",
            "select set_config('a.b', f(), true)",
            "select set_config('a.b', 'c', true), f()",
            "select set_config('a.b', 'c', true) from t",
            "select set_config('a.b', 'c', true); select 1",
            "set local app.user = 'open",
            "select 1",
        ] {
            assert!(!sets_locally(sql.as_bytes()), "{sql}");
        }
    }
}
