//! The five bytes at the start of every message: a tag and a length.
//!
//! Headers are the hottest code of the product: a pooler reads each header and little else. The code allocates nothing
//! and must never read past its input.
//!
//! Encoders (here and in [`crate::frontend`], [`crate::backend`]) cannot fail, because their callers bound
//! their arguments. If a value does not fit after all, the message is made harmless, so that its receiver
//! does not misread it: a text is cut at its first NUL, because its receiver would read the rest as further
//! fields; and a length above `i32::MAX` is written as `u32::MAX`, which every receiver refuses.

use crate::error::WireError;
use crate::limits::{MESSAGE_LEN_MAX, MESSAGE_LEN_MIN};

/// The size of a message's header in bytes: tag and length field.
pub const HEADER_LEN: usize = 5;

/// The contents of a message's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The message type, see [`crate::frontend::tag`] and [`crate::backend::tag`]. It is not checked here,
    /// because its meaning depends on the sender.
    pub tag: u8,
    /// The number of bytes after the header, at most [`MESSAGE_LEN_MAX`] - 4.
    pub body_len: u32,
}

impl Header {
    /// Reads the header at the start of `buf`. Returns `None` if it has fewer than [`HEADER_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// [`WireError::MessageLength`] if the length field is below 4 or above `i32::MAX`: then nothing that
    /// follows on this connection can be understood.
    #[inline]
    pub fn peek(buf: &[u8]) -> Result<Option<Self>, WireError> {
        let [tag, a, b, c, d, ..] = *buf else { return Ok(None) };
        let len = u32::from_be_bytes([a, b, c, d]);
        if (MESSAGE_LEN_MIN..=MESSAGE_LEN_MAX).contains(&len) {
            Ok(Some(Self { tag, body_len: len - MESSAGE_LEN_MIN }))
        } else {
            Err(WireError::MessageLength { got: len })
        }
    }

    /// Returns the size of the whole message in bytes, header included.
    #[inline]
    #[must_use]
    pub fn total(&self) -> usize {
        HEADER_LEN + self.body_len as usize
    }

    /// Appends this header. The caller appends `body_len` bytes after it.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.tag);
        out.extend_from_slice(&self.body_len.saturating_add(MESSAGE_LEN_MIN).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waits_for_five_bytes() {
        for len in 0..HEADER_LEN {
            assert_eq!(Header::peek(&b"Q\0\0\0\x04"[..len]), Ok(None));
        }
    }

    #[test]
    fn accepts_the_whole_range_and_nothing_else() {
        let peek = |len: u32| {
            let mut buf = vec![b'D'];
            buf.extend_from_slice(&len.to_be_bytes());
            Header::peek(&buf)
        };
        for len in [0, 1, 2, 3, 0x8000_0000, 0x8000_0004, u32::MAX] {
            assert_eq!(peek(len), Err(WireError::MessageLength { got: len }));
        }
        assert_eq!(peek(4), Ok(Some(Header { tag: b'D', body_len: 0 })));
        assert_eq!(peek(0x7fff_ffff), Ok(Some(Header { tag: b'D', body_len: 0x7fff_fffb })));
    }

    #[test]
    fn total_counts_the_header() {
        assert_eq!(Header { tag: b'S', body_len: 0 }.total(), 5);
        assert_eq!(Header { tag: b'S', body_len: 0x7fff_fffb }.total(), 0x8000_0000);
    }

    proptest! {
        #[test]
        fn round_trip(tag: u8, body_len in 0u32..=MESSAGE_LEN_MAX - 4, tail: Vec<u8>) {
            let header = Header { tag, body_len };
            let mut out = Vec::new();
            header.encode(&mut out);
            prop_assert_eq!(out.len(), HEADER_LEN);
            out.extend_from_slice(&tail);
            prop_assert_eq!(Header::peek(&out), Ok(Some(header)));
        }

        #[test]
        fn a_body_that_cannot_be_sent_is_refused(body_len in MESSAGE_LEN_MAX - 3..=u32::MAX) {
            let mut out = Vec::new();
            Header { tag: b'd', body_len }.encode(&mut out);
            prop_assert!(Header::peek(&out).is_err());
        }
    }
}
