//! What a pool counts of the nodes of its cluster, for SHOW and the metrics.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pgweir_settings::Route;

use crate::cluster::view::View;
use crate::pool::{Pool, PoolState, ServerKind};

/// Why a read that would go to a standby went to the primary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FellBack {
    /// No standby takes reads at present.
    NoStandby,
    /// Each standby that could serve the read lags too far.
    Lag,
    /// No standby showed what the client must see within `causal_wait_ms`.
    Behind,
}

impl FellBack {
    /// All of them, in the order of SHOW CLUSTERS' columns.
    pub(crate) const ALL: [FellBack; 3] = [FellBack::NoStandby, FellBack::Lag, FellBack::Behind];

    fn of(view: &View) -> FellBack {
        let lags = view.standbys.iter().any(|standby| standby.is_behind);
        if lags { FellBack::Lag } else { FellBack::NoStandby }
    }
}

/// The pool's counters for reads that are not kept at one of its standbys ([`crate::pool::cluster::Membership`]).
#[derive(Clone, Default, Debug)]
pub(crate) struct RouteCounters {
    /// Counters by node: reads at the primary whose route allows a standby, and the reads of nodes that are no standbys any more.
    sent: HashMap<Arc<str>, SentReads>,
    /// Reads that fell back to the primary, by reason.
    pub(crate) fell_back: [u64; FellBack::ALL.len()],
}

/// Counters of what a node was sent for clients that may read from a standby.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SentReads {
    /// Groups and transactions.
    pub(crate) reads: u64,
    /// Number of questions for the standby's position that were answered.
    pub(crate) guards: u64,
    /// Number of those answers that were not enough for a client that waited.
    pub(crate) guard_misses: u64,
    /// Number of reads with `route=auto` that ran on the primary after the standby did not run them.
    pub(crate) second_tries: u64,
    /// The second tries that were caused by the standby refusing a text as a change, although it was taken for a read.
    pub(crate) misrouted: u64,
}

impl SentReads {
    fn add(&mut self, other: SentReads) {
        self.reads += other.reads;
        self.guards += other.guards;
        self.guard_misses += other.guard_misses;
        self.second_tries += other.second_tries;
        self.misrouted += other.misrouted;
    }
}

/// The servers, waiting clients and reads of all pools at one node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct AtNode {
    /// Servers that work for clients, and free ones.
    pub(crate) active: u32,
    pub(crate) idle: u32,
    /// Number of clients that wait for a server of the node.
    pub(crate) waiting: u32,
    pub(crate) sent: SentReads,
}

impl RouteCounters {
    /// Adds reads to the counters of a node.
    pub(super) fn sent_to(&mut self, node: &Arc<str>, sent: SentReads) {
        if sent != SentReads::default() {
            self.sent.entry(Arc::clone(node)).or_default().add(sent);
        }
    }

    /// Adds the counters of another pool.
    pub(crate) fn add(&mut self, other: &RouteCounters) {
        other.sent.iter().for_each(|(node, sent)| self.sent_to(node, *sent));
        self.fell_back.iter_mut().zip(other.fell_back).for_each(|(own, other)| *own += other);
    }

    /// Adds the counters of reads to the nodes.
    pub(crate) fn add_to(&self, nodes: &mut BTreeMap<Arc<str>, AtNode>) {
        for (node, sent) in &self.sent {
            nodes.entry(Arc::clone(node)).or_default().sent.add(*sent);
        }
    }
}

impl PoolState {
    /// Counts a request that goes to the primary although its client may read from a standby.
    #[cold]
    pub(super) fn count_at_primary(&mut self, route: Route) {
        let Some(cluster) = self.cluster.as_deref().filter(|_| route != Route::Primary) else { return };
        let why = (route == Route::PreferStandby).then(|| FellBack::of(&cluster.view));
        self.count_read_at_primary(why);
    }

    /// Counts a read that goes to the primary because no standby showed in time what its client must see.
    pub(super) fn count_behind(&mut self) {
        self.count_read_at_primary(Some(FellBack::Behind));
    }

    fn count_read_at_primary(&mut self, why: Option<FellBack>) {
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        if let Some(why) = why {
            cluster.counters.fell_back[why as usize] += 1;
        }
        if let Some(primary) = &cluster.view.primary {
            cluster.counters.sent_to(&primary.term.node, SentReads { reads: 1, ..SentReads::default() });
        }
    }

    /// Returns all counters of the pool's routes, which are kept when the pool is removed.
    pub(crate) fn all_counters(&self) -> RouteCounters {
        let mut counters =
            self.cluster.as_deref().map(|cluster| cluster.counters.clone()).unwrap_or_default();
        self.standbys.iter().for_each(|standby| counters.sent_to(&standby.name, standby.sent));
        counters
    }
}

impl Pool {
    /// Adds the pool's servers, waiting clients and reads to the nodes of its cluster.
    pub(crate) fn add_at_nodes(&self, nodes: &mut BTreeMap<Arc<str>, AtNode>) {
        let Some(cluster) = self.state.cluster.as_deref() else { return };
        self.state.all_counters().add_to(nodes);
        for server in self.servers.values() {
            let Some(term) = &server.at.term else { continue };
            let at = nodes.entry(Arc::clone(&term.node)).or_default();
            match server.state.kind() {
                ServerKind::Active => at.active += 1,
                ServerKind::Idle => at.idle += 1,
                _ => {}
            }
        }
        if let Some(primary) = &cluster.view.primary {
            nodes.entry(Arc::clone(&primary.term.node)).or_default().waiting += self.state.node.waiting;
        }
        for standby in self.state.standbys.iter().filter(|standby| standby.node.waiting > 0) {
            nodes.entry(Arc::clone(&standby.name)).or_default().waiting += standby.node.waiting;
        }
    }
}
