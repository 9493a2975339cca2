use super::*;
use crate::frontend::{encode_cancel, encode_gss_request, encode_ssl_request, encode_startup};
use crate::testing::{hostile, name, text};
use proptest::prelude::*;

fn packet(word: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 8).unwrap();
    [&len.to_be_bytes()[..], &word.to_be_bytes(), body].concat()
}

fn peek_all(buf: &[u8]) -> Result<Initial<'_>, WireError> {
    let (initial, used) = peek_initial(buf)?.expect("a whole packet");
    assert_eq!(used, buf.len());
    Ok(initial)
}

/// Asserts that `buf` is a whole packet, and that no beginning of it is one.
fn whole(buf: &[u8]) {
    for len in 0..buf.len() {
        assert_eq!(peek_initial(&buf[..len]), Ok(None), "{len} of {} bytes", buf.len());
    }
    assert!(matches!(peek_initial(buf), Ok(Some((_, used))) if used == buf.len()));
}

#[test]
fn requests() {
    let mut out = Vec::new();
    encode_ssl_request(&mut out);
    assert_eq!(out, b"\0\0\0\x08\x04\xd2\x16\x2f");
    assert_eq!(peek_all(&out), Ok(Initial::Ssl));
    whole(&out);

    out.clear();
    encode_gss_request(&mut out);
    assert_eq!(out, b"\0\0\0\x08\x04\xd2\x16\x30");
    assert_eq!(peek_all(&out), Ok(Initial::Gss));
    whole(&out);

    out.clear();
    encode_cancel(&mut out, 0xdead_beef, b"\x01\x02\x03\x04");
    assert_eq!(out, b"\0\0\0\x10\x04\xd2\x16\x2e\xde\xad\xbe\xef\x01\x02\x03\x04");
    assert_eq!(peek_all(&out), Ok(Initial::Cancel { pid: 0xdead_beef, key: b"\x01\x02\x03\x04" }));
    whole(&out);
}

#[test]
fn what_follows_a_packet_is_left_alone() {
    let mut out = Vec::new();
    encode_ssl_request(&mut out);
    out.extend_from_slice(b"\x16\x03\x01 plain text injected before the handshake");
    assert_eq!(peek_initial(&out), Ok(Some((Initial::Ssl, 8))));
}

#[test]
fn requests_have_no_body() {
    for word in [SSL_REQUEST, GSS_REQUEST] {
        assert!(matches!(peek_initial(&packet(word, b"x")), Err(WireError::Trailing { left: 1, .. })));
    }
}

#[test]
fn cancel_keys_have_1_to_256_bytes() {
    for (len, good) in
        [(0, false), (1, true), (4, true), (32, true), (256, true), (257, false), (5000, false)]
    {
        let buf = packet(CANCEL_REQUEST, &[&[0, 0, 0, 9][..], &vec![7; len]].concat());
        assert_eq!(peek_initial(&buf).is_ok(), good, "{len} bytes");
    }
    assert!(matches!(peek_initial(&packet(CANCEL_REQUEST, b"\0\0\0")), Err(WireError::Truncated { .. })));
}

#[test]
fn lengths_are_judged_before_anything_is_waited_for() {
    for len in [0u32, 4, 7, 10_005, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        assert_eq!(peek_initial(&len.to_be_bytes()), Err(WireError::StartupLength { got: len }));
    }
    for len in [8u32, 10_004] {
        assert_eq!(peek_initial(&len.to_be_bytes()), Ok(None));
    }
    // "GET / HTTP/1.1" sent to the wrong port.
    assert_eq!(peek_initial(b"GET "), Err(WireError::StartupLength { got: 0x4745_5420 }));
}

#[test]
fn the_largest_packet_is_taken() {
    let value = vec![b'x'; 10_000 - 4 - 2 - 2];
    let mut out = Vec::new();
    encode_startup(&mut out, (3, 0), &[(b"u", &value)]);
    assert_eq!(out.len(), 10_004);
    let Ok(Initial::Startup(packet)) = peek_all(&out) else { panic!("refused") };
    assert_eq!(packet.param(b"u").map(<[u8]>::len), Some(value.len()));
}

#[test]
fn versions() {
    assert_eq!(peek_all(&packet(0x0002_0000, &[0; 288])), Ok(Initial::OldProtocol));
    assert_eq!(peek_all(&packet(0x0001_0000, b"")), Ok(Initial::OldProtocol));
    for minor in [0, 1, 2, 9999, u16::MAX] {
        let buf = packet(u32::from(minor) | 3 << 16, b"\0");
        assert!(matches!(peek_all(&buf), Ok(Initial::Startup(packet)) if packet.minor == minor));
    }
    for (major, minor) in [(0, 0), (0, 3), (4, 0), (1234, 5677), (1234, 5681), (u16::MAX, u16::MAX)] {
        let buf = packet(u32::from(major) << 16 | u32::from(minor), b"\0");
        assert_eq!(peek_initial(&buf), Err(WireError::UnsupportedProtocol { major, minor }));
        assert_eq!(peek_initial(&buf[..8]), Err(WireError::UnsupportedProtocol { major, minor }));
    }
}

