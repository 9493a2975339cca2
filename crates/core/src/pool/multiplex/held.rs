//! Answers that are looked at as they come, before anything of them is passed on. That of a statement that a stranger's cancel request
//! may hit: for its end and for the error of a cancelled statement. That of a read at a standby which may run again on the primary
//! instead: for an error that comes ahead of all that its client would go by. This file keeps no bytes and sends none; it must never
//! look twice at what it has seen.

use pgweir_wire::backend::{ErrorFields, tag};
use pgweir_wire::error::SqlState;
use pgweir_wire::{HEADER_LEN, Header, Messages};

use crate::limits::{HELD_ANSWER_BYTES_MAX, UNSHOWN_ANSWER_BYTES_MAX};

/// The reason why an answer is looked at before it is passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeldBack {
    /// The statement may be hit by a cancel request that was meant for another client's.
    Exposed(Held),
    /// The statement may run on another node instead.
    Unshown(Unshown),
}

/// The number of bytes of the answer that were looked at, and the findings so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Held {
    looked_at: usize,
    cancelled: bool,
}

/// The part of a held answer that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeldAnswer {
    /// The answer is not complete.
    Partial,
    /// The answer is complete, up to ReadyForQuery. `cancelled`: it contains the error of a cancelled statement.
    Whole { cancelled: bool },
    /// A message has come that is part of no statement's answer, so there is no waiting for the end. `cancelled` as above, for the
    /// messages before it.
    Odd { cancelled: bool },
    /// The answer is longer than pgweir keeps, and its end has not come.
    Long,
}

impl Held {
    /// Goes on looking at the answer that these bytes begin with, always from its own beginning.
    pub(crate) fn look(&mut self, bytes: &[u8]) -> HeldAnswer {
        let mut messages = Messages::from(bytes, self.looked_at);
        for message in messages.by_ref() {
            if !is_part_of_answer(message.header) {
                return HeldAnswer::Odd { cancelled: self.cancelled };
            }
            if message.header.total() > HELD_ANSWER_BYTES_MAX {
                return HeldAnswer::Long;
            }
            if !message.is_whole() {
                break;
            }
            self.looked_at = message.end();
            match message.tag() {
                tag::READY => return HeldAnswer::Whole { cancelled: self.cancelled },
                tag::ERROR => self.cancelled |= says_cancelled(message.bytes),
                _ => {}
            }
        }
        if messages.is_malformed() {
            return HeldAnswer::Odd { cancelled: self.cancelled };
        }
        if bytes.len() > HELD_ANSWER_BYTES_MAX { HeldAnswer::Long } else { HeldAnswer::Partial }
    }
}

/// How far the beginning of an answer was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Unshown {
    looked_at: usize,
}

/// The beginning of an answer, as far as it tells whether the statement runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Beginning<'a> {
    /// No message has come yet that tells whether the statement runs.
    Nothing,
    /// A row, or the end of a statement; or more than is held back.
    Answer,
    /// The statement has failed with this error, which is a whole message.
    Error(&'a [u8]),
}

impl Unshown {
    /// Goes on looking at the answer that these bytes begin with, always from its own beginning.
    pub(crate) fn look<'a>(&mut self, bytes: &'a [u8]) -> Beginning<'a> {
        let mut messages = Messages::from(bytes, self.looked_at);
        for message in messages.by_ref() {
            if !is_unshown(message.header) {
                return Beginning::Answer;
            }
            if !message.is_whole() {
                break;
            }
            if message.tag() == tag::ERROR {
                return Beginning::Error(message.bytes);
            }
            self.looked_at = message.end();
        }
        if messages.is_malformed() || bytes.len() > UNSHOWN_ANSWER_BYTES_MAX {
            Beginning::Answer
        } else {
            Beginning::Nothing
        }
    }
}

/// Whether a message comes before a statement has run, or reports that the statement has failed.
fn is_unshown(header: Header) -> bool {
    matches!(
        header.tag,
        tag::BIND_COMPLETE
            | tag::CLOSE_COMPLETE
            | tag::ERROR
            | tag::NO_DATA
            | tag::NOTICE
            | tag::NOTIFICATION
            | tag::PARAMETER_DESCRIPTION
            | tag::PARAMETER_STATUS
            | tag::PARSE_COMPLETE
            | tag::ROW_DESCRIPTION
    )
}

fn says_cancelled(error: &[u8]) -> bool {
    let fields = ErrorFields::parse(&error[HEADER_LEN..]).ok();
    let code = fields.and_then(|fields| fields.code().and_then(SqlState::from_bytes));
    code == Some(SqlState::QUERY_CANCELED)
}

fn is_part_of_answer(header: Header) -> bool {
    is_unshown(header)
        || matches!(
            header.tag,
            tag::COMMAND_COMPLETE | tag::DATA_ROW | tag::EMPTY_QUERY | tag::PORTAL_SUSPENDED | tag::READY
        )
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
        for odd in [&b"%\0\0\0\x0d"[..], b"Z\0\0\0\x03", b"G\0\0\0\x07\0\0\0"] {
            let bytes = [&refused(), odd].concat();
            assert_eq!(Held::default().look(&bytes), HeldAnswer::Odd { cancelled: true }, "{odd:?}");
        }
    }

    #[test]
    fn the_beginning_of_an_answer_tells_whether_its_statement_runs() {
        const DESCRIBED: &[u8] = b"1\0\0\0\x042\0\0\0\x04T\0\0\0\x06\0\0";
        let error = &refused()[14..];
        let failed = [DESCRIBED, error, READY].concat();
        for cut in 0..failed.len() {
            let mut unshown = Unshown::default();
            let is_there = cut >= DESCRIBED.len() + error.len();
            let found = if is_there { Beginning::Error(error) } else { Beginning::Nothing };
            assert_eq!(unshown.look(&failed[..cut]), found, "{cut} bytes");
            assert_eq!(unshown.look(&failed), Beginning::Error(error), "the rest behind {cut} bytes");
        }
        let row: &[u8] = b"D\0\0\0\x06\0\0";
        for begun in [row, b"C\0\0\0\x0dSELECT 0\0", READY, b"I\0\0\0\x04", b"s\0\0\0\x04", b"%\0\0\0\x04"] {
            let bytes = [DESCRIBED, begun, error].concat();
            assert_eq!(Unshown::default().look(&bytes), Beginning::Answer, "{begun:?}");
        }
        let notice = [&b"N\0\0\x10\x04"[..], &[0; 4096]].concat();
        let many = notice.repeat(UNSHOWN_ANSWER_BYTES_MAX / notice.len());
        let mut unshown = Unshown::default();
        assert_eq!(unshown.look(&many), Beginning::Nothing);
        assert_eq!(unshown.look(&[many, notice].concat()), Beginning::Answer, "too much to be held back");
    }

    #[test]
    fn more_than_is_kept_is_not_waited_for() {
        let row = [&b"D\0\0\x10\x04"[..], &[0; 4096]].concat();
        let mut bytes = row.repeat(HELD_ANSWER_BYTES_MAX / row.len());
        let mut held = Held::default();
        assert_eq!(held.look(&bytes), HeldAnswer::Partial);
        bytes.extend(row);
        assert_eq!(held.look(&bytes), HeldAnswer::Long);
        assert_eq!(Held::default().look(b"D\x7f\xff\xff\xff"), HeldAnswer::Long);
    }
}
