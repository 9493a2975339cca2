//! Distributes settings of pools: other poolers set them for each pair of database and user, pgweir for
//! databases, for users, or for all.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_settings::{DATABASE_ROWS, Kind, MAIN_ROWS, USER_ROWS, row};

use crate::dialect::Given;
use crate::plan::{Database, Plan, Pool, Secret};

/// A line, a subject, and the reason why it was changed.
pub(crate) type Note = (u32, String, String);

/// Returns the setting of the process that counts if neither a database nor a user sets its own.
pub(crate) fn global_name(name: &'static str) -> &'static str {
    match name {
        "pool_size" => "default_pool_size",
        _ => name,
    }
}

/// Distributes the settings of all pools, and their servers' users.
pub(crate) fn resolve(plan: &mut Plan) -> Vec<Note> {
    // A pool that no client may use needs no settings.
    let pools: Vec<Pool> = plan.pools.iter().filter(|pool| pool.method != "reject").cloned().collect();
    let names: BTreeSet<&'static str> = pools.iter().flat_map(|pool| pool.settings.keys().copied()).collect();
    let mut notes = Vec::new();
    for name in names {
        Spread { name, pools: &pools, notes: &mut notes }.distribute(plan);
    }
    servers(plan, &pools, &mut notes);
    notes
}

struct Spread<'a> {
    name: &'static str,
    pools: &'a [Pool],
    notes: &'a mut Vec<Note>,
}

impl Spread<'_> {
    fn distribute(&mut self, plan: &mut Plan) {
        let global = row(MAIN_ROWS, global_name(self.name));
        // A pool without its own value has that of the process.
        let common =
            global.and_then(|row| plan.settings.get(row.name).cloned().or(row.default.map(str::to_owned)));
        let values: Vec<Option<String>> =
            self.pools.iter().map(|pool| self.value(pool).or(common.clone())).collect();
        if let (Some(global), Some(Some(first))) = (global, values.first())
            && values.iter().all(|value| value.as_ref() == Some(first))
        {
            plan.settings.insert(global.name, first.clone());
            return;
        }
        let in_databases = row(DATABASE_ROWS, self.name).is_some();
        let bases = bases(self.pools, &values, in_databases);
        if in_databases {
            for database in &mut plan.databases {
                if let Some(Some(base)) = bases.get(database.name.as_str()) {
                    database.options.insert(self.name, base.clone());
                }
            }
        } else if let (Some(global), Some(base)) = (global, bases.values().flatten().next()) {
            plan.settings.insert(global.name, base.clone());
        }
        self.users(plan, &values, &bases);
    }

    /// Writes the values of users that differ from their database's.
    fn users(&mut self, plan: &mut Plan, values: &[Option<String>], bases: &BTreeMap<&str, Option<String>>) {
        let in_users = row(USER_ROWS, self.name).is_some();
        for (pool, value) in self.pools.iter().zip(values) {
            let base = bases.get(pool.database.as_str()).and_then(Option::as_ref);
            let Some(value) = value.as_ref().filter(|value| Some(*value) != base) else { continue };
            let own = |(other, _): &(&Pool, &Option<String>)| other.user == pool.user;
            let same =
                self.pools.iter().zip(values).filter(own).all(|(_, other)| other.as_ref() == Some(value));
            match &pool.user {
                Some(user) if in_users && same => {
                    plan.users.entry(user.clone()).or_default().insert(self.name, value.clone());
                }
                user => {
                    let what = format!(
                        "{} of {} on {}",
                        self.name,
                        user.as_deref().unwrap_or("all users"),
                        pool.database
                    );
                    let holds = base.map_or("pgweir's default", String::as_str);
                    let why = format!(
                        "it was {value}; pgweir cannot set it for one pair of user and database, so {holds} holds"
                    );
                    self.notes.push((pool.line, what, why));
                }
            }
        }
    }

    fn value(&self, pool: &Pool) -> Option<String> {
        let kind = row(MAIN_ROWS, global_name(self.name)).map_or(Kind::Text, |row| row.kind);
        let write = |given: &Given| match (self.name, given.write(kind)) {
            // In other poolers 0 means that a connection never gets too old.
            ("server_lifetime", text) if text == "0" => "315360000".to_owned(),
            (_, text) => text,
        };
        pool.settings.get(self.name).map(write)
    }
}

