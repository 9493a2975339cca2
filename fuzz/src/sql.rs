//! Texts of statements.

use pgweir_sql::{Lexer, Statements, traits};

/// The input is the text of a query. Lexemes must lie in it, in order, and nothing may make a text certain that has
/// a `BEGIN` or a second statement behind it.
pub fn sql_lexer(data: &[u8]) {
    let mut at = data.as_ptr() as usize;
    let end = at + data.len();
    for lexeme in Lexer::new(data) {
        let Ok(lexeme) = lexeme else { break };
        let start = lexeme.text.as_ptr() as usize;
        assert!(at <= start && start + lexeme.text.len() <= end, "{lexeme:?} is out of order");
        at = start + lexeme.text.len();
    }
    let found = traits(data);
    assert!(!found.certainly_self_contained || found.statements == Statements::One);
    let with = |before: &[u8], after: &[u8]| traits(&[before, data, after].concat());
    assert_eq!(with(b" /* ' */ ", b"").certainly_self_contained, found.certainly_self_contained);
    assert!(!with(b"", b"\n; begin").certainly_self_contained);
    if found.statements != Statements::None {
        assert!(!with(b"", b"\n; select 1").certainly_self_contained);
    }
    assert!(!with(b"begin; ", b"").certainly_self_contained);
    if found.certainly_self_contained {
        assert!(with(b";", b"\n;").certainly_self_contained);
    }
}
