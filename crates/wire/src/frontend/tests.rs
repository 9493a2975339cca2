use super::*;
use crate::header::{HEADER_LEN, Header};
use crate::testing::{body, closed, exact, hostile, text};
use proptest::prelude::*;

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

#[test]
fn known_bytes() {
    assert_eq!(encoded(|out| encode_query(out, b"select 1")), b"Q\0\0\0\x0dselect 1\0");
    assert_eq!(
        encoded(|out| encode_parse(out, b"s", b"q", &[0, 0, 0, 23, 0, 0, 0, 25])),
        b"P\0\0\0\x12s\0q\0\0\x02\0\0\0\x17\0\0\0\x19"
    );
    assert_eq!(encoded(|out| encode_describe(out, Target::Portal, b"")), b"D\0\0\0\x06P\0");
    assert_eq!(encoded(|out| encode_close(out, Target::Statement, b"s")), b"C\0\0\0\x07Ss\0");
    assert_eq!(encoded(|out| encode_execute(out, b"", 5)), b"E\0\0\0\x09\0\0\0\0\x05");
    assert_eq!(encoded(encode_sync), b"S\0\0\0\x04");
    assert_eq!(encoded(encode_flush), b"H\0\0\0\x04");
    assert_eq!(encoded(encode_terminate), b"X\0\0\0\x04");
    assert_eq!(encoded(|out| encode_copy_fail(out, b"no")), b"f\0\0\0\x07no\0");
    assert_eq!(encoded(|out| encode_password(out, b"pw")), b"p\0\0\0\x07pw\0");
    assert_eq!(encoded(|out| encode_sasl_initial(out, b"M", b"ab")), b"p\0\0\0\x0cM\0\0\0\0\x02ab");
    assert_eq!(encoded(|out| encode_sasl_response(out, b"ab")), b"p\0\0\0\x06ab");
}

#[test]
fn a_query_ends_in_its_only_nul() {
    assert_eq!(Query::parse(b"\0"), Ok(Query { text: b"" }));
    assert!(matches!(Query::parse(b"select"), Err(WireError::Unterminated { .. })));
    assert!(matches!(Query::parse(b"a\0b\0"), Err(WireError::Trailing { left: 2, .. })));
    assert!(Query::parse(b"").is_err());
}

#[test]
fn a_count_of_types_is_checked_against_the_body() {
    assert!(Parse::parse(b"\0\0\xff\xff").is_err());
    assert!(Parse::parse(b"\0\0\0\x01\0\0\0").is_err());
    assert!(Parse::parse(b"\0\0\0\0\0").is_err());
    assert!(Parse::parse(b"\0\0\0\0").is_ok());
    let full = [&b"\0\0\xff\xff"[..], &vec![1; 4 * 65_535]].concat();
    assert_eq!(Parse::parse(&full).unwrap().param_types.len(), 4 * 65_535);
}

#[test]
fn types_that_cannot_be_counted_are_not_sent() {
    let out = encoded(|out| encode_parse(out, b"", b"", &vec![1; 4 * 65_536 + 3]));
    assert_eq!(Parse::parse(body(tag::PARSE, &out)).unwrap().param_types.len(), 4 * 65_535);
}

#[test]
fn targets() {
    assert_eq!(Describe::parse(b"Sx\0"), Ok(Describe { target: Target::Statement, name: b"x" }));
    assert_eq!(Close::parse(b"P\0"), Ok(Close { target: Target::Portal, name: b"" }));
    for bad in [&b"s\0"[..], b"\0\0", b"Q\0", b"S", b"", b"S\0\0"] {
        assert!(Describe::parse(bad).is_err() && Close::parse(bad).is_err(), "{bad:?}");
    }
    assert_eq!(
        Describe::parse(b"Qx\0").unwrap_err().to_string(),
        "Describe: target must be 'S' or 'P', got 0x51"
    );
}

