//! The exchange that a client sent to its server first, kept until the server has answered it. These bytes may have to be sent once more:
//! [`KeptFor`] names the causes, and `after_failure.rs` decides. This file keeps the bytes, and gives them back to the front of the
//! client's inbox. It never sends anything.
//!
//! [`outdated_name`] says whether an exchange may be sent again whose statement PostgreSQL found outdated ("cached plan must not change
//! result type"). The exchange may, if the client learns the columns again in it, and if the client's values mean the same whatever types
//! PostgreSQL finds this time. In doubt the client is told PostgreSQL's error, as on a connection without a pooler.

pub(crate) mod after_failure;

use pgweir_wire::frontend::{BindHead, BindTail, Close, Describe, Target, tag};
use pgweir_wire::{HEADER_LEN, Messages};

use crate::buffer_pool::BufferPool;
use crate::ledger::Unexpected;
use crate::limits::GROUP_BYTES_MAX;
use crate::pool::client::state::Link;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::moves::server::comes_unasked;
use crate::pool::prepared::shape::{keeps_values, wants_any_columns};
use crate::pool::relay::ledger::Kind;
use crate::pool::server::state::Server;
use crate::pool::{Pool, ServerId};

/// A whole Sync message.
const SYNC: [u8; 5] = [tag::SYNC, 0, 0, 0, 4];

/// The messages that a server was sent for its client since it owed nothing.
#[derive(Default)]
pub(crate) enum Attempt {
    /// The server was sent nothing since.
    #[default]
    Nothing,
    /// The messages are kept, and may be sent again.
    Kept(KeptExchange),
    /// The server was sent more than is kept, or there is no cause to keep it.
    Lost,
}

/// An exchange that may be sent again.
#[derive(Default)]
pub(crate) struct KeptExchange {
    /// The BEGIN that pgweir had answered before, and sent ahead of the exchange.
    pub(crate) begin: Option<Vec<u8>>,
    /// The messages as the client sent them: names are not rewritten.
    pub(crate) bytes: Vec<u8>,
    kept_for: KeptFor,
}

/// The causes for which an exchange may be sent again, as a set. The empty set stands for the one cause that every kept exchange has: its
/// first message names a prepared statement, which PostgreSQL may find outdated.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct KeptFor(u8);

impl KeptFor {
    /// The client's session settings were sent ahead of the exchange. If the server refuses a setting, the exchange runs on another server.
    pub(crate) const SESSION: KeptFor = KeptFor(1);
    /// The exchange only reads. If the server is lost before it answers, the exchange runs on another server.
    pub(crate) const LOSS: KeptFor = KeptFor(2);
    /// The exchange was sent behind those of other clients. It runs elsewhere if their cancel requests may have hit it.
    pub(crate) const QUEUED: KeptFor = KeptFor(4);
    /// The exchange is a first try at a standby. It runs on the primary if the standby does not run it.
    pub(crate) const STANDBY: KeptFor = KeptFor(8);

    const HOLDS_LATER: KeptFor = KeptFor(KeptFor::QUEUED.0 | KeptFor::STANDBY.0);

    #[inline]
    fn has(self, causes: KeptFor) -> bool {
        self.0 & causes.0 != 0
    }
}

impl Attempt {
    /// Returns the attempt for a client that was queued on the server: its exchange was sent before, and is the server's first now.
    pub(crate) fn queued(bytes: Vec<u8>) -> Attempt {
        Attempt::Kept(KeptExchange { begin: None, bytes, kept_for: KeptFor::QUEUED })
    }

    /// Notes that a BEGIN that pgweir has already answered is sent ahead of the exchange.
    pub(crate) fn note_begin(&mut self, text: Vec<u8>) {
        let kept_for = self.kept_for();
        *self = Attempt::Kept(KeptExchange { begin: Some(text), kept_for, ..KeptExchange::default() });
    }

    /// Notes that the client's session settings are sent ahead of the exchange ([`KeptFor::SESSION`]).
    pub(crate) fn note_replay(&mut self) {
        let kept_for = KeptFor(self.kept_for().0 | KeptFor::SESSION.0);
        *self = Attempt::Kept(KeptExchange { kept_for, ..KeptExchange::default() });
    }

