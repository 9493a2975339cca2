//! A pool whose servers are in a cluster: connections to the node that is the primary now, and to standbys. When the primary changes,
//! a fence falls: a server of an older epoch takes nothing more. While the node that a client needs is not there, it waits.
//!
//! `route.rs` decides on which node a client's next transaction runs, `causal/` whether a standby shows what the client must see;
//! `standbys.rs` has the pool's servers of the standbys; `fence.rs` ends those of an older epoch, `promoted.rs` those of a standby that was
//! promoted; `in_flight/` notes what is lost with a server, `change.rs` runs a change in a block so that it has a COMMIT; `second_try.rs` runs on the primary what a standby did not run; `reading/` has
//! the transactions that read at a standby; `counters.rs` counts what was sent where.

pub(crate) mod causal;
pub(crate) mod change;
pub(crate) mod commit;
pub(crate) mod counters;
pub(crate) mod exact;
pub(crate) mod explain;
pub(crate) mod fence;
pub(crate) mod first_try;
pub(crate) mod in_flight;
mod placing;
pub(crate) mod promoted;
pub(crate) mod reading;
pub(crate) mod route;
pub(crate) mod second_try;
pub(crate) mod standbys;

use std::sync::Arc;

use crate::cluster::token::Asks;
use pgweir_wire::backend::TxStatus;

use crate::cluster::Term;
use crate::cluster::view::View;
use crate::context::{Effect, Env, Suspicion, duration_us};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::cluster::counters::RouteCounters;
use crate::pool::node::REDIAL_US_MAX;
use crate::pool::relay::ledger::Owner;
use crate::pool::server::greeting::IN_HOT_STANDBY;
use crate::pool::server::state::{Reported, Server};
use crate::pool::{Branch, Gate, Pool, PoolState, ServerKind};

/// A pool's view of its cluster, and the state that depends on it.
pub(crate) struct Membership {
    pub(crate) view: Arc<View>,
    /// Whether servers refuse the question for a transaction's number, so that pgweir does not ask it any more.
    pub(crate) is_refused: bool,
    /// Counters of reads that are not kept at one of the pool's standbys.
    pub(crate) counters: RouteCounters,
    /// The questions for the primary's position.
    pub(crate) asks: Asks,
    /// Time before which the next question is not sent (monotonic, µs).
    asks_again_us: u64,
    /// Time at which the first client that waits for a position has waited long enough for a standby (monotonic, µs).
    asking_due_us: u64,
    /// Whether a client waits to be sent the error that its `pgweir.read_after` is no position.
    refuses_positions: bool,
}

impl Membership {
    /// The primary that a new connection is to.
    pub(crate) fn term(&self) -> Option<Term> {
        self.view.primary.as_ref().map(|primary| primary.term.clone())
    }

    /// `primary_wait=0`: a client that needs a server is told at once that there is no node for it.
    pub(crate) fn refuses_at_once(&self, env: &Env, branch: Branch) -> Option<Fault> {
        let is_held = self.held_since_us(branch).is_some() && !self.is_planned(branch);
        let refuses = is_held && self.wait_us(env, branch) == 0;
        refuses.then(|| self.fault(branch))
    }

    /// A client has waited since this time (monotonic, µs), and no node for it has been known for as long as it may wait.
    pub(crate) fn overdue(&self, env: &Env, branch: Branch, since_us: u64) -> Option<Fault> {
        let since_us = since_us.max(self.held_since_us(branch)?);
        let waited_us = env.now.mono_us.saturating_sub(since_us);
        let is_over = !self.is_planned(branch) && waited_us >= self.wait_us(env, branch);
        is_over.then(|| self.fault(branch))
    }

    /// Whether the clients of this branch wait for a switchover, in which case `primary_wait` does not end their wait.
    fn is_planned(&self, branch: Branch) -> bool {
        branch == Branch::PRIMARY && self.view.is_planned
    }

    /// Returns the time since which the clients at this branch have waited without a node (monotonic, µs). A client that waits for
    /// one standby is placed again when that standby goes, so there is none for it.
    fn held_since_us(&self, branch: Branch) -> Option<u64> {
        match branch {
            Branch::PRIMARY => self.view.held_since_us,
            Branch::NO_STANDBY => Some(self.view.bare_since_us.unwrap_or_default()),
            _ => None,
        }
    }

