//! A client ends: it said goodbye, its connection ended, or it is told a FATAL error. Nothing of it is left in the pool, and the server
//! that it held is freed or closed.

use pgweir_wire::Messages;
use pgweir_wire::backend::encode_auth_ok;
use pgweir_wire::frontend::tag;

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Closed, Driver, Level};
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::pool::client::state::{Account, Client, ClientState};
use crate::pool::node::Turn;
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;

/// The way in which a client leaves, which decides whether its running statement is cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Farewell {
    /// The client said Terminate. What it sent before runs to its end.
    Terminate,
    /// The client's connection ended without Terminate.
    Vanished,
    /// pgweir ends it: a timeout, an administrator, a violation of the protocol.
    Refused,
}

impl Pool {
    /// Ends a client with a FATAL error. Returns [`Step::Gone`], so that the caller may end with it.
    pub(crate) fn refuse_client<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        fault: &Fault,
    ) -> Step {
        let Some(client) = self.clients.get(id) else { return Step::Gone };
        let at_commit = client.is_at_commit().then_some(Fault::OutcomeUnknown);
        let fault = at_commit.as_ref().unwrap_or(fault);
        let (text, name) = (fault.text(), self.client_log_name(client));
        self.note_error(cx.env, id, fault.code().as_bytes());
        let Some(client) = self.clients.get(id) else { return Step::Gone };
        if !self.is_mid_message(client) {
            let conn = client.conn;
            cx.env.scratch.clear();
            if matches!(client.state, ClientState::AwaitingServer(_)) {
                // PostgreSQL says so as soon as the user is proven, ahead of any other error of the login.
                encode_auth_ok(&mut cx.env.scratch);
            }
            fault.encode(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
        }
        if let ClientState::Linked(link) = &client.state
            && let Some(reason) = fault.ends_server()
            && let Some(server) = self.servers.get_mut(link.server)
        {
            server.retire(reason);
        }
        self.remove_client(cx, id, &fault.reason(), (CloseMode::Flush, Farewell::Refused));
        if cx.env.rules.config.main.log_pooler_errors {
            cx.log(Level::Warning, &format!("{name} pooler error: {text}"));
        }
        Step::Gone
    }

    /// The client said goodbye.
    pub(crate) fn client_left<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, reason: &str) -> Step {
        let mode = self.close_mode(cx, id);
        self.remove_client(cx, id, reason, (mode, Farewell::Terminate));
        Step::Gone
    }

    /// How to close towards a client that left by itself: it waits only for bytes that were queued before.
    pub(crate) fn close_mode<D: Driver>(&self, cx: &Cx<'_, D>, id: ClientId) -> CloseMode {
        let queued = self.clients.get(id).is_some_and(|client| cx.driver.backlog(client.conn) > 0);
        if queued { CloseMode::Flush } else { CloseMode::Now }
    }

    /// The client's connection ended.
    pub(crate) fn client_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, why: &Closed) {
        if self.departs(cx, id) {
            return;
        }
        match why {
            Closed::Eof => {
                self.remove_client(cx, id, "client unexpected eof", (CloseMode::Flush, Farewell::Vanished));
            }
            Closed::Broken(text) | Closed::DialFailed(text) | Closed::NameNotResolved(text) => {
                self.remove_client(cx, id, text, (CloseMode::Now, Farewell::Vanished));
            }
            Closed::Tls(text) => {
                let Some(client) = self.clients.get(id) else { return };
                let line = format!("{} TLS handshake error: {text}", self.client_log_name(client));
                cx.log(Level::Warning, &line);
                self.remove_client(cx, id, "TLS handshake error", (CloseMode::Now, Farewell::Vanished));
            }
        }
    }

    /// The client's connection has ended. If messages of the client wait, and a Terminate follows them, the client stays until they are
    /// sent: PostgreSQL runs everything ahead of a Terminate, whether or not the client waits for the answers. Returns whether it
    /// stays.
    fn departs<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let (waits, server) = match &client.state {
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) => (true, None),
            ClientState::Linked(link) => (link.streaming == 0, Some(link.server)),
            _ => (false, None),
        };
        if client.departed || !waits || client.replication() != Replication::None {
            return client.departed;
        }
        if !ends_with_terminate(client.inbox.get(client.skip..).unwrap_or_default()) {
            return false;
        }
        client.departed = true;
        cx.driver.reached(RarePath::Departed);
        cx.env.clear_role(client.conn);
        cx.driver.close(client.conn, CloseMode::Now);
        if let Some(server) = server {
            // It may have been paused because the client did not read.
            self.server_unpause(cx, server);
        }
        true
    }

    /// Whether part of a server's message was passed on and the rest cannot follow, so that the client would take an error for the
    /// message's content.
    pub(crate) fn is_mid_message(&self, client: &Client) -> bool {
        let ClientState::Linked(link) = &client.state else { return false };
        // On a replication connection message boundaries are not tracked.
        self.servers.get(link.server).is_some_and(|server| {
            server.is_replication()
                || server.incoming.streaming.is_some_and(|streaming| streaming.to.is_some())
        })
    }

    /// Removes a client, from whatever state, and frees or closes the server that it held.
    pub(crate) fn remove_client<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        reason: &str,
        (mode, farewell): (CloseMode, Farewell),
    ) {
        let Some(client) = self.clients.get(id) else { return };
        if cx.env.rules.config.main.log_disconnections && cx.driver.log_reaches_anybody(Level::Log) {
            let age_s = cx.env.now.mono_us.saturating_sub(client.origin.since.mono_us) / 1_000_000;
            let line = format!("{} closing because: {reason} (age={age_s}s)", self.client_log_name(client));
            cx.log(Level::Log, &line);
        }
        let Some(mut client) = self.clients.remove(id) else { return };
        if !client.departed {
            cx.env.clear_role(client.conn);
            cx.driver.close(client.conn, mode);
        }
        cx.env.buffers.give_back(std::mem::take(&mut client.inbox));
        if let ClientState::AwaitingServer(_) = client.state {
            self.abandon_dial(cx, id);
        }
        self.leave_pool(cx.env, id, client.account, &client.state);
        if let ClientState::Linked(link) = client.state {
            self.forget_pin(link.pin.as_deref());
            self.state.look_at_passed_over();
            self.abandon_server(cx, &link, (id, farewell));
        }
    }

    /// Removes every trace of a client that had this state from the pool.
    pub(crate) fn leave_pool(
        &mut self,
        env: &mut Env,
        id: ClientId,
        mut account: Account,
        state: &ClientState,
    ) {
        env.cancel_keys.remove(&account.cancel_key.head());
        debug_assert!(!self.clients.contains_key(id));
        for statement in account.statements.iter_mut().flat_map(|statements| statements.drain()) {
            env.statements.give_back_name(statement);
        }
        self.forget_listener(&account, id);
        env.shared.note_client(env.worker, false);
        self.end_affinity(None, id);
        self.give_up_own(&account, id);
        self.state.count_state(account.branch, state, Turn::Leaves);
        if let ClientState::AwaitingServer(_) = state {
            self.state.forget_at_login(id);
        }
        self.state.empty_us = env.now.mono_us;
    }
}

/// Whether whole messages stand here, and a Terminate is behind them.
fn ends_with_terminate(bytes: &[u8]) -> bool {
    Messages::of(bytes).any(|message| message.tag() == tag::TERMINATE)
}
