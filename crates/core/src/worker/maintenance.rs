//! Work that depends on time alone, done three times a second: timeouts, pool sizes, averages. The pools' part is in
//! `pool/maintenance.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use pgweir_settings::Config;
use pgweir_wire::error::SqlState;

use crate::context::Activity;
use crate::context::duration_us;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::errors::Fault;
use crate::ids::{CancelId, PoolId, ServerId, UnpooledId};
use crate::limits::{MAINTENANCE_PERIOD_US, STANDSTILL_US};
use crate::mail::Question;
use crate::stats::Window;
use crate::worker::Worker;
use crate::worker::login::inquiry::Obstacle;
use crate::worker::unpooled::{Asked, Unpooled, UnpooledState};

/// The schedule of the rounds.
pub(crate) struct Rounds {
    /// The time at which the next round is due (monotonic, µs).
    due_us: u64,
    /// The bytes that came during a standstill are handled before the next round.
    catches_up: bool,
}

impl Rounds {
    /// Returns a schedule whose first round is due at this time (monotonic, µs).
    pub(crate) fn from(now_us: u64) -> Self {
        Self { due_us: now_us, catches_up: false }
    }

    /// Returns whether a round begins now, and sets the time of the next one.
    ///
    /// No round begins right after a standstill of this process: clients and servers may have sent the awaited bytes long ago, or were
    /// waiting for pgweir, and would be found late. They get a moment, but only once: a worker that is always late still has its rounds.
    pub(crate) fn begin(&mut self, now_us: u64) -> bool {
        if now_us < self.due_us {
            return false;
        }
        let stood_still = now_us - self.due_us >= STANDSTILL_US;
        self.catches_up = stood_still && !self.catches_up;
        self.due_us = now_us + if self.catches_up { STANDSTILL_US } else { MAINTENANCE_PERIOD_US };
        !self.catches_up
    }

    /// Returns the time at which the next round is due (monotonic, µs).
    pub(crate) fn due_us(&self) -> u64 {
        self.due_us
    }
}

