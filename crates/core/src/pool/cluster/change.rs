//! A change outside of a transaction block, with `commit_outcome`: pgweir runs it in a block, so that its COMMIT is a message of its own.
//!
//! BEGIN goes ahead of the client's group, and the question for the number of the transaction goes behind it, in one packet. When both
//! are answered, COMMIT follows. The client sees nothing of that: it gets the end of its group when COMMIT is answered. If the server is
//! lost before COMMIT was sent, the change is rolled back; afterwards the next primary is asked what became of it (`commit.rs`).
//!
//! **Invariant: COMMIT is sent when nothing is owed any more, and ReadyForQuery is told after COMMIT was.**

use pgweir_settings::PoolMode;
use pgweir_wire::backend::TxStatus;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::lost_in_flight::loses_session;
use crate::pool::client::state::{Account, ClientState, Link};
use crate::pool::cluster::commit::at_commit;
use crate::pool::cluster::in_flight::{InFlight, is_between_messages};
use crate::pool::cluster::route::Asked;
use crate::pool::relay::attempt::after_failure::{AfterFailure, ExchangeFailure, decide};
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::exchange::group::group_at_front;
use crate::pool::relay::ledger::{Owner, Purpose};
use crate::pool::relay::preamble::{LinkPhase, Part, Preamble};
use crate::pool::{Branch, Pool};

/// How far a change is that runs in a block of pgweir's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// No part of the block was sent.
    Unsent,
    /// BEGIN was sent, and is not answered.
    Begins(Part),
    /// BEGIN was answered.
    Runs(Part),
    /// BEGIN has failed, and the client was told so: PostgreSQL ignores the group.
    NotBegun(Part),
    /// COMMIT was sent.
    Commits,
    /// The group has failed, and the client was sent the error. ROLLBACK follows.
    Failed,
    /// The client was told an error. ROLLBACK was sent, or PostgreSQL has rolled back.
    RollsBack,
}

impl Change {
    /// BEGIN goes ahead of the group.
    pub(crate) fn begin(&mut self) {
        *self = Change::Begins(Part::Open);
    }

    /// Notes that the group was sent to its end. Returns whether PostgreSQL ignores the group.
    pub(crate) fn end_group(&mut self, whole: Part) -> bool {
        match self {
            Change::Begins(part) | Change::Runs(part) => *part = whole,
            Change::NotBegun(part) => {
                *part = whole;
                return true;
            }
            Change::Unsent | Change::Commits | Change::Failed | Change::RollsBack => {}
        }
        false
    }

    /// BEGIN was answered.
    pub(crate) fn begun(&mut self) {
        if let Change::Begins(part) = *self {
            *self = Change::Runs(part);
        }
    }

    /// BEGIN has failed. Returns how much of the group was sent, which PostgreSQL ignores.
    pub(crate) fn begin_failed(&mut self) -> Part {
        let Change::Begins(part) = *self else { return Part::Open };
        *self = Change::NotBegun(part);
        part
    }

    /// Whether PostgreSQL ignores the group and the group is a Query. A Sync of pgweir's is then answered instead of the Query.
    pub(crate) fn is_ignored(self) -> bool {
        self == Change::NotBegun(Part::Whole { simple: true })
    }

    /// Whether the whole group was sent, and a COMMIT must still follow.
    pub(crate) fn lacks_commit(self) -> bool {
        matches!(self, Change::Begins(Part::Whole { .. }) | Change::Runs(Part::Whole { .. }))
    }

    /// Whether the client's bytes have to wait.
    pub(crate) fn holds(self) -> bool {
        !matches!(
            self,
            Change::Unsent
                | Change::Begins(Part::Open)
                | Change::Runs(Part::Open)
                | Change::NotBegun(Part::Open)
        )
    }
}

/// Returns what pgweir sends ahead of the client's first message on a new server: a BEGIN if the client asks for a change.
#[cold]
pub(crate) fn block_of(account: &Account) -> Preamble {
    let asked = account.routing.as_deref().map(|routing| routing.asked);
    if matches!(asked, Some(Asked::Change)) { Preamble::Block(Change::Unsent) } else { Preamble::None }
}

