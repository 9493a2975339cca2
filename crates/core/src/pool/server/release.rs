//! The way of a server from a client to the list of free servers, whether the client gave the server back or is gone.

use pgweir_settings::PoolMode;

use crate::context::{Cx, Effect};
use crate::driver::{CloseMode, Driver};
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::choose::reasons::ABOVE_PART;
use crate::pool::client::leaving::Farewell;
use crate::pool::client::state::Link;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::abandoned::NOT_READY;
use crate::pool::server::asked::{AskedServer, ServerQuestion};
use crate::pool::server::state::{Retiring, ServerState};
use crate::pool::session::pins::{Pin, Reasons};

impl Pool {
    /// Releases a server whose client has no more use for it, and which is idle except for a question of pgweir's.
    pub(crate) fn release_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, mode: PoolMode) {
        let main = &cx.env.rules.config.main;
        let Some(server) = self.servers.get_mut(id) else { return };
        let is_paused = server.incoming.paused_us.is_some();
        let reset = mode == PoolMode::Session || main.server_reset_query_always;
        if reset && !main.server_reset_query.is_empty() && server.retiring.is_none() {
            let text = main.server_reset_query.clone();
            self.ask_server(cx, id, ServerQuestion::Reset, text.as_bytes());
        } else if server.only_fenced() {
            // The answer that is still owed ends this question; there is nothing to send.
            self.set_server_state(id, ServerState::Asked(AskedServer::new(ServerQuestion::Check)));
        } else {
            self.free_server(cx, id);
        }
        if is_paused {
            // A client that reads slowly has stopped it; it is no longer that client's.
            self.server_unpause(cx, id);
        }
    }

    /// Puts a server into the list of free servers, unless there is a reason not to.
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
        let pool = &mut self.state;
        if !pool.is_unwanted(server.branch) || cx.env.stopping.is_some() {
            pool.notice();
        }
        if let Some(reason) = pool.reason_to_close(cx.env, server) {
            return self.close_server(cx, id, reason, CloseMode::Flush);
        }
        if pool.is_above_part(cx.env, server) {
            return self.close_server(cx, id, ABOVE_PART, CloseMode::Flush);
        }
        pool.move_server(id, server, ServerState::Idle);
        if pool.node_at(server.branch).backends.is_due() {
            // The server is asked before any client gets it.
            pool.notice();
        }
        if pool.policy.is_limited && !pool.is_starving() {
            // Another pool may have waited for one of this pool's servers to become free.
            cx.env.want(Effect::OfferRoom);
        }
    }

    /// Clears the session of a server whose client has left traces in it. The server is idle except for a question of pgweir's.
    pub(crate) fn clear_session<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, pin: Option<&Pin>) {
        if pin.is_some_and(|pin| pin.reasons.has(Reasons::STICKY)) {
            return self.close_server(
                cx,
                id,
                "client left state that cannot be taken back",
                CloseMode::Flush,
            );
        }
        self.ask_server(cx, id, ServerQuestion::Reset, b"DISCARD ALL");
        self.server_unpause(cx, id);
    }

    /// Handles a server whose client is gone (and removed already). If the client left anything unfinished, the server is closed: the
    /// effect of a half-sent message is unknown. If whole messages are not answered, that waits until PostgreSQL has run them
    /// (`abandoned.rs`).
    pub(crate) fn abandon_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        link: &Link,
        left: (ClientId, Farewell),
    ) {
        let (id, mid_message, made_in) = (link.server, link.streaming > 0, link.made_in);
        let Some(server) = self.servers.get(id) else { return };
        if server.is_lost() {
            return;
        }
        if !server.pipelined.is_alone() {
            // Its request is whole, and over with its answer: the clients behind it need not suffer.
            self.set_server_state(id, ServerState::Draining);
            self.server_unpause(cx, id);
            return;
        }
        let touched = made_in != PoolMode::Session && (link.pin.is_some() || link.touched.is_some());
        if server.state.auditing().is_some() && !mid_message {
            return self.clear_session(cx, id, link.pin.as_deref());
        }
        let syncing = server.state.syncing().is_some();
        let because = |reason| server.retiring.map_or(reason, Retiring::reason);
        let rests = server.is_at_rest() || server.only_restores() || server.only_fenced();
        let runs = server.state.is_serving()
            && server.ledger.of_clients().next().is_some()
            && !server.ledger.is_copying_in()
            && !server.is_replication();
        if runs && !rests && !mid_message {
            if matches!(link.phase, LinkPhase::Exchange(Preamble::Block(change)) if change.lacks_commit()) {
                // The client knows of no block around its change. If the change fails, COMMIT takes it back.
                self.send_hidden(cx, id, Purpose::Commit, b"COMMIT");
            }
            return self.abandon_running(cx, id, left);
        }
        if cx.driver.backlog(server.conn) > 0 && !rests {
            let reason = because("client disconnect before everything was sent to the server");
            self.close_server(cx, id, reason, CloseMode::Now);
        } else if mid_message || syncing || !rests {
            let reason = because(NOT_READY);
            self.close_server(cx, id, reason, CloseMode::Flush);
        } else if server.is_replication() {
            self.close_server(cx, id, "replication client was closed", CloseMode::Flush);
        } else if touched {
            self.clear_session(cx, id, link.pin.as_deref());
        } else {
            let mode = self.state.policy.mode;
            self.release_server(cx, id, if made_in == PoolMode::Session { made_in } else { mode });
        }
    }
}
