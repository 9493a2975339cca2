//! The moves of a client between its states, and the numbers that follow.

use pgweir_settings::PoolMode;
use pgweir_wire::error::{Report, SqlState, encode_notice};
use slotmap::SlotMap;

use crate::client_handoff::Replication;
use crate::context::{Activity, Cx, Env};
use crate::driver::Driver;
use crate::ids::ClientId;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::node::Turn;
use crate::pool::relay::attempt::holds_later;
use crate::pool::{Branch, Pool, PoolState};
use crate::stats::rare_path::RarePath;

impl PoolState {
    /// The one way to change a client's state: the numbers follow.
    // Inlined, the new state is written in place, and its number is known: 50 instructions fewer for each move.
    #[inline(always)]
    pub(crate) fn move_client(&mut self, client: &mut Client, state: ClientState) {
        debug_assert!(is_legal(&client.state, &state), "a client cannot make this move");
        let branch = client.account.branch;
        let is_served = matches!(state, ClientState::Linked(_) | ClientState::QueuedBehind(_));
        let turn = if is_served { Turn::IsServed } else { Turn::Leaves };
        self.count_state(branch, &client.state, turn);
        self.count_state(branch, &state, Turn::Enters);
        client.state = state;
    }

    /// Linked → Idle: the client's transaction (or session) is over. The caller sets the server's next state. If the client has sent
    /// more, it goes on when all bytes of its server were looked at.
    #[inline]
    pub(crate) fn unlink(&mut self, env: &mut Env, id: ClientId, client: &mut Client) {
        debug_assert!(matches!(client.state, ClientState::Linked(_)), "only a linked client is unlinked");
        client.account.active_us = env.now.mono_us;
        if !client.inbox.is_empty() || client.reads_paused {
            self.due.to_resume.push_back(id);
        }
        self.move_client(client, ClientState::Idle);
    }

    /// A client enters (or leaves) this state.
    #[inline]
    pub(crate) fn count_state(&mut self, branch: Branch, state: &ClientState, turn: Turn) {
        let number = match state {
            ClientState::Waiting(_) if !branch.is_primary() => return self.count_at_standby(branch, turn),
            ClientState::Waiting(_) => &mut self.node.waiting,
            ClientState::QueuedBehind(_) => &mut self.count.queued_behind,
            ClientState::Linked(_) => &mut self.count.linked,
            _ => return,
        };
        *number = if turn == Turn::Enters { *number + 1 } else { number.saturating_sub(1) };
    }
}

impl Pool {
    /// Sets the state of the client with this id, as [`PoolState::move_client`] does.
    #[inline(always)]
    pub(crate) fn set_client_state(&mut self, id: ClientId, state: ClientState) {
        let client = &mut self.clients[id];
        if let (ClientState::Linked(link), ClientState::Waiting(_)) = (&client.state, &state)
            && let Some(server) = self.servers.get_mut(link.server)
        {
            // Its group runs elsewhere.
            server.incoming.capture.take_if(|capture| capture.client == id);
            self.state.look_at_passed_over();
        }
        self.state.move_client(client, state);
    }

