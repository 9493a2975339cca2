//! pg_doorman: TOML or YAML, with pools of users; a descendant of PgCat in its form.

use super::{add_database, parsed, pgcat, pgpool, replicas};
use crate::dialect::Takes::{Anything, Bytes, Count, Flag, List, Milliseconds, Port, Text, Word};
use crate::dialect::{self, Given};
use crate::finding::shown;
use crate::limits::SHOWN_LEN_MAX;
use crate::mapping::Outcome::{Missing, Needless, Pool as OfPool, Reader as ByReader, Setting};
use crate::mapping::Row;
use crate::plan::{Cluster, Database, Pool, Secret};
use crate::reader::{Reader, Scope};
use crate::tree::{self, Node, Table, Value};

const INNER: &str = "it is about how pg_doorman works inside";
const TALOS: &str = "pgweir has no tokens: use passwords, certificates, LDAP or PAM";
const PATRONI: &str =
    "`check_interval_ms` and `check_timeout_ms` of the cluster say how often and how patiently pgweir asks";
const FALLBACK: &str =
    "pgweir goes to the primary that Patroni names; clients wait while there is none (`primary_wait`)";
/// The file with the system's authorities on a Debian machine.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
const COORDINATOR: &str = "idle connections of other pools are closed when `max_db_connections` is reached";
const MODES: &[(&str, &str)] = &[("session", "session"), ("transaction", "transaction")];
const CLIENT_TLS: &[(&str, &str)] =
    &[("allow", "allow"), ("disable", "disable"), ("require", "require"), ("verify-full", "verify-full")];
