//! The messages in a buffer, one after the other.
//!
//! Every look at the bytes of a connection that goes from message to message uses this iterator. Only the code that passes
//! bytes on (`relay` in core) frames them itself, because it stops, sends and goes on between two messages.

use crate::header::{HEADER_LEN, Header};

/// One message in a buffer. Its end may be still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message's header, which is in the buffer as a whole.
    pub header: Header,
    /// The position of the message's first byte in the buffer.
    pub start: usize,
    /// The message's bytes from its header on, as far as they are in the buffer.
    pub bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The type of the message.
    #[inline]
    #[must_use]
    pub fn tag(&self) -> u8 {
        self.header.tag
    }

    /// The bytes behind the header, as far as they are in the buffer.
    #[inline]
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }

    /// Whether the buffer holds all of the message.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.bytes.len() == self.header.total()
    }

    /// The position behind the message: beyond the end of the buffer if the message is not whole.
    #[inline]
    #[must_use]
    pub fn end(&self) -> usize {
        self.start + self.header.total()
    }

    /// The position behind the message's bytes that are in the buffer.
    #[inline]
    #[must_use]
    pub fn end_here(&self) -> usize {
        self.start + self.bytes.len()
    }
}

/// The messages at the front of a buffer. The last of them may be in part. The iterator ends there, and before bytes that are
/// no header: those that are too few for one, and those with a length that no message has.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    buffer: &'a [u8],
    at: usize,
}

impl<'a> Messages<'a> {
    /// The messages of a buffer that begins with one.
    #[inline]
    #[must_use]
    pub fn of(buffer: &'a [u8]) -> Messages<'a> {
        Messages { buffer, at: 0 }
    }

    /// The messages of a buffer from a position on, at which one begins. Positions count from the beginning of the buffer.
    #[inline]
    #[must_use]
    pub fn from(buffer: &'a [u8], at: usize) -> Messages<'a> {
        Messages { buffer, at: at.min(buffer.len()) }
    }

    /// The same messages without one that is in part.
    #[inline]
    pub fn whole(self) -> impl Iterator<Item = Message<'a>> {
        self.take_while(Message::is_whole)
    }

    /// The position behind the last message that was returned: the end of the buffer if that message is in part.
    #[inline]
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Whether the next bytes have a length that no message has: nothing behind them can be understood.
    #[inline]
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        Header::peek(&self.buffer[self.at..]).is_err()
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    #[inline]
    fn next(&mut self) -> Option<Message<'a>> {
        let rest = &self.buffer[self.at..];
        let header = Header::peek(rest).ok()??;
        let bytes = &rest[..header.total().min(rest.len())];
        let message = Message { header, start: self.at, bytes };
        self.at += bytes.len();
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer(bodies: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        for &len in bodies {
            Header { tag: b'd', body_len: u32::try_from(len).expect("a short body") }.encode(&mut out);
            out.resize(out.len() + len, b'x');
        }
        out
    }

    #[test]
    fn a_message_in_part_is_the_last() {
        let bytes = buffer(&[3, 10]);
        let mut messages = Messages::of(&bytes[..bytes.len() - 1]);
        let first = messages.next().expect("a message");
        assert_eq!((first.tag(), first.body(), first.is_whole(), first.end()), (b'd', &b"xxx"[..], true, 8));
        let second = messages.next().expect("a message in part");
        assert_eq!((second.start, second.is_whole(), second.end(), second.end_here()), (8, false, 23, 22));
        assert_eq!((messages.position(), messages.next(), messages.is_malformed()), (22, None, false));
        assert_eq!(Messages::of(&bytes[..bytes.len() - 1]).whole().count(), 1);
        assert_eq!(Messages::from(&bytes, 8).map(|message| message.start).collect::<Vec<_>>(), [8]);
    }

    #[test]
    fn bytes_that_are_no_header_end_it() {
        let bytes = [&buffer(&[0])[..], b"d\0\0\0\x03"].concat();
        let mut messages = Messages::of(&bytes);
        assert_eq!(messages.by_ref().count(), 1);
        assert!(messages.is_malformed());
        assert_eq!((messages.position(), messages.next()), (5, None));
        let mut none = Messages::from(b"d\0", 9);
        assert_eq!((none.next(), none.is_malformed()), (None, false));
    }

    proptest! {
        #[test]
        fn messages_cover_the_buffer(bodies in prop::collection::vec(0_usize..50, 0..6), cut in 0_usize..300) {
            let bytes = buffer(&bodies);
            let here = &bytes[..cut.min(bytes.len())];
            let mut messages = Messages::of(here);
            let mut end = 0;
            for message in messages.by_ref() {
                prop_assert_eq!(message.start, end);
                prop_assert_eq!(message.bytes, &here[message.start..message.end_here()]);
                end = message.end_here();
            }
            prop_assert_eq!(messages.position(), end);
            prop_assert!(here.len() - end < HEADER_LEN);
        }
    }
}
