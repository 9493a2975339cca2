//! A client whose server is lost while something that it asked for is under way. What can be told at once is told: a transaction block
//! without COMMIT is certainly rolled back, and a group that certainly only reads runs again. Everything else has an outcome that is
//! not known here.

use pgweir_sql::Marks;
use pgweir_wire::backend::{TxStatus, tag};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::rolled_back::{RolledBack, TAKEN_BACK};
use crate::pool::client::state::{ClientState, First, Link};
use crate::pool::cluster::commit::{AtCommit, AtOnce, at_commit};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::cluster::in_flight::{InFlight, Owed, Sent, is_between_messages, is_rollback, owed_group};
use crate::pool::relay::attempt::after_failure::{
    AfterFailure, AnswerSeen, ExchangeFailure, Situation, after_failure,
};
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::exchange::block::BlockGroup;
use crate::pool::relay::ledger::{Entry, Kind, Owner};
use crate::pool::relay::preamble::{Ahead, LinkPhase, Preamble};
use crate::pool::server::state::{Server, ServerState};
use crate::stats::rare_path::RarePath;

/// The outcome for a client whose server is lost.
enum AfterLoss {
    /// The client is sent the error that its transaction is rolled back. `whole`: its group was sent as a whole, so ReadyForQuery
    /// follows.
    Fails { whole: bool },
    /// The client's transaction had failed before, and stays failed.
    StaysFailed,
    /// Only ReadyForQuery of the client's group was not answered. The client gets it with this status.
    Ends { whole: bool, status: TxStatus },
    /// The client sent a group without a statement, and gets the answer to that with this status.
    Empty(TxStatus),
    /// The client sent a ROLLBACK alone, and gets the answer to that.
    Ended(BlockGroup),
    /// The client sent a ROLLBACK after other statements, and gets these bytes: the part of the answer that it has not received.
    RollsBack(Vec<u8>),
    /// The client asked for a read, which runs on another server.
    RunsAgain,
    /// The client asked for a read and has seen a part of the answer: it is told to try again.
    Interrupted,
    /// The client asked for a read, and has seen all of the answer but the end of its group.
    ReadEnds,
    /// The client sent COMMIT. The result tells whether a server must be asked for the outcome.
    AtCommit(BlockGroup, Result<AtCommit, AtOnce>),
}

impl Pool {
    /// Returns the client's link and its server; `None` if the client has no server, or another one than this.
    pub(crate) fn linked_to(&self, id: ClientId, server_id: ServerId) -> Option<(&Link, &Server)> {
        match &self.clients.get(id)?.state {
            ClientState::Linked(link) if link.server == server_id => {
                Some((link, self.servers.get(server_id)?))
            }
            _ => None,
        }
    }

