//! The numbers that findings are made of. They come from the caller.

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The configuration file; no pooler was asked.
    #[default]
    File,
    /// The console of a running pooler.
    Console,
}

/// Everything that was seen at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Where it comes from.
    pub source: Source,
    /// Settings of the pooler.
    pub settings: Settings,
    /// Limits of open files, if they are known.
    pub files: Option<FilesLimit>,
    /// The kernel's bound of `listen_backlog`, if it is known.
    pub somaxconn: Option<u64>,
    /// SUSPEND is in force.
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
}

/// Settings of the process that findings look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// `max_client_conn`
    pub max_client_conn: u64,
    /// `listen_backlog`
    pub listen_backlog: u64,
    /// `query_timeout`; 0 is none.
    pub query_timeout_s: f64,
    /// `idle_transaction_timeout`; 0 is none.
    pub idle_transaction_timeout_s: f64,
    /// `transaction_timeout`; 0 is none.
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

/// Open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesLimit {
    /// Files that the process may open. pgweir raises its soft limit to the hard one.
    pub max: u64,
    /// Files that it has open, if that is known.
    pub open: Option<u64>,
}

/// A line of `[databases]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// The name that clients ask for.
    pub name: String,
    /// Its hosts; empty for the unix socket.
    pub hosts: Vec<String>,
    /// Its port.
    pub port: u16,
    /// Number of its pools: users that log in as themselves have one each.
    pub pools: u64,
    /// `pool_size`; 0 is no limit.
    pub pool_size: u64,
    /// `reserve_pool_size`
    pub reserve_pool_size: u64,
    /// `max_db_connections`; 0 is no limit.
    pub max_connections: u64,
    /// PAUSE or KILL is in force.
    pub is_paused: bool,
    /// DISABLE is in force.
    pub is_disabled: bool,
}

impl Database {
    /// Server connections that it may have; `None` is no limit.
    #[must_use]
    pub fn servers_max(&self) -> Option<u64> {
        let pools = (self.pool_size > 0).then(|| self.pools * (self.pool_size + self.reserve_pool_size));
        let whole = (self.max_connections > 0).then_some(self.max_connections);
        match (pools, whole) {
            (Some(pools), Some(whole)) => Some(pools.min(whole)),
            (one, other) => one.or(other),
        }
    }

    /// Its hosts, the unix socket as one of them.
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
    /// The user that its servers log in as.
    pub user: String,
    /// `pool_size`; 0 is no limit.
    pub size: u64,
    /// Servers that have a client.
    pub active: u64,
    /// Servers that their clients keep between transactions.
    pub pinned: u64,
    /// Clients that wait for a server.
    pub waiting: u64,
    /// How long the client that has waited longest has waited.
    pub wait_oldest_us: u64,
    /// Why the last login to a server failed, if none succeeded since.
    pub failure: Option<String>,
    /// `total_multiplex_violations`
    pub multiplex_violations: u64,
    /// `total_session_differences`
    pub session_differences: u64,
}

impl Pool {
    /// `database/user`, as log lines name it.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.database, self.user)
    }
}

/// A client that keeps its server between transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The database as clients name it.
    pub database: String,
    /// Why: `advisory locks`, or several reasons with commas between.
    pub reasons: String,
}

/// A client that does not read what it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lagging {
    /// The database as clients name it.
    pub database: String,
    /// The user that it logged in as.
    pub user: String,
    /// `address:port`, or `unix`.
    pub address: String,
    /// Its `application_name`.
    pub application_name: String,
    /// Bytes that wait for it.
    pub bytes: u64,
    /// For how long it was watched.
    pub watched_s: u64,
}

/// A login to PostgreSQL, as a pool would do it.
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
    /// What PostgreSQL allows; or why the login failed, in PostgreSQL's words.
    pub result: Result<Limits, String>,
}

/// What PostgreSQL allows a session of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `max_connections`
    pub max_connections: u64,
    /// `superuser_reserved_connections`
    pub superuser_reserved: u64,
    /// `reserved_connections` (PostgreSQL 16 and later)
    pub reserved: u64,
    /// `CONNECTION LIMIT` of the role; `None` is no limit.
    pub role_max: Option<u64>,
    /// `CONNECTION LIMIT` of the database; `None` is no limit.
    pub database_max: Option<u64>,
    /// `idle_in_transaction_session_timeout` of this role in this database; 0 is none.
    pub idle_in_transaction_timeout_ms: u64,
    /// `idle_session_timeout`; 0 is none.
    pub idle_session_timeout_ms: u64,
    /// `statement_timeout`; 0 is none.
    pub statement_timeout_ms: u64,
    /// `client_connection_check_interval`; 0: PostgreSQL does not look. `None`: PostgreSQL is older than 14.
    pub connection_check_ms: Option<u64>,
    /// Sessions of this role in this database that are idle in a transaction.
    pub idle_in_transaction: u64,
    /// For how long the oldest of them has been idle so.
    pub idle_in_transaction_oldest_s: u64,
}

/// A setting that the file and the running pooler have different values of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Its name.
    pub name: String,
    /// The value in force.
    pub running: String,
    /// The value in the file.
    pub file: String,
    /// Only a restart changes it.
    pub needs_restart: bool,
}
