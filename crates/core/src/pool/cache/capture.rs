//! Captures: copies of answers, made while they pass from a server to its client, so that the query cache can keep them.
//!
//! The cache keeps an answer only if it has exactly the messages that PostgreSQL sends for the group if all is well. An error, a notice, a
//! parameter or a notification in it, or an open transaction at its end, makes it unfit.

use std::sync::Arc;

use pgweir_wire::Messages;
use pgweir_wire::backend::{ErrorFields, tag as answer_tag};
use pgweir_wire::frontend::tag;

use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::cache::comparison::Difference;
use crate::pool::cache::store::{CaptureBytes, Store};
use crate::pool::cache::wal::{ChangesMade, Fill};
use crate::pool::relay::exchange::whole_messages;
use crate::stats::statements::Running;

/// The time at which a statement was sent to a server, with the state of the database's objects and rights at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SentAt {
    /// The time (monotonic, µs). PostgreSQL has run the statement after it.
    pub(crate) at_us: u64,
    /// The value of [`Shared::age`](crate::shared::Shared::age) at that time.
    pub(crate) age: u64,
    /// The value of [`Shared::changes`](crate::shared::Shared::changes) at that time.
    pub(crate) changes: u64,
}

impl SentAt {
    /// Returns the value for a statement that is sent now.
    pub(crate) fn now(env: &Env) -> SentAt {
        SentAt { at_us: env.now.mono_us, age: env.shared.age(), changes: env.shared.changes() }
    }

    /// Returns the changes through pgweir that were made before the statement was sent.
    pub(crate) fn changes_made(self) -> ChangesMade {
        ChangesMade { age: self.age, changes: self.changes }
    }

    /// Returns `true` if no object, right or role was changed through pgweir since the statement was sent.
    pub(crate) fn is_current(self, env: &Env) -> bool {
        self.age == env.shared.age() && self.changes == env.shared.changes()
    }
}

/// The copy of one group's answer, as far as the answer has arrived.
pub(crate) struct Capture {
    pub(crate) client: ClientId,
    /// The statement in SHOW STATEMENTS.
    pub(crate) statement: Running,
    pub(crate) key: Arc<[u8]>,
    pub(crate) sent: SentAt,
    /// The basis of an answer whose tables are followed; `None` if the rule has another condition.
    fill: Option<Fill>,
    /// The meaning of a difference between this answer and the one that is kept; `None` if they are not compared.
    pub(crate) difference: Option<Difference>,
    /// The types of the group's messages, in their order.
    asked: Box<[u8]>,
    /// The transaction status at the end of an answer that may be kept.
    status: u8,
    bytes_max: usize,
    bytes: Vec<u8>,
    /// The position in `bytes` of the next message.
    next: usize,
    underway: CaptureBytes,
    /// The number of bytes that all captures may take together.
    underway_max: usize,
}

/// The state of a capture after more bytes of the answer.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// The end of the answer is still to come.
    More,
    /// The answer is whole, and may be kept.
    Plain,
    /// The answer is whole, and must not be kept: it has a message that the group did not ask for.
    Unfit,
    /// The answer has more bytes than are kept, or there is no room for what all captures have. The rest of it is not needed.
    TooLong,
}

impl Capture {
    /// Returns an empty capture for the answer to the group `messages`. `is_in_block`: the group is the first one of a transaction block, and
    /// its answer is kept as if there were none. An answer of more than `bytes_max` bytes is given up.
    pub(crate) fn new(
        client: ClientId,
        statement: Running,
        (key, sent): (Arc<[u8]>, SentAt),
        (messages, is_in_block): (&[u8], bool),
        bytes_max: usize,
        store: &Store,
    ) -> Capture {
        store.underway().add(key.len());
        Capture {
            client,
            statement,
            key,
            sent,
            fill: None,
            difference: None,
            asked: whole_messages(messages).map(|message| message.tag()).collect(),
            status: if is_in_block { b'T' } else { b'I' },
            bytes_max,
            bytes: Vec::new(),
            next: 0,
            underway: store.underway().clone(),
            underway_max: store.bytes_max(),
        }
    }

    /// Notes the basis of the answer.
    pub(crate) fn set_fill(&mut self, fill: Option<Fill>) {
        self.underway.add(fill.as_ref().map_or(0, Fill::bytes));
        self.fill = fill;
    }