    /// Lets the client go on without its server: the client is sent an answer, or waits for another server. Returns `false` if
    /// neither is possible.
    pub(super) fn outlives_in_flight<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        unseen_bytes: usize,
    ) -> bool {
        let Some((link, server)) = self.linked_to(id, server_id) else { return false };
        let Some(client) = self.clients.get(id) else { return false };
        let situation = Situation::of(ExchangeFailure::ServerLost, link, &client.account, server);
        let asks = self.state.policy.on_loss.asks();
        match after_loss(id, (link, server), situation, (unseen_bytes, asks)) {
            None => false,
            Some(AfterLoss::RunsAgain) => {
                self.reads_again(cx, id, server_id);
                true
            }
            Some(AfterLoss::Interrupted) => {
                self.interrupt_read(cx, id, server_id);
                true
            }
            Some(AfterLoss::ReadEnds) => {
                self.leave_lost(cx, id, server_id);
                self.tell(cx, id, None, Some(TxStatus::Idle));
                true
            }
            Some(AfterLoss::AtCommit(group, at)) => {
                self.lost_at_commit(cx, id, server_id, (Some(group), at));
                true
            }
            Some(AfterLoss::Ended(group)) => {
                self.leave_lost(cx, id, server_id);
                self.answer_block(cx, id, group.rolling_back(), TxStatus::Idle);
                true
            }
            Some(AfterLoss::RollsBack(rest)) => {
                self.leave_lost(cx, id, server_id);
                if let Some(client) = self.clients.get(id) {
                    cx.driver.send(client.conn, &rest);
                }
                true
            }
            Some(AfterLoss::Empty(status)) => {
                self.leave_lost(cx, id, server_id);
                self.set_client_state(id, ClientState::RolledBack(RolledBack::knowing(status)));
                self.answer_empty_query(cx, id, status);
                true
            }
            Some(AfterLoss::Fails { whole }) => {
                self.fail_in_flight(cx, server_id);
                self.leave_lost(cx, id, server_id);
                let knows = if whole { RolledBack::Told } else { RolledBack::Ignoring };
                self.set_client_state(id, ClientState::RolledBack(knows));
                self.tell_rolled_back(cx, id, whole.then_some(TxStatus::Failed));
                true
            }
            Some(AfterLoss::StaysFailed) => {
                self.stay_failed(cx, id, server_id);
                true
            }
            Some(AfterLoss::Ends { whole, status }) => {
                self.leave_lost(cx, id, server_id);
                let knows = if whole { RolledBack::knowing(status) } else { RolledBack::Ignoring };
                self.set_client_state(id, ClientState::RolledBack(knows));
                self.tell(cx, id, None, whole.then_some(status));
                true
            }
        }
    }

    /// Linked → Waiting, with the read that the client asked for.
    fn reads_again<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let was_queued = self.servers.get(server_id).is_some_and(|server| server.attempt.holds_later());
        if was_queued {
            cx.driver.reached(RarePath::QueuedReadAgain);
            self.state.numbers.multiplexing.requeued += 1;
        }
        self.runs_again(cx, id, server_id);
    }

    /// A read cannot run again. Nothing took effect, and nothing is unknown.
    fn interrupt_read<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        self.fail_in_flight(cx, server_id);
        self.leave_lost(cx, id, server_id);
        self.tell_interrupted(cx, id);
    }

    /// Answers the client as PostgreSQL does in a failed transaction: Close is executed, and every other message is refused.
    fn stay_failed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        self.answer_closes(cx, id, server_id);
        let owed = self.servers.get(server_id).and_then(|server| owed_group(server, id));
        let is_refused = matches!(owed, Some(Owed::Group | Owed::Part));
        if is_refused {
            self.fail_in_flight(cx, server_id);
        }
        self.leave_lost(cx, id, server_id);
        let knows = if owed == Some(Owed::Part) { RolledBack::Ignoring } else { RolledBack::Told };
        self.set_client_state(id, ClientState::RolledBack(knows));
        let status = matches!(owed, Some(Owed::Group | Owed::Ready)).then_some(TxStatus::Failed);
        match is_refused {
            true => self.tell_failed(cx, id, status),
            false => self.tell(cx, id, None, status),
        }
    }

    /// Sends the client CloseComplete for the Close messages that are answered next.
    fn answer_closes<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        while let Some(server) = self.servers.get_mut(server_id)
            && let Some(&Entry { owner: Owner::Client(owner), kind: Kind::Close, .. }) = server.ledger.head()
            && owner == id
            && server.ledger.accept(tag::CLOSE_COMPLETE).is_ok()
        {
            self.tell_closed(cx, id);
            self.conclude_statements(cx, server_id);
        }
    }

    /// Ends the server's current answer as if it were an error, and undoes what was noted in the expectation of success.
    pub(crate) fn fail_in_flight<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if let Ok(accepted) = server.ledger.accept(tag::ERROR) {
            self.undo_failed(cx.env, server_id, accepted.ended);
        }
    }

    /// Linked → Idle. The server takes nothing more.
    pub(crate) fn leave_lost<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        if let Some(client) = self.clients.get_mut(id) {
            self.state.unlink(cx.env, id, client);
        }
        self.end_cancels_for(cx, id);
        self.set_server_state(server_id, ServerState::Draining);
        self.state.due.to_resume.push_back(id);
    }

    /// Linked → Waiting, with all that the client asked for: its server is lost ([`ExchangeFailure::ServerLost`]).
    pub(crate) fn runs_again<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return;
        };
        client.account.refused_servers += 1;
        cx.driver.reached(RarePath::ReadAfterLoss);
        server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
        self.set_server_state(server_id, ServerState::Draining);
        self.requeue(cx, id, First::Nothing);
    }
}

/// Whether more is lost with the server than the transaction.
pub(crate) fn loses_session(link: &Link, server: &Server) -> bool {
    let marks = link.touched.as_ref().map_or(Marks::NONE, |touched| touched.marks);
    link.pin.is_some()
        || !marks.without(TAKEN_BACK).is_empty()
        || link.changed.by_statements()
        || !server.state.is_serving()
}

