//! Clusters and their nodes, from the tables of SHOW CLUSTERS and SHOW NODES.

use super::super::api::Shown;
use super::text::Page;

/// The states that a node can be in.
const STATES: [&str; 7] = ["unknown", "standby", "primary", "unsure", "starting", "down", "refused"];

pub(super) fn write(page: &mut Page, clusters: &[Shown], nodes: &[Shown]) {
    if clusters.is_empty() {
        return;
    }
    let name = |row: &Shown| row.get("cluster").unwrap_or_default().to_owned();
    page.gauge("pgweir_cluster_available", "Whether the cluster has a primary that clients are sent to");
    for row in clusters {
        let available = u32::from(row.get("state") == Some("available"));
        page.labelled(&[("cluster", &name(row))], available);
    }
    page.gauge("pgweir_cluster_epoch", "How often the cluster's primary has changed or was restarted");
    for row in clusters {
        page.labelled(&[("cluster", &name(row))], row.number("epoch").unwrap_or(0));
    }
    page.gauge("pgweir_cluster_held_clients", "Clients that wait until the cluster has a primary");
    for row in clusters {
        page.labelled(&[("cluster", &name(row))], row.number("held_clients").unwrap_or(0));
    }
    page.gauge("pgweir_cluster_switchover", "Whether a SWITCHOVER of the cluster is under way");
    for row in clusters {
        page.labelled(&[("cluster", &name(row))], u32::from(row.get("switchover").is_some()));
    }
    page.gauge(
        "pgweir_cluster_source_age_seconds",
        "How long ago the source of the cluster (Patroni, etcd, a name server) answered",
    );
    for row in clusters.iter().filter(|row| row.get("source_age_ms").is_some()) {
        let age_s = row.number("source_age_ms").unwrap_or(0) / 1000;
        page.labelled(&[("cluster", &name(row))], age_s);
    }
    page.gauge("pgweir_node_state", "1 for the state that the node is in, 0 for the others");
    for row in nodes {
        let node = row.get("node").unwrap_or_default();
        for state in STATES {
            let is_in = u32::from(row.get("state") == Some(state));
            page.labelled(&[("cluster", &name(row)), ("node", node), ("state", state)], is_in);
        }
    }
    page.gauge("pgweir_node_lag_bytes", "Bytes of log by which the standby is behind the primary");
    for row in nodes.iter().filter(|row| row.get("lag_bytes").is_some()) {
        let node = row.get("node").unwrap_or_default();
        page.labelled(&[("cluster", &name(row)), ("node", node)], row.number("lag_bytes").unwrap_or(0));
    }
}