    fn fault(&self, branch: Branch) -> Fault {
        let (cluster, nodes) = (self.view.cluster.to_string(), self.view.obstacle.clone());
        match branch {
            Branch::PRIMARY => Fault::NoPrimary { cluster, nodes },
            _ => Fault::NoStandby { cluster, nodes },
        }
    }

    /// `primary_wait`. As long as there was no primary yet, clients wait until a node that does not answer would be down.
    fn wait_us(&self, env: &Env, branch: Branch) -> u64 {
        let Some(cluster) = env.rules.config.clusters.get(&*self.view.cluster) else { return 0 };
        let wait_us = duration_us(cluster.primary_wait);
        let first_us = u64::from(cluster.down_after_ms) * 1000;
        let is_new = match branch {
            Branch::PRIMARY => self.view.epoch == 0,
            _ => self.view.epoch == 0 || !self.view.undecided.is_empty(),
        };
        if is_new { wait_us.max(first_us) } else { wait_us }
    }
}

impl PoolState {
    /// Looks up the cluster of the pool's database in the worker's view.
    pub(crate) fn join_cluster(&mut self, env: &Env) {
        let name = self.config.cluster.as_deref();
        if self.cluster.as_ref().map(|cluster| &*cluster.view.cluster) == name {
            return;
        }
        self.cluster = name.map(|name| {
            let view = env
                .clusters
                .views
                .get(name)
                .cloned()
                .unwrap_or_else(|| Arc::new(View::unknown(name, env.now.mono_us)));
            Box::new(Membership {
                view,
                is_refused: false,
                counters: RouteCounters::default(),
                asks: Asks::default(),
                asks_again_us: 0,
                asking_due_us: u64::MAX,
                refuses_positions: false,
            })
        });
        match self.cluster.as_ref().map(|cluster| Arc::clone(&cluster.view)) {
            Some(view) => self.follow_standbys(env, &view),
            None => {
                self.standbys.iter_mut().for_each(|known| known.standby = None);
                self.asks_at = Branch::PRIMARY;
            }
        }
        self.set_paused(self.gate == Gate::Paused);
    }

    /// Applies PAUSE or RESUME of the pool's database.
    pub(crate) fn set_paused(&mut self, paused: bool) {
        let held = self.cluster.as_ref().is_some_and(|cluster| cluster.view.primary.is_none());
        self.gate = match (paused, held) {
            (true, _) => Gate::Paused,
            (_, true) => Gate::Held,
            _ => Gate::Open,
        };
    }

    /// How long after a failure no other connection is tried.
    pub(crate) fn retry_us(&self, env: &Env, branch: Branch) -> u64 {
        match &self.cluster {
            None => duration_us(env.rules.config.main.server_login_retry),
            Some(_) => self.node_at(branch).redial_us,
        }
    }
}

impl Pool {
    /// Returns the reason not to use a server that logs in and reports another role than its node should have. `None` if the role is
    /// right.
    pub(crate) fn is_other_role(&self, id: ServerId, reported: &[Reported]) -> Option<&'static str> {
        let server = self.servers.get(id).filter(|server| server.is_for_clients())?;
        self.state.cluster.as_ref()?;
        let says = |(name, value): &Reported| **name == *IN_HOT_STANDBY && **value == *b"on";
        match (reported.iter().any(says), server.branch.is_primary()) {
            (true, true) => Some("the server is a standby"),
            (false, false) => Some("the server is no standby"),
            _ => None,
        }
    }

    /// A connection failed or ended: the nodes are asked at once what they are, and the next connection is tried soon.
    pub(crate) fn suspect_node(&mut self, env: &mut Env, branch: Branch, failed: bool) {
        self.suspect(env, failed);
        if failed && self.state.cluster.is_some() {
            let node = self.state.node_at_mut(branch);
            env.wake_at(env.now.mono_us.saturating_add(node.redial_us).saturating_add(1));
            node.redial_us = (node.redial_us * 2).min(REDIAL_US_MAX);
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
        if self.state.servers(ServerKind::Login) > 0 && self.servers.values().any(is_slow) {
            self.suspect(env, true);
        }
    }

    /// Returns the error for a client whose server is lost, which tells whether its transaction took effect. `None` if it had no
    /// transaction, or the pool has no cluster.
    pub(crate) fn lost_with_primary(&self, client: ClientId, id: ServerId) -> Option<Fault> {
        self.state.cluster.as_ref()?;
        // At a standby there is nothing to take effect.
        let server = self.servers.get(id).filter(|server| server.branch.is_primary())?;
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
