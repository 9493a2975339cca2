//! The answer of a statement that a stranger's cancel request may hit: looked at as it comes, for its end and for the error of a
//! cancelled statement. This file keeps no bytes and sends none; it must never look twice at what it has seen.

use pgweir_wire::backend::{ErrorFields, tag};
use pgweir_wire::error::SqlState;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::limits::HELD_ANSWER_BYTES_MAX;

/// How far it was looked at, and what was seen until there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Held {
    looked_at: usize,
    cancelled: bool,
}

/// What there is of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeldAnswer {
    /// Not all.
    Partial,
    /// All, up to ReadyForQuery; `cancelled`: the error of a cancelled statement is in it.
    Whole { cancelled: bool },
    /// Something that is part of no statement's answer, or more than is kept: there is no waiting for its end. `cancelled` as
    /// above, for what came before.
    Odd { cancelled: bool },
}

impl Held {
    /// Goes on looking at the answer that these bytes begin with, always from its own beginning.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> HeldAnswer {
        while let Some(ahead) = bytes.get(self.looked_at..) {
            let header = match Header::peek(ahead) {
                Ok(Some(header)) if is_part_of_answer(header) => header,
                Ok(None) => break,
                Ok(Some(_)) | Err(_) => return HeldAnswer::Odd { cancelled: self.cancelled },
            };
            let Some(message) = ahead.get(..header.total()) else { break };
            self.looked_at += message.len();
            match header.tag {
                tag::READY => return HeldAnswer::Whole { cancelled: self.cancelled },
                tag::ERROR => self.cancelled |= says_cancelled(message),
                _ => {}
            }
        }
        if bytes.len() > HELD_ANSWER_BYTES_MAX {
            HeldAnswer::Odd { cancelled: self.cancelled }
        } else {
            HeldAnswer::Partial
        }
    }
}

fn says_cancelled(error: &[u8]) -> bool {
    let fields = ErrorFields::parse(&error[HEADER_LEN..]).ok();
    let code = fields.and_then(|fields| fields.code().and_then(SqlState::from_bytes));
    code == Some(SqlState::QUERY_CANCELED)
}

fn is_part_of_answer(header: Header) -> bool {
    let known = matches!(
        header.tag,
        tag::BIND_COMPLETE
            | tag::CLOSE_COMPLETE
            | tag::COMMAND_COMPLETE
            | tag::DATA_ROW
            | tag::EMPTY_QUERY
            | tag::ERROR
            | tag::NO_DATA
            | tag::NOTICE
            | tag::NOTIFICATION
            | tag::PARAMETER_DESCRIPTION
            | tag::PARAMETER_STATUS
            | tag::PARSE_COMPLETE
            | tag::PORTAL_SUSPENDED
            | tag::READY
            | tag::ROW_DESCRIPTION
    );
    known && header.total() <= HELD_ANSWER_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use pgweir_wire::error::{Report, encode_error};

    use super::*;

    fn refused() -> Vec<u8> {
        let mut bytes = b"C\0\0\0\x0dSELECT 1\0".to_vec();
        encode_error(&mut bytes, &Report::error(SqlState::QUERY_CANCELED, "canceling"));
        bytes
    }

    const READY: &[u8] = b"Z\0\0\0\x05I";

    #[test]
    fn an_answer_is_whole_with_its_ready_for_query_however_it_comes() {
        assert_eq!(Held::default().look(READY), HeldAnswer::Whole { cancelled: false });
        let answer = [&refused(), READY].concat();
        for cut in 0..answer.len() {
            let mut held = Held::default();
            assert_eq!(held.look(&answer[..cut]), HeldAnswer::Partial, "{cut} bytes");
            let both = [&answer, READY].concat();
            assert_eq!(
                held.look(&both),
                HeldAnswer::Whole { cancelled: true },
                "the rest behind {cut} bytes"
            );
        }
    }

    #[test]
    fn what_was_seen_is_not_looked_at_again() {
        let (mut held, begun) = (Held::default(), refused());
        assert_eq!(held.look(&begun), HeldAnswer::Partial);
        let garbled = [vec![0xff; begun.len()], READY.to_vec()].concat();
        assert_eq!(held.look(&garbled), HeldAnswer::Whole { cancelled: true });
    }

    #[test]
    fn nonsense_in_an_answer_is_not_waited_behind() {
        for odd in [&b"%\0\0\0\x0d"[..], b"Z\0\0\0\x03", b"D\x7f\xff\xff\xff", b"G\0\0\0\x07\0\0\0"] {
            let bytes = [&refused(), odd].concat();
            assert_eq!(Held::default().look(&bytes), HeldAnswer::Odd { cancelled: true }, "{odd:?}");
        }
    }

    #[test]
    fn more_than_is_kept_is_not_waited_for() {
        let row = [&b"D\0\0\x10\x04"[..], &[0; 4096]].concat();
        let mut bytes = row.repeat(HELD_ANSWER_BYTES_MAX / row.len());
        let mut held = Held::default();
        assert_eq!(held.look(&bytes), HeldAnswer::Partial);
        bytes.extend(row);
        assert_eq!(held.look(&bytes), HeldAnswer::Odd { cancelled: false });
    }
}
