//! The writer: turns the neutral form into the ini, the list of users and the rules of access.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use pgweir_settings::{ADMIN_DATABASE, MAIN_ROWS};

use crate::finding::shown;
use crate::limits::SHOWN_LEN_MAX;
use crate::plan::{Cluster, Database, Line, Plan, Pool, Secret};

/// The paths of the other files, for the ini.
#[derive(Clone, Debug)]
pub struct Places {
    /// The path of the list of users.
    pub users: String,
    /// The path of the rules of access.
    pub rules: String,
    /// The path of the self-signed certificate, if the configuration needs one
    /// ([`Import::needs_certificate`](crate::Import::needs_certificate)).
    pub certificate: String,
    /// The path of that certificate's private key.
    pub key: String,
    /// `true` if passwords are left out of the ini, because it is only to be shown.
    pub hide_secrets: bool,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            users: "userlist.txt".to_owned(),
            rules: "hba.conf".to_owned(),
            certificate: "client.crt".to_owned(),
            key: "client.key".to_owned(),
            hide_secrets: false,
        }
    }
}

/// Returns the parts of the plan that no file of pgweir's can hold.
pub(crate) fn unwritable(plan: &Plan) -> Vec<String> {
    let mut faults = BTreeSet::new();
    let breaks = |text: &str| text.contains(['\n', '\r', '\0']);
    for (name, text) in &plan.settings {
        if breaks(text) || text.trim() != text {
            faults.insert(format!("{name} would have line breaks, or blanks at its ends"));
        }
    }
    for database in &plan.databases {
        let name = shown(&database.name, SHOWN_LEN_MAX);
        let texts = pairs(database, false).into_iter().map(|(_, text)| text);
        let texts = texts.chain(database.written.iter().map(|written| written.reveal().to_owned()));
        if texts.chain([database.name.clone()]).any(|text| breaks(&text)) {
            faults.insert(format!("database {name} would have line breaks"));
        }
        if database.name.is_empty() {
            faults.insert("a database has no name".to_owned());
        }
    }
    for cluster in &plan.clusters {
        let nodes =
            plan.nodes.iter().flat_map(|node| [("name", node.name.clone()), ("host", node.host.clone())]);
        if cluster_pairs(cluster, false).into_iter().chain(nodes).any(|(_, text)| breaks(&text)) {
            faults.insert(format!("cluster {} would have line breaks", shown(&cluster.name, SHOWN_LEN_MAX)));
        }
    }
    for (user, secret) in &plan.secrets {
        if breaks(user) || breaks(secret.reveal()) {
            faults.insert(format!("user {} or its password has line breaks", shown(user, SHOWN_LEN_MAX)));
        }
    }
    let users = plan.users.keys().chain(plan.pools.iter().filter_map(|pool| pool.user.as_ref()));
    for user in users.chain(&plan.admins) {
        if user.is_empty() || breaks(user) {
            faults.insert("a user has no name, or one with line breaks".to_owned());
        }
    }
    if plan.admins.iter().any(|admin| admin.contains([',', ' ', '\t'])) {
        faults.insert("the console's user has a comma or a blank in its name".to_owned());
    }
    faults.into_iter().collect()
}

