//! The moves of a client between its states. No other module lets a client join or leave a queue, a server, a pool.

use pgweir_settings::PoolMode;
use pgweir_wire::error::{Report, SqlState, encode_notice};
use slotmap::SlotMap;

use crate::client_handoff::Replication;
use crate::context::Activity;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Closed, Driver, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::{BACKLOG_HIGH_BYTES, INBOX_BYTES_MAX};
use crate::pool::Step;
use crate::pool::client::state::{Account, Client, ClientState, Link, Opening, QueuedBehind};
use crate::pool::multiplex::pipelined::QueuedClient;
use crate::pool::server::state::ServerState;
use crate::pool::{Branch, Pool, PoolState};

impl PoolState {
    /// A client enters (or leaves) this state.
    #[inline]
    pub(crate) fn count_state(&mut self, branch: Branch, state: &ClientState, enters: bool) {
        let number = match state {
            ClientState::Waiting(_) => &mut self.node_at_mut(branch).waiting,
            ClientState::QueuedBehind(_) => &mut self.count.queued_behind,
            ClientState::Linked(_) => &mut self.count.linked,
            _ => return,
        };
        *number = if enters { *number + 1 } else { number.saturating_sub(1) };
    }
}

impl Pool {
    /// The one way to change a client's state: the numbers follow.
    // Inlined, the new state is written in place, and its number is known: 50 instructions fewer for each move.
    #[inline(always)]
    pub(crate) fn set_client_state(&mut self, id: ClientId, state: ClientState) {
        let client = &mut self.clients[id];
        debug_assert!(is_legal(&client.state, &state), "a client cannot make this move");
        let branch = client.account.branch;
        self.state.count_state(branch, &client.state, false);
        self.state.count_state(branch, &state, true);
        if let (ClientState::Linked(link), ClientState::Waiting(_)) = (&client.state, &state)
            && let Some(server) = self.servers.get_mut(link.server)
        {
            // Its group runs elsewhere.
            server.incoming.taps.retain(|tap| !tap.is_of(id));
        }
        client.state = state;
    }

