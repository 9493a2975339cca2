//! The latest changes in the clusters, found by comparing SHOW CLUSTERS and SHOW NODES from second to second,
//! so that a page that is opened later shows them, too. A change that begins and ends between two samples is
//! not in it.

use std::collections::VecDeque;

use super::api::ShowRow;
use super::limits::CLUSTER_CHANGES_MAX;

/// The last known state of the clusters, and the latest changes.
#[derive(Default)]
pub(super) struct ClusterHistory {
    clusters: Vec<ClusterState>,
    nodes: Vec<NodeState>,
    /// The changes, the oldest first.
    changes: VecDeque<Change>,
}

/// The last known state of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ClusterState {
    pub(super) name: String,
    /// The primary; `None` while clients are held.
    pub(super) primary: Option<String>,
    pub(super) epoch: u64,
    pub(super) held_clients: u64,
}

/// The last known state of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeState {
    pub(super) cluster: String,
    pub(super) node: String,
    pub(super) state: String,
    /// The switch: `attached`, `draining` or `detached`.
    pub(super) switch: String,
}

/// A change, with the time when it was seen (Unix time in seconds).
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Change {
    pub(super) time_s: f64,
    pub(super) cluster: String,
    pub(super) what: ChangeKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ChangeKind {
    /// A node has another state. `from` is `None` for a new node, `to` is `None` for one that is gone.
    State { node: String, from: Option<String>, to: Option<String>, error: Option<String> },
    /// An operator attached, drained or detached a node.
    Switch { node: String, to: String },
    /// Clients are sent to this node, in this epoch.
    Primary { node: String, epoch: u64 },
    /// The cluster has no primary: clients wait.
    Held,
}

impl ClusterHistory {
    /// Compares the console's tables with the last known state.
    pub(super) fn take(&mut self, time_s: f64, clusters: &[ShowRow], nodes: &[ShowRow]) {
        let mut found = Vec::new();
        let now: Vec<NodeState> = nodes.iter().map(NodeState::of).collect();
        for (node, row) in now.iter().zip(nodes) {
            let before = self.nodes.iter().find(|known| known.is_same(node));
            if before.is_none_or(|before| before.state != node.state) {
                let what = ChangeKind::State {
                    node: node.node.clone(),
                    from: before.map(|before| before.state.clone()),
                    to: Some(node.state.clone()),
                    error: row.get("last_error").map(str::to_owned),
                };
                found.push((node.cluster.clone(), what));
            }
            let switch = before.map_or("attached", |before| &before.switch);
            if switch != node.switch {
                let what = ChangeKind::Switch { node: node.node.clone(), to: node.switch.clone() };
                found.push((node.cluster.clone(), what));
            }
        }
        for gone in self.nodes.iter().filter(|known| !now.iter().any(|node| node.is_same(known))) {
            let (node, from) = (gone.node.clone(), Some(gone.state.clone()));
            found.push((gone.cluster.clone(), ChangeKind::State { node, from, to: None, error: None }));
        }
        self.nodes = now;
        let now: Vec<ClusterState> = clusters.iter().map(ClusterState::of).collect();
        for cluster in &now {
            let before = self.clusters.iter().find(|known| known.name == cluster.name);
            let what = match &cluster.primary {
                _ if before.is_some_and(|before| before.serves_as(cluster)) => continue,
                Some(node) => ChangeKind::Primary { node: node.clone(), epoch: cluster.epoch },
                None => ChangeKind::Held,
            };
            found.push((cluster.name.clone(), what));
        }
        self.clusters = now;
        let found = found.into_iter().map(|(cluster, what)| Change { time_s, cluster, what });
        self.changes.extend(found);
        let extra = self.changes.len().saturating_sub(CLUSTER_CHANGES_MAX);
        self.changes.drain(..extra);
    }

    /// Returns the last known state of the clusters.
    pub(super) fn clusters(&self) -> &[ClusterState] {
        &self.clusters
    }

    /// Returns the last known state of a cluster's nodes.
    pub(super) fn nodes_of<'a>(&'a self, cluster: &'a str) -> impl Iterator<Item = &'a NodeState> {
        self.nodes.iter().filter(move |node| node.cluster == cluster)
    }

    /// Returns the latest changes, the newest first.
    pub(super) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter().rev()
    }
}

