//! New connections to servers: whether one may be opened, the place it takes in every limit, where it goes, and whether the last one
//! failed so short a time ago that no other is tried.

use std::sync::Arc;

use pgweir_settings::LoadBalanceHosts;
use pgweir_wire::error::SqlState;

use crate::context::{Activity, Cx, Effect, Env, Role, duration_us};
use crate::driver::{CloseMode, ConnId, Driver, Endpoint, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::mail::{Scarce, Shutdown};
use crate::pool::multiplex::pipelined::Pipelined;
use crate::pool::prepared::statements::ServerStatements;
use crate::pool::relay::attempt::Attempt;
use crate::pool::relay::ledger::Ledger;
use crate::pool::sequences::state::Users;
use crate::pool::server::state::{
    Beginning, ConnectionState, Ending, Incoming, Reached, Server, ServerState, Serves, Work,
};
use crate::pool::session::params::Params;
use crate::pool::startup::checked::Opened;
use crate::pool::{Branch, Gate, Pool, PoolState, ServerKind};
use crate::shared::places::Places;

impl Pool {
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

    /// Whether the pool may open connections to this node at present.
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

    /// Whether no further server can be opened within `pool_size`, or at all at present.
    pub(super) fn is_full(&self, env: &Env, branch: Branch) -> bool {
        let pool = &self.state;
        let size = env.rules.config.pool_size(&pool.config, &pool.user);
        size > 0 && pool.node_at(branch).servers_total() >= size || !self.may_dial(env, branch)
    }

    /// `pool_size`, and `reserve_pool_size` when the first waiter has waited long enough. A pool that never saw a server may
    /// open one regardless of its size: its clients could not even log in.
    pub(crate) fn has_room<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) -> bool {
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
        let takes = |places: &Places, limit| takes_place(cx.env, places, limit);
        let Err((lacking, is_closing)) = self.take_places(cx.env, branch, takes) else { return true };
        let is_wanted = |effect: &Effect| matches!(effect, Effect::Evict(of) if *of == lacking);
        // A place that a closed server still takes will be free in a moment.
        if evict && !is_closing && !cx.env.effects.iter().any(is_wanted) {
            cx.env.want(Effect::Evict(lacking));
        }
        false
    }

    /// Counts the connection of a cluster's watch. It counts towards this pooler's limits, and towards none that several poolers share: the
    /// poolers could not agree on anything if one of them did not know which node is the primary.
    pub(crate) fn take_watch_place(&mut self, env: &Env) -> bool {
        self.take_places(env, Branch::PRIMARY, Places::try_take).is_ok()
    }

    /// Takes a place of each limit that a server of this node counts towards. The error is the limit that is reached, and whether a server
    /// that was closed still has a place of it.
    fn take_places(
        &self,
        env: &Env,
        branch: Branch,
        takes: impl Fn(&Places, u32) -> bool,
    ) -> Result<(), (Scarce, bool)> {
        let (pool, config) = (&self.state, &env.rules.config);
        let [by_database, by_user] = pool.counts_of(branch);
        if !takes(&by_database.servers, config.max_db_connections(&pool.config)) {
            return Err((pool.scarce_at(branch), by_database.closing.taken() > 0));
        }
        if !takes(&by_user.servers, config.max_user_connections(&pool.user)) {
            by_database.servers.give_back();
            return Err((Scarce::User(Arc::clone(&pool.user)), by_user.closing.taken() > 0));
        }
        for counts in [by_database, by_user] {
            // There is no limit, so this never fails.
            let _ = counts.logins.try_take(0);
        }
        Ok(())
    }

    /// Whether no other login may begin before one of those under way has ended. The limit is `max_parallel_connects`; in a cluster,
    /// while a node's role is new, it is also the number of logins that have succeeded plus two. If all logins began at once there,
    /// the first would be ready only about when the last is, and all clients would wait until then.
    pub(crate) fn opens_as_many_as_it_may(&self, env: &Env, branch: Branch) -> bool {
        let node = self.state.node_at(branch);
        let limit = env.rules.config.main.max_parallel_connects.max(1);
        let limit = if self.state.cluster.is_some() { limit.min(node.logins_max()) } else { limit };
        node.servers(ServerKind::Login) >= limit
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
            state,
            ledger: Ledger::default(),
            tx: pgweir_wire::backend::TxStatus::Idle,
            params: Arc::new(Params::unknown(&env.tracked)),
            session: Arc::default(),
            users: Users::default(),
            opened: Opened::default(),
            kept_for: None,
            statements: ServerStatements::default(),
            attempt: Attempt::default(),
            in_flight: None,
            incoming: Incoming::default(),
            pipelined: Pipelined::default(),
            at: Reached {
                serial: env.shared.next_serial(),
                endpoint,
                remote: None,
                local: String::new(),
                tls: String::new(),
                since: env.now,
                logged_in_us: 0,
                is_promoted: false,
                version: 0,
                node: None,
                pid: 0,
                key: Box::default(),
                notices: Vec::new(),
                term: self.state.term_at(branch),
            },
            work: Work::default(),
            branch,
            active_us: env.now.mono_us,
            cancels: 0,
            retiring: None,
            ending: Ending::No,
            connection: ConnectionState::Open,
            serves: Serves::Clients,
            resets: false,
            abandoned: None,
        }
    }

    /// Returns the address for the next connection: in a cluster that of the node, otherwise the next host that has not failed
    /// recently.
    pub(crate) fn next_endpoint(&mut self, env: &Env, branch: Branch) -> Endpoint {
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

    /// A replication client that is not linked yet leaves: its connection is not opened any further.
    pub(crate) fn abandon_dial<D: Driver>(&mut self, cx: &mut Cx<'_, D>, client: ClientId) {
        let concerned = self
            .servers
            .iter()
            .find(|(_, server)| server.is_replication() && server.state.client() == Some(client));
        if let Some((id, server)) = concerned
            && !server.is_lost()
        {
            self.close_server(cx, id, "replication client was closed", CloseMode::Now);
        }
    }

    /// Servers of this node cannot be opened at present, and there is none: a client that needs one is told at once.
    #[inline]
    pub(crate) fn known_failure(&self, env: &Env, branch: Branch) -> Option<Fault> {
        let pool = &self.state;
        if let Some(cluster) = &pool.cluster {
            // The cluster may have another primary soon, so clients wait.
            return cluster.refuses_at_once(env, branch);
        }
        let failure = pool.node.failure.as_ref()?;
        let retry_us = pool.retry_us(env, branch);
        let fresh = env.now.mono_us < failure.at_us.saturating_add(retry_us);
        // A server that starts up will be there in a moment: clients that come before the pool's first server wait for it.
        let passes = failure.code == Some(SqlState::CANNOT_CONNECT_NOW) && pool.greeting.is_none();
        (fresh && !passes && !self.has_usable_server(branch))
            .then(|| Fault::ServerFailing(failure.text.clone()))
    }

    /// Whether a server of this node may still serve a client that waits: it has logged in, stays when it is free, and belongs to no
    /// replication client.
    pub(crate) fn has_usable_server(&self, branch: Branch) -> bool {
        let node = self.state.node_at(branch);
        let is_usable = |server: &Server| {
            let kind = server.state.kind();
            !matches!(kind, ServerKind::Login | ServerKind::Listening)
                && server.retiring.is_none()
                && server.branch == branch
                && !server.is_replication()
        };
        node.servers_total() > node.servers(ServerKind::Login) && self.servers.values().any(is_usable)
    }
}

/// Takes one of the places of a limit (0: there is none), or of this process's part if several poolers share the limit.
fn takes_place(env: &Env, places: &Places, limit: u32) -> bool {
    if limit == 0 || !env.shares_limits() {
        return places.try_take(limit);
    }
    env.shared.parts_hold(env.now.mono_us) && places.try_take_part(limit)
}

/// The host at this place of a pool's list.
fn host_endpoint(pool: &PoolState, place: usize) -> Endpoint {
    Endpoint::of_host(&pool.config.hosts[place], pool.config.port)
}
