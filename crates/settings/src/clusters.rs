//! Checks that the lines of `[clusters]`, `[nodes]` and `[databases]` fit together.

use std::collections::BTreeMap;

use crate::config::{Config, Place};
use crate::error::{LoadError, Warning};
use crate::syntax::hosts::{SourceUrl, fault_of_allowed};
use crate::syntax::slips::did_you_mean;
use crate::syntax::vip::faults_of_vip;
use crate::table::{ClusterOptions, Database, Main};
use crate::{Discovery, FALLBACK_DATABASE, Route, SharedLimits};

/// Maximum number of nodes of a cluster.
const NODES_MAX: usize = 64;
/// The lowest `ttl` that Patroni accepts, in milliseconds: after that time it may promote another node.
const PATRONI_TTL_MS_MIN: u32 = 20_000;

/// Returns every fault between the lines, each with the place of the line that has to change.
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
    faults.extend(faults_of_process(config));
    faults.extend(nodes_without_host(config));
    faults.extend(shared_addresses(config));
    faults.extend(weightless(config));
    faults.extend(weightless_users(config));
    faults.extend(unknown_clusters(config));
    faults
}

fn faults_of_options(config: &Config, cluster: &ClusterOptions) -> Vec<String> {
    let mut faults = faults_of_way(config, cluster);
    if cluster.nodes.len() > NODES_MAX {
        faults.push(format!("a cluster has at most {NODES_MAX} nodes"));
    }
    if config.check_user(cluster).is_none() {
        faults.push("a cluster needs check_user, or the global auth_user".to_owned());
    }
    if cluster.check_timeout_ms > cluster.primary_max_age_ms {
        faults.push("check_timeout_ms must not be above primary_max_age_ms".to_owned());
    }
    if cluster.prefer_lower_lag && cluster.lag_limit_ms == 0 && cluster.lag_limit_bytes == 0 {
        faults.push("prefer_lower_lag needs lag_limit_ms or lag_limit_bytes".to_owned());
    }
    if cluster.lag_query.is_some() && cluster.lag_command.is_some() {
        faults.push("lag_query and lag_command cannot stand in one cluster".to_owned());
    }
    if cluster.promote_command.is_some() && matches!(cluster.discovery, Discovery::Patroni | Discovery::Etcd)
    {
        faults.push(format!(
            "promote_command is for discovery=sql and discovery=dns: with discovery={} Patroni promotes",
            cluster.discovery
        ));
    }
    if cluster.check_interval_ms >= cluster.primary_max_age_ms {
        faults.push("check_interval_ms must be below primary_max_age_ms".to_owned());
    }
    faults
}

/// Returns the faults of the keys that the cluster's way of discovery needs.
fn faults_of_way(config: &Config, cluster: &ClusterOptions) -> Vec<String> {
    let mut faults = Vec::new();
    let mut needs = |given: bool, what: &str| {
        if !given {
            faults.push(format!("a cluster with discovery={} needs {what}", cluster.discovery));
        }
    };
    match cluster.discovery {
        Discovery::Sql if cluster.nodes.is_empty() => faults.push("a cluster needs nodes".to_owned()),
        Discovery::Sql => {}
        Discovery::Dns => needs(cluster.host.is_some(), "host"),
        Discovery::Patroni => {
            needs(!cluster.patroni_api.is_empty(), "patroni_api");
            needs(!config.main.allow_discovered_hosts.is_empty(), "the global allow_discovered_hosts");
        }
        Discovery::Etcd => {
            needs(cluster.etcd_prefix.is_some(), "etcd_prefix");
            needs(!config.main.etcd_endpoints.is_empty(), "the global etcd_endpoints");
            needs(!config.main.allow_discovered_hosts.is_empty(), "the global allow_discovered_hosts");
        }
    }
    faults.extend(faults_of_urls(config, "patroni_api", &cluster.patroni_api));
    if cluster.patroni_user.is_some() != cluster.patroni_password.is_some() {
        faults.push("patroni_user and patroni_password need each other".to_owned());
    }
    faults
}

fn faults_of_urls(config: &Config, key: &str, list: &[String]) -> Vec<String> {
    let fault = |text: &String| match SourceUrl::parse(text) {
        Err(_) if text.contains('@') => Some(format!("{key}: an address has no user and no password")),
        Err(reason) => Some(format!("{key}: \"{text}\": {reason}")),
        Ok(url) if url.tls && config.main.source_tls_ca_file.is_empty() => {
            Some(format!("{key}: {url} needs the global source_tls_ca_file"))
        }
        Ok(_) => None,
    };
    list.iter().filter_map(fault).collect()
}

/// Returns the faults of the settings of the whole process that concern clusters.
fn faults_of_process(config: &Config) -> Vec<LoadError> {
    let main = &config.main;
    let mut faults = Vec::new();
    let mut say = |key: &str, reason: String| {
        if let Some(place) = config.given.get(key) {
            faults.push(place.error(format!("{reason} ({place})"), reason));
        }
    };
    let urls = faults_of_urls(config, "etcd_endpoints", &main.etcd_endpoints);
    urls.into_iter().for_each(|reason| say("etcd_endpoints", reason));
    faults_of_vip(main).into_iter().for_each(|(key, reason)| say(key, reason));
    faults_of_shared_limits(main).into_iter().for_each(|(key, reason)| say(key, reason));
    for reason in main.allow_discovered_hosts.iter().filter_map(|text| fault_of_allowed(text)) {
        say("allow_discovered_hosts", format!("allow_discovered_hosts: {reason}"));
    }
    if main.standby_listen_port > 0 && main.standby_listen_port == main.listen_port {
        say("standby_listen_port", "standby_listen_port must be another port than listen_port".to_owned());
    }
    for [one, other] in [
        ["etcd_user", "etcd_password"],
        ["etcd_password", "etcd_user"],
        ["source_tls_cert_file", "source_tls_key_file"],
        ["source_tls_key_file", "source_tls_cert_file"],
    ] {
        if config.given.contains_key(one) && !config.given.contains_key(other) {
            say(one, format!("{one} needs {other}"));
        }
    }
    faults
}

