//! The API's clusters and nodes, from SHOW CLUSTERS and SHOW NODES, and their latest changes.

use pgweir_core::console::command::Topic;
use serde_json::{Map, Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::history::{Change, ChangeKind};
use super::super::model::unix_s as now_s;
use super::super::reply::Refusal;
use super::connections::unix_s;
use super::tables::ShowRow;

/// Columns of SHOW CLUSTERS that are numbers.
const CLUSTER_NUMBERS: [&str; 11] = [
    "epoch",
    "timeline",
    "held_clients",
    "source_age_ms",
    "fell_back_no_standby",
    "fell_back_lag",
    "fell_back_behind",
    "resolving",
    "outcomes_committed",
    "outcomes_rolled_back",
    "outcomes_unknown",
];

/// Columns of SHOW NODES that are numbers. A column that this version does not have is left out.
const NODE_NUMBERS: [&str; 14] = [
    "port",
    "weight",
    "share",
    "timeline",
    "lag_bytes",
    "lag_ms",
    "sv_active",
    "sv_idle",
    "cl_waiting",
    "reads",
    "guards",
    "guard_misses",
    "second_tries",
    "misrouted",
];

impl WebState {
    /// Returns the rows of SHOW CLUSTERS and SHOW NODES, and adds their changes to the history. Without
    /// clusters no worker is asked.
    pub(in super::super) async fn look_at_clusters(&self) -> Result<(Vec<ShowRow>, Vec<ShowRow>), Refusal> {
        // Only one request at a time: otherwise an older answer could come after a newer one, and look like a
        // change.
        let _turn = self.clusters_turn.lock().await;
        let (mut clusters, mut nodes) = (Vec::new(), Vec::new());
        if !self.config().clusters.is_empty() {
            clusters = self.show(Topic::Clusters).await?;
            nodes = self.show(Topic::Nodes).await?;
        }
        self.clusters.borrow_mut().take(now_s(), &clusters, &nodes);
        Ok((clusters, nodes))
    }
}

pub(super) async fn clusters(web: &WebState, reader: &Reader) -> Result<Value, Refusal> {
    let (clusters, nodes) = web.look_at_clusters().await?;
    let names = reader.sees_names();
    let config = web.config();
    let clusters: Vec<Value> = clusters
        .iter()
        .map(|row| {
            let name = row.get("cluster").unwrap_or_default();
            let its = nodes.iter().filter(|node| node.get("cluster") == Some(name));
            let of_it = config.databases.iter().filter(|(_, base)| base.cluster.as_deref() == Some(name));
            let mut object = cluster(row, names);
            object.insert("nodes".to_owned(), its.map(|row| node(row, names)).collect());
            object.insert("databases".to_owned(), of_it.map(|(name, _)| name.as_str()).collect());
            object.into()
        })
        .collect();
    let history = web.clusters.borrow();
    let changes: Vec<Value> = history.changes().map(|one| change(one, names)).collect();
    Ok(json!({ "time_s": now_s(), "clusters": clusters, "changes": changes }))
}

/// Returns the clusters as the overview shows them.
pub(super) fn summaries(web: &WebState) -> Vec<Value> {
    let history = web.clusters.borrow();
    let summary = |cluster: &super::super::history::ClusterState| {
        let nodes = history.nodes_of(&cluster.name);
        let nodes: Vec<Value> = nodes
            .map(|node| json!({ "name": node.node, "state": node.state, "switch": node.switch }))
            .collect();
        json!({
            "name": cluster.name,
            "primary": cluster.primary,
            "held_clients": cluster.held_clients,
            "nodes": nodes,
        })
    };
    history.clusters().iter().map(summary).collect()
}

fn cluster(row: &ShowRow, names: bool) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("name".to_owned(), row.get("cluster").into());
    for key in ["state", "primary", "discovery", "source"].into_iter().filter(|key| row.has(key)) {
        object.insert(key.to_owned(), row.get(key).into());
    }
    for key in CLUSTER_NUMBERS.into_iter().filter(|key| row.has(key)) {
        object.insert(key.to_owned(), row.number(key).into());
    }
    object.insert("held_since_s".to_owned(), unix_s(row.get("held_since")).into());
    object.insert("switchover".to_owned(), row.get("switchover").into());
    // The texts may contain addresses.
    for key in ["reason", "source_error", "switchover_error"].into_iter().filter(|key| row.has(key)) {
        object.insert(key.to_owned(), row.get(key).filter(|_| names).into());
    }
    object
}

fn node(row: &ShowRow, names: bool) -> Value {
    let mut object = Map::new();
    object.insert("name".to_owned(), row.get("node").into());
    let texts = ["zone", "role", "state", "switch", "position"];
    for key in texts.into_iter().filter(|key| row.has(key)) {
        object.insert(key.to_owned(), row.get(key).into());
    }
    for key in NODE_NUMBERS.into_iter().filter(|key| row.has(key)) {
        object.insert(key.to_owned(), row.number(key).into());
    }
    for (key, column) in [("state_since_s", "state_since"), ("last_check_s", "last_check")] {
        object.insert(key.to_owned(), unix_s(row.get(column)).into());
    }
    for key in ["host", "last_error"] {
        object.insert(key.to_owned(), row.get(key).filter(|_| names).into());
    }
    object.into()
}

fn change(change: &Change, names: bool) -> Value {
    let Change { time_s, cluster, what } = change;
    match what {
        ChangeKind::State { node, from, to, error } => json!({
            "time_s": time_s, "cluster": cluster, "kind": "state", "node": node, "from": from, "to": to,
            "error": error.as_deref().filter(|_| names),
        }),
        ChangeKind::Switch { node, to } => {
            json!({ "time_s": time_s, "cluster": cluster, "kind": "switch", "node": node, "to": to })
        }
        ChangeKind::Primary { node, epoch } => {
            json!({ "time_s": time_s, "cluster": cluster, "kind": "primary", "node": node, "epoch": epoch })
        }
        ChangeKind::Held => json!({ "time_s": time_s, "cluster": cluster, "kind": "held" }),
    }
}
