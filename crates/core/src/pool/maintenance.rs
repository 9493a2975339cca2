//! What a pool does as time passes, three times a second: timeouts of its clients and servers, its size.

use std::time::Duration;

use pgweir_wire::backend::TxStatus;
use pgweir_wire::error::SqlState;

use crate::context::duration_us;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::ids::{CancelId, ClientId, ServerId};
use crate::pool::cancel::queue::end_requester;
use crate::pool::client::state::{Account, Client, ClientState};
use crate::pool::node::NodePool;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::{LinkedServer, ServerState, ServerTask};
use crate::pool::{Branch, Pool, ServerKind};
use crate::worker::maintenance::{is_over, take_out};

impl Pool {
    pub(crate) fn client_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
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
                .filter(|(_, client)| {
                    let waits =
                        matches!(client.state, ClientState::Waiting(_) | ClientState::QueuedBehind(_));
                    let request = &client.account.request;
                    waits && !request.is_notified && waited(request.since_us)
                })
                .filter(|(id, _)| !self.is_passed_over(*id))
                .map(|(id, _)| id)
                .collect();
            for id in told {
                self.notify_waiter(cx, id);
            }
        }
    }

    /// Returns the fault for a timeout that the client has exceeded; `None` if it has exceeded none.
    fn client_overdue(&self, env: &Env, id: ClientId) -> Option<Fault> {
        let client = self.clients.get(id)?;
        let config = &env.rules.config;
        let over = |limit, start_us| is_over(env, limit, start_us);
        match &client.state {
            ClientState::AwaitingServer(_) => {
                let overdue = self.wait_overdue(env, &client.account);
                overdue.or_else(|| self.login_overdue(env, client))
            }
            ClientState::DeferredBegin(deferred) => {
                let account = &client.account;
                let user = &self.state.user;
                if over(config.idle_transaction_timeout(user), deferred.since_us.max(account.active_us)) {
                    let code = SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
                    return Some(Fault::Timeout("idle transaction timeout", code));
                }
                over(config.transaction_timeout(user), deferred.since_us)
                    .then_some(Fault::Timeout("transaction timeout", SqlState::TRANSACTION_TIMEOUT))
            }
            ClientState::Idle | ClientState::Ignoring | ClientState::RolledBack(_) => {
                let account = &client.account;
                over(config.client_idle_timeout(&account.user), account.active_us)
                    .then_some(Fault::Timeout("client_idle_timeout", SqlState::IDLE_SESSION_TIMEOUT))
            }
            // Another client's statement runs for it.
            ClientState::Waiting(_) if self.is_passed_over(id) => {
                let limit = config.query_timeout(&self.state.user);
                over(limit, client.account.request.since_us)
                    .then_some(Fault::Timeout("query timeout", SqlState::PROTOCOL_VIOLATION))
            }
            ClientState::Waiting(_) | ClientState::QueuedBehind(_) => self.wait_overdue(env, &client.account),
            ClientState::Linked(link) => {
                let server = self.servers.get(link.server).filter(|server| !server.is_replication())?;
                let user = &self.state.user;
                if server.work.query_us > 0 && over(config.query_timeout(user), server.work.query_us) {
                    return Some(Fault::Timeout("query timeout", SqlState::PROTOCOL_VIOLATION));
                }
                // A message that does not end holds the server as an open transaction does, and so does a BEGIN.
                let held = server.tx != TxStatus::Idle
                    || link.streaming > 0
                    || matches!(link.phase, LinkPhase::Exchange(Preamble::Begin(_)));
                let rests = server.ledger.is_empty() && server.state.is_serving();
                if rests && !held && client.inbox.is_empty() {
                    // Session pooling, or a client that keeps its server.
                    let active_us = client.account.active_us.max(server.active_us);
                    return over(config.client_idle_timeout(&client.account.user), active_us)
                        .then_some(Fault::Timeout("client_idle_timeout", SqlState::IDLE_SESSION_TIMEOUT));
                }
                let idle_in_xact = held && server.ledger.is_empty();
                if idle_in_xact && over(config.idle_transaction_timeout(user), server.active_us) {
                    let code = SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
                    return Some(Fault::Timeout("idle transaction timeout", code));
                }
                (server.work.xact_us > 0 && over(config.transaction_timeout(user), server.work.xact_us))
                    .then_some(Fault::Timeout("transaction timeout", SqlState::TRANSACTION_TIMEOUT))
            }
        }
    }

    /// The limits for a client that waits for a server, also for its pool's first one.
    fn wait_overdue(&self, env: &Env, account: &Account) -> Option<Fault> {
        let (config, pool) = (&env.rules.config, &self.state);
        let since_us = account.request.since_us;
        if let Some(fault) =
            pool.cluster.as_ref().and_then(|cluster| cluster.overdue(env, account.branch, since_us))
        {
            return Some(fault);
        }
        let failure = || self.failure_while_waiting(env, account.branch, since_us);
        if is_over(env, config.query_wait_timeout(&pool.config, &account.user), since_us) {
            return Some(Fault::Unserved("query_wait_timeout", SqlState::CANNOT_CONNECT_NOW, failure()));
        }
        is_over(env, config.query_timeout(&pool.user), since_us)
            .then(|| Fault::Unserved("query_timeout", SqlState::PROTOCOL_VIOLATION, failure()))
    }

    /// `client_login_timeout`: the client is proven, and only its pool keeps it waiting.
    fn login_overdue(&self, env: &Env, client: &Client) -> Option<Fault> {
        let limit = env.rules.config.main.client_login_timeout;
        if limit.is_zero() || !is_over(env, Some(limit), client.origin.since.mono_us) {
            return None;
        }
        let failure = self.failure_while_waiting(env, client.account.branch, client.account.request.since_us);
        Some(Fault::Unserved("client_login_timeout (server down)", SqlState::PROTOCOL_VIOLATION, failure))
    }

    /// The error that kept the pool from opening a server while a client waited since this time.
    fn failure_while_waiting(&self, env: &Env, branch: Branch, since_us: u64) -> Option<String> {
        let failure = self.state.node_at(branch).failure.as_ref()?;
        let retry_us = self.state.retry_us(env, branch);
        (failure.at_us.saturating_add(retry_us) >= since_us).then(|| failure.text.clone())
    }

    pub(crate) fn server_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
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
                    overdue(server.at.since.mono_us).then_some((id, true))
                }
                state if state.at_login().is_some() => {
                    overdue(server.at.since.mono_us).then_some((id, false))
                }
                // A check that is not answered is the failure that it looks for; a reset, or a SET, is no work either.
                ServerState::Asked(_)
                | ServerState::Linked(LinkedServer {
                    task: ServerTask::Syncing(_) | ServerTask::Auditing(_),
                    ..
                })
                | ServerState::Inquiring(_)
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

    pub(crate) fn cancel_timeouts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
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
        let tired = take_out(&mut self.state.queue.cancels, |waiting| is_tired(waiting.since_us));
        for waiting in tired {
            end_requester(cx, waiting.requester, "cancel_wait_timeout");
        }
    }

    /// A pool's free servers: too old, too long unused, too many, too few. And waiters, for which a reserve or retry may be
    /// due.
    pub(crate) fn look_after<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.close_unfit(cx);
        self.close_surplus(cx);
        self.close_above_part(cx);
        self.look_if_due(cx);
        self.keep_minimum(cx);
        self.tend_notify_listener(cx);
        if self.state.is_starving() {
            self.notice();
        }
    }

    fn close_unfit<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let idle_us = duration_us(cx.env.rules.config.main.server_idle_timeout);
        for server_id in self.idle_servers() {
            if let Some(reason) = self.reason_to_close(cx.env, server_id) {
                self.close_server(cx, server_id, reason, CloseMode::Flush);
                continue;
            }
            let Some(server) = self.servers.get(server_id) else { continue };
            let unused_us = cx.env.now.mono_us.saturating_sub(server.active_us);
            let pool = &self.state;
            let min = cx.env.rules.config.min_pool_size(&pool.config);
            if idle_us > 0 && unused_us >= idle_us && pool.node_at(server.branch).servers_ready() > min {
                self.close_server(cx, server_id, "server idle timeout", CloseMode::Flush);
            }
        }
    }

    fn close_surplus<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let pool = &self.state;
        let size = cx.env.rules.config.pool_size(&pool.config, &pool.user);
        let reserve = cx.env.rules.config.reserve_pool_size(&pool.config, &pool.user);
        if size == 0 {
            return;
        }
        let surplus =
            |node: &NodePool| node.servers_ready().saturating_sub(size.saturating_add(reserve)) as usize;
        let too_many = pool.nodes().flat_map(|node| node.idle.iter().copied().take(surplus(node)));
        let too_many: Vec<ServerId> = too_many.collect();
        for server_id in too_many {
            self.close_server(cx, server_id, "too many servers in the pool", CloseMode::Flush);
        }
    }

    /// `min_pool_size`: while a client uses the pool, or always if the database has a forced user.
    fn keep_minimum<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = std::sync::Arc::clone(&cx.env.rules.config);
        let pool = &self.state;
        let min = config.min_pool_size(&pool.config);
        let size = config.pool_size(&pool.config, &pool.user);
        let wanted = if size == 0 { min } else { min.min(size) };
        if self.clients.is_empty() && pool.config.user.is_none() {
            return;
        }
        for branch in self.branches_in_use(&config) {
            while self.state.node_at(branch).servers_total() < wanted
                && self.may_dial(cx.env, branch)
                && !self.opens_as_many_as_it_may(cx.env, branch)
                && self.take_place(cx, branch, false)
            {
                self.dial_server(cx, branch, None);
            }
        }
    }

    /// Whether the pool is to be forgotten: after `pool_idle_timeout` or `autodb_idle_timeout`, or because its database is no longer
    /// configured.
    pub(crate) fn is_unused<D: Driver>(&self, cx: &mut Cx<'_, D>) -> bool {
        let config = &cx.env.rules.config;
        let pool = &self.state;
        let unknown = config.database(&pool.database).is_none();
        if !self.clients.is_empty()
            || !pool.queue.lookups.is_empty()
            || !self.cancels.is_empty()
            || !pool.queue.cancels.is_empty()
            || !unknown && cx.env.closing.has_unconfirmed(self.id)
        {
            return false;
        }
        let unused = Duration::from_micros(cx.env.now.mono_us.saturating_sub(pool.empty_us));
        let automatic = !config.databases.contains_key(&*pool.database);
        let limit = |limit: Duration| !limit.is_zero() && unused >= limit;
        let servers: u32 = pool.nodes().map(NodePool::servers_total).sum();
        // A pool that exists without clients would be made again at once, without what it knows of failures.
        let is_kept = config.keeps_pool(&pool.config, &pool.user);
        let pool_is_idle = servers == 0 && !is_kept && limit(config.main.pool_idle_timeout);
        // A pool that is asked by logins (`auth_query`) may have no client ever.
        let is_asked = pool.nodes().any(|node| node.servers(ServerKind::Active) > 0);
        let database_is_idle = automatic && !is_asked && limit(config.main.autodb_idle_timeout);
        // If `auth_query` runs in the client's own database, it is asked for any name that a stranger makes up.
        let never_served = servers == 0 && pool.greeting.is_none();
        let is_made_up = automatic && never_served && unused >= config.main.server_login_retry;
        if !unknown && !pool_is_idle && !database_is_idle && !is_made_up {
            return false;
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
        true
    }
}
