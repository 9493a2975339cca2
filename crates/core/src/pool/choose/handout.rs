//! The queue, served at the end of each turn: the client that waits longest gets the place that `selector` chose for it, and a
//! pool without enough servers opens more, within every limit.

use std::sync::Arc;

use pgweir_settings::LoadBalanceHosts;

use crate::context::Activity;
use crate::context::Role;
use crate::context::duration_us;
use crate::context::{Cx, Effect, Env};
use crate::driver::{CloseMode, ConnId, Driver, Endpoint, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::mail::{Scarce, Shutdown};
use crate::pool::choose::selector::{Place, ServerRequest};
use crate::pool::client::state::ClientState;
use crate::pool::multiplex::pipelined::Pipelined;
use crate::pool::prepared::statements::ServerStatements;
use crate::pool::relay::first_ask::FirstAsk;
use crate::pool::relay::ledger::Ledger;
use crate::pool::sequences::state::Users;
use crate::pool::server::state::{Beginning, Ending, Incoming, Reached, Server, ServerState, Serves, Work};
use crate::pool::session::params::Params;
use crate::pool::startup::check::Known;
use crate::pool::startup::checked::Opened;
use crate::pool::{Branch, Gate, Pool, PoolState, ServerKind};

impl Pool {
    /// Free servers to the clients that wait longest, then as many new connections as are needed and allowed.
    pub(crate) fn hand_out<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.hand_out_at(cx, Branch::PRIMARY);
        if !self.state.standbys.is_empty() {
            self.place_overdue(cx);
            for branch in self.state.standby_branches() {
                self.hand_out_at(cx, branch);
            }
        }
        self.shorten_queue(cx);
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            self.end_queue(cx);
        }
    }

    /// The same for the servers of one node.
    fn hand_out_at<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        self.greet_waiting(cx, branch);
        if branch == self.state.asks_at {
            self.serve_lookups(cx);
        }
        self.check_waiting_startups(cx, branch);
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
        while let Some(client) = self.next_waiter(branch) {
            if replicates && self.next_replicating(cx.env).is_some() {
                return false;
            }
            match self.choose_server(cx, branch, ServerRequest::Next(client)) {
                Place::Alone(server) => {
                    self.state.node_at_mut(branch).clients.pop_front();
                    self.link(cx, client, server);
                    if !self.client_is_stalled(client) {
                        self.client_resume(cx, client);
                    }
                }
                Place::Behind(server) => {
                    self.state.node_at_mut(branch).clients.pop_front();
                    self.enqueue_behind(cx, client, server);
                }
                Place::Wait => return false,
                Place::Open => break,
            }
        }
        true
    }

    /// Greets clients that waited for the pool's first server, as its login says what to tell them.
    fn greet_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let Some(greeting) = self.state.greeting.clone() else { return };
        self.greet_with_own_servers(cx, branch, &greeting);
        for id in std::mem::take(&mut self.state.node_at_mut(branch).awaiting) {
            if self.awaits_own_server(cx.env, branch, id) {
                self.state.node_at_mut(branch).awaiting.push(id);
                continue;
            }
            let checked = match self.known_startup(cx.env, id, &greeting) {
                Known::Plain => None,
                Known::CheckedStartup(checked) => Some(checked),
                Known::Unknown => {
                    self.state.node_at_mut(branch).awaiting.push(id);
                    continue;
                }
            };
            let since_us = self.clients.get(id).map(|client| client.account.request_us);
            let waited_us = cx.env.now.mono_us.saturating_sub(since_us.unwrap_or(cx.env.now.mono_us));
            self.state.numbers.stats.wait_us += waited_us;
            self.greet_client(cx, id, &greeting, checked.as_deref(), None);
            self.client_resume(cx, id);
        }
    }

    /// Opens connections: one for each client that waits and is not served by one that is being opened already, within
    /// every limit. A cold pool with many waiters so opens all it may at once.
    fn grow<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        loop {
            let pool = &self.state;
            let node = pool.node_at(branch);
            let parallel = node.servers(ServerKind::Login);
            let reserved =
                if parallel == 0 || !branch.is_primary() { 0 } else { self.logins_for_replication() };
            let coming = parallel - reserved + node.servers(ServerKind::Tested);
            if pool.demand_at(branch) <= coming
                || parallel >= cx.env.rules.config.main.max_parallel_connects.max(1)
            {
                return;
            }
            if !self.may_dial(cx.env, branch)
                || !self.has_room(cx, branch)
                || !self.take_place(cx, branch, true)
            {
                return;
            }
            self.dial_server(cx, branch, None);
        }
    }

    /// Nothing keeps this pool from opening connections to this node at all.
    pub(crate) fn may_dial(&self, env: &Env, branch: Branch) -> bool {
        let pool = &self.state;
        let retry_us = pool.retry_us(env, branch);
        let node = pool.node_at(branch);
        let failing = node
            .failure
            .as_ref()
            .is_some_and(|failure| env.now.mono_us < failure.at_us.saturating_add(retry_us));
        !failing
            && env.now.mono_us >= node.dial_after_us
            && pool.gate_at(branch) == Gate::Open
            && env.activity == Activity::Active
            && env.stopping != Some(Shutdown::WaitForServers)
    }

    /// `pool_size`, and `reserve_pool_size` when the first waiter has waited long enough. A pool that never saw a server may
    /// open one regardless of its size: its clients could not even log in.
    fn has_room<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) -> bool {
        let config = Arc::clone(&cx.env.rules.config);
        let pool = &self.state;
        let size = config.pool_size(&pool.config, &pool.user);
        let total = pool.node_at(branch).servers_total();
        if size == 0 || total < size || (pool.greeting.is_none() && total == 0) {
            return true;
        }
        let reserve = config.reserve_pool_size(&pool.config, &pool.user);
        let timeout_us = duration_us(config.main.reserve_pool_timeout);
        if reserve == 0 || timeout_us == 0 || total >= size.saturating_add(reserve) {
            return false;
        }
        let Some((first, since_us)) = self.first_waiting(branch) else { return false };
        if cx.env.now.mono_us.saturating_sub(since_us) < timeout_us {
            return false;
        }
        let line =
            format!("{} taking connection from reserve_pool", self.client_log_name(&self.clients[first]));
        cx.log(Level::Log, &line);
        true
    }

    /// Counts a connection towards the limits that span pools. If one is reached, the worker closes a free server for it
    /// (`evict`) and has this pool look again.
    pub(crate) fn take_place<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch, evict: bool) -> bool {
        let pool = &self.state;
        let (by_database, by_user) = (Arc::clone(pool.counts_at(branch)), Arc::clone(&pool.shared.user));
        let of_database = pool.scarce_at(branch);
        let of_user = Scarce::User(Arc::clone(&pool.user));
        let database_max = cx.env.rules.config.max_db_connections(&pool.config);
        let user_max = cx.env.rules.config.max_user_connections(&pool.user);
        let lacking = if !by_database.servers.try_take(database_max) {
            of_database
        } else if !by_user.servers.try_take(user_max) {
            by_database.servers.give_back();
            of_user
        } else {
            return true;
        };
        let is_wanted = |effect: &Effect| matches!(effect, Effect::Evict(of) if *of == lacking);
        if evict && !cx.env.effects.iter().any(is_wanted) {
            cx.env.want(Effect::Evict(lacking));
        }
        false
    }

    /// Opens a connection that has taken its place before.
    pub(crate) fn dial_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        only_for: Option<ClientId>,
    ) -> ServerId {
        let endpoint = self.next_endpoint(cx.env, branch);
        let conn = cx.driver.dial(&endpoint);
        let mut server =
            self.new_server(cx.env, branch, (conn, endpoint), ServerState::Dialing(Beginning { only_for }));
        if only_for.is_some() {
            server.serves = Serves::ReplicationClient;
        }
        let id = self.servers.insert(server);
        self.state.node_at_mut(branch).list(id, None, Some(ServerKind::Login));
        cx.env.set_role(conn, Role::Server(self.id, id));
        id
    }

    pub(crate) fn new_server(
        &self,
        env: &Env,
        branch: Branch,
        (conn, endpoint): (ConnId, Endpoint),
        state: ServerState,
    ) -> Server {
        Server {
            conn,
            serial: env.shared.next_serial(),
            state,
            ledger: Ledger::default(),
            tx: pgweir_wire::backend::TxStatus::Idle,
            params: Arc::new(Params::unknown(&env.tracked)),
            session: Arc::default(),
            users: Users::default(),
            opened: Opened::default(),
            kept_for: None,
            notices: Vec::new(),
            statements: ServerStatements::default(),
            first_ask: FirstAsk::default(),
            incoming: Incoming::default(),
            pipelined: Pipelined::default(),
            at: Reached {
                endpoint,
                remote: None,
                local: String::new(),
                tls: String::new(),
                since: env.now,
                pid: 0,
                key: Box::default(),
            },
            work: Work::default(),
            branch,
            opened_in: self.state.term_at(branch),
            active_us: env.now.mono_us,
            cancels: 0,
            retire: None,
            ending: Ending::No,
            serves: Serves::Clients,
            resets: false,
        }
    }

    /// In a cluster the node; else the host that is next, except those that failed just now.
    fn next_endpoint(&mut self, env: &Env, branch: Branch) -> Endpoint {
        let retry_us = duration_us(env.rules.config.main.server_login_retry);
        if self.state.cluster.is_some() {
            return self.state.endpoint_at(branch);
        }
        let pool = &mut self.state;
        let count = pool.config.hosts.len();
        if count == 0 {
            return Endpoint::of_socket_in(&env.rules.config.main.unix_socket_dir, pool.config.port);
        }
        let after = env.now.mono_us.saturating_sub(retry_us);
        pool.node.failed_hosts.retain(|(_, at_us)| *at_us > after);
        let turn = pool.node.next_host % count;
        let in_turn = || (turn..turn + count).map(|place| place % count);
        let place =
            in_turn().find(|&place| !pool.node.has_failed(&host_endpoint(pool, place))).unwrap_or(turn);
        if pool.config.load_balance_hosts.unwrap_or(LoadBalanceHosts::RoundRobin)
            == LoadBalanceHosts::RoundRobin
        {
            pool.node.next_host = (place + 1) % count;
        }
        host_endpoint(pool, place)
    }

    /// A connection could not be opened. Returns whether there is another host, of which no failure is known.
    ///
    /// With `load_balance_hosts=disable` the next host is preferred from now on: the list advances once, even if many
    /// connections to this host fail together.
    pub(crate) fn host_failed(&mut self, env: &Env, endpoint: &Endpoint) -> bool {
        let now_us = env.now.mono_us;
        let pool = &mut self.state;
        let count = pool.config.hosts.len();
        if count < 2 {
            return false;
        }
        let turn = pool.node.next_host % count;
        if pool.config.load_balance_hosts == Some(LoadBalanceHosts::Disable)
            && host_endpoint(pool, turn) == *endpoint
        {
            pool.node.next_host = (turn + 1) % count;
        }
        pool.node.failed_hosts.retain(|(failed, _)| failed != endpoint);
        pool.node.failed_hosts.push((endpoint.clone(), now_us));
        (0..count).any(|place| !pool.node.has_failed(&host_endpoint(pool, place)))
    }

    /// Free servers of a pool.
    pub(crate) fn idle_servers(&self) -> Vec<ServerId> {
        self.state.nodes().flat_map(|node| node.idle.iter().copied()).collect()
    }

    /// The free server that idled longest, and since when (monotonic, µs), of those that count towards a limit.
    pub(crate) fn idle_longest(&self, of: &Scarce) -> Option<(u64, ServerId)> {
        let pool = &self.state;
        let counts = |branch: &Branch| match of {
            Scarce::User(name) => *name == pool.user,
            Scarce::Database(_) | Scarce::Standby(..) => pool.scarce_at(*branch) == *of,
        };
        let idle = pool.branches().filter(counts).flat_map(|branch| &pool.node_at(branch).idle);
        let idle = idle.filter_map(|&id| Some((self.servers.get(id)?.active_us, id)));
        idle.min_by_key(|(active_us, _)| *active_us)
    }
}

/// No client has it, and none needs to leave before one gets it.
fn will_be_free(server: &Server) -> bool {
    let answers_us = matches!(server.state, ServerState::Inquiring(_) | ServerState::CheckingStartup(_));
    let kind = server.state.kind();
    // A server that is free already is of no use to the clients that wait: it would have been handed out.
    let has_no_client = matches!(kind, ServerKind::Tested | ServerKind::BeingCanceled);
    (answers_us || has_no_client) && server.retire.is_none()
}

/// The host at this place of a pool's list.
fn host_endpoint(pool: &PoolState, place: usize) -> Endpoint {
    Endpoint::of_host(&pool.config.hosts[place], pool.config.port)
}
