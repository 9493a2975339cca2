//! The moment *rest*: a server has answered a whole group. May it go to another client?
//!
//! At each ReadyForQuery (`group_ended`) the features are told and asked in this order:
//!
//! 1. `prepared`: changes of tables count from here on if the transaction is over.
//! 2. `listen`: the listening connection has answered.
//! 3. What was sent ahead of the client's group failed, or is repeated (`opening_goes_on`): the rest waits for that.
//! 4. The statement is measured, and `prepared` gives the answers whose turn has come.
//! 5. `session`: startup values that the statement has reset are put back.
//! 6. `multiplex`: it is the next queued client's turn.
//!
//! If no feature is concerned (`concerns.rs`), only the statement is measured and the next queued client has its turn.
//!
//! If nothing is owed and no transaction is open, `server_rests` says, by the server's state, what comes next. At the end of a
//! client's transaction (`rest_of_transaction`) the features decide in this order whether the server leaves it:
//!
//! | asked | Keep | Ask | why at this place |
//! |---|---|---|---|
//! | session pooling | always | | nothing else is asked then |
//! | `relay` | the rest of a COPY's data is still to come | | the server takes it for that COPY |
//! | `sequences` | | | it may pin the client, which the audit must know |
//! | `session` | the client is pinned | what does the session hold? | its answer may end the pin, or begin one |
//! | `listen` | | its own notifications are due | the session's channels must be known |
//!
//! A server that leaves (`Release`) goes through `release_server` before another client gets it: a check of its session, the reset
//! query, a fence after a COPY that failed, a cancel request on its way, a reason to close it.

use pgweir_settings::PoolMode;
use pgweir_wire::backend::{self, TxStatus};

use crate::context::{Cx, Effect};
use crate::driver::{CloseMode, Driver};
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, Opening, UnnamedOnServer};
use crate::pool::prepared::schema_version::AttemptOver;
use crate::pool::relay::ledger::{Owner, Purpose};
use crate::pool::server::state::{Auditing, ServerState, Stage};
use crate::pool::session::audit::{Audited, SessionAtRest};
use crate::pool::session::pins::Reasons;

/// What becomes of a server when its client's transaction is over.
enum Rest {
    /// The client gives it back.
    Release {
        /// The pool's mode when it got the server.
        made_in: PoolMode,
        /// It may have drawn a value from a sequence.
        drew: bool,
    },
    /// It stays, and is asked something first.
    Ask(Box<Auditing>),
    /// It stays with its client, or the client is gone.
    Keep,
}

impl Pool {
    /// ReadyForQuery, followed by this number of the server's bytes that were not looked at yet. `concerned`: the features are asked.
    pub(super) fn group_ended<D: Driver>(
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
        let (rests, buffers) = (server.ledger.is_empty() && status == TxStatus::Idle, &mut cx.env.buffers);
        server.first_ask.end(rests, buffers);
        if concerned && self.ready_is_for_features(cx, id, owner, status) {
            return;
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        let had_queued = !server.pipelined.is_alone();
        let pool = &mut self.state;
        if matches!(owner, Owner::Client(_)) && (had_queued || server.ledger.is_empty()) {
            let ended = server.note_end(pool, now_us);
            if let Some(split) = ended {
                self.statement_ended(cx, id, split, behind_bytes);
            }
        }
        if self.servers.get(id).is_some_and(|server| server.ledger.may_conclude()) {
            self.conclude_statements(cx, id);
        }
        let resets = concerned && self.servers.get(id).is_some_and(|server| server.resets);
        if resets && self.restores(cx, id) {
            return;
        }
        let Some(server) = self.servers.get(id) else { return };
        if had_queued {
            self.next_queued(cx, id);
            return;
        }
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

    /// No cancel is on its way to this server any longer.
    pub(crate) fn restores_behind_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        if self.servers.get(server_id).is_some_and(|server| server.resets) {
            self.restores(cx, server_id);
            self.resume_held(cx, server_id);
        }
    }

    /// A hidden statement must not leave a transaction open: no client can be given such a server.
    fn ended_in_transaction<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        if !matches!(server.state, ServerState::Busy(_)) && server.ledger.is_at_rest() {
            self.lose_server(cx, id, "a hidden statement left a transaction open".into());
        }
    }

    /// The first features of the list. `true`: the ReadyForQuery is not the client's.
    fn ready_is_for_features<D: Driver>(
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
        self.opening_goes_on(cx, id, status)
    }

