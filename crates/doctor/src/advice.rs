//! Warnings about a configuration that can be read but cannot work.

use std::net::IpAddr;

use pgweir_auth::{Access, HbaMethod, Secret, UserList};
use pgweir_settings::{Anonymous, AuthType, Config, Database, FALLBACK_DATABASE, Place, Warning};

/// The console user of the operating system's user that runs the process, who needs no password over the unix
/// socket.
const CONSOLE_USER: &str = "pgbouncer";

/// Returns warnings about a configuration. `users` are those of `auth_file`, if it can be read.
#[must_use]
pub fn advice(config: &Config, users: Option<&UserList>, access: &Access) -> Vec<Warning> {
    let mut found = Vec::new();
    found.extend(users.into_iter().flat_map(|users| console_users(config, users, access)));
    found.extend(pool_sizes(config));
    found.extend(auth_queries(config));
    found.extend(nowhere(config));
    found.extend(users.and_then(|users| no_secrets(config, users, access)));
    found.extend(open_dashboard(config));
    found
}

fn warning(place: Option<&Place>, text: String) -> Warning {
    match place {
        Some(Place { file, line }) => Warning { file: file.clone(), line: *line, text },
        None => Warning { file: String::new(), line: 0, text },
    }
}

/// Warns of console users for whom no login can succeed.
fn console_users(config: &Config, users: &UserList, access: &Access) -> Vec<Warning> {
    let main = &config.main;
    let (is_listed, by_password) = match main.auth_type {
        // The passwords are checked elsewhere, or not asked for.
        AuthType::Any | AuthType::Pam | AuthType::Ldap => return Vec::new(),
        AuthType::Hba if access.hba.rules().is_empty() => return Vec::new(),
        AuthType::Hba => {
            let methods = || access.hba.rules().iter().map(|rule| &rule.method);
            let elsewhere = methods().any(|method| matches!(method, HbaMethod::Pam | HbaMethod::Ldap(_)));
            (!elsewhere, false)
        }
        AuthType::Trust | AuthType::Cert => (true, false),
        AuthType::Plain | AuthType::Md5 | AuthType::ScramSha256 => (true, true),
    };
    // Users that are not listed are looked up on the server of `auth_dbname`.
    let is_asked = main.auth_user.is_some() && main.auth_dbname.is_some() && !main.auth_query.is_empty();
    let auth_type = main.auth_type;
    let mut found = Vec::new();
    for (setting, role, names) in
        [("admin_users", "admin", &main.admin_users), ("stats_users", "stats", &main.stats_users)]
    {
        let place = config.given.get(setting);
        let by_socket = |name: &str| name == CONSOLE_USER && !main.unix_socket_dir.is_empty();
        for name in names.iter().filter(|name| !by_socket(name)) {
            match users.get(name) {
                None if is_listed && !is_asked => found.push(warning(
                    place,
                    format!(
                        "{role} user \"{name}\" is not in auth_file: it cannot log in to the console (auth_type={auth_type})"
                    ),
                )),
                Some(Secret::Plain(password)) if by_password && password.is_empty() => found.push(warning(
                    place,
                    format!(
                        "{role} user \"{name}\" has an empty password in auth_file: it cannot log in to the console (auth_type={auth_type})"
                    ),
                )),
                _ => {}
            }
        }
    }
    found
}

/// Returns databases with their names and places, including `*`.
fn databases(config: &Config) -> impl Iterator<Item = (&str, &Database, Option<&Place>)> {
    let fallback = config.fallback.iter().map(|database| (FALLBACK_DATABASE, database));
    let named = config.databases.iter().map(|(name, database)| (&**name, database));
    named.chain(fallback).map(|(name, database)| (name, database, config.database_places.get(name)))
}

/// Warns of a `min_pool_size` that no pool can reach.
fn pool_sizes(config: &Config) -> Vec<Warning> {
    let main = &config.main;
    let mut found = Vec::new();
    let is_above = |min: u32, size: u32| size > 0 && min > size;
    if is_above(main.min_pool_size, main.default_pool_size) {
        let place = config.given.get("min_pool_size").or(config.given.get("default_pool_size"));
        found.push(warning(
            place,
            format!(
                "min_pool_size ({}) is above default_pool_size ({}): pools do not grow beyond their size",
                main.min_pool_size, main.default_pool_size
            ),
        ));
    }
    for (name, database, place) in databases(config) {
        let user = database.user.as_deref().unwrap_or_default();
        let (min, size) = (config.min_pool_size(database), config.pool_size(database, user));
        let is_global = min == main.min_pool_size && size == main.default_pool_size;
        if is_above(min, size) && !is_global {
            found.push(warning(
                place,
                format!(
                    "database \"{name}\": min_pool_size ({min}) is above its pool_size ({size}): pools do not grow beyond their size"
                ),
            ));
        }
    }
    found
}

