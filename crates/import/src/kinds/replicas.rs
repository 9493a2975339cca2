//! Turns servers of one database into a cluster: pgweir watches them, follows the primary, and reads from
//! standbys.
//!
//! A server belongs to one cluster, so databases whose lists of servers have a server in common share a
//! cluster.

use super::add_database;
use crate::plan::{Cluster, Database, Node, Plan, Pool, Secret};
use crate::reader::Reader;
use crate::resolve::is_stored;

/// The user of the checks if the configuration names no user who could log in.
const CHECK_USER: &str = "pgweir_check";

/// The finding about pools that read from standbys in transaction pooling only.
const SESSION: &str =
    "in session pooling `route=auto` keeps all statements at the primary; set `pool_mode = transaction`";

/// The role of a server in replication, as the file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Primary,
    Replica,
    /// The role is not stated: the other pooler asks the server, as pgweir does.
    Asked,
}

/// A server of a database.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) line: u32,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) role: Role,
    pub(super) weight: Option<u32>,
}

/// Adds a database with these servers. A single one is its `host`, replicas alone take turns, and a primary
/// with replicas is a cluster. Returns whether the database has a cluster.
pub(super) fn add(
    reader: &mut Reader<'_, '_>,
    line: u32,
    mut database: Database,
    servers: &[Server],
) -> bool {
    let mut different: Vec<&Server> = Vec::new();
    for server in servers {
        if !different.iter().any(|known| (&known.host, known.port) == (&server.host, server.port)) {
            different.push(server);
        }
    }
    let Some(first) = different.first() else { return false };
    let only_replicas = different.iter().all(|server| server.role == Role::Replica);
    let is_cluster = different.len() > 1 && !only_replicas;
    if is_cluster {
        database.cluster = Some(cluster(reader, line, &database.name, &different));
    } else {
        let (alike, others): (Vec<&Server>, Vec<&Server>) =
            different.iter().partition(|server| server.port == first.port);
        database.host = alike.iter().map(|server| server.host.as_str()).collect::<Vec<_>>().join(",");
        database.port = first.port;
        for server in others {
            let why = "the servers of a database without a primary take turns, and have one port: this one was left out";
            reader.missing(server.line, &format!("{}:{}", server.host, server.port), why);
        }
    }
    add_database(&mut reader.plan, database);
    is_cluster
}

/// Returns the name of the cluster of these servers, which is created or extended.
fn cluster(reader: &mut Reader<'_, '_>, line: u32, database: &str, servers: &[&Server]) -> String {
    let known = |server: &&&Server| node_at(&reader.plan, &server.host, server.port).is_some();
    let shared: Vec<&Server> = servers.iter().filter(known).copied().collect();
    let name = match shared.first().and_then(|server| cluster_of(&reader.plan, server)) {
        Some(name) => name,
        None => new_cluster(&mut reader.plan, database),
    };
    for server in &shared {
        if let Some(other) = cluster_of(&reader.plan, server).filter(|other| *other != name) {
            join(&mut reader.plan, &other, &name);
        }
        let weight = node_at(&reader.plan, &server.host, server.port).and_then(|node| node.weight);
        if server.weight.is_some_and(|own| own != weight.unwrap_or(1)) {
            let why = "the server has another weight in another database; pgweir has one for each node: the first one holds";
            reader.differs(line, &format!("weight of {}:{}", server.host, server.port), why);
        }
    }
    for server in servers {
        if node_at(&reader.plan, &server.host, server.port).is_none() {
            add_node(&mut reader.plan, &name, server);
        }
    }
    name
}

fn node_at<'p>(plan: &'p Plan, host: &str, port: u16) -> Option<&'p Node> {
    plan.nodes.iter().find(|node| node.host == host && node.port == port)
}

fn cluster_of(plan: &Plan, server: &Server) -> Option<String> {
    let node = node_at(plan, &server.host, server.port)?;
    let cluster = plan.clusters.iter().find(|cluster| cluster.nodes.contains(&node.name))?;
    Some(cluster.name.clone())
}

/// Creates an empty cluster, named after the database if that can be a name.
pub(super) fn new_cluster(plan: &mut Plan, database: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    let stem = if !database.is_empty() && database.chars().all(is_plain) { database } else { "main" };
    let is_free = |name: &String| !plan.clusters.iter().any(|cluster| cluster.name == *name);
    let numbered = (2u32..).map(|number| format!("{stem}{number}"));
    let name = std::iter::once(stem.to_owned()).chain(numbered).find(is_free).unwrap_or_default();
    plan.clusters.push(Cluster { name: name.clone(), ..Cluster::default() });
    name
}

fn add_node(plan: &mut Plan, cluster: &str, server: &Server) {
    let Some(cluster) = plan.clusters.iter_mut().find(|known| known.name == cluster) else { return };
    let is_free = |name: &String| !plan.nodes.iter().any(|node| node.name == *name);
    let name = (1u32..).map(|number| format!("{}_{number}", cluster.name)).find(is_free).unwrap_or_default();
    cluster.nodes.push(name.clone());
    let weight = server.weight.filter(|weight| *weight != 1);
    plan.nodes.push(Node { name, host: server.host.clone(), port: server.port, weight });
}

/// Merges two clusters, because a database lists servers of both.
fn join(plan: &mut Plan, from: &str, into: &str) {
    let Some(at) = plan.clusters.iter().position(|cluster| cluster.name == from) else { return };
    let other = plan.clusters.remove(at);
    if let Some(cluster) = plan.clusters.iter_mut().find(|cluster| cluster.name == into) {
        cluster.nodes.extend(other.nodes);
        for (name, value) in other.options {
            cluster.options.entry(name).or_insert(value);
        }
    }
    for database in &mut plan.databases {
        if database.cluster.as_deref() == Some(from) {
            database.cluster = Some(into.to_owned());
        }
    }
}

