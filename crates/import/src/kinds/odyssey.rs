//! Odyssey: `odyssey.conf`, with listeners, storages, and rules for pairs of database and user.

use std::collections::BTreeMap;

mod reads;
mod text;

use self::reads::Watchdog;
use super::replicas::{self, Role, Server};
use super::{has_line, parsed, pgpool};
use crate::dialect;
use crate::dialect::Takes::{Anything, Count, Flag, List, Milliseconds, Port, Seconds, Text, Word};
use crate::finding::shown;
use crate::kinds::Kind;
use crate::limits::SHOWN_LEN_MAX;
use crate::mapping::Outcome::{Missing, Needless, Pool as OfPool, Reader as ByReader, Setting};
use crate::mapping::Row;
use crate::plan::{Database, Pool, Secret};
use crate::reader::{Reader, Scope};
use crate::tree::Table;
use crate::write;

const ATTRS: &str = "if the storage has several hosts: `read-write` is `primary`, `read-only` is `standby`, `any` is `auto`, which sends reads to standbys";
const BALANCE: &str = "reads go to the standby with the least load, in the same `zone` first";
const LOGS: &str = "pgweir's lines have one form; `log_format = json` gives them as JSON";
const INNER: &str = "it is about how Odyssey works inside";
const LDAP: &str = "write the rule of LDAP into the file of rules: `ldap ldapserver=... ldapbasedn=...`";
const TLS_MODES: &[(&str, &str)] = &[
    ("disable", "disable"),
    ("allow", "allow"),
    ("prefer", "prefer"),
    ("require", "require"),
    ("verify_ca", "verify-ca"),
    ("verify_full", "verify-full"),
];
const POOL_MODES: &[(&str, &str)] =
    &[("session", "session"), ("transaction", "transaction"), ("statement", "statement")];