/// Warns of an `auth_query` that does not use the user's name.
fn auth_queries(config: &Config) -> Vec<Warning> {
    let asks = |query: &str| query.is_empty() || query.contains("$1");
    let mut found = Vec::new();
    if !asks(&config.main.auth_query) {
        let text = "auth_query has no parameter $1: it cannot ask for the user that logs in".to_owned();
        found.push(warning(config.given.get("auth_query"), text));
    }
    let no_effect = "has no effect without auth_user, the user that asks the server";
    let asked_for_some = databases(config).any(|(_, database, _)| database.auth_user.is_some());
    if config.main.auth_user.is_none() {
        let place = config.given.get("auth_query").filter(|_| !config.main.auth_query.is_empty());
        found.extend(
            place
                .filter(|_| !asked_for_some)
                .map(|place| warning(Some(place), format!("auth_query {no_effect}"))),
        );
        let lacking = |database: &Database| {
            database.auth_user.is_none()
                && database.auth_query.as_deref().is_some_and(|query| !query.is_empty())
        };
        let lacking = databases(config).filter(|(_, database, _)| lacking(database));
        found.extend(
            lacking.map(|(name, _, place)| {
                warning(place, format!("database \"{name}\": auth_query {no_effect}"))
            }),
        );
    }
    for (name, database, place) in databases(config) {
        if database.auth_query.as_deref().is_some_and(|query| !asks(query)) {
            let text = format!(
                "database \"{name}\": auth_query has no parameter $1: it cannot ask for the user that logs in"
            );
            found.push(warning(place, text));
        }
    }
    found
}

/// Warns of a configuration in which no client can connect, or none from another machine.
fn nowhere(config: &Config) -> Vec<Warning> {
    let mut found = Vec::new();
    if config.main.listen_addr.is_empty() {
        let text = "listen_addr is not set: clients reach pgweir over the unix socket only (listen_addr = * is all addresses)";
        found.push(warning(config.given.get("listen_addr"), text.to_owned()));
    }
    if databases(config).next().is_none() {
        let text = "[databases] has no line: clients can connect to the console only (* = host=... is all databases of one server)";
        found.push(warning(None, text.to_owned()));
    }
    found
}

/// Warns if clients are asked for passwords and pgweir has no source for them.
fn no_secrets(config: &Config, users: &UserList, access: &Access) -> Option<Warning> {
    let main = &config.main;
    let asks_for_passwords = match main.auth_type {
        AuthType::Plain | AuthType::Md5 | AuthType::ScramSha256 => true,
        AuthType::Hba => {
            let by_password = |method: &HbaMethod| {
                matches!(method, HbaMethod::Password | HbaMethod::Md5 | HbaMethod::ScramSha256)
            };
            let rules = access.hba.rules();
            !rules.is_empty() && rules.iter().all(|rule| by_password(&rule.method))
        }
        _ => false,
    };
    let has_asker =
        main.auth_user.is_some() || databases(config).any(|(_, database, _)| database.auth_user.is_some());
    if !asks_for_passwords || !users.is_empty() || has_asker {
        return None;
    }
    let text = format!(
        "auth_type={}, but there is no source of passwords, so no client can log in: set auth_file, or auth_user for auth_query",
        main.auth_type
    );
    Some(warning(config.given.get("auth_type"), text))
}

/// Warns of a dashboard that shows everything to every machine.
fn open_dashboard(config: &Config) -> Option<Warning> {
    let main = &config.main;
    let public: Vec<&str> =
        main.http_listen.iter().map(String::as_str).filter(|address| is_public(address)).collect();
    if main.http_anonymous != Anonymous::All || public.is_empty() {
        return None;
    }
    let text = format!(
        "http_anonymous=all on {}: other machines can read user names, addresses and SQL without a password",
        public.join(", ")
    );
    Some(warning(config.given.get("http_anonymous"), text))
}