    /// A ReadyForQuery that is not the client's: after a failed BEGIN the server is first brought to a failed transaction
    /// (after a failed replay, out of it), and then the client is told that state. `false`: it is the client's.
    fn opening_goes_on<D: Driver>(
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
        match link.opening {
            Opening::Failed { repair, .. } => {
                link.opening = Opening::Reopening;
                self.send_hidden(cx, server_id, Purpose::Reopen, repair);
                true
            }
            Opening::Reopening => {
                link.opening = Opening::Done;
                cx.env.scratch.clear();
                backend::encode_ready(&mut cx.env.scratch, status);
                cx.driver.send(client.conn, &cx.env.scratch);
                false
            }
            Opening::Again(_) => {
                match self.attempt_over(server_id, id) {
                    AttemptOver::NotYet => {}
                    AttemptOver::AskAgain => {
                        // After a replay the server has reported its parameters.
                        self.adopt_params(cx, server_id, id);
                        self.state.due.to_resume.push_back(id);
                    }
                    AttemptOver::RollBack => self.send_hidden(cx, server_id, Purpose::Rerun, b"ROLLBACK"),
                    AttemptOver::Stuck => {
                        self.lose_server(cx, server_id, "a transaction could not be rolled back".into());
                    }
                }
                true
            }
            _ => false,
        }
    }