const METHODS: &[(&str, &str)] = &[
    ("none", "trust"),
    ("block", "reject"),
    ("clear_text", "password"),
    ("md5", "md5"),
    ("scram-sha-256", "scram-sha-256"),
    ("cert", "cert"),
    ("external", "external"),
];

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    Row::new("include", List, ByReader("the file is read in its place"), &[]),
    Row::new("listen", Anything, ByReader("see `listen.*`"), &[]),
    Row::new("storage", Anything, ByReader("see `storage.*`"), &[]),
    Row::new("database", Anything, ByReader("an entry of `[databases]`; `default` is `*`"), &[]),
    Row::new("daemonize", Flag, Missing("start pgweir with -d, or better by systemd"), &[]),
    Row::new("sequential_routing", Flag, Missing("pgweir takes the entry of the database's own name first; the rules in the file of rules are in that order"), &[]),
    Row::new("priority", Anything, Missing("set `Nice=` in the systemd unit"), &["0"]),
    Row::new("pid_file", Text, Setting("pidfile"), &[]),
    Row::new("unix_socket_dir", Text, Setting("unix_socket_dir"), &[]),
    Row::new("unix_socket_mode", Text, Setting("unix_socket_mode"), &[]),
    Row::new("locks_dir", Text, Needless("pgweir needs no lock files"), &[]),
    Row::new("log_file", Text, Setting("logfile"), &[]),
    Row::new("log_format", Text, Needless(LOGS), &[]),
    Row::new("log_to_stdout", Flag, Needless("pgweir logs to standard error; -q turns that off"), &[]),
    Row::new("log_syslog", Flag, Setting("syslog"), &[]),
    Row::new("log_syslog_ident", Text, Setting("syslog_ident"), &[]),
    Row::new("log_syslog_facility", Text, Setting("syslog_facility"), &[]),
    Row::new("log_debug", Flag, ByReader("`verbose = 1`"), &[]),
    Row::new("log_config", Flag, Needless("`SHOW CONFIG` shows the settings"), &[]),
    Row::new("log_session", Flag, ByReader("`log_connections`, `log_disconnections`"), &[]),
    Row::new("log_query", Flag, Missing("pgweir logs no texts of statements but slow ones without literals (`log_min_duration_ms`)"), &[]),
    Row::new("log_stats", Flag, Setting("log_stats"), &[]),
    Row::new("stats_interval", Seconds, Setting("stats_period"), &["3"]),
    Row::new("promhttp_server_port", Port, Missing("set `http_listen`: pgweir has PgBouncer's names of metrics there"), &[]),
    Row::new("log_general_stats_prom", Flag, Needless("metrics are on `http_listen`"), &[]),
    Row::new("log_route_stats_prom", Flag, Needless("metrics are on `http_listen`"), &[]),
    Row::new("workers", Text, ByReader("`workers`; `auto` is pgweir's own choice"), &[]),
    Row::new("resolvers", Anything, Needless(INNER), &[]),
    Row::new("readahead", Anything, Needless(INNER), &[]),
    Row::new("cache_coroutine", Anything, Needless(INNER), &[]),
    Row::new("coroutine_stack_size", Anything, Needless(INNER), &[]),
    Row::new("nodelay", Flag, Needless("pgweir always sets TCP_NODELAY"), &[]),
    Row::new("keepalive", Seconds, ByReader("`tcp_keepidle`; 0 is `tcp_keepalive = 0`"), &[]).noted("15 if it is not set"),
    Row::new("keepalive_keep_interval", Seconds, Setting("tcp_keepintvl"), &["5"]),
    Row::new("keepalive_probes", Count, Setting("tcp_keepcnt"), &["3"]),
    Row::new("keepalive_usr_timeout", Text, ByReader("`tcp_user_timeout`"), &[]),
    Row::new("backend_connect_timeout_ms", Milliseconds, Setting("server_connect_timeout"), &["30000"]),
    Row::new("client_max", Count, ByReader("`max_client_conn`"), &[]).noted("without it, the limit is 10,000 clients"),
    Row::new("client_max_routing", Anything, Needless("logins do not hold up other clients"), &[]),
    Row::new("server_login_retry", Anything, Needless("a client waits in its queue until a connection can be opened"), &[]),
    Row::new("hba_file", Text, ByReader("`auth_hba_file`: its rules and the routes' methods as one list"), &[]),
    Row::new("graceful_die_on_errors", Flag, Needless("SIGTERM waits for clients"), &[]),
    Row::new("graceful_shutdown_timeout_ms", Anything, Missing("pgweir waits until clients have left; a second signal ends it at once"), &["30000"]),
    Row::new("availability_zone", Text, ByReader("`zone`"), &[]).noted("reads go to standbys whose node has the same `zone` first"),
    Row::new("enable_online_restart", Flag, Needless("`pgweir -R` takes clients and servers over"), &[]),
    Row::new("online_restart_drop_options", Anything, Needless("`pgweir -R` drops no connection"), &[]),
    Row::new("bindwith_reuseport", Flag, Setting("so_reuseport"), &[]),
    Row::new("max_sigterms_to_die", Anything, Needless("a second SIGTERM ends pgweir at once"), &[]),
    Row::new("soft_oom", Anything, Missing("set `MemoryMax=` in the systemd unit; `max_waiting_clients` bounds the queues"), &[]),
    Row::new("ldap_endpoint", Anything, Missing(LDAP), &[]),
    Row::new("group_checker_interval", Anything, Missing("pgweir does not know groups of users"), &["7000"]),
    Row::new("module", Anything, Missing("pgweir loads no modules"), &[]),
    Row::new("shared_pool", Anything, Missing("pools are of one database and one user; `max_db_connections` bounds them together"), &[]),
    Row::new("listen.host", Text, ByReader("`listen_addr`"), &[]),
    Row::new("listen.port", Port, ByReader("`listen_port`"), &[]).noted("pgweir listens on one port, and on `standby_listen_port` for clients that read from standbys"),
    Row::new("listen.backlog", Count, Setting("listen_backlog"), &[]),
    Row::new("listen.tls", Word(TLS_MODES), Setting("client_tls_sslmode"), &[]),
    Row::new("listen.tls_ca_file", Text, Setting("client_tls_ca_file"), &[]),
    Row::new("listen.tls_key_file", Text, Setting("client_tls_key_file"), &[]),
    Row::new("listen.tls_cert_file", Text, Setting("client_tls_cert_file"), &[]),
    Row::new("listen.tls_protocols", Text, Setting("client_tls_protocols"), &[]),
    Row::new("listen.client_login_timeout", Milliseconds, Setting("client_login_timeout"), &["15000"]),
    Row::new("listen.compression", Flag, Needless("Odyssey ignores it too"), &[]),
    Row::new("listen.target_session_attrs", Text, ByReader("`route`, ahead of the rules' own; of a second port that is `read-only`, `standby_listen_port`"), &[]).noted(ATTRS),
    Row::new("listen.catchup_timeout", Seconds, ByReader("`lag_limit_ms`"), &[]).noted("of each cluster"),
    Row::new("listen.balancing", Anything, Needless(BALANCE), &[]),
    Row::new("listen.storage", Anything, Missing("a database has its servers in its own entry"), &[]),
    Row::new("listen.reserved_clients", Text, Missing("the console is never counted in `max_client_conn`"), &["-1", "0"]),
    Row::new("storage.type", Word(&[("remote", "remote"), ("local", "local")]), ByReader("`remote`: a server; `local`: the console, database `pgbouncer`"), &[]),
    Row::new("storage.host", Text, ByReader("`host`, `port`"), &[]).noted("several hosts are a cluster and its nodes"),
    Row::new("storage.port", Port, ByReader("`port`"), &[]),
    Row::new("storage.tls", Word(TLS_MODES), OfPool("server_tls_sslmode"), &["disable"]).noted("pgweir has one for all servers"),
    Row::new("storage.tls_ca_file", Text, OfPool("server_tls_ca_file"), &[]),
    Row::new("storage.tls_key_file", Text, OfPool("server_tls_key_file"), &[]),
    Row::new("storage.tls_cert_file", Text, OfPool("server_tls_cert_file"), &[]),
    Row::new("storage.tls_protocols", Text, OfPool("server_tls_protocols"), &[]),
    Row::new("storage.endpoints_status_poll_interval", Anything, Needless("`check_interval_ms` of the cluster says how often pgweir asks the nodes"), &[]),
    Row::new("storage.server_max_routing", Anything, Needless("`max_parallel_connects` bounds the number of connections that are opened at once"), &[]),
    Row::new("storage.balancing", Anything, Needless(BALANCE), &[]),
    Row::new("storage.watchdog", Anything, ByReader("`lag_query` and `check_user` of the cluster"), &[]).noted("Odyssey's query gives the time up to which the host has replayed, pgweir's the lag: the query is wrapped"),
    Row::new("database.user", Anything, ByReader("a rule, and options of `[databases]` or `[users]`; `default` is every user"), &[]),
    Row::new("database.group", Anything, Missing("pgweir does not know groups of users: name their members"), &[]),
    Row::new("user.authentication", Word(METHODS), ByReader("`auth_type`, or a rule for each route if they differ"), &[]),
    Row::new("user.password", Text, ByReader("the list of users"), &[]),
    Row::new("user.auth_common_name", List, Missing("pgweir compares the certificate's name with the user's; set `auth_ident_file` for others"), &["default"]),
    Row::new("user.auth_query", Text, ByReader("`auth_query`"), &[]),
    Row::new("user.auth_query_db", Text, ByReader("`auth_dbname`"), &[]),
    Row::new("user.auth_query_user", Text, ByReader("`auth_user`"), &[]),
    Row::new("user.auth_pam_service", Text, ByReader("a rule with `pam`"), &[]).noted("pgweir's service is named pgbouncer"),
    Row::new("user.auth_module", Text, Missing("pgweir loads no modules"), &[]),
    Row::new("user.client_max", Count, OfPool("max_user_client_connections"), &["0"]),
    Row::new("user.storage", Text, ByReader("the server of the database"), &[]),
    Row::new("user.storage_db", Text, ByReader("`dbname`"), &[]),
    Row::new("user.storage_user", Text, ByReader("`user`, if all users of the database have the same"), &[]),
    Row::new("user.storage_password", Text, ByReader("the list of users"), &[]),
    Row::new("user.ldap_endpoint_name", Text, Missing(LDAP), &[]),
    Row::new("user.ldap_*", Anything, Missing(LDAP), &[]),
    Row::new("user.password_passthrough", Flag, Missing("a SCRAM or plain password of the list of users opens both doors"), &[]),
    Row::new("user.pool", Word(POOL_MODES), OfPool("pool_mode"), &[]),
    Row::new("user.pool_size", Count, OfPool("pool_size"), &["0"]),
    Row::new("user.min_pool_size", Count, OfPool("min_pool_size"), &[]),
    Row::new("user.pool_timeout", Milliseconds, OfPool("query_wait_timeout"), &["0"]),
    Row::new("user.pool_ttl", Seconds, OfPool("server_idle_timeout"), &["0"]).noted("pgweir has one for all pools"),
    Row::new("user.pool_discard", Flag, ByReader("off: `server_reset_query` is empty"), &[]),
    Row::new("user.pool_smart_discard", Flag, Needless("in transaction pooling pgweir keeps each client's session by itself"), &[]),
    Row::new("user.pool_discard_string", Text, OfPool("server_reset_query"), &[]),
    Row::new("user.pool_cancel", Flag, Needless("pgweir closes a server whose client left in the middle of a statement"), &[]),
    Row::new("user.pool_rollback", Flag, Needless("pgweir closes a server whose client left in a transaction"), &[]),
    Row::new("user.pool_reserve_prepared_statement", Flag, Needless("prepared statements work in transaction pooling (`max_prepared_statements`)"), &[]),
    Row::new("user.pool_pin_on_listen", Flag, Needless("LISTEN works in transaction pooling"), &[]),
    Row::new("user.pool_client_idle_timeout", Seconds, OfPool("client_idle_timeout"), &["0"]),
    Row::new("user.pool_idle_in_transaction_timeout", Seconds, OfPool("idle_transaction_timeout"), &["0"]),
    Row::new("user.pool_routing", Text, Missing("every rule is for clients"), &["client_visible"]),
    Row::new("user.client_fwd_error", Flag, Needless("clients are told why a server could not be reached"), &[]),
    Row::new("user.application_name_add_host", Flag, OfPool("application_name_add_host"), &[]),
    Row::new("user.reserve_session_server_connection", Flag, Needless("a client gets a server with its first statement"), &[]),
    Row::new("user.server_lifetime", Seconds, OfPool("server_lifetime"), &["3600"]),
    Row::new("user.log_debug", Flag, Missing("`verbose` is for all clients"), &[]),
    Row::new("user.log_query", Flag, Missing("pgweir logs no texts of statements but slow ones without literals (`log_min_duration_ms`)"), &[]),
    Row::new("user.maintain_params", Flag, Needless("a client's settings are always kept"), &[]),
    Row::new("user.target_session_attrs", Text, ByReader("`route`"), &[]).noted(ATTRS),
    Row::new("user.quantiles", Text, Needless("`SHOW PERCENTILES` has them"), &[]),
    Row::new("user.catchup_timeout", Seconds, ByReader("`lag_limit_ms`"), &[]).noted("of the cluster: the shortest of all rules"),
    Row::new("user.catchup_checks", Anything, Needless("a read goes to the primary if no standby is near enough"), &[]),
    Row::new("user.role", Text, ByReader("`admin_users`, for the console's users"), &[]),
];