/// Returns whether an address of `http_listen` can be reached from other machines. A port alone is local.
fn is_public(address: &str) -> bool {
    let Some((host, _)) = address.trim().rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host != "localhost" && !host.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use pgweir_auth::Hba;

    use super::*;

    fn told(main: &str, databases: &str, users: &str, hba: &str) -> Vec<String> {
        let text = format!("[pgbouncer]\n{main}\n[databases]\n{databases}\n");
        let config = Config::load("t.ini", &mut |_| Ok(text.clone())).expect("a good file");
        let (users, _) = UserList::parse(users);
        let (hba, _) = Hba::parse(hba, &mut |_| Err(String::new()));
        let access = Access { hba, ..Access::default() };
        advice(&config, Some(&users), &access).iter().map(ToString::to_string).collect()
    }

    /// Returns the warnings, except for those about parts that all of these short files lack.
    fn told_besides(main: &str, databases: &str, users: &str, hba: &str) -> Vec<String> {
        let lacks = ["listen_addr is not set", "[databases] has no line", "no source of passwords"];
        let mut told = told(main, databases, users, hba);
        told.retain(|text| !lacks.iter().any(|lack| text.contains(lack)));
        told
    }

    #[test]
    fn a_configuration_that_no_client_can_use() {
        let found = told("", "", "", "");
        assert_eq!(found.len(), 3, "{found:?}");
        let all = "listen_addr = *\nauth_type = md5";
        assert_eq!(told(all, "a = host=h", "\"eve\" \"x\"\n", ""), Vec::<String>::new());
        let found = told(all, "a = host=h", "", "");
        assert!(
            found.len() == 1 && found[0].starts_with("auth_type=md5, but there is no source"),
            "{found:?}"
        );
        for asks in ["auth_type = trust", "auth_type = md5\nauth_user = a"] {
            let main = format!("listen_addr = *\n{asks}");
            assert_eq!(told(&main, "a = host=h", "", ""), Vec::<String>::new(), "{asks}");
        }
        let found = told("listen_addr = *\nauth_type = trust", "", "", "");
        assert!(found.len() == 1 && found[0].starts_with("[databases] has no line"), "{found:?}");
    }

    #[test]
    fn an_admin_that_no_login_can_succeed_for() {
        let admins = "admin_users = root, eve\nstats_users = eve\nauth_type = ";
        let missing = |kind: &str, name: &str, line: u32, auth_type: &str| {
            format!(
                "{kind} user \"{name}\" is not in auth_file: it cannot log in to the console (auth_type={auth_type}) (t.ini:{line})"
            )
        };
        for auth_type in ["md5", "scram-sha-256", "plain", "trust"] {
            let found = told_besides(&format!("{admins}{auth_type}"), "", "\"eve\" \"x\"\n", "");
            assert_eq!(found, [missing("admin", "root", 2, auth_type)]);
        }
        let found = told_besides(&format!("{admins}md5"), "", "\"eve\" \"\"\n\"root\" \"x\"\n", "");
        assert_eq!(found.len(), 2, "as admin and as stats user: {found:?}");
        assert!(found[1].contains("stats user \"eve\" has an empty password"), "{found:?}");
        for auth_type in ["any", "pam", "hba"] {
            assert_eq!(
                told_besides(&format!("{admins}{auth_type}"), "", "", ""),
                Vec::<String>::new(),
                "{auth_type}"
            );
        }
        let asked = "\nauth_user = a\nauth_dbname = d";
        assert_eq!(
            told_besides(&format!("{admins}md5{asked}"), "", "", ""),
            Vec::<String>::new(),
            "auth_query answers"
        );
        assert_eq!(
            told_besides("admin_users = pgbouncer", "", "", ""),
            Vec::<String>::new(),
            "by the unix socket"
        );
    }

    #[test]
    fn rules_decide_whether_an_admin_has_to_be_listed() {
        let main = "admin_users = root\nauth_type = hba\nauth_hba_file = x";
        assert_eq!(told_besides(main, "", "", "host all all all md5\n").len(), 1);
        assert_eq!(told_besides(main, "", "", "local all all trust\nhost all all all pam\n").len(), 0);
    }

    #[test]
    fn a_min_pool_size_that_no_pool_reaches() {
        assert_eq!(
            told_besides("default_pool_size = 5\nmin_pool_size = 6", "a = host=h\n", "", ""),
            [
                "min_pool_size (6) is above default_pool_size (5): pools do not grow beyond their size (t.ini:3)"
            ]
        );
        assert_eq!(told_besides("default_pool_size = 5\nmin_pool_size = 5", "a = host=h", "", "").len(), 0);
        assert_eq!(told_besides("default_pool_size = 0\nmin_pool_size = 5", "a = host=h", "", "").len(), 0);
        assert_eq!(
            told_besides("min_pool_size = 3", "a = pool_size=2\n* = pool_size=3 min_pool_size=4", "", ""),
            [
                "database \"a\": min_pool_size (3) is above its pool_size (2): pools do not grow beyond their size (t.ini:4)",
                "database \"*\": min_pool_size (4) is above its pool_size (3): pools do not grow beyond their size (t.ini:5)",
            ]
        );
    }

    #[test]
    fn an_auth_query_without_its_parameter() {
        let found = told_besides(
            "auth_query = SELECT 1\nauth_user = a",
            "a = auth_query='SELECT 2'\nb = auth_query='SELECT $1'",
            "",
            "",
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("(t.ini:2)") && found[1].starts_with("database \"a\":"), "{found:?}");
        assert_eq!(told_besides("auth_query =", "", "", "").len(), 0, "switched off");
        let found = told_besides("auth_query = SELECT $1", "", "", "");
        assert!(found.len() == 1 && found[0].contains("no effect without auth_user"), "{found:?}");
    }

    #[test]
    fn an_open_dashboard_on_a_public_address() {
        for (listen, public) in [
            ("9127", false),
            ("127.0.0.1:9127, [::1]:9127, localhost:9127, [::ffff:127.0.0.1]:1", false),
            ("*:9127", true),
            ("0.0.0.0:9127", true),
            ("[::]:9127", true),
            ("10.0.0.5:9127", true),
            ("127.0.0.1:9127, db.example:9127", true),
        ] {
            let found = told_besides(&format!("http_listen = {listen}\nhttp_anonymous = all"), "", "", "");
            assert_eq!(found.len(), usize::from(public), "{listen}: {found:?}");
            assert_eq!(told_besides(&format!("http_listen = {listen}"), "", "", "").len(), 0, "numbers only");
        }
    }
}
