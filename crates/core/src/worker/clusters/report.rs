//! SHOW CLUSTERS and SHOW NODES.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::cluster::node::{Node, NodeState};
use crate::context::Env;
use crate::pool::show::rows::time_text;
use crate::worker::Worker;
use crate::worker::console::report::{Row, cell};

/// The places of columns among those of SHOW CLUSTERS.
const EPOCH: usize = 2;
const HELD_CLIENTS: usize = 5;
/// The first of the columns that one worker fills.
const OF_WATCHER: usize = 8;

impl Worker {
    /// What this worker knows of each cluster, and how many of its clients wait for a primary.
    pub(crate) fn cluster_rows(&self, env: &Env) -> Vec<Row> {
        let mut views: Vec<_> = env.views.values().collect();
        views.sort_by(|one, other| one.cluster.cmp(&other.cluster));
        let rows = views.into_iter().map(|view| {
            let of_cluster = |pool: &&crate::pool::Pool| {
                let cluster = pool.state.cluster.as_ref();
                cluster.is_some_and(|cluster| cluster.view.cluster == view.cluster)
            };
            let held: u32 = self.pools.values().filter(of_cluster).map(|pool| pool.state.held()).sum();
            let primary = view.primary.as_ref();
            let discovery = env.rules.config.clusters.get(&*view.cluster).map(|options| options.discovery);
            let watched = self.clusters.watched.get(&view.cluster);
            let source = watched.and_then(|watched| watched.cluster.source());
            let age_ms = |heard_us: u64| cell(env.now.mono_us.saturating_sub(heard_us) / 1000);
            vec![
                cell(&view.cluster),
                primary.map(|primary| primary.term.node.to_string()),
                cell(view.epoch),
                primary.map(|primary| primary.term.run.timeline.to_string()),
                cell(if primary.is_some() { "available" } else { "held" }),
                cell(held),
                view.held_since_us.map(|since_us| time_text(env, since_us)),
                primary.is_none().then(|| view.obstacle.clone()),
                discovery.map(|discovery| discovery.to_string()),
                source.and_then(|source| source.by()).map(str::to_owned),
                source.and_then(|source| source.heard_us()).and_then(age_ms),
                source.and_then(|source| source.error()).map(str::to_owned),
                watched.and_then(|watched| watched.switchover_text()),
            ]
        });
        rows.collect()
    }

    /// The nodes of the clusters that this worker watches.
    pub(crate) fn node_rows(&self, env: &Env) -> Vec<Row> {
        let rows = self.clusters.watched.values().flat_map(|watched| {
            let cluster = &watched.cluster;
            cluster.nodes.iter().map(move |node| node_row(env, cluster, node))
        });
        rows.collect()
    }
}

fn node_row(env: &Env, cluster: &Cluster, node: &Node) -> Row {
    let answer = node.state.member().map(|member| &member.answer);
    let role = answer.map(|answer| if answer.in_recovery { "standby" } else { "primary" }.to_owned());
    let is_standby = matches!(node.state, NodeState::Standby(_));
    let lag = node.lag.filter(|_| is_standby);
    vec![
        cell(&cluster.name),
        cell(&node.name),
        cell(&node.host),
        cell(node.port),
        cell(&node.zone),
        role,
        cell(node.state.word()),
        Some(time_text(env, node.since_us)),
        cell(node.switch.word()),
        cell(node.weight),
        is_standby.then(|| node.share(cluster.limits(), env.now.mono_us).to_string()),
        answer.map(|answer| answer.run.timeline.to_string()),
        answer.and_then(|answer| answer.position).map(|position| position.to_string()),
        lag.map(|lag| lag.bytes.to_string()),
        lag.map(|lag| (lag.us / 1000).to_string()),
        node.checked_us.map(|checked_us| time_text(env, checked_us)),
        node.trouble(),
    ]
}

/// The workers' rows as one for each cluster: the newest view, and the clients of all.
pub(crate) fn merged_clusters(rows: Vec<Row>) -> Vec<Row> {
    let mut clusters: BTreeMap<Option<String>, Row> = BTreeMap::new();
    let number = |row: &Row, column: usize| {
        row.get(column).cloned().flatten().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    for row in rows {
        let name = row.first().cloned().flatten();
        let Some(known) = clusters.get_mut(&name) else {
            clusters.insert(name, row);
            continue;
        };
        let held = number(known, HELD_CLIENTS) + number(&row, HELD_CLIENTS);
        let is_newer = number(&row, EPOCH) > number(known, EPOCH);
        let other = if is_newer { std::mem::replace(known, row) } else { row };
        // Of the source only the worker that watches the cluster knows.
        for (own, other) in known.iter_mut().zip(other).skip(OF_WATCHER) {
            *own = own.take().or(other);
        }
        known[HELD_CLIENTS] = cell(held);
    }
    clusters.into_values().collect()
}