/// The limit of clients in pgweir if Odyssey has none.
const CLIENTS: &str = "10000";

pub(super) fn looks_like(text: &str) -> bool {
    let begins = |word: &str| {
        text.lines().any(|line| {
            let line = line.trim_start();
            line.strip_prefix(word).is_some_and(|rest| {
                rest.trim_start().starts_with(['"', '{']) || rest.trim_start().starts_with("default")
            })
        })
    };
    begins("storage") && begins("database") || has_line(text, "listen {") && begins("storage")
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let mut table = Table::default();
    collect(text, reader, &mut table);
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &table, None);
    global(&table, reader);
    listeners(&table, reader);
    let listener = reads::listener(&table);
    let storages = storages(&table, reader);
    for (line, words, database) in table.blocks("database") {
        let Some(name) = words.first() else {
            reader.fault(line, "a database has no name");
            continue;
        };
        reader.table(ROWS, Scope { prefix: "database.", shown: "database." }, database, None);
        for (line, words, user) in database.blocks("user") {
            let Some(user_name) = words.first() else {
                reader.fault(line, "a user has no name");
                continue;
            };
            if words.len() > 1 {
                let why = "the address of the rule is not carried over: write it into the file of rules";
                reader.missing(line, &format!("addresses of user {user_name}"), why);
            }
            route(reader, line, (name, user_name), user, &storages, &listener);
        }
    }
    if let Some(node) = table.get("hba_file") {
        let line = node.line;
        if let Some(name) = reader.rules_file().or(node.text()).map(str::to_owned) {
            rules(reader, line, &name);
        }
    }
}

