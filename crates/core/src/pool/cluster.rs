//! A pool whose servers are in a cluster: they are connections to the node that is the primary now. When that changes, a fence
//! falls: a server of an older epoch takes nothing more. While no primary is known, clients wait.

use std::sync::Arc;

use crate::cluster::Term;
use crate::cluster::view::{Fate, View};
use crate::context::{Cx, Effect, Env, Suspicion, duration_us};
use crate::driver::{CloseMode, Driver, Endpoint};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::relay::ledger::Owner;
use crate::pool::server::state::{Reported, Server, ServerState, Serves};
use crate::pool::{Gate, Pool, PoolState, ServerKind};
use pgweir_wire::backend::TxStatus;

/// Why a server of an older epoch is closed.
const FENCED: &str = "the primary has changed";
/// Why a server is closed whose node is down or refused.
const CUT_OFF: &str = "the node is not the primary any more";
/// After a failure the next connection is tried so soon, then after twice as long, and so on up to the other limit.
const REDIAL_US_MIN: u64 = 50_000;
const REDIAL_US_MAX: u64 = 1_000_000;

/// What a pool knows of its cluster.
pub(crate) struct Membership {
    pub(crate) view: Arc<View>,
    /// How long after the last failure the next connection is tried.
    redial_us: u64,
}

impl Membership {
    /// The primary that a new connection is to.
    pub(crate) fn term(&self) -> Option<Term> {
        self.view.primary.as_ref().map(|primary| primary.term.clone())
    }

    /// Where the primary is. Without one no connection is opened (`PoolState::gate`): the address is one that refuses.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let nowhere = || Endpoint::Unix { path: "@pgweir-no-primary".into() };
        self.view.primary.as_ref().map_or_else(nowhere, |primary| primary.endpoint())
    }

    /// `primary_wait=0`: a client that needs a server is told at once that there is no primary.
    pub(crate) fn refuses_at_once(&self, env: &Env) -> Option<Fault> {
        let refuses = self.is_held() && self.wait_us(env) == 0;
        refuses.then(|| self.fault())
    }

    /// A client has waited since this time (monotonic, µs), and no primary has been known for as long as it may wait.
    pub(crate) fn overdue(&self, env: &Env, since_us: u64) -> Option<Fault> {
        let since_us = since_us.max(self.view.held_since_us?);
        let is_over = env.now.mono_us.saturating_sub(since_us) >= self.wait_us(env);
        is_over.then(|| self.fault())
    }

    /// No primary is known: clients wait.
    pub(crate) fn is_held(&self) -> bool {
        self.view.primary.is_none()
    }

    fn fault(&self) -> Fault {
        Fault::NoPrimary { cluster: self.view.cluster.to_string(), nodes: self.view.obstacle.clone() }
    }

    /// `primary_wait`. As long as there was no primary yet, clients wait until a node that does not answer would be down.
    fn wait_us(&self, env: &Env) -> u64 {
        let Some(cluster) = env.rules.config.clusters.get(&*self.view.cluster) else { return 0 };
        let wait_us = duration_us(cluster.primary_wait);
        let first_us = u64::from(cluster.down_after_ms) * 1000;
        if self.view.epoch == 0 { wait_us.max(first_us) } else { wait_us }
    }
}

impl PoolState {
    /// The cluster of its database, as the worker knows it.
    pub(crate) fn join_cluster(&mut self, env: &Env) {
        let name = self.config.cluster.as_deref();
        if self.cluster.as_ref().map(|cluster| &*cluster.view.cluster) == name {
            return;
        }
        self.cluster = name.map(|name| {
            let view = env
                .views
                .get(name)
                .cloned()
                .unwrap_or_else(|| Arc::new(View::unknown(name, env.now.mono_us)));
            Box::new(Membership { view, redial_us: REDIAL_US_MIN })
        });
        self.set_paused(self.gate == Gate::Paused);
    }

    /// PAUSE and RESUME of its database.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        let held = self.cluster.as_ref().is_some_and(|cluster| cluster.is_held());
        self.gate = match (paused, held) {
            (true, _) => Gate::Paused,
            (_, true) => Gate::Held,
            _ => Gate::Open,
        };
    }

    /// How long after a failure no other connection is tried.
    pub(crate) fn retry_us(&self, env: &Env) -> u64 {
        match &self.cluster {
            None => duration_us(env.rules.config.main.server_login_retry),
            Some(cluster) => cluster.redial_us,
        }
    }
}

