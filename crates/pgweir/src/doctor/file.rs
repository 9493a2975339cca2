//! What a configuration file says of the numbers that a running pooler would have.

use std::collections::BTreeMap;

use pgweir_control::Examination;
use pgweir_doctor::{Changed, Database, Settings, Snapshot, Source};
use pgweir_settings::Config;

use super::system;

/// Settings that the command line or the console may have given another value.
const NOT_COMPARED: [&str; 3] = ["conffile", "verbose", "user"];

/// The numbers of a pooler that would run with this file.
pub(super) fn snapshot(seen: &Examination) -> Snapshot {
    let config = &seen.config;
    let rows = config.show();
    let rows = rows.iter().filter_map(|row| Some((row.key, row.value.as_deref()?)));
    let users = pools_of_each_database(seen);
    let database = |database: &pgweir_settings::Database| {
        let user = database.user.as_deref();
        let mut hosts = database.hosts.clone();
        hosts.extend(config.nodes_of(database).map(|(_, node)| node.host.clone()));
        let port = config.nodes_of(database).next().map_or(database.port, |(_, node)| node.port);
        Database {
            name: database.name.clone(),
            hosts,
            port,
            pools: if user.is_some() { 1 } else { users },
            pool_size: config.pool_size(database, user.unwrap_or_default()).into(),
            reserve_pool_size: config.reserve_pool_size(database, user.unwrap_or_default()).into(),
            max_connections: config.max_db_connections(database).into(),
            ..Database::default()
        }
    };
    Snapshot {
        source: Source::File,
        settings: Settings::read(rows),
        files: system::own_files_limit(),
        somaxconn: system::somaxconn(),
        databases: config.databases.values().map(database).collect(),
        ..Snapshot::default()
    }
}

/// Users that may have pools: those of `auth_file` without those of the console. Users that `auth_query` knows are not known here.
fn pools_of_each_database(seen: &Examination) -> u64 {
    let main = &seen.config.main;
    let of_console = |name: &str| main.admin_users.iter().chain(&main.stats_users).any(|own| own == name);
    let names = seen.users.iter().flat_map(|users| users.names());
    (names.filter(|name| !of_console(name)).count() as u64).max(1)
}

/// Settings of the process that the running pooler has other values of.
pub(super) fn changed(config: &Config, running: &BTreeMap<String, String>) -> Vec<Changed> {
    let rows = config.show();
    let differs = |row: &pgweir_settings::ConfigRow| {
        let file = row.value.clone().unwrap_or_default();
        let running = running.get(row.key)?.clone();
        let is_other = file != running && !NOT_COMPARED.contains(&row.key);
        is_other.then(|| Changed { name: row.key.to_owned(), running, file, needs_restart: !row.changeable })
    };
    rows.iter().filter_map(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_named_and_where_from_they_change() {
        let text = "[pgbouncer]\nlisten_port = 7000\nmax_client_conn = 50\nuser = x\n";
        let config = Config::load("t.ini", &mut |_| Ok(text.to_owned())).expect("a good file");
        let mut running: BTreeMap<String, String> = config
            .show()
            .into_iter()
            .map(|row| (row.key.to_owned(), row.value.unwrap_or_default()))
            .collect();
        assert_eq!(changed(&config, &running), []);
        for (key, value) in [("listen_port", "6432"), ("max_client_conn", "60"), ("user", "y")] {
            running.insert(key.to_owned(), value.to_owned());
        }
        let found = changed(&config, &running);
        let told: Vec<_> =
            found.iter().map(|one| (&*one.name, &*one.running, &*one.file, one.needs_restart)).collect();
        assert_eq!(told, [("listen_port", "6432", "7000", true), ("max_client_conn", "60", "50", false)]);
    }
}