const SERVER_TLS: &[(&str, &str)] = &[
    ("disable", "disable"),
    ("allow", "allow"),
    ("prefer", "prefer"),
    ("require", "require"),
    ("verify-ca", "verify-ca"),
    ("verify-full", "verify-full"),
];

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row::new("general", Anything, ByReader("see `general.*`"), &[]),
    Row::new("pools", Anything, ByReader("each pool is an entry of `[databases]`"), &[]),
    Row::new("include", Anything, ByReader("the files are read after the main one"), &[]),
    Row::new("prometheus", Anything, Missing("set `http_listen`: metrics have other names there, those of PgBouncer's exporter"), &[]),
    Row::new("web", Anything, Missing("set `http_listen`: the dashboard is there"), &[]),
    Row::new("talos", Anything, Missing(TALOS), &[]),
    Row::new("general.host", Text, ByReader("`listen_addr`; 0.0.0.0 if it is not set"), &[]),
    Row::new("general.port", Port, Setting("listen_port"), &["6432"]),
    Row::new("general.backlog", Count, ByReader("`listen_backlog`; 0 is `max_connections`"), &[]),
    Row::new("general.max_connections", Count, Setting("max_client_conn"), &["8192"]),
    Row::new("general.max_concurrent_creates", Count, Setting("max_parallel_connects"), &["4"]),
    Row::new("general.tls_mode", Word(CLIENT_TLS), ByReader("`client_tls_sslmode`, if there is a certificate"), &[]),
    Row::new("general.tls_ca_file", Text, Setting("client_tls_ca_file"), &[]),
    Row::new("general.tls_ca_cert", Text, Setting("client_tls_ca_file"), &[]),
    Row::new("general.tls_private_key", Text, Setting("client_tls_key_file"), &[]),
    Row::new("general.tls_certificate", Text, Setting("client_tls_cert_file"), &[]),
    Row::new("general.tls_rate_limit_per_second", Count, Needless("logins do not hold up other clients"), &["0"]),
    Row::new("general.server_tls_mode", Word(SERVER_TLS), Setting("server_tls_sslmode"), &["allow"]),
    Row::new("general.server_tls_ca_cert", Text, Setting("server_tls_ca_file"), &[]),
    Row::new("general.server_tls_certificate", Text, Setting("server_tls_cert_file"), &[]),
    Row::new("general.server_tls_private_key", Text, Setting("server_tls_key_file"), &[]),
    Row::new("general.server_tls", Flag, ByReader("`server_tls_sslmode`, where `server_tls_mode` is not set: `require`, or `verify-full` with `verify_server_certificate`"), &[]),
    Row::new("general.verify_server_certificate", Flag, ByReader("see `server_tls`"), &[]),
    Row::new("general.daemon_pid_file", Text, Setting("pidfile"), &[]),
    Row::new("general.syslog_prog_name", Text, ByReader("`syslog = 1`, `syslog_ident`"), &[]),
    Row::new("general.log_client_connections", Flag, Setting("log_connections"), &[]),
    Row::new("general.log_client_disconnections", Flag, Setting("log_disconnections"), &[]),
    Row::new("general.worker_threads", Count, Needless("pgweir chooses the number of workers (`workers`)"), &[]),
    Row::new("general.worker_cpu_affinity_pinning", Flag, Missing("set `CPUAffinity=` in the systemd unit"), &[]),
    Row::new("general.worker_stack_size", Bytes, Needless(INNER), &[]),
    Row::new("general.tokio_*", Anything, Needless(INNER), &[]),
    Row::new("general.max_blocking_threads", Anything, Needless(INNER), &[]),
    Row::new("general.connect_timeout", Milliseconds, Setting("server_connect_timeout"), &["3000"]),
    Row::new("general.query_wait_timeout", Milliseconds, Setting("query_wait_timeout"), &["5000"]),
    Row::new("general.idle_timeout", Milliseconds, Setting("server_idle_timeout"), &["300000000"]),
    Row::new("general.server_lifetime", Milliseconds, Setting("server_lifetime"), &["300000"]),
    Row::new("general.client_idle_timeout", Milliseconds, Setting("client_idle_timeout"), &[]),
    Row::new("general.client_idle_in_transaction_timeout", Milliseconds, Setting("idle_transaction_timeout"), &[]),
    Row::new("general.idle_client_in_transaction_timeout", Milliseconds, Setting("idle_transaction_timeout"), &[]),
    Row::new("general.retain_connections_*", Anything, Needless("connections are closed when they are too old or unused"), &[]),
    Row::new("general.server_idle_check_timeout", Milliseconds, ByReader("`server_check_delay`; 0 is no `server_check_query`"), &[]).noted("30 seconds if it is not set"),
    Row::new("general.server_round_robin", Flag, Setting("server_round_robin"), &[]),
    Row::new("general.sync_server_parameters", Flag, Needless("a client's settings are always kept"), &[]),
    Row::new("general.tcp_so_linger", Anything, Needless("pgweir closes connections in order"), &[]),
    Row::new("general.tcp_no_delay", Flag, Needless("pgweir always sets TCP_NODELAY"), &[]),
    Row::new("general.tcp_keepalives_count", Count, Setting("tcp_keepcnt"), &["5"]),
    Row::new("general.tcp_keepalives_idle", Count, Setting("tcp_keepidle"), &["5"]),
    Row::new("general.tcp_keepalives_interval", Count, Setting("tcp_keepintvl"), &["1"]),
    Row::new("general.tcp_user_timeout", Count, ByReader("`tcp_user_timeout`"), &[]).noted("pg_doorman counts seconds, pgweir milliseconds"),
    Row::new("general.unix_socket_dir", Text, Setting("unix_socket_dir"), &[]),
    Row::new("general.unix_socket_mode", Text, Setting("unix_socket_mode"), &[]),
    Row::new("general.unix_socket_buffer_size", Bytes, Needless(INNER), &[]),
    Row::new("general.admin_username", Text, ByReader("`admin_users`"), &[]),
    Row::new("general.admin_password", Text, ByReader("the list of users"), &[]),
    Row::new("general.prepared_statements", Flag, ByReader("`false` is `max_prepared_statements = 0`"), &[]),
    Row::new("general.prepared_statements_cache_size", Count, Needless("`max_prepared_statements` bounds them for each server connection"), &[]),
    Row::new("general.client_prepared_statements_cache_size", Count, Needless("`max_prepared_statements` bounds them for each server connection"), &[]),
    Row::new("general.client_anonymous_prepared_cache_size", Count, Needless("unnamed statements are not kept"), &[]),
    Row::new("general.message_size_to_be_stream", Bytes, Needless("pgweir passes all large messages on in pieces"), &[]),
    Row::new("general.max_message_size", Bytes, Setting("max_packet_size"), &[]),
    Row::new("general.max_memory_usage", Bytes, Missing("set `MemoryMax=` in the systemd unit; `max_waiting_clients` bounds the queues"), &["268435456", "256MB"]),
    Row::new("general.shutdown_timeout", Milliseconds, Needless("SIGTERM waits until clients have left; a second one ends at once"), &[]),
    Row::new("general.proxy_copy_data_timeout", Milliseconds, Missing("set `query_timeout`, or `tcp_user_timeout` against clients that do not read"), &["15000", "15s"]),
    Row::new("general.hba", List, ByReader("a rule for each network"), &[]),
    Row::new("general.pg_hba", Anything, ByReader("`auth_hba_file`: the rules are copied"), &[]),
    Row::new("general.pooler_check_query", Text, Missing("pgweir passes every statement on"), &[";", ""]),
    Row::new("general.startup_parameters", Anything, Missing("use `connect_query` of the database"), &[]),
    Row::new("general.scaling_*", Anything, Needless("a cold pool opens the connections that it needs (`max_parallel_connects`)"), &[]),
    Row::new("general.patroni_api_urls", List, ByReader("a cluster with `discovery=patroni`, for pools without their own"), &[]),
    Row::new("general.patroni_*", Anything, Needless(PATRONI), &[]),
    Row::new("general.fallback_*", Anything, Needless(FALLBACK), &[]),
    Row::new("general.log_min_duration*", Anything, Missing("set `log_min_duration_ms`"), &["0"]),
    Row::new("pools.*.server_host", Text, ByReader("`host`"), &[]),
    Row::new("pools.*.server_port", Port, ByReader("`port`"), &[]),
    Row::new("pools.*.server_database", Text, ByReader("`dbname`"), &[]),
    Row::new("pools.*.application_name", Text, ByReader("`application_name`"), &[]),
    Row::new("pools.*.connect_timeout", Milliseconds, OfPool("server_connect_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("pools.*.idle_timeout", Milliseconds, OfPool("server_idle_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("pools.*.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
    Row::new("pools.*.pool_mode", Word(MODES), OfPool("pool_mode"), &["transaction"]),
    Row::new("pools.*.log_client_parameter_status_changes", Flag, Needless("pgweir does not log parameters"), &[]),
    Row::new("pools.*.cleanup_server_connections", Flag, Needless("a client's session never reaches another client"), &[]),
    Row::new("pools.*.prepared_statements_cache_size", Count, Needless("`max_prepared_statements` bounds them for each server connection"), &[]),
    Row::new("pools.*.max_db_connections", Count, OfPool("max_db_connections"), &[]),
    Row::new("pools.*.reserve_pool_size", Count, OfPool("reserve_pool_size"), &[]),
    Row::new("pools.*.reserve_pool_timeout", Milliseconds, OfPool("reserve_pool_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("pools.*.min_guaranteed_pool_size", Count, Missing(COORDINATOR), &["0"]),
    Row::new("pools.*.min_connection_lifetime", Milliseconds, Needless(COORDINATOR), &[]),
    Row::new("pools.*.auth_query", Anything, ByReader("`auth_query`, `auth_user`, `auth_dbname` of the database"), &[]),
    Row::new("pools.*.startup_parameters", Anything, Missing("use `connect_query` of the database"), &[]),
    Row::new("pools.*.server_tls_mode", Word(SERVER_TLS), OfPool("server_tls_sslmode"), &[]).noted("pgweir has one for all servers"),
    Row::new("pools.*.server_tls_ca_cert", Text, OfPool("server_tls_ca_file"), &[]),
    Row::new("pools.*.scaling_*", Anything, Needless("a cold pool opens the connections that it needs (`max_parallel_connects`)"), &[]),
    Row::new("pools.*.patroni_api_urls", List, ByReader("a cluster with `discovery=patroni`: `patroni_api`, `allow_discovered_hosts`"), &[]).noted("pools with the same addresses share a cluster. pgweir goes to the primary, where pg_doorman goes to `server_host` until that fails"),
    Row::new("pools.*.patroni_discovery_urls", List, ByReader("the same; the name of `patroni_api_urls` before 3.6"), &[]),
    Row::new("pools.*.patroni_*", Anything, Needless(PATRONI), &[]),
    Row::new("pools.*.fallback_*", Anything, Needless(FALLBACK), &[]),
    Row::new("pools.*.failover_*", Anything, Needless(FALLBACK), &[]),
    Row::new("pools.*.users", Anything, ByReader("see `pools.*.users.*`"), &[]),
    Row::new("pools.*.users.*.username", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.users.*.password", Text, ByReader("the list of users: plain, md5 or SCRAM"), &[]).noted("tokens (JWT) have no counterpart"),
    Row::new("pools.*.users.*.auth_pam_service", Text, ByReader("a rule with `pam`"), &[]).noted("pgweir's service is named pgbouncer"),
    Row::new("pools.*.users.*.server_username", Text, ByReader("`user` of the database, if all its users have the same"), &[]),
    Row::new("pools.*.users.*.server_password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.users.*.pool_size", Count, OfPool("pool_size"), &["40"]),
    Row::new("pools.*.users.*.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("pools.*.users.*.pool_mode", Word(MODES), OfPool("pool_mode"), &[]),
    Row::new("pools.*.users.*.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
    Row::new("pools.*.users.*.startup_parameters", Anything, Missing("set them at the role: `ALTER ROLE ... SET`"), &[]),
    Row::new("pools.*.auth_query.query", Text, ByReader("`auth_query`"), &[]).noted("pgweir's has two columns, the user and the secret: the query is wrapped"),
    Row::new("pools.*.auth_query.user", Text, ByReader("`auth_user`"), &[]),
    Row::new("pools.*.auth_query.password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.auth_query.database", Text, ByReader("`auth_dbname`"), &[]),
    Row::new("pools.*.auth_query.server_user", Text, ByReader("`user` of the database"), &[]),
    Row::new("pools.*.auth_query.server_password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.auth_query.pool_size", Count, OfPool("pool_size"), &["40"]),
    Row::new("pools.*.auth_query.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("pools.*.auth_query.cache_ttl", Milliseconds, Needless("pgweir asks at each login"), &[]),
    Row::new("pools.*.auth_query.cache_failure_ttl", Milliseconds, Needless("pgweir asks at each login"), &[]),
    Row::new("pools.*.auth_query.min_interval", Milliseconds, Needless("pgweir asks at each login"), &[]),
    Row::new("pools.*.auth_query.workers", Count, Needless("pgweir asks through the pool of `auth_user`"), &[]),
];

pub(super) fn looks_like(text: &str) -> bool {
    let in_toml = text.lines().any(|line| line.starts_with("[pools.") || line.starts_with("[[pools."));
    let in_yaml = text.lines().any(|line| line.trim_end() == "pools:");
    (in_toml || in_yaml) && text.lines().any(|line| line.trim_start().starts_with("server_host"))
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let Some(table) = either(text, reader) else { return };
    let general = table.table("general");
    self::general(&general, reader);
    pools(&table, &general, reader);
    let files: Vec<(u32, String)> = table
        .table("include")
        .get("files")
        .map(Node::list)
        .unwrap_or_default()
        .iter()
        .filter_map(|node| Some((node.line, node.text()?.to_owned())))
        .collect();
    for (line, name) in files {
        match reader.open(&name) {
            Ok(text) => {
                let main = std::mem::replace(&mut reader.file, name);
                if let Some(table) = either(&text, reader) {
                    pools(&table, &general, reader);
                }
                reader.file = main;
            }
            Err(why) => {
                reader.fault(line, format!("{} could not be read: {why}", shown(&name, SHOWN_LEN_MAX)));
            }
        }
    }
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &table, None);
}

/// Reads TOML if a line begins a table, and YAML otherwise.
fn either(text: &str, reader: &mut Reader<'_, '_>) -> Option<Table> {
    let is_toml = text.lines().any(|line| line.starts_with('[')) || !text.contains(':');
    parsed(if is_toml { tree::toml(text) } else { tree::yaml(text) }, reader)
}

fn general(general: &Table, reader: &mut Reader<'_, '_>) {
    reader.table(ROWS, Scope { prefix: "general.", shown: "general." }, general, None);
    reader.set("listen_addr", general.text("host").unwrap_or("0.0.0.0"));
    if let Some(backlog) = general.text("backlog").filter(|backlog| *backlog != "0") {
        reader.set("listen_backlog", backlog);
    }
    if general.text("tls_certificate").is_some() {
        reader.set("client_tls_sslmode", general.text("tls_mode").unwrap_or("allow").to_ascii_lowercase());
    } else if let Some(mode @ ("require" | "verify-full")) = general.text("tls_mode") {
        let line = general.get("tls_mode").map_or(0, |node| node.line);
        reader.fault(line, format!("tls_mode is {mode} and there is no tls_certificate"));
    }
    if general.get("server_tls_mode").is_none() {
        match (general.text("server_tls"), general.text("verify_server_certificate")) {
            (Some("true"), Some("true")) => reader.set("server_tls_sslmode", "verify-full"),
            (Some("true"), _) => reader.set("server_tls_sslmode", "require"),
            _ => {}
        }
    }
    if let Some(name) = general.text("syslog_prog_name") {
        reader.set("syslog", "1");
        reader.set("syslog_ident", name);
    }
    let check = general.get("server_idle_check_timeout");
    match check.and_then(|node| dialect::understand(Milliseconds, reader.kind, node).ok()) {
        Some(Given::TimeMs(0)) => reader.set("server_check_query", ""),
        Some(given) => reader.set_given("server_check_delay", &given),
        None => {}
    }
    if let Some(seconds) = general.text("tcp_user_timeout").and_then(|text| text.parse::<u32>().ok()) {
        reader.set("tcp_user_timeout", seconds.saturating_mul(1000).min(i32::MAX.unsigned_abs()).to_string());
    }
    if general.text("prepared_statements") == Some("false") {
        reader.set("max_prepared_statements", "0");
    }
    pgcat::admin(general, reader);
    rules(general, reader);
}

fn rules(general: &Table, reader: &mut Reader<'_, '_>) {
    if let Some(node) = general.get("hba") {
        let rule = |network: &Node| Some(format!("host all all {} md5", network.text()?));
        let lines: Vec<(u32, String)> =
            node.list().iter().filter_map(|node| Some((node.line, rule(node)?))).collect();
        if !lines.is_empty() {
            let rules = lines.iter().filter_map(|(line, rule)| pgpool::rule(reader, *line, rule)).collect();
            reader.plan.rules = Some(rules);
        }
    }
    let Some(node) = general.get("pg_hba") else { return };
    let text = match &node.value {
        Value::Text(text) => text.clone(),
        Value::Table(table) => match (table.text("content"), reader.rules_file().or(table.text("path"))) {
            (Some(content), _) => content.to_owned(),
            (None, Some(path)) => {
                let path = path.to_owned();
                match reader.open(&path) {
                    Ok(text) => text,
                    Err(why) => {
                        let why = format!("pg_hba could not be read ({why}): give its place with --hba");
                        return reader.fault(node.line, why);
                    }
                }
            }
            (None, None) => return reader.fault(node.line, "pg_hba has neither path nor content"),
        },
        _ => return reader.fault(node.line, "pg_hba must be a text, or a table with path or content"),
    };
    let mut rules = Vec::new();
    for line in text.lines() {
        // The console has another name in pg_doorman.
        let line: String = line
            .split_whitespace()
            .map(|word| if word == "pgdoorman" { "pgbouncer" } else { word })
            .collect::<Vec<_>>()
            .join(" ");
        rules.extend(pgpool::rule(reader, node.line, &line));
    }
    reader.plan.rules = Some(rules);
}

fn pools(table: &Table, general: &Table, reader: &mut Reader<'_, '_>) {
    for (name, node) in &table.table("pools").0 {
        match &node.value {
            Value::Table(pool) => database(reader, name, node.line, pool, general),
            _ => reader.fault(node.line, "a pool must be a table"),
        }
    }
}

fn database(reader: &mut Reader<'_, '_>, name: &str, line: u32, pool: &Table, general: &Table) {
    let label = format!("pools.{name}.");
    let mut common = Pool { database: name.to_owned(), line, method: "md5", ..Pool::default() };
    reader.table(ROWS, Scope { prefix: "pools.*.", shown: &label }, pool, Some(&mut common));
    let Some(host) = pool.text("server_host") else {
        return reader.fault(line, format!("pool {} has no server_host", shown(name, SHOWN_LEN_MAX)));
    };
    let mut entry = Database {
        name: name.to_owned(),
        host: host.to_owned(),
        port: pool.text("server_port").and_then(|port| port.parse().ok()).unwrap_or(5432),
        dbname: pool.text("server_database").filter(|own| *own != name).map(str::to_owned),
        ..Database::default()
    };
    if let Some(application) = pool.text("application_name").filter(|text| !text.is_empty()) {
        entry.options.insert("application_name", application.to_owned());
    }
    let asked = auth_query(reader, pool, &mut entry, &common);
    patroni(reader, line, pool, general, &mut entry);
    add_database(&mut reader.plan, entry);
    for (line, user) in pool.get("users").map(Node::entries).unwrap_or_default() {
        pool_user(reader, common.clone(), line, user);
    }
    reader.plan.pools.extend(asked);
}

/// Adds the cluster of a pool that uses Patroni.
fn patroni(reader: &mut Reader<'_, '_>, line: u32, pool: &Table, general: &Table, entry: &mut Database) {
    let keys = ["patroni_api_urls", "patroni_discovery_urls"];
    let node = keys.iter().find_map(|key| pool.get(key)).or_else(|| general.get("patroni_api_urls"));
    let Some(node) = node.filter(|node| !node.list().is_empty()) else { return };
    let mut hosts = Vec::new();
    let mut urls = Vec::new();
    for address in node.list().iter().filter_map(Node::text) {
        let Some((url, host)) = agent(address) else {
            let why = "an address of patroni_api_urls must be http://host:port or https://host:port";
            return reader.fault(node.line, why);
        };
        urls.push(url);
        hosts.push(host);
    }
    let urls = urls.join(",");
    if urls.contains("https://") {
        reader.set("source_tls_ca_file", AUTHORITIES);
        let why = "pgweir trusts the authorities of this file: change it if Patroni's agents have their own";
        reader.differs(node.line, "source_tls_ca_file", why);
    }
    let is_same = |cluster: &&Cluster| cluster.options.get("patroni_api") == Some(&urls);
    let known = reader.plan.clusters.iter().find(is_same).map(|cluster| cluster.name.clone());
    let name = known.unwrap_or_else(|| replicas::new_cluster(&mut reader.plan, &entry.name));
    if let Some(cluster) = reader.plan.clusters.iter_mut().find(|cluster| cluster.name == name) {
        cluster.options.insert("discovery", "patroni".to_owned());
        cluster.options.insert("patroni_api", urls);
    }
    let local = std::mem::take(&mut entry.host);
    if !local.starts_with('/') {
        hosts.push(local.clone());
    }
    entry.cluster = Some(name);
    allow(reader, &hosts);
    let why = format!(
        "all clients go to the primary that Patroni names, and no longer to server_host ({local}). pgweir logs in only to hosts of \
         `allow_discovered_hosts`: see that it has all nodes, as Patroni names them. Reads go to standbys with `route=auto`"
    );
    reader.differs(line, &format!("pools.{}.patroni_api_urls", shown(&entry.name, SHOWN_LEN_MAX)), &why);
}

/// Returns the address of a Patroni agent in pgweir's form, and its host.
fn agent(address: &str) -> Option<(String, String)> {
    let (scheme, rest) = address.split_once("://")?;
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()?),
        _ => (authority, usual),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-:".contains(letter);
    (!bare.is_empty() && bare.chars().all(is_plain))
        .then(|| (format!("{scheme}://{host}:{port}"), bare.to_owned()))
}

/// Adds hosts to `allow_discovered_hosts`.
fn allow(reader: &mut Reader<'_, '_>, hosts: &[String]) {
    let known = reader.plan.settings.get("allow_discovered_hosts").cloned().unwrap_or_default();
    let mut all: Vec<String> = known.split(", ").filter(|host| !host.is_empty()).map(str::to_owned).collect();
    for host in hosts {
        if !all.contains(host) {
            all.push(host.clone());
        }
    }
    reader.set("allow_discovered_hosts", all.join(", "));
}

/// Adds a pool for all users, who are looked up in PostgreSQL.
fn auth_query(
    reader: &mut Reader<'_, '_>,
    pool: &Table,
    entry: &mut Database,
    common: &Pool,
) -> Option<Pool> {
    let node = pool.get("auth_query")?;
    let Value::Table(table) = &node.value else {
        reader.fault(node.line, "auth_query must be a table");
        return None;
    };
    let label = format!("pools.{}.auth_query.", entry.name);
    let mut all = common.clone();
    reader.table(ROWS, Scope { prefix: "pools.*.auth_query.", shown: &label }, table, Some(&mut all));
    let Some(query) = table.text("query") else {
        reader.fault(node.line, "auth_query has no query");
        return None;
    };
    entry.options.insert("auth_query", two_columns(query));
    if let Some(name) = table.text("database") {
        entry.options.insert("auth_dbname", name.to_owned());
    }
    if let Some(user) = table.text("user") {
        entry.options.insert("auth_user", user.to_owned());
        if let Some(password) = table.text("password") {
            reader.secret(node.line, user, password);
        }
    }
    let password = table.text("server_password").map(Secret::new);
    all.server = table.text("server_user").map(|user| (user.to_owned(), password));
    Some(all)
}

/// Adapts a query: pg_doorman uses the column named passwd or password, or the only one; pgweir uses the user
/// and the secret.
fn two_columns(query: &str) -> String {
    let query = query.trim().trim_end_matches(';');
    let lower = query.to_ascii_lowercase();
    let (alias, column) = match (lower.contains("passwd"), lower.contains("password")) {
        (true, _) => ("found", "passwd"),
        (_, true) => ("found", "password"),
        _ => ("found(secret)", "secret"),
    };
    format!("SELECT $1::text, found.{column} FROM ({query}) AS {alias}")
}

fn pool_user(reader: &mut Reader<'_, '_>, mut pool: Pool, line: u32, user: &Table) {
    let Some(name) = user.text("username") else {
        return reader.fault(line, "a user has no username");
    };
    let label = format!("pools.{}.users.{name}.", pool.database);
    reader.table(ROWS, Scope { prefix: "pools.*.users.*.", shown: &label }, user, Some(&mut pool));
    pool.line = line;
    pool.user = Some(name.to_owned());
    let password = user.text("password").unwrap_or_default();
    if user.get("auth_pam_service").is_some() {
        pool.method = "pam";
        reader.differs(
            line,
            &format!("{label}auth_pam_service"),
            "the name of the PAM service is not carried over: pgweir's is pgbouncer",
        );
    } else if password.starts_with("jwt-") || password.starts_with("talos") {
        reader.missing(line, &format!("{label}password"), TALOS);
        pool.method = "reject";
    } else if !password.is_empty() {
        reader.secret(line, name, password);
    }
    pgcat::server(&mut pool, name, user);
    reader.plan.pools.push(pool);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_get_a_second_column() {
        assert_eq!(
            two_columns("SELECT passwd FROM pg_shadow WHERE usename = $1;"),
            "SELECT $1::text, found.passwd FROM (SELECT passwd FROM pg_shadow WHERE usename = $1) AS found"
        );
        assert!(two_columns("SELECT hash($1)").ends_with("AS found(secret)"));
    }
}