/// Reports what reads from standbys need, if the pools of a database keep their servers.
pub(super) fn tell_session(reader: &mut Reader<'_, '_>, line: u32, what: &str, mode: Option<&str>) {
    if reader.pool_mode().or(mode) == Some("session") {
        reader.differs(line, what, SESSION);
    }
}

/// Gives each cluster the user that its checks log in as, if the file did not name one.
pub(crate) fn check_users(reader: &mut Reader<'_, '_>) {
    let lacking = |cluster: &&Cluster| !cluster.options.contains_key("check_user");
    let names: Vec<String> =
        reader.plan.clusters.iter().filter(lacking).map(|cluster| cluster.name.clone()).collect();
    for name in names {
        let (user, password, dbname) = checker(&reader.plan, &name);
        let known = reader.plan.secrets.get(&user);
        let is_usable = password.as_ref().or(known).is_some_and(|secret| !is_stored(secret));
        let own_password = password.filter(|password| known != Some(password));
        let why = format!(
            "pgweir asks each node whether it is the primary, as \"{user}\"{}. That user needs LOGIN on all nodes, and should be a member of \
             `pg_read_all_stats`. Better is a separate role",
            if is_usable { "" } else { ": enter its password as `check_password`" }
        );
        reader.differs(0, &format!("check_user of {name}"), &why);
        let Some(cluster) = reader.plan.clusters.iter_mut().find(|cluster| cluster.name == name) else {
            continue;
        };
        cluster.options.insert("check_user", user);
        if let Some(dbname) = dbname {
            cluster.options.entry("check_dbname").or_insert(dbname);
        }
        cluster.check_password = own_password;
    }
}

/// Returns a user of a cluster's databases that can log in to the nodes, with its password there and a
/// database.
fn checker(plan: &Plan, cluster: &str) -> (String, Option<Secret>, Option<String>) {
    let databases: Vec<&Database> =
        plan.databases.iter().filter(|database| database.cluster.as_deref() == Some(cluster)).collect();
    let named = databases.iter().find(|database| database.name != "*");
    let dbname = named.map(|database| database.dbname.clone().unwrap_or_else(|| database.name.clone()));
    let asker = databases.iter().find_map(|database| database.options.get("auth_user"));
    if let Some(user) = asker.or_else(|| plan.settings.get("auth_user")) {
        return (user.clone(), None, dbname);
    }
    let of_it = |pool: &&Pool| databases.iter().any(|database| database.name == pool.database);
    let login = |pool: &Pool| match (&pool.server, &pool.user) {
        (Some((user, password)), _) => Some((user.clone(), password.clone())),
        (None, Some(user)) => Some((user.clone(), None)),
        (None, None) => None,
    };
    let logins = plan.pools.iter().filter(of_it).filter(|pool| pool.method != "reject").filter_map(login);
    let has_password = |(user, password): &(String, Option<Secret>)| {
        password.as_ref().or_else(|| plan.secrets.get(user)).is_some_and(|secret| !is_stored(secret))
    };
    let logins: Vec<(String, Option<Secret>)> = logins.collect();
    let found = logins.iter().find(|login| has_password(login)).or(logins.first()).cloned();
    let (user, password) = found.unwrap_or((CHECK_USER.to_owned(), None));
    (user, password, dbname)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan_of(lists: &[(&str, &[u16])]) -> Plan {
        let mut plan = Plan::default();
        let source = crate::Source { name: "sample", ..crate::Source::default() };
        let mut none = |_: &str| Err("no file".to_owned());
        let mut reader = Reader::new(crate::Kind::PgCat, &source, &mut none);
        for (name, ports) in lists {
            let server = |port: &u16| {
                let role = if *port == ports[0] { Role::Primary } else { Role::Replica };
                Server { line: 1, host: "h".to_owned(), port: *port, role, weight: None }
            };
            let servers: Vec<Server> = ports.iter().map(server).collect();
            let database = Database { name: (*name).to_owned(), ..Database::default() };
            add(&mut reader, 1, database, &servers);
        }
        std::mem::swap(&mut plan, &mut reader.plan);
        plan
    }

    fn clusters(plan: &Plan) -> Vec<(&str, usize)> {
        plan.clusters.iter().map(|cluster| (cluster.name.as_str(), cluster.nodes.len())).collect()
    }

    #[test]
    fn databases_with_a_server_in_common_share_a_cluster() {
        let plan = plan_of(&[("a", &[1, 2]), ("b", &[2, 1]), ("c", &[3, 4]), ("d", &[5])]);
        assert_eq!(clusters(&plan), [("a", 2), ("c", 2)]);
        assert_eq!(plan.databases[1].cluster.as_deref(), Some("a"));
        assert_eq!((plan.databases[3].cluster.as_deref(), plan.databases[3].port), (None, 5));
        let joined = plan_of(&[("a", &[1, 2]), ("c", &[3, 4]), ("b", &[2, 3])]);
        assert_eq!(clusters(&joined), [("a", 4)]);
        assert!(joined.databases.iter().all(|database| database.cluster.as_deref() == Some("a")));
    }

    #[test]
    fn one_server_twice_is_no_cluster() {
        let plan = plan_of(&[("a", &[1, 1])]);
        assert!(plan.clusters.is_empty() && plan.databases[0].port == 1);
    }
}
