//! The keys of `[databases]`: `name = key=value ...`.

use super::COUNT_MAX;
use std::time::Duration;

use super::{Kind, settings};
use crate::{
    Balance, BeginUndeclared, CausalReads, CommitOutcome, LoadBalanceHosts, Password, PoolMode, Route,
    SessionState,
};

settings! {
    /// One database that clients can ask for, and the server behind it.
    struct Database, DATABASE_ROWS;
    extra {
        /// The name that clients ask for.
        name: String;
    }
    group "Databases" {
        /// The database's name on the server. If it is not set, the name that clients ask for.
        dbname: Option<String> = NULL, Kind::Text, Recycle, PgBouncer, InEffect;
        /// The server's address: a host name, an address, the directory of a unix socket, `@name` for an
        /// abstract one, or several of them with commas between. If it is not set, the unix socket in
        /// `unix_socket_dir` is used.
        hosts as "host": Vec<String> = NULL, Kind::List, Recycle, PgBouncer, InEffect;
        /// The server's port, the same for all hosts.
        port: u16 = "5432", Kind::Count(1, 65535), Recycle, PgBouncer, InEffect;
        /// The cluster that serves this database, an entry of `[clusters]`: pgweir finds the primary among
        /// its nodes. It replaces `host` and `port`.
        cluster: Option<String> = NULL, Kind::Text, Recycle, Ours, InEffect;
        /// Overrides `commit_outcome` of `[clusters]`, for this database.
        commit_outcome: Option<CommitOutcome> = NULL, Kind::Choice(CommitOutcome::WORDS), Reload, Ours, InEffect;
        /// Overrides `route` of `[clusters]`, for this database.
        route: Option<Route> = NULL, Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// Overrides `balance` of `[clusters]`, for this database.
        balance: Option<Balance> = NULL, Kind::Choice(Balance::WORDS), Reload, Ours, InEffect;
        /// Overrides `read_functions` of `[clusters]`, for this database.
        read_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `write_functions` of `[clusters]`, for this database.
        write_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `primary_names` of `[clusters]`, for this database.
        primary_names: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `begin_undeclared` of `[clusters]`, for this database.
        begin_undeclared: Option<BeginUndeclared> = NULL, Kind::Choice(BeginUndeclared::WORDS), Reload, Ours, InEffect;
        /// Overrides `causal_reads` of `[clusters]`, for this database.
        causal_reads: Option<CausalReads> = NULL, Kind::Choice(CausalReads::WORDS), Reload, Ours, InEffect;
        /// Overrides `causal_wait_ms` of `[clusters]`, for this database.
        causal_wait_ms: Option<u32> = NULL, Kind::Count(0, 60_000), Reload, Ours, InEffect;
        /// The user that all server connections of this database log in as, whatever the client's user is. If
        /// it is not set, each user has a separate pool. To remove it needs a restart.
        user: Option<String> = NULL, Kind::Text, Recycle, PgBouncer, InEffect;
        /// The password of `user`; looked up in `auth_file` when it is not set.
        password: Option<Password> = NULL, Kind::Secret, Reload, PgBouncer, InEffect;
        /// Overrides the global `auth_user`, for this database.
        auth_user: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// Overrides the global `auth_query`, for this database.
        auth_query: Option<String> = NULL, Kind::Text, Recycle, PgBouncer, InEffect;
        /// Overrides the global `auth_dbname`, for this database.
        auth_dbname: Option<String> = NULL, Kind::AuthDatabase, Recycle, PgBouncer, InEffect;
        /// The `client_encoding` that server connections start with.
        client_encoding: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// The `DateStyle` that server connections start with.
        datestyle: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// The `TimeZone` that server connections start with.
        timezone: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// The `application_name` that server connections start with.
        application_name: Option<String> = NULL, Kind::Text, Reload, PgBouncer, InEffect;
        /// The maximum number of server connections in each pool of this database; 0 means as many as are needed.
        pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The number of server connections that each pool of this database keeps open.
        min_pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The number of additional server connections that each pool may open if clients wait for long.
        /// `reserve_pool` is the same.
        reserve_pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The event after which a server is released, for this database.
        pool_mode: Option<PoolMode> = NULL, Kind::Choice(PoolMode::WORDS), Reload, PgBouncer, InEffect;
        /// Overrides the global `session_state`, for this database.
        session_state: Option<SessionState> = NULL, Kind::Choice(SessionState::WORDS), Reload, Ours, InEffect;
        /// Overrides the global `session_audit_sample`, for this database.
        session_audit_sample: Option<u32> = NULL, Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum number of server connections to this database, over all users. It can change a global limit,
        /// not lift it.
        max_db_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of this database. It can change a global limit, not lift it.
        max_db_client_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// Overrides the global `max_waiting_clients`, for each pool of this database.
        max_waiting_clients: Option<u32> = NULL, Kind::OwnLimit, Reload, Ours, InEffect;
        /// The age after which an unused server connection is closed.
        server_lifetime: Option<Duration> = NULL, Kind::OwnLifetime, Reload, PgBouncer, InEffect;
        /// The time that clients wait for a server of this database; 0 means without limit.
        query_wait_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// Overrides the global `log_min_duration_ms`, for this database.
        log_min_duration_ms: Option<Duration> = NULL, Kind::Milliseconds, Reload, Ours, InEffect;
        /// SQL that runs on each new server connection, and again after a reset. Every client begins with the
        /// settings and the role that it leaves. An error in it is logged, and the connection is still used.
        connect_query: Option<String> = NULL, Kind::Text, Recycle, PgBouncer, InEffect;
        /// The order in which several hosts are used; `round-robin` if it is not set.
        load_balance_hosts: Option<LoadBalanceHosts> = NULL, Kind::Choice(LoadBalanceHosts::WORDS), Recycle, PgBouncer, InEffect;
    }
}

impl Database {
    /// The database's name on the server.
    pub fn server_dbname(&self) -> &str {
        self.dbname.as_deref().unwrap_or(&self.name)
    }
}