/// Returns the outcome for a client whose read outside a transaction, or whose BEGIN, was lost. The client's session may have been
/// sent ahead of it.
fn after_repeatable(
    id: ClientId,
    (link, server): (&Link, &Server),
    in_flight: &InFlight,
    (seen, decision): (AnswerSeen, AfterFailure),
) -> Option<AfterLoss> {
    let is_plain = matches!(
        link.phase,
        LinkPhase::Exchange(Preamble::None | Preamble::Sent(Ahead::Session, _) | Preamble::Replayed)
    );
    if !is_plain || link.first_try != FirstTry::None {
        return None;
    }
    // The client has seen that a transaction is open: its next statement is told.
    let begun = Some(AfterLoss::Ends { whole: true, status: TxStatus::InTransaction });
    let is_first_answer =
        link.phase.is_plain() && server.ledger.head().is_some_and(|head| head.kind == Kind::Query);
    match owed_group(server, id)? {
        Owed::Part => None,
        Owed::Ready if in_flight.sent() == Sent::BeginAlone && !in_flight.has_failed(server) => begun,
        Owed::Ready => Some(AfterLoss::ReadEnds),
        Owed::Group if in_flight.has_failed(server) => Some(AfterLoss::ReadEnds),
        Owed::Group if decision == AfterFailure::Elsewhere => Some(AfterLoss::RunsAgain),
        Owed::Group if seen == AnswerSeen::Nothing => Some(AfterLoss::Interrupted),
        // The first answer to a BEGIN in a Query is its CommandComplete. In an extended group, and if the client's session went ahead,
        // other answers come before.
        Owed::Group if in_flight.sent() == Sent::BeginAlone && is_first_answer => begun,
        Owed::Group => Some(AfterLoss::Interrupted),
    }
}

/// `None`: the outcome is not known here, or more is lost than a transaction.
fn after_loss(
    id: ClientId,
    (link, server): (&Link, &Server),
    situation: Situation,
    (unseen_bytes, asks): (usize, bool),
) -> Option<AfterLoss> {
    let in_flight = InFlight::of(server, id)?;
    if loses_session(link, server) || !is_between_messages(link, server) {
        return None;
    }
    let is_unanswered = in_flight.is_unanswered(server, unseen_bytes);
    if matches!(in_flight.sent(), Sent::Read | Sent::BeginAlone) {
        let seen = if is_unanswered { AnswerSeen::Nothing } else { AnswerSeen::Part };
        let decision = after_failure(ExchangeFailure::ServerLost, Situation { seen, ..situation });
        return after_repeatable(id, (link, server), in_flight, (seen, decision));
    }
    if holds_later(link, server) {
        return None;
    }
    let is_open = matches!(link.phase, LinkPhase::Exchange(Preamble::None | Preamble::Sent(Ahead::Begin, _)));
    if !is_open || !in_flight.is_in_block(server) || !server.pipelined.is_alone() {
        return None;
    }
    let owed = owed_group(server, id)?;
    let (whole, had_failed) = (owed != Owed::Part, server.tx == TxStatus::Failed);
    let status = if had_failed { TxStatus::Failed } else { TxStatus::InTransaction };
    if in_flight.sent() == Sent::Inside
        && !in_flight.has_failed(server)
        && let Some(rest) = in_flight.rest_of_rollback(server, whole)
    {
        return Some(AfterLoss::RollsBack(rest));
    }
    match in_flight.sent() {
        Sent::Empty if is_unanswered => Some(AfterLoss::Empty(status)),
        Sent::End(group) if is_rollback(group, server) && is_unanswered => Some(AfterLoss::Ended(group)),
        Sent::Inside | Sent::Empty if in_flight.has_failed(server) => {
            Some(AfterLoss::Ends { whole, status: TxStatus::Failed })
        }
        Sent::Inside | Sent::Empty if owed == Owed::Ready => Some(AfterLoss::Ends { whole, status }),
        Sent::Inside | Sent::Empty if had_failed => Some(AfterLoss::StaysFailed),
        Sent::Inside | Sent::Empty => Some(AfterLoss::Fails { whole }),
        // What a transaction leaves in its session is asked of its server alone.
        Sent::End(group) if asks && is_unanswered && owed == Owed::Group && link.touched.is_none() => {
            Some(AfterLoss::AtCommit(group, at_commit(in_flight, server, Some(group))))
        }
        Sent::Begin | Sent::BeginAlone | Sent::End(_) | Sent::Read | Sent::Unclear => None,
    }
}
