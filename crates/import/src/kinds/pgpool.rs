//! pgpool-II: `pgpool.conf` in the format of postgresql.conf, `pool_hba.conf` and `pool_passwd`.
//!
//! pgpool pools by session only and has a process for each client, so a pool gets that number of server
//! connections.

use std::collections::BTreeMap;

mod cache;
mod cluster;
mod reads;
mod rows;

pub(super) use self::rows::ROWS;

use self::cache::cache;
use self::cluster::{Backend, cluster};
use super::{add_database, has_line};
use crate::dialect::{self, Given, Takes};
use crate::kinds::Kind;
use crate::plan::{Database, Pool};
use crate::reader::{Reader, Scope};
use crate::tree::{Node, Table, Value};

/// pgpool's own numbers, for keys that the file does not have.
const CHILDREN: u32 = 32;
const BACKLOG_MULTIPLIER: u32 = 2;
const CHILD_LIFE_TIME_MS: u64 = 300_000;

pub(super) fn looks_like(text: &str) -> bool {
    ["backend_hostname", "num_init_children", "backend_clustering_mode"].iter().any(|key| has_line(text, key))
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let Some(table) = parse(text, reader) else { return };
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &table, None);
    replication(&table, reader);
    listening(&table, reader);
    sizes(&table, reader);
    sessions(&table, reader);
    tls(&table, reader);
    logging(&table, reader);
    backends(&table, reader);
    cache(&table, reader);
    users(&table, reader);
    if is_on(&table, "enable_pool_hba") {
        rules(reader);
    }
}

/// Parses `key = value` lines, with `#` comments and single quotes. If a key occurs twice, the last line
/// counts.
fn parse(text: &str, reader: &mut Reader<'_, '_>) -> Option<Table> {
    let mut values: BTreeMap<String, (u32, String)> = BTreeMap::new();
    let mut order = Vec::new();
    let mut whole = true;
    for (number, line) in (1..).zip(text.lines()) {
        match assignment(line) {
            Ok(None) => {}
            Ok(Some((key, value))) => {
                if values.insert(key.clone(), (number, value)).is_none() {
                    order.push(key);
                }
            }
            Err(why) => {
                reader.fault(number, why);
                whole = false;
            }
        }
    }
    let node = |key: String| {
        let (line, text) = values.remove(&key)?;
        Some((key, Node { line, value: Value::Text(text) }))
    };
    whole.then(|| Table(order.into_iter().filter_map(node).collect()))
}

fn assignment(line: &str) -> Result<Option<(String, String)>, &'static str> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end =
        line.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_')).unwrap_or(line.len());
    let (key, rest) = line.split_at(end);
    if key.is_empty() {
        return Err("a line must be key = value");
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest).trim_start();
    let (value, rest) = match rest.strip_prefix('\'') {
        Some(rest) => quoted(rest).ok_or("a quote is not closed")?,
        None => {
            let end = rest.find(|letter: char| letter.is_whitespace() || letter == '#').unwrap_or(rest.len());
            (rest[..end].to_owned(), &rest[end..])
        }
    };
    let rest = rest.trim_start();
    if !rest.is_empty() && !rest.starts_with('#') {
        return Err("a value with blanks must be in single quotes");
    }
    Ok(Some((key.to_owned(), value)))
}

/// Reads up to the closing quote. Two quotes, or one after a backslash, mean one.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => value.push(letters.next()?.1),
            '\'' if letters.peek().is_some_and(|(_, next)| *next == '\'') => {
                letters.next();
                value.push('\'');
            }
            '\'' => return Some((value, &text[at + 1..])),
            _ => value.push(letter),
        }
    }
    None
}

fn is_on(table: &Table, key: &str) -> bool {
    table.text(key).is_some_and(|text| dialect::flag(Kind::Pgpool, text) == Ok(true))
}