    /// Returns the basis of the answer; `None` if its tables are not followed.
    pub(crate) fn fill(&self) -> Option<&Fill> {
        self.fill.as_ref()
    }

    /// Returns the answer, as far as it has arrived.
    pub(crate) fn answer(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether PostgreSQL has refused the statement itself: it does not know a name in it, or the user lacks a right (SQLSTATE class 42).
    pub(crate) fn is_refused(&self) -> bool {
        let mut errors =
            Messages::of(&self.bytes).whole().filter(|message| message.tag() == answer_tag::ERROR);
        errors.any(|error| {
            let code = ErrorFields::parse(error.body()).ok().and_then(|fields| fields.code());
            code.is_some_and(|code| code.starts_with(b"42"))
        })
    }

    /// Takes further bytes of the server. Bytes after the end of this answer belong to the next one, and are dropped.
    pub(crate) fn hear(&mut self, bytes: &[u8]) -> Heard {
        let room = self.bytes_max.saturating_add(1).saturating_sub(self.bytes.len());
        let taken = &bytes[..bytes.len().min(room)];
        self.bytes.extend_from_slice(taken);
        self.underway.add(taken.len());
        let mut is_over = false;
        for message in Messages::from(&self.bytes, self.next).whole() {
            self.next = message.end();
            is_over = message.tag() == answer_tag::READY;
            if is_over {
                break;
            }
        }
        if is_over && self.next <= self.bytes_max {
            self.underway.take(self.bytes.len() - self.next);
            self.bytes.truncate(self.next);
            if !is_plain_answer(&self.asked, &self.bytes, self.status) {
                return Heard::Unfit;
            }
            if let Some(status) = self.bytes.last_mut() {
                *status = b'I';
            }
            return Heard::Plain;
        }
        let has_room = self.bytes.len() <= self.bytes_max && self.underway.bytes() <= self.underway_max;
        if has_room { Heard::More } else { Heard::TooLong }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let fill_bytes = self.fill.as_ref().map_or(0, Fill::bytes);
        self.underway.take(self.bytes.len() + self.key.len() + fill_bytes);
    }
}

/// Returns whether `answer` has, for each message of the group (`asked`), the messages that PostgreSQL sends if all is well, and no other.
/// `status` is the transaction status at its end.
fn is_plain_answer(asked: &[u8], answer: &[u8], status: u8) -> bool {
    let mut messages = Messages::of(answer).whole();
    let mut next = || messages.next().map(|message| (message.tag(), message.body()));
    let mut asked = asked.iter().copied().peekable();
    while let Some(message) = asked.next() {
        let mut is_next = |wanted: &[u8]| next().is_some_and(|(tag, _)| wanted.contains(&tag));
        let is_answered = match message {
            tag::PARSE => is_next(&[answer_tag::PARSE_COMPLETE]),
            tag::BIND => is_next(&[answer_tag::BIND_COMPLETE]),
            tag::CLOSE => is_next(&[answer_tag::CLOSE_COMPLETE]),
            tag::DESCRIBE => match next() {
                Some((answer_tag::PARAMETER_DESCRIPTION, _)) => {
                    matches!(next(), Some((answer_tag::ROW_DESCRIPTION | answer_tag::NO_DATA, _)))
                }
                Some((tag, _)) => matches!(tag, answer_tag::ROW_DESCRIPTION | answer_tag::NO_DATA),
                None => false,
            },
            tag::EXECUTE => is_rows_and_end(&mut next),
            tag::QUERY => {
                is_next(&[answer_tag::ROW_DESCRIPTION])
                    && is_rows_and_end(&mut next)
                    && is_end(next(), status)
            }
            tag::SYNC => asked.peek().is_none() && is_end(next(), status),
            _ => false,
        };
        if !is_answered {
            return false;
        }
    }
    next().is_none()
}

/// Returns whether the next messages are rows and a CommandComplete.
fn is_rows_and_end<'a>(next: &mut impl FnMut() -> Option<(u8, &'a [u8])>) -> bool {
    loop {
        match next() {
            Some((answer_tag::DATA_ROW, _)) => {}
            Some((answer_tag::COMMAND_COMPLETE, _)) => return true,
            _ => return false,
        }
    }
}

