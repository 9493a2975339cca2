use super::*;
use proptest::prelude::*;

fn lex(sql: &str) -> Result<Vec<(Kind, String)>, Doubt> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Lexer::new(sql.as_bytes()).map(|lexeme| lexeme.map(|l| (l.kind, text(l.text)))).collect()
}

/// Asserts that `sql` is exactly these lexemes.
fn is(sql: &str, expected: &[(Kind, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(kind, text)| (*kind, text.to_string())).collect();
    assert_eq!(lex(sql), Ok(expected), "{sql:?}");
}

fn doubted(doubt: Doubt, texts: &[&str]) {
    for sql in texts {
        assert_eq!(lex(sql), Err(doubt), "{sql:?}");
    }
}

#[test]
fn blanks_and_comments_are_left_out() {
    for sql in [
        "",
        " \t\r\n\x0b\x0c",
        "--",
        "-- a;'\n",
        "--a\r--b",
        "/**/",
        "/* ' */",
        "/*/* */ ; */",
        "/***/",
        "/*-- */",
    ] {
        is(sql, &[]);
    }
    is("-- a\rb", &[(Kind::Word, "b")]);
    is("/* /* */ a */ b -- c", &[(Kind::Word, "b")]);
    is("a/**/b", &[(Kind::Word, "a"), (Kind::Word, "b")]);
    doubted(Doubt::Unterminated, &["/*", "/* /* */", "/*/", "a /* *"]);
}

#[test]
fn words() {
    is(
        "SELECT a_1, _b$c",
        &[(Kind::Word, "SELECT"), (Kind::Word, "a_1"), (Kind::Symbol, ","), (Kind::Word, "_b$c")],
    );
    is("größe é", &[(Kind::Word, "größe"), (Kind::Word, "é")]);
    is("a$b$ c$b$", &[(Kind::Word, "a$b$"), (Kind::Word, "c$b$")]);
    is(r#""a ""b"" 'c" d"#, &[(Kind::QuotedWord, r#"a ""b"" 'c"#), (Kind::Word, "d")]);
    is(r#"U&"\0041" uescape"#, &[(Kind::UnicodeWord, r"\0041"), (Kind::Word, "uescape")]);
    is(r#""a\" b"#, &[(Kind::QuotedWord, r"a\"), (Kind::Word, "b")]);
    doubted(Doubt::Unterminated, &["\"a", "\"a\"\"", "u&\"a"]);
}

#[test]
fn texts() {
    is("'a''b' c", &[(Kind::Text, "a''b"), (Kind::Word, "c")]);
    is("''", &[(Kind::Text, "")]);
    is("'a'\n'b'", &[(Kind::Text, "a"), (Kind::Text, "b")]);
    is(
        "N'a' B'0' x'f'",
        &[
            (Kind::Word, "N"),
            (Kind::Text, "a"),
            (Kind::Word, "B"),
            (Kind::Text, "0"),
            (Kind::Word, "x"),
            (Kind::Text, "f"),
        ],
    );
    is(r"E'a\'b' e'\\' ", &[(Kind::EscapeText, r"a\'b"), (Kind::EscapeText, r"\\")]);
    is("E'a''b'", &[(Kind::EscapeText, "a''b")]);
    is(r"u&'a\' b", &[(Kind::UnicodeText, r"a\"), (Kind::Word, "b")]);
    is("u & 'a'", &[(Kind::Word, "u"), (Kind::Operator, "&"), (Kind::Text, "a")]);
    is(r"xe'a\\'", &[(Kind::Word, "xe"), (Kind::Text, r"a\\")]);
    doubted(Doubt::Unterminated, &["'", "'a''", "e'", r"e'\'", r"e'a\", "u&'"]);
}

#[test]
fn a_backslash_matters_where_the_readings_differ() {
    is(r"'\d+' ", &[(Kind::Text, r"\d+")]);
    is(r"'c:\\' ", &[(Kind::Text, r"c:\\")]);
    is(r"'a\\''b' ", &[(Kind::Text, r"a\\''b")]);
    doubted(Doubt::Backslash, &[r"'\'", r"'\' ; begin; select '", r"'\'' or '", r"'\\\' 'a'"]);
}

#[test]
fn an_escape_text_may_go_on_in_the_next_line() {
    doubted(Doubt::Continuation, &["e'a'\n'b'", "e'a' -- c\n 'b'", "e'a'\r\n\t'b\\''"]);
    is("e'a' 'b'", &[(Kind::EscapeText, "a"), (Kind::Text, "b")]);
    is("e'a'\n, 'b'", &[(Kind::EscapeText, "a"), (Kind::Symbol, ","), (Kind::Text, "b")]);
    is("e'a'\n/**/ 'b'", &[(Kind::EscapeText, "a"), (Kind::Text, "b")]);
}

#[test]
fn dollar_quotes() {
    is("$$a'b$$ c", &[(Kind::DollarText, "a'b"), (Kind::Word, "c")]);
    is("$a$ $$ $b$ $a $a$c", &[(Kind::DollarText, " $$ $b$ $a "), (Kind::Word, "c")]);
    is("$a$$b$a$", &[(Kind::DollarText, "$b")]);
    is("$A$ $a$ $A$", &[(Kind::DollarText, " $a$ ")]);
    is("$_1$;$_1$", &[(Kind::DollarText, ";")]);
    is("($$$$)", &[(Kind::Symbol, "("), (Kind::DollarText, ""), (Kind::Symbol, ")")]);
    is("'a'$$b$$", &[(Kind::Text, "a"), (Kind::DollarText, "b")]);
    doubted(Doubt::Unterminated, &["$$", "$a$ $A$", "$a$ $a", "$$ $"]);
    doubted(Doubt::Character, &["$", "$a", "$a b$", "$-$ $-$"]);
    doubted(Doubt::Encoding, &["$é$ $é$", "$aé$ $aé$"]);
}

#[test]
fn numbers_and_parameters() {
    is(
        "1 2.5 .5 6. 1e3 1.5E-10 2.e+1",
        &[
            (Kind::Number, "1"),
            (Kind::Number, "2.5"),
            (Kind::Symbol, "."),
            (Kind::Number, "5"),
            (Kind::Number, "6."),
            (Kind::Number, "1e3"),
            (Kind::Number, "1.5E-10"),
            (Kind::Number, "2.e+1"),
        ],
    );
    is(
        "$1,$23::int",
        &[
            (Kind::Param, "1"),
            (Kind::Symbol, ","),
            (Kind::Param, "23"),
            (Kind::Symbol, ":"),
            (Kind::Symbol, ":"),
            (Kind::Word, "int"),
        ],
    );
    doubted(
        Doubt::Number,
        &["1a", "1e'x'", "1e+", "1.e", "0x1f", "1_000", "$1a", "$1e'\\'", "1$a$", "$1$a$", "1é"],
    );
}

#[test]
fn operators_end_at_comments() {
    is("a<>b", &[(Kind::Word, "a"), (Kind::Operator, "<>"), (Kind::Word, "b")]);
    is("1-1", &[(Kind::Number, "1"), (Kind::Operator, "-"), (Kind::Number, "1")]);
    is("a@>-- b\nc", &[(Kind::Word, "a"), (Kind::Operator, "@>"), (Kind::Word, "c")]);
    is("a@/*b*/c", &[(Kind::Word, "a"), (Kind::Operator, "@"), (Kind::Word, "c")]);
    is(
        "a->>'b'#-c",
        &[
            (Kind::Word, "a"),
            (Kind::Operator, "->>"),
            (Kind::Text, "b"),
            (Kind::Operator, "#-"),
            (Kind::Word, "c"),
        ],
    );
    is("*/", &[(Kind::Operator, "*/")]);
}

#[test]
fn what_is_no_sql_is_doubted() {
    doubted(Doubt::Character, &["\\", "a {", "a\0b", "\x7f", "\x01"]);
}

#[test]
fn halves_of_characters_are_doubted() {
    // In SJIS, 0x83 0x5c is one letter: this E'' string ends at its second quote there, and not in UTF-8.
    let doubt = |sql: &[u8]| Lexer::new(sql).find_map(Result::err);
    assert_eq!(doubt(b"e'\x83\\'; begin; --'"), Some(Doubt::Encoding));
    assert_eq!(doubt(b"'\x83\\\\'; begin; --'"), Some(Doubt::Encoding));
    assert_eq!(doubt(b"a\x83|$a$; begin; select b$a$"), Some(Doubt::Encoding));
    assert_eq!(doubt("select 'é', é from é where é ".as_bytes()), None);
}

#[test]
fn nothing_comes_after_a_doubt() {
    let mut lexer = Lexer::new(b"a { b");
    assert!(matches!(lexer.next(), Some(Ok(_))));
    assert_eq!(lexer.next(), Some(Err(Doubt::Character)));
    assert_eq!(lexer.next(), None);
    assert_eq!(lexer.rest(), b"");
}

proptest! {
    #[test]
    fn any_bytes(sql: Vec<u8>) {
        let lexemes: usize = Lexer::new(&sql).map(|lexeme| lexeme.map_or(0, |l| l.text.len())).sum();
        prop_assert!(lexemes <= sql.len());
    }

    /// Every byte of well-formed pieces is seen once, in order, whatever stands between them.
    #[test]
    fn pieces_survive(
        pieces in proptest::collection::vec((0usize..9, "[a-z]{1,5}"), 0..12),
        blank in "[ \n\t]{1,3}|/\\*[^*/]{0,5}\\*/|--[a-z]{0,5}\n",
    ) {
        let mut sql = String::new();
        let mut expected = Vec::new();
        for (form, word) in &pieces {
            let (before, kind, after) = [
                ("", Kind::Word, ""),
                ("\"", Kind::QuotedWord, "\""),
                ("'", Kind::Text, "'"),
                ("e'", Kind::EscapeText, "'"),
                ("u&'", Kind::UnicodeText, "'"),
                ("U&\"", Kind::UnicodeWord, "\""),
                ("$$", Kind::DollarText, "$$"),
                ("$tag$", Kind::DollarText, "$tag$"),
                ("", Kind::Word, ""),
            ][*form];
            sql.extend([before, word, after, &blank, ",", &blank]);
            expected.extend([(kind, word.clone()), (Kind::Symbol, ",".to_string())]);
        }
        prop_assert_eq!(lex(&sql), Ok(expected));
    }
}

#[test]
fn quotes_in_a_name_that_is_written_are_doubled() {
    let mut out = Vec::new();
    quote_identifier(&mut out, b"a\"b.C");
    assert_eq!(out, b"\"a\"\"b.C\"");
}