#[test]
fn tls_without_asking() {
    assert_eq!(peek_initial(b""), Ok(None));
    assert_eq!(peek_initial(b"\x16"), Ok(Some((Initial::DirectTls, 0))));
    assert_eq!(peek_initial(b"\x16\x03\x01\x02\0"), Ok(Some((Initial::DirectTls, 0))));
}

#[test]
fn parameters_end_exactly() {
    let three = 3 << 16;
    for good in [&b"\0"[..], b"user\0me\0\0", b"user\0\0\0"] {
        whole(&packet(three, good));
    }
    for bad in [
        &b""[..],
        b"\0\0",
        b"user",
        b"user\0",
        b"user\0me",
        b"user\0me\0",
        b"user\0me\0\0\0",
        b"user\0me\0\0database\0x\0\0",
        b"\0user\0me\0\0",
    ] {
        assert!(peek_initial(&packet(three, bad)).is_err(), "{bad:?}");
    }
}

#[test]
fn the_last_of_equal_names_counts() {
    let buf = packet(3 << 16, b"user\0a\0database\0d\0user\0b\0\0");
    let Ok(Initial::Startup(packet)) = peek_all(&buf) else { panic!("refused") };
    assert_eq!(packet.param(b"user"), Some(&b"b"[..]));
    assert_eq!(packet.param(b"database"), Some(&b"d"[..]));
    assert_eq!(packet.param(b"d"), None, "a value is no name");
    assert_eq!(packet.params().count(), 3);
}

#[test]
fn an_empty_name_cannot_end_the_list_early() {
    let mut out = Vec::new();
    encode_startup(&mut out, (3, 2), &[(b"", b"x"), (b"\0y", b"z"), (b"user", b"me")]);
    let Ok(Initial::Startup(packet)) = peek_all(&out) else { panic!("refused") };
    assert_eq!(packet.params().collect::<Vec<_>>(), [(&b"user"[..], &b"me"[..])]);
}

#[test]
fn debug_shows_no_values() {
    let buf = packet(3 << 16, b"user\0hunter2\0\0");
    assert_eq!(format!("{:?}", peek_all(&buf).unwrap()), "StartupPacket { major: 3, minor: 0, params: 1 }");
    let buf = packet(CANCEL_REQUEST, b"\0\0\0\x07SECRET");
    assert_eq!(format!("{:?}", peek_all(&buf).unwrap()), "Cancel { pid: 7, .. }");
}

proptest! {
    #[test]
    fn startup_round_trip(minor: u16, params in proptest::collection::vec((name(), text()), 0..8)) {
        let borrowed: Vec<_> = params.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        let mut out = Vec::new();
        encode_startup(&mut out, (3, minor), &borrowed);
        whole(&out);
        let Ok(Initial::Startup(packet)) = peek_all(&out) else { panic!("refused") };
        prop_assert_eq!((packet.major, packet.minor), (3, minor));
        prop_assert_eq!(packet.params().collect::<Vec<_>>(), borrowed);
    }

    #[test]
    fn cancel_round_trip(pid: u32, key in proptest::collection::vec(any::<u8>(), 1..=256)) {
        let mut out = Vec::new();
        encode_cancel(&mut out, pid, &key);
        whole(&out);
        prop_assert_eq!(peek_all(&out), Ok(Initial::Cancel { pid, key: &key }));
    }

    #[test]
    fn hostile_bodies(
        word in prop_oneof![Just(3 << 16), Just(CANCEL_REQUEST), Just(SSL_REQUEST), any::<u32>()],
        body in hostile(),
    ) {
        let buf = packet(word, &body);
        if let Ok(Some((Initial::Startup(packet), used))) = peek_initial(&buf) {
            // What was taken is what an encoder makes of it.
            let mut again = Vec::new();
            encode_startup(&mut again, (3, packet.minor), &packet.params().collect::<Vec<_>>());
            prop_assert_eq!(&again, &buf[..used]);
        }
    }

    #[test]
    fn any_bytes(buf: Vec<u8>) {
        if let Ok(Some((_, used))) = peek_initial(&buf) {
            prop_assert!(used <= buf.len());
        }
    }
}