#[test]
fn a_sasl_response_may_be_absent() {
    assert_eq!(SaslInitial::parse(b"X\0\xff\xff\xff\xff"), Ok(SaslInitial { mechanism: b"X", data: None }));
    assert_eq!(SaslInitial::parse(b"X\0\0\0\0\0"), Ok(SaslInitial { mechanism: b"X", data: Some(b"") }));
    for bad in [&b"X\0\x7f\xff\xff\xffab"[..], b"X\0\x80\0\0\0", b"X\0\xff\xff\xff\xfe", b"X\0\0\0\0\x01ab"] {
        assert!(SaslInitial::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn names_of_a_bind_may_be_cut_anywhere() {
    let whole = b"portal\0statement\0\0\0\0\0\0\0";
    for len in 0..17 {
        assert_eq!(BindHead::parse_prefix(&whole[..len]), None);
    }
    for len in 17..=whole.len() {
        let head = BindHead { portal: b"portal", statement: b"statement", tail: 17 };
        assert_eq!(BindHead::parse_prefix(&whole[..len]), Some(head));
    }
}

#[test]
fn a_bind_that_cannot_be_sent_is_refused_by_its_receiver() {
    let out = encoded(|out| encode_bind_head(out, b"", b"", usize::MAX));
    assert!(Header::peek(&out).is_err());
}

#[test]
fn debug_shows_no_secrets() {
    assert_eq!(format!("{:?}", Query { text: b"alter role a password 'b'" }), "Query { len: 25 }");
    assert_eq!(format!("{:?}", Password { text: b"b" }), "Password { .. }");
    let parse = Parse { name: b"s", query: b"secret", param_types: &[0; 8] };
    assert_eq!(format!("{parse:?}"), r#"Parse { name: "s", query_len: 6, param_types: 2 }"#);
    let sasl = SaslInitial { mechanism: b"M\n", data: Some(b"secret") };
    assert_eq!(format!("{sasl:?}"), r#"SaslInitial { mechanism: "M\\n", .. }"#);
}

proptest! {
    #[test]
    fn query_round_trip(sql in text()) {
        let out = encoded(|out| encode_query(out, &sql));
        let body = body(tag::QUERY, &out);
        prop_assert_eq!(Query::parse(body), Ok(Query { text: &sql }));
        exact(body, Query::parse);
        closed(body, |body| Query::parse(body).map(drop));
    }

    #[test]
    fn parse_round_trip(name in text(), query in text(), oids: Vec<[u8; 4]>) {
        let out = encoded(|out| encode_parse(out, &name, &query, oids.as_flattened()));
        let body = body(tag::PARSE, &out);
        let expected = Parse { name: &name, query: &query, param_types: oids.as_flattened() };
        prop_assert_eq!(Parse::parse(body), Ok(expected));
        exact(body, Parse::parse);
        closed(body, |body| Parse::parse(body).map(drop));
    }

    #[test]
    fn bind_round_trip(portal in text(), statement in text(), tail: Vec<u8>) {
        let mut out = encoded(|out| encode_bind_head(out, &portal, &statement, tail.len()));
        let head_len = out.len();
        out.extend_from_slice(&tail);
        let body = body(tag::BIND, &out);
        let head = BindHead { portal: &portal, statement: &statement, tail: head_len - HEADER_LEN };
        prop_assert_eq!(BindHead::parse_prefix(body), Some(head));
        prop_assert_eq!(&body[head.tail..], &tail[..]);
    }

    #[test]
    fn describe_close_execute_round_trip(name in text(), portal: bool, max_rows: u32) {
        let target = if portal { Target::Portal } else { Target::Statement };
        let out = encoded(|out| encode_describe(out, target, &name));
        prop_assert_eq!(Describe::parse(body(tag::DESCRIBE, &out)), Ok(Describe { target, name: &name }));
        exact(body(tag::DESCRIBE, &out), Describe::parse);
        let out = encoded(|out| encode_close(out, target, &name));
        prop_assert_eq!(Close::parse(body(tag::CLOSE, &out)), Ok(Close { target, name: &name }));
        exact(body(tag::CLOSE, &out), Close::parse);
        let out = encoded(|out| encode_execute(out, &name, max_rows));
        prop_assert_eq!(Execute::parse(body(tag::EXECUTE, &out)), Ok(Execute { portal: &name, max_rows }));
        exact(body(tag::EXECUTE, &out), Execute::parse);
        closed(body(tag::EXECUTE, &out), |body| Execute::parse(body).map(drop));
    }

    #[test]
    fn passwords_round_trip(password in text(), mechanism in text(), data: Vec<u8>) {
        let out = encoded(|out| encode_password(out, &password));
        prop_assert_eq!(Password::parse(body(tag::PASSWORD, &out)), Ok(Password { text: &password }));
        exact(body(tag::PASSWORD, &out), Password::parse);
        let out = encoded(|out| encode_sasl_initial(out, &mechanism, &data));
        let expected = SaslInitial { mechanism: &mechanism, data: Some(&data) };
        prop_assert_eq!(SaslInitial::parse(body(tag::PASSWORD, &out)), Ok(expected));
        exact(body(tag::PASSWORD, &out), SaslInitial::parse);
        closed(body(tag::PASSWORD, &out), |body| SaslInitial::parse(body).map(drop));
    }

    /// Whatever a parser accepts is exactly what the encoder would have written.
    #[test]
    fn hostile_bodies(body in hostile()) {
        let message = |tag| {
            let mut out = Vec::new();
            Header { tag, body_len: u32::try_from(body.len()).unwrap() }.encode(&mut out);
            out.extend_from_slice(&body);
            out
        };
        if let Ok(Query { text }) = Query::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_query(out, text)), message(tag::QUERY));
        }
        if let Ok(parse) = Parse::parse(&body) {
            let again = encoded(|out| encode_parse(out, parse.name, parse.query, parse.param_types));
            prop_assert_eq!(again, message(tag::PARSE));
        }
        if let Some(head) = BindHead::parse_prefix(&body) {
            let tail = &body[head.tail..];
            let mut again = encoded(|out| encode_bind_head(out, head.portal, head.statement, tail.len()));
            again.extend_from_slice(tail);
            prop_assert_eq!(again, message(tag::BIND));
        }
        if let Ok(Describe { target, name }) = Describe::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_describe(out, target, name)), message(tag::DESCRIBE));
        }
        if let Ok(Close { target, name }) = Close::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_close(out, target, name)), message(tag::CLOSE));
        }
        if let Ok(Execute { portal, max_rows }) = Execute::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_execute(out, portal, max_rows)), message(tag::EXECUTE));
        }
        if let Ok(SaslInitial { mechanism, data: Some(data) }) = SaslInitial::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_sasl_initial(out, mechanism, data)), message(tag::PASSWORD));
        }
    }
}
