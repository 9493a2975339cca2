//! The moment *answer*: a message of a server is not plain (`plain.rs`), so it gets a look. The result is an `Attention`, or a reason
//! to break the connection (`Unexpected`). The looks, in this order:
//!
//! 1. A message that servers send unasked goes to `asynchronous.rs`, an error to `server/errors.rs`.
//! 2. Break: a message that cannot be here (`check_answer`), or a transaction that statement pooling forbids.
//! 3. The ledger says which message it answers, and for which client.
//! 4. ReadyForQuery: `begin` may hide it, `listen` hold it, `session` send parameters ahead of it (`look_at_ready`); no feature is
//!    asked if none is concerned (`concerns.rs`). Then the moment *rest* follows.
//! 5. The end of one message's answer: `session` and `begin` learn that what they sent ahead was done, `prepared` that a
//!    statement is gone, or has another shape on this server than its client was told (`ended`).
//! 6. CommandComplete: its tag tells `prepared`, `sequences` and `session` what the statement did (`command_completed`).

use pgweir_settings::PoolMode;
use pgweir_wire::backend::{TxStatus, parse_ready, tag};
use pgweir_wire::header::HEADER_LEN;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::change::Change;
use crate::pool::relay::attempt::after_failure::AfterFailure;
use crate::pool::relay::ledger::{Accepted, Kind, Owner, Purpose, Unexpected};
use crate::pool::relay::plain::{DEALLOCATED, ROLLED_BACK, changes_objects, is_discarding};
use crate::pool::relay::preamble::{LinkPhase, Preamble, Repair};
use crate::pool::relay::receive::{Run, visible};
use crate::pool::show::measure::rows_in_tag;

/// The treatment of a server's message that a client would see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attention {
    /// The client gets the message.
    Pass,
    /// The message is hidden from the client.
    Hide,
    /// The client gets the message later, from pgweir.
    Hold,
}

