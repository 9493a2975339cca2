//! PgDog: `pgdog.toml` and `users.toml`.

use std::collections::BTreeMap;

use super::replicas::{self, Role};
use super::{has_line, pgcat, toml};
use crate::dialect::Takes::{Anything, Count, Flag, Milliseconds, Port, Text, Word};
use crate::mapping::Outcome::{Missing, Needless, Pool as OfPool, Reader as ByReader, Setting};
use crate::mapping::Row;
use crate::plan::{Database, Pool, Secret};
use crate::reader::{Reader, Scope};
use crate::tree::{Node, Table};

/// The maximum of `weight`.
const WEIGHT_MAX: u32 = 1000;
const SHARDS: &str = "pgweir does not shard";
const PARAMETERS: &str = "set it at the role: `ALTER ROLE ... SET`, or by `connect_query`";
const MODES: &[(&str, &str)] =
    &[("session", "session"), ("transaction", "transaction"), ("statement", "statement")];
const METHODS: &[(&str, &str)] =
    &[("scram", "scram-sha-256"), ("md5", "md5"), ("plain", "password"), ("trust", "trust")];
const STRATEGIES: &[(&str, &str)] = &[("conservative", "primary"), ("aggressive", "first")];
const SPLITS: &[(&str, &str)] = &[
    ("include_primary", "auto"),
    ("exclude_primary", "auto"),
    ("include_primary_if_replica_banned", "auto"),
    ("prefer_primary", "primary"),
];
const ROLES: &[(&str, &str)] = &[("primary", "primary"), ("replica", "replica"), ("auto", "auto")];

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row::new("general", Anything, ByReader("see `general.*`"), &[]),
    Row::new("databases", Anything, ByReader("the entries with one name are an entry of `[databases]`"), &[]),
    Row::new("admin", Anything, ByReader("see `admin.*`"), &[]),
    Row::new("tcp", Anything, ByReader("see `tcp.*`"), &[]),
    Row::new("memory", Anything, Needless("pgweir takes buffers as it needs them"), &[]),
    Row::new("plugins", Anything, Missing("pgweir has no plugins that look into statements"), &[]),
    Row::new("mirroring", Anything, Missing("pgweir does not mirror traffic"), &[]),
    Row::new("sharded_*", Anything, Missing(SHARDS), &[]),
    Row::new("omnisharded_tables", Anything, Missing(SHARDS), &[]),
    Row::new("rewrite", Anything, Missing(SHARDS), &[]),
    Row::new("replication", Anything, Missing(SHARDS), &[]),
    Row::new("replica_lag", Anything, ByReader("`lag_limit_ms`: its `max_age`"), &[]),
    Row::new("query_stats", Anything, Needless("`SHOW STATEMENTS` has them"), &[]),
    Row::new("otel", Anything, Missing("metrics are on `http_listen`; `otlp_endpoint` takes spans"), &[]),
    Row::new("control", Anything, Missing("it is of PgDog's own service"), &[]),
    Row::new("general.host", Text, ByReader("`listen_addr`; 0.0.0.0 if it is not set"), &[]),
    Row::new("general.port", Port, Setting("listen_port"), &["6432"]),
    Row::new("general.workers", Count, Needless("pgweir chooses the number of workers (`workers`)"), &[]),
    Row::new("general.default_pool_size", Count, Setting("default_pool_size"), &["10"]),
    Row::new("general.min_pool_size", Count, Setting("min_pool_size"), &["1"]),
    Row::new("general.pooler_mode", Word(MODES), Setting("pool_mode"), &["transaction"]),
    Row::new("general.tls_certificate", Text, ByReader("`client_tls_cert_file`, and `client_tls_sslmode = allow`"), &[]),
    Row::new("general.tls_private_key", Text, ByReader("`client_tls_key_file`"), &[]),
    Row::new("general.tls_client_required", Flag, ByReader("`client_tls_sslmode = require`"), &[]),
    Row::new("general.tls_client_ca_certificate", Text, ByReader("`client_tls_ca_file`, and `client_tls_sslmode = verify-ca`"), &[]),
    Row::new("general.tls_verify", Word(&[("none", "disable"), ("disabled", "disable"), ("prefer", "prefer"), ("verify_ca", "verify-ca"), ("verify_full", "verify-full")]), Setting("server_tls_sslmode"), &["prefer"]),
    Row::new("general.tls_server_ca_certificate", Text, Setting("server_tls_ca_file"), &[]),
    Row::new("general.healthcheck_interval", Milliseconds, Setting("server_check_delay"), &["30000"]).noted("pgweir checks an idle connection before a client gets it"),
    Row::new("general.idle_healthcheck_interval", Milliseconds, Needless("see `healthcheck_interval`"), &[]),
    Row::new("general.idle_healthcheck_delay", Milliseconds, Needless("see `healthcheck_interval`"), &[]),
    Row::new("general.healthcheck_timeout", Milliseconds, Needless("see `healthcheck_interval`"), &[]),
    Row::new("general.healthcheck_port", Port, Missing("set `http_listen`"), &[]),
    Row::new("general.connection_recovery", Text, Needless("pgweir closes a server whose client left in the middle of a statement"), &[]),
    Row::new("general.client_connection_recovery", Text, Needless("a client that waited too long is disconnected, as PgDog's default"), &[]),
    Row::new("general.rollback_timeout", Milliseconds, Needless("pgweir closes a server whose client left in a transaction"), &[]),
    Row::new("general.ban_timeout", Milliseconds, Needless("pgweir checks a standby that failed again and again, and uses it once it answers; `server_login_retry` is the pause of a single server"), &[]),
    Row::new("general.ban_replica_lag", Milliseconds, ByReader("`lag_limit_ms`"), &[]).noted("of each cluster"),
    Row::new("general.ban_replica_lag_bytes", Count, ByReader("`lag_limit_bytes`"), &[]).noted("of each cluster"),
    Row::new("general.shutdown_timeout", Milliseconds, Needless("SIGTERM waits until clients have left; a second one ends at once"), &[]),
    Row::new("general.shutdown_termination_timeout", Milliseconds, Needless("see `shutdown_timeout`"), &[]),
    Row::new("general.query_timeout", Milliseconds, Setting("query_timeout"), &[]),
    Row::new("general.connect_timeout", Milliseconds, Setting("server_connect_timeout"), &["5000"]),
    Row::new("general.connect_attempts", Count, Needless("pgweir tries again after `server_login_retry`"), &[]),
    Row::new("general.connect_attempt_delay", Milliseconds, Needless("pgweir tries again after `server_login_retry`"), &[]),
    Row::new("general.checkout_timeout", Milliseconds, Setting("query_wait_timeout"), &["5000"]),
    Row::new("general.idle_timeout", Milliseconds, Setting("server_idle_timeout"), &["60000"]),
    Row::new("general.client_idle_timeout", Milliseconds, Setting("client_idle_timeout"), &[]),
    Row::new("general.client_idle_in_transaction_timeout", Milliseconds, Setting("idle_transaction_timeout"), &[]),
    Row::new("general.client_login_timeout", Milliseconds, Setting("client_login_timeout"), &["60000"]),
    Row::new("general.server_lifetime", Milliseconds, Setting("server_lifetime"), &["86400000"]),
    Row::new("general.server_lifetime_jitter", Milliseconds, Missing("connections that were opened together grow old together"), &["0"]),
    Row::new("general.load_balancing_strategy", Text, Needless("reads go to the standby with the least load, in proportion to the weights"), &[]),
    Row::new("general.read_write_strategy", Word(STRATEGIES), ByReader("`aggressive`: `begin_undeclared=first`"), &[]).noted("of each cluster. A transaction goes on at the primary from its first statement that does not certainly read"),
    Row::new("general.read_write_split", Word(SPLITS), ByReader("`route=auto`; `prefer_primary`: `route=primary`"), &[]).noted("of databases with a primary and replicas. The primary reads what no standby may read, and everything while no standby is usable"),
    Row::new("general.openmetrics_port", Port, Missing("set `http_listen`: metrics have other names there, those of PgBouncer's exporter"), &[]),
    Row::new("general.openmetrics_namespace", Text, Needless("see `openmetrics_port`"), &[]),
    Row::new("general.auth_type", Word(METHODS), ByReader("`auth_type`; scram-sha-256 if it is not set"), &[]),
    Row::new("general.passthrough_auth", Text, Missing("list the users in `auth_file`, or set `auth_user` and `auth_query`: pgweir learns no passwords from clients"), &["disabled"]),
    Row::new("general.prepared_statements", Text, ByReader("`disabled` is `max_prepared_statements = 0`"), &[]),
    Row::new("general.prepared_statements_limit", Count, Setting("max_prepared_statements"), &[]),
    Row::new("general.pub_sub_channel_size", Count, Needless("LISTEN works in transaction pooling"), &[]),
    Row::new("general.mirror_*", Anything, Missing("pgweir does not mirror traffic"), &["128", "1.0"]),
    Row::new("general.dry_run", Flag, Missing(SHARDS), &[]),
    Row::new("general.cross_shard_disabled", Flag, Needless(SHARDS), &[]),
    Row::new("general.expanded_explain", Flag, Needless(SHARDS), &[]),
    Row::new("general.two_phase_commit*", Anything, Needless(SHARDS), &[]),
    Row::new("general.query_cache_limit", Count, Needless("`statement_stats_bytes` bounds what is remembered of statements"), &[]),
    Row::new("general.query_parser*", Anything, Needless("pgweir reads statements by itself where it has to"), &[]),
    Row::new("general.regex_parser_limit", Anything, Needless("pgweir reads statements by itself where it has to"), &[]),
    Row::new("general.system_catalogs", Text, Needless(SHARDS), &[]),
    Row::new("general.omnisharded_sticky", Flag, Needless(SHARDS), &[]),
    Row::new("general.resharding_*", Anything, Needless(SHARDS), &[]),
    Row::new("general.reload_schema_on_ddl", Flag, Needless(SHARDS), &[]),
    Row::new("general.load_schema", Text, Needless(SHARDS), &[]),
    Row::new("general.cutover_*", Anything, Needless(SHARDS), &[]),
    Row::new("general.log_format", Word(&[("text", "text"), ("json", "json")]), Setting("log_format"), &[]),
    Row::new("general.log_level", Text, Needless("`verbose` says how much is logged"), &[]),
    Row::new("general.log_connections", Flag, Setting("log_connections"), &[]),
    Row::new("general.log_disconnections", Flag, Setting("log_disconnections"), &[]),
    Row::new("general.log_dedup_*", Anything, Needless("pgweir logs each line"), &[]),
    Row::new("general.stats_period", Milliseconds, Setting("stats_period"), &["15000"]),
    Row::new("general.dns_ttl", Milliseconds, Setting("dns_max_ttl"), &[]),
    Row::new("general.lsn_check_*", Anything, Needless("`check_interval_ms` of the cluster says how often pgweir asks the nodes"), &[]),
    Row::new("general.unique_id_*", Anything, Missing("pgweir makes no ids: use a sequence or `uuidv7()`"), &["standard", "0"]),
    Row::new("tcp.keepalive", Flag, Setting("tcp_keepalive"), &[]),
    Row::new("tcp.time", Milliseconds, Setting("tcp_keepidle"), &[]),
    Row::new("tcp.interval", Milliseconds, Setting("tcp_keepintvl"), &[]),
    Row::new("tcp.retries", Count, Setting("tcp_keepcnt"), &[]),
    Row::new("tcp.user_timeout", Milliseconds, Setting("tcp_user_timeout"), &[]),
    Row::new("tcp.congestion_control", Text, Missing("set `net.ipv4.tcp_congestion_control`"), &[]),
    Row::new("admin.name", Text, Missing("the console's database is `pgbouncer`"), &["pgbouncer"]),
    Row::new("admin.user", Text, ByReader("`admin_users`; admin if it is not set"), &[]),
    Row::new("admin.password", Text, ByReader("the list of users"), &[]),
    Row::new("databases.name", Text, ByReader("the name of the entry"), &[]),
    Row::new("databases.host", Text, ByReader("`host` of the database, or of a node"), &[]).noted("several servers of one name are a cluster"),
    Row::new("databases.port", Port, ByReader("`port`"), &[]),
    Row::new("databases.role", Word(ROLES), ByReader("the servers are a cluster unless all are replicas"), &[]).noted("pgweir asks each node whether it is the primary, as PgDog does with `auto`. Replicas alone take turns as the `host` list of the database"),
    Row::new("databases.database_name", Text, ByReader("`dbname`"), &[]),
    Row::new("databases.user", Text, ByReader("`user`"), &[]),
    Row::new("databases.password", Text, ByReader("the list of users"), &[]),
    Row::new("databases.shard", Count, Missing("pgweir does not shard: a database with several shards is left out"), &["0"]),
    Row::new("databases.pool_size", Count, OfPool("pool_size"), &[]),
    Row::new("databases.pooler_mode", Word(MODES), OfPool("pool_mode"), &[]),
    Row::new("databases.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("databases.statement_timeout", Milliseconds, Missing(PARAMETERS), &[]),
    Row::new("databases.lock_timeout", Milliseconds, Missing(PARAMETERS), &[]),
    Row::new("databases.idle_timeout", Milliseconds, OfPool("server_idle_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("databases.read_only", Flag, Missing("set `default_transaction_read_only` at the role, or by `connect_query`"), &[]),
    Row::new("databases.lb_weight", Count, ByReader("`weight` of the node"), &[]).noted("at most 1000"),
    Row::new("databases.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
    Row::new("databases.resharding_only", Flag, Missing(SHARDS), &[]),
];

#[rustfmt::skip]
pub(super) const USER_ROWS: &[Row] = &[
    Row::new("users", Anything, ByReader("see `users.*`"), &[]),
    Row::new("admin", Anything, ByReader("see `admin.*` of pgdog.toml"), &[]),
    Row::new("users.name", Text, ByReader("the list of users"), &[]),
    Row::new("users.database", Text, ByReader("a rule, if users of different databases must be kept apart"), &[]),
    Row::new("users.databases", Anything, ByReader("the same, for several databases"), &[]),
    Row::new("users.all_databases", Flag, ByReader("the same, for all databases"), &[]),
    Row::new("users.password", Text, ByReader("the list of users"), &[]),
    Row::new("users.passwords", Anything, Missing("pgweir has one password for each user"), &[]),
    Row::new("users.pool_size", Count, OfPool("pool_size"), &[]),
    Row::new("users.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("users.pooler_mode", Word(MODES), OfPool("pool_mode"), &[]),
    Row::new("users.server_user", Text, ByReader("`user` of the database, if all its users have the same"), &[]),
    Row::new("users.server_password", Text, ByReader("the list of users"), &[]),
    Row::new("users.statement_timeout", Milliseconds, Missing(PARAMETERS), &[]),
    Row::new("users.lock_timeout", Milliseconds, Missing(PARAMETERS), &[]),
    Row::new("users.replication_mode", Flag, Needless("a client that asks for replication gets it"), &[]),
    Row::new("users.idle_timeout", Milliseconds, OfPool("server_idle_timeout"), &[]).noted("pgweir has one for all pools"),
    Row::new("users.two_phase_commit*", Anything, Needless(SHARDS), &[]),
    Row::new("users.read_only", Flag, Missing("set `default_transaction_read_only` at the role"), &[]),
    Row::new("users.server_lifetime", Milliseconds, OfPool("server_lifetime"), &[]),
];

pub(super) fn looks_like(text: &str) -> bool {
    has_line(text, "[[databases]]")
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let Some(table) = toml(text, reader) else { return };
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &table, None);
    let general = table.table("general");
    self::general(&general, reader);
    reader.table(ROWS, Scope { prefix: "tcp.", shown: "tcp." }, &table.table("tcp"), None);
    let method = METHODS
        .iter()
        .find(|(name, _)| general.text("auth_type") == Some(*name))
        .map_or("scram-sha-256", |(_, ours)| ours);
    let common = databases(&table, reader);
    admin(&table.table("admin"), reader);
    users(reader, method, &common);
}

fn general(general: &Table, reader: &mut Reader<'_, '_>) {
    reader.table(ROWS, Scope { prefix: "general.", shown: "general." }, general, None);
    reader.set("listen_addr", general.text("host").unwrap_or("0.0.0.0"));
    // PgDog has no limit of clients: they wait.
    reader.set("max_client_conn", "10000");
    if let Some(path) = general.text("tls_certificate") {
        let required = general.text("tls_client_required") == Some("true");
        let authorities = general.text("tls_client_ca_certificate");
        reader.set("client_tls_cert_file", path);
        reader.set("client_tls_key_file", general.text("tls_private_key").unwrap_or_default());
        let mode = match (authorities, required) {
            (Some(_), _) => "verify-ca",
            (None, true) => "require",
            (None, false) => "allow",
        };
        reader.set("client_tls_sslmode", mode);
        if let Some(path) = authorities {
            reader.set("client_tls_ca_file", path);
            if !required {
                let line = general.get("tls_client_ca_certificate").map_or(0, |node| node.line);
                reader.differs(
                    line,
                    "general.tls_client_ca_certificate",
                    "clients without TLS are refused now too",
                );
            }
        }
    }
    if general.text("prepared_statements") == Some("disabled") {
        reader.set("max_prepared_statements", "0");
    }
}

fn admin(admin: &Table, reader: &mut Reader<'_, '_>) {
    reader.table(ROWS, Scope { prefix: "admin.", shown: "admin." }, admin, None);
    let Some(password) = admin.get("password") else { return };
    let user = admin.text("user").unwrap_or("admin");
    reader.plan.admins.push(user.to_owned());
    if let Some(text) = password.text() {
        reader.secret(password.line, user, text);
    }
}

/// Settings for the pools of a database, by its name.
type Common = BTreeMap<String, Pool>;

fn databases(table: &Table, reader: &mut Reader<'_, '_>) -> Common {
    let entries = table.get("databases").map(Node::entries).unwrap_or_default();
    let mut by_name: Vec<(String, Vec<(u32, &Table)>)> = Vec::new();
    for (line, entry) in entries {
        let Some(name) = entry.text("name") else {
            reader.fault(line, "a database has no name");
            continue;
        };
        match by_name.iter_mut().find(|(known, _)| known == name) {
            Some((_, entries)) => entries.push((line, entry)),
            None => by_name.push((name.to_owned(), vec![(line, entry)])),
        }
    }
    let mut common = Common::new();
    for (name, entries) in by_name {
        database(reader, table, &name, &entries, &mut common);
    }
    common
}

fn database(
    reader: &mut Reader<'_, '_>,
    table: &Table,
    name: &str,
    entries: &[(u32, &Table)],
    common: &mut Common,
) {
    let mut pools = Vec::new();
    for (line, entry) in entries {
        let mut pool = Pool { database: name.to_owned(), line: *line, ..Pool::default() };
        reader.table(ROWS, Scope { prefix: "databases.", shown: "databases." }, entry, Some(&mut pool));
        pools.push(pool);
    }
    let line = entries.first().map_or(0, |(line, _)| *line);
    if entries.iter().any(|(_, entry)| entry.text("shard").is_some_and(|shard| shard != "0")) {
        return reader.missing(
            line,
            name,
            "it is sharded, and pgweir does not shard: this database was left out",
        );
    }
    let servers = servers(reader, entries);
    // The primary's entry decides the database and user of the connections; without a primary, the first
    // entry does.
    let is_primary = |(_, entry): &&(u32, &Table)| {
        entry.text("role").is_none_or(|role| role.eq_ignore_ascii_case("primary"))
    };
    let at = entries.iter().position(|entry| is_primary(&entry)).unwrap_or(0);
    let Some((line, entry)) = entries.get(at).filter(|_| !servers.is_empty()) else { return };
    let dbname = entry.text("database_name").filter(|own| *own != name).map(str::to_owned);
    let other_name = |(_, other): &&(u32, &Table)| {
        other.text("database_name").unwrap_or(name) != entry.text("database_name").unwrap_or(name)
    };
    if let Some((line, _)) = entries.iter().find(|other| other_name(other)) {
        let why = "another server of the database has another `database_name`; pgweir has one for all nodes: the primary's";
        reader.differs(*line, &format!("database_name of {name}"), why);
    }
    let database = Database { name: name.to_owned(), dbname, ..Database::default() };
    if replicas::add(reader, *line, database, &servers) {
        route(reader, name, *line, table, entry.text("pooler_mode"));
    }
    let mut pool = pools.swap_remove(at);
    let password = entry.text("password").map(Secret::new);
    pool.server = entry.text("user").map(|user| (user.to_owned(), password));
    common.insert(name.to_owned(), pool);
}

fn servers(reader: &mut Reader<'_, '_>, entries: &[(u32, &Table)]) -> Vec<replicas::Server> {
    let mut servers = Vec::new();
    for (line, entry) in entries {
        let port = entry.text("port").and_then(|port| port.parse().ok()).unwrap_or(5432);
        let Some(host) = entry.text("host") else {
            reader.fault(*line, "a database has no host");
            continue;
        };
        let role = match entry.text("role").unwrap_or("primary").to_ascii_lowercase().as_str() {
            "primary" => Role::Primary,
            "replica" => Role::Replica,
            _ => Role::Asked,
        };
        let weight = entry.text("lb_weight").and_then(|weight| weight.parse::<u32>().ok());
        let weight = weight.map(|weight| weight.min(WEIGHT_MAX));
        servers.push(replicas::Server { line: *line, host: host.to_owned(), port, role, weight });
    }
    servers
}

/// Sets where the statements of a database with a primary and replicas run.
fn route(reader: &mut Reader<'_, '_>, name: &str, line: u32, table: &Table, mode: Option<&str>) {
    let general = table.table("general");
    let given = |key: &str| general.text(key).unwrap_or_default().to_ascii_lowercase();
    let is_auto = given("read_write_split") != "prefer_primary";
    let Some(entry) = reader.plan.databases.iter_mut().find(|entry| entry.name == name) else { return };
    entry.options.insert("route", if is_auto { "auto" } else { "primary" }.to_owned());
    let cluster = entry.cluster.clone();
    let cluster = reader.plan.clusters.iter_mut().find(|known| Some(&known.name) == cluster.as_ref());
    if let Some(cluster) = cluster {
        let limit = |text: &str| text.parse::<u64>().ok().filter(|limit| *limit > 0);
        let most = |limit: u64| limit.min(i32::MAX.unsigned_abs().into()).to_string();
        let age = table.table("replica_lag").text("max_age").and_then(limit);
        if let Some(limit) = limit(&given("ban_replica_lag")).or(age) {
            cluster.options.insert("lag_limit_ms", most(limit));
        }
        if let Some(limit) = limit(&given("ban_replica_lag_bytes")) {
            cluster.options.insert("lag_limit_bytes", most(limit));
        }
        if is_auto && given("read_write_strategy") == "aggressive" {
            cluster.options.insert("begin_undeclared", "first".to_owned());
        }
    }
    if is_auto {
        replicas::tell_session(
            reader,
            line,
            &format!("reads of {name}"),
            mode.or(general.text("pooler_mode")),
        );
    }
}

fn users(reader: &mut Reader<'_, '_>, method: &'static str, common: &Common) {
    let name = reader.users_file().unwrap_or("users.toml").to_owned();
    let text = match reader.open(&name) {
        Ok(text) => text,
        Err(why) => {
            return reader.fault(0, format!("{name} could not be read ({why}): give its place with --users"));
        }
    };
    let main = std::mem::replace(&mut reader.file, name);
    if let Some(table) = toml(&text, reader) {
        reader.table(USER_ROWS, Scope { prefix: "", shown: "" }, &table, None);
        for (line, entry) in table.get("users").map(Node::entries).unwrap_or_default() {
            user(reader, line, entry, method, common);
        }
        if reader.plan.admins.is_empty() {
            admin(&table.table("admin"), reader);
        }
    }
    reader.file = main;
}

fn user(reader: &mut Reader<'_, '_>, line: u32, entry: &Table, method: &'static str, common: &Common) {
    let Some(name) = entry.text("name") else {
        return reader.fault(line, "a user has no name");
    };
    let mut own = Pool { user: Some(name.to_owned()), line, method, ..Pool::default() };
    reader.table(USER_ROWS, Scope { prefix: "users.", shown: "users." }, entry, Some(&mut own));
    let mut asked: Vec<&str> = entry.text("database").into_iter().collect();
    asked.extend(entry.get("databases").map(Node::list).unwrap_or_default().iter().filter_map(Node::text));
    let all = entry.text("all_databases") == Some("true");
    match entry.text("password") {
        Some(password) => reader.secret(line, name, password),
        None if method == "trust" => reader.secret(line, name, ""),
        None => {
            reader.missing(line, &format!("password of {name}"), "it has none: add it to the list of users");
        }
    }
    for database in &asked {
        if !common.contains_key(*database) {
            let why = "pgdog.toml has no such database that could be carried over";
            reader.missing(line, &format!("{name} on {database}"), why);
        }
    }
    pgcat::server(&mut own, name, entry);
    for (database, shared) in common.iter().filter(|(database, _)| all || asked.contains(&database.as_str()))
    {
        let mut pool = Pool { database: database.clone(), ..own.clone() };
        for (setting, given) in &shared.settings {
            pool.settings.entry(setting).or_insert_with(|| given.clone());
        }
        // The server's user in pgdog.toml overrides the one in users.toml.
        pool.server = shared.server.clone().or(pool.server);
        reader.plan.pools.push(pool);
    }
}
