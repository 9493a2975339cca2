//! The control plane's view of this worker. Everything here reads; only the state that was shown last is remembered.

use std::sync::Arc;

use crate::context::Env;
use crate::pool::Gate;
use crate::pool::client::state::ClientState;
use crate::pool::{Pool, ServerKind};
use crate::stats::snapshot::{ClientNumbers, ConnectFailure, MultiplexNumbers, PoolSnapshot, ServerNumbers};
use crate::worker::unpooled::UnpooledState;

impl Pool {
    /// Returns the numbers of this pool.
    pub(crate) fn show_pool(&mut self, env: &Env) -> PoolSnapshot {
        let idle_in_transaction = self.servers.values().filter(|server| server.is_idle_in_transaction());
        let idle_in_transaction = count(idle_in_transaction.count());
        let used = self.long_idle_servers(env);
        let wait_oldest_us = self.wait_oldest_us(env);
        let cancels_sent = self.cancels.len();
        let clients = count(self.clients.len());
        let cache = self.cache_numbers(env);
        let pool = &mut self.state;
        let awaiting = pool.at_login();
        let busy = pool.waiting() + awaiting + pool.count.linked + pool.count.queued_behind;
        let has_more = pool.numbers.shown_queries != Some(pool.numbers.stats.queries);
        pool.numbers.shown_queries = Some(pool.numbers.stats.queries);
        PoolSnapshot {
            database: Arc::clone(&pool.database),
            user: Arc::clone(&pool.user),
            mode: pool.policy.mode,
            paused: pool.gate == Gate::Paused,
            // `pool_size` holds for each node.
            size: env
                .rules
                .config
                .pool_size(&pool.config, &pool.user)
                .saturating_mul(count(pool.nodes().filter(|node| node.servers_total() > 0).count().max(1))),
            clients: ClientNumbers {
                linked: pool.count.linked,
                pinned: pool.count.pinned,
                idle_in_transaction,
                queued_behind: pool.count.queued_behind,
                // A client for which `auth_query` has still to ask is no client of the pool yet, but waits for it.
                waiting: pool.waiting()
                    + pool.count.queued_behind
                    + awaiting
                    + count(pool.queue.lookups.len()),
                idle: clients.saturating_sub(busy),
                cancels_sent: count(cancels_sent),
                cancels_waiting: count(pool.queue.cancels.len()),
            },
            servers: ServerNumbers {
                active: pool.servers(ServerKind::Active),
                active_cancel: count(cancels_sent),
                being_canceled: pool.servers(ServerKind::BeingCanceled),
                idle: pool.servers(ServerKind::Idle).saturating_sub(used),
                used,
                tested: pool.servers(ServerKind::Tested),
                login: pool.servers(ServerKind::Login),
            },
            multiplexing: MultiplexNumbers {
                target: pool.node.pace.target(env.rules.config.main.multiplex_servers),
                busy: count(pool.nodes().map(|node| node.short.len()).sum()),
                decisions: pool.node.pace.decisions(),
                multiplexed: pool.numbers.multiplexing.multiplexed,
                requeued: pool.numbers.multiplexing.requeued,
                violations: pool.numbers.multiplexing.violations,
            },
            cache,
            continuity: pool.numbers.continuity,
            wait_oldest_us,
            stats: pool.numbers.stats,
            errors: pool.numbers.errors,
            times: pool.numbers.times.as_ref().filter(|_| has_more).cloned(),
            failure: pool.failure().map(|failure| {
                let retry_us = crate::context::duration_us(env.rules.config.main.server_login_retry);
                let next_us = failure.at_us.saturating_add(retry_us).max(pool.node.dial_after_us);
                ConnectFailure {
                    text: failure.text.clone(),
                    retry_in_us: next_us.saturating_sub(env.now.mono_us),
                }
            }),
        }
    }

    /// Returns the number of servers that are free for longer than `server_check_delay`.
    pub(crate) fn long_idle_servers(&self, env: &Env) -> u32 {
        let idle =
            self.state.nodes().flat_map(|node| &node.idle).filter_map(|&server| self.servers.get(server));
        count(idle.filter(|server| self.is_long_idle(env, server)).count())
    }

    /// Returns the time (µs) for which the client that waits longest has waited.
    pub(crate) fn wait_oldest_us(&self, env: &Env) -> u64 {
        let pool = &self.state;
        let queued = pool.branches().filter_map(|branch| Some(self.first_waiting(branch)?.1));
        let awaiting = pool.nodes().filter_map(|node| node.awaiting.first());
        let at_login = awaiting.chain(pool.queue.replicating.front());
        let at_login = at_login.filter_map(|&id| Some(self.clients.get(id)?.account.request.since_us));
        let behind = pool
            .nodes()
            .flat_map(|node| &node.short)
            .filter_map(|&id| self.servers.get(id))
            .flat_map(|server| server.pipelined.behind());
        let behind = behind.filter_map(|queued| {
            let client = self.clients.get(queued.client)?;
            matches!(client.state, ClientState::QueuedBehind(_)).then_some(client.account.request.since_us)
        });
        let since_us = queued.chain(at_login).chain(behind).min();
        since_us.map_or(0, |since_us| env.now.mono_us.saturating_sub(since_us))
    }
}

/// Returns a client's state as SHOW CLIENTS names it.
pub(crate) fn shown_state(state: &ClientState) -> &'static str {
    match state {
        ClientState::Linked(_) => "active",
        // Waiting for a pool's first server is waiting, too, and so is waiting for the turn on one.
        ClientState::Waiting(_) | ClientState::QueuedBehind(_) | ClientState::AwaitingServer(_) => "waiting",
        ClientState::Idle
        | ClientState::Ignoring
        | ClientState::DeferredBegin(_)
        | ClientState::RolledBack(_) => "idle",
    }
}

/// Returns the state of a client that is in no pool as SHOW CLIENTS names it.
pub(crate) fn unpooled_state(state: &UnpooledState) -> &'static str {
    match state {
        UnpooledState::Cancelling(_) => "active_cancel_req",
        UnpooledState::Console(_) => "idle",
        _ => "cl_login",
    }
}

pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