    /// Keeps the bytes that are sent from now on for this cause. Nothing changes if bytes were sent before, unless they hold back the
    /// client's later messages, too.
    pub(crate) fn keep_for(&mut self, cause: KeptFor) {
        match self {
            Attempt::Nothing => {
                *self = Attempt::Kept(KeptExchange { kept_for: cause, ..KeptExchange::default() });
            }
            Attempt::Kept(kept) if kept.bytes.is_empty() || kept.kept_for.has(KeptFor::HOLDS_LATER) => {
                kept.kept_for.0 |= cause.0;
            }
            Attempt::Kept(_) | Attempt::Lost => {}
        }
    }

    /// Takes the exchange out of the first tries: the client's next messages need not wait for its answer. The exchange stays kept if there
    /// is another cause to keep it.
    pub(crate) fn end_first_try(&mut self, buffers: &mut BufferPool) {
        let Attempt::Kept(kept) = self else { return };
        kept.kept_for.0 &= !KeptFor::STANDBY.0;
        if kept.kept_for == KeptFor::default() && !names_statement(&kept.bytes) {
            self.end(false, buffers);
        }
    }

    fn kept_for(&self) -> KeptFor {
        match self {
            Attempt::Kept(kept) => kept.kept_for,
            Attempt::Nothing | Attempt::Lost => KeptFor::default(),
        }
    }

    /// Returns the exchange, if it is kept.
    pub(crate) fn kept(&self) -> Option<&KeptExchange> {
        match self {
            Attempt::Kept(kept) => Some(kept),
            Attempt::Nothing | Attempt::Lost => None,
        }
    }

    /// Whether the exchange is kept for one of these causes.
    #[inline]
    pub(crate) fn is_for(&self, causes: KeptFor) -> bool {
        self.kept_for().has(causes)
    }

    /// Whether all that is sent is kept, and not only one exchange that names a prepared statement.
    #[inline]
    pub(crate) fn keeps_all(&self) -> bool {
        self.kept_for() != KeptFor::default()
    }

    /// Whether the client's next messages wait until the exchange is answered: they may have to go to another server after it.
    #[inline]
    pub(crate) fn holds_later(&self) -> bool {
        self.is_for(KeptFor::HOLDS_LATER)
    }

    /// Keeps bytes of the client that were passed on, if there is a cause to.
    #[inline]
    pub(crate) fn note(&mut self, passed: &[u8], buffers: &mut BufferPool) {
        let fits = match self {
            Attempt::Lost => return,
            Attempt::Nothing => names_statement(passed),
            Attempt::Kept(kept) if kept.kept_for != KeptFor::default() => true,
            Attempt::Kept(kept) if kept.bytes.is_empty() => names_statement(passed),
            Attempt::Kept(kept) => !kept.bytes.ends_with(&SYNC),
        };
        if !fits {
            return self.end(false, buffers);
        }
        if matches!(self, Attempt::Nothing) {
            *self = Attempt::Kept(KeptExchange::default());
        }
        if let Attempt::Kept(kept) = self
            && kept.bytes.len() + passed.len() <= GROUP_BYTES_MAX
        {
            if kept.bytes.capacity() == 0 {
                kept.bytes = buffers.take();
            }
            kept.bytes.extend_from_slice(passed);
        } else {
            self.end(false, buffers);
        }
    }

    /// Puts the exchange back at the front of its client's inbox, to be sent again. Returns the BEGIN that was sent ahead of it, if any.
    pub(crate) fn take_back(&mut self, inbox: &mut Vec<u8>, buffers: &mut BufferPool) -> Option<Vec<u8>> {
        let Attempt::Kept(mut kept) = std::mem::replace(self, Attempt::Lost) else { return None };
        if !kept.bytes.is_empty() {
            kept.bytes.extend_from_slice(inbox);
            buffers.give_back(std::mem::replace(inbox, kept.bytes));
        }
        kept.begin
    }

    /// Ends the attempt, because an answer came. `all` is true if the server owes nothing else: then a new attempt can begin.
    #[inline]
    pub(crate) fn end(&mut self, all: bool, buffers: &mut BufferPool) {
        let next = if all { Attempt::Nothing } else { Attempt::Lost };
        if let Attempt::Kept(kept) = std::mem::replace(self, next) {
            buffers.give_back(kept.bytes);
            kept.begin.into_iter().for_each(|text| buffers.give_back(text));
        }
    }
}

