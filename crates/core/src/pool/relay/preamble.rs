//! The messages that pgweir sends to a client's server besides those of the client.
//!
//! The messages that go ahead of the client's are the *preamble*: a BEGIN that was answered before there was a server, the client's
//! session, or the block around a single change. If the preamble fails, or if the exchange must be made once more, the server is pgweir's
//! own for a while: the other phases. `begin/`, `session/replay.rs` and `cluster/change.rs` send preambles; `relay/moments/group_end.rs`
//! moves from phase to phase.

use crate::pool::cluster::change::Change;
use crate::pool::cluster::commit::Asking;

/// The present use of a client's server.
pub(crate) enum LinkPhase {
    /// The client's messages are passed on, behind this preamble.
    Exchange(Preamble),
    /// The preamble has failed, and the client was told so: the server is brought to the state that the client knows of.
    Repair(Repair),
    /// The answers that are on their way go to no client. Behind them the client's exchange is sent again.
    Again(Again),
    /// The server is asked what became of the client's last transaction.
    Outcome(Box<Asking>),
}

/// The messages that go ahead of a client's messages on its server.
pub(crate) enum Preamble {
    /// The preamble is empty, or was answered without an error.
    None,
    /// The BEGIN that was answered before there was a server. It is sent ahead of the client's next message.
    Begin(Vec<u8>),
    /// A preamble that was sent and is not answered, and the part of the group after it that was sent. A group that is whole is the only
    /// one until the answer is there: the messages after it wait.
    Sent(Ahead, Part),
    /// The client's session, which the server has now. The server reports the parameters that have changed with its next ReadyForQuery.
    Replayed,
    /// The transaction block in which pgweir runs a single change of the client.
    Block(Change),
}

/// A preamble that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// The client's BEGIN.
    Begin,
    /// The client's session.
    Session,
}

/// The part of the client's first group that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The group was not sent, or only its beginning.
    Open,
    /// The whole group was sent. `simple` is true for a Query or a FunctionCall, which needs no Sync.
    Whole { simple: bool },
}

impl Part {
    /// Whether the whole group was sent.
    pub(crate) fn is_whole(self) -> bool {
        self != Part::Open
    }

    /// Whether a Sync of pgweir's own must follow the group if PostgreSQL ignores it because of an error: the client never sends one.
    pub(crate) fn lacks_sync(self) -> bool {
        self == Part::Whole { simple: true }
    }
}

/// The state of a server whose preamble has failed.
#[derive(Clone, Copy)]
pub(crate) enum Repair {
    /// PostgreSQL ignores the client's group up to its end. After the ReadyForQuery there, pgweir sends this text.
    Awaited { group: Part, text: &'static [u8] },
    /// The text was sent. The client gets its ReadyForQuery.
    Sent,
}

/// An exchange that is made once more on the same server, or on another one when this server has answered.
pub(crate) struct Again {
    /// The BEGIN that goes ahead of the exchange, if there is one.
    pub(crate) begin: Option<Vec<u8>>,
    /// Whether the first attempt's transaction is being rolled back.
    pub(crate) rolls_back: bool,
}

impl LinkPhase {
    /// The client's messages are passed on, and nothing goes ahead of them.
    pub(crate) const PLAIN: LinkPhase = LinkPhase::Exchange(Preamble::None);

    /// Returns the phase in which this BEGIN, if there is one, goes ahead of the client's next message.
    pub(crate) fn behind(begin: Option<Vec<u8>>) -> LinkPhase {
        LinkPhase::Exchange(begin.map_or(Preamble::None, Preamble::Begin))
    }

    /// Whether the client's messages are passed on, and nothing goes ahead of them.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, LinkPhase::Exchange(Preamble::None))
    }

    /// Whether nothing that goes ahead of the client's messages is to be sent, or may still fail.
    pub(crate) fn is_clear(&self) -> bool {
        matches!(self, LinkPhase::Exchange(Preamble::None | Preamble::Replayed))
    }

    /// Whether a failed preamble is being repaired: the server is not the client's for the time being.
    pub(crate) fn is_repair(&self) -> bool {
        matches!(self, LinkPhase::Repair(_))
    }

    /// Whether a BEGIN goes ahead of the client's next message.
    pub(crate) fn is_unsent(&self) -> bool {
        matches!(self, LinkPhase::Exchange(Preamble::Begin(_) | Preamble::Block(Change::Unsent)))
    }

    /// Whether the messages that the client sends now have to wait.
    pub(crate) fn holds(&self) -> bool {
        match self {
            LinkPhase::Exchange(Preamble::Sent(_, group))
            | LinkPhase::Repair(Repair::Awaited { group, .. }) => group.is_whole(),
            LinkPhase::Exchange(Preamble::Block(change)) => change.holds(),
            LinkPhase::Exchange(_) => false,
            LinkPhase::Repair(Repair::Sent) | LinkPhase::Again(_) | LinkPhase::Outcome(_) => true,
        }
    }
}
