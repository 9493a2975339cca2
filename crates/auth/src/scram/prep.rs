//! SASLprep (RFC 4013) of a password, with PostgreSQL's leniency.

use std::borrow::Cow;

/// Returns the bytes from which SCRAM derives keys.
///
/// The password is used unchanged if it is not UTF-8, has a prohibited or unassigned character, breaks the
/// rules for right-to-left text, or is empty after preparation. PostgreSQL's `pg_saslprep` and its callers do
/// the same.
pub(crate) fn saslprep(password: &[u8]) -> Cow<'_, [u8]> {
    let prepared = std::str::from_utf8(password).ok().and_then(|text| stringprep::saslprep(text).ok());
    match prepared {
        Some(Cow::Owned(text)) if !text.is_empty() => Cow::Owned(text.into_bytes()),
        Some(Cow::Borrowed(text)) if !text.is_empty() => Cow::Borrowed(text.as_bytes()),
        _ => Cow::Borrowed(password),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(password: &str) -> Cow<'_, [u8]> {
        saslprep(password.as_bytes())
    }

    #[test]
    fn the_examples_of_rfc_4013() {
        assert_eq!(&*prepared("I\u{AD}X"), b"IX", "soft hyphen is mapped to nothing");
        assert_eq!(&*prepared("user"), b"user");
        assert_eq!(&*prepared("USER"), b"USER", "case is kept");
        assert_eq!(&*prepared("\u{AA}"), b"a", "NFKC");
        assert_eq!(&*prepared("\u{2168}"), b"IX", "NFKC");
    }

    #[test]
    fn what_cannot_be_prepared_stays() {
        assert_eq!(&*prepared("\u{7}"), b"\x07", "prohibited");
        assert_eq!(&*prepared("\u{627}1"), "\u{627}1".as_bytes(), "right-to-left rules");
        assert_eq!(&*prepared("a\u{AA}\u{7}"), "a\u{AA}\u{7}".as_bytes(), "prohibited beside mapped");
        assert_eq!(&*prepared("\u{AD}"), "\u{AD}".as_bytes(), "nothing would be left");
        assert_eq!(&*saslprep(b"\xff\xfe"), b"\xff\xfe", "not UTF-8");
    }

    #[test]
    fn a_space_is_a_space() {
        assert_eq!(&*prepared("a\u{A0}b"), b"a b");
        assert_eq!(&*prepared("a b"), b"a b");
    }
}
