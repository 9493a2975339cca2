//! The moment *rest*: a client's transaction is over, and its server is idle. May the server go to another client?
//!
//! The features decide in this order whether the server leaves its client (`rest_of_transaction`):
//!
//! | asked | Keep | Ask | why at this place |
//! |---|---|---|---|
//! | session pooling | always | | nothing else is asked then |
//! | `relay` | the rest of a COPY's data is still to come | | the server takes it for that COPY |
//! | `sequences` | | | it may pin the client, which the audit must know |
//! | `session` | the client is pinned | what does the session hold? | its answer may end the pin, or begin one |
//! | `listen` | | its own notifications are due | the session's channels must be known |
//!
//! What was asked is answered in `group_end.rs`; then `audit_over` ends the transaction. A server that leaves (`Release`) goes
//! through `release_server` (`server/release.rs`) before another client gets it: a check of its session, the reset query, a fence
//! after a COPY that failed, a cancel request on its way, a reason to close it.

use pgweir_settings::PoolMode;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, UnnamedOnServer};
use crate::pool::server::state::{Auditing, ServerState, ServerTask, Stage};
use crate::pool::session::audit::SessionAtRest;
use crate::pool::session::pins::Reasons;

/// The fate of a server when its client's transaction is over.
enum Rest {
    /// The client gives it back.
    Release {
        /// The mode of the pool when the client got the server.
        made_in: PoolMode,
        /// Whether the client may have drawn a value from a sequence.
        drew: bool,
    },
    /// The server stays with its client, and is asked something first.
    Ask(Box<Auditing>),
    /// The server stays with its client, or the client is gone.
    Keep,
}

impl Pool {
    /// Handles the end of a client's transaction, when its server is idle.
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
                self.set_server_state(id, ServerState::linked(client_id, ServerTask::Auditing(auditing)));
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
        self.log_debug(cx, |pool, _| {
            let (client, server) = pool.log_names(client_id, id)?;
            Some(format!("{client} gives {server} back"))
        });
        if let Some(client) = self.clients.get_mut(client_id) {
            self.state.unlink(cx.env, client_id, client);
        }
        self.end_cancels_for(cx, client_id);
        if !self.asks_before_release(cx, id, made_in) {
            self.release_server(cx, id, made_in);
        }
        if drew {
            self.begin_affinity(cx.env, id, client_id);
        }
    }

    /// Asks a server that its client has left, and that is at rest, what is due. Returns `true` if the server is asked before it is released:
    /// not if a reset is due, as after session pooling.
    #[inline]
    fn asks_before_release<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        made_in: PoolMode,
    ) -> bool {
        if made_in == PoolMode::Session {
            return false;
        }
        let main = &cx.env.rules.config.main;
        if main.server_reset_query_always && !main.server_reset_query.is_empty() {
            if let Some(server) = self.servers.get_mut(id) {
                // After the reset query, the session is not that of the statement.
                server.incoming.analysis = None;
            }
            return false;
        }
        self.state.session_checks.is_due() && self.asks_released(cx, id) || self.reads_catalog(cx, id)
    }

    /// Asks a released server about the statement that it has just run, or about its session. Returns whether the server is asked.
    #[cold]
    fn asks_released<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        if self.state.session_checks.is_interrupted() {
            if self.analyses(cx, id) {
                return true;
            }
            let is_wanted = self.servers.values().any(|server| server.incoming.analysis.is_some());
            if is_wanted || !self.state.session_checks.resume() {
                return false;
            }
        }
        self.check_session(cx, id)
    }

    /// Decides whether the server leaves its client. The features are asked in the order of the table in this file's head.
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

    /// Pins the client to its server for these reasons, or unpins it if there are none. Returns `false` if the client was refused, and is
    /// gone.
    fn pin_client<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, reasons: Reasons) -> bool {
        if let Err(fault) = self.set_pin(cx, id, reasons) {
            self.refuse_client(cx, id, &fault);
        }
        self.clients.contains_key(id)
    }

    /// Ends the transaction after the audit. If the client's own notifications are still due, this waits for them.
    pub(crate) fn audit_over<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        reasons: Reasons,
    ) {
        if self.clients.get(client_id).is_some_and(|client| client.account.owes_notifications()) {
            if let Some(auditing) = self.servers.get_mut(id).and_then(|server| server.state.auditing_mut()) {
                auditing.stage = Stage::Owing(reasons);
            }
            return;
        }
        self.set_server_state(id, ServerState::serving(client_id));
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
}