    /// A client that waits, for a server or for its login, waits for a server of another node from here on. It keeps its time.
    pub(crate) fn move_waiting(&mut self, id: ClientId, to: Branch) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let from = std::mem::replace(&mut client.account.branch, to);
        let is_before = |clients: &SlotMap<ClientId, Client>, other: ClientId| {
            let own_us = clients.get(id).map_or(0, |client| client.account.request.since_us);
            clients.get(other).is_none_or(|other| other.account.request.since_us <= own_us)
        };
        match &client.state {
            ClientState::Waiting(_) => {
                let node = self.state.node_at_mut(from);
                node.clients.retain(|&other| other != id);
                node.waiting = node.waiting.saturating_sub(1);
                let node = self.state.node_at_mut(to);
                node.waiting += 1;
                let place = node.clients.iter().rposition(|&other| is_before(&self.clients, other));
                node.clients.insert(place.map_or(0, |place| place + 1), id);
            }
            ClientState::AwaitingServer(_) => {
                self.state.node_at_mut(from).awaiting.retain(|&other| other != id);
                let node = self.state.node_at_mut(to);
                let place = node.awaiting.iter().rposition(|&other| is_before(&self.clients, other));
                node.awaiting.insert(place.map_or(0, |place| place + 1), id);
            }
            _ => debug_assert!(false, "it does not wait"),
        }
    }

    /// Whether nothing more can be done with the client's bytes until another event happens.
    pub(crate) fn client_is_stalled(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        match &client.state {
            ClientState::Waiting(_) | ClientState::AwaitingServer(_) | ClientState::QueuedBehind(_) => true,
            ClientState::Idle | ClientState::DeferredBegin(_) => self.state.cache.await_probe.contains(&id),
            ClientState::Linked(link) if link.waits.holds() || link.phase.holds() => true,
            ClientState::Linked(link) => self.servers.get(link.server).is_some_and(|server| {
                server.state.lets_client_wait() || holds_later(link, server) || !server.pipelined.is_alone()
            }),
            _ => false,
        }
    }

    /// Stops reading from a client.
    pub(crate) fn pause_client<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id)
            && !client.reads_paused
        {
            client.reads_paused = true;
            cx.driver.pause_reads(client.conn);
        }
    }

    /// Reads from a client again, if nothing speaks against it.
    pub(crate) fn client_unpause<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if !client.reads_paused || cx.env.activity == Activity::Suspended {
            return;
        }
        if client.inbox.len() > cx.env.limits.inbox_bytes && self.client_is_stalled(id) {
            return;
        }
        if cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            return;
        }
        if let ClientState::Linked(link) = &client.state
            && let Some(server) = self.servers.get(link.server)
            && cx.driver.backlog(server.conn) > cx.env.limits.backlog_bytes
        {
            return;
        }
        let conn = client.conn;
        self.clients[id].reads_paused = false;
        cx.driver.reached(RarePath::ReadAgain);
        cx.driver.resume_reads(conn);
    }

    /// `query_wait_notify`: tells a client, once, that it waits.
    pub(crate) fn notify_waiter<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if std::mem::replace(&mut client.account.request.is_notified, true) {
            return;
        }
        let text = "No server connection available in postgres backend, client being queued";
        let report = Report::notice(SqlState::SUCCESSFUL_COMPLETION, text);
        cx.env.scratch.clear();
        encode_notice(&mut cx.env.scratch, &report);
        cx.driver.send(client.conn, &cx.env.scratch);
    }

    /// The mode that a client is pooled by. Replication connections are always sessions.
    pub(crate) fn client_mode(&self, client: &Client) -> PoolMode {
        if client.account.replication == Replication::None {
            self.state.policy.mode
        } else {
            PoolMode::Session
        }
    }
}

/// Whether a client may move from one state to the other.
fn is_legal(from: &ClientState, to: &ClientState) -> bool {
    use ClientState as S;
    matches!(
        (from, to),
        (S::AwaitingServer(_), S::Idle)
            // From Idle to Linked without a wait: a replication client has a server of its own when it has logged in.
            | (S::Idle, S::Linked(_) | S::Waiting(_) | S::DeferredBegin(_))
            | (S::DeferredBegin(_), S::Idle | S::Waiting(_))
            | (S::Waiting(_), S::Linked(_) | S::QueuedBehind(_) | S::Idle | S::Ignoring)
            | (S::QueuedBehind(_), S::Linked(_) | S::Waiting(_))
            | (S::Linked(_), S::Idle | S::Waiting(_))
            | (S::Ignoring, S::Idle)
            | (S::Idle, S::RolledBack(_))
            | (S::RolledBack(_), S::RolledBack(_) | S::Idle)
    )
}