pub(crate) fn ini(plan: &Plan, places: &Places, written_by: &str) -> String {
    let mut out =
        format!("; Written by {written_by}. pgweir.ini(5) describes the settings.\n\n[databases]\n");
    for database in &plan.databases {
        for comment in &database.comments {
            let _ = writeln!(out, "; {}", shown(comment, usize::MAX));
        }
        match &database.written {
            Some(written) => {
                let _ = writeln!(out, "{} = {}", key(&database.name), told(written, places.hide_secrets));
            }
            None => out.push_str(&entry(&database.name, &pairs(database, places.hide_secrets))),
        }
    }
    clusters(plan, places, &mut out);
    if !plan.cache.is_empty() {
        out.push_str("\n[cache]\n");
    }
    plan.cache.iter().for_each(|rule| out.push_str(&line(rule)));
    if !plan.users.is_empty() {
        out.push_str("\n[users]\n");
        for (user, options) in &plan.users {
            let options: Vec<_> = options.iter().map(|(name, text)| (*name, text.clone())).collect();
            out.push_str(&entry(user, &options));
        }
    }
    out.push_str("\n[pgbouncer]\n");
    let mut settings: BTreeMap<&str, String> =
        plan.settings.iter().map(|(name, text)| (*name, text.clone())).collect();
    if users(plan).is_some() {
        settings.insert("auth_file", places.users.clone());
    }
    if plan.needs_certificate {
        settings.insert("client_tls_cert_file", places.certificate.clone());
        settings.insert("client_tls_key_file", places.key.clone());
    }
    if needs_rules(plan) {
        settings.insert("auth_type", "hba".to_owned());
        settings.insert("auth_hba_file", places.rules.clone());
    } else if let Some(method) = plan.pools.iter().map(|pool| pool.method).find(|method| !method.is_empty()) {
        settings.insert("auth_type", auth_type(method).to_owned());
    }
    if !plan.admins.is_empty() {
        settings.insert("admin_users", plan.admins.join(", "));
    }
    // The settings come in the order of the documentation.
    for row in MAIN_ROWS {
        if let Some(text) = settings.get(row.name) {
            let _ = writeln!(out, "{} = {text}", row.name);
        }
    }
    out
}

/// Writes the sections of nodes and clusters.
fn clusters(plan: &Plan, places: &Places, out: &mut String) {
    if plan.clusters.is_empty() {
        return;
    }
    out.push_str("\n[clusters]\n");
    for cluster in &plan.clusters {
        out.push_str(&entry(&cluster.name, &cluster_pairs(cluster, places.hide_secrets)));
    }
    if !plan.nodes.is_empty() {
        out.push_str("\n[nodes]\n");
    }
    for node in &plan.nodes {
        let mut pairs = vec![("host", node.host.clone()), ("port", node.port.to_string())];
        pairs.extend(node.weight.map(|weight| ("weight", weight.to_string())));
        out.push_str(&entry(&node.name, &pairs));
    }
    if !plan.routes.is_empty() {
        out.push_str("\n[routes]\n");
    }
    plan.routes.iter().for_each(|route| out.push_str(&line(route)));
}

fn cluster_pairs(cluster: &Cluster, hide_secrets: bool) -> Vec<(&'static str, String)> {
    let mut pairs = Vec::new();
    if !cluster.nodes.is_empty() {
        pairs.push(("nodes", cluster.nodes.join(",")));
    }
    pairs.extend(cluster.options.iter().map(|(name, text)| (*name, text.clone())));
    pairs
        .extend(cluster.check_password.as_ref().map(|secret| ("check_password", told(secret, hide_secrets))));
    pairs
}

/// Returns a line of `[routes]` or `[cache]`.
pub(crate) fn line(line: &Line) -> String {
    entry(&line.name, &line.pairs)
}

