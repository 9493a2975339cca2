//! The control plane's view of this worker. Everything here reads; only the state that was shown last is remembered.

use std::collections::HashMap;
use std::sync::Arc;

use pgweir_wire::backend::ErrorFields;

use super::{Activity, Worker};
use crate::client::ClientState;
use crate::console;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::limits::{APPLICATION_NAMES_SHOWN_MAX, POOLS_SHOWN_MAX};
use crate::mail::Question;
use crate::pool::{Pool, ServerKind};
use crate::snapshot::{
    ClientCount, ClientNumbers, ConnectFailure, MultiplexNumbers, PoolSnapshot, ServerNumbers, Snapshot,
    SnapshotRequest, WorkerSnapshot,
};
use crate::unpooled::UnpooledState;

/// The fields that clients of one count have in common: database, user, application_name, state.
type Alike<'a> = (&'a str, &'a str, &'a [u8], &'static str);

impl Worker {
    /// Answers a look of the control plane.
    pub(crate) fn look<D: Driver>(&mut self, cx: &mut Cx<'_, D>, ticket: u64, look: &SnapshotRequest) {
        let snapshot = match *look {
            SnapshotRequest::Pools { skip, limit } => {
                self.show_pools(cx.env, skip, limit.min(POOLS_SHOWN_MAX))
            }
            SnapshotRequest::ClientCounts => Snapshot::ClientCounts(self.count_clients(cx.env)),
            SnapshotRequest::Statements => Snapshot::Statements {
                top: self.top_statements(cx.env),
                slow: cx.env.slow.iter().cloned().collect(),
            },
        };
        cx.driver.ask(Question::Seen { worker: cx.env.worker, ticket, snapshot });
    }

    fn show_pools(&mut self, env: &Env, skip: usize, limit: usize) -> Snapshot {
        let more = self.pools.len() > skip.saturating_add(limit);
        let pools = self.pools.values_mut().skip(skip).take(limit).map(|pool| pool.show_pool(env)).collect();
        let worker = (skip == 0).then(|| Box::new(self.show_worker(env)));
        Snapshot::Pools { worker, pools, more }
    }

    fn show_worker(&self, env: &Env) -> WorkerSnapshot {
        let consoles = count(self.unpooled.values().filter(|client| client.console().is_some()).count());
        let logging_in = count(self.unpooled.len()) - consoles;
        WorkerSnapshot {
            counters: env.counters.clone(),
            consoles,
            logging_in,
            paused: env.activity == Activity::Paused,
            suspended: env.activity == Activity::Suspended,
            stopping: env.stopping,
            prepared_statements: u32::try_from(env.statements.len()).unwrap_or(u32::MAX),
            followed: env.measured.numbers(),
        }
    }
}

impl Worker {
    fn count_clients(&self, env: &Env) -> Vec<ClientCount> {
        let position = env.tracked.position(b"application_name");
        let mut counts: HashMap<Alike<'_>, u32> = HashMap::new();
        let consoles = self.unpooled.values().filter_map(|client| client.console());
        let consoles = consoles.map(|console| (console::DATABASE, console.user(), &b""[..], "idle"));
        let pooled = self.pools.values().flat_map(|pool| {
            pool.clients.values().map(move |client| {
                let application = position.and_then(|position| client.account.params.get(position));
                let state = shown_state(&client.state);
                (&*pool.state.database, &*client.account.user, application.unwrap_or_default(), state)
            })
        });
        for key in pooled.chain(consoles) {
            // A client chooses its application_name: there are as many as clients want, but not here.
            let key = if counts.len() >= APPLICATION_NAMES_SHOWN_MAX && !counts.contains_key(&key) {
                (key.0, key.1, &b"(other)"[..], key.3)
            } else {
                key
            };
            *counts.entry(key).or_default() += 1;
        }
        let counted = counts.into_iter().map(|((database, user, application, state), count)| ClientCount {
            database: database.into(),
            user: user.into(),
            application_name: String::from_utf8_lossy(application).into_owned(),
            state,
            count,
        });
        counted.collect()
    }
}