impl Pool {
    /// The view of its cluster has changed.
    pub(crate) fn follow_view<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &Arc<View>) {
        let Some(cluster) = self.state.cluster.as_deref_mut() else { return };
        if cluster.view.cluster != view.cluster {
            return;
        }
        cluster.view = Arc::clone(view);
        cluster.redial_us = REDIAL_US_MIN;
        self.state.set_paused(self.state.gate == Gate::Paused);
        self.state.node.forget_failures();
        let servers: Vec<ServerId> = self.servers.keys().collect();
        servers.into_iter().for_each(|id| self.fence_server(cx, id));
        self.notice();
    }

    /// A server that is not of the present epoch takes nothing more.
    pub(crate) fn fence_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let (Some(cluster), Some(server)) = (&self.state.cluster, self.servers.get(id)) else { return };
        let fate = cluster.view.fate(server.opened_in.as_ref());
        let reason = if fate == Fate::Cut { CUT_OFF } else { FENCED };
        match (fate, server.state.kind()) {
            (Fate::Stays, _) => {}
            (_, ServerKind::Login) if server.state.client().is_none() => {
                self.close_server(cx, id, reason, CloseMode::Now);
            }
            (_, ServerKind::Login) => self.login_failed(cx, id, "connect failed", reason),
            (_, ServerKind::Idle | ServerKind::Listening) => {
                self.close_server(cx, id, reason, CloseMode::Flush);
            }
            (Fate::Cut, _) => self.lose_server(cx, id, reason.into()),
            (Fate::Ends, _) if server.is_replication() || is_kept_at_rest(server) => {
                self.lose_server(cx, id, reason.into());
            }
            (Fate::Ends, _) => self.servers[id].retire = Some(FENCED),
        }
    }

    /// The transaction on this server is over, and its client would keep the server: not behind a fence.
    pub(crate) fn ends_behind_fence<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let is_behind = |server: &Server| server.retire == Some(FENCED) && is_kept_at_rest(server);
        if self.servers.get(id).is_some_and(is_behind) {
            self.lose_server(cx, id, FENCED.into());
        }
    }

    /// A server logs in that says it is a standby: no connection to it serves clients.
    pub(crate) fn is_no_primary(&self, id: ServerId, reported: &[Reported]) -> bool {
        let serves = self.servers.get(id).is_some_and(|server| server.serves != Serves::Watch);
        let says = |(name, value): &Reported| **name == *b"in_hot_standby" && **value == *b"on";
        self.state.cluster.is_some() && serves && reported.iter().any(says)
    }

    /// A connection failed or ended: the node is asked at once what it is, and the next connection is tried soon.
    pub(crate) fn suspect_primary(&mut self, env: &mut Env, failed: bool) {
        self.suspect(env, failed);
        if let Some(cluster) = self.state.cluster.as_deref_mut().filter(|_| failed) {
            env.wake_at(env.now.mono_us.saturating_add(cluster.redial_us).saturating_add(1));
            cluster.redial_us = (cluster.redial_us * 2).min(REDIAL_US_MAX);
        }
    }

    fn suspect(&self, env: &mut Env, reconnects: bool) {
        let Some(cluster) = &self.state.cluster else { return };
        let suspicion = Suspicion { cluster: Arc::clone(&cluster.view.cluster), reconnects };
        let is_known = |effect: &Effect| matches!(effect, Effect::Suspect(known) if *known == suspicion);
        if !env.effects.iter().any(is_known) {
            env.want(Effect::Suspect(suspicion));
        }
    }

    /// A login to the primary takes longer than a check may: its process that accepts connections may hang, which the connection
    /// that watches it would not notice.
    pub(crate) fn suspect_slow_login(&mut self, env: &mut Env) {
        let Some(cluster) = &self.state.cluster else { return };
        let options = env.rules.config.clusters.get(&*cluster.view.cluster);
        let limit_us = options.map_or(u64::MAX, |options| u64::from(options.check_timeout_ms) * 1000);
        let is_slow = |server: &Server| {
            server.state.kind() == ServerKind::Login
                && env.now.mono_us.saturating_sub(server.at.since.mono_us) > limit_us
        };
        if self.state.node.servers(ServerKind::Login) > 0 && self.servers.values().any(is_slow) {
            self.suspect(env, true);
        }
    }

    /// A connection succeeded.
    pub(crate) fn trust_primary(&mut self) {
        if let Some(cluster) = self.state.cluster.as_deref_mut() {
            cluster.redial_us = REDIAL_US_MIN;
        }
    }

    /// What a client is told whose server is lost: whether its transaction took effect. `None`: it had none, or the pool has no
    /// cluster.
    pub(crate) fn lost_with_primary(&self, client: ClientId, id: ServerId) -> Option<Fault> {
        self.state.cluster.as_ref()?;
        let server = self.servers.get(id)?;
        let is_owed = |owner: Owner| owner == Owner::Client(client);
        let owes =
            server.ledger.entries().any(|entry| is_owed(entry.owner)) || server.incoming.streaming.is_some();
        if owes {
            // The head of a pipeline only reads: nothing is lost with it.
            return server.pipelined.head().is_none().then_some(Fault::OutcomeUnknown);
        }
        (server.tx != TxStatus::Idle).then_some(Fault::RolledBack)
    }
}

/// A client has it, and no transaction is open on it.
fn is_kept_at_rest(server: &Server) -> bool {
    matches!(server.state, ServerState::Busy(_)) && server.is_at_rest()
}
