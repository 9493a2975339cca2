//! The queue, served at the end of each turn: the client that waits longest gets the place that `selector` chose for it, and a
//! pool without enough servers opens more, within every limit.

use crate::context::{Activity, Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::mail::{Scarce, Shutdown};
use crate::pool::choose::selector::Place;
use crate::pool::client::arrival::Admission;
use crate::pool::client::state::ClientState;
use crate::pool::server::asked::ServerQuestion;
use crate::pool::server::state::{Server, ServerState};
use crate::pool::{Branch, Gate, Pool, ServerKind};

impl Pool {
    /// Free servers to the clients that wait longest, then as many new connections as are needed and allowed.
    pub(crate) fn hand_out<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.shares_limits() {
            self.look_if_due(cx);
        }
        if self.state.standbys.is_empty() {
            self.hand_out_at(cx, Branch::PRIMARY);
        } else {
            self.hand_out_at_nodes(cx);
        }
        self.shorten_queue(cx);
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            self.end_queue(cx);
        }
    }

    /// Gives the servers of a primary, and of standbys, to clients that wait for them.
    #[cold]
    fn hand_out_at_nodes<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.ask_positions(cx);
        self.hand_out_at(cx, Branch::PRIMARY);
        for branch in self.state.standby_branches() {
            self.hand_out_at(cx, branch);
        }
    }

    /// Gives the servers of one node to clients that wait for them.
    fn hand_out_at<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let awaits_greeting = self.confirms_greeting(cx, branch);
        if !awaits_greeting {
            self.greet_waiting(cx, branch);
        }
        if branch == self.state.asks_at {
            self.serve_lookups(cx);
        }
        if !awaits_greeting {
            self.check_waiting_startups(cx, branch);
        }
        let replicates = branch.is_primary() && !self.state.queue.replicating.is_empty();
        if replicates {
            self.serve_replication(cx);
        }
        if self.serve_waiting(cx, branch, replicates) {
            self.grow(cx, branch);
        }
        if replicates {
            // Clients that waited longer have been served by now.
            self.serve_replication(cx);
        }
    }

    /// pgweir opens no server any more. For each server that only a question of ours keeps from being free, one client keeps
    /// its place, those that wait longest first. The other clients are told. A free server that no client waits for goes.
    fn end_queue<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for branch in self.state.branches() {
            let serves = self.state.gate_at(branch) == Gate::Open && cx.env.activity == Activity::Active;
            let will_serve = |server: &&Server| serves && server.branch == branch && will_be_free(server);
            let coming = self.servers.values().filter(will_serve).count();
            let waits = |id: &ClientId| {
                self.clients.get(*id).is_some_and(|client| matches!(client.state, ClientState::Waiting(_)))
            };
            let queue = self.state.node_at(branch).clients.iter();
            let unserved: Vec<ClientId> = queue.copied().filter(waits).skip(coming).collect();
            for id in unserved {
                self.refuse_client(cx, id, &Fault::ServerShuttingDown);
            }
        }
        for id in self.idle_servers() {
            if let Some(reason) = self.reason_to_close(cx.env, id) {
                self.close_server(cx, id, reason, CloseMode::Flush);
            }
        }
    }

    /// Places for the clients that wait. Returns whether servers are lacking. `replicates`: some wait for a connection of
    /// their own.
    fn serve_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch, replicates: bool) -> bool {
        self.state.node_at_mut(branch).passed_over = 0;
        while let Some(client) = self.next_judged(cx.env, branch) {
            if replicates && self.next_replicating(cx.env).is_some() {
                return false;
            }
            if cx.env.cache.is_some() && self.serve_without_server(cx, branch, client) {
                continue;
            }
            match self.choose_server(cx, branch, client) {
                Place::Alone(server) => {
                    self.state.node_at_mut(branch).leave_queue();
                    self.link(cx, client, server);
                    let is_first_try = !branch.is_primary() && self.begin_first_try(cx.env, client);
                    if is_first_try || !self.client_is_stalled(client) {
                        self.client_resume(cx, client);
                    }
                }
                Place::Behind(server, estimate_us) => {
                    self.state.node_at_mut(branch).leave_queue();
                    self.enqueue_behind(cx, client, server, estimate_us);
                }
                Place::Wait => return false,
                Place::Open => break,
            }
        }
        true
    }

    /// Whether the client that is next to get a server of this node needs none: it is answered from the query cache, or passed over because it
    /// waits for an answer that another client is given.
    #[cold]
    fn serve_without_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        client: ClientId,
    ) -> bool {
        if !self.is_passed_over(client) && self.answer_waiting(cx, client) {
            // If it asks again before the pool looks at its place, it must wait at the end.
            self.state.node_at_mut(branch).leave_queue();
            self.client_resume(cx, client);
            return true;
        }
        let is_passed_over = self.waits_for_same_read(cx, client, None);
        self.state.node_at_mut(branch).passed_over += u32::from(is_passed_over);
        is_passed_over
    }

    /// The client that is next to get a server of this node. What it asks for was judged before it began to wait: if code was made since,
    /// its messages are judged one by one when they are sent, and its read goes to the primary.
    fn next_judged(&mut self, env: &Env, branch: Branch) -> Option<ClientId> {
        loop {
            let id = self.next_waiter(branch)?;
            let client = self.clients.get_mut(id)?;
            if !client.account.is_outdated(env) {
                return Some(id);
            }
            if let ClientState::Waiting(waiting) = &mut client.state {
                waiting.group = None;
            }
            if branch.is_primary() || !client.account.asks_to_read() {
                return Some(id);
            }
            client.account.forget_asked();
            self.place_client(env, id, Branch::PRIMARY);
            self.notice();
            if self.clients.get(id)?.account.branch == branch {
                return Some(id);
            }
        }
    }

    /// Greets clients that waited for the pool's first server, as its login says what to tell them; or tells them why there is none,
    /// as a client that logs in now is told.
    fn greet_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let greeting = self.state.greeting.clone();
        if let Some(greeting) = &greeting {
            self.greet_with_own_servers(cx, branch, greeting);
        }
        for id in std::mem::take(&mut self.state.node_at_mut(branch).awaiting) {
            if greeting.is_some() && self.awaits_own_server(cx.env, branch, id) {
                self.state.node_at_mut(branch).awaiting.push(id);
                continue;
            }
            let (greeting, checked) = match self.admission(cx.env, branch, id, greeting.as_ref()) {
                Admission::Greet(greeting, checked) => (greeting, checked),
                Admission::Refuse(fault) => {
                    self.refuse_client(cx, id, &fault);
                    continue;
                }
                Admission::Wait => {
                    self.state.node_at_mut(branch).awaiting.push(id);
                    continue;
                }
            };
            let since_us = self.clients.get(id).map(|client| client.account.request.since_us);
            let waited_us = cx.env.now.mono_us.saturating_sub(since_us.unwrap_or(cx.env.now.mono_us));
            self.state.numbers.stats.wait_us += waited_us;
            self.greet_client(cx, id, &greeting, checked.as_deref(), None);
            self.client_resume(cx, id);
        }
    }

    /// Opens connections: one for each client that waits and is not served by one that is being opened already, within
    /// every limit.
    fn grow<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        loop {
            let pool = &self.state;
            let node = pool.node_at(branch);
            let parallel = node.servers(ServerKind::Login);
            let reserved =
                if parallel == 0 || !branch.is_primary() { 0 } else { self.logins_for_replication() };
            let coming = parallel - reserved + node.servers(ServerKind::Tested);
            if pool.demand_at(branch) <= coming
                || self.opens_as_many_as_it_may(cx.env, branch)
                || !self.may_dial(cx.env, branch)
                || !self.has_room(cx, branch)
                || !self.take_place(cx, branch, true)
            {
                return;
            }
            self.dial_server(cx, branch, None);
        }
    }

    /// The free server that idled longest, and since when (monotonic, µs), of those that count towards a limit. The connection that
    /// listens for clients is one of them while no client listens.
    pub(crate) fn idle_longest(&self, of: &Scarce) -> Option<(u64, ServerId)> {
        let pool = &self.state;
        let counts = |branch: &Branch| match of {
            Scarce::User(name) => *name == pool.user,
            Scarce::Database(_) | Scarce::Standby(..) => pool.scarce_at(*branch) == *of,
        };
        let listener = self.unused_listener().filter(|_| counts(&Branch::PRIMARY));
        let idle = pool.branches().filter(counts).flat_map(|branch| &pool.node_at(branch).idle).copied();
        let idle = idle.chain(listener).filter_map(|id| Some((self.servers.get(id)?.active_us, id)));
        idle.min_by_key(|(active_us, _)| *active_us)
    }
}

/// Whether a server has no client and will be free without a client having to leave it.
fn will_be_free(server: &Server) -> bool {
    let answers_us = matches!(server.state, ServerState::Inquiring(_))
        || matches!(server.state.question(), Some(ServerQuestion::Startup(_)));
    let kind = server.state.kind();
    // A server that is free already is of no use to the clients that wait: it would have been handed out.
    let has_no_client = matches!(kind, ServerKind::Tested | ServerKind::BeingCanceled);
    (answers_us || has_no_client) && server.retiring.is_none()
}