/// Returns whether the message is a ReadyForQuery with this transaction status.
fn is_end(message: Option<(u8, &[u8])>, status: u8) -> bool {
    message == Some((answer_tag::READY, &[status]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    /// An answer of messages with these types; each ReadyForQuery tells this status.
    fn answer(tags: &str, status: u8) -> Vec<u8> {
        let body = |tag: u8| if tag == b'Z' { vec![status] } else { b"x".to_vec() };
        tags.bytes().flat_map(|tag| message(tag, &body(tag))).collect()
    }

    fn capture(asked: &str, bytes_max: usize) -> (Capture, CaptureBytes) {
        capture_in(&Store::new(10_000), asked, bytes_max)
    }

    fn capture_in(store: &Store, asked: &str, bytes_max: usize) -> (Capture, CaptureBytes) {
        let messages: Vec<u8> = asked.bytes().flat_map(|tag| message(tag, b"x\0")).collect();
        let what = (Arc::from(&b"key"[..]), SentAt { at_us: 1, age: 0, changes: 0 });
        let (client, statement) = (ClientId::default(), Running::default());
        let capture = Capture::new(client, statement, what, (&messages, false), bytes_max, store);
        (capture, store.underway().clone())
    }

    #[test]
    fn an_answer_ends_with_its_ready_for_query() {
        let whole = answer("TDDCZ", b'I');
        for piece in 1..whole.len() {
            let (mut capture, _) = capture("Q", 100);
            let bytes = [&whole[..], b"C\0\0"].concat();
            assert!(bytes.chunks(piece).any(|piece| capture.hear(piece) == Heard::Plain), "{piece}");
            assert_eq!(capture.answer(), whole);
        }
    }

    #[test]
    fn only_what_was_asked_for_is_kept() {
        for (asked, tags, expected) in [
            ("Q", "TCZ", true),
            ("Q", "TDNDCZ", false),
            ("Q", "TDSCZ", false),
            ("Q", "ATDCZ", false),
            ("Q", "TDEZ", false),
            ("Q", "EZ", false),
            ("Q", "CZ", false),
            ("Q", "TDCTDCZ", false),
            ("PBDES", "12TDDCZ", true),
            ("PBDES", "12nCZ", true),
            ("PBES", "12DCZ", true),
            ("PBES", "2DCZ", false),
            ("PBES", "12DsZ", false),
            ("BES", "2DCZ", true),
            ("BDES", "2DCZ", false),
            ("DBES", "tT2DCZ", true),
            ("BESBES", "2DCZ", false),
        ] {
            let (mut capture, _) = capture(asked, 1000);
            let heard = capture.hear(&answer(tags, b'I'));
            assert_eq!(heard, if expected { Heard::Plain } else { Heard::Unfit }, "{asked} {tags}");
        }
        let (mut capture, _) = capture("Q", 1000);
        assert_eq!(capture.hear(&answer("TDCZ", b'T')), Heard::Unfit, "a transaction is open");
    }

    #[test]
    fn captures_have_no_more_room_than_answers() {
        let store = Store::new(100);
        let whole = answer("TDCZ", b'I');
        let mut held = Vec::new();
        while store.underway().bytes() + whole.len() < 100 {
            let (mut capture, _) = capture_in(&store, "Q", 1000);
            assert_eq!(capture.hear(&whole[..whole.len() - 1]), Heard::More);
            held.push(capture);
        }
        let (mut late, underway) = capture_in(&store, "Q", 1000);
        assert_eq!(late.hear(&whole[..whole.len() - 1]), Heard::TooLong);
        drop((late, held));
        assert!(underway.is_empty());
    }

    #[test]
    fn what_is_too_long_is_not_heard_and_takes_no_room() {
        let whole = answer("TDCZ", b'I');
        let (mut fits, underway) = capture("Q", whole.len());
        assert_eq!(fits.hear(&whole), Heard::Plain);
        assert!(!underway.is_empty());
        drop(fits);
        assert!(underway.is_empty());
        let (mut long, underway) = capture("Q", whole.len() - 1);
        assert_eq!(long.hear(&whole), Heard::TooLong);
        drop(long);
        let (mut row, _) = capture("Q", 8);
        assert_eq!(row.hear(&whole[..10]), Heard::TooLong);
        assert!(underway.is_empty());
    }
}
