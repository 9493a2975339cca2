//! The numbers that findings are made from. They come from the caller.

use crate::following::Following;

/// The origin of the numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The configuration file; no pooler was asked.
    #[default]
    File,
    /// The console of a running pooler.
    Console,
}

/// All numbers that were collected at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The origin of the numbers.
    pub source: Source,
    /// Settings of the pooler.
    pub settings: Settings,
    /// Limits of open files, if they are known.
    pub files: Option<FilesLimit>,
    /// The kernel's bound of `listen_backlog`, if it is known.
    pub somaxconn: Option<u64>,
    /// `true` if SUSPEND is in force.
    pub is_suspended: bool,
    /// Databases of the configuration.
    pub databases: Vec<Database>,
    /// Pools of a running pooler.
    pub pools: Vec<Pool>,
    /// Clients that keep their server between transactions.
    pub pinned: Vec<Pinned>,
    /// Clients that did not read for a while.
    pub lagging: Vec<Lagging>,
    /// Logins to PostgreSQL that were tried.
    pub probes: Vec<Probe>,
    /// Settings that differ between the running pooler and its file.
    pub changed: Vec<Changed>,
    /// The virtual address; `None` if the pooler has none.
    pub vip: Option<Vip>,
    /// The limits that several poolers share; empty if there are none.
    pub shared_limits: Vec<SharedLimit>,
    /// The statements that took the most time; empty if they are not followed.
    pub statements: Vec<Statement>,
    /// The databases whose changes the query cache follows.
    pub following: Vec<Following>,
}

/// Settings of the process that findings look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `max_client_conn`
    pub max_client_conn: u64,
    /// `listen_backlog`
    pub listen_backlog: u64,
    /// `query_timeout`; 0 means none.
    pub query_timeout_s: f64,
    /// `idle_transaction_timeout`; 0 means none.
    pub idle_transaction_timeout_s: f64,
    /// `transaction_timeout`; 0 means none.
    pub transaction_timeout_s: f64,
    /// `server_login_retry`
    pub server_login_retry_s: f64,
}

impl Settings {
    /// Reads the rows of SHOW CONFIG: names and values.
    pub fn read<'a>(rows: impl IntoIterator<Item = (&'a str, &'a str)>) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in rows {
            let whole = || value.parse().unwrap_or_default();
            let time_s = || value.parse().unwrap_or_default();
            match name {
                "max_client_conn" => settings.max_client_conn = whole(),
                "listen_backlog" => settings.listen_backlog = whole(),
                "query_timeout" => settings.query_timeout_s = time_s(),
                "idle_transaction_timeout" => settings.idle_transaction_timeout_s = time_s(),
                "transaction_timeout" => settings.transaction_timeout_s = time_s(),
                "server_login_retry" => settings.server_login_retry_s = time_s(),
                _ => {}
            }
        }
        settings
    }
}

/// The limit and the number of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesLimit {
    /// The number of files that the process may open. pgweir raises its soft limit to the hard one.
    pub max: u64,
    /// The number of open files, if it is known.
    pub open: Option<u64>,
}

/// A line of `[databases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// The name that clients ask for.
    pub name: String,
    /// The database's hosts; empty for the unix socket.
    pub hosts: Vec<String>,
    /// The database's port.
    pub port: u16,
    /// The number of the database's pools: users that log in as themselves have one each.
    pub pools: u64,
    /// `pool_size`; 0 means no limit.
    pub pool_size: u64,
    /// `reserve_pool_size`
    pub reserve_pool_size: u64,
    /// `max_db_connections`; 0 means no limit.
    pub max_connections: u64,
    /// `true` if PAUSE or KILL is in force.
    pub is_paused: bool,
    /// `true` if DISABLE is in force.
    pub is_disabled: bool,
}

impl Database {
    /// Returns the maximum number of server connections of the database; `None` means no limit.
    #[must_use]
    pub fn servers_max(&self) -> Option<u64> {
        let pools = (self.pool_size > 0).then(|| self.pools * (self.pool_size + self.reserve_pool_size));
        let whole = (self.max_connections > 0).then_some(self.max_connections);
        match (pools, whole) {
            (Some(pools), Some(whole)) => Some(pools.min(whole)),
            (one, other) => one.or(other),
        }
    }

    /// Returns the database's hosts, including the unix socket.
    pub(crate) fn places(&self) -> impl Iterator<Item = (&str, u16)> {
        let unix = self.hosts.is_empty().then_some("");
        self.hosts.iter().map(String::as_str).chain(unix).map(|host| (host, self.port))
    }
}