/// Returns the faults of the settings of shared limits: the setting, and the reason.
fn faults_of_shared_limits(main: &Main) -> Vec<(&'static str, String)> {
    if main.shared_limits == SharedLimits::Off {
        return Vec::new();
    }
    let mut faults = Vec::new();
    if main.etcd_endpoints.is_empty() {
        let reason =
            "shared_limits=etcd needs etcd_endpoints: there the poolers agree on their parts of the limits";
        faults.push(("shared_limits", reason.to_owned()));
    }
    let prefix = &main.shared_limits_prefix;
    if !prefix.starts_with('/') || !prefix.ends_with('/') || prefix.len() < 3 || !prefix.is_ascii() {
        let reason = format!(
            "shared_limits_prefix: \"{prefix}\": must begin and end with \"/\", such as /pgweir/limits/"
        );
        faults.push(("shared_limits_prefix", reason));
    }
    faults
}

/// Returns a fault for each node without an address that a cluster lists, or that no cluster can discover.
fn nodes_without_host(config: &Config) -> Vec<LoadError> {
    let discovers = config.clusters.values().any(|cluster| cluster.discovery != Discovery::Sql);
    let is_listed = |name: &String| config.clusters.values().any(|cluster| cluster.nodes.contains(name));
    let lacking =
        config.nodes.iter().filter(|(name, node)| node.host.is_empty() && (!discovers || is_listed(name)));
    let fault =
        |name: &String| Some(fault(config.node_places.get(name)?, "node", name, "a node needs a host"));
    lacking.filter_map(|(name, _)| fault(name)).collect()
}

/// Returns warnings about clusters that work, but perhaps not as their administrator expects.
pub(crate) fn warnings(config: &Config) -> Vec<Warning> {
    let warning = |(name, cluster): (&String, &ClusterOptions)| {
        let by_patroni = matches!(cluster.discovery, Discovery::Patroni | Discovery::Etcd);
        let is_late = by_patroni && cluster.primary_max_age_ms > PATRONI_TTL_MS_MIN;
        let place = config.cluster_places.get(name).filter(|_| is_late)?;
        Some(place.warning(format!(
            "cluster \"{name}\": primary_max_age_ms={} is above {PATRONI_TTL_MS_MIN}: with a short ttl Patroni promotes another \
             node before pgweir gives up a primary that it cannot reach",
            cluster.primary_max_age_ms
        )))
    };
    let unused = config.given.get("standby_listen_port").filter(|_| config.clusters.is_empty());
    let unused = unused.filter(|_| config.main.standby_listen_port > 0).map(|place| {
        place.warning("standby_listen_port has no effect without a database that has a cluster".to_owned())
    });
    config.clusters.iter().filter_map(warning).chain(unused).collect()
}

/// Returns a fault for each node with the address of another one: two names for one server would be two
/// primaries.
fn shared_addresses(config: &Config) -> Vec<LoadError> {
    let mut at: BTreeMap<(&str, u16), &str> = BTreeMap::new();
    let mut faults = Vec::new();
    for (name, node) in &config.nodes {
        let Some(place) = config.node_places.get(name) else { continue };
        match at.insert((&node.host, node.port), name) {
            // Nodes without a host are discovered; their addresses are not known yet.
            Some(other) if !node.host.is_empty() => {
                faults.push(fault(place, "node", name, &format!("node \"{other}\" has the same address")));
            }
            _ => {}
        }
    }
    faults
}

/// Returns a fault for each database whose clients would wait for a standby that takes no reads.
fn weightless(config: &Config) -> Vec<LoadError> {
    let named = config.databases.iter().map(|(name, database)| (name.as_str(), database));
    let all = named.chain(config.fallback.iter().map(|database| (FALLBACK_DATABASE, database)));
    let faults = all.filter_map(|(name, database)| {
        let cluster = config.clusters.get(database.cluster.as_ref()?)?;
        let waits = database.route.unwrap_or(cluster.route) == Route::Standby;
        let lacks = config.has_only_weight_0(database);
        let reason = "route=standby, and every node of its cluster has weight 0";
        (waits && lacks).then(|| Some(fault(config.database_places.get(name)?, "database", name, reason)))?
    });
    faults.collect()
}

/// Returns a fault for each user whose clients would wait for such a standby in every database with a
/// cluster.
fn weightless_users(config: &Config) -> Vec<LoadError> {
    let all =
        || config.databases.values().chain(&config.fallback).filter(|database| database.cluster.is_some());
    if all().next().is_none() || !all().all(|database| config.has_only_weight_0(database)) {
        return Vec::new();
    }
    let waits = config.users.iter().filter(|(_, user)| user.route == Some(Route::Standby));
    let reason = "route=standby, and every node of the clusters has weight 0";
    waits.filter_map(|(name, _)| Some(fault(config.user_places.get(name)?, "user", name, reason))).collect()
}

impl Config {
    /// Returns whether the database has a cluster with a list of nodes, none of which may get reads.
    pub(crate) fn has_only_weight_0(&self, database: &Database) -> bool {
        let mut nodes = self.nodes_of(database).peekable();
        nodes.peek().is_some() && nodes.all(|(_, node)| node.weight == 0)
    }
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
