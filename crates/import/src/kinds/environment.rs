//! The environment of PgBouncer's images by edoburu and Bitnami: a file with one variable per line, or the
//! variables of a process.

use pgweir_settings::{MAIN_ROWS, row as setting};

use super::{add_database, has_line, zalando};
use crate::dialect;
use crate::dialect::Takes::{Anything, Count, Flag, Port, Text};
use crate::kinds::Kind;
use crate::mapping::Outcome::{Missing, Needless, Reader as ByReader};
use crate::mapping::{Row, row};
use crate::plan::{Database, Pool, Secret};
use crate::reader::{Reader, Scope};
use crate::tree::{Node, Table, Value};

/// The console's user in edoburu's image.
const ADMIN: &str = "postgres";
const STARTS: &str = "pgweir waits for servers by itself";

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    Row::new("DATABASE_URL", Text, ByReader("an entry of `[databases]` and a user"), &[]).noted("edoburu"),
    Row::new("DATABASE_URLS", Text, ByReader("the same, for several, with commas between"), &[]).noted("edoburu"),
    Row::new("DB_HOST", Text, ByReader("`host`"), &[]).noted("edoburu"),
    Row::new("DB_PORT", Port, ByReader("`port`"), &[]).noted("edoburu"),
    Row::new("DB_USER", Text, ByReader("the list of users"), &[]).noted("edoburu"),
    Row::new("DB_PASSWORD", Text, ByReader("the list of users"), &[]).noted("edoburu"),
    Row::new("DB_NAME", Text, ByReader("the name of the entry; `*` if it is not set"), &[]).noted("edoburu"),
    Row::new("DATABASES_HOST", Text, ByReader("as `DB_HOST`"), &[]).noted("Edoburu, older"),
    Row::new("DATABASES_PORT", Port, ByReader("as `DB_PORT`"), &[]).noted("Edoburu, older"),
    Row::new("DATABASES_USER", Text, ByReader("as `DB_USER`"), &[]).noted("Edoburu, older"),
    Row::new("DATABASES_PASSWORD", Text, ByReader("as `DB_PASSWORD`"), &[]).noted("Edoburu, older"),
    Row::new("DATABASES_DBNAME", Text, ByReader("as `DB_NAME`"), &[]).noted("Edoburu, older"),
    Row::new("CLIENT_ENCODING", Text, ByReader("`client_encoding` of the database"), &[]).noted("edoburu"),
    Row::new("AUTH_USER", Text, ByReader("`auth_user`; with `AUTH_QUERY` it is `DB_USER` if it is not set"), &[]).noted("edoburu"),
    Row::new("ADMIN_USERS", Text, ByReader("`admin_users`; postgres if it is not set and that user can log in"), &[]).noted("edoburu"),
    Row::new("ADMIN_PASSWORDS", Text, ByReader("the list of users: a password for each of `ADMIN_USERS`"), &[]).noted("edoburu"),
    Row::new("STATS_USERS", Text, ByReader("`stats_users`"), &[]).noted("edoburu"),
    Row::new("STATS_PASSWORDS", Text, ByReader("the list of users: a password for each of `STATS_USERS`"), &[]).noted("edoburu"),
    Row::new("POOL_SIZE", Count, ByReader("`pool_size` of the database"), &[]).noted("edoburu"),
    Row::new("TIMEZONE", Text, ByReader("`timezone` of the database"), &[]).noted("edoburu"),
    Row::new("POSTGRESQL_HOST", Text, ByReader("`host`; postgresql if it is not set"), &[]).noted("Bitnami"),
    Row::new("POSTGRESQL_PORT", Port, ByReader("`port`; 5432 if it is not set"), &[]).noted("Bitnami"),
    Row::new("POSTGRESQL_USERNAME", Text, ByReader("the list of users; postgres if it is not set"), &[]).noted("Bitnami"),
    Row::new("POSTGRESQL_PASSWORD", Text, ByReader("the list of users"), &[]).noted("Bitnami"),
    Row::new("POSTGRESQL_DATABASE", Text, ByReader("`dbname`; postgres if it is not set"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_DATABASE", Text, ByReader("the name of the entry; postgres if it is not set"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_SET_DATABASE_USER", Flag, ByReader("`user` of the entry"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_SET_DATABASE_PASSWORD", Flag, Needless("the password is in the list of users"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_PORT", Port, ByReader("`listen_port`; 6432 if it is not set"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_BIND_ADDRESS", Text, ByReader("`listen_addr`; 0.0.0.0 if it is not set"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_LISTEN_ADDRESS", Text, ByReader("`listen_addr`"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_SOCKET_DIR", Text, ByReader("`unix_socket_dir`"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_SOCKET_MODE", Text, ByReader("`unix_socket_mode`"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_SOCKET_GROUP", Text, ByReader("`unix_socket_group`"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_CONNECT_QUERY", Text, ByReader("`connect_query` of the database"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_USERLIST", Text, ByReader("the list of users"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_DSN_#", Text, ByReader("an entry of `[databases]`, as it is written"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_EXTRA_ARGS", Text, Missing("give the options to pgweir: they are the same"), &[""]).noted("Bitnami"),
    Row::new("PGBOUNCER_EXTRA_FLAGS", Text, Missing("give the options to pgweir: they are the same"), &[""]).noted("Bitnami"),
    Row::new("PGBOUNCER_INIT_SLEEP_TIME", Count, Needless(STARTS), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_INIT_MAX_RETRIES", Count, Needless(STARTS), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_FORCE_INITSCRIPTS", Anything, Missing("pgweir runs no scripts when it starts"), &["false", "no"]).noted("Bitnami"),
    Row::new("PGBOUNCER_DAEMON_USER", Text, Needless("it is of the image"), &[]).noted("Bitnami"),
    Row::new("PGBOUNCER_DAEMON_GROUP", Text, Needless("it is of the image"), &[]).noted("Bitnami"),
    Row::new("BITNAMI_DEBUG", Anything, Needless("it is of the image"), &[]).noted("Bitnami"),
    Row::new("CONNECTION_POOLER_PORT", Port, ByReader("`listen_port`; 5432 if it is not set"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_MODE", Text, ByReader("`pool_mode`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_DEFAULT_SIZE", Count, ByReader("`default_pool_size`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_MIN_SIZE", Count, ByReader("`min_pool_size`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_RESERVE_SIZE", Count, ByReader("`reserve_pool_size`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_MAX_CLIENT_CONN", Count, ByReader("`max_client_conn`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_MAX_DB_CONN", Count, ByReader("`max_db_connections`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_CLIENT_TLS_CRT", Text, ByReader("`client_tls_cert_file`; then `client_tls_sslmode` is `require`. Without it the container makes a self-signed certificate"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_CLIENT_TLS_KEY", Text, ByReader("`client_tls_key_file`"), &[]).noted("Zalando's operator"),
    Row::new("CONNECTION_POOLER_CLIENT_CA_FILE", Text, ByReader("`client_tls_ca_file`"), &[]).noted("Zalando's operator"),
    Row::new("PGHOST", Text, ByReader("`host`"), &[]).noted("Zalando's operator"),
    Row::new("PGPORT", Port, ByReader("`port`"), &[]).noted("Zalando's operator"),
    Row::new("PGUSER", Text, ByReader("`auth_user`, `admin_users`"), &[]).noted("Zalando's operator"),
    Row::new("PGPASSWORD", Text, ByReader("the list of users"), &[]).noted("Zalando's operator"),
    Row::new("PGSCHEMA", Text, ByReader("the schema of `user_lookup` in `auth_query`"), &[]).noted("Zalando's operator"),
    Row::new("TZ", Anything, Needless("set it for pgweir as well"), &[]),
];

pub(super) fn looks_like(text: &str) -> bool {
    let keys = [
        "DATABASE_URL=",
        "DATABASE_URLS=",
        "DB_HOST=",
        "DATABASES_HOST=",
        "POSTGRESQL_HOST=",
        "PGBOUNCER_",
        zalando::PREFIX,
    ];
    keys.iter().any(|key| has_line(text, key) || has_line(text, &format!("export {key}")))
}

/// The origin of variables.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A file that is converted. Files that it names are in the other image.
    File,
    /// The process that is about to serve. Files that it names are its own.
    Process,
}

pub(super) fn read(text: &str, reader: &mut Reader<'_, '_>) {
    let Some(variables) = parse(text, reader) else { return };
    translate(variables, Origin::File, reader);
}

/// Turns variables into the reader's plan.
pub(crate) fn translate(variables: Table, origin: Origin, reader: &mut Reader<'_, '_>) {
    let variables = secret_files(variables, origin, reader);
    let begins = |prefix: &str| variables.0.iter().any(|(key, _)| key.starts_with(prefix));
    let is_zalando = begins(zalando::PREFIX);
    let is_edoburu = begins("DATABASE_URL") || begins("DB_HOST") || begins("DATABASES_HOST");
    let is_bitnami = !is_edoburu && (begins("PGBOUNCER_") || begins("POSTGRESQL_"));
    // Variables that have a row come first, then settings by their names.
    let (known, settings): (Vec<_>, Vec<_>) =
        variables.0.into_iter().partition(|(key, _)| row(ROWS, key).is_some());
    let mut known = Table(known);
    reader.table(ROWS, Scope { prefix: "", shown: "" }, &known, None);
    defaults(is_bitnami || origin == Origin::Process, reader);
    if is_bitnami {
        reader.set("server_tls_sslmode", "disable");
    }
    for (key, node) in &settings {
        named_setting(reader, key, node, origin);
    }
    // These variables are settings, whichever image they are for.
    for (key, setting) in
        [("AUTH_USER", "auth_user"), ("ADMIN_USERS", "admin_users"), ("STATS_USERS", "stats_users")]
    {
        if let Some(text) = known.text(key).filter(|text| !text.is_empty()) {
            reader.set(setting, text);
        }
    }
    if is_zalando {
        zalando::read(&known, origin == Origin::Process, reader);
    } else if is_bitnami {
        bitnami(&known, reader);
    } else {
        older_names(&mut known);
        edoburu(&known, reader);
        mounted_users(origin, reader);
    }
}

/// The place of the list of users in edoburu's image. A list that is mounted there counts in addition to the
/// variables.
const MOUNTED_USERS: &str = "/etc/pgbouncer/userlist.txt";

fn mounted_users(origin: Origin, reader: &mut Reader<'_, '_>) {
    if origin != Origin::Process || reader.plan.settings.contains_key("auth_file") {
        return;
    }
    let Ok(text) = reader.open(MOUNTED_USERS) else { return };
    let (users, faults) = pgweir_auth::UserList::parse(&text);
    for fault in faults {
        reader.fault(0, format!("{MOUNTED_USERS}: {fault}"));
    }
    // The list may be written in several forms, so its lines are copied unchanged.
    let known: Vec<String> = users.names().map(str::to_owned).collect();
    for line in text.lines().filter(|line| line.trim_start().starts_with('"')) {
        let mut parts = line.split('"');
        if let (_, Some(user), _, Some(secret)) = (parts.next(), parts.next(), parts.next(), parts.next())
            && known.iter().any(|name| name == user)
            && !reader.plan.secrets.contains_key(user)
        {
            reader.secret(0, user, secret);
        }
    }
}

/// Renames variables of older images to their present names, unless the present name is set as well.
fn older_names(table: &mut Table) {
    for (older, name) in [
        ("DATABASES_HOST", "DB_HOST"),
        ("DATABASES_PORT", "DB_PORT"),
        ("DATABASES_USER", "DB_USER"),
        ("DATABASES_PASSWORD", "DB_PASSWORD"),
        ("DATABASES_DBNAME", "DB_NAME"),
    ] {
        if table.get(name).is_some() {
            continue;
        }
        if let Some((key, _)) = table.0.iter_mut().find(|(key, _)| key == older) {
            name.clone_into(key);
        }
    }
}

/// Parses lines `KEY=value`, with `export` before the key or quotes around the value.
fn parse(text: &str, reader: &mut Reader<'_, '_>) -> Option<Table> {
    let mut table = Table::default();
    let mut whole = true;
    for (line, content) in (1..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let content = content.strip_prefix("export ").unwrap_or(content);
        let is_name = |key: &str| {
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let Some((key, value)) = content.split_once('=').filter(|(key, _)| is_name(key)) else {
            reader.fault(line, "a line must be NAME=value");
            whole = false;
            continue;
        };
        // `"alice" "password"` has two words, so these quotes do not enclose the value.
        let inner =
            |quote: char| value.strip_prefix(quote)?.strip_suffix(quote).filter(|text| !text.contains(quote));
        let quoted = inner('"').or_else(|| inner('\''));
        let value = Value::Text(quoted.unwrap_or(value).to_owned());
        // The last one counts.
        table.0.retain(|(known, _)| known != key);
        table.0.push((key.to_owned(), Node { line, value }));
    }
    whole.then_some(table)
}

/// Replaces `X_FILE`, which names a file, with `X` and the file's contents.
fn secret_files(variables: Table, origin: Origin, reader: &mut Reader<'_, '_>) -> Table {
    let mut out = Table::default();
    for (key, node) in variables.0 {
        let Some(name) = key.strip_suffix("_FILE").filter(|name| row(ROWS, name).is_some()) else {
            out.0.push((key, node));
            continue;
        };
        let path = node.text().unwrap_or_default().to_owned();
        match reader.open(&path) {
            Ok(text) => {
                let value = Value::Text(text.trim_end_matches(['\n', '\r']).to_owned());
                out.0.push((name.to_owned(), Node { line: node.line, value }));
            }
            // The process cannot serve without its password.
            Err(why) if origin == Origin::Process => {
                reader.fault(0, format!("{key}: its file could not be read ({why})"));
            }
            Err(why) => reader.missing(node.line, &key, &format!("its file could not be read ({why})")),
        }
    }
    out
}

/// Sets the values that the images set by default.
fn defaults(has_usual_port: bool, reader: &mut Reader<'_, '_>) {
    reader.set("listen_addr", "0.0.0.0");
    reader.set("listen_port", if has_usual_port { "6432" } else { "5432" });
    reader.set("ignore_startup_parameters", "extra_float_digits");
}

/// Reads a setting by its own name in upper case; Bitnami's have a prefix.
fn named_setting(reader: &mut Reader<'_, '_>, key: &str, node: &Node, origin: Origin) {
    let name = key.strip_prefix("PGBOUNCER_").unwrap_or(key).to_ascii_lowercase();
    let text = node.text().unwrap_or_default();
    match setting(MAIN_ROWS, &name) {
        Some(row)
            if origin == Origin::File && ["auth_file", "auth_hba_file", "conffile"].contains(&row.name) =>
        {
            reader.missing(node.line, key, "copy the file, and name it in the ini yourself");
        }
        Some(row) if !text.is_empty() => reader.set(row.name, text),
        Some(_) => {}
        None => {
            let why =
                "it is neither a variable of the images nor a setting, so nothing was carried over for it";
            reader.finding(node.line, crate::FindingKind::Unknown, key, why);
        }
    }
}

fn edoburu(table: &Table, reader: &mut Reader<'_, '_>) {
    let mut found = false;
    for key in ["DATABASE_URL", "DATABASE_URLS"] {
        let Some(node) = table.get(key) else { continue };
        for address in node.text().unwrap_or_default().split(',').filter(|address| !address.trim().is_empty())
        {
            found |= url(reader, node.line, key, address.trim());
        }
    }
    if let Some(host) = table.get("DB_HOST") {
        let database = Entry {
            host: host.text().unwrap_or_default(),
            port: table.text("DB_PORT").unwrap_or("5432"),
            name: table.text("DB_NAME").filter(|name| !name.is_empty()).unwrap_or("*"),
            dbname: None,
            user: table.text("DB_USER"),
            password: table.text("DB_PASSWORD"),
        };
        database.add(reader, host.line);
        found = true;
    }
    if !found {
        reader.fault(0, "it has neither DATABASE_URL nor DB_HOST");
    }
    let given = |key: &str| table.text(key).filter(|text| !text.is_empty());
    // The image puts the user of `auth_query` on the database's line.
    let asks = reader.plan.settings.contains_key("auth_query");
    let asker = given("DB_USER").filter(|_| asks && given("AUTH_USER").is_none());
    for (name, text) in [
        ("client_encoding", given("CLIENT_ENCODING")),
        ("pool_size", given("POOL_SIZE")),
        ("timezone", given("TIMEZONE")),
        ("auth_user", asker),
    ] {
        let Some(text) = text else { continue };
        for database in &mut reader.plan.databases {
            database.options.insert(name, text.to_owned());
        }
    }
    for (users, passwords) in [("ADMIN_USERS", "ADMIN_PASSWORDS"), ("STATS_USERS", "STATS_PASSWORDS")] {
        console_passwords(
            reader,
            given(users).unwrap_or_default(),
            passwords,
            given(passwords).unwrap_or_default(),
        );
    }
    // This is the image's default, if that user can log in.
    if given("ADMIN_USERS").is_none() && (asks || reader.plan.secrets.contains_key(ADMIN)) {
        reader.set("admin_users", ADMIN);
    }
}

/// Reads a password for each of the console's users, in their order.
fn console_passwords(reader: &mut Reader<'_, '_>, names: &str, key: &str, passwords: &str) {
    let names: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let passwords: Vec<&str> = passwords.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    if passwords.len() > names.len() {
        return reader.fault(0, format!("{key} has more passwords than there are users"));
    }
    for (name, password) in names.into_iter().zip(passwords) {
        reader.secret(0, name, password);
    }
}

fn bitnami(table: &Table, reader: &mut Reader<'_, '_>) {
    for (key, name) in [
        ("PGBOUNCER_PORT", "listen_port"),
        ("PGBOUNCER_BIND_ADDRESS", "listen_addr"),
        ("PGBOUNCER_LISTEN_ADDRESS", "listen_addr"),
        ("PGBOUNCER_SOCKET_DIR", "unix_socket_dir"),
        ("PGBOUNCER_SOCKET_MODE", "unix_socket_mode"),
        ("PGBOUNCER_SOCKET_GROUP", "unix_socket_group"),
    ] {
        if let Some(text) = table.text(key).filter(|text| !text.is_empty()) {
            reader.set(name, text);
        }
    }
    let user = table.text("POSTGRESQL_USERNAME").unwrap_or("postgres");
    let database = table.text("POSTGRESQL_DATABASE").unwrap_or("postgres");
    let name = table.text("PGBOUNCER_DATABASE").unwrap_or("postgres");
    let name = if name == "$POSTGRESQL_DATABASE" { database } else { name };
    let entry = Entry {
        host: table.text("POSTGRESQL_HOST").unwrap_or("postgresql"),
        port: table.text("POSTGRESQL_PORT").unwrap_or("5432"),
        name,
        dbname: (name != "*").then_some(database),
        user: Some(user),
        password: table.text("POSTGRESQL_PASSWORD"),
    };
    let has_lines = dsns(table, reader);
    if !has_lines || table.get("POSTGRESQL_HOST").is_some() {
        entry.add(reader, 0);
    }
    let forced = table
        .text("PGBOUNCER_SET_DATABASE_USER")
        .is_some_and(|text| dialect::flag(Kind::Environment, text) == Ok(true));
    if let Some(database) = reader.plan.databases.first_mut() {
        if forced {
            database.user = Some(user.to_owned());
        }
        if let Some(query) = table.text("PGBOUNCER_CONNECT_QUERY").filter(|query| !query.is_empty()) {
            database.options.insert("connect_query", query.to_owned());
        }
    }
    if let Some(node) = table.get("PGBOUNCER_USERLIST") {
        userlist(reader, node);
    }
}

/// Reads `PGBOUNCER_DSN_0=name=host=... dbname=...`, `PGBOUNCER_DSN_1`, ..., which are lines of
/// `[databases]`. Returns whether there are any.
fn dsns(table: &Table, reader: &mut Reader<'_, '_>) -> bool {
    let mut found = false;
    for (key, node) in table.0.iter().filter(|(key, _)| key.starts_with("PGBOUNCER_DSN_")) {
        let line = node.text().unwrap_or_default();
        match line.split_once('=') {
            Some((name, pairs)) if !name.trim().is_empty() => {
                let written = Some(Secret::new(pairs.trim()));
                let name = name.trim().trim_matches('"').to_owned();
                add_database(
                    &mut reader.plan,
                    Database { name: name.clone(), written, ..Database::default() },
                );
                reader.plan.pools.push(Pool { database: name, line: node.line, ..Pool::default() });
                found = true;
            }
            _ => reader.fault(node.line, format!("{key}: it must be name=host=... port=... dbname=...")),
        }
    }
    found
}

/// Reads lines of a list of users in a variable, in which a line break is written as backslash and n.
fn userlist(reader: &mut Reader<'_, '_>, node: &Node) {
    let text = node.text().unwrap_or_default().replace("\\n", "\n");
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut parts = line.split('"');
        let (_, user, _, secret) = (parts.next(), parts.next(), parts.next(), parts.next());
        match (user, secret) {
            (Some(user), Some(secret)) => reader.secret(node.line, user, secret),
            _ => reader.fault(node.line, "PGBOUNCER_USERLIST: a line must be \"user\" \"password\""),
        }
    }
}

struct Entry<'a> {
    host: &'a str,
    port: &'a str,
    name: &'a str,
    dbname: Option<&'a str>,
    user: Option<&'a str>,
    password: Option<&'a str>,
}

impl Entry<'_> {
    fn add(&self, reader: &mut Reader<'_, '_>, line: u32) {
        let Some(port) = self.port.parse::<u16>().ok().filter(|port| *port > 0) else {
            return reader.fault(line, "the port must be 1 to 65535");
        };
        let database = Database {
            name: self.name.to_owned(),
            host: self.host.to_owned(),
            port,
            dbname: self.dbname.filter(|own| *own != self.name).map(str::to_owned),
            ..Database::default()
        };
        add_database(&mut reader.plan, database);
        if let (Some(user), Some(password)) = (self.user, self.password) {
            reader.secret(line, user, password);
        } else if reader.plan.secrets.is_empty()
            && !["auth_user", "auth_file"].iter().any(|name| reader.plan.settings.contains_key(name))
        {
            reader.missing(
                line,
                "users",
                "there is no password: list the users in `auth_file`, or set `auth_user` and `auth_query`",
            );
        }
        reader.plan.pools.push(Pool { database: self.name.to_owned(), line, ..Pool::default() });
    }
}

/// Reads `postgres://user:password@host:port/database?...`.
fn url(reader: &mut Reader<'_, '_>, line: u32, key: &str, address: &str) -> bool {
    let wrong = "it must be postgres://user:password@host:port/database";
    let parts = address.strip_prefix("postgres://").or(address.strip_prefix("postgresql://"));
    let Some(rest) = parts else {
        reader.fault(line, format!("{key}: {wrong}"));
        return true;
    };
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) =
        login.split_once(':').map_or((login, None), |(user, password)| (user, Some(password)));
    let (host, port) = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or("5432")),
        None => host.rsplit_once(':').unwrap_or((host, "5432")),
    };
    let decoded = (
        decode(user),
        password.map_or(Some(None), |text| decode(text).map(Some)),
        decode(name),
        decode(host),
    );
    let (Some(user), Some(password), Some(name), Some(host)) = decoded else {
        reader.fault(line, format!("{key}: {wrong}; a % must be followed by two hexadecimal digits"));
        return true;
    };
    for option in options.split('&').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("sslmode", mode)) => reader.set("server_tls_sslmode", mode),
            _ => {
                let name = option.split('=').next().unwrap_or_default();
                reader.missing(line, &format!("{key}: {name}"), "set it at the role, or by `connect_query`");
            }
        }
    }
    let entry = Entry {
        host: &host,
        port,
        name: if name.is_empty() { "*" } else { &name },
        dbname: None,
        user: (!user.is_empty()).then_some(user.as_str()),
        password: password.as_deref(),
    };
    entry.add(reader, line);
    true
}

/// Decodes percent-encoding. Returns `None` if it is broken.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use pgweir_settings::DATABASE_ROWS;

    use super::*;

    #[test]
    fn percent_encoding() {
        assert_eq!(decode("a%40b%3A").as_deref(), Some("a@b:"));
        assert_eq!(decode("%"), None);
        assert_eq!(decode("%zz"), None);
        assert_eq!(decode("%ff"), None);
        assert_eq!(decode("\u{e9}").as_deref(), Some("\u{e9}"));
    }

    #[test]
    fn options_of_databases_are_known() {
        for name in ["client_encoding", "connect_query"] {
            assert!(setting(DATABASE_ROWS, name).is_some());
        }
    }
}
