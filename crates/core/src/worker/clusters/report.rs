//! SHOW CLUSTERS and SHOW NODES.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::cluster::node::{Node, NodeState};
use crate::context::Env;
use crate::pool::Pool;
use crate::pool::cluster::counters::{AtNode, FellBack, SentReads};
use crate::pool::show::rows::time_text;
use crate::worker::Worker;
use crate::worker::console::command::Outcome;
use crate::worker::console::report::{Row, cell};
use crate::worker::console::table::NODES;

/// The index of a column of SHOW CLUSTERS.
const EPOCH: usize = 2;
/// The index of the first column of SHOW CLUSTERS that only the watching worker fills.
const OF_WATCHER: usize = 8;
/// The indexes of the columns that are sums over the workers: held_clients, the reads that fell back, resolving, and the outcomes that
/// clients were told at COMMIT.
const COUNTS: [usize; 5 + FellBack::ALL.len()] = [5, 14, 15, 16, 17, 18, 19, 20];

/// The index of a column of SHOW NODES.
const HOST: usize = 2;
/// The index of the first column that each worker counts for itself; `COUNTS_AT_NODE` is the number of these columns.
const AT_NODE: usize = 15;
const COUNTS_AT_NODE: usize = 6;

impl Worker {
    /// Returns this worker's rows of SHOW CLUSTERS, with the number of its clients that wait for a primary.
    pub(crate) fn cluster_rows(&self, env: &Env) -> Vec<Row> {
        let mut views: Vec<_> = env.clusters.views.values().collect();
        views.sort_by(|one, other| one.cluster.cmp(&other.cluster));
        let rows = views.into_iter().map(|view| {
            let held: u32 = self.pools_in_cluster(&view.cluster).map(|pool| pool.state.held()).sum();
            let mut counters = self.clusters.tallies.get(&view.cluster).cloned().unwrap_or_default();
            self.pools_in_cluster(&view.cluster).for_each(|pool| counters.add(&pool.state.all_counters()));
            let at_commit =
                |pool: &Pool| pool.clients.values().filter(|client| client.is_at_commit()).count();
            let resolving: usize = self.pools_in_cluster(&view.cluster).map(at_commit).sum();
            let outcomes = env.clusters.outcomes.get(&view.cluster).copied().unwrap_or_default();
            let primary = view.primary.as_ref();
            let discovery = env.rules.config.clusters.get(&*view.cluster).map(|options| options.discovery);
            let watched = self.clusters.watched.get(&view.cluster);
            let source = watched.and_then(|watched| watched.cluster.source());
            let age_ms = |heard_us: u64| cell(env.now.mono_us.saturating_sub(heard_us) / 1000);
            let mut row = vec![
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
                watched.and_then(|watched| watched.switchover_error(env.now.mono_us)),
            ];
            row.extend(counters.fell_back.map(cell));
            row.push(cell(resolving));
            row.extend([outcomes.committed, outcomes.rolled_back, outcomes.unknown].map(cell));
            row
        });
        rows.collect()
    }

    /// Returns this worker's rows of SHOW NODES: the nodes of the clusters that it watches, and the counts of its pools at all nodes.
    pub(crate) fn node_rows(&self, env: &Env) -> Vec<Row> {
        let mut rows = Vec::new();
        for name in env.clusters.views.keys() {
            let mut at_nodes = self.at_nodes(name);
            for (cluster, node) in self.clusters.watched.get(name).into_iter().flat_map(|watched| {
                let cluster = &watched.cluster;
                cluster.nodes.iter().map(move |node| (cluster, node))
            }) {
                let at = at_nodes.remove(&node.name).unwrap_or_default();
                rows.push(node_row(env, cluster, node, at));
            }
            rows.extend(at_nodes.iter().map(|(node, at)| counts_row(name, node, *at)));
        }
        rows
    }

    /// Returns the counts of this worker's pools at each node of a cluster.
    fn at_nodes(&self, cluster: &Arc<str>) -> BTreeMap<Arc<str>, AtNode> {
        let mut nodes = BTreeMap::new();
        if let Some(counters) = self.clusters.tallies.get(cluster) {
            counters.add_to(&mut nodes);
        }
        self.pools_in_cluster(cluster).for_each(|pool| pool.add_at_nodes(&mut nodes));
        nodes
    }