    /// The last owed ReadyForQuery came, and the transaction status is idle.
    pub(crate) fn server_rests<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.pipeline_head_answered(cx.env, id);
        let Some(server) = self.servers.get_mut(id) else { return };
        match server.state {
            ServerState::Busy(client) => self.transaction_ended(cx, id, client),
            ServerState::Draining => {
                let mode = self.state.policy.mode;
                self.release_server(cx, id, mode);
            }
            ServerState::SyncingSession(ref syncing) => {
                let client = syncing.client;
                self.session_synced(cx, id, client);
                self.set_server_state(id, ServerState::Busy(client));
                self.state.due.to_resume.push_back(client);
            }
            ServerState::Inquiring(_) => self.lookup_ended(cx, id),
            ServerState::Auditing(_) => self.audit_answered(cx, id),
            ServerState::VerifyingSession(_) => self.session_checked(cx, id),
            ServerState::QueryingCatalog(_) => self.catalog_read(cx, id),
            ServerState::CheckingStartup(_) => self.checked(cx, id),
            ServerState::Cleaning => self.cleaned(cx, id),
            ServerState::ConnectQuery(_) => self.connect_query_ended(cx, id),
            ServerState::Learning(_) => self.learnt(cx, id),
            ServerState::Checking => self.free_server(cx, id),
            ServerState::Watching(ref mut watching) => watching.is_answered = true,
            _ => {}
        }
    }

    /// The client's transaction is over, and its server is at rest.
    pub(crate) fn transaction_ended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) {
        let (made_in, drew) = match self.rest_of_transaction(cx, id, client_id) {
            Rest::Release { made_in, drew } => (made_in, drew),
            Rest::Ask(auditing) => {
                let asks = auditing.stage == Stage::Asking;
                self.set_server_state(id, ServerState::Auditing(auditing));
                if asks {
                    self.ask_session(cx, id);
                }
                return;
            }
            Rest::Keep => {
                self.ends_behind_fence(cx, id);
                return;
            }
        };
        self.log_debug(cx, |worker, _| {
            let (client, server) = worker.log_names(client_id, id)?;
            Some(format!("{client} gives {server} back"))
        });
        self.unlink(cx.env, client_id);
        self.end_cancels_for(cx, client_id);
        if !self.checks_session(cx, id, made_in) {
            self.release_server(cx, id, made_in);
        }
        if drew {
            self.begin_affinity(cx.env, id, client_id);
        }
    }

    /// The second list of this file's head.
    fn rest_of_transaction<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) -> Rest {
        let Some(client) = self.clients.get(client_id) else { return Rest::Keep };
        if self.client_mode(client) == PoolMode::Session {
            self.close_fast(cx, id, client_id);
            return Rest::Keep;
        }
        let ClientState::Linked(link) = &client.state else {
            return Rest::Release { made_in: PoolMode::Transaction, drew: false };
        };
        if link.streaming > 0 {
            // COPY data whose end is still to come, for a COPY that failed: the server reads it as COPY data.
            return Rest::Keep;
        }
        let made_in = link.made_in;
        if !link.is_concerned() && client.account.listener.is_none() {
            debug_assert!(
                self.are_features_silent(id, client_id),
                "a feature that was not asked has something to say"
            );
            return Rest::Release { made_in, drew: false };
        }
        let (alone, drew) = (link.reads_alone(), link.drawing.drew());
        if let Some(reasons) = self.pins_drawer(client_id)
            && !self.pin_client(cx, client_id, reasons)
        {
            return Rest::Keep;
        }
        let stays = match self.session_at_rest(cx, id, client_id) {
            SessionAtRest::Ask(mut auditing) => {
                // What it prepared by SQL it read under settings that may be known.
                auditing.parse_context =
                    if alone { None } else { self.parse_context_before(cx.env, client_id) };
                return Rest::Ask(auditing);
            }
            SessionAtRest::Known { stays } => stays,
            // A refused client is gone, and its server with it.
            SessionAtRest::Recalled(reasons) => {
                !self.pin_client(cx, client_id, reasons) || !reasons.is_none()
            }
        };
        match self.own_notifications_due(client_id) {
            Some(auditing) => Rest::Ask(auditing),
            None if stays => Rest::Keep,
            None => Rest::Release { made_in, drew },
        }
    }

    /// The client keeps its server for these reasons, or for none no longer. `false` if it was refused, and is gone.
    fn pin_client<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, reasons: Reasons) -> bool {
        if let Err(fault) = self.set_pin(cx, id, reasons) {
            self.refuse_client(cx, id, &fault);
        }
        self.clients.contains_key(id)
    }

    /// A server has answered what it was asked at the end of its client's transaction. When the session is known, in this order:
    /// `prepared` keeps a client here whose own names are on the server; `session` puts startup values back; `listen` joins new
    /// channels.
    fn audit_answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let ServerState::Auditing(auditing) = &self.servers[id].state else { return };
        let client_id = auditing.client;
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
            _ => self.mark_answered(cx, id, client_id),
        }
    }

    /// The session's contents are known, and are those that the client's session should hold.
    fn join_or_end<D: Driver>(
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

    /// All is known, and known to every connection that needs to know it.
    pub(crate) fn audit_over<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        reasons: Reasons,
    ) {
        if self.clients.get(client_id).is_some_and(|client| client.account.owes_notifications()) {
            if let Some(ServerState::Auditing(auditing)) =
                self.servers.get_mut(id).map(|server| &mut server.state)
            {
                auditing.stage = Stage::Owing(reasons);
            }
            return;
        }
        self.set_server_state(id, ServerState::Busy(client_id));
        if self.pin_client(cx, client_id, reasons) {
            self.give_ready(cx, client_id);
            self.transaction_ended(cx, id, client_id);
            if let Some(client) = self.clients.get_mut(client_id)
                && let ClientState::Linked(link) = &mut client.state
            {
                // The question ended the unnamed statement.
                link.unnamed = UnnamedOnServer::NotOwn;
                // It may have sent more meanwhile.
                self.state.due.to_resume.push_back(client_id);
            }
        }
    }

    /// A client has no more use for this server, which is at rest but for a question of ours.
    pub(crate) fn release_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, mode: PoolMode) {
        let main = &cx.env.rules.config.main;
        let Some(server) = self.servers.get_mut(id) else { return };
        let is_paused = server.incoming.paused_us.is_some();
        let reset = mode == PoolMode::Session || main.server_reset_query_always;
        if reset && !main.server_reset_query.is_empty() && server.retire.is_none() {
            let text = main.server_reset_query.clone();
            server.active_us = cx.env.now.mono_us;
            self.set_server_state(id, ServerState::Cleaning);
            self.send_hidden(cx, id, Purpose::Reset, text.as_bytes());
        } else if server.only_fenced() {
            self.set_server_state(id, ServerState::Checking);
        } else {
            self.free_server(cx, id);
        }
        if is_paused {
            // A client that reads slowly has stopped it; it is no longer that client's.
            self.server_unpause(cx, id);
        }
    }

    /// Into the list of free servers, if nothing speaks against it.
    pub(crate) fn free_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if self.is_notify_listener(id) {
            return self.notify_listener_up(cx, id);
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.cancels > 0 {
            self.set_server_state(id, ServerState::HeldForCancel);
            return;
        }
        server.active_us = cx.env.now.mono_us;
        let branch = server.branch;
        if !self.state.is_unwanted(branch) || cx.env.stopping.is_some() {
            self.notice();
        }
        match self.servers.get(id).and_then(|server| self.reason_to_close_now(cx.env, server)) {
            Some(reason) => self.close_server(cx, id, reason, CloseMode::Flush),
            None => {
                self.set_server_state(id, ServerState::Idle);
                let pool = &self.state;
                if pool.policy.is_limited && !pool.is_starving() {
                    // Another pool may have waited for one of this pool's servers to become free.
                    cx.env.want(Effect::OfferRoom);
                }
            }
        }
    }
}
