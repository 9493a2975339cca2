//! The end of a group: a server has answered with ReadyForQuery. The features are told and asked in this order:
//!
//! 1. `prepared`: changes of tables count from here on if the transaction is over.
//! 2. `listen`: the listening connection has answered.
//! 3. What was sent ahead of the client's group failed, or is repeated (`phase_goes_on`): the rest waits for that.
//! 4. The statement is measured, and `prepared` gives the answers whose turn has come.
//! 5. `session`: startup values that the statement has reset are put back.
//! 6. `multiplex`: it is the next queued client's turn.
//!
//! If no feature is concerned (`concerns.rs`), only the statement is measured and the next queued client has its turn.
//!
//! If nothing is owed and no transaction is open, `server_rests` says, by the server's state, whose answer is complete. A client's
//! transaction that is over is the moment *rest* (`rest.rs`).

use pgweir_wire::backend::{self, TxStatus};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::change::Change;
use crate::pool::prepared::schema_version::AttemptOver;
use crate::pool::relay::ledger::{Owner, Purpose};
use crate::pool::relay::preamble::{LinkPhase, Preamble, Repair};
use crate::pool::server::state::{LinkedServer, ServerState, ServerTask, Stage};
use crate::pool::session::audit::Audited;
use crate::pool::session::pins::Reasons;