impl Worker {
    /// Carries out one round.
    pub(crate) fn maintain<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.activity != Activity::Suspended {
            self.login_timeouts(cx);
            self.for_pools(cx, |pool, cx| {
                pool.client_timeouts(cx);
                // After the clients: a client whose timeout ended just now leaves no server to drain.
                pool.abandon_drained(cx);
                pool.tend_abandoned(cx);
                pool.close_idle_sessions_fast(cx);
            });
        }
        self.for_pools(cx, |pool, cx| {
            pool.server_timeouts(cx);
            pool.suspect_slow_login(cx.env);
            pool.log_long_pins(cx);
            pool.cancel_timeouts(cx);
        });
        self.forward_timeouts(cx);
        self.follow_clusters(cx);
        self.follow_databases(cx);
        let pools: Vec<PoolId> = self.pools.keys().collect();
        for id in pools {
            self.in_pool(cx, id, |pool, cx| pool.look_after(cx));
            if self.pools.get(id).is_some_and(|pool| pool.is_unused(cx)) {
                self.drop_pool(cx, id, "obsolete connection");
            }
        }
        self.keep_forced_pools(cx);
        cx.env.give_up_unasked();
        self.tell_limits_seen(cx);
        if cx.env.now.mono_us >= self.stats_us {
            self.end_stats_period(cx);
        }
    }

    /// Ends clients that take too long to log in.
    fn login_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let late: Vec<(UnpooledId, Fault)> = self
            .unpooled
            .iter()
            .filter_map(|(id, client)| Some((id, self.login_overdue(cx.env, client)?)))
            .collect();
        for (id, fault) in late {
            self.refuse_unpooled(cx, id, &fault);
        }
    }

    fn login_overdue(&self, env: &Env, client: &Unpooled) -> Option<Fault> {
        let answer = match &client.state {
            UnpooledState::Console(_) | UnpooledState::Cancelling(_) | UnpooledState::Refused(_) => {
                return None;
            }
            UnpooledState::AwaitingAnswer(waiting) => self.lookup_overdue(env, &waiting.asked),
            UnpooledState::Greeting(_) | UnpooledState::Authenticating(_) | UnpooledState::Proven(_) => None,
        };
        let limit = env.rules.config.main.client_login_timeout;
        let over = !limit.is_zero() && is_over(env, Some(limit), client.origin.since.mono_us);
        answer
            .or_else(|| over.then_some(Fault::Timeout("client_login_timeout", SqlState::PROTOCOL_VIOLATION)))
    }

    /// Returns the error for a login that has waited too long for `auth_query`. Such a login waits for a server as a client of that pool
    /// does, but is not told the reason why there is no server.
    fn lookup_overdue(&self, env: &Env, asked: &Asked) -> Option<Fault> {
        let Asked::Secret { pool: (database, user), since_us, .. } = asked else { return None };
        let config = &env.rules.config;
        let limit = config.query_wait_timeout(&*config.database(database)?, user);
        is_over(env, limit, *since_us)
            .then_some(Fault::Timeout("query_wait_timeout", SqlState::CANNOT_CONNECT_NOW))
    }

    /// Ends cancel requests that have been on their way to peers, or have waited, for too long.
    fn forward_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let main = &cx.env.rules.config.main;
        let (connect, wait) = (main.server_connect_timeout, main.cancel_wait_timeout);
        let now_us = cx.env.now.mono_us;
        let over = move |limit: Duration, start_us: u64| {
            !limit.is_zero() && now_us.saturating_sub(start_us) >= duration_us(limit)
        };
        self.peer_timeouts(cx, |start_us| over(connect, start_us), |start_us| over(wait, start_us));
    }

    /// Creates the pools of databases with a forced user and `min_pool_size`, which exist even without any client. One worker is
    /// responsible for each.
    fn keep_forced_pools<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = std::sync::Arc::clone(&cx.env.rules.config);
        for (name, database) in &config.databases {
            let Some(user) = &database.user else { continue };
            if config.keeps_pool(database, user) && cx.env.shared.owner(name, user) == cx.env.worker {
                self.pool_for(cx, &name.as_str().into(), &user.as_str().into());
            }
        }
    }

    /// Closes a pool's connections and forgets the pool. Its clients must be gone.
    pub(crate) fn drop_pool<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId, reason: &str) {
        self.in_pool(cx, id, |pool, cx| {
            pool.end_waiting_cancels(cx);
            pool.refuse_lookups(cx, Obstacle::Misconfigured);
            let servers: Vec<ServerId> = pool.servers.keys().collect();
            for server in servers {
                pool.close_server(cx, server, reason, CloseMode::Flush);
            }
            let cancels: Vec<CancelId> = pool.cancels.keys().collect();
            for cancel in cancels {
                pool.end_cancel(cx, cancel, "database removed");
            }
        });
        if let Some(pool) = self.pools.remove(id) {
            debug_assert!(pool.clients.is_empty(), "a pool with clients was dropped");
            let pool = pool.state;
            self.clusters.keep_counters(&pool);
            cx.env.measured.stats.forget_pool(id);
            cx.env.watched.forget_pool(id);
            cx.env.closing.forget_pool(id);
            cx.env.cache.iter_mut().for_each(|cache| cache.store.forget_pool(id));
            cx.env.shared.forget_owner(&pool.database, &pool.user);
            self.pool_names.remove(&(pool.database, pool.user));
        }
    }

    fn end_stats_period<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.stats_us = cx.env.now.mono_us + stats_period_us(&cx.env.rules.config);
        let log = cx.env.rules.config.main.log_stats;
        let mut sum = Window::default();
        for pool in self.pools.values_mut() {
            sum = sum.plus(&pool.state.numbers.end_period(cx.env.now.mono_us));
        }
        if log {
            cx.driver.ask(Question::PeriodOver(sum));
        }
    }
}

/// Whether a limit is reached, counted from `start_us` (monotonic, µs); `None` is no limit.
pub(crate) fn is_over(env: &Env, limit: Option<Duration>, start_us: u64) -> bool {
    let passed = Duration::from_micros(env.now.mono_us.saturating_sub(start_us));
    limit.is_some_and(|limit| passed >= limit)
}

/// The length of the period after which averages are computed again.
pub(crate) fn stats_period_us(config: &Config) -> u64 {
    duration_us(config.main.stats_period).max(1_000_000)
}

/// Takes the concerned entries out of a queue, in its order.
pub(crate) fn take_out<T>(queue: &mut VecDeque<T>, is_concerned: impl Fn(&T) -> bool) -> Vec<T> {
    if !queue.iter().any(&is_concerned) {
        return Vec::new();
    }
    let (out, rest): (VecDeque<T>, VecDeque<T>) = std::mem::take(queue).into_iter().partition(is_concerned);
    *queue = rest;
    out.into()
}