/// Whether a linked client's next messages wait until its first exchange is answered.
#[inline]
pub(crate) fn holds_later(link: &Link, server: &Server) -> bool {
    server.attempt.holds_later() || matches!(link.first_try, FirstTry::Unsent(_))
}

/// Whether the first message is a Bind or a Describe of a statement that has a name.
#[inline]
fn names_statement(bytes: &[u8]) -> bool {
    let Some(body) = bytes.get(HEADER_LEN..) else { return false };
    match bytes[0] {
        tag::BIND => BindHead::parse_prefix(body).is_some_and(|head| !head.statement.is_empty()),
        tag::DESCRIBE => matches!(body, [b'S', first, ..] if *first != 0),
        _ => false,
    }
}

/// Returns the name of the statement that failed as outdated, if `bytes` are one whole group about it that may run again. `failed` is the
/// message that PostgreSQL answered with that error; `None` if pgweir sent that message ahead of the group. `types` returns the parameter
/// types that the client named for a statement, four bytes each.
pub(crate) fn outdated_name<'a, 'b>(
    bytes: &'a [u8],
    failed: Option<Kind>,
    types: impl Fn(&[u8]) -> Option<&'b [u8]>,
) -> Option<&'a [u8]> {
    // Only then nothing of the group was answered.
    let first = if bytes.first() == Some(&tag::BIND) { Kind::Bind } else { Kind::DescribeStatement };
    if failed.is_some_and(|failed| failed != first) {
        return None;
    }
    let (mut name, mut bound, mut described) = (None, false, false);
    for message in Messages::of(bytes).whole() {
        let body = message.body();
        match message.tag() {
            tag::DESCRIBE => {
                let describe = Describe::parse(body).ok()?;
                let same = match describe.target {
                    Target::Statement => *name.get_or_insert(describe.name) == describe.name,
                    Target::Portal => bound,
                };
                described = same.then_some(true)?;
            }
            tag::BIND => {
                let head = BindHead::parse_prefix(body)?;
                let tail = BindTail::parse(body.get(head.tail..)?).ok()?;
                let same = *name.get_or_insert(head.statement) == head.statement;
                if bound || !same || !keeps_its_meaning(&tail, types(head.statement)?) {
                    return None;
                }
                bound = true;
            }
            // A client that does not ask for the columns relies on those that it was told of before.
            tag::EXECUTE if bound && described => {}
            tag::CLOSE if Close::parse(body).ok()?.target == Target::Portal => {}
            tag::FLUSH => {}
            tag::SYNC => return name.filter(|_| message.end() == bytes.len()),
            _ => return None,
        }
    }
    None
}

/// Whether the values keep their meaning if PostgreSQL finds other types: binary values have types that the client named itself, and the
/// client does not choose the format of the results column by column.
fn keeps_its_meaning(tail: &BindTail<'_>, types: &[u8]) -> bool {
    wants_any_columns(tail) && keeps_values(tail, types)
}

impl Pool {
    /// Checks that the server sent an answer to an earlier request. A server that owed nothing cannot have answered a request that was sent
    /// only now.
    pub(crate) fn was_asked_first(&self, id: ServerId, behind: &[u8]) -> Result<(), Unexpected> {
        if self.servers.get(id).is_none_or(|server| server.ledger.is_at_rest()) {
            return Ok(());
        }
        let mut messages = Messages::of(behind);
        let answer = messages.by_ref().map(|message| message.tag()).find(|tag| !comes_unasked(*tag));
        // The next type is known before the rest of its header.
        let next = behind.get(messages.position()).copied().filter(|tag| !comes_unasked(*tag));
        match answer.or(next) {
            Some(tag) => Err(Unexpected { tag, expected: "nothing" }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_wire::frontend;

    use super::*;

    const TEXT_OF_ANY_TYPE: [u8; 4] = [0; 4];
    const INT4: [u8; 4] = [0, 0, 0, 23];

    fn bind(name: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_bind_head(&mut out, b"", name, tail.len());
        out.extend_from_slice(tail);
        out
    }

    fn describe(target: Target, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_describe(&mut out, target, name);
        out
    }

    fn execute() -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_execute(&mut out, b"", 0);
        out
    }

    fn outdated<'a>(bytes: &'a [u8], failed: Kind, types: &[u8]) -> Option<&'a [u8]> {
        outdated_name(bytes, Some(failed), |name| (name == b"s").then_some(types))
    }

