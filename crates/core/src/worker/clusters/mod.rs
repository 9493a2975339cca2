//! The clusters: one worker watches each of them, and tells all workers what it found out. Pools follow.

mod commands;
mod drain;
pub(crate) mod report;
mod sources;
mod switchover;
mod views;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;

use pgweir_settings::{Config, NodeOptions};
use slotmap::SlotMap;

use crate::cluster::switchover::Ended;
use crate::cluster::view::View;
use crate::cluster::{Cluster, Limits};
use crate::context::{Cx, Env, Suspicion};
use crate::driver::{Driver, WorkerId};
use crate::ids::WatchId;
use crate::mail::Mail;
use crate::pool::PoolState;
use crate::pool::cluster::counters::RouteCounters;
use crate::worker::Worker;
use crate::worker::clusters::drain::Draining;
use crate::worker::clusters::watch::NodeWatch;

/// The clusters that a worker watches.
pub(crate) struct Clusters {
    pub(crate) watched: HashMap<Arc<str>, Watched>,
    watches: SlotMap<WatchId, NodeWatch>,
    /// The time at which a check or another action is due next (monotonic, µs).
    pub(crate) due_us: u64,
    /// The switchovers that drain, by cluster: the number of open transactions that this worker reported last. Another worker may watch the
    /// cluster.
    drains: HashMap<Arc<str>, Draining>,
    /// The counters of pools that were removed, by cluster.
    tallies: HashMap<Arc<str>, RouteCounters>,
    /// The configuration that the clusters follow; `None` at the start.
    config: Option<Arc<Config>>,
}

/// A cluster that this worker watches.
pub(crate) struct Watched {
    pub(crate) cluster: Cluster,
    /// The view that the workers were sent last; `None` before the first one.
    told: Option<Arc<View>>,
    /// The number of open transactions at each worker, while a switchover drains.
    open: HashMap<WorkerId, u32>,
    /// The control plane was asked to query the cluster's source more often.
    source_hurries: bool,
    /// The result of the last switchover; `None` if there was none.
    ended: Option<Ended>,
    /// The time at which the last switchover ended (monotonic, µs).
    ended_us: u64,
}

impl Default for Clusters {
    fn default() -> Clusters {
        Clusters {
            watched: HashMap::new(),
            watches: SlotMap::with_key(),
            due_us: u64::MAX,
            drains: HashMap::new(),
            tallies: HashMap::new(),
            config: None,
        }
    }
}

impl Watched {
    /// Follows the list of nodes: that of the configuration, or of the cluster's source.
    fn follow(&mut self, env: &Env) {
        let config = &env.rules.config;
        let name = Arc::clone(&self.cluster.name);
        let Some(options) = config.clusters.get(&*name) else { return };
        let now_us = env.now.mono_us;
        let discovered = self.cluster.discovered(config);
        let listed = config.nodes_of_cluster(Some(options));
        let nodes: Vec<(&str, &NodeOptions)> = match self.cluster.source() {
            None => listed.collect(),
            Some(_) => discovered.iter().map(|(name, options)| (&**name, options)).collect(),
        };
        self.cluster.follow(Limits::of(options), &nodes, now_us);
        self.cluster.keep_switches(|node| env.shared.node_switch(&name, node), now_us);
        for node in self.cluster.nodes.iter().filter(|node| !node.is_new()) {
            // `attached` may have changed.
            if env.shared.node_switch(&name, &node.name).is_some_and(|known| known != node.switch) {
                env.shared.switch_node(&name, &node.name, node.switch);
            }
        }
    }
}

impl Clusters {
    /// Adds the counters of a pool that is removed to those of its cluster.
    pub(crate) fn keep_counters(&mut self, pool: &PoolState) {
        if let Some(cluster) = &pool.cluster {
            let kept = self.tallies.entry(Arc::clone(&cluster.view.cluster)).or_default();
            kept.add(&pool.all_counters());
        }
    }

    /// Computes the time of the next action.
    fn rearm(&mut self, now_us: u64) {
        let checks = self.watches.values().map(|watch| watch.due_us);
        let terms = self.watched.values().filter_map(|watched| watched.cluster.expires_us(now_us));
        let counts = self.drains.values().map(|draining| draining.due_us);
        self.due_us = checks.chain(terms).chain(counts).min().unwrap_or(u64::MAX);
    }
}

impl Worker {
    /// Follows the configuration: watches the clusters that it assigns to this worker.
    pub(crate) fn follow_clusters<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = Arc::clone(&cx.env.rules.config);
        if self.clusters.config.as_ref().is_some_and(|known| Arc::ptr_eq(known, &config)) {
            return;
        }
        self.clusters.config = Some(Arc::clone(&config));
        let is_ours =
            |name: &str| config.clusters.contains_key(name) && cx.env.shared.watcher(name) == cx.env.worker;
        self.clusters.watched.retain(|name, _| {
            let stays = is_ours(name);
            if !stays {
                cx.env.shared.forget_view(name);
            }
            stays
        });
        cx.env.clusters.views.retain(|name, _| config.clusters.contains_key(&**name));
        for (name, options) in config.clusters.iter().filter(|(name, _)| is_ours(name)) {
            let now_us = cx.env.now.mono_us;
            let watched = self.clusters.watched.entry(name.as_str().into());
            let watched = watched.or_insert_with(|| Watched {
                cluster: Cluster::new(name, Limits::of(options), now_us),
                told: None,
                open: HashMap::new(),
                source_hurries: false,
                ended: None,
                ended_us: 0,
            });
            watched.cluster.follow_source(options);
            watched.follow(cx.env);
        }
        self.follow_nodes(cx);
        self.tell_views(cx);
        // Views of clusters that were not known here were left out.
        self.take_views(cx);
    }

    /// Checks the nodes of a cluster at once, because a connection to its primary failed or ended.
    pub(crate) fn suspect<D: Driver>(&mut self, cx: &mut Cx<'_, D>, suspicion: Suspicion) {
        let watcher = cx.env.shared.watcher(&suspicion.cluster);
        if watcher != cx.env.worker {
            return cx.driver.mail(watcher, Mail::Suspect(suspicion));
        }
        self.hurry_checks(cx.env, &suspicion.cluster, suspicion.reconnects);
    }
}
