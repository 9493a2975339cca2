use super::*;
use crate::error::{Report, SqlState, encode_error};
use crate::header::Header;
use crate::limits::COLUMNS_MAX;
use crate::testing::{body, closed, exact, hostile, name, text};
use proptest::prelude::*;

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

#[test]
fn known_bytes() {
    let table: &[(Vec<u8>, &[u8])] = &[
        (encoded(encode_auth_ok), b"R\0\0\0\x08\0\0\0\0"),
        (encoded(encode_auth_cleartext), b"R\0\0\0\x08\0\0\0\x03"),
        (encoded(|out| encode_auth_md5(out, *b"salt")), b"R\0\0\0\x0c\0\0\0\x05salt"),
        (encoded(|out| encode_auth_sasl(out, &["A", "B"])), b"R\0\0\0\x0d\0\0\0\x0aA\0B\0\0"),
        (encoded(|out| encode_auth_sasl_continue(out, b"x")), b"R\0\0\0\x09\0\0\0\x0bx"),
        (encoded(|out| encode_auth_sasl_final(out, b"x")), b"R\0\0\0\x09\0\0\0\x0cx"),
        (encoded(|out| encode_parameter_status(out, b"a", b"b")), b"S\0\0\0\x08a\0b\0"),
        (encoded(|out| encode_backend_key_data(out, 7, b"1234")), b"K\0\0\0\x0c\0\0\0\x071234"),
        (encoded(|out| encode_negotiate(out, 0, &[b"o"])), b"v\0\0\0\x0e\0\x03\0\0\0\0\0\x01o\0"),
        (encoded(|out| encode_ready(out, TxStatus::Idle)), b"Z\0\0\0\x05I"),
        (encoded(|out| encode_command_complete(out, "BEGIN")), b"C\0\0\0\x0aBEGIN\0"),
        (encoded(encode_empty_query), b"I\0\0\0\x04"),
        (encoded(encode_parse_complete), b"1\0\0\0\x04"),
        (encoded(encode_bind_complete), b"2\0\0\0\x04"),
        (encoded(encode_close_complete), b"3\0\0\0\x04"),
        (encoded(encode_no_data), b"n\0\0\0\x04"),
        (encoded(encode_portal_suspended), b"s\0\0\0\x04"),
        (
            encoded(|out| encode_data_row(out, &[Some(b"x"), None])),
            b"D\0\0\0\x0f\0\x02\0\0\0\x01x\xff\xff\xff\xff",
        ),
        (encoded(|out| encode_parameter_description(out, &[23])), b"t\0\0\0\x0a\0\x01\0\0\0\x17"),
        (encoded(|out| encode_copy_in(out, CopyFormat::Text, 1)), b"G\0\0\0\x09\0\0\x01\0\0"),
        (encoded(|out| encode_copy_out(out, CopyFormat::Binary, 1)), b"H\0\0\0\x09\x01\0\x01\0\x01"),
        (encoded(|out| encode_copy_both(out, CopyFormat::Text, 0)), b"W\0\0\0\x07\0\0\0"),
        (encoded(|out| encode_copy_data(out, b"1\n")), b"d\0\0\0\x061\n"),
        (encoded(encode_copy_done), b"c\0\0\0\x04"),
        (encoded(|out| encode_function_response(out, Some(b"x"))), b"V\0\0\0\x09\0\0\0\x01x"),
        (encoded(|out| encode_function_response(out, None)), b"V\0\0\0\x08\xff\xff\xff\xff"),
        (encoded(|out| encode_notification(out, 7, b"c", b"p")), b"A\0\0\0\x0c\0\0\0\x07c\0p\0"),
    ];
    for (got, expected) in table {
        assert_eq!(got, expected, "{}", expected.escape_ascii());
    }
}

#[test]
fn a_row_description() {
    let columns = [Column { name: "n", type_oid: 25, type_len: -1, binary: false }];
    assert_eq!(
        encoded(|out| encode_row_description(out, &columns)),
        b"T\0\0\0\x1a\0\x01n\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0"
    );
}

#[test]
fn columns_that_cannot_be_counted_are_not_sent() {
    let out = encoded(|out| encode_data_row(out, &vec![None; COLUMNS_MAX + 1]));
    assert_eq!(DataRow::parse(body(tag::DATA_ROW, &out)).unwrap().len(), COLUMNS_MAX);
}