/// Returns the values of each database that count for users without their own.
fn bases<'a>(
    pools: &'a [Pool],
    values: &[Option<String>],
    in_databases: bool,
) -> BTreeMap<&'a str, Option<String>> {
    let mut bases: BTreeMap<&'a str, Option<String>> = BTreeMap::new();
    // The pool of all users decides, or else the first one with a value.
    let with_values = || pools.iter().zip(values);
    let (all, named): (Vec<_>, Vec<_>) = with_values().partition(|(pool, _)| pool.user.is_none());
    for (pool, value) in all.into_iter().chain(named) {
        let base = bases.entry(&pool.database).or_default();
        if base.is_none() {
            base.clone_from(value);
        }
    }
    if !in_databases {
        let first = pools.iter().find_map(|pool| bases.get(pool.database.as_str()).cloned().flatten());
        bases.values_mut().for_each(|base| base.clone_from(&first));
    }
    bases
}

/// Sets the users of server connections: one for each database, or each client's own.
fn servers(plan: &mut Plan, pools: &[Pool], notes: &mut Vec<Note>) {
    let secrets = &mut plan.secrets;
    for database in &mut plan.databases {
        let of_it: Vec<&Pool> = pools.iter().filter(|pool| pool.database == database.name).collect();
        // If the name is the same, no forced user is needed, only a password that both sides share.
        let own = |pool: &&&Pool| match (&pool.server, &pool.user) {
            (Some((server, _)), Some(user)) => server == user,
            (server, _) => server.is_none(),
        };
        let other: Vec<&&Pool> = of_it.iter().filter(|pool| !own(pool)).collect();
        match other.as_slice() {
            [] => own_servers(database, &of_it, secrets, notes),
            [first, rest @ ..] => {
                let alike = other.len() == of_it.len() && rest.iter().all(|pool| pool.server == first.server);
                match &first.server {
                    Some((user, password)) if alike => force(database, user, password.as_ref(), secrets),
                    _ => {
                        for pool in other {
                            let user = pool.user.as_deref().unwrap_or("all users");
                            let what = format!("server user of {user} on {}", pool.database);
                            let why = "its users have different ones; pgweir has one for all clients of a database, or each client's own: \
                                       the clients' own names are used";
                            notes.push((pool.line, what, why.to_owned()));
                        }
                    }
                }
            }
        }
    }
}

/// Handles clients that log in to the server under their own names, perhaps with another password there.
fn own_servers(
    database: &mut Database,
    pools: &[&Pool],
    secrets: &mut BTreeMap<String, Secret>,
    notes: &mut Vec<Note>,
) {
    for pool in pools {
        let Some((user, Some(password))) = &pool.server else { continue };
        match secrets.get(user) {
            None => {
                secrets.insert(user.clone(), password.clone());
            }
            Some(known) if known == password => {}
            Some(_) if pools.len() == 1 => force(database, user, Some(password), secrets),
            // This password also lets clients log in to the pooler, and it is the one that works at the
            // server.
            Some(known) if is_stored(known) && !is_stored(password) => {
                secrets.insert(user.clone(), password.clone());
            }
            Some(_) => {
                let what = format!("server password of {user} on {}", database.name);
                let why = "it is another one than the client's; pgweir's list of users has one for both: the client's holds";
                notes.push((pool.line, what, why.to_owned()));
            }
        }
    }
}

