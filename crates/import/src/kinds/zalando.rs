//! The environment that Zalando's operator gives its connection pooler, which has no file, and a function in
//! the database that returns secrets.

use super::add_database;
use crate::plan::{Database, Pool};
use crate::reader::Reader;
use crate::tree::Table;

/// The prefix of the operator's variables.
pub(super) const PREFIX: &str = "CONNECTION_POOLER_";

/// The variables, each with the setting that it becomes.
const SETTINGS: [(&str, &str); 10] = [
    ("CONNECTION_POOLER_PORT", "listen_port"),
    ("CONNECTION_POOLER_MODE", "pool_mode"),
    ("CONNECTION_POOLER_DEFAULT_SIZE", "default_pool_size"),
    ("CONNECTION_POOLER_MIN_SIZE", "min_pool_size"),
    ("CONNECTION_POOLER_RESERVE_SIZE", "reserve_pool_size"),
    ("CONNECTION_POOLER_MAX_CLIENT_CONN", "max_client_conn"),
    ("CONNECTION_POOLER_MAX_DB_CONN", "max_db_connections"),
    ("CONNECTION_POOLER_CLIENT_TLS_CRT", "client_tls_cert_file"),
    ("CONNECTION_POOLER_CLIENT_TLS_KEY", "client_tls_key_file"),
    ("CONNECTION_POOLER_CLIENT_CA_FILE", "client_tls_ca_file"),
];

/// The schema of the function, and the user that may call it, if the operator names none.
const SCHEMA: &str = "pooler";
const USER: &str = "pooler";

/// Reads the operator's variables. `makes_certificate` is `true` if the caller can make a certificate, as the
/// operator's own image does if none is mounted.
pub(super) fn read(table: &Table, makes_certificate: bool, reader: &mut Reader<'_, '_>) {
    let given = |key: &str| table.text(key).filter(|text| !text.is_empty());
    // The operator's Service and health checks expect PostgreSQL's port.
    reader.set("listen_port", "5432");
    for (key, setting) in SETTINGS {
        if let Some(text) = given(key) {
            reader.set(setting, text);
        }
    }
    clients_tls(makes_certificate, reader);
    let Some(host) = given("PGHOST") else {
        return reader.fault(0, "PGHOST is not set: it names the PostgreSQL server");
    };
    let port = given("PGPORT").unwrap_or("5432");
    let Some(port) = port.parse::<u16>().ok().filter(|port| *port > 0) else {
        return reader.fault(0, "PGPORT must be 1 to 65535");
    };
    let user = given("PGUSER").unwrap_or(USER);
    let schema = given("PGSCHEMA").unwrap_or(SCHEMA);
    let mut database = Database { name: "*".to_owned(), host: host.to_owned(), port, ..Database::default() };
    database.options.insert("auth_user", user.to_owned());
    let function = format!("\"{}\".user_lookup", schema.replace('"', "\"\""));
    database.options.insert("auth_query", format!("SELECT * FROM {function}($1)"));
    add_database(&mut reader.plan, database);
    match given("PGPASSWORD") {
        Some(password) => reader.secret(0, user, password),
        None => {
            reader.fault(0, "PGPASSWORD is not set: it is the password of PGUSER, who looks up the others");
        }
    }
    reader.set("server_tls_sslmode", "require");
    reader.set("ignore_startup_parameters", "extra_float_digits, options");
    if !reader.plan.settings.contains_key("admin_users") {
        reader.plan.admins.push(user.to_owned());
    }
    reader.plan.pools.push(Pool { database: "*".to_owned(), method: "scram-sha-256", ..Pool::default() });
}

/// Sets the TLS mode of clients unless a setting of pgweir's own name does. The operator's own image requires
/// TLS, with a self-signed certificate if none is mounted.
fn clients_tls(makes_certificate: bool, reader: &mut Reader<'_, '_>) {
    let settings = &reader.plan.settings;
    // With one of the two the start is refused and names the other one.
    let has_certificate =
        ["client_tls_cert_file", "client_tls_key_file"].iter().any(|name| settings.contains_key(name));
    if !has_certificate && !makes_certificate {
        let why = "no certificate is named, so clients connect without TLS: name one by this variable";
        return reader.differs(0, "CONNECTION_POOLER_CLIENT_TLS_CRT", why);
    }
    let mode = settings.get("client_tls_sslmode").map(String::as_str);
    reader.plan.needs_certificate = !has_certificate && mode != Some("disable");
    if mode.is_none() {
        reader.set("client_tls_sslmode", "require");
    }
}