#[test]
fn ready() {
    for status in [TxStatus::Idle, TxStatus::InTransaction, TxStatus::Failed] {
        let out = encoded(|out| encode_ready(out, status));
        assert_eq!(parse_ready(body(tag::READY, &out)), Ok(status));
    }
    let taken: Vec<u8> = (0..=255).filter(|byte| parse_ready(&[*byte]).is_ok()).collect();
    assert_eq!(taken, b"EIT");
    assert!(parse_ready(b"").is_err());
    assert!(parse_ready(b"II").is_err());
}

#[test]
fn authentication() {
    let parse = |bytes: &'static [u8]| Authentication::parse(bytes);
    assert_eq!(parse(b"\0\0\0\0"), Ok(Authentication::Ok));
    assert_eq!(parse(b"\0\0\0\x03"), Ok(Authentication::Cleartext));
    assert_eq!(parse(b"\0\0\0\x05abcd"), Ok(Authentication::Md5 { salt: *b"abcd" }));
    assert_eq!(parse(b"\0\0\0\x0aA\0B\0\0"), Ok(Authentication::Sasl { mechanisms: vec![b"A", b"B"] }));
    assert_eq!(parse(b"\0\0\0\x0a\0"), Ok(Authentication::Sasl { mechanisms: vec![] }));
    assert_eq!(parse(b"\0\0\0\x0br=1"), Ok(Authentication::SaslContinue(b"r=1")));
    assert_eq!(parse(b"\0\0\0\x0cv=1"), Ok(Authentication::SaslFinal(b"v=1")));
    assert_eq!(parse(b"\0\0\0\x07"), Ok(Authentication::Unsupported(7)));
    assert_eq!(parse(b"\0\0\0\x08token"), Ok(Authentication::Unsupported(8)));
    for bad in [
        &b""[..],
        b"\0\0\0",
        b"\0\0\0\0x",
        b"\0\0\0\x03x",
        b"\0\0\0\x05abc",
        b"\0\0\0\x05abcde",
        b"\0\0\0\x0a",
        b"\0\0\0\x0aA\0",
        b"\0\0\0\x0aA\0\0x",
    ] {
        assert!(Authentication::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn lists_are_bounded() {
    let mechanisms = |n: usize| [&b"\0\0\0\x0a"[..], &b"M\0".repeat(n), b"\0"].concat();
    assert!(Authentication::parse(&mechanisms(32)).is_ok());
    assert!(Authentication::parse(&mechanisms(33)).is_err());
    let options = |n: u32| [&b"\0\x03\0\0"[..], &n.to_be_bytes(), &b"o\0".repeat(n as usize)].concat();
    assert!(Negotiate::parse(&options(3333)).is_ok());
    assert!(Negotiate::parse(&options(3334)).is_err());
    assert!(Negotiate::parse(b"\0\x03\0\0\xff\xff\xff\xff").is_err(), "a count is not believed");
}

#[test]
fn negotiation_names_a_version_in_either_way() {
    let minor = |word: u32| Negotiate::parse(&[word.to_be_bytes(), [0; 4]].concat()).map(|n| n.minor);
    assert_eq!(minor(0x0003_0002), Ok(2));
    assert_eq!(minor(2), Ok(2));
    assert!(minor(0x0004_0000).is_err());
    assert!(minor(0xffff_0000).is_err());
}

#[test]
fn keys_have_1_to_256_bytes() {
    for (len, good) in [(0, false), (1, true), (4, true), (256, true), (257, false)] {
        let body = [&b"\0\0\0\x07"[..], &vec![1; len]].concat();
        assert_eq!(BackendKeyData::parse(&body).is_ok(), good, "{len} bytes");
    }
    assert!(BackendKeyData::parse(b"\0\0\0").is_err());
}

#[test]
fn error_fields() {
    let report = Report::error(SqlState::SYNTAX_ERROR, "m").with_detail("d").with_hint("h");
    let out = encoded(|out| encode_error(out, &report));
    let fields = ErrorFields::parse(body(tag::ERROR, &out)).unwrap();
    assert_eq!(fields.severity(), Some(&b"ERROR"[..]));
    assert_eq!(fields.code(), Some(&b"42601"[..]));
    assert_eq!(fields.message(), Some(&b"m"[..]));
    assert_eq!(fields.detail(), Some(&b"d"[..]));
    assert_eq!(fields.hint(), Some(&b"h"[..]));
    assert_eq!(fields.fields().count(), 6);
    exact(body(tag::ERROR, &out), ErrorFields::parse);
}

#[test]
fn odd_error_fields_are_tolerated() {
    let fields = ErrorFields::parse(b"\0").unwrap();
    assert_eq!((fields.severity(), fields.code(), fields.message()), (None, None, None));
    let fields = ErrorFields::parse(b"SFEHLER\0\xffwhat\0C\0Cagain\0\0").unwrap();
    assert_eq!(fields.severity(), Some(&b"FEHLER"[..]), "of a server before 9.6");
    assert_eq!(fields.code(), Some(&b""[..]), "the first one counts");
    assert_eq!(fields.field(0xff), Some(&b"what"[..]));
    for bad in [&b""[..], b"C", b"C28000", b"C28000\0", b"\0\0", b"\0C28000\0\0"] {
        assert!(ErrorFields::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_row_that_lies_is_refused() {
    assert!(DataRow::parse(b"\0\0").unwrap().is_empty());
    for bad in [
        &b""[..],
        b"\0",
        b"\0\x01",
        b"\0\x01\0\0\0\x02x",
        b"\0\x01\x7f\xff\xff\xffx",
        b"\0\x01\xff\xff\xff\xfex",
        b"\xff\xff\xff\xff\xff\xff",
        b"\0\0x",
    ] {
        assert!(DataRow::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn debug_shows_no_secrets() {
    let row = encoded(|out| encode_data_row(out, &[Some(b"secret")]));
    let shown = [
        format!("{:?}", DataRow::parse(body(tag::DATA_ROW, &row)).unwrap()),
        format!("{:?}", BackendKeyData { pid: 7, key: b"secret" }),
        format!("{:?}", Authentication::SaslContinue(b"secret")),
        format!("{:?}", NotificationResponse { pid: 7, channel: b"c", payload: b"secret" }),
        format!("{:?}", ErrorFields::parse(b"C28000\0Msecret\0\0").unwrap()),
    ];
    for shown in shown {
        let bytes = format!("{:?}", b"secret");
        assert!(!shown.contains("secret") && !shown.contains(bytes.trim_matches(['[', ']'])), "{shown}");
    }
}

proptest! {
    #[test]
    fn texts_round_trip(a in text(), b in text(), pid: u32) {
        let out = encoded(|out| encode_parameter_status(out, &a, &b));
        let message = body(tag::PARAMETER_STATUS, &out);
        prop_assert_eq!(ParameterStatus::parse(message), Ok(ParameterStatus { name: &a, value: &b }));
        exact(message, ParameterStatus::parse);
        closed(message, |body| ParameterStatus::parse(body).map(drop));
        let out = encoded(|out| encode_notification(out, pid, &a, &b));
        let message = body(tag::NOTIFICATION, &out);
        let expected = NotificationResponse { pid, channel: &a, payload: &b };
        prop_assert_eq!(NotificationResponse::parse(message), Ok(expected));
        exact(message, NotificationResponse::parse);
        closed(message, |body| NotificationResponse::parse(body).map(drop));
    }

    #[test]
    fn command_complete_round_trip(command_tag in "[ -~]{0,30}") {
        let out = encoded(|out| encode_command_complete(out, &command_tag));
        let message = body(tag::COMMAND_COMPLETE, &out);
        prop_assert_eq!(parse_command_complete(message), Ok(command_tag.as_bytes()));
        exact(message, parse_command_complete);
        closed(message, |body| parse_command_complete(body).map(drop));
    }

    #[test]
    fn key_round_trip(pid: u32, key in proptest::collection::vec(any::<u8>(), 1..=256)) {
        let out = encoded(|out| encode_backend_key_data(out, pid, &key));
        let message = body(tag::BACKEND_KEY_DATA, &out);
        prop_assert_eq!(BackendKeyData::parse(message), Ok(BackendKeyData { pid, key: &key }));
    }

    #[test]
    fn negotiate_round_trip(minor in 0u32..=0xffff, options in proptest::collection::vec(text(), 0..5)) {
        let unsupported: Vec<&[u8]> = options.iter().map(Vec::as_slice).collect();
        let out = encoded(|out| encode_negotiate(out, minor, &unsupported));
        let message = body(tag::NEGOTIATE, &out);
        exact(message, Negotiate::parse);
        closed(message, |body| Negotiate::parse(body).map(drop));
        prop_assert_eq!(Negotiate::parse(message), Ok(Negotiate { minor, unsupported }));
    }

    #[test]
    fn authentication_round_trip(salt: [u8; 4], names in proptest::collection::vec("[A-Z-]{1,9}", 0..5), data: Vec<u8>) {
        let out = encoded(|out| encode_auth_md5(out, salt));
        prop_assert_eq!(Authentication::parse(body(tag::AUTHENTICATION, &out)), Ok(Authentication::Md5 { salt }));
        exact(body(tag::AUTHENTICATION, &out), Authentication::parse);
        let offered: Vec<&str> = names.iter().map(String::as_str).collect();
        let out = encoded(|out| encode_auth_sasl(out, &offered));
        let message = body(tag::AUTHENTICATION, &out);
        exact(message, Authentication::parse);
        let mechanisms = names.iter().map(String::as_bytes).collect();
        prop_assert_eq!(Authentication::parse(message), Ok(Authentication::Sasl { mechanisms }));
        let out = encoded(|out| encode_auth_sasl_continue(out, &data));
        let message = body(tag::AUTHENTICATION, &out);
        prop_assert_eq!(Authentication::parse(message), Ok(Authentication::SaslContinue(&data)));
        let out = encoded(|out| encode_auth_sasl_final(out, &data));
        let message = body(tag::AUTHENTICATION, &out);
        prop_assert_eq!(Authentication::parse(message), Ok(Authentication::SaslFinal(&data)));
    }

    #[test]
    fn rows_round_trip(values: Vec<Option<Vec<u8>>>) {
        let borrowed: Vec<Option<&[u8]>> = values.iter().map(Option::as_deref).collect();
        let out = encoded(|out| encode_data_row(out, &borrowed));
        let message = body(tag::DATA_ROW, &out);
        let row = DataRow::parse(message).unwrap();
        prop_assert_eq!(row.len(), values.len());
        prop_assert_eq!(row.columns().collect::<Vec<_>>(), borrowed);
        exact(message, DataRow::parse);
        closed(message, |body| DataRow::parse(body).map(drop));
    }

    #[test]
    fn error_fields_round_trip(fields in proptest::collection::vec((1u8..=255, text()), 0..8)) {
        let mut message = Vec::new();
        for (kind, value) in &fields {
            message.push(*kind);
            message.extend_from_slice(value);
            message.push(0);
        }
        message.push(0);
        let parsed = ErrorFields::parse(&message).unwrap();
        let expected: Vec<_> = fields.iter().map(|(kind, value)| (*kind, &value[..])).collect();
        prop_assert_eq!(parsed.fields().collect::<Vec<_>>(), expected);
        exact(&message, ErrorFields::parse);
        closed(&message, |body| ErrorFields::parse(body).map(drop));
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
        if let Ok(ParameterStatus { name, value }) = ParameterStatus::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_parameter_status(out, name, value)), message(tag::PARAMETER_STATUS));
        }
        if let Ok(BackendKeyData { pid, key }) = BackendKeyData::parse(&body) {
            prop_assert_eq!(encoded(|out| encode_backend_key_data(out, pid, key)), message(tag::BACKEND_KEY_DATA));
        }
        if let Ok(NotificationResponse { pid, channel, payload }) = NotificationResponse::parse(&body) {
            let again = encoded(|out| encode_notification(out, pid, channel, payload));
            prop_assert_eq!(again, message(tag::NOTIFICATION));
        }
        if let Ok(row) = DataRow::parse(&body) {
            let values: Vec<_> = row.columns().collect();
            prop_assert_eq!(encoded(|out| encode_data_row(out, &values)), message(tag::DATA_ROW));
        }
        if let Ok(Negotiate { minor, unsupported }) = Negotiate::parse(&body) {
            prop_assert!(minor <= 0xffff && unsupported.len() <= body.len());
        }
        if let Ok(Authentication::Sasl { mechanisms }) = Authentication::parse(&body) {
            prop_assert!(mechanisms.iter().all(|name| !name.is_empty()));
        }
        if let Ok(fields) = ErrorFields::parse(&body) {
            let len: usize = fields.fields().map(|(_, value)| value.len() + 2).sum();
            prop_assert_eq!(len + 1, body.len(), "every byte belongs to a field");
        }
    }

    #[test]
    fn a_nul_ends_a_text(before in name(), after in text()) {
        let value = [&before[..], b"\0", &after].concat();
        let out = encoded(|out| encode_parameter_status(out, b"n", &value));
        let status = ParameterStatus::parse(body(tag::PARAMETER_STATUS, &out)).unwrap();
        prop_assert_eq!(status.value, &before[..]);
    }
}
