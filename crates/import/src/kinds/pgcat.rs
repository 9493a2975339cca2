//! PgCat: `pgcat.toml`, with pools of users and shards.

use super::replicas::{self, Role};
use super::{has_line, toml};
use crate::dialect::Takes::{Anything, Count, Flag, Milliseconds, Port, Seconds, Text, Word};
use crate::finding::shown;
use crate::limits::SHOWN_LEN_MAX;
use crate::mapping::Outcome::{Missing, Needless, Pool as OfPool, Reader as ByReader, Setting};
use crate::mapping::Row;
use crate::plan::{Database, Pool, Secret};
use crate::reader::{Reader, Scope};
use crate::tree::{Node, Table, Value};

const BALANCE: &str = "with `route=auto` pgweir finds by itself what certainly only reads";
const OWN_CHANGES: &str =
    "`causal_reads=session`, the default, shows each client its own changes at standbys";
const SHARDS: &str = "pgweir does not shard";
const MODES: &[(&str, &str)] = &[("transaction", "transaction"), ("session", "session")];
const ROLES: &[(&str, &str)] =
    &[("any", "any"), ("replica", "replica"), ("primary", "primary"), ("auto", "auto")];

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row::new("general", Anything, ByReader("see `general.*`"), &[]),
    Row::new("pools", Anything, ByReader("each pool is an entry of `[databases]`"), &[]),
    Row::new("include", Anything, Missing("join the files first, or import each with its own `[general]`"), &[]),
    Row::new("plugins", Anything, Missing("pgweir has no plugins that look into statements"), &[]),
    Row::new("general.host", Text, ByReader("`listen_addr`; 0.0.0.0 if it is not set"), &[]),
    Row::new("general.port", Port, Setting("listen_port"), &["6432"]),
    Row::new("general.enable_prometheus_exporter", Flag, Missing("set `http_listen`: metrics have other names there, those of PgBouncer's exporter"), &[]),
    Row::new("general.prometheus_exporter_port", Port, Needless("see `enable_prometheus_exporter`"), &[]),
    Row::new("general.connect_timeout", Milliseconds, Setting("server_connect_timeout"), &["5000"]),
    Row::new("general.idle_timeout", Milliseconds, Setting("server_idle_timeout"), &["30000"]),
    Row::new("general.server_lifetime", Milliseconds, Setting("server_lifetime"), &["86400000"]),
    Row::new("general.server_round_robin", Flag, Setting("server_round_robin"), &[]),
    Row::new("general.idle_client_in_transaction_timeout", Milliseconds, Setting("idle_transaction_timeout"), &["0"]),
    Row::new("general.healthcheck_timeout", Milliseconds, Needless("a check that is not answered is ended by `server_connect_timeout` of a new connection"), &[]),
    Row::new("general.healthcheck_delay", Milliseconds, Setting("server_check_delay"), &["30000"]),
    Row::new("general.shutdown_timeout", Anything, Needless("SIGTERM waits until clients have left; a second one ends at once"), &[]),
    Row::new("general.ban_time", Seconds, Needless("pgweir checks a standby that failed again and again, and uses it once it answers; `server_login_retry` is the pause of a single server"), &[]),
    Row::new("general.log_client_connections", Flag, Setting("log_connections"), &["false"]),
    Row::new("general.log_client_disconnections", Flag, Setting("log_disconnections"), &["false"]),
    Row::new("general.autoreload", Anything, Missing("pgweir reads its files at RELOAD or SIGHUP"), &["false", "0"]),
    Row::new("general.worker_threads", Count, Needless("pgweir chooses the number of workers (`workers`)"), &[]),
    Row::new("general.tcp_keepalives_idle", Seconds, Setting("tcp_keepidle"), &["5"]),
    Row::new("general.tcp_keepalives_count", Count, Setting("tcp_keepcnt"), &["5"]),
    Row::new("general.tcp_keepalives_interval", Seconds, Setting("tcp_keepintvl"), &["5"]),
    Row::new("general.tcp_user_timeout", Milliseconds, Setting("tcp_user_timeout"), &[]),
    Row::new("general.tls_certificate", Text, ByReader("`client_tls_cert_file`, and `client_tls_sslmode = allow`"), &[]),
    Row::new("general.tls_private_key", Text, ByReader("`client_tls_key_file`"), &[]),
    Row::new("general.server_tls", Flag, ByReader("`server_tls_sslmode`: `require`, or `verify-full` with `verify_server_certificate`; `disable` if it is off"), &[]),
    Row::new("general.verify_server_certificate", Flag, ByReader("see `server_tls`"), &[]),
    Row::new("general.admin_username", Text, ByReader("`admin_users`"), &[]),
    Row::new("general.admin_password", Text, ByReader("the list of users"), &[]),
    Row::new("general.admin_auth_type", Text, Missing("the console asks as `auth_type` says"), &["md5"]),
    Row::new("general.auth_query", Text, ByReader("`auth_query`"), &[]),
    Row::new("general.auth_query_user", Text, ByReader("`auth_user`"), &[]),
    Row::new("general.auth_query_password", Text, ByReader("the list of users"), &[]),
    Row::new("general.dns_cache_enabled", Flag, Needless("pgweir always remembers addresses"), &[]),
    Row::new("general.dns_max_ttl", Seconds, Setting("dns_max_ttl"), &[]),
    Row::new("general.validate_config", Flag, Needless("`pgweir check` says what is wrong with a file"), &[]),
    Row::new("general.prepared_statements", Flag, Needless("prepared statements work in transaction pooling"), &[]),
    Row::new("general.prepared_statements_cache_size", Count, Needless("`max_prepared_statements` bounds them"), &[]),
    Row::new("pools.*.pool_mode", Word(MODES), OfPool("pool_mode"), &["transaction"]),
    Row::new("pools.*.users", Anything, ByReader("see `pools.*.users.*`"), &[]),
    Row::new("pools.*.shards", Anything, ByReader("see `pools.*.shards.*`"), &[]),
    Row::new("pools.*.load_balancing_mode", Text, Needless("reads go to the standby with the least load"), &[]),
    Row::new("pools.*.default_role", Word(ROLES), ByReader("`route` of the database: `primary`, `standby` for `replica`, `auto` for `any`"), &[]).noted("if the pool has a primary and replicas. PgCat sends all statements of `any` to any server, changes too; with `auto` only reads go to standbys. `SET SERVER ROLE` is PgCat's own command: clients say `SET pgweir.route` instead"),
    Row::new("pools.*.query_parser_enabled", Flag, ByReader("`route=auto`"), &[]).noted("unless `query_parser_read_write_splitting` is off"),
    Row::new("pools.*.query_parser_read_write_splitting", Flag, ByReader("`route=auto`"), &[]).noted("with `query_parser_enabled`"),
    Row::new("pools.*.query_parser_max_length", Anything, Needless(BALANCE), &[]),
    Row::new("pools.*.primary_reads_enabled", Flag, Needless("the primary reads what no standby may read"), &[]),
    Row::new("pools.*.db_activity_based_routing", Flag, Needless(OWN_CHANGES), &[]),
    Row::new("pools.*.db_activity_init_delay", Anything, Needless(OWN_CHANGES), &[]),
    Row::new("pools.*.db_activity_ttl", Anything, Needless(OWN_CHANGES), &[]),
    Row::new("pools.*.table_mutation_cache_ms_ttl", Anything, Needless(OWN_CHANGES), &[]),
    Row::new("pools.*.sharding_key_regex", Text, Missing(SHARDS), &[]),
    Row::new("pools.*.shard_id_regex", Text, Missing(SHARDS), &[]),
    Row::new("pools.*.regex_search_limit", Anything, Needless(SHARDS), &[]),
    Row::new("pools.*.sharding_function", Text, Needless(SHARDS), &[]),
    Row::new("pools.*.automatic_sharding_key", Text, Missing(SHARDS), &[]),
    Row::new("pools.*.default_shard", Anything, Needless(SHARDS), &[]),
    Row::new("pools.*.checkout_failure_limit", Anything, Missing("a client that waits too long is told so and disconnected (`query_wait_timeout`)"), &[]),
    Row::new("pools.*.idle_timeout", Milliseconds, OfPool("server_idle_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("pools.*.connect_timeout", Milliseconds, OfPool("server_connect_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("pools.*.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
    Row::new("pools.*.cleanup_server_connections", Flag, Needless("a client's session never reaches another client"), &[]),
    Row::new("pools.*.log_client_parameter_status_changes", Flag, Needless("pgweir does not log parameters"), &[]),
    Row::new("pools.*.prepared_statements_cache_size", Count, Needless("`max_prepared_statements` bounds them"), &[]),
    Row::new("pools.*.auth_query", Text, ByReader("`auth_query` of the database"), &[]),
    Row::new("pools.*.auth_query_user", Text, ByReader("`auth_user` of the database"), &[]),
    Row::new("pools.*.auth_query_password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.plugins", Anything, Missing("pgweir has no plugins that look into statements"), &[]),
    Row::new("pools.*.users.*.username", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.users.*.password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.users.*.auth_type", Word(&[("md5", "md5"), ("trust", "trust")]), ByReader("`auth_type`, or rules if users differ"), &[]),
    Row::new("pools.*.users.*.server_username", Text, ByReader("`user` of the database, if all its users have the same"), &[]),
    Row::new("pools.*.users.*.server_password", Text, ByReader("the list of users"), &[]),
    Row::new("pools.*.users.*.pool_size", Count, OfPool("pool_size"), &[]),
    Row::new("pools.*.users.*.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("pools.*.users.*.pool_mode", Word(MODES), OfPool("pool_mode"), &[]),
    Row::new("pools.*.users.*.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
    Row::new("pools.*.users.*.statement_timeout", Milliseconds, OfPool("query_timeout"), &["0"]),
    Row::new("pools.*.users.*.connect_timeout", Milliseconds, OfPool("server_connect_timeout"), &[]),
    Row::new("pools.*.users.*.idle_timeout", Milliseconds, OfPool("server_idle_timeout"), &[]),
    Row::new("pools.*.shards.*.servers", Anything, ByReader("a single server: `host`, `port`. A primary with replicas: a cluster and its nodes"), &[]).noted("replicas alone are the `host` list of the database. Pools with a server in common share a cluster"),
    Row::new("pools.*.shards.*.database", Text, ByReader("`dbname`"), &[]),
    Row::new("pools.*.shards.*.mirrors", Anything, Missing("pgweir does not mirror traffic"), &[]),
];

pub(super) fn looks_like(text: &str) -> bool {
    has_line(text, "[general]")
        && text.lines().any(|line| line.starts_with("[pools.") && line.contains(".shards"))
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let Some(table) = toml(text, reader) else { return };
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &table, None);
    general(&table.table("general"), reader);
    for (name, node) in &table.table("pools").0 {
        match &node.value {
            Value::Table(pool) => database(reader, name, node.line, pool),
            _ => reader.fault(node.line, "a pool must be a table"),
        }
    }
}

fn general(general: &Table, reader: &mut Reader<'_, '_>) {
    reader.table(ROWS, Scope { prefix: "general.", shown: "general." }, general, None);
    reader.set("listen_addr", general.text("host").unwrap_or("0.0.0.0"));
    // PgCat has no limit of clients: they wait.
    reader.set("max_client_conn", "10000");
    if let Some(path) = general.text("tls_certificate") {
        reader.set("client_tls_cert_file", path);
        reader.set("client_tls_key_file", general.text("tls_private_key").unwrap_or_default());
        reader.set("client_tls_sslmode", "allow");
    }
    let mode = match (general.text("server_tls"), general.text("verify_server_certificate")) {
        (Some("true"), Some("true")) => "verify-full",
        (Some("true"), _) => "require",
        _ => "disable",
    };
    reader.set("server_tls_sslmode", mode);
    admin(general, reader);
    if let Some(query) = general.text("auth_query") {
        reader.set("auth_query", query);
    }
    if let Some(user) = general.text("auth_query_user") {
        reader.set("auth_user", user);
        if let Some(password) = general.text("auth_query_password") {
            reader.secret(0, user, password);
        }
    }
}

/// Sets the user of the console.
pub(super) fn admin(general: &Table, reader: &mut Reader<'_, '_>) {
    let Some(node) = general.get("admin_username") else { return };
    let Some(user) = node.text().filter(|user| !user.is_empty()) else { return };
    reader.plan.admins.push(user.to_owned());
    if let Some(password) = general.text("admin_password") {
        reader.secret(node.line, user, password);
    }
}

fn database(reader: &mut Reader<'_, '_>, name: &str, line: u32, pool: &Table) {
    let label = format!("pools.{name}.");
    let mut common = Pool { database: name.to_owned(), line, ..Pool::default() };
    reader.table(ROWS, Scope { prefix: "pools.*.", shown: &label }, pool, Some(&mut common));
    let shards = pool.get("shards").map(Node::entries).unwrap_or_default();
    let [(shard_line, shard)] = shards.as_slice() else {
        let why = match shards.len() {
            0 => "it has no server",
            _ => "it is sharded, and pgweir does not shard: this database was left out",
        };
        return reader.missing(line, &format!("pools.{name}"), why);
    };
    let label = format!("pools.{name}.shards.0.");
    reader.table(ROWS, Scope { prefix: "pools.*.shards.*.", shown: &label }, shard, None);
    let servers = servers(reader, shard);
    if servers.is_empty() {
        return reader.missing(
            *shard_line,
            &format!("pools.{}", shown(name, SHOWN_LEN_MAX)),
            "it has no server",
        );
    }
    let dbname = shard.text("database").filter(|own| *own != name).map(str::to_owned);
    let mut entry = Database { name: name.to_owned(), dbname, ..Database::default() };
    if let Some(query) = pool.text("auth_query") {
        entry.options.insert("auth_query", query.to_owned());
    }
    if let Some(user) = pool.text("auth_query_user") {
        entry.options.insert("auth_user", user.to_owned());
        if let Some(password) = pool.text("auth_query_password") {
            reader.secret(line, user, password);
        }
    }
    if replicas::add(reader, *shard_line, entry, &servers) {
        route(reader, name, line, pool);
    }
    for (line, user) in pool.get("users").map(Node::entries).unwrap_or_default() {
        pool_user(reader, common.clone(), line, user);
    }
}

/// Returns the servers of a shard.
fn servers(reader: &mut Reader<'_, '_>, shard: &Table) -> Vec<replicas::Server> {
    let mut servers = Vec::new();
    for server in shard.get("servers").map(Node::list).unwrap_or_default() {
        let parts: Vec<&str> = server.list().iter().filter_map(Node::text).collect();
        let [host, port, role] = parts.as_slice() else {
            reader.fault(server.line, "a server must be [host, port, role]");
            continue;
        };
        let Some(port) = port.parse::<u16>().ok().filter(|port| *port > 0) else {
            reader.fault(server.line, "the port of a server must be 1 to 65535");
            continue;
        };
        let role = match role.to_ascii_lowercase().as_str() {
            "primary" => Role::Primary,
            "replica" => Role::Replica,
            _ => Role::Asked,
        };
        let host = (*host).to_owned();
        servers.push(replicas::Server { line: server.line, host, port, role, weight: None });
    }
    servers
}

/// Sets where the statements of a pool with a primary and replicas run.
fn route(reader: &mut Reader<'_, '_>, name: &str, line: u32, pool: &Table) {
    let is = |key: &str, text: &str| pool.text(key).is_some_and(|own| own.eq_ignore_ascii_case(text));
    let splits = is("query_parser_enabled", "true") && !is("query_parser_read_write_splitting", "false");
    let route = match pool.text("default_role").unwrap_or("any").to_ascii_lowercase().as_str() {
        _ if splits => "auto",
        "primary" => "primary",
        "replica" => "standby",
        _ => "auto",
    };
    if let Some(entry) = reader.plan.databases.iter_mut().find(|entry| entry.name == name) {
        entry.options.insert("route", route.to_owned());
    }
    let what = format!("pools.{}.default_role", shown(name, SHOWN_LEN_MAX));
    if route == "auto" && !splits {
        let why = "PgCat sends all statements to any server, so that changes fail at replicas; `route=auto` sends only reads to standbys";
        reader.differs(line, &what, why);
    }
    if route == "auto" {
        replicas::tell_session(reader, line, &what, pool.text("pool_mode"));
    }
}

fn pool_user(reader: &mut Reader<'_, '_>, mut pool: Pool, line: u32, user: &Table) {
    let Some(name) = user.text("username") else {
        return reader.fault(line, "a user has no username");
    };
    let label = format!("pools.{}.users.{name}.", pool.database);
    reader.table(ROWS, Scope { prefix: "pools.*.users.*.", shown: &label }, user, Some(&mut pool));
    pool.line = line;
    pool.user = Some(name.to_owned());
    pool.method = if user.text("auth_type") == Some("trust") { "trust" } else { "md5" };
    if let Some(password) = user.text("password") {
        reader.secret(line, name, password);
    } else if pool.method == "trust" {
        reader.secret(line, name, "");
    }
    server(&mut pool, name, user);
    reader.plan.pools.push(pool);
}

/// Sets the user and password of the server connections.
pub(super) fn server(pool: &mut Pool, name: &str, user: &Table) {
    let password = user.text("server_password").map(Secret::new);
    let server = user.text("server_username").or(user.text("server_user"));
    if server.is_some() || password.is_some() {
        pool.server = Some((server.unwrap_or(name).to_owned(), password));
    }
}