    /// Waiting → Linked. The server must be free. The caller looks at what the client sent.
    pub(crate) fn link<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let now_us = cx.env.now.mono_us;
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Waiting(waiting) = &mut client.state else {
            debug_assert!(false, "only a waiting client is linked");
            return;
        };
        let pool = &mut self.state;
        pool.numbers.stats.server_assignments += 1;
        let waited_us = now_us.saturating_sub(waiting.since_us);
        pool.numbers.stats.wait_us += waited_us;
        let link = Link {
            group: waiting.group,
            opening: waiting.begin.take().map_or(Opening::Done, Opening::Unsent),
            ..Link::new(server_id, pool.policy.mode)
        };
        self.set_client_state(id, ClientState::Linked(link));
        self.set_server_state(server_id, ServerState::Busy(id));
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return;
        };
        server.active_us = now_us;
        if !std::mem::replace(&mut server.work.used, true) {
            let branch = server.branch;
            self.state.node_at_mut(branch).stillborn = 0;
        }
        server.work.waited_us = waited_us;
        server.work.unseen = server.work.unseen.saturating_add(1);
        server.work.followed.clear();
        client.account.draws.use_server(id, server_id, &mut server.users);
        let replication = client.account.replication;
        if server.kept_for.is_some() || client.account.own.is_some() {
            self.take_own(id, server_id);
        }
        self.log_debug(cx, |worker, _| {
            let (client, server) = worker.log_names(id, server_id)?;
            Some(format!("{client} gets {server} after {waited_us} us"))
        });
        self.end_affinity(Some(server_id), id);
        if replication == Replication::None {
            self.prepare_server(cx, id, server_id);
        }
    }

    /// Waiting → QueuedBehind: sends the client's group after those that are under way.
    pub(crate) fn enqueue_behind<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Waiting(waiting) = &client.state else { return };
        let (since_us, notified) = (waiting.since_us, waiting.notified);
        let Some(group) = waiting.group else { return };
        let inbox = std::mem::take(&mut client.inbox);
        let draws = &mut client.account.draws;
        if let Some(server) = self.servers.get_mut(server_id) {
            draws.use_server(id, server_id, &mut server.users);
        }
        let queued_behind = QueuedBehind { server: server_id, since_us, notified, group };
        self.set_client_state(id, ClientState::QueuedBehind(queued_behind));
        let key = self.estimate_key(&group);
        let estimate_us = cx.env.estimates.get(key).map_or(0, |estimate| estimate.us);
        self.state.numbers.multiplexing.multiplexed += 1;
        let server = &mut self.servers[server_id];
        server.work.unseen = server.work.unseen.saturating_add(1);
        let is_first =
            server.pipelined.enqueue_behind(QueuedClient { client: id, key, estimate_us, exposed: false });
        if is_first && let Some(due_us) = server.pipelined.rescue_us() {
            cx.env.wake_at(due_us);
        }
        self.end_affinity(None, id);
        self.send_group(cx, id, server_id, &inbox[..(group.len as usize).min(inbox.len())]);
        if let Some(client) = self.clients.get_mut(id) {
            client.inbox = inbox;
        }
    }

    /// A client that waits, for a server or for its login, waits for a server of another node from here on. It keeps its time.
    pub(crate) fn move_waiting(&mut self, id: ClientId, to: Branch) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let from = std::mem::replace(&mut client.account.branch, to);
        let is_before = |clients: &SlotMap<ClientId, Client>, other: ClientId| {
            let own_us = clients.get(id).map_or(0, |client| client.account.request_us);
            clients.get(other).is_none_or(|other| other.account.request_us <= own_us)
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

    /// Linked → Idle: the client's transaction (or session) is over. The caller sets the server's next state. If the client has sent
    /// more, it goes on when all bytes of its server were looked at.
    pub(crate) fn unlink(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &client.state else {
            debug_assert!(false, "only a linked client is unlinked");
            return;
        };
        if link.kept > 0 {
            // The requests that it sent while it was queued are answered.
            client.inbox.drain(..link.kept.min(client.inbox.len()));
            if client.inbox.is_empty() {
                env.buffers.give_back(std::mem::take(&mut client.inbox));
            }
        }
        client.account.active_us = env.now.mono_us;
        if !client.inbox.is_empty() || client.reads_paused {
            self.state.due.to_resume.push_back(id);
        }
        self.set_client_state(id, ClientState::Idle);
    }

    /// Ends a client with a FATAL error. Returns [`Step::Gone`], so that the caller may end with it.
    pub(crate) fn refuse_client<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        fault: &Fault,
    ) -> Step {
        let Some(client) = self.clients.get(id) else { return Step::Gone };
        let (text, name) = (fault.text(), self.client_log_name(client));
        self.note_error(cx.env, id, fault.code().as_bytes());
        let Some(client) = self.clients.get(id) else { return Step::Gone };
        if !self.is_mid_message(client) {
            let conn = client.conn;
            cx.env.scratch.clear();
            fault.encode(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
        }
        if let ClientState::Linked(link) = &client.state
            && let Some(reason) = fault.ends_server()
            && let Some(server) = self.servers.get_mut(link.server)
        {
            server.retire.get_or_insert(reason);
        }
        self.remove_client(cx, id, &fault.reason(), CloseMode::Flush);
        if cx.env.rules.config.main.log_pooler_errors {
            cx.log(Level::Warning, &format!("{name} pooler error: {text}"));
        }
        Step::Gone
    }

    /// The client said goodbye.
    pub(crate) fn client_left<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, reason: &str) -> Step {
        let mode = self.close_mode(cx, id);
        self.remove_client(cx, id, reason, mode);
        Step::Gone
    }

    /// How to close towards a client that left by itself: it waits only for bytes that were queued before.
    fn close_mode<D: Driver>(&self, cx: &Cx<'_, D>, id: ClientId) -> CloseMode {
        let queued = self.clients.get(id).is_some_and(|client| cx.driver.backlog(client.conn) > 0);
        if queued { CloseMode::Flush } else { CloseMode::Now }
    }

    /// The client's connection ended.
    pub(crate) fn client_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, why: &Closed) {
        match why {
            Closed::Eof => self.remove_client(cx, id, "client unexpected eof", CloseMode::Flush),
            Closed::Broken(text) | Closed::DialFailed(text) | Closed::NameNotResolved(text) => {
                self.remove_client(cx, id, text, CloseMode::Now);
            }
            Closed::Tls(text) => {
                let Some(client) = self.clients.get(id) else { return };
                let line = format!("{} TLS handshake error: {text}", self.client_log_name(client));
                cx.log(Level::Warning, &line);
                self.remove_client(cx, id, "TLS handshake error", CloseMode::Now);
            }
        }
    }

    /// Part of a message of the server was passed on and the rest cannot follow: the client would take an error for its
    /// content.
    fn is_mid_message(&self, client: &Client) -> bool {
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
        mode: CloseMode,
    ) {
        let Some(client) = self.clients.get(id) else { return };
        if cx.env.rules.config.main.log_disconnections && cx.driver.log_reaches_anybody(Level::Log) {
            let age_s = cx.env.now.mono_us.saturating_sub(client.origin.since.mono_us) / 1_000_000;
            let line = format!("{} closing because: {reason} (age={age_s}s)", self.client_log_name(client));
            cx.log(Level::Log, &line);
        }
        let Some(mut client) = self.clients.remove(id) else { return };
        cx.env.clear_role(client.conn);
        cx.driver.close(client.conn, mode);
        cx.env.buffers.give_back(std::mem::take(&mut client.inbox));
        if let ClientState::AwaitingServer(_) = client.state {
            self.abandon_dial(cx, id);
        }
        self.leave_pool(cx.env, id, client.account, &client.state);
        if let ClientState::Linked(link) = client.state {
            self.forget_pin(link.pin.as_deref());
            self.abandon_server(cx, &link);
        }
    }

    /// A client that had this state is removed: nothing of it is left in the pool.
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
            env.statements.give_back(statement);
        }
        self.forget_listener(&account, id);
        env.uncount(&account.counted);
        env.shared.note_client(env.worker, false);
        self.end_affinity(None, id);
        self.give_up_own(&account, id);
        self.state.count_state(account.branch, state, false);
        if let ClientState::AwaitingServer(_) = state {
            self.state.forget_at_login(id);
        }
        self.state.empty_us = env.now.mono_us;
    }

    /// Nothing more can be done with this client's bytes until something else happens.
    pub(crate) fn client_is_stalled(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        match &client.state {
            ClientState::Waiting(_) | ClientState::AwaitingServer(_) | ClientState::QueuedBehind(_) => true,
            ClientState::Linked(link) if link.waits.held || link.kept > 0 || link.opening.holds() => true,
            ClientState::Linked(link) => self.servers.get(link.server).is_some_and(|server| {
                matches!(server.state, ServerState::SyncingSession(_) | ServerState::Auditing(_))
                    || !server.pipelined.is_alone()
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
        if client.inbox.len() > INBOX_BYTES_MAX && self.client_is_stalled(id) {
            return;
        }
        if cx.driver.backlog(client.conn) > BACKLOG_HIGH_BYTES {
            return;
        }
        if let ClientState::Linked(link) = &client.state
            && let Some(server) = self.servers.get(link.server)
            && cx.driver.backlog(server.conn) > BACKLOG_HIGH_BYTES
        {
            return;
        }
        let conn = client.conn;
        self.clients[id].reads_paused = false;
        cx.driver.resume_reads(conn);
    }

    /// The client took everything: its server may go on.
    pub(crate) fn client_drained<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // It has its answer now: only from here on can it be idle.
        client.account.active_us = cx.env.now.mono_us;
        if let ClientState::Linked(link) = &client.state {
            let server = link.server;
            if let Some(server) = self.servers.get_mut(server) {
                server.active_us = cx.env.now.mono_us;
            }
            self.server_unpause(cx, server);
        }
        self.client_resume(cx, id);
    }

    /// `query_wait_notify`: tells a client, once, that it waits.
    pub(crate) fn notify_waiter<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let notified = match &mut client.state {
            ClientState::Waiting(waiting) => &mut waiting.notified,
            ClientState::QueuedBehind(queued_behind) => &mut queued_behind.notified,
            _ => return,
        };
        if std::mem::replace(notified, true) {
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

/// The moves that exist.
fn is_legal(from: &ClientState, to: &ClientState) -> bool {
    use ClientState as S;
    matches!(
        (from, to),
        (S::AwaitingServer(_), S::Idle)
            // A replication client gets its own server with its login.
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
