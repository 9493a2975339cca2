//! Work that depends on time alone, done three times a second: timeouts of clients and servers, pool sizes, averages.

use std::collections::VecDeque;
use std::time::Duration;

use pgweir_settings::Config;
use pgweir_wire::backend::TxStatus;
use pgweir_wire::error::SqlState;

use super::{Activity, WaitingCancel, Worker, duration_us};
use crate::client::{Account, Asked, Client, ClientState, Opening, QueuedBehind, Waiting};
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::ids::{CancelId, ClientId, PoolId, ServerId};
use crate::inquiry::Obstacle;
use crate::limits::{MAINTENANCE_PERIOD_US, STANDSTILL_US};
use crate::mail::Question;
use crate::pool::ServerKind;
use crate::server::ServerState;
use crate::stats::Window;

/// When the next round is due.
pub(super) struct Rounds {
    /// Monotonic, µs.
    due_us: u64,
    /// The bytes that came during a standstill are handled before the next round.
    catches_up: bool,
}

impl Rounds {
    /// The first is due at this time (monotonic, µs).
    pub(super) fn from(now_us: u64) -> Self {
        Self { due_us: now_us, catches_up: false }
    }

    /// Whether one begins now.
    ///
    /// Not when this process stood still: clients and servers may have sent the awaited bytes long ago, or were waiting for
    /// us, and would be found late. They get a moment, once: a worker that is always late still has its rounds.
    pub(super) fn begin(&mut self, now_us: u64) -> bool {
        if now_us < self.due_us {
            return false;
        }
        let stood_still = now_us - self.due_us >= STANDSTILL_US;
        self.catches_up = stood_still && !self.catches_up;
        self.due_us = now_us + if self.catches_up { STANDSTILL_US } else { MAINTENANCE_PERIOD_US };
        !self.catches_up
    }

    /// Monotonic, µs.
    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }
}