/// Returns the value of a key that was checked before, or the default.
fn number(table: &Table, key: &str, default: u32) -> u32 {
    table.text(key).and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn line(table: &Table, key: &str) -> u32 {
    table.get(key).map_or(0, |node| node.line)
}

/// Returns the clustering mode, and the key that states it. Until 4.1 pgpool had a switch for each mode.
fn clustering_mode(table: &Table) -> (&'static str, String) {
    if let Some(mode) = table.text("backend_clustering_mode") {
        return ("backend_clustering_mode", mode.to_ascii_lowercase());
    }
    if is_on(table, "replication_mode") {
        return ("replication_mode", "native_replication".to_owned());
    }
    if is_on(table, "master_slave_mode") {
        let mode = match table.text("master_slave_sub_mode").unwrap_or("stream") {
            mode if mode.eq_ignore_ascii_case("stream") => "streaming_replication",
            _ => "logical_replication",
        };
        return ("master_slave_sub_mode", mode.to_owned());
    }
    // In a file of 4.1 with both switches off, pgpool assumes no replication.
    let is_old = table.get("replication_mode").is_some() && table.get("master_slave_mode").is_some();
    ("master_slave_mode", if is_old { "raw" } else { "streaming_replication" }.to_owned())
}

/// Reports modes in which pgpool itself sends each change to all nodes.
fn replication(table: &Table, reader: &mut Reader<'_, '_>) {
    let (key, mode) = clustering_mode(table);
    if ["native_replication", "snapshot_isolation"].contains(&mode.as_str()) {
        let why = format!(
            "{key}: pgweir sends a statement to one server, and this mode sends changes to all: set up PostgreSQL's own replication first"
        );
        reader.fault(line(table, key), why);
    }
}

fn listening(table: &Table, reader: &mut Reader<'_, '_>) {
    let Some(directories) = table.text("unix_socket_directories") else {
        if table.get("socket_dir").is_none() {
            reader.set("unix_socket_dir", "/tmp");
        }
        return;
    };
    let mut directories = directories.split(',').map(str::trim);
    reader.set("unix_socket_dir", directories.next().unwrap_or_default());
    if directories.next().is_some() {
        reader.missing(
            line(table, "unix_socket_directories"),
            "unix_socket_directories",
            "pgweir has one directory: the first",
        );
    }
}

/// Sets the sizes of pools: a process for each client means a server connection for each client.
fn sizes(table: &Table, reader: &mut Reader<'_, '_>) {
    let children = number(table, "num_init_children", CHILDREN).max(1);
    let waiting = children.saturating_mul(number(table, "listen_backlog_multiplier", BACKLOG_MULTIPLIER));
    reader.set("pool_mode", "session");
    reader.set("default_pool_size", children.to_string());
    let clients = children.saturating_add(waiting).min(i32::MAX.unsigned_abs());
    reader.set("max_client_conn", clients.to_string());
}

fn sessions(table: &Table, reader: &mut Reader<'_, '_>) {
    let seconds = |key: &str| {
        let text = table.text(key)?;
        dialect::understand_text(Takes::Seconds, Kind::Pgpool, text).ok()
    };
    let idle = match (seconds("connection_life_time"), seconds("child_life_time")) {
        (Some(Given::TimeMs(ms)), _) if ms > 0 => Given::TimeMs(ms),
        (_, Some(given)) => given,
        _ => Given::TimeMs(CHILD_LIFE_TIME_MS),
    };
    reader.set_given("server_idle_timeout", &idle);
    if let Some(queries) = table.text("reset_query_list") {
        let queries = queries.split(';').map(str::trim);
        let queries: Vec<&str> =
            queries.filter(|query| !query.is_empty() && !query.eq_ignore_ascii_case("abort")).collect();
        reader.set("server_reset_query", queries.join("; "));
    }
}

fn tls(table: &Table, reader: &mut Reader<'_, '_>) {
    if !is_on(table, "ssl") {
        reader.set("server_tls_sslmode", "disable");
        return;
    }
    let authorities = table.text("ssl_ca_cert").filter(|path| !path.is_empty());
    reader.set("client_tls_sslmode", "allow");
    reader.set("client_tls_key_file", table.text("ssl_key").unwrap_or("server.key"));
    reader.set("client_tls_cert_file", table.text("ssl_cert").unwrap_or("server.crt"));
    match authorities {
        Some(path) => {
            reader.set("client_tls_ca_file", path);
            reader.set("server_tls_ca_file", path);
            reader.set("server_tls_sslmode", "verify-ca");
            let why = "server_tls_sslmode = verify-ca: a server without TLS is refused now, where pgpool would have gone on without";
            reader.differs(line(table, "ssl_ca_cert"), "ssl_ca_cert", why);
        }
        None => reader.set("server_tls_sslmode", "prefer"),
    }
}

fn logging(table: &Table, reader: &mut Reader<'_, '_>) {
    let destinations = table.text("log_destination").unwrap_or("stderr");
    if destinations.split(',').any(|destination| destination.trim().eq_ignore_ascii_case("syslog")) {
        reader.set("syslog", "1");
        reader.set("syslog_facility", table.text("syslog_facility").unwrap_or("local0").to_ascii_lowercase());
        reader.set("syslog_ident", table.text("syslog_ident").unwrap_or("pgpool"));
    }
}

fn backends(table: &Table, reader: &mut Reader<'_, '_>) {
    let mut backends = BTreeMap::new();
    for (key, node) in &table.0 {
        let Some(index) = key.strip_prefix("backend_hostname") else { continue };
        let (Ok(number), Some(host)) = (index.parse::<u32>(), node.text()) else { continue };
        let text = |stem: &str| table.text(&format!("{stem}{index}"));
        let port = text("backend_port").and_then(|port| port.parse().ok()).unwrap_or(5432);
        let name = text("backend_application_name").map(str::to_owned);
        let weight = text("backend_weight").and_then(|weight| weight.parse().ok());
        let flags = text("backend_flag").unwrap_or_default();
        let is_primary = flags.split('|').any(|flag| flag.trim().eq_ignore_ascii_case("ALWAYS_PRIMARY"));
        backends.insert(
            number,
            Backend { line: node.line, index: number, host: host.to_owned(), port, name, weight, is_primary },
        );
    }
    let backends: Vec<Backend> = backends.into_values().collect();
    let (_, mode) = clustering_mode(table);
    match backends.as_slice() {
        [] => return reader.fault(0, "it has no backend_hostname0"),
        // Standbys of one primary are exactly what a cluster is for.
        [_, _, ..] if mode == "streaming_replication" => {
            cluster(table, &backends, reader);
        }
        _ => one_server(backends, reader),
    }
    let pool = Pool { database: "*".to_owned(), method: "md5", ..Pool::default() };
    reader.plan.pools.push(pool);
}

/// Notes the nodes besides the one that is used, as comments that can be activated and as a finding.
fn standbys(reader: &mut Reader<'_, '_>, line: u32, database: &mut Database, others: &[(String, u16)]) {
    if others.is_empty() {
        return;
    }
    let hosts: Vec<String> = others.iter().map(|(host, port)| format!("{host}:{port}")).collect();
    for (number, (host, port)) in (1..).zip(others) {
        database.comments.push(format!("database_standby{number} = host={host} port={port} dbname=database"));
    }
    let why = "in this mode pgpool knows of no streaming replication, so pgweir uses one node. If the others are its standbys, write `[nodes]` and \
               `[clusters]`; else make each an entry of `[databases]` (they are in the file, as comments)";
    reader.missing(line, &format!("further nodes ({})", hosts.join(", ")), why);
}

/// Returns the one node that all statements go to. pgpool checks the nodes of logical replication, but not
/// those of `raw`.
fn one_server(mut backends: Vec<Backend>, reader: &mut Reader<'_, '_>) {
    let known = backends.iter().position(|backend| backend.is_primary);
    let Backend { line: at, host, port, .. } = backends.remove(known.unwrap_or(0));
    let mut database = Database { name: "*".to_owned(), host, port, ..Database::default() };
    let line = backends.first().map_or(0, |other| other.line);
    let others: Vec<(String, u16)> = backends.iter().map(|other| (other.host.clone(), other.port)).collect();
    standbys(reader, line, &mut database, &others);
    if !others.is_empty() && known.is_none() {
        let why = format!(
            "{} is taken for the primary, as the first node. Change `host` if it is another one",
            database.host
        );
        reader.differs(at, "primary", &why);
    }
    add_database(&mut reader.plan, database);
}

/// Reads `pool_passwd`: `user:md5...`, `user:TEXTpassword`, `user:AES...`, `user:password`.
fn users(table: &Table, reader: &mut Reader<'_, '_>) {
    let name = reader.users_file().or(table.text("pool_passwd")).unwrap_or("pool_passwd").to_owned();
    if name.is_empty() {
        return reader.missing(
            line(table, "pool_passwd"),
            "pool_passwd",
            "there is none: list the users in `auth_file`, or set `auth_query`",
        );
    }
    let text = match reader.open(&name) {
        Ok(text) => text,
        Err(why) => {
            let why = format!(
                "{name} could not be read ({why}): give its place with --users, or list the users in `auth_file` yourself"
            );
            return reader.missing(line(table, "pool_passwd"), "pool_passwd", &why);
        }
    };
    let main = std::mem::replace(&mut reader.file, name);
    for (number, entry) in (1..).zip(text.lines()) {
        user(reader, number, entry.trim_end());
    }
    reader.file = main;
}

fn user(reader: &mut Reader<'_, '_>, number: u32, entry: &str) {
    if entry.is_empty() || entry.starts_with('#') {
        return;
    }
    let Some((name, secret)) = entry.split_once(':').filter(|(name, _)| !name.is_empty()) else {
        return reader.fault(number, "a line must be user:password");
    };
    // pgpool does not read a further field either.
    let first = secret.split(':').next().unwrap_or(secret);
    let is_hash = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_md5 = first.strip_prefix("md5").is_some_and(is_hash);
    match secret.strip_prefix("TEXT") {
        Some(password) => reader.secret(number, name, password),
        None if is_md5 => reader.secret(number, name, first),
        None if secret.starts_with("SCRAM-SHA-256$") => reader.secret(number, name, secret),
        None if secret.starts_with("AES") => {
            let why = "it is encrypted with pgpool's key; enter the password, or what `pg_authid` has for it, in the list of users";
            reader.missing(number, &format!("password of {name}"), why);
        }
        None if secret.is_empty() => {
            reader.missing(
                number,
                &format!("password of {name}"),
                "it is empty: enter it in the list of users",
            );
        }
        None => reader.secret(number, name, secret),
    }
}

/// Reads `pool_hba.conf`, which has the form of pg_hba.conf.
fn rules(reader: &mut Reader<'_, '_>) {
    let name = reader.rules_file().unwrap_or("pool_hba.conf").to_owned();
    let text = match reader.open(&name) {
        Ok(text) => text,
        Err(why) => {
            return reader.fault(
                0,
                format!(
                    "enable_pool_hba is on, and {name} could not be read ({why}): give its place with --hba"
                ),
            );
        }
    };
    let main = std::mem::replace(&mut reader.file, name);
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        rules.extend(rule(reader, number, line.trim()));
    }
    reader.file = main;
    reader.plan.rules = Some(rules);
}

/// Adds a rule in pgweir's form. A rule that pgweir cannot use is reported; if it keeps clients out, that is
/// a fault.
pub(super) fn rule(reader: &mut Reader<'_, '_>, number: u32, line: &str) -> Option<String> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mut rule = line.to_owned();
    if let Some(at) = words.iter().position(|word| *word == "pam")
        && at + 1 < words.len()
    {
        let why = "the name of the PAM service is not carried over: pgweir's is pgbouncer";
        reader.differs(number, "pam", why);
        words.truncate(at + 1);
        rule = words.join(" ");
    }
    let (_, warnings) =
        pgweir_auth::Hba::parse(&rule, &mut |_| Err("files of names are not imported".to_owned()));
    match warnings.first() {
        None => Some(rule),
        Some(_) if words.contains(&"reject") => {
            reader.fault(number, "this rule rejects clients, and pgweir cannot take it: it would let them in. Write it in another way first");
            None
        }
        Some(why) => {
            let why = why.split_once(": ").map_or(why.as_str(), |(_, why)| why);
            reader.missing(number, "rule", why);
            None
        }
    }
}
