//! The exchange that a client sent to its server first, kept until the server has answered it. These bytes may have to be sent once more:
//! [`KeptFor`] names the causes, and `after_failure.rs` decides. This file keeps the bytes, and gives them back to the front of the
//! client's inbox. It never sends anything.

pub(crate) mod after_failure;

use pgweir_wire::backend::{self, ErrorFields};
use pgweir_wire::frontend::{BindHead, tag};
use pgweir_wire::{HEADER_LEN, Message, Messages};

use crate::buffer_pool::BufferPool;
use crate::ledger::Unexpected;
use crate::limits::GROUP_BYTES_MAX;
use crate::pool::client::state::Link;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::moves::server::comes_unasked;
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

impl Pool {
    /// Checks that the server sent an answer to an earlier request. A server that owed nothing cannot have answered a request that was sent
    /// only now; but it may have ended its session at any time.
    pub(crate) fn was_asked_first(&self, id: ServerId, behind: &[u8]) -> Result<(), Unexpected> {
        if self.servers.get(id).is_none_or(|server| server.ledger.is_at_rest()) {
            return Ok(());
        }
        let mut messages = Messages::of(behind);
        let answer = messages.by_ref().find(|message| !comes_unasked(message.tag()));
        let ends_session = |message: Message<'_>| {
            message.tag() == backend::tag::ERROR
                && ErrorFields::parse(message.body()).is_ok_and(|fields| fields.ends_session())
        };
        if answer.is_some_and(ends_session) {
            return Ok(());
        }
        // The next type is known before the rest of its header, and that of an error before what it says.
        let next = behind.get(messages.position()).copied();
        let next = next.filter(|tag| *tag != backend::tag::ERROR && !comes_unasked(*tag));
        match answer.map(|message| message.tag()).or(next) {
            Some(tag) => Err(Unexpected { tag, expected: "nothing" }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_wire::frontend;

    use super::*;

    fn bind(name: &[u8], tail: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_bind_head(&mut out, b"", name, tail.len());
        out.extend_from_slice(tail);
        out
    }

    fn execute() -> Vec<u8> {
        let mut out = Vec::new();
        frontend::encode_execute(&mut out, b"", 0);
        out
    }

    const PLAIN: [u8; 6] = [0; 6];

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