/// Returns whether this is a secret as PostgreSQL stores it, and not a password itself.
pub(crate) fn is_stored(secret: &Secret) -> bool {
    let text = secret.reveal();
    let hash = text.strip_prefix("md5").unwrap_or_default();
    text.starts_with("SCRAM-SHA-256$")
        || hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Gives all server connections of a database one user. Its password goes into the list of users unless that
/// has another one.
fn force(
    database: &mut Database,
    user: &str,
    password: Option<&Secret>,
    secrets: &mut BTreeMap<String, Secret>,
) {
    database.user = Some(user.to_owned());
    match (password, secrets.get(user)) {
        (Some(password), None) => {
            secrets.insert(user.to_owned(), password.clone());
        }
        (Some(password), Some(known)) if known != password => database.password = Some(password.clone()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(pools: &[(&str, &str, &'static str, &str)]) -> (Plan, Vec<Note>) {
        let mut plan = Plan::default();
        for (database, user, name, value) in pools {
            if !plan.databases.iter().any(|known| known.name == *database) {
                plan.databases.push(Database { name: (*database).to_owned(), ..Database::default() });
            }
            let user = (*user != "*").then(|| (*user).to_owned());
            let settings = BTreeMap::from([(*name, Given::Text((*value).to_owned()))]);
            plan.pools.push(Pool { database: (*database).to_owned(), user, settings, ..Pool::default() });
        }
        let notes = resolve(&mut plan);
        (plan, notes)
    }

    #[test]
    fn one_value_for_all_is_the_process_setting() {
        let (plan, notes) = plan(&[("a", "x", "pool_size", "5"), ("b", "y", "pool_size", "5")]);
        assert_eq!(plan.settings["default_pool_size"], "5");
        assert!(notes.is_empty() && plan.users.is_empty() && plan.databases[0].options.is_empty());
    }

    #[test]
    fn databases_and_users_differ() {
        let (plan, notes) =
            plan(&[("a", "x", "pool_size", "5"), ("b", "y", "pool_size", "7"), ("b", "z", "pool_size", "9")]);
        assert!(notes.is_empty());
        assert_eq!(plan.databases[0].options["pool_size"], "5");
        assert_eq!(plan.databases[1].options["pool_size"], "7");
        assert_eq!(plan.users["z"]["pool_size"], "9");
        assert!(!plan.users.contains_key("x"));
    }

    #[test]
    fn what_cannot_be_said_is_told() {
        let (plan, notes) =
            plan(&[("a", "y", "pool_size", "1"), ("a", "x", "pool_size", "5"), ("b", "x", "pool_size", "7")]);
        assert_eq!(plan.databases[0].options["pool_size"], "1");
        assert_eq!(plan.databases[1].options["pool_size"], "7");
        assert_eq!(notes.len(), 1);
        assert_eq!(notes[0].1, "pool_size of x on a");
        // Users cannot have a min_pool_size.
        let (_, notes) = self::plan(&[("a", "y", "min_pool_size", "1"), ("a", "x", "min_pool_size", "5")]);
        assert_eq!(notes.len(), 1);
    }

    #[test]
    fn settings_of_users_only() {
        let (plan, notes) = plan(&[
            ("a", "*", "query_timeout", "0"),
            ("a", "x", "query_timeout", "5"),
            ("b", "x", "query_timeout", "5"),
        ]);
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!(plan.settings["query_timeout"], "0");
        assert_eq!(plan.users["x"]["query_timeout"], "5");
    }

    type User<'a> = (&'a str, &'a str, Option<(&'a str, &'a str)>);

    fn with_servers(pools: &[User<'_>]) -> (Plan, Vec<Note>) {
        let mut plan = Plan::default();
        plan.databases.push(Database { name: "a".to_owned(), ..Database::default() });
        for (user, secret, server) in pools {
            plan.secrets.insert((*user).to_owned(), Secret::new(*secret));
            let server = server.map(|(user, password)| (user.to_owned(), Some(Secret::new(password))));
            let user = Some((*user).to_owned());
            plan.pools.push(Pool { database: "a".to_owned(), user, server, ..Pool::default() });
        }
        let notes = resolve(&mut plan);
        (plan, notes)
    }

    #[test]
    fn forced_users_and_their_passwords() {
        let (plan, notes) = with_servers(&[("x", "1", Some(("app", "2"))), ("y", "3", Some(("app", "2")))]);
        assert!(notes.is_empty());
        assert_eq!(plan.databases[0].user.as_deref(), Some("app"));
        assert_eq!(plan.secrets["app"].reveal(), "2");
        assert!(plan.databases[0].password.is_none());

        let (plan, notes) = with_servers(&[("x", "1", Some(("x", "2")))]);
        assert!(notes.is_empty());
        assert_eq!(plan.databases[0].user.as_deref(), Some("x"));
        assert!(plan.databases[0].password.is_some(), "the list of users has the client's");

        let (plan, notes) = with_servers(&[("x", "1", Some(("app", "2"))), ("y", "3", None)]);
        assert_eq!((plan.databases[0].user.as_deref(), notes.len()), (None, 1));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "(redacted)");
    }
}