use crate::pool::server::state::Description;
impl Pool {
    /// Looks at a whole message that is not a row. The run is flushed before the client gets anything else.
    #[allow(clippy::too_many_arguments, reason = "the run and its bytes are one place in one buffer")]
    pub(in crate::pool::relay) fn control<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        message: u8,
        bytes: &[u8],
        run: &mut Run,
        all: &[u8],
        at: usize,
    ) -> Result<(), Unexpected> {
        let body = &bytes[HEADER_LEN..];
        match message {
            tag::PARAMETER_STATUS | tag::NOTICE | tag::NOTIFICATION => {
                if let Some(in_flight) = self.servers.get_mut(id).and_then(|server| server.in_flight.as_mut())
                {
                    in_flight.pass_unasked(bytes.len());
                }
                let to = match message {
                    tag::PARAMETER_STATUS => self.parameter_changed(cx.env, id, body),
                    tag::NOTICE => self.notice_owner(id),
                    _ => self.notification_owner(cx, id, bytes),
                };
                self.extend(cx, id, run, to, all, at);
                if message == tag::NOTIFICATION && to.is_none() {
                    self.tell_here(cx, id, bytes);
                }
                if message == tag::PARAMETER_STATUS && self.is_session_left(id) {
                    return Err(self.rule_broken(cx.env, id, message, "no change of a parameter"));
                }
                Ok(())
            }
            tag::ERROR => {
                self.extend(cx, id, run, None, all, at);
                run.from = at + bytes.len();
                self.server_error(cx, id, bytes);
                Ok(())
            }
            tag::READY => self.ready(cx, id, bytes, run, (all, at)),
            _ => {
                self.check_answer(cx.env, id, message)?;
                let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
                let accepted = server.ledger.accept(message)?;
                if accepted.ended.is_some() {
                    server.incoming.description = Description::Nothing;
                }
                self.extend(cx, id, run, visible(accepted.owner), all, at);
                if accepted.ended.is_some() {
                    let end = at + bytes.len();
                    self.ended(cx, id, message, accepted, body, run, &all[..end]);
                } else if message == tag::COMMAND_COMPLETE {
                    self.command_completed(cx.env, id, accepted, body);
                } else if message == tag::PARAMETER_DESCRIPTION {
                    self.parameters_told(id, body);
                }
                Ok(())
            }
        }
    }

    /// Handles ReadyForQuery: the messages before it are flushed with it, and then the moment *rest* follows.
    fn ready<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        bytes: &[u8],
        run: &mut Run,
        (all, at): (&[u8], usize),
    ) -> Result<(), Unexpected> {
        let (message, body, end) = (tag::READY, &bytes[HEADER_LEN..], at + bytes.len());
        let Ok(status) = parse_ready(body) else {
            return Err(Unexpected { tag: message, expected: "a transaction status" });
        };
        if status != TxStatus::Idle {
            if self.strands_others(id) {
                let expected = "the end of a statement without a transaction";
                return Err(self.rule_broken(cx.env, id, message, expected));
            }
            if self.forbids_transactions(id) {
                self.refuse_transaction(cx, id, run, all, at);
                return Ok(());
            }
        }
        let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
        let owner = server.ledger.accept_ready()?;
        let owed_nothing = server.ledger.is_at_rest();
        let concerned = self.is_concerned(id);
        debug_assert!(
            concerned || owner.client().is_none_or(|client| self.are_features_silent(id, client)),
            "a feature that was not asked has something to say"
        );
        let attention = match concerned {
            true => self.look_at_ready(cx, id, owner, status, run, (all, at)),
            false => Attention::Pass,
        };
        let to = visible(owner).filter(|_| attention == Attention::Pass);
        self.extend(cx, id, run, to, all, at);
        if concerned && let Some(client) = to.filter(|&client| self.has_notifications(client, id, status)) {
            self.flush(cx, id, run, &all[..at]);
            *run = Run { from: at, to };
            self.send_notifications(cx, client);
        }
        self.flush(cx, id, run, &all[..end]);
        *run = Run { from: end, to: None };
        self.group_ended(cx, id, owner, status, (concerned, all.len() - end));
        if owed_nothing { self.was_asked_first(id, &all[end..]) } else { Ok(()) }
    }

    /// Refuses a transaction under statement pooling: the client gets an error alone, and does not learn that its transaction has begun.
    #[cold]
    fn refuse_transaction<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        run: &mut Run,
        all: &[u8],
        at: usize,
    ) {
        self.note_violation(cx.env, id);
        let told =
            all[run.from..at].strip_suffix(BEGIN_COMPLETE).or(all[run.from..at].strip_suffix(START_COMPLETE));
        let end = told.map_or(at, |told| run.from + told.len());
        self.flush(cx, id, run, &all[..end]);
        *run = Run { from: at, to: None };
        if let Some(client) = self.servers.get(id).and_then(|server| server.state.client()) {
            self.refuse_client(cx, client, &Fault::TransactionInStatementMode);
        }
    }

    /// Returns whether the client of a ReadyForQuery that was accepted may be told. The features are asked in this order:
    ///
    /// 1. `begin`: the client was told of an end of its group that never was (Hide).
    /// 2. `listen`: other connections must know of the end of the transaction before the client does (Hold).
    /// 3. `session`: after a replay the parameters that the server reports are told ahead of it (Pass).
    fn look_at_ready<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        owner: Owner,
        status: TxStatus,
        run: &mut Run,
        (all, at): (&[u8], usize),
    ) -> Attention {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        let state = client.and_then(|client| self.clients.get(client)).map(|client| &client.state);
        let phase = match state {
            Some(ClientState::Linked(link)) => &link.phase,
            _ => &LinkPhase::PLAIN,
        };
        let is_replayed = matches!(phase, LinkPhase::Exchange(Preamble::Replayed));
        match (phase, client) {
            (LinkPhase::Repair(Repair::Awaited { .. }), _) => return Attention::Hide,
            (LinkPhase::Exchange(Preamble::Block(Change::Unsent)), _) => {}
            (LinkPhase::Exchange(Preamble::Block(change)), Some(client))
                if status == TxStatus::Idle && (matches!(owner, Owner::Client(_)) || change.is_ignored()) =>
            {
                self.change_is_over(cx, client);
            }
            (LinkPhase::Exchange(Preamble::Block(_)), _) => return Attention::Hide,
            _ => {}
        }
        let attention = if self.delays_ready(id, owner, status) { Attention::Hold } else { Attention::Pass };
        if let Some(client) = client.filter(|_| is_replayed) {
            // Told before the end of its group, as a server tells it.
            self.flush(cx, id, run, &all[..at]);
            *run = Run { from: at, to: None };
            self.replay_over(cx, client, id);
        }
        attention
    }

    /// Refuses a message that a server cannot send at this place.
    fn check_answer(&mut self, env: &mut Env, id: ServerId, message: u8) -> Result<(), Unexpected> {
        match message {
            tag::COPY_IN | tag::COPY_OUT | tag::COPY_BOTH => {
                self.misplaced_copy(env, id, message).map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    /// Handles the end of an answer that was no error.
    #[allow(clippy::too_many_arguments, reason = "the run and its bytes are one place in one buffer")]
    fn ended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        message: u8,
        accepted: Accepted,
        body: &[u8],
        run: &mut Run,
        all: &[u8],
    ) {
        if message == tag::COMMAND_COMPLETE {
            self.command_completed(cx.env, id, accepted, body);
        }
        if let Some(entry) = accepted.ended {
            if entry.owner == Owner::Hidden(Purpose::Replay) && entry.kind == Kind::Execute {
                self.replay_answered(id, body);
            }
            self.begin_answered(accepted.owner, entry);
            self.statement_evicted(cx.env, entry);
            if entry.statement.is_some()
                && let Some(misfit) = self.described(cx.env, id, entry, (message, body))
            {
                self.statement_misfits(cx, id, misfit);
            }
        }
        let local_next = self
            .servers
            .get(id)
            .and_then(|server| server.ledger.head())
            .is_some_and(|head| matches!(head.kind, Kind::Local(_) | Kind::CopyEnd));
        if local_next {
            self.flush(cx, id, run, all);
            *run = Run { from: all.len(), to: None };
            self.conclude_statements(cx, id);
        }
    }

    /// Handles a statement that has another shape on this server than its client was told.
    #[cold]
    fn statement_misfits<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        (client, decision): (ClientId, AfterFailure),
    ) {
        match decision {
            AfterFailure::AtPrimary => self.first_try_misfits(cx, id, client),
            AfterFailure::Here | AfterFailure::Elsewhere => {
                self.run_again(cx, id, client, "a prepared statement has changed: it runs again");
            }
            AfterFailure::ServerGivenUp | AfterFailure::Told => {
                self.lose_server(cx, id, "a prepared statement has changed on its way".into());
            }
        }
    }

    /// Tells the features which command has completed. DISCARD ALL, DEALLOCATE ALL and ROLLBACK are known by the tag of their
    /// CommandComplete.
    fn command_completed(&mut self, env: &mut Env, id: ServerId, accepted: Accepted, body: &[u8]) {
        self.note_command(env, id, body);
        if matches!(body, b"DISCARD SEQUENCES\0" | b"DISCARD ALL\0") {
            self.sequences_discarded(id, matches!(accepted.owner, Owner::Client(_)));
        }
        if body == b"DISCARD ALL\0"
            && let Owner::Client(client) = accepted.owner
        {
            self.settings_discarded(client);
        }
        if matches!(accepted.owner, Owner::Client(_))
            && let Some(server) = self.servers.get_mut(id)
        {
            server.work.running.rows = server.work.running.rows.saturating_add(rows_in_tag(body));
        }
        if !is_discarding(body) {
            match accepted.owner.client() {
                Some(client) if body == ROLLED_BACK => self.doubt_session(client),
                Some(_) if body == DEALLOCATED => {
                    let head = self.servers.get(id).and_then(|server| server.ledger.head().copied());
                    if let Some(entry) = accepted.ended.or(head) {
                        self.deallocated(env, entry);
                    }
                }
                Some(client) if changes_objects(body) => self.note_schema_changed(client),
                _ => {}
            }
            return;
        }
        let client = match accepted.owner {
            Owner::Client(client) if self.client_tracks_statements(client) => Some(client),
            Owner::Hidden(_) => None,
            _ => return,
        };
        self.statements_discarded(env, client, id);
    }

    /// Whether statement pooling forbids a client's statement on this server to leave a transaction open.
    fn forbids_transactions(&self, id: ServerId) -> bool {
        self.state.policy.mode == PoolMode::Statement
            && self.servers.get(id).is_some_and(|server| server.state.client().is_some())
    }

    /// Whether other clients are queued on the server, which a transaction that is open would hold up.
    fn strands_others(&self, id: ServerId) -> bool {
        let pipelined = self.servers.get(id).map(|server| &server.pipelined);
        pipelined.is_some_and(|pipelined| pipelined.head().is_some() && !pipelined.is_alone())
    }

    /// Returns the error for a COPY at a place where there cannot be one: other clients are queued, or no client could send its data.
    fn misplaced_copy(&mut self, env: &mut Env, id: ServerId, message: u8) -> Option<Unexpected> {
        let server = self.servers.get(id)?;
        let hidden = server.ledger.head().is_some_and(|head| matches!(head.owner, Owner::Hidden(_)));
        if !server.pipelined.is_alone() {
            return Some(self.rule_broken(env, id, message, "no COPY"));
        }
        (hidden && message != tag::COPY_OUT).then_some(Unexpected { tag: message, expected: "no COPY" })
    }

    /// Returns the error with which the server is given up, because a statement broke its rule while other clients were queued.
    fn rule_broken(
        &mut self,
        env: &mut Env,
        id: ServerId,
        message: u8,
        expected: &'static str,
    ) -> Unexpected {
        self.note_violation(env, id);
        Unexpected { tag: message, expected }
    }
}

/// The CommandComplete message of `BEGIN`, and of `START TRANSACTION`.
const BEGIN_COMPLETE: &[u8] = b"C\0\0\0\x0aBEGIN\0";
const START_COMPLETE: &[u8] = b"C\0\0\0\x16START TRANSACTION\0";