impl Pool {
    /// Has the group at the front of these bytes run in a block of pgweir's if it is a change outside a transaction.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_in_block(&mut self, env: &mut Env, id: ClientId, branch: Branch, bytes: &[u8]) {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else { return };
        // An unnamed statement that was prepared earlier would have to be sent ahead of the BEGIN.
        let may = account.unnamed.is_none() && !self.are_numbers_refused() && branch.is_primary();
        if !may || self.state.policy.mode != PoolMode::Transaction {
            return;
        }
        let reach = &self.state.reach;
        let group = group_at_front(bytes, &mut env.texts, reach, |name| {
            let known = env.statements.get(account.statement(name)?)?;
            Some((known.traits.as_ref()?, known.reads(reach)))
        });
        let is_change = group.is_some_and(|group| !group.certainly_reads() && !group.may_touch());
        let Some(client) = self.clients.get_mut(id).filter(|_| is_change) else { return };
        if let (ClientState::Waiting(waiting), Some(routing)) =
            (&mut client.state, &mut client.account.routing)
            && waiting.first.is_nothing()
        {
            (waiting.group, routing.asked) = (None, Asked::Change);
        }
    }

    /// Ends the change at a ReadyForQuery outside a transaction block. If PostgreSQL has ignored the client's Query, the client is
    /// sent its ReadyForQuery here.
    pub(crate) fn change_is_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(link) = self.link_mut(id) else { return };
        let phase = std::mem::replace(&mut link.phase, LinkPhase::PLAIN);
        if matches!(phase, LinkPhase::Exchange(Preamble::Block(change)) if change.is_ignored()) {
            self.tell(cx, id, None, Some(TxStatus::Idle));
        }
    }

    /// Continues the change at a ReadyForQuery within its block: sends what comes next.
    pub(crate) fn change_goes_on<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        id: ClientId,
        status: TxStatus,
    ) {
        let Some(Link { phase: LinkPhase::Exchange(Preamble::Block(change)), .. }) = self.link_mut(id) else {
            return;
        };
        if matches!(change, Change::Runs(_)) && status == TxStatus::Failed {
            *change = Change::Failed;
        }
        let change = *change;
        if self.servers.get(server_id).is_none_or(|server| !server.ledger.is_empty()) {
            return;
        }
        match (change, status) {
            (Change::Failed, TxStatus::Failed) => self.end_block(cx, server_id, id, Change::RollsBack),
            (Change::Runs(_), TxStatus::InTransaction) => self.end_block(cx, server_id, id, Change::Commits),
            _ => self.lose_server(cx, server_id, "a transaction block did not end".into()),
        }
    }

    fn end_block<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        id: ClientId,
        change: Change,
    ) {
        let text: &[u8] = if change == Change::Commits { b"COMMIT" } else { b"ROLLBACK" };
        if let Some(link) = self.link_mut(id) {
            link.phase = LinkPhase::Exchange(Preamble::Block(change));
        }
        // Its ReadyForQuery is the end of the client's group.
        self.send_aside(cx, server_id, (Purpose::Commit, Owner::Client(id)), &[text.to_vec()]);
    }

    /// Handles a failed COMMIT: PostgreSQL has rolled back, and the client is sent the error.
    pub(crate) fn change_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        message: &[u8],
    ) {
        let Some(id) = self.servers.get(server_id).and_then(|server| server.state.client()) else { return };
        let Some(Link { phase: LinkPhase::Exchange(Preamble::Block(change)), .. }) = self.link_mut(id) else {
            return;
        };
        if std::mem::replace(change, Change::RollsBack) == Change::Commits {
            self.pass(cx, server_id, Some(id), message);
        }
    }

    /// Lets the client of a change go on after its server was lost. Returns `false` if that is impossible.
    pub(crate) fn outlives_change<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        unseen_bytes: usize,
    ) -> bool {
        let Some((link, server)) = self.linked_to(id, server_id) else { return false };
        let LinkPhase::Exchange(Preamble::Block(change)) = link.phase else { return false };
        if loses_session(link, server) || holds_later(link, server) || !is_between_messages(link, server) {
            return false;
        }
        let in_flight = InFlight::of(server, id);
        let decision = decide(ExchangeFailure::ServerLost, self.clients.get(id), Some(server));
        let runs_again = decision == AfterFailure::Elsewhere;
        match change {
            Change::Unsent if runs_again => {
                self.runs_again(cx, id, server_id);
                return true;
            }
            Change::Unsent => return false,
            Change::Begins(Part::Open) | Change::Runs(Part::Open) | Change::NotBegun(Part::Open) => {
                return false;
            }
            Change::Begins(_) | Change::Runs(_) => {
                let Some(in_flight) = in_flight else { return false };
                let (is_unanswered, is_told) =
                    (in_flight.is_unanswered(server, unseen_bytes), in_flight.has_failed(server));
                if is_unanswered && runs_again {
                    self.runs_again(cx, id, server_id);
                    return true;
                }
                if !is_told {
                    self.fail_in_flight(cx, server_id);
                    self.leave_lost(cx, id, server_id);
                    self.tell_rolled_back(cx, id, Some(TxStatus::Idle));
                    return true;
                }
            }
            Change::Commits => {
                let Some(in_flight) = in_flight else { return false };
                let at = at_commit(in_flight, server, None);
                self.lost_at_commit(cx, id, server_id, (None, at));
                return true;
            }
            Change::NotBegun(_) | Change::Failed | Change::RollsBack => {}
        }
        self.leave_lost(cx, id, server_id);
        self.tell(cx, id, None, Some(TxStatus::Idle));
        true
    }

    fn link_mut(&mut self, id: ClientId) -> Option<&mut Link> {
        match &mut self.clients.get_mut(id)?.state {
            ClientState::Linked(link) => Some(link),
            _ => None,
        }
    }
}