impl Pool {
    /// Handles ReadyForQuery. `behind_bytes` is the number of the server's bytes after it that were not looked at yet. If `concerned` is
    /// true, the features are asked.
    pub(crate) fn group_ended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        owner: Owner,
        status: TxStatus,
        (concerned, behind_bytes): (bool, usize),
    ) {
        let now_us = cx.env.now.mono_us;
        let Some(server) = self.servers.get_mut(id) else { return };
        server.tx = status;
        let rests = server.ledger.is_empty() && status == TxStatus::Idle;
        // What the client has sent meanwhile waits for this, and its server may stay with it.
        if server.attempt.holds_later()
            && let Some(id) = server.state.client()
            && self.clients.get(id).is_some_and(|client| !client.inbox.is_empty())
        {
            self.state.due.to_resume.push_back(id);
        }
        server.attempt.end(rests, &mut cx.env.buffers);
        if concerned && self.ready_is_for_features(cx, id, owner, status) {
            return;
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        let (had_queued, concludes) = (!server.pipelined.is_alone(), server.ledger.may_conclude());
        match owner {
            Owner::Client(_)
                if had_queued || server.ledger.is_empty() || server.ledger.only_owes(Purpose::Number) =>
            {
                let ended = server.note_end(&mut self.state, now_us);
                let told =
                    ended.and_then(|split| self.state.statement_ended(cx.env, server, split, behind_bytes));
                if let Some(told) = told {
                    self.tell_statement(cx, id, told);
                }
            }
            Owner::Hidden(Purpose::Number) => self.number_told(id, behind_bytes),
            _ => {}
        }
        if concludes {
            self.conclude_statements(cx, id);
        }
        let resets = concerned && self.servers.get(id).is_some_and(|server| server.resets);
        if resets && self.restores(cx, id) {
            return;
        }
        if had_queued {
            self.next_queued(cx, id, behind_bytes);
            return;
        }
        let Some(server) = self.servers.get(id) else { return };
        if server.tx != TxStatus::Idle {
            if server.pipelined.head().is_some() {
                self.trust_lost(cx, id);
            }
            return self.ended_in_transaction(cx, id);
        }
        if server.ledger.is_at_rest() {
            self.server_rests(cx, id);
        } else if server.ledger.needs_fence() {
            self.send_hidden(cx, id, Purpose::Fence, b"");
        }
    }

    /// Asks the first features of the list. Returns `true` if the ReadyForQuery is not for the client.
    pub(crate) fn ready_is_for_features<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        owner: Owner,
        status: TxStatus,
    ) -> bool {
        self.note_schema_change(cx.env, id, status);
        if matches!(owner, Owner::Hidden(Purpose::Listen | Purpose::Meet)) {
            self.notify_listener_answered(cx, id);
        }
        self.phase_goes_on(cx, id, status)
    }

    /// Handles a ReadyForQuery that is not for the client. After a failed BEGIN the server is first brought to a failed transaction (after
    /// a failed replay, out of it), and then the client is told that state. Returns `false` if the ReadyForQuery is for the client.
    pub(crate) fn phase_goes_on<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        status: TxStatus,
    ) -> bool {
        let Some(id) = self.servers.get(server_id).and_then(|server| server.state.client()) else {
            return false;
        };
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Linked(link) = &mut client.state else { return false };
        match link.phase {
            LinkPhase::Repair(Repair::Awaited { text, .. }) => {
                link.phase = LinkPhase::Repair(Repair::Sent);
                self.send_hidden(cx, server_id, Purpose::Reopen, text);
                true
            }
            LinkPhase::Repair(Repair::Sent) => {
                link.phase = LinkPhase::PLAIN;
                cx.env.scratch.clear();
                backend::encode_ready(&mut cx.env.scratch, status);
                cx.driver.send(client.conn, &cx.env.scratch);
                false
            }
            LinkPhase::Again(_) => {
                match self.attempt_over(server_id, id) {
                    AttemptOver::NotYet => {}
                    AttemptOver::AskAgain => {
                        // After a replay the server has reported its parameters.
                        self.adopt_params(cx, server_id, id);
                        if !self.runs_on_primary(cx, server_id, id) {
                            self.state.due.to_resume.push_back(id);
                        }
                    }
                    AttemptOver::RollBack => self.send_hidden(cx, server_id, Purpose::Rerun, b"ROLLBACK"),
                    AttemptOver::Stuck => {
                        self.lose_server(cx, server_id, "a transaction could not be rolled back".into());
                    }
                }
                true
            }
            LinkPhase::Outcome(_) => {
                if self.outcome_told(cx, server_id, id) {
                    self.server_rests(cx, server_id);
                }
                true
            }
            // What comes before it brings the server to its client.
            LinkPhase::Exchange(Preamble::Block(Change::Unsent)) => false,
            LinkPhase::Exchange(Preamble::Block(_)) => {
                self.change_goes_on(cx, server_id, id, status);
                true
            }
            _ => false,
        }
    }

    /// Closes a server whose hidden statement has left a transaction open: no client can be given such a server.
    pub(crate) fn ended_in_transaction<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        if !server.state.is_serving() && server.ledger.is_at_rest() && !self.abandoned_is_over(cx, id) {
            self.lose_server(cx, id, "a hidden statement left a transaction open".into());
        }
    }

    /// Handles a server that owes nothing any more, and whose transaction status is idle.
    pub(crate) fn server_rests<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.pipeline_head_answered(cx.env, id);
        let Some(server) = self.servers.get_mut(id) else { return };
        match server.state {
            ServerState::Linked(LinkedServer { client, ref task }) => match task {
                ServerTask::Serving => self.transaction_ended(cx, id, client),
                ServerTask::Syncing(_) => {
                    self.session_synced(cx, id, client);
                    self.set_server_state(id, ServerState::serving(client));
                    self.state.due.to_resume.push_back(client);
                }
                ServerTask::Auditing(_) => self.audit_answered(cx, id, client),
            },
            ServerState::Draining => {
                if self.abandoned_is_over(cx, id) {
                    return;
                }
                let mode = self.state.policy.mode;
                self.release_server(cx, id, mode);
            }
            ServerState::Inquiring(_) => self.lookup_ended(cx, id),
            ServerState::Asked(_) => self.question_answered(cx, id),
            ServerState::Watching(ref mut watching) => watching.is_answered = true,
            _ => {}
        }
    }

    /// Handles the answer to the questions that a server was asked at the end of its client's transaction. When the session is known, the
    /// features are asked in this order: `prepared` keeps a client here whose own names are on the server; `session` puts startup values
    /// back; `listen` joins new channels.
    pub(crate) fn audit_answered<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) {
        let Some(auditing) = self.servers[id].state.auditing() else { return };
        match auditing.stage {
            Stage::Asking => {
                let Some(Audited { mut reasons, is_told, answer }) = self.audited(cx, id) else { return };
                if self.has_exposed_names(client_id) {
                    if is_told && !answer.tells_of_protocol() {
                        self.conceal_names(cx.env, client_id);
                    } else {
                        reasons = reasons.with(Reasons::PREPARED);
                    }
                }
                if !is_told {
                    self.audit_over(cx, id, client_id, reasons);
                } else if !self.restores_startup(cx, id, client_id, (reasons, &answer)) {
                    self.join_or_end(cx, id, client_id, reasons);
                }
            }
            Stage::Restoring(reasons) => {
                let reasons = self.startup_restored(cx, id, client_id, reasons);
                self.join_or_end(cx, id, client_id, reasons);
            }
            _ => self.barrier_answered(cx, id, client_id),
        }
    }

    /// Joins new channels or ends the transaction. The session's contents are known, and are those that the client's session should hold.
    pub(crate) fn join_or_end<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        mut reasons: Reasons,
    ) {
        if !self.join_channels(cx, id, client_id, &mut reasons) {
            self.audit_over(cx, id, client_id, reasons);
        }
    }
}