/// A pool of a running pooler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The database as clients name it.
    pub database: String,
    /// The user that the pool's servers log in as.
    pub user: String,
    /// `pool_size`; 0 means no limit.
    pub size: u64,
    /// The number of servers that have a client.
    pub active: u64,
    /// The number of servers that their clients keep between transactions.
    pub pinned: u64,
    /// The number of clients that wait for a server.
    pub waiting: u64,
    /// The time that the client at the front of the queue has waited.
    pub wait_oldest_us: u64,
    /// The reason why the last login to a server failed; `None` if it succeeded.
    pub failure: Option<String>,
    /// `total_multiplex_violations`
    pub multiplex_violations: u64,
    /// `total_session_differences`
    pub session_differences: u64,
    /// `wrong` in SHOW CACHE
    pub wrong_answers: u64,
}

impl Pool {
    /// Returns `database/user`, as log lines name the pool.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.database, self.user)
    }
}

/// A client that keeps its server between transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The database as clients name it.
    pub database: String,
    /// The reasons: `advisory locks`, or several with commas between.
    pub reasons: String,
}

/// A client that does not read the data sent to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lagging {
    /// The database as clients name it.
    pub database: String,
    /// The user that the client logged in as.
    pub user: String,
    /// The client's address: `address:port`, or `unix`.
    pub address: String,
    /// The client's `application_name`.
    pub application_name: String,
    /// The number of bytes that wait for the client.
    pub bytes: u64,
    /// The time for which the client was watched.
    pub watched_s: u64,
}

/// A limit that several poolers share, as SHOW LIMITS shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedLimit {
    /// The kind of the limit and its name.
    pub name: String,
    /// `shared`, `joining`, `frozen` or `handed over`.
    pub state: String,
    /// The number of connections that all poolers together may have.
    pub limit: u64,
    /// The number of poolers that share it.
    pub poolers: u64,
    /// The number of connections that are kept back for poolers that have ended.
    pub kept_back: u64,
    /// The reason for the state.
    pub reason: String,
}

/// The virtual address (`vip`), as SHOW VIP shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vip {
    /// The address with its prefix length.
    pub address: String,
    /// `holds`, `standby`, `unable` or `given away`.
    pub state: String,
    /// `own`, `other`, `free` or `unknown`.
    pub lease: String,
    /// The reason why this pooler cannot take the address, or why etcd cannot be asked.
    pub error: String,
}

/// A statement of SHOW STATEMENTS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statement {
    /// The database as clients name it.
    pub database: String,
    /// The user of the pool.
    pub user: String,
    /// The text without literals.
    pub text: String,
    /// `yes` if the query cache keeps the answers, or why it does not; empty if the pooler does not tell.
    pub cache: String,
    /// The number of executions.
    pub calls: u64,
    /// The time at PostgreSQL.
    pub server_us: u64,
}

/// A login to PostgreSQL, made in the same way as a pool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The database as clients name it.
    pub database: String,
    /// The user that logged in.
    pub user: String,
    /// The host; empty for the unix socket.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The limits that PostgreSQL reports, or the error of the login, in PostgreSQL's words.
    pub result: Result<Limits, String>,
}

/// PostgreSQL's limits for a session of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `max_connections`
    pub max_connections: u64,
    /// `superuser_reserved_connections`
    pub superuser_reserved: u64,
    /// `reserved_connections` (PostgreSQL 16 and later)
    pub reserved: u64,
    /// `CONNECTION LIMIT` of the role; `None` means no limit.
    pub role_max: Option<u64>,
    /// `CONNECTION LIMIT` of the database; `None` means no limit.
    pub database_max: Option<u64>,
    /// `idle_in_transaction_session_timeout` of this role in this database; 0 means none.
    pub idle_in_transaction_timeout_ms: u64,
    /// `idle_session_timeout`; 0 means none.
    pub idle_session_timeout_ms: u64,
    /// `statement_timeout`; 0 means none.
    pub statement_timeout_ms: u64,
    /// `client_connection_check_interval`; with 0 PostgreSQL does not check. `None` if PostgreSQL is older
    /// than 14.
    pub connection_check_ms: Option<u64>,
    /// The number of sessions of this role in this database that are idle in a transaction.
    pub idle_in_transaction: u64,
    /// The time for which the oldest of these sessions has been idle.
    pub idle_in_transaction_oldest_s: u64,
}

/// A setting that the file and the running pooler have different values of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The setting's name.
    pub name: String,
    /// The value in force.
    pub running: String,
    /// The value in the file.
    pub file: String,
    /// `true` if only a restart changes the setting.
    pub needs_restart: bool,
}
