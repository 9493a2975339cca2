//! The console: a virtual database for commands. This module defines the commands, the users that may give them, and the form of their
//! answers.
//!
//! `input.rs` and `extended.rs` read commands, `admin.rs` sends each command to the workers, which carry it out (`actions.rs`),
//! `pending.rs` waits for their answers, `say.rs` writes the answer to the client.

pub(crate) mod admin;
pub mod command;
pub(crate) mod descriptors;
pub(crate) mod extended;
pub(crate) mod hosts;
pub(crate) mod input;
pub(crate) mod pending;
pub(crate) mod report;
pub(crate) mod say;
pub(crate) mod session;
pub(crate) mod statements;
pub(crate) mod statistics;
pub(crate) mod table;

use pgweir_settings::{AuthType, CompatibleWith, Config, Main, VersionText};

/// The database's name, as PgBouncer has it.
pub(crate) const DATABASE: &str = "pgbouncer";

/// The database's second name.
const DATABASE_ALIAS: &str = "pgweir";

/// The error of a SET that changes nothing, in PgBouncer's words.
pub const SET_FAILED: &str = "SET failed";

/// Returns the `server_version` that the console reports; drivers parse it.
#[must_use]
pub fn server_version(main: &Main) -> String {
    format!("{}/bouncer", main.compatible_with.release())
}

/// The answer of SHOW VERSION, which is also the first line of `--version`. `version` is pgweir's own.
#[must_use]
pub fn version_text(main: &Main, version: &str) -> String {
    let release = main.compatible_with.release();
    match main.version_text {
        VersionText::Pgbouncer => format!("PgBouncer {release}"),
        VersionText::Pgweir => format!("pgweir {version} (compatible with PgBouncer {release})"),
    }
}

/// The columns of a SHOW, in order.
#[must_use]
pub fn column_names(topic: command::Topic, compatible_with: CompatibleWith) -> Vec<&'static str> {
    table::column_names(topic, compatible_with)
}

/// Whether a database is the console. A configured database that has the other name wins over it.
pub(crate) fn is_database(config: &Config, name: &str) -> bool {
    name == DATABASE || name == DATABASE_ALIAS && !config.databases.contains_key(DATABASE_ALIAS)
}

/// Whether this is the name by which the house user may enter without a password.
pub(crate) fn is_house_name(user: &str) -> bool {
    user == DATABASE || user == DATABASE_ALIAS
}

/// The rights of a user on the console.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rights {
    /// The user may read statistics (SHOW).
    Stats,
    /// The user may read statistics and give all other commands.
    Admin,
}

/// The rights of a user with a proven identity.
pub(crate) fn rights(main: &Main, user: &str) -> Option<Rights> {
    let among = |names: &[String]| names.iter().any(|name| name == user);
    if among(&main.admin_users) {
        Some(Rights::Admin)
    } else if among(&main.stats_users) || main.auth_type == AuthType::Any {
        Some(Rights::Stats)
    } else {
        None
    }
}