/// Collects the statements of a file and of the files that it includes.
fn collect(text: &str, reader: &mut Reader<'_, '_>, into: &mut Table) {
    let Some(table) = parsed(text::parse(text), reader) else { return };
    for (key, node) in table.0 {
        let name = (key == "include").then(|| node.text().map(str::to_owned)).flatten();
        let Some(name) = name else {
            into.0.push((key, node));
            continue;
        };
        match reader.open(&name) {
            Ok(text) => collect(&text, reader, into),
            Err(why) => {
                reader.fault(node.line, format!("{} could not be read: {why}", shown(&name, SHOWN_LEN_MAX)));
            }
        }
    }
}

fn global(table: &Table, reader: &mut Reader<'_, '_>) {
    let is = |key: &str| table.text(key).and_then(|text| dialect::flag(Kind::Odyssey, text).ok());
    if is("log_debug") == Some(true) {
        reader.set("verbose", "1");
    }
    if let Some(log) = is("log_session") {
        let text = if log { "1" } else { "0" };
        reader.set("log_connections", text);
        reader.set("log_disconnections", text);
    }
    if let Some(zone) = table.text("availability_zone") {
        reader.set("zone", zone);
    }
    let clients = table.text("client_max").filter(|count| *count != "0").unwrap_or(CLIENTS);
    reader.set("max_client_conn", clients);
    match table.get("workers").and_then(|node| Some((node.line, node.text()?))) {
        None | Some((_, "auto")) => {}
        Some((_, count)) if count.parse::<u16>().is_ok_and(|count| count <= 1024) => {
            reader.set("workers", count);
        }
        Some((line, _)) => reader.fault(line, "workers: it must be a whole number or \"auto\""),
    }
    match table.text("keepalive").unwrap_or("15") {
        "0" => reader.set("tcp_keepalive", "0"),
        seconds => reader.set("tcp_keepidle", seconds),
    }
    if let Some((line, text)) =
        table.get("keepalive_usr_timeout").and_then(|node| Some((node.line, node.text()?)))
    {
        match text.parse::<i32>() {
            Ok(ms @ 1..) => reader.set("tcp_user_timeout", ms.to_string()),
            Ok(_) => {}
            Err(_) => {
                reader.fault(line, "keepalive_usr_timeout: it must be a whole number of milliseconds");
            }
        }
    }
}