    fn pools_in_cluster(&self, cluster: &Arc<str>) -> impl Iterator<Item = &Pool> {
        let is_of = |pool: &&Pool| {
            let own = pool.state.cluster.as_ref();
            own.is_some_and(|own| own.view.cluster == *cluster)
        };
        self.pools.values().filter(is_of)
    }
}

impl Worker {
    /// Returns the rows of SHOW ROUTE: the node where a statement would run for the clients of each of this worker's pools of a database.
    pub(crate) fn route_rows(&self, env: &Env, database: &str, text: &str) -> Outcome {
        let of_database = |pool: &&Pool| *pool.state.database == *database;
        let rows = self.pools.values().filter(of_database).map(|pool| {
            let found = pool.explain_route(env, text.as_bytes());
            vec![
                cell(&pool.state.database),
                cell(&pool.state.user),
                cell(found.route),
                cell(found.runs_on),
                cell(found.decided_by),
                found.word,
            ]
        });
        Outcome::Rows(rows.collect())
    }
}

/// Joins the workers' rows of SHOW ROUTE.
pub(crate) fn merged_routes(outcomes: Vec<Outcome>) -> Vec<Row> {
    let mut rows: Vec<Row> = outcomes
        .into_iter()
        .flat_map(|outcome| match outcome {
            Outcome::Rows(rows) => rows,
            _ => Vec::new(),
        })
        .collect();
    rows.sort();
    rows
}

fn node_row(env: &Env, cluster: &Cluster, node: &Node, at: AtNode) -> Row {
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
        lag.and_then(|lag| lag.us).map(|us| (us / 1000).to_string()),
        cell(at.active),
        cell(at.idle),
        cell(at.waiting),
        cell(at.sent.reads),
        cell(at.sent.guards),
        cell(at.sent.guard_misses),
        cell(at.sent.second_tries),
        cell(at.sent.misrouted),
        node.checked_us.map(|checked_us| time_text(env, checked_us)),
        cluster.trouble(node),
    ]
}

/// Returns the row of a node that another worker watches, or that was removed.
fn counts_row(cluster: &str, node: &str, at: AtNode) -> Row {
    let mut row = vec![None; NODES.len()];
    (row[0], row[1]) = (cell(cluster), cell(node));
    let SentReads { reads, guards, guard_misses, second_tries, misrouted } = at.sent;
    let own = [at.active, at.idle, at.waiting].map(cell);
    let counts = [&own[..], &[reads, guards, guard_misses, second_tries, misrouted].map(cell)].concat();
    row[AT_NODE..AT_NODE + counts.len()].clone_from_slice(&counts);
    row
}

/// Merges the workers' rows into one for each node.
pub(crate) fn merged_nodes(rows: Vec<Row>) -> Vec<Row> {
    let mut nodes: BTreeMap<(Option<String>, Option<String>), Row> = BTreeMap::new();
    for row in rows {
        let key = (row[0].clone(), row[1].clone());
        let Some(known) = nodes.get_mut(&key) else {
            nodes.insert(key, row);
            continue;
        };
        for (column, (own, other)) in known.iter_mut().zip(row).enumerate() {
            if (AT_NODE..AT_NODE + COUNTS_AT_NODE).contains(&column) {
                *own = cell(number(own.as_deref()) + number(other.as_deref()));
            } else {
                *own = own.take().or(other);
            }
        }
    }
    // A node that no worker watches is none any more.
    nodes.into_values().filter(|row| row[HOST].is_some()).collect()
}

fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Merges the workers' rows into one for each cluster: the newest view, and the sums of the counts.
pub(crate) fn merged_clusters(rows: Vec<Row>) -> Vec<Row> {
    let mut clusters: BTreeMap<Option<String>, Row> = BTreeMap::new();
    let number = |row: &Row, column: usize| number(row.get(column).and_then(|cell| cell.as_deref()));
    for row in rows {
        let name = row.first().cloned().flatten();
        let Some(known) = clusters.get_mut(&name) else {
            clusters.insert(name, row);
            continue;
        };
        let counts = COUNTS.map(|column| (column, number(known, column) + number(&row, column)));
        let is_newer = number(&row, EPOCH) > number(known, EPOCH);
        let other = if is_newer { std::mem::replace(known, row) } else { row };
        // Of the source only the worker that watches the cluster knows.
        for (own, other) in known.iter_mut().zip(other).skip(OF_WATCHER) {
            *own = own.take().or(other);
        }
        counts.into_iter().for_each(|(column, sum)| known[column] = cell(sum));
    }
    clusters.into_values().collect()
}