impl ClusterState {
    fn of(row: &ShowRow) -> ClusterState {
        let is_available = row.get("state") == Some("available");
        ClusterState {
            name: row.get("cluster").unwrap_or_default().to_owned(),
            primary: row.get("primary").filter(|_| is_available).map(str::to_owned),
            epoch: row.number("epoch").unwrap_or(0),
            held_clients: row.number("held_clients").unwrap_or(0),
        }
    }

    /// Returns whether clients are sent to the same primary, in the same epoch.
    fn serves_as(&self, other: &ClusterState) -> bool {
        self.primary == other.primary && (self.primary.is_none() || self.epoch == other.epoch)
    }
}

impl NodeState {
    fn of(row: &ShowRow) -> NodeState {
        let text = |column| row.get(column).unwrap_or_default().to_owned();
        NodeState {
            cluster: text("cluster"),
            node: text("node"),
            state: text("state"),
            switch: text("switch"),
        }
    }

    fn is_same(&self, other: &NodeState) -> bool {
        self.cluster == other.cluster && self.node == other.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(primary: Option<&str>, epoch: u64) -> ShowRow {
        let state = if primary.is_some() { "available" } else { "held" };
        let cells = [Some("main"), primary, Some(&epoch.to_string()), Some(state), Some("3")]
            .map(|cell| cell.map(str::to_owned));
        ShowRow::of(&["cluster", "primary", "epoch", "state", "held_clients"], cells.to_vec())
    }

    fn node(name: &str, state: &str, switch: &str) -> ShowRow {
        let cells = ["main", name, state, switch].map(|cell| Some(cell.to_owned()));
        ShowRow::of(&["cluster", "node", "state", "switch"], cells.to_vec())
    }

    fn told(history: &ClusterHistory) -> Vec<String> {
        let mut told: Vec<String> = history
            .changes()
            .map(|change| match &change.what {
                ChangeKind::State { node, from, to, .. } => format!(
                    "{node}: {} to {}",
                    from.as_deref().unwrap_or("none"),
                    to.as_deref().unwrap_or("none")
                ),
                ChangeKind::Switch { node, to } => format!("{node} {to}"),
                ChangeKind::Primary { node, epoch } => format!("{node} in epoch {epoch}"),
                ChangeKind::Held => "held".to_owned(),
            })
            .collect();
        told.reverse();
        told
    }

    #[test]
    fn each_change_is_told_once() {
        let mut history = ClusterHistory::default();
        let (m1, m2) = (|state| node("m1", state, "attached"), |state| node("m2", state, "attached"));
        for _ in 0..2 {
            history.take(1.0, &[cluster(Some("m1"), 1)], &[m1("primary"), m2("standby")]);
        }
        assert_eq!(told(&history), ["m1: none to primary", "m2: none to standby", "m1 in epoch 1"]);
        for _ in 0..2 {
            history.take(2.0, &[cluster(None, 1)], &[m1("down"), m2("standby")]);
        }
        history.take(3.0, &[cluster(Some("m2"), 2)], &[m1("down"), m2("primary")]);
        assert_eq!(
            told(&history)[3..],
            ["m1: primary to down", "held", "m2: standby to primary", "m2 in epoch 2"]
        );
        history.take(4.0, &[cluster(Some("m2"), 2)], &[node("m1", "down", "detached"), m2("primary")]);
        history.take(5.0, &[cluster(Some("m2"), 3)], &[m2("primary")]);
        assert_eq!(told(&history)[7..], ["m1 detached", "m1: down to none", "m2 in epoch 3"]);
        assert_eq!(history.clusters()[0].held_clients, 3);
        assert_eq!(history.nodes_of("main").count(), 1);
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let mut history = ClusterHistory::default();
        for turn in 0..CLUSTER_CHANGES_MAX {
            let state = if turn % 2 == 0 { "standby" } else { "down" };
            history.take(0.0, &[cluster(Some("m1"), 1)], &[node("m2", state, "attached")]);
        }
        assert_eq!(history.changes().count(), CLUSTER_CHANGES_MAX);
    }
}