fn listeners(table: &Table, reader: &mut Reader<'_, '_>) {
    let mut addresses: Vec<String> = Vec::new();
    let mut port: Option<String> = None;
    for (line, _, listen) in table.blocks("listen") {
        reader.table(ROWS, Scope { prefix: "listen.", shown: "listen." }, listen, None);
        let Some(host) = listen.text("host") else { continue };
        for endpoint in endpoints(host) {
            let own = endpoint.1.map(|port| port.to_string()).or(listen.text("port").map(str::to_owned));
            let own = own.unwrap_or_else(|| "6432".to_owned());
            match &port {
                Some(port) if *port != own && reads::is_read_only(listen) => {
                    reader.set("standby_listen_port", own);
                    continue;
                }
                Some(port) if *port != own => {
                    reader.missing(
                        line,
                        &format!("port {own}"),
                        "pgweir listens on one port: start a second one, or redirect the port",
                    );
                    continue;
                }
                _ => port = Some(own),
            }
            if !addresses.contains(&endpoint.0) {
                addresses.push(endpoint.0);
            }
        }
    }
    if !addresses.is_empty() {
        reader.set("listen_addr", addresses.join(", "));
    }
    if let Some(port) = port {
        reader.set("listen_port", port);
    }
}

/// Parses `host`, `host:port`, `[host]:port:zone`, `tcp://host`, with commas between.
fn endpoints(text: &str) -> Vec<(String, Option<u16>)> {
    let endpoint = |text: &str| {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("unix://") {
            let folder = path.rsplit_once('/').map_or(path, |(folder, _)| folder);
            let port = path.rsplit_once(".s.PGSQL.").and_then(|(_, port)| port.parse().ok());
            return (folder.to_owned(), port);
        }
        let text = text.strip_prefix("tcp://").unwrap_or(text);
        let (host, rest) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => (host, rest),
            None if text.matches(':').count() > 2 => (text, ""),
            None => text.split_once(':').unwrap_or((text, "")),
        };
        (host.to_owned(), rest.split(':').find_map(|part| part.parse().ok()))
    };
    text.split(',').map(endpoint).filter(|(host, _)| !host.is_empty()).collect()
}

