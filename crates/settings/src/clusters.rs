//! What must fit between the lines of `[clusters]`, `[nodes]` and `[databases]`.

use std::collections::BTreeMap;

use crate::FALLBACK_DATABASE;
use crate::config::{Config, Place};
use crate::error::LoadError;
use crate::syntax::slips::did_you_mean;
use crate::table::ClusterOptions;

/// Maximum number of nodes of a cluster.
const NODES_MAX: usize = 64;

/// Every fault between the lines, at the line that has to change.
pub(crate) fn faults(config: &Config) -> Vec<LoadError> {
    let mut faults = Vec::new();
    let mut member_of: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, cluster) in &config.clusters {
        let Some(place) = config.cluster_places.get(name) else { continue };
        let mut say = |reason: String| faults.push(fault(place, "cluster", name, &reason));
        faults_of_options(config, cluster).into_iter().for_each(&mut say);
        for node in &cluster.nodes {
            if !config.nodes.contains_key(node) {
                let meant = did_you_mean(node, config.nodes.keys().map(String::as_str));
                say(format!("there is no node \"{node}\" in [nodes]{meant}"));
            }
            match member_of.insert(node, name) {
                Some(other) if other == name => say(format!("node \"{node}\" is listed twice")),
                Some(other) => say(format!("node \"{node}\" belongs to cluster \"{other}\" already")),
                None => {}
            }
        }
    }
    faults.extend(shared_addresses(config));
    faults.extend(unknown_clusters(config));
    faults
}

fn faults_of_options(config: &Config, cluster: &ClusterOptions) -> Vec<String> {
    let mut faults = Vec::new();
    if cluster.nodes.is_empty() {
        faults.push("a cluster needs nodes".to_owned());
    }
    if cluster.nodes.len() > NODES_MAX {
        faults.push(format!("a cluster has at most {NODES_MAX} nodes"));
    }
    if config.check_user(cluster).is_none() {
        faults.push("a cluster needs check_user, or the global auth_user".to_owned());
    }
    if cluster.check_timeout_ms > cluster.primary_max_age_ms {
        faults.push("check_timeout_ms must not be above primary_max_age_ms".to_owned());
    }
    if cluster.check_interval_ms >= cluster.primary_max_age_ms {
        faults.push("check_interval_ms must be below primary_max_age_ms".to_owned());
    }
    faults
}

/// Two names for one server would be two primaries.
fn shared_addresses(config: &Config) -> Vec<LoadError> {
    let mut at: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, node) in &config.nodes {
        let Some(place) = config.node_places.get(name) else { continue };
        match at.insert((&node.host, node.port), name) {
            Some(other) if !node.host.is_empty() => {
                faults.push(fault(place, "node", name, &format!("node \"{other}\" has the same address")));
            }
            _ => {}
        }
    }
    faults
}

fn unknown_clusters(config: &Config) -> Vec<LoadError> {
    let named = config.databases.iter().map(|(name, database)| (name.as_str(), database));
    let all = named.chain(config.fallback.iter().map(|database| (FALLBACK_DATABASE, database)));
    let unknown = all.filter_map(|(name, database)| {
        let cluster = database.cluster.as_ref().filter(|cluster| !config.clusters.contains_key(*cluster))?;
        let meant = did_you_mean(cluster, config.clusters.keys().map(String::as_str));
        let reason = format!("there is no cluster \"{cluster}\" in [clusters]{meant}");
        Some(fault(config.database_places.get(name)?, "database", name, &reason))
    });
    unknown.collect()
}

fn fault(place: &Place, what: &str, name: &str, reason: &str) -> LoadError {
    let problem = format!("{what} \"{name}\": {reason}");
    place.error(format!("{problem} ({place})"), problem)
}
