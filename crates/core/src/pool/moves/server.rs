//! The moves of a server connection between its states. No other module lets a server join or leave a pool.

use std::borrow::Cow;

use pgweir_settings::PoolMode;
use pgweir_wire::backend::tag;

use crate::client_handoff::Replication;
use crate::context::{Cx, Effect};
use crate::driver::{CloseMode, Closed, Driver, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::BACKLOG_HIGH_BYTES;
use crate::pool::client::state::{Client, ClientState, Link, Opening};
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::lookup::answer_lookup;
use crate::pool::relay::ledger::Purpose;
use crate::pool::server::state::{Ending, ServerState};
use crate::pool::session::pins::{Pin, Reasons};
use crate::pool::{Branch, Pool, ServerKind};
use crate::worker::login::inquiry::{Answer, Obstacle};

impl Pool {
    /// The one way to change a server's state: lists and numbers follow.
    // As `set_client_state`.
    #[inline(always)]
    pub(crate) fn set_server_state(&mut self, id: ServerId, state: ServerState) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let (from, to) = (server.state.kind(), state.kind());
        debug_assert!(is_legal(&server.state, &state), "a server cannot make this move");
        server.state = state;
        if from != to {
            let branch = server.branch;
            self.state.node_at_mut(branch).list(id, Some(from), Some(to));
        }
    }

    pub(crate) fn check_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.set_server_state(id, ServerState::Checking);
        self.servers[id].active_us = cx.env.now.mono_us;
        let query = &cx.env.rules.config.main.server_check_query;
        let text =
            if query.eq_ignore_ascii_case("<empty>") { Vec::new() } else { query.clone().into_bytes() };
        self.send_hidden(cx, id, Purpose::Check, &text);
    }

    /// `server_fast_close`: a session that has a server to be replaced ends with its transaction.
    pub(crate) fn close_fast<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client_id: ClientId) {
        let (Some(server), Some(client)) = (self.servers.get(id), self.clients.get(client_id)) else {
            return;
        };
        if server.retire.is_some()
            && !server.has_said_fatal()
            && cx.env.rules.config.main.server_fast_close
            && client.replication() == Replication::None
        {
            // For any reason, as PgBouncer does it.
            self.refuse_client(cx, client_id, &Fault::ServerLost("database configuration changed".into()));
        }
    }

    /// The same for sessions that were between two transactions when their server was marked.
    pub(crate) fn close_idle_sessions_fast<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if !cx.env.rules.config.main.server_fast_close {
            return;
        }
        let rests = |client: &Client| match &client.state {
            ClientState::Linked(link) => {
                link.streaming == 0 && !matches!(link.opening, Opening::Unsent(_)) && client.inbox.is_empty()
            }
            _ => false,
        };
        let marked: Vec<(ServerId, ClientId)> = self
            .servers
            .iter()
            .filter(|(_, server)| server.retire.is_some() && server.is_at_rest())
            .filter_map(|(id, server)| match server.state {
                ServerState::Busy(client_id) => Some((id, client_id)),
                _ => None,
            })
            .filter(|(_, client_id)| {
                let client = self.clients.get(*client_id);
                client.is_some_and(|client| self.client_mode(client) == PoolMode::Session && rests(client))
            })
            .collect();
        for (id, client_id) in marked {
            self.close_fast(cx, id, client_id);
        }
    }

    /// The client of a server is gone (and removed already). If it left anything unfinished, the server is closed: the
    /// effect of a half-sent message is unknown.
    pub(crate) fn abandon_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, link: &Link) {
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
        if matches!(server.state, ServerState::Auditing(_)) && !mid_message {
            return self.clear_session(cx, id, link.pin.as_deref());
        }
        let syncing = matches!(server.state, ServerState::SyncingSession(_));
        let because = |reason| server.retire.unwrap_or(reason);
        let rests = server.is_at_rest() || server.only_restores() || server.only_fenced();
        if cx.driver.backlog(server.conn) > 0 && !rests {
            let reason = because("client disconnect before everything was sent to the server");
            self.close_server(cx, id, reason, CloseMode::Now);
        } else if mid_message || syncing || !rests {
            let reason = because("client disconnect while server was not ready");
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

    /// A client left its server, which is at rest but for a question of ours, with traces in its session.
    pub(crate) fn clear_session<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, pin: Option<&Pin>) {
        if pin.is_some_and(|pin| pin.reasons.has(Reasons::STICKY)) {
            return self.close_server(
                cx,
                id,
                "client left state that cannot be taken back",
                CloseMode::Flush,
            );
        }
        self.set_server_state(id, ServerState::Cleaning);
        self.servers[id].active_us = cx.env.now.mono_us;
        self.send_hidden(cx, id, Purpose::Reset, b"DISCARD ALL");
        self.server_unpause(cx, id);
    }

    /// The connection to a server ended.
    pub(crate) fn server_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, why: &Closed) {
        let Some(server) = self.servers.get(id) else { return };
        match server.state {
            ServerState::Dialing(_) | ServerState::SecuringTls(_) | ServerState::LoggingIn(_) => {
                let (reason, text) = match why {
                    Closed::NameNotResolved(text) => ("server DNS lookup failed", text.as_str()),
                    Closed::DialFailed(text) => ("connect failed", text.as_str()),
                    Closed::Tls(text) => ("TLS handshake failed", text.as_str()),
                    Closed::Broken(text) => ("server conn crashed?", text.as_str()),
                    Closed::Eof => ("server conn crashed?", "the server closed the connection during login"),
                };
                self.login_failed(cx, id, reason, text);
            }
            _ => {
                let branch = server.branch;
                self.suspect_node(cx.env, branch, false);
                self.lose_server(cx, id, "server conn crashed?".into());
            }
        }
    }

    /// A server that cannot be used any more: its client learns why.
    pub(crate) fn lose_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: Cow<'static, str>,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        if server.state.at_login().is_some() {
            // The next one would end in the same way, at once: that waits for `server_login_retry`.
            return self.login_failed(cx, id, "connect_query failed", &reason);
        }
        let prepares = matches!(server.state, ServerState::SyncingSession(_));
        if prepares && self.gets_another_server(cx, id) {
            // Nothing of its client's request was sent.
            return self.close_server(cx, id, &reason, CloseMode::Now);
        }
        let Some(server) = self.servers.get(id) else { return };
        let (client, said_fatal) = (server.state.client(), server.has_said_fatal());
        if let Some(client_id) = client.filter(|&client| self.outlives_server(cx, client, id)) {
            self.log_debug(cx, |worker, _| {
                let client = worker.clients.get(client_id)?;
                Some(format!("{} goes on without its server: {reason}", worker.client_log_name(client)))
            });
        } else if let Some(client_id) = client.filter(|&client| self.clients.contains_key(client)) {
            let fault = match self.lost_with_server(client_id) {
                Some(lost) => Fault::PinnedServerLost(reason.clone(), lost),
                None => Fault::ServerLost(reason.clone()),
            };
            let fault = self.lost_with_primary(client_id, id).unwrap_or(fault);
            // Told before the server is removed: only then is it known whether a message is half passed on.
            self.servers[id].ending = Ending::Lost;
            if said_fatal {
                self.remove_client(cx, client_id, &reason, CloseMode::Flush);
            } else {
                self.refuse_client(cx, client_id, &fault);
            }
        } else {
            self.note_stillborn(cx.env, id);
        }
        self.close_server(cx, id, &reason, CloseMode::Now);
    }

    /// Closes a server connection and forgets it. A client that was linked to it must be dealt with before.
    pub(crate) fn close_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: &str,
        mode: CloseMode,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        if cx.env.rules.config.main.log_disconnections && cx.driver.log_reaches_anybody(Level::Log) {
            let age_s = cx.env.now.mono_us.saturating_sub(server.at.since.mono_us) / 1_000_000;
            let line = format!("{} closing because: {reason} (age={age_s}s)", self.server_log_name(server));
            cx.log(server.log_level(Level::Log), &line);
        }
        self.put_back_queued(cx, id);
        self.leave_short(id);
        self.set_unlisted(id);
        let Some(mut server) = self.servers.remove(id) else { return };
        cx.env.clear_role(server.conn);
        // Before the login is over, this would be no message but the first byte of another one.
        let logged_in = server.state.kind() != ServerKind::Login;
        if mode == CloseMode::Flush && logged_in && server.is_at_rest() {
            cx.env.scratch.clear();
            pgweir_wire::frontend::encode_terminate(&mut cx.env.scratch);
            cx.driver.send(server.conn, &cx.env.scratch);
        }
        cx.driver.close(server.conn, mode);
        cx.env.buffers.give_back(std::mem::take(&mut server.incoming.inbox));
        server.first_ask.end(true, &mut cx.env.buffers);
        if let ServerState::Inquiring(inquiring) = &server.state {
            answer_lookup(cx, &inquiring.lookup, Answer::Unavailable(Obstacle::Unreachable));
        }
        for statement in server.statements.drain() {
            cx.env.statements.give_back(statement);
        }
        for entry in server.ledger.drain() {
            self.statement_evicted(cx.env, entry);
        }
        if reason == "server lifetime over" {
            self.state.node_at_mut(server.branch).aged_us = cx.env.now.mono_us;
        }
        self.give_back_server(cx, server.branch);
        let is_listener = |listener: &mut Box<NotifyListener>| listener.server == id;
        if let Some(lost) = self.state.notify_listener.take_if(is_listener) {
            self.state.due.lost_listener = Some(lost);
        }
        self.notice();
    }

    /// Takes a server out of its list before it is removed.
    pub(crate) fn set_unlisted(&mut self, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let (branch, kind) = (server.branch, server.state.kind());
        let pool = &mut self.state;
        pool.affinities.end(id);
        pool.node_at_mut(branch).list(id, Some(kind), None);
    }

    /// One server fewer counts towards the limits that span pools; pools that starved by them may try again.
    pub(crate) fn give_back_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let pool = &self.state;
        pool.counts_at(branch).servers.give_back();
        pool.shared.user.servers.give_back();
        if pool.policy.is_limited {
            cx.env.want(Effect::NoticeStarving);
        }
    }

    /// The server took everything: its client may go on.
    pub(crate) fn server_drained<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if let Some(client) = self.servers.get(id).and_then(|server| server.state.client()) {
            self.client_unpause(cx, client);
        }
    }

    /// Stops reading from a server if its client does not keep up.
    pub(crate) fn pause_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if let Some(server) = self.servers.get_mut(id)
            && server.incoming.paused_us.is_none()
        {
            server.note_pause(cx.env.now.mono_us);
            cx.driver.pause_reads(server.conn);
        }
    }

    /// Reads from a server again, if its client keeps up (or it has none).
    pub(crate) fn server_unpause<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        if server.incoming.paused_us.is_none() {
            return;
        }
        let client = server.state.client().and_then(|client| self.clients.get(client));
        if client.is_some_and(|client| cx.driver.backlog(client.conn) > BACKLOG_HIGH_BYTES) {
            return;
        }
        let conn = server.conn;
        self.servers[id].note_unpause(cx.env.now.mono_us);
        cx.driver.resume_reads(conn);
    }
}