struct Storage {
    line: u32,
    is_local: bool,
    hosts: Vec<(String, u16)>,
    tls: Pool,
    watchdog: Option<Watchdog>,
}

fn storages(table: &Table, reader: &mut Reader<'_, '_>) -> BTreeMap<String, Storage> {
    let mut storages = BTreeMap::new();
    for (line, words, storage) in table.blocks("storage") {
        let mut tls = Pool::default();
        reader.table(ROWS, Scope { prefix: "storage.", shown: "storage." }, storage, Some(&mut tls));
        let default = storage.text("port").and_then(|port| port.parse().ok()).unwrap_or(5432);
        let hosts = endpoints(storage.text("host").unwrap_or_default());
        let hosts = hosts.into_iter().map(|(host, port)| (host, port.unwrap_or(default))).collect();
        let is_local = storage.text("type") == Some("local");
        if let Some(name) = words.first() {
            let watchdog = reads::watchdog(storage);
            storages.insert(name.clone(), Storage { line, is_local, hosts, tls, watchdog });
        }
    }
    storages
}

/// Adds one pair of database and user.
fn route(
    reader: &mut Reader<'_, '_>,
    line: u32,
    (database, user): (&str, &str),
    table: &Table,
    storages: &BTreeMap<String, Storage>,
    listener: &Table,
) {
    let named = (user != "default").then(|| user.to_owned());
    let storage = table.text("storage").and_then(|name| storages.get(name));
    if storage.is_some_and(|storage| storage.is_local) {
        return console(reader, line, named, table);
    }
    let mut pool = Pool { user: named.clone(), line, method: method(reader, line, table), ..Pool::default() };
    reader.table(ROWS, Scope { prefix: "user.", shown: "user." }, table, Some(&mut pool));
    let name = if database == "default" { "*" } else { database };
    name.clone_into(&mut pool.database);
    if pool.method == "reject" {
        // Its clients are refused before a server is needed, so only the rule matters.
        pool.settings.clear();
        reader.plan.pools.push(pool);
        return;
    }
    let Some(storage) = storage else {
        return reader.fault(line, format!("user {}: its storage is not there", shown(user, SHOWN_LEN_MAX)));
    };
    pool.settings.extend(storage.tls.settings.clone());
    discard(&mut pool, table);
    let dbname = table.text("storage_db").filter(|own| *own != name).map(str::to_owned);
    if add_route(reader, storage, name, dbname, line) {
        let watchdog = storage.watchdog.as_ref();
        reads::reads(reader, line, &mut pool, table, listener, watchdog);
    }
    credentials(reader, line, &mut pool, table);
    reader.plan.pools.push(pool);
}

fn method(reader: &mut Reader<'_, '_>, line: u32, table: &Table) -> &'static str {
    if table.get("auth_pam_service").is_some() {
        return "pam";
    }
    let theirs = table.text("authentication").unwrap_or_default();
    let ours = METHODS.iter().find(|(name, _)| *name == theirs).map(|(_, ours)| *ours);
    match ours {
        Some("external") => {
            reader.missing(
                line,
                "authentication \"external\"",
                "pgweir loads no modules; the clients are asked for a password",
            );
            "scram-sha-256"
        }
        Some(method) => method,
        // A value that is none of these has been reported as a fault.
        None => {
            if theirs.is_empty() {
                reader.fault(line, "authentication is not defined");
            }
            "reject"
        }
    }
}

