//! Helpers that the tests of this crate share.

use proptest::prelude::*;

use crate::error::WireError;
use crate::header::{HEADER_LEN, Header};

/// Returns the body of the one message in `bytes`, which must have this tag and be whole.
pub(crate) fn body(tag: u8, bytes: &[u8]) -> &[u8] {
    let header = Header::peek(bytes).unwrap().expect("a header");
    assert_eq!((header.tag, header.total()), (tag, bytes.len()));
    &bytes[HEADER_LEN..]
}

/// Asserts that `parse` accepts `body`, and refuses each truncation of it, and `body` with one more byte.
pub(crate) fn exact<'a, T>(body: &'a [u8], parse: impl Fn(&'a [u8]) -> Result<T, WireError>) {
    assert!(parse(body).is_ok());
    for len in 0..body.len() {
        assert!(parse(&body[..len]).is_err(), "{len} of {} bytes were taken", body.len());
    }
}

/// Asserts that `parse` refuses `body` with bytes after it.
pub(crate) fn closed<T>(body: &[u8], parse: impl Fn(&[u8]) -> Result<T, WireError>) {
    for more in [&b"\0"[..], b"x", b"\0\0\0\0", b"\xff\xff\xff\xff"] {
        assert!(parse(&[body, more].concat()).is_err(), "took {more:?} behind the end");
    }
}

/// Returns any bytes that a text in a message can have.
pub(crate) fn text() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1u8..=255, 0..20)
}

/// Returns any bytes that a name in a message can have, if an empty name would end a list.
pub(crate) fn name() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1u8..=255, 1..20)
}

/// Returns bytes as a hostile peer would choose them: many zeros, ones and letters with a meaning.
pub(crate) fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let byte =
        prop_oneof![4 => Just(0u8), 2 => Just(0xffu8), 2 => 1u8..16, 2 => b'A'..=b'Z', 1 => any::<u8>()];
    proptest::collection::vec(byte, 0..64)
}
