//! Handing out: which waiting client gets which free server, and when a pool opens another one. Only this module decides the
//! number of busy servers and which client is next.

use std::sync::Arc;

use pgweir_settings::LoadBalanceHosts;

use super::admission::Admission;
use super::session::Known;
use super::{Activity, Role, Worker, duration_us};
use crate::client::ClientState;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, ConnId, Driver, Endpoint, Level, WorkerId};
use crate::errors::Fault;
use crate::first_ask::FirstAsk;
use crate::ids::{ClientId, PoolId, ServerId};
use crate::ledger::Ledger;
use crate::mail::{Mail, Scarce, Shutdown};
use crate::params::Params;
use crate::pipelined::Pipelined;
use crate::pool::{Pool, ServerKind};
use crate::sequences::Users;
use crate::server::{Beginning, Server, ServerState};
use crate::startup_checks::Opened;
use crate::statements::ServerStatements;

impl Worker {
    /// Free servers to the clients that wait longest, then as many new connections as are needed and allowed.
    pub(super) fn hand_out<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId) {
        self.greet_waiting(cx, pool_id);
        self.serve_lookups(cx, pool_id);
        self.check_waiting_startups(cx, pool_id);
        let replicates = !self.pools[pool_id].replicating.is_empty();
        if replicates {
            self.serve_replication(cx, pool_id);
        }
        if self.serve_waiting(cx, pool_id, replicates) {
            self.grow(cx, pool_id);
        }
        if replicates {
            // Clients that waited longer have been served by now.
            self.serve_replication(cx, pool_id);
        }
        self.shorten_queue(cx, pool_id);
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            self.end_queue(cx, pool_id);
        }
    }

    /// pgweir opens no server any more. For each server that only a question of ours keeps from being free, one client keeps
    /// its place, those that wait longest first. The other clients are told. A free server that no client waits for goes.
    fn end_queue<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId) {
        let serves = !self.pools[pool_id].paused && cx.env.activity == Activity::Active;
        let will_serve = |server: &&Server| serves && server.pool == pool_id && will_be_free(server);
        let coming = self.servers.values().filter(will_serve).count();
        let waits = |id: &ClientId| {
            self.clients.get(*id).is_some_and(|client| matches!(client.state, ClientState::Waiting(_)))
        };
        let unserved: Vec<ClientId> =
            self.pools[pool_id].queue.iter().copied().filter(waits).skip(coming).collect();
        for id in unserved {
            self.refuse_client(cx, id, &Fault::ServerShuttingDown);
        }
        for id in self.idle_servers(pool_id) {
            if let Some(reason) = self.reason_to_close(cx.env, id) {
                self.close_server(cx, id, reason, CloseMode::Flush);
            }
        }
    }

    /// Places for the clients that wait. Returns whether servers are lacking. `replicates`: some wait for a connection of
    /// their own.
    fn serve_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId, replicates: bool) -> bool {
        while let Some(client) = self.next_waiter(pool_id) {
            if replicates && self.next_replicating(cx.env, pool_id).is_some() {
                return false;
            }
            match self.find_place(cx, pool_id, client) {
                Admission::Alone(server) => {
                    self.pools[pool_id].queue.pop_front();
                    self.link(cx, client, server);
                    if !self.client_is_stalled(client) {
                        self.client_resume(cx, client);
                    }
                }
                Admission::Behind(server) => {
                    self.pools[pool_id].queue.pop_front();
                    self.enqueue_behind(cx, client, server);
                }
                Admission::Soon => return false,
                Admission::NoServer => break,
            }
        }
        true
    }

    /// Greets clients that waited for the pool's first server, as its login says what to tell them.
    fn greet_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId) {
        let Some(greeting) = self.pools[pool_id].greeting.clone() else { return };
        self.greet_with_own_servers(cx, pool_id, &greeting);
        for id in std::mem::take(&mut self.pools[pool_id].awaiting) {
            if self.awaits_own_server(cx.env, id) {
                self.pools[pool_id].awaiting.push(id);
                continue;
            }
            let checked = match self.known_startup(cx.env, id, &greeting) {
                Known::Plain => None,
                Known::CheckedStartup(checked) => Some(checked),
                Known::Unknown => {
                    self.pools[pool_id].awaiting.push(id);
                    continue;
                }
            };
            let since_us = self.clients.get(id).and_then(|client| Some(client.account.as_ref()?.request_us));
            let waited_us = cx.env.now.mono_us.saturating_sub(since_us.unwrap_or(cx.env.now.mono_us));
            self.pools[pool_id].stats.wait_us += waited_us;
            self.greet_client(cx, id, &greeting, checked.as_deref(), None);
            self.client_resume(cx, id);
        }
    }

    /// Opens connections: one for each client that waits and is not served by one that is being opened already, within
    /// every limit. A cold pool with many waiters so opens all it may at once.
    fn grow<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId) {
        loop {
            let pool = &self.pools[pool_id];
            let parallel = pool.servers(ServerKind::Login);
            let reserved = if parallel == 0 { 0 } else { self.logins_for_replication(pool_id) };
            let coming = parallel - reserved + pool.servers(ServerKind::Tested);
            if pool.demand() <= coming || parallel >= cx.env.rules.config.main.max_parallel_connects.max(1) {
                return;
            }
            if !self.may_dial(cx.env, pool_id)
                || !self.has_room(cx, pool_id)
                || !self.take_place(cx, pool_id, true)
            {
                return;
            }
            self.dial_server(cx, pool_id, None);
        }
    }

    /// Nothing keeps this pool from opening connections at all.
    pub(super) fn may_dial(&self, env: &Env, pool_id: PoolId) -> bool {
        let pool = &self.pools[pool_id];
        let retry_us = duration_us(env.rules.config.main.server_login_retry);
        let failing = pool
            .failure
            .as_ref()
            .is_some_and(|failure| env.now.mono_us < failure.at_us.saturating_add(retry_us));
        !failing
            && env.now.mono_us >= pool.dial_after_us
            && !pool.paused
            && env.activity == Activity::Active
            && env.stopping != Some(Shutdown::WaitForServers)
    }

    /// `pool_size`, and `reserve_pool_size` when the first waiter has waited long enough. A pool that never saw a server may
    /// open one regardless of its size: its clients could not even log in.
    fn has_room<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId) -> bool {
        let config = Arc::clone(&cx.env.rules.config);
        let pool = &self.pools[pool_id];
        let size = config.pool_size(&pool.config, &pool.user);
        let total = pool.servers_total();
        if size == 0 || total < size || (pool.greeting.is_none() && total == 0) {
            return true;
        }
        let reserve = config.reserve_pool_size(&pool.config, &pool.user);
        let timeout_us = duration_us(config.main.reserve_pool_timeout);
        if reserve == 0 || timeout_us == 0 || total >= size.saturating_add(reserve) {
            return false;
        }
        let Some((first, since_us)) = self.first_waiting(pool_id) else { return false };
        if cx.env.now.mono_us.saturating_sub(since_us) < timeout_us {
            return false;
        }
        let line =
            format!("{} taking connection from reserve_pool", self.client_log_name(&self.clients[first]));
        cx.log(Level::Log, &line);
        true
    }

    /// Counts a connection towards the limits that span pools. If one is reached, an idle server of another pool goes first
    /// (`evict`); it must be gone before this pool may have its place.
    pub(super) fn take_place<D: Driver>(&mut self, cx: &mut Cx<'_, D>, pool_id: PoolId, evict: bool) -> bool {
        let pool = &self.pools[pool_id];
        let (by_database, by_user) = (Arc::clone(&pool.database_counts), Arc::clone(&pool.user_counts));
        let of_database = Scarce::Database(Arc::clone(&pool.database));
        let of_user = Scarce::User(Arc::clone(&pool.user));
        let database_max = cx.env.rules.config.max_db_connections(&pool.config);
        let user_max = cx.env.rules.config.max_user_connections(&pool.user);
        let taken = by_database.servers.try_take(database_max)
            || evict && self.evict(cx, of_database) && by_database.servers.try_take(database_max);
        if !taken {
            return false;
        }
        let taken = by_user.servers.try_take(user_max)
            || evict && self.evict(cx, of_user) && by_user.servers.try_take(user_max);
        if !taken {
            by_database.servers.give_back();
        }
        taken
    }

    /// Closes the free server of this database, or user, that idled longest. If this worker has none, it asks the other
    /// workers, one after the other.
    fn evict<D: Driver>(&mut self, cx: &mut Cx<'_, D>, of: Scarce) -> bool {
        if self.evict_here(cx, &of) {
            return true;
        }
        if cx.env.shared.workers() > 1 && !self.asked_to_evict.contains(&of) {
            self.asked_to_evict.push(of.clone());
            self.pass_on(cx, Mail::Evict { from: cx.env.worker, of, done: false });
        }
        false
    }

    /// Another worker's pool needs a server, or a question of this worker came back. A worker that has a server to close
    /// answers; a worker that has none asks the next.
    pub(super) fn asked_to_evict<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        of: Scarce,
        done: bool,
    ) {
        if from == cx.env.worker {
            self.asked_to_evict.retain(|asked| *asked != of);
            if done {
                self.notice_starving();
            }
            return;
        }
        if self.evict_here(cx, &of) {
            return cx.driver.mail(from, Mail::Evict { from, of, done: true });
        }
        if !self.starving_workers.contains(&from) {
            self.starving_workers.push(from);
        }
        self.pass_on(cx, Mail::Evict { from, of, done: false });
    }

    fn pass_on<D: Driver>(&self, cx: &mut Cx<'_, D>, mail: Mail) {
        cx.driver.mail(WorkerId((cx.env.worker.0 + 1) % cx.env.shared.workers()), mail);
    }

    fn evict_here<D: Driver>(&mut self, cx: &mut Cx<'_, D>, of: &Scarce) -> bool {
        let concerns = |pool: &Pool| match of {
            Scarce::Database(name) => *name == pool.database,
            Scarce::User(name) => *name == pool.user,
        };
        let oldest = self
            .pools
            .values()
            .filter(|pool| concerns(pool))
            .flat_map(|pool| pool.idle.iter().copied())
            .min_by_key(|&id| self.servers.get(id).map_or(u64::MAX, |server| server.active_us));
        let Some(id) = oldest else { return false };
        self.close_server(cx, id, "evicted", CloseMode::Flush);
        true
    }

    /// The workers but this one.
    pub(super) fn other_workers(&self, env: &Env) -> impl Iterator<Item = WorkerId> + use<> {
        let own = env.worker;
        (0..env.shared.workers()).map(WorkerId).filter(move |&worker| worker != own)
    }

    /// Opens a connection that has taken its place before.
    pub(super) fn dial_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        pool_id: PoolId,
        only_for: Option<ClientId>,
    ) -> ServerId {
        let endpoint = self.next_endpoint(cx.env, pool_id);
        let conn = cx.driver.dial(&endpoint);
        let server = self.new_server(cx.env, conn, pool_id, endpoint, only_for);
        let id = self.servers.insert(server);
        self.pools[pool_id].list(id, None, Some(ServerKind::Login));
        cx.env.set_role(conn, Role::Server(id));
        id
    }

    pub(super) fn new_server(
        &self,
        env: &Env,
        conn: ConnId,
        pool: PoolId,
        endpoint: Endpoint,
        only_for: Option<ClientId>,
    ) -> Server {
        Server {
            conn,
            serial: env.shared.next_serial(),
            pool,
            state: ServerState::Dialing(Beginning { only_for }),
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
            inbox: Vec::new(),
            streaming: None,
            pipelined: Pipelined::default(),
            received_bytes: 0,
            paused_us: 0,
            reads_paused: false,
            resets: false,
            pid: 0,
            key: Box::default(),
            endpoint,
            remote: None,
            since: env.now,
            local: String::new(),
            tls: String::new(),
            query_us: 0,
            xact_us: 0,
            waited_us: 0,
            running: crate::stats::statements::Running::default(),
            recent: crate::stats::statements::Recent::default(),
            unseen: 0,
            followed: crate::stats::statements::Followed::default(),
            traced: None,
            stalled_us: 0,
            active_us: env.now.mono_us,
            used: false,
            cancels: 0,
            retire: None,
            said_fatal: false,
            changes_schema: false,
            makes_routines: false,
            replication: only_for.is_some(),
            lost: false,
        }
    }

    /// The host that is next, except those that failed just now. (Later: which nodes may serve this group of messages?)
    fn next_endpoint(&mut self, env: &Env, pool_id: PoolId) -> Endpoint {
        let retry_us = duration_us(env.rules.config.main.server_login_retry);
        let pool = &mut self.pools[pool_id];
        let count = pool.config.hosts.len();
        if count == 0 {
            return unix_endpoint(&env.rules.config.main.unix_socket_dir, pool.config.port);
        }
        let after = env.now.mono_us.saturating_sub(retry_us);
        pool.failed_hosts.retain(|(_, at_us)| *at_us > after);
        let turn = pool.next_host % count;
        let in_turn = || (turn..turn + count).map(|place| place % count);
        let place = in_turn().find(|&place| !pool.has_failed(&host_endpoint(pool, place))).unwrap_or(turn);
        if pool.config.load_balance_hosts.unwrap_or(LoadBalanceHosts::RoundRobin)
            == LoadBalanceHosts::RoundRobin
        {
            pool.next_host = (place + 1) % count;
        }
        host_endpoint(pool, place)
    }

    /// A connection could not be opened. Returns whether there is another host, of which no failure is known.
    ///
    /// With `load_balance_hosts=disable` the next host is preferred from now on: the list advances once, even if many
    /// connections to this host fail together.
    pub(super) fn host_failed(&mut self, env: &Env, pool_id: PoolId, endpoint: &Endpoint) -> bool {
        let now_us = env.now.mono_us;
        let pool = &mut self.pools[pool_id];
        let count = pool.config.hosts.len();
        if count < 2 {
            return false;
        }
        let turn = pool.next_host % count;
        if pool.config.load_balance_hosts == Some(LoadBalanceHosts::Disable)
            && host_endpoint(pool, turn) == *endpoint
        {
            pool.next_host = (turn + 1) % count;
        }
        pool.failed_hosts.retain(|(failed, _)| failed != endpoint);
        pool.failed_hosts.push((endpoint.clone(), now_us));
        (0..count).any(|place| !pool.has_failed(&host_endpoint(pool, place)))
    }

    /// The pool of a database and a server user, made if there is none; `None` if there is no such database.
    pub(super) fn pool_for<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        database: &Arc<str>,
        user: &Arc<str>,
    ) -> Option<PoolId> {
        let key = (Arc::clone(database), Arc::clone(user));
        if let Some(&id) = self.pool_names.get(&key) {
            return Some(id);
        }
        let config = Arc::new(cx.env.rules.config.database(database)?.into_owned());
        if !cx.env.rules.config.databases.contains_key(&**database) {
            cx.log(Level::Log, &format!("registered new auto-database: {database}"));
        }
        let counts = (cx.env.shared.database(database), cx.env.shared.user(user));
        let mut pool = Pool::new(Arc::clone(database), Arc::clone(user), config, counts, cx.env.now.mono_us);
        pool.paused = cx.env.shared.switches(database).paused;
        pool.follow(&cx.env.rules.config);
        let id = self.pools.insert(pool);
        self.pool_names.insert(key, id);
        Some(id)
    }

    /// Free servers of a pool.
    pub(super) fn idle_servers(&self, pool_id: PoolId) -> Vec<ServerId> {
        self.pools.get(pool_id).map(|pool| pool.idle.iter().copied().collect()).unwrap_or_default()
    }
}

/// No client has it, and none needs to leave before one gets it.
fn will_be_free(server: &Server) -> bool {
    let answers_us = matches!(server.state, ServerState::Inquiring(_) | ServerState::CheckingStartup(_));
    let kind = server.state.kind();
    // A server that is free already is of no use to the clients that wait: it would have been handed out.
    let is_nobodys = matches!(kind, ServerKind::Tested | ServerKind::BeingCanceled);
    (answers_us || is_nobodys) && server.retire.is_none()
}

/// The host at this place of a pool's list.
fn host_endpoint(pool: &Pool, place: usize) -> Endpoint {
    let (host, port) = (&pool.config.hosts[place], pool.config.port);
    if host.starts_with('/') || host.starts_with('@') {
        unix_endpoint(host, port)
    } else {
        Endpoint::Tcp { host: host.as_str().into(), port }
    }
}

/// PostgreSQL's socket in a directory, or with an abstract name.
pub(super) fn unix_endpoint(dir: &str, port: u16) -> Endpoint {
    let dir = if dir.is_empty() { "/tmp" } else { dir.trim_end_matches('/') };
    Endpoint::Unix { path: format!("{dir}/.s.PGSQL.{port}").into() }
}