impl Pool {
    fn show_pool(&mut self, env: &Env) -> PoolSnapshot {
        let idle_in_transaction = self.servers.values().filter(|server| server.is_idle_in_transaction());
        let idle_in_transaction = count(idle_in_transaction.count());
        let used = self.long_idle_servers(env);
        let wait_oldest_us = self.wait_oldest_us(env);
        let cancels_sent = self.cancels.len();
        let pool = &mut self.state;
        let awaiting = count(pool.at_login());
        let busy = pool.waiting + awaiting + pool.linked + pool.queued_behind;
        let has_more = pool.shown_queries != Some(pool.stats.queries);
        pool.shown_queries = Some(pool.stats.queries);
        PoolSnapshot {
            database: Arc::clone(&pool.database),
            user: Arc::clone(&pool.user),
            mode: pool.mode,
            paused: pool.paused,
            size: env.rules.config.pool_size(&pool.config, &pool.user),
            clients: ClientNumbers {
                linked: pool.linked,
                pinned: pool.pinned,
                idle_in_transaction,
                queued_behind: pool.queued_behind,
                // A client for which `auth_query` has still to ask is no client of the pool yet, but waits for it.
                waiting: pool.waiting + pool.queued_behind + awaiting + count(pool.lookups.len()),
                idle: pool.clients.saturating_sub(busy),
                cancels_sent: count(cancels_sent),
                cancels_waiting: count(pool.waiting_cancels.len()),
            },
            servers: ServerNumbers {
                active: pool.servers(ServerKind::Active),
                active_cancel: pool.cancels,
                being_canceled: pool.servers(ServerKind::BeingCanceled),
                idle: pool.servers(ServerKind::Idle).saturating_sub(used),
                used,
                tested: pool.servers(ServerKind::Tested),
                login: pool.servers(ServerKind::Login),
            },
            multiplexing: MultiplexNumbers {
                target: pool.pace.target(env.rules.config.main.multiplex_servers),
                busy: count(pool.short.len()),
                decisions: pool.pace.decisions(),
                multiplexed: pool.multiplexing.multiplexed,
                requeued: pool.multiplexing.requeued,
                violations: pool.multiplexing.violations,
            },
            continuity: pool.continuity,
            wait_oldest_us,
            stats: pool.stats,
            errors: pool.errors,
            times: pool.times.as_ref().filter(|_| has_more).cloned(),
            failure: pool.failure.as_ref().map(|failure| {
                let retry_us = super::duration_us(env.rules.config.main.server_login_retry);
                let next_us = failure.at_us.saturating_add(retry_us).max(pool.dial_after_us);
                ConnectFailure {
                    text: failure.text.clone(),
                    retry_in_us: next_us.saturating_sub(env.now.mono_us),
                }
            }),
        }
    }

    /// Servers of a pool that are free for longer than `server_check_delay`.
    pub(crate) fn long_idle_servers(&self, env: &Env) -> u32 {
        let idle = self.state.idle.iter().filter_map(|&server| self.servers.get(server));
        count(idle.filter(|server| self.is_long_idle(env, server)).count())
    }

    /// How long the client that waits longest has waited, in microseconds.
    pub(crate) fn wait_oldest_us(&self, env: &Env) -> u64 {
        let pool = &self.state;
        let queued = self.first_waiting().map(|(_, since_us)| since_us);
        let at_login = pool.awaiting.first().into_iter().chain(pool.replicating.front());
        let at_login = at_login.filter_map(|&id| Some(self.clients.get(id)?.account.request_us));
        let behind = pool
            .short
            .iter()
            .filter_map(|&id| self.servers.get(id))
            .flat_map(|server| server.pipelined.behind());
        let behind = behind.filter_map(|queued| match &self.clients.get(queued.client)?.state {
            ClientState::QueuedBehind(queued_behind) => Some(queued_behind.since_us),
            _ => None,
        });
        let since_us = queued.into_iter().chain(at_login).chain(behind).min();
        since_us.map_or(0, |since_us| env.now.mono_us.saturating_sub(since_us))
    }

    /// A client is sent an error.
    pub(crate) fn note_error(&mut self, env: &mut Env, client: ClientId, code: &[u8]) {
        env.counters.errors.note(code);
        if self.clients.contains_key(client) {
            self.state.errors += 1;
        }
    }

    /// A server's ErrorResponse, by its body, goes to a client.
    pub(crate) fn note_server_error(&mut self, env: &mut Env, id: ServerId, body: &[u8]) {
        let fields = ErrorFields::parse(body).ok();
        if let Some(fields) = &fields {
            self.note_shape_error(env, fields);
        }
        env.counters.errors.note(fields.and_then(|fields| fields.code()).unwrap_or_default());
        let Some(server) = self.servers.get_mut(id) else { return };
        server.running.failed = true;
        self.state.errors += 1;
    }
}

/// A client's state as SHOW CLIENTS names it.
pub(crate) fn shown_state(state: &ClientState) -> &'static str {
    match state {
        ClientState::Linked(_) => "active",
        // Waiting for a pool's first server is waiting, too, and so is waiting for the turn on one.
        ClientState::Waiting(_) | ClientState::QueuedBehind(_) | ClientState::AwaitingServer(_) => "waiting",
        ClientState::Idle | ClientState::Ignoring | ClientState::DeferredBegin(_) => "idle",
    }
}

/// A client's state as SHOW CLIENTS names it, of one that is in no pool.
pub(crate) fn unpooled_state(state: &UnpooledState) -> &'static str {
    match state {
        UnpooledState::Cancelling => "active_cancel_req",
        UnpooledState::Console(_) => "idle",
        _ => "cl_login",
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
