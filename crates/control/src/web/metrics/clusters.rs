//! Metrics of clusters and their nodes, from the tables of SHOW CLUSTERS and SHOW NODES.

use super::super::api::ShowRow;
use super::text::Page;

/// The reasons why reads fall back to the primary. SHOW CLUSTERS counts each in a column.
const FELL_BACK: [(&str, &str); 3] =
    [("no_standby", "fell_back_no_standby"), ("lag", "fell_back_lag"), ("behind", "fell_back_behind")];

/// The states that a node can be in.
const STATES: [&str; 7] = ["unknown", "standby", "primary", "unsure", "starting", "down", "refused"];

/// The outcomes that a client at COMMIT may be told.
const OUTCOMES: [&str; 3] = ["committed", "rolled_back", "unknown"];

/// The counters of nodes: metric, help text, and the column of SHOW NODES.
const COUNTED: [(&str, &str, &str); 5] = [
    (
        "pgweir_node_reads_total",
        "Groups of messages and transactions of clients with a route to standbys that the node was sent",
        "reads",
    ),
    (
        "pgweir_node_guards_total",
        "Answers of the standby to the question of how far it has replayed",
        "guards",
    ),
    (
        "pgweir_node_guard_misses_total",
        "Such answers after which a client still waited for the changes that it must see (causal_reads)",
        "guard_misses",
    ),
    (
        "pgweir_node_second_tries_total",
        "Reads of route=auto that the standby did not run, and that the primary ran instead",
        "second_tries",
    ),
    (
        "pgweir_node_misrouted_total",
        "Reads of route=auto that the standby refused as changes: pgweir took them for reads, and should not have",
        "misrouted",
    ),
];

pub(super) fn write(page: &mut Page, clusters: &[ShowRow], nodes: &[ShowRow]) {
    if clusters.is_empty() {
        return;
    }
    let name = |row: &ShowRow| row.get("cluster").unwrap_or_default().to_owned();
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
    page.counter(
        "pgweir_reads_fell_back_total",
        "Reads that went to the primary although their route prefers a standby, by the reason",
    );
    for row in clusters {
        for (reason, column) in FELL_BACK {
            let count = row.number(column).unwrap_or(0);
            page.labelled(&[("cluster", &name(row)), ("reason", reason)], count);
        }
    }
    page.gauge(
        "pgweir_cluster_resolving_clients",
        "Clients at COMMIT whose primary was lost, and that wait for the outcome",
    );
    for row in clusters {
        page.labelled(&[("cluster", &name(row))], row.number("resolving").unwrap_or(0));
    }
    page.counter(
        "pgweir_cluster_commit_outcomes_total",
        "What clients were told that had sent COMMIT when their primary was lost",
    );
    for row in clusters {
        for outcome in OUTCOMES {
            let count = row.number(&format!("outcomes_{outcome}")).unwrap_or(0);
            page.labelled(&[("cluster", &name(row)), ("outcome", outcome)], count);
        }
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
    of_nodes(page, nodes, "lag_bytes");
    page.gauge(
        "pgweir_node_lag_seconds",
        "Age of the primary's oldest position that the standby has not replayed",
    );
    for row in nodes.iter().filter(|row| row.get("lag_ms").is_some()) {
        let lag_ms = u32::try_from(row.number("lag_ms").unwrap_or(0)).unwrap_or(u32::MAX);
        page.labelled(&of_node(row), f64::from(lag_ms) / 1000.0);
    }
    page.gauge("pgweir_node_active_connections", "Connections to the node that work for clients");
    of_nodes(page, nodes, "sv_active");
    page.gauge("pgweir_node_idle_connections", "Free connections to the node");
    of_nodes(page, nodes, "sv_idle");
    page.gauge("pgweir_node_waiting_clients", "Clients that wait for a connection to the node");
    of_nodes(page, nodes, "cl_waiting");
    for (name, help, column) in COUNTED {
        page.counter(name, help);
        of_nodes(page, nodes, column);
    }
}

/// Writes a column of SHOW NODES, for each node that has it.
fn of_nodes(page: &mut Page, nodes: &[ShowRow], column: &str) {
    for row in nodes.iter().filter(|row| row.get(column).is_some()) {
        page.labelled(&of_node(row), row.number(column).unwrap_or(0));
    }
}

fn of_node(row: &ShowRow) -> [(&'static str, &str); 2] {
    ["cluster", "node"].map(|name| (name, row.get(name).unwrap_or_default()))
}
