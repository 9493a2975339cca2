//! The neutral form between a reader and the writer: any pooler's configuration, in pgweir's terms.

use std::collections::BTreeMap;

use crate::dialect::Given;

/// A whole configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Settings of the process: listening, timeouts, TLS, logging.
    pub(crate) settings: BTreeMap<&'static str, String>,
    /// The databases that clients may ask for.
    pub(crate) databases: Vec<Database>,
    /// Servers of clusters.
    pub(crate) nodes: Vec<Node>,
    /// Primaries with their standbys.
    pub(crate) clusters: Vec<Cluster>,
    /// The routes of clients to nodes, in order.
    pub(crate) routes: Vec<Line>,
    /// The rules of the query cache, in order.
    pub(crate) cache: Vec<Line>,
    /// Settings of users.
    pub(crate) users: BTreeMap<String, BTreeMap<&'static str, String>>,
    /// Passwords, or the secrets that PostgreSQL stores for them, by user.
    pub(crate) secrets: BTreeMap<String, Secret>,
    /// The pools: which clients may ask for which database, in order, with the pools' settings.
    pub(crate) pools: Vec<Pool>,
    /// Rules of access that the configuration itself has, in PostgreSQL's format.
    pub(crate) rules: Option<Vec<String>>,
    /// The users of the console.
    pub(crate) admins: Vec<String>,
    /// `true` if clients need TLS and no certificate is named, so that the process which writes the files must
    /// make a self-signed one.
    pub(crate) needs_certificate: bool,
}

/// An entry of `[databases]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Database {
    /// The name that clients ask for; `*` means every other name.
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The cluster that serves the database, which then has neither host nor port.
    pub(crate) cluster: Option<String>,
    /// The database's name on the server, if it differs.
    pub(crate) dbname: Option<String>,
    /// The user of all the database's server connections, if it is not the client's.
    pub(crate) user: Option<String>,
    /// The password of that user, if the list of users has another one for this name.
    pub(crate) password: Option<Secret>,
    pub(crate) options: BTreeMap<&'static str, String>,
    /// The pairs as the configuration has them, instead of all of the above. They may contain a password.
    pub(crate) written: Option<Secret>,
    /// Comment lines above the entry.
    pub(crate) comments: Vec<String>,
}

/// An entry of `[nodes]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) weight: Option<u32>,
}

/// A line of `[routes]` or `[cache]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) pairs: Vec<(&'static str, String)>,
}

/// An entry of `[clusters]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// The names of the cluster's nodes; empty if it finds them itself.
    pub(crate) nodes: Vec<String>,
    /// The password of `check_user`, if the list of users has none.
    pub(crate) check_password: Option<Secret>,
    pub(crate) options: BTreeMap<&'static str, String>,
}

/// Clients of one database and one user.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub(crate) database: String,
    /// The user; `None` means every user that is not named for this database.
    pub(crate) user: Option<String>,
    /// The way the clients authenticate: a method of pg_hba.conf.
    pub(crate) method: &'static str,
    pub(crate) line: u32,
    pub(crate) settings: BTreeMap<&'static str, Given>,
    /// The server connections' user and password, if they are not the client's.
    pub(crate) server: Option<(String, Option<Secret>)>,
}

/// A password, or the secret that PostgreSQL stores for it. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// Returns the text itself, for the list of users.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(redacted)")
    }
}