    /// Encodes the end of a Bind with one parameter of four bytes in this format, and with these result formats.
    fn tail(format: u8, results: &[u8]) -> Vec<u8> {
        let mut out = vec![0, 1, 0, format, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4, 0, results.len() as u8];
        results.iter().for_each(|format| out.extend([0, *format]));
        out
    }

    const PLAIN: [u8; 6] = [0; 6];

    #[test]
    fn a_group_that_learns_its_columns_is_asked_again() {
        let portal = describe(Target::Portal, b"");
        let group = [bind(b"s", &PLAIN), portal.clone(), execute(), SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::Bind, &[]), Some(&b"s"[..]));
        let statement = describe(Target::Statement, b"s");
        let group = [statement.clone(), bind(b"s", &PLAIN), execute(), SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::DescribeStatement, &[]), Some(&b"s"[..]));
        assert_eq!(outdated(&group, Kind::Bind, &[]), None, "the first answer was given");
        let group = [statement, SYNC.to_vec()].concat();
        assert_eq!(outdated(&group, Kind::DescribeStatement, &[]), Some(&b"s"[..]));
    }

    #[test]
    fn a_group_that_goes_by_what_its_client_knows_is_not() {
        let portal = describe(Target::Portal, b"");
        let no_columns = [bind(b"s", &PLAIN), execute(), SYNC.to_vec()].concat();
        let two = [bind(b"s", &PLAIN), portal.clone(), bind(b"s", &PLAIN), SYNC.to_vec()].concat();
        let others = [describe(Target::Statement, b"s"), bind(b"t", &PLAIN), SYNC.to_vec()].concat();
        let unknown = [bind(b"t", &PLAIN), portal.clone(), execute(), SYNC.to_vec()].concat();
        let no_end = [bind(b"s", &PLAIN), portal.clone(), execute()].concat();
        let more = [bind(b"s", &PLAIN), portal, execute(), SYNC.to_vec(), SYNC.to_vec()].concat();
        for group in [no_columns, two, others, unknown, no_end, more] {
            for failed in [Kind::Bind, Kind::DescribeStatement] {
                assert_eq!(outdated(&group, failed, &[]), None);
            }
        }
    }

    #[test]
    fn values_and_columns_must_not_be_taken_for_others() {
        let group = |tail: &[u8]| {
            let portal = describe(Target::Portal, b"");
            [bind(b"s", tail), portal, execute(), SYNC.to_vec()].concat()
        };
        for (tail, types, again) in [
            (tail(0, &[]), TEXT_OF_ANY_TYPE, true),
            (tail(1, &[]), TEXT_OF_ANY_TYPE, false),
            (tail(1, &[]), INT4, true),
            (tail(1, &[1]), INT4, true),
            (tail(0, &[0, 1]), INT4, false),
        ] {
            let group = group(&tail);
            assert_eq!(outdated(&group, Kind::Bind, &types).is_some(), again, "{tail:?} {types:?}");
        }
        assert_eq!(outdated(&group(&tail(1, &[])), Kind::Bind, &[]), None, "no type was named");
    }

    #[test]
    fn one_group_is_kept_and_no_more() {
        let mut buffers = BufferPool::default();
        let kept = |first: &Attempt| first.kept().map_or(0, |kept| kept.bytes.len());
        let (bind, rest) = (bind(b"s", &PLAIN), [execute(), SYNC.to_vec()].concat());
        let mut first = Attempt::default();
        first.note(&bind, &mut buffers);
        first.note(&rest, &mut buffers);
        assert_eq!(kept(&first), bind.len() + rest.len());
        first.note(&bind, &mut buffers);
        assert_eq!(kept(&first), 0, "a second group");
        first.end(true, &mut buffers);
        first.note(&execute(), &mut buffers);
        first.note(&bind, &mut buffers);
        assert_eq!(kept(&first), 0, "it began with something else");
        first.end(true, &mut buffers);
        first.note(&bind, &mut buffers);
        first.note(&vec![b'd'; GROUP_BYTES_MAX], &mut buffers);
        assert_eq!(kept(&first), 0, "too much");
    }
}