impl Worker {
    /// One round.
    pub(super) fn maintain<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.activity != Activity::Suspended {
            self.client_timeouts(cx);
            // After the clients: a client whose timeout ended just now leaves no server to drain.
            self.close_drained(cx);
            self.close_idle_sessions_fast(cx);
        }
        self.server_timeouts(cx);
        self.log_long_pins(cx);
        self.cancel_timeouts(cx);
        let pools: Vec<PoolId> = self.pools.keys().collect();
        for id in pools {
            self.look_after(cx, id);
        }
        self.keep_forced_pools(cx);
        if cx.env.now.mono_us >= self.stats_us {
            self.end_stats_period(cx);
        }
    }

    fn client_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let late: Vec<(ClientId, Fault)> = self
            .clients
            .iter()
            .filter_map(|(id, client)| {
                let fault = self.client_overdue(cx.env, id)?;
                // A client that still reads its answer is not idle.
                let idle =
                    matches!(fault, Fault::Timeout("client_idle_timeout" | "idle transaction timeout", _));
                (!idle || cx.driver.backlog(client.conn) == 0).then_some((id, fault))
            })
            .collect();
        for (id, fault) in late {
            self.refuse_client(cx, id, &fault);
        }
        let notify_us = duration_us(cx.env.rules.config.main.query_wait_notify);
        if notify_us > 0 {
            let waited = |since_us: u64| cx.env.now.mono_us.saturating_sub(since_us) > notify_us;
            let told: Vec<ClientId> = self
                .clients
                .iter()
                .filter(|(_, client)| match &client.state {
                    ClientState::Waiting(waiting) => !waiting.notified && waited(waiting.since_us),
                    ClientState::QueuedBehind(queued_behind) => {
                        !queued_behind.notified && waited(queued_behind.since_us)
                    }
                    _ => false,
                })
                .map(|(id, _)| id)
                .collect();
            for id in told {
                self.notify_waiter(cx, id);
            }
        }
    }

    /// Which timeout a client has exceeded.
    fn client_overdue(&self, env: &Env, id: ClientId) -> Option<Fault> {
        let client = self.clients.get(id)?;
        let config = &env.rules.config;
        let over = |limit, start_us| self.is_over(env, limit, start_us);
        match &client.state {
            ClientState::AwaitingServer(_) => {
                let account = client.account.as_deref()?;
                let overdue = self.wait_overdue(env, account, account.request_us);
                overdue.or_else(|| self.login_overdue(env, client, Some(account)))
            }
            ClientState::AwaitingAnswer(waiting) => {
                self.lookup_overdue(env, &waiting.asked).or_else(|| self.login_overdue(env, client, None))
            }
            ClientState::Greeting(_) | ClientState::Authenticating(_) | ClientState::HandingOver(_) => {
                self.login_overdue(env, client, None)
            }
            ClientState::DeferredBegin(deferred) => {
                let account = client.account.as_deref()?;
                let user = &self.pools[account.pool].user;
                let code = SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
                over(config.idle_transaction_timeout(user), deferred.since_us.max(account.active_us))
                    .then_some(Fault::Timeout("idle transaction timeout", code))
            }
            ClientState::Idle | ClientState::Ignoring => {
                let account = client.account.as_deref()?;
                over(config.client_idle_timeout(&account.user), account.active_us)
                    .then_some(Fault::Timeout("client_idle_timeout", SqlState::IDLE_SESSION_TIMEOUT))
            }
            ClientState::Waiting(Waiting { since_us, .. })
            | ClientState::QueuedBehind(QueuedBehind { since_us, .. }) => {
                self.wait_overdue(env, client.account.as_deref()?, *since_us)
            }
            ClientState::Linked(link) => {
                let server = self.servers.get(link.server).filter(|server| !server.replication)?;
                let user = &self.pools[server.pool].user;
                if server.query_us > 0 && over(config.query_timeout(user), server.query_us) {
                    return Some(Fault::Timeout("query timeout", SqlState::QUERY_CANCELED));
                }
                // A message that does not end holds the server as an open transaction does, and so does a BEGIN.
                let held = server.tx != TxStatus::Idle
                    || link.streaming > 0
                    || matches!(link.opening, Opening::Unsent(_));
                let idle_in_xact = held && server.ledger.is_empty();
                if idle_in_xact && over(config.idle_transaction_timeout(user), server.active_us) {
                    let code = SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
                    return Some(Fault::Timeout("idle transaction timeout", code));
                }
                (server.xact_us > 0 && over(config.transaction_timeout(user), server.xact_us))
                    .then_some(Fault::Timeout("transaction timeout", SqlState::TRANSACTION_TIMEOUT))
            }
            ClientState::Console(_) | ClientState::Cancelling => None,
        }
    }

    /// The limits for a client that has waited for a server since this time, also for its pool's first one.
    fn wait_overdue(&self, env: &Env, account: &Account, since_us: u64) -> Option<Fault> {
        let (config, pool) = (&env.rules.config, &self.pools[account.pool]);
        let failure = || self.failure_while_waiting(env, account.pool, since_us);
        if self.is_over(env, config.query_wait_timeout(&pool.config, &account.user), since_us) {
            return Some(Fault::Unserved("query_wait_timeout", SqlState::CANNOT_CONNECT_NOW, failure()));
        }
        self.is_over(env, config.query_timeout(&pool.user), account.request_us)
            .then(|| Fault::Unserved("query_timeout", SqlState::QUERY_CANCELED, failure()))
    }

    /// `client_login_timeout`. `account`: the client is proven, and only its pool keeps it waiting.
    fn login_overdue(&self, env: &Env, client: &Client, account: Option<&Account>) -> Option<Fault> {
        let limit = env.rules.config.main.client_login_timeout;
        if limit.is_zero() || !self.is_over(env, Some(limit), client.origin.since.mono_us) {
            return None;
        }
        let code = SqlState::CONNECTION_FAILURE;
        Some(match account {
            Some(account) => {
                let failure = self.failure_while_waiting(env, account.pool, account.request_us);
                Fault::Unserved("client_login_timeout (server down)", code, failure)
            }
            None => Fault::Timeout("client_login_timeout", code),
        })
    }

    /// A login that waits for `auth_query` waits for a server as a client of that pool does. It is not told the reason why
    /// there is no server.
    fn lookup_overdue(&self, env: &Env, asked: &Asked) -> Option<Fault> {
        let Asked::Secret { pool: (database, user), since_us, .. } = asked else { return None };
        let config = &env.rules.config;
        let limit = config.query_wait_timeout(&*config.database(database)?, user);
        self.is_over(env, limit, *since_us)
            .then_some(Fault::Timeout("query_wait_timeout", SqlState::CANNOT_CONNECT_NOW))
    }

    /// The error that kept the pool from opening a server while a client waited since this time.
    fn failure_while_waiting(&self, env: &Env, pool_id: PoolId, since_us: u64) -> Option<String> {
        let failure = self.pools[pool_id].failure.as_ref()?;
        let retry_us = duration_us(env.rules.config.main.server_login_retry);
        (failure.at_us.saturating_add(retry_us) >= since_us).then(|| failure.text.clone())
    }

    fn is_over(&self, env: &Env, limit: Option<Duration>, start_us: u64) -> bool {
        let passed = Duration::from_micros(env.now.mono_us.saturating_sub(start_us));
        limit.is_some_and(|limit| passed >= limit)
    }

    fn server_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let limit_us = duration_us(cx.env.rules.config.main.server_connect_timeout);
        if limit_us == 0 {
            return;
        }
        let overdue = |start_us: u64| cx.env.now.mono_us.saturating_sub(start_us) >= limit_us;
        let late: Vec<(ServerId, bool)> = self
            .servers
            .iter()
            .filter_map(|(id, server)| match &server.state {
                ServerState::Dialing(_) | ServerState::SecuringTls(_) | ServerState::LoggingIn(_) => {
                    overdue(server.since.mono_us).then_some((id, true))
                }
                state if state.at_login().is_some() => overdue(server.since.mono_us).then_some((id, false)),
                // A check that is not answered is the failure that it looks for; a reset, or a SET, is no work either.
                ServerState::Checking
                | ServerState::Cleaning
                | ServerState::ConnectQuery(_)
                | ServerState::Learning(_)
                | ServerState::Settling(_)
                | ServerState::Inquiring(_)
                | ServerState::Auditing(_)
                | ServerState::VerifyingSession(_)
                | ServerState::Reading(_)
                | ServerState::CheckingStartup(_)
                | ServerState::Listening
                    if !server.ledger.is_empty() =>
                {
                    overdue(server.active_us).then_some((id, false))
                }
                _ => None,
            })
            .collect();
        for (id, logging_in) in late {
            if logging_in {
                self.login_failed(cx, id, "connect timeout", "the server did not answer in time");
            } else {
                self.lose_server(cx, id, "a hidden statement was not answered in time".into());
            }
        }
    }

    fn cancel_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let main = &cx.env.rules.config.main;
        let (connect_us, wait_us) =
            (duration_us(main.server_connect_timeout), duration_us(main.cancel_wait_timeout));
        let now_us = cx.env.now.mono_us;
        let over =
            move |limit_us: u64, start_us: u64| limit_us > 0 && now_us.saturating_sub(start_us) >= limit_us;
        let (is_stuck, is_tired) =
            (|start_us: u64| over(connect_us, start_us), |start_us: u64| over(wait_us, start_us));
        let stuck: Vec<CancelId> =
            self.cancels.iter().filter(|(_, cancel)| is_stuck(cancel.since_us)).map(|(id, _)| id).collect();
        for id in stuck {
            self.abandon_cancel(cx, id);
        }
        let pools = self.pools.values_mut();
        let tired: Vec<WaitingCancel> = pools
            .flat_map(|pool| take_out(&mut pool.waiting_cancels, |waiting| is_tired(waiting.since_us)))
            .collect();
        for requester in tired.into_iter().filter_map(|waiting| waiting.requester) {
            self.remove_client(cx, requester, "cancel_wait_timeout", CloseMode::Flush);
        }
        self.peer_timeouts(cx, is_stuck, is_tired);
    }

    /// A pool's free servers: too old, too long unused, too many, too few. And waiters, for which a reserve or retry may be
    /// due.
    fn look_after<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        self.close_unfit(cx, id);
        self.close_surplus(cx, id);
        self.keep_minimum(cx, id);
        self.tend_notify_listener(cx, id);
        if self.pools[id].is_starving() {
            self.notice(id);
        }
        self.drop_unused(cx, id);
    }

    fn close_unfit<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        let idle_us = duration_us(cx.env.rules.config.main.server_idle_timeout);
        for server_id in self.idle_servers(id) {
            if let Some(reason) = self.reason_to_close(cx.env, server_id) {
                self.close_server(cx, server_id, reason, CloseMode::Flush);
                continue;
            }
            let Some(server) = self.servers.get(server_id) else { continue };
            let unused_us = cx.env.now.mono_us.saturating_sub(server.active_us);
            let pool = &self.pools[id];
            let min = cx.env.rules.config.min_pool_size(&pool.config);
            if idle_us > 0 && unused_us >= idle_us && pool.servers_total() > min {
                self.close_server(cx, server_id, "server idle timeout", CloseMode::Flush);
            }
        }
    }

    fn close_surplus<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        let pool = &self.pools[id];
        let size = cx.env.rules.config.pool_size(&pool.config, &pool.user);
        let reserve = cx.env.rules.config.reserve_pool_size(&pool.config, &pool.user);
        if size == 0 {
            return;
        }
        let surplus = pool.servers_total().saturating_sub(size.saturating_add(reserve)) as usize;
        for server_id in self.idle_servers(id).into_iter().take(surplus) {
            self.close_server(cx, server_id, "too many servers in the pool", CloseMode::Flush);
        }
    }

    /// `min_pool_size`: while a client uses the pool, or always if the database has a forced user.
    fn keep_minimum<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        let config = std::sync::Arc::clone(&cx.env.rules.config);
        let pool = &self.pools[id];
        let min = config.min_pool_size(&pool.config);
        let size = config.pool_size(&pool.config, &pool.user);
        let wanted = if size == 0 { min } else { min.min(size) };
        if pool.clients == 0 && pool.config.user.is_none() {
            return;
        }
        while self.pools[id].servers_total() < wanted
            && self.may_dial(cx.env, id)
            && self.pools[id].servers(ServerKind::Login) < config.main.max_parallel_connects.max(1)
            && self.take_place(cx, id, false)
        {
            self.dial_server(cx, id, None);
        }
    }

    /// Databases with a forced user and `min_pool_size` have their pool without any client. One worker sees to each.
    fn keep_forced_pools<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = std::sync::Arc::clone(&cx.env.rules.config);
        for (name, database) in &config.databases {
            let Some(user) = &database.user else { continue };
            if config.min_pool_size(database) > 0 && cx.env.shared.owner(name, user) == cx.env.worker {
                self.pool_for(cx, &name.as_str().into(), &user.as_str().into());
            }
        }
    }

    /// `pool_idle_timeout`, `autodb_idle_timeout`, and pools of databases that are no longer configured.
    fn drop_unused<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        let config = &cx.env.rules.config;
        let pool = &self.pools[id];
        if pool.clients > 0
            || !pool.lookups.is_empty()
            || pool.cancels > 0
            || !pool.waiting_cancels.is_empty()
        {
            return;
        }
        let unused = Duration::from_micros(cx.env.now.mono_us.saturating_sub(pool.empty_us));
        let automatic = !config.databases.contains_key(&*pool.database);
        let unknown = config.database(&pool.database).is_none();
        let limit = |limit: Duration| !limit.is_zero() && unused >= limit;
        let pool_is_idle = pool.servers_total() == 0 && limit(config.main.pool_idle_timeout);
        // A pool that is asked by logins (`auth_query`) may have no client ever.
        let is_asked = pool.servers(ServerKind::Active) > 0;
        let database_is_idle = automatic && !is_asked && limit(config.main.autodb_idle_timeout);
        // If `auth_query` runs in the client's own database, it is asked for any name that a stranger makes up.
        let never_served = pool.servers_total() == 0 && pool.greeting.is_none();
        let is_made_up = automatic && never_served && unused >= config.main.server_login_retry;
        if !unknown && !pool_is_idle && !database_is_idle && !is_made_up {
            return;
        }
        if pool_is_idle && !unknown {
            let line = format!("cleaning up idle pool {}/{}", pool.database, pool.user);
            cx.log(Level::Log, &line);
        } else if automatic {
            let line = format!(
                "dropping database '{}' as it does not exist anymore or inactive auto-database",
                pool.database
            );
            cx.log(Level::Log, &line);
        }
        self.drop_pool(cx, id, "obsolete connection");
    }

    /// Closes a pool's connections and forgets the pool. Its clients must be gone.
    pub(super) fn drop_pool<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId, reason: &str) {
        self.end_waiting_cancels(cx, id);
        self.refuse_lookups(cx, id, Obstacle::Misconfigured);
        let servers: Vec<ServerId> =
            self.servers.iter().filter(|(_, server)| server.pool == id).map(|(server, _)| server).collect();
        for server in servers {
            self.close_server(cx, server, reason, CloseMode::Flush);
        }
        let cancels: Vec<CancelId> =
            self.cancels.iter().filter(|(_, cancel)| cancel.pool == id).map(|(cancel, _)| cancel).collect();
        for cancel in cancels {
            self.end_cancel(cx, cancel, "database removed");
        }
        if let Some(pool) = self.pools.remove(id) {
            debug_assert_eq!(pool.clients, 0, "a pool with clients was dropped");
            cx.env.measured.forget_pool(id);
            cx.env.watched.forget_pool(id);
            cx.env.shared.forget_owner(&pool.database, &pool.user);
            self.pool_names.remove(&(pool.database, pool.user));
        }
    }

    fn end_stats_period<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.stats_us = cx.env.now.mono_us + stats_period_us(&cx.env.rules.config);
        let log = cx.env.rules.config.main.log_stats;
        let mut sum = Window::default();
        for pool in self.pools.values_mut() {
            sum = sum.plus(&pool.end_period(cx.env.now.mono_us));
        }
        if log {
            cx.driver.ask(Question::PeriodOver(sum));
        }
    }
}

/// The length of the period after which averages are computed again.
pub(super) fn stats_period_us(config: &Config) -> u64 {
    duration_us(config.main.stats_period).max(1_000_000)
}

/// Takes the concerned entries out of a queue, in its order.
pub(super) fn take_out<T>(queue: &mut VecDeque<T>, is_concerned: impl Fn(&T) -> bool) -> Vec<T> {
    if !queue.iter().any(&is_concerned) {
        return Vec::new();
    }
    let (out, rest): (VecDeque<T>, VecDeque<T>) = std::mem::take(queue).into_iter().partition(is_concerned);
    *queue = rest;
    out.into()
}