fn discard(pool: &mut Pool, table: &Table) {
    let off = table.text("pool_discard").is_some_and(|text| dialect::flag(Kind::Odyssey, text) == Ok(false));
    if off && !pool.settings.contains_key("server_reset_query") {
        pool.settings.insert("server_reset_query", dialect::Given::Text(String::new()));
    }
}

/// Adds the database of a route, unless another route has done so. Returns whether it has a cluster.
fn add_route(
    reader: &mut Reader<'_, '_>,
    storage: &Storage,
    name: &str,
    dbname: Option<String>,
    line: u32,
) -> bool {
    let server = |(host, port): &(String, u16)| Server {
        line: storage.line,
        host: host.clone(),
        port: *port,
        role: Role::Asked,
        weight: None,
    };
    let none = [(String::new(), 5432)];
    let hosts = if storage.hosts.is_empty() { none.as_slice() } else { storage.hosts.as_slice() };
    let Some(known) = reader.plan.databases.iter().find(|known| known.name == name) else {
        let servers: Vec<Server> = hosts.iter().map(server).collect();
        let entry = Database { name: name.to_owned(), dbname, ..Database::default() };
        return replicas::add(reader, storage.line, entry, &servers);
    };
    let is_here = |(host, port): &(String, u16)| match &known.cluster {
        None => (&known.host, known.port) == (host, *port),
        Some(cluster) => reader.plan.nodes.iter().any(|node| {
            let is_of = |own: &crate::plan::Cluster| own.name == *cluster && own.nodes.contains(&node.name);
            (&node.host, node.port) == (host, *port) && reader.plan.clusters.iter().any(is_of)
        }),
    };
    let has_cluster = known.cluster.is_some();
    if known.dbname != dbname || !hosts.iter().all(is_here) {
        let why = "another user of this database has another server: pgweir has one for all users, the first";
        reader.differs(line, &format!("server of {name}"), why);
    }
    has_cluster
}

fn credentials(reader: &mut Reader<'_, '_>, line: u32, pool: &mut Pool, table: &Table) {
    let password = table.text("password").filter(|text| !text.is_empty());
    if let Some(user) = pool.user.clone() {
        match password {
            Some(password) => reader.secret(line, &user, password),
            // Users that need no password must be in the list of users, too.
            None if pool.method == "trust" && table.get("storage_password").is_none() => {
                reader.secret(line, &user, "");
            }
            None => {}
        }
    } else if table.get("auth_query").is_none() {
        let why = "pgweir lets in only users that it knows: list them in `auth_file`, or set `auth_user` and `auth_query`";
        reader.missing(line, &format!("all users of {}", pool.database), why);
    }
    let server_password = table.text("storage_password").map(Secret::new);
    let server_user = table
        .text("storage_user")
        .map(str::to_owned)
        .or(pool.user.clone().filter(|_| server_password.is_some()));
    pool.server = server_user.map(|user| (user, server_password));
    auth_query(reader, pool.database.clone(), table);
}

fn auth_query(reader: &mut Reader<'_, '_>, database: String, table: &Table) {
    let Some(query) = table.get("auth_query") else { return };
    let (line, Some(text)) = (query.line, query.text()) else { return };
    // Older versions have the user's name in the text.
    let text = text.replace("'%u'", "$1").replace("%u", "$1");
    if !text.contains("$1") {
        reader.missing(line, "auth_query", "it has no $1: pgweir asks for one user");
        return;
    }
    let Some(entry) = reader.plan.databases.iter_mut().find(|entry| entry.name == database) else { return };
    entry.options.insert("auth_query", text);
    if let Some(user) = table.text("auth_query_user").filter(|user| !user.is_empty()) {
        entry.options.insert("auth_user", user.to_owned());
    }
    if let Some(name) = table.text("auth_query_db").filter(|name| !name.is_empty()) {
        entry.options.insert("auth_dbname", name.to_owned());
    }
}

