//! The record of the bytes that a client of a cluster's pool has sent and has no answer to. The loss of its server is judged by it.
//!
//! The record is made from the client's messages while they are sent, and from nothing else. In doubt it must say
//! [`Sent::Unclear`]: the client is then told that the outcome is unknown.

mod sending;

use pgweir_sql::Block;
use pgweir_wire::backend::{self, TxStatus};

use crate::ids::ClientId;
use crate::pool::client::state::Link;
use crate::pool::cluster::commit::Number;
use crate::pool::relay::exchange::block::BlockGroup;
use crate::pool::relay::exchange::effect::{BlockProgress, Rollback};
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner};
use crate::pool::server::state::Server;

/// The kind of bytes that a client has sent since the server last owed it no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Only a BEGIN that pgweir had already answered.
    Begin,
    /// Statements of a transaction block that do not commit it.
    Inside,
    /// Queries without a statement, in a transaction block.
    Empty,
    /// One group that is nothing but the end of a transaction block.
    End(BlockGroup),
    /// One group outside of a transaction that certainly only reads.
    Read,
    /// One group that is nothing but a BEGIN.
    BeginAlone,
    /// Anything else.
    Unclear,
}

/// The record of what a client has sent in the present transaction, from which pgweir decides what to do if the server is lost.
pub(crate) struct InFlight {
    /// The client that has sent it.
    client: ClientId,
    sent: Sent,
    /// Whether a BEGIN that pgweir had answered was sent ahead of these bytes. A transaction is then open although the server has not
    /// reported it yet.
    is_begun: bool,
    /// The group in which the client was told an error last, as [`Ledger::answered`] counts.
    failed: Option<u64>,
    /// Number of bytes that the server had sent before these bytes were sent to it.
    received_bytes: u64,
    block: BlockProgress,
    /// The state of pgweir's knowledge of the transaction's number.
    pub(in crate::pool::cluster) number: Number,
}

impl InFlight {
    fn new(client: ClientId) -> InFlight {
        InFlight {
            client,
            sent: Sent::Unclear,
            is_begun: false,
            failed: None,
            received_bytes: 0,
            block: BlockProgress::default(),
            number: Number::Lost,
        }
    }

    /// A client has sent a group that can run again, outside of a transaction, to a server that owed nothing to any other client.
    fn of_repeatable(client: ClientId, sent: Sent, received_bytes: u64) -> InFlight {
        InFlight { sent, number: Number::NotNeeded, received_bytes, ..InFlight::new(client) }
    }

    /// Forgets everything about the client's last transaction, which says nothing of the next one. Called when a client gets a server.
    pub(crate) fn forget(&mut self) {
        *self = InFlight::new(self.client);
    }

    /// Counts bytes that were passed to the client without answering a request.
    pub(crate) fn pass_unasked(&mut self, bytes: usize) {
        self.received_bytes += bytes as u64;
    }

    /// Notes that the client was sent an error of the server's in the group that is being answered.
    pub(crate) fn fail(&mut self, ledger: &Ledger) {
        self.failed = Some(ledger.answered());
    }

    /// Whether the client was already sent an error in the group that is being answered. It must not get a second one.
    pub(crate) fn has_failed(&self, server: &Server) -> bool {
        self.failed == Some(server.ledger.answered())
    }

    /// Notes that the server's bytes so far do not answer what the client waits for now.
    pub(in crate::pool::cluster) fn begin_answer(&mut self, received_bytes: u64) {
        self.received_bytes = received_bytes;
    }

    /// Returns the record of this client at the server. `None` if the client has sent nothing there.
    pub(crate) fn of(server: &Server, client: ClientId) -> Option<&InFlight> {
        server.in_flight.as_deref().filter(|in_flight| in_flight.client == client)
    }

    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    /// The rest of the answer to a ROLLBACK that was sent last, and nothing after it but its Sync. `is_whole`: the Sync was sent. `None`: it
    /// is not certain that the client has asked for nothing else.
    pub(crate) fn rest_of_rollback(&self, server: &Server, is_whole: bool) -> Option<Vec<u8>> {
        if self.block.rollback() != if is_whole { Rollback::Sent } else { Rollback::Executed } {
            return None;
        }
        let mut order =
            [Kind::Parse, Kind::Bind, Kind::DescribePortal, Kind::Execute, Kind::Sync].into_iter();
        let mut told = Vec::new();
        let of_client = |entry: &&Entry| entry.owner == Owner::Client(self.client);
        for entry in server.ledger.entries().filter(of_client) {
            let is_due = order.any(|kind| kind == entry.kind);
            match entry.kind {
                _ if !is_due => return None,
                Kind::Parse if entry.is_unnamed() => backend::encode_parse_complete(&mut told),
                Kind::Bind => backend::encode_bind_complete(&mut told),
                Kind::DescribePortal => backend::encode_no_data(&mut told),
                Kind::Execute => backend::encode_command_complete(&mut told, Block::Rollback.tag()),
                Kind::Sync => backend::encode_ready(&mut told, TxStatus::Idle),
                _ => return None,
            }
        }
        Some(told)
    }

    /// Whether the server had a transaction open, or opened one with the first of these bytes.
    pub(crate) fn is_in_block(&self, server: &Server) -> bool {
        self.is_begun || server.tx != TxStatus::Idle
    }

    /// Whether no byte of the answer has come. `unseen_bytes` is the number of received bytes at the end that were not looked at.
    pub(crate) fn is_unanswered(&self, server: &Server, unseen_bytes: usize) -> bool {
        server.work.received_bytes == self.received_bytes + unseen_bytes as u64
    }
}

/// Notes that a client that was queued on a server is its head now: its group, which only reads, is answered next. `behind_bytes` is
/// the number of the server's bytes that were not looked at yet.
pub(crate) fn note_promoted(server: &mut Server, client: ClientId, behind_bytes: usize) {
    let received_bytes = server.work.received_bytes.saturating_sub(behind_bytes as u64);
    let in_flight = server.in_flight.get_or_insert_with(|| Box::new(InFlight::new(client)));
    **in_flight = InFlight::of_repeatable(client, Sent::Read, received_bytes);
}

/// Whether the end of a transaction makes none of its changes permanent.
pub(crate) fn is_rollback(group: BlockGroup, server: &Server) -> bool {
    group.is(Block::Rollback) || server.tx == TxStatus::Failed
}

/// The part of an answer that a client is owed which has asked for one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// The group was not sent as a whole.
    Part,
    /// Answers, and the group's end.
    Group,
    /// Only the group's end (ReadyForQuery).
    Ready,
}

/// Returns what the client is owed. `None` if it is owed nothing, or more than one group.
pub(crate) fn owed_group(server: &Server, client: ClientId) -> Option<Owed> {
    let mut owed = None;
    for entry in server.ledger.entries().filter(|entry| entry.owner.client() == Some(client)) {
        owed = match (owed, entry.kind) {
            (Some(Owed::Group | Owed::Ready), _) => return None,
            (None, Kind::Sync) => Some(Owed::Ready),
            (_, kind) if kind.ends_group() => Some(Owed::Group),
            _ => Some(Owed::Part),
        };
    }
    owed
}

/// Whether neither the client's nor the server's last message is incomplete, and no COPY to the server is under way.
pub(crate) fn is_between_messages(link: &Link, server: &Server) -> bool {
    link.streaming == 0
        && server.incoming.streaming.is_none_or(|streaming| streaming.to.is_none())
        && !server.ledger.is_copying_in()
}