/// Returns a line `name = key=value ...`.
fn entry(name: &str, pairs: &[(&'static str, String)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(name, text)| format!("{name}={}", quoted(text))).collect();
    format!("{} = {}\n", key(name), pairs.join(" "))
}

fn told(secret: &Secret, hide_secrets: bool) -> String {
    if hide_secrets { "***".to_owned() } else { secret.reveal().to_owned() }
}

fn auth_type(method: &str) -> &str {
    if method == "password" { "plain" } else { method }
}

fn pairs(database: &Database, hide_secrets: bool) -> Vec<(&'static str, String)> {
    let mut pairs = Vec::new();
    match &database.cluster {
        Some(cluster) => pairs.push(("cluster", cluster.clone())),
        None => {
            pairs.push(("host", database.host.clone()));
            pairs.push(("port", database.port.to_string()));
        }
    }
    pairs.extend(database.dbname.clone().map(|name| ("dbname", name)));
    pairs.extend(database.user.clone().map(|user| ("user", user)));
    pairs.extend(database.password.as_ref().map(|password| ("password", told(password, hide_secrets))));
    pairs.extend(database.options.iter().map(|(name, text)| (*name, text.clone())));
    pairs.retain(|(_, text)| !text.is_empty());
    pairs
}

/// Returns a name for the start of a line.
fn key(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-' | '*');
    if name.chars().all(plain) { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Returns a value for a connection string.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-:/@,".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}

/// Returns the list of users; `None` if there are no users.
pub(crate) fn users(plan: &Plan) -> Option<String> {
    if plan.secrets.is_empty() {
        return None;
    }
    let double = |text: &str| text.replace('"', "\"\"");
    let line = |(user, secret): (&String, &Secret)| {
        format!("\"{}\" \"{}\"\n", double(user), double(secret.reveal()))
    };
    Some(plan.secrets.iter().map(line).collect())
}

/// Returns whether one `auth_type` for all clients would let in clients that the configuration keeps out.
pub(crate) fn needs_rules(plan: &Plan) -> bool {
    if plan.rules.is_some() {
        return true;
    }
    let methods: BTreeSet<&str> = plan.pools.iter().map(|pool| pool.method).collect();
    if methods.len() > 1 || methods.iter().any(|method| matches!(*method, "reject" | "pam" | "cert" | "ldap"))
    {
        return methods.iter().any(|method| !method.is_empty());
    }
    if plan.pools.iter().all(|pool| pool.user.is_none()) {
        return false;
    }
    let users_of = |database: &Database| -> BTreeSet<Option<&str>> {
        let of_it = plan.pools.iter().filter(|pool| pool.database == database.name);
        of_it.map(|pool| pool.user.as_deref()).collect()
    };
    let mut sets = plan.databases.iter().map(users_of);
    let first = sets.next().unwrap_or_default();
    if first.contains(&None) {
        return sets.any(|set| !set.contains(&None));
    }
    // If a database has a forced user, only its own users may connect, because PostgreSQL cannot tell users
    // apart.
    let forced = plan.databases.iter().any(|database| database.user.is_some());
    let strangers = plan.secrets.keys().any(|user| !first.contains(&Some(user.as_str())));
    forced && strangers || sets.any(|set| set != first)
}

/// Returns the rules of access; `None` if none are needed.
pub(crate) fn rules(plan: &Plan, written_by: &str) -> Option<String> {
    if !needs_rules(plan) {
        return None;
    }
    let mut out = format!(
        "# Written by {written_by}. Each line allows users a database and names their authentication method.\n"
    );
    let method = plan.pools.iter().map(|pool| pool.method).find(|method| is_password(method));
    for admin in &plan.admins {
        for way in ["local", "host"] {
            let address = if way == "host" { " all" } else { "" };
            let method = method.unwrap_or("scram-sha-256");
            let _ = writeln!(out, "{way} \"{ADMIN_DATABASE}\" {}{address} {method}", name(admin));
        }
    }
    if let Some(rules) = &plan.rules {
        rules.iter().for_each(|rule| out.extend([rule, "\n"]));
        return Some(out);
    }
    for pool in ordered(&plan.pools) {
        let database = if pool.database == "*" { "all".to_owned() } else { name(&pool.database) };
        let user = pool.user.as_deref().map_or("all".to_owned(), name);
        let _ = writeln!(out, "local {database} {user} {}", pool.method);
        let _ = writeln!(out, "host {database} {user} all {}", pool.method);
    }
    Some(out)
}

/// Returns the pools, with those for one database and one user first: the first rule that fits counts.
pub(crate) fn ordered(pools: &[Pool]) -> Vec<&Pool> {
    let mut ordered: Vec<&Pool> = pools.iter().collect();
    ordered.sort_by_key(|pool| (pool.database == "*", pool.user.is_none()));
    ordered
}

fn is_password(method: &str) -> bool {
    matches!(method, "md5" | "scram-sha-256" | "password")
}

/// Returns a name for a rule, quoted so that it is taken literally.
pub(crate) fn name(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