/// Reads a rule for the console.
fn console(reader: &mut Reader<'_, '_>, line: u32, user: Option<String>, table: &Table) {
    reader.table(ROWS, Scope { prefix: "user.", shown: "user." }, table, Some(&mut Pool::default()));
    match user {
        Some(user) => {
            if let Some(password) = table.text("password") {
                reader.secret(line, &user, password);
            }
            if !reader.plan.admins.contains(&user) {
                reader.plan.admins.push(user);
            }
        }
        None => {
            let why = "pgweir's console needs named users: set `admin_users`. On the unix socket, the user that pgweir runs as comes in as pgbouncer";
            reader.missing(line, "console for all users", why);
        }
    }
}

/// Combines Odyssey's rules, which restrict the addresses of clients, with the routes, which say how clients
/// authenticate. Each pair that fits together becomes one rule.
fn rules(reader: &mut Reader<'_, '_>, line: u32, name: &str) {
    let text = match reader.open(name) {
        Ok(text) => text,
        Err(why) => {
            return reader
                .fault(line, format!("hba_file could not be read ({why}): give its place with --hba"));
        }
    };
    let pools: Vec<Pool> = write::ordered(&reader.plan.pools).into_iter().cloned().collect();
    let main = std::mem::replace(&mut reader.file, name.to_owned());
    let mut rules = Vec::new();
    for (number, rule) in (1..).zip(text.lines()) {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let [kind, databases, users, rest @ ..] = words.as_slice() else {
            if !rule.trim().is_empty() && !rule.trim().starts_with('#') {
                reader.fault(number, "a rule has a type, a database, a user, an address and a method");
            }
            continue;
        };
        if kind.starts_with('#') {
            continue;
        }
        let Some((method, address)) = rest.split_last() else { continue };
        let line = |database: &str, user: &str, method: &str| {
            [&[*kind, database, user], address, &[method]].concat().join(" ")
        };
        if matches!(*method, "deny" | "reject") {
            rules.extend(pgpool::rule(reader, number, &line(databases, users, "reject")));
            continue;
        }
        for pool in &pools {
            let (Some(database), Some(user)) = (
                meet(databases, (pool.database != "*").then_some(pool.database.as_str())),
                meet(users, pool.user.as_deref()),
            ) else {
                continue;
            };
            rules.extend(pgpool::rule(reader, number, &line(&database, &user, pool.method)));
        }
    }
    reader.file = main;
    reader.plan.rules = Some(rules);
}

/// Returns the names that a rule's column and a route have in common; `None` if there are none.
fn meet(column: &str, name: Option<&str>) -> Option<String> {
    match name {
        None => Some(column.to_owned()),
        Some(name) => {
            let plain = |word: &str| word.trim_matches('"') == name;
            (column == "all" || column.split(',').any(plain)).then(|| write::name(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_all_forms() {
        let table = [
            ("*", vec![("*", None)]),
            ("a.example:1337:zone", vec![("a.example", Some(1337))]),
            ("[a.example]:zone:1337", vec![("a.example", Some(1337))]),
            ("a,[b]:31337", vec![("a", None), ("b", Some(31337))]),
            ("tcp://localhost:1337", vec![("localhost", Some(1337))]),
            ("unix:///var/run/x/.s.PGSQL.5433", vec![("/var/run/x", Some(5433))]),
            ("[::1]:6432", vec![("::1", Some(6432))]),
            ("fe80::1:2", vec![("fe80::1:2", None)]),
        ];
        for (text, expected) in table {
            let expected: Vec<_> = expected.into_iter().map(|(host, port)| (host.to_owned(), port)).collect();
            assert_eq!(endpoints(text), expected, "{text}");
        }
    }

    #[test]
    fn columns_and_routes() {
        assert_eq!(meet("all", Some("a")).as_deref(), Some("\"a\""));
        assert_eq!(meet("a,b", Some("b")).as_deref(), Some("\"b\""));
        assert_eq!(meet("a,b", Some("c")), None);
        assert_eq!(meet("a,b", None).as_deref(), Some("a,b"));
    }
}