/// The moves that exist.
fn is_legal(from: &ServerState, to: &ServerState) -> bool {
    use ServerState as S;
    matches!(
        (from, to),
        (S::Dialing(_), S::SecuringTls(_) | S::LoggingIn(_))
            | (S::SecuringTls(_), S::LoggingIn(_))
            | (
                S::LoggingIn(_),
                S::ConnectQuery(_) | S::QueryingCatalog(_) | S::Idle | S::Busy(_) | S::Listening
            )
            | (S::ConnectQuery(_), S::Learning(_))
            | (S::ConnectQuery(_) | S::Learning(_), S::QueryingCatalog(_) | S::Listening)
            | (S::ConnectQuery(_) | S::Learning(_) | S::Cleaning | S::Checking, S::Idle | S::HeldForCancel)
            | (S::Cleaning, S::ConnectQuery(_) | S::QueryingCatalog(_))
            | (S::Inquiring(_), S::Idle | S::Cleaning | S::HeldForCancel)
            | (
                S::Busy(_) | S::Draining,
                S::Busy(_)
                    | S::Draining
                    | S::SyncingSession(_)
                    | S::Idle
                    | S::Checking
                    | S::Cleaning
                    | S::HeldForCancel
            )
            | (S::Idle, S::Busy(_) | S::Checking | S::Inquiring(_) | S::CheckingStartup(_))
            | (S::CheckingStartup(_), S::Idle | S::Cleaning | S::HeldForCancel)
            | (S::Busy(_), S::Auditing(_) | S::VerifyingSession(_) | S::QueryingCatalog(_))
            | (S::VerifyingSession(_) | S::QueryingCatalog(_), S::Idle | S::HeldForCancel)
            | (S::Auditing(_), S::Busy(_) | S::Cleaning)
            | (S::SyncingSession(_), S::Busy(_))
            | (S::HeldForCancel, S::Idle)
            | (S::LoggingIn(_), S::Watching(_))
    )
}

/// A message that PostgreSQL may send to a session at rest: "Asynchronous Operations" of its page on the message flow.
pub(crate) fn comes_unasked(tag: u8) -> bool {
    matches!(tag, tag::NOTICE | tag::NOTIFICATION | tag::PARAMETER_STATUS)
}
