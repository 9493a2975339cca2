//! Free servers: which one is next, and whether it may be used at all.

use std::sync::Arc;

use crate::context::{Activity, Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::ids::{ClientId, ServerId};
use crate::pool::choose::own_server::Fitness;
use crate::pool::sequences::state::Hold;
use crate::pool::server::state::ServerState;
use crate::pool::{Branch, Gate, Pool, ServerKind};

/// The number of free servers that are looked at for one that carries the client's session already.
const LOOKED_AT_MAX: usize = 64;

impl Pool {
    /// Returns the free servers of the pool.
    pub(crate) fn idle_servers(&self) -> Vec<ServerId> {
        self.state.nodes().flat_map(|node| node.idle.iter().copied()).collect()
    }

    /// A free server of this node that may be used at once; `client` is the client that it is for, `None` for a question of pgweir's own. A
    /// server that is too old is closed; one that idled for long is checked first, and comes back by itself.
    pub(super) fn take_idle<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        client: Option<ClientId>,
    ) -> Option<ServerId> {
        let own = self.state.gets_own_server();
        loop {
            if self.state.gate_at(branch) != Gate::Open || cx.env.activity != Activity::Active {
                return None;
            }
            let (fitness, id) = match own {
                true => self.best_idle(cx.env, branch, client, self.is_full(cx.env, branch))?,
                false => (Fitness::Plain, self.next_idle(cx.env, branch, client)?),
            };
            let server = self.servers.get(id)?;
            if let Some(reason) = self.state.reason_to_close(cx.env, server) {
                self.close_server(cx, id, reason, CloseMode::Flush);
                continue;
            }
            let checks = self.state.needs_check(cx.env, server);
            if fitness == Fitness::Unfit {
                // A server that is opened without parameters serves any next client.
                self.close_server(cx, id, "opened with startup parameters of others", CloseMode::Flush);
                return None;
            }
            if !checks {
                return Some(id);
            }
            if !own && let Some(checked) = self.checked_idle(cx.env, branch) {
                return Some(checked);
            }
            if self.state.node_at(branch).servers(ServerKind::Tested) >= self.state.demand_at(branch) {
                return None;
            }
            self.check_server(cx, id);
        }
    }

    /// The free server that is next, if clients share servers. It is the one on which the client drew from a sequence, else one
    /// that carries the client's session, else the next in the list (`server_round_robin`); but none that is kept for
    /// another client for a moment.
    fn next_idle(&mut self, env: &mut Env, branch: Branch, client: Option<ClientId>) -> Option<ServerId> {
        let idle = &self.state.node_at(branch).idle;
        let first = *(if env.rules.config.main.server_round_robin { idle.front() } else { idle.back() })?;
        let drawn_on = self.drawn_on(branch, client);
        let id = drawn_on.or_else(|| self.fitting_idle(branch, first, client)).unwrap_or(first);
        match self.state.drawn.affinities.is_empty() {
            true => Some(id),
            false => self.beside_affinities(env, branch, id, client),
        }
    }

    /// A free server that has just been checked, at any place in the list: it goes first, else two could be checked in turns
    /// without end.
    #[cold]
    fn checked_idle(&self, env: &Env, branch: Branch) -> Option<ServerId> {
        let usable = |id: &ServerId| {
            self.reason_to_close(env, *id).is_none() && !self.state.needs_check(env, &self.servers[*id])
        };
        self.state.node_at(branch).idle.iter().copied().find(usable)
    }

    /// A free server that carries the client's session, if the one that is next does not.
    fn fitting_idle(&self, branch: Branch, first: ServerId, client: Option<ClientId>) -> Option<ServerId> {
        let account = &self.clients.get(client?)?.account;
        let fits = |id: &ServerId| {
            self.servers.get(*id).is_some_and(|server| {
                Arc::ptr_eq(&server.session, &account.session) && Arc::ptr_eq(&server.params, &account.params)
            })
        };
        if fits(&first) {
            return None;
        }
        self.state.node_at(branch).idle.iter().rev().take(LOOKED_AT_MAX).copied().find(fits)
    }

    /// The free server on which the client drew last, if no other client has used it since.
    fn drawn_on(&self, branch: Branch, client: Option<ClientId>) -> Option<ServerId> {
        let id = client?;
        let drawn = self.clients.get(id)?.account.draws.on?;
        let server = self.servers.get(drawn)?;
        let own = server.users.last() == Some(id) && server.branch == branch;
        (own && matches!(server.state, ServerState::Idle)).then_some(drawn)
    }

    /// A free server that this client may have, if that is not this one; `None` if all are kept for other clients.
    fn beside_affinities(
        &mut self,
        env: &mut Env,
        branch: Branch,
        id: ServerId,
        client: Option<ClientId>,
    ) -> Option<ServerId> {
        let now_us = env.now.mono_us;
        let pool = &mut self.state;
        pool.drawn.affinities.expire(now_us);
        if pool.drawn.affinities.hold(id, client) == Hold::Free {
            return Some(id);
        }
        let idle = &pool.node_at(branch).idle;
        let holds = || idle.iter().map(|&other| (other, pool.drawn.affinities.hold(other, client)));
        let found = holds().rev().find(|(_, hold)| *hold == Hold::Free);
        if let Some((id, _)) = found.or_else(|| holds().find(|(_, hold)| *hold == Hold::Soft)) {
            return Some(id);
        }
        let until_us = holds().filter_map(|(_, hold)| match hold {
            Hold::Until(until_us) => Some(until_us),
            _ => None,
        });
        let due_us = until_us.min()?.max(now_us + 1);
        env.wake_at(due_us);
        None
    }
}
