//! The keys of `[users]`: `name = key=value ...`.

use super::COUNT_MAX;
use std::time::Duration;

use super::{Kind, settings};
use crate::{Balance, BeginUndeclared, CausalReads, CommitOutcome, PoolMode, Route, SessionState};

settings! {
    /// What is set for one user; it goes before what is set for a database and globally.
    struct UserOptions, USER_ROWS;
    group "Users" {
        /// When a server is released.
        pool_mode: Option<PoolMode> = NULL, Kind::Choice(PoolMode::WORDS), Reload, PgBouncer, InEffect;
        /// As `route` in `[clusters]`, for this user's clients in databases with a cluster.
        route: Option<Route> = NULL, Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// As `balance` in `[clusters]`, for this user's clients.
        balance: Option<Balance> = NULL, Kind::Choice(Balance::WORDS), Reload, Ours, InEffect;
        /// As `read_functions` in `[clusters]`, for this user's clients.
        read_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// As `write_functions` in `[clusters]`, for this user's clients.
        write_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// As `primary_names` in `[clusters]`, for this user's clients.
        primary_names: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// As `commit_outcome` in `[clusters]`, for this user's clients in databases with a cluster.
        commit_outcome: Option<CommitOutcome> = NULL, Kind::Choice(CommitOutcome::WORDS), Reload, Ours, InEffect;
        /// As `begin_undeclared` in `[clusters]`, for this user's clients in databases with a cluster.
        begin_undeclared: Option<BeginUndeclared> = NULL, Kind::Choice(BeginUndeclared::WORDS), Reload, Ours, InEffect;
        /// As `causal_reads` in `[clusters]`, for this user's clients in databases with a cluster.
        causal_reads: Option<CausalReads> = NULL, Kind::Choice(CausalReads::WORDS), Reload, Ours, InEffect;
        /// As `causal_wait_ms` in `[clusters]`, for this user's clients in databases with a cluster.
        causal_wait_ms: Option<u32> = NULL, Kind::Count(0, 60_000), Reload, Ours, InEffect;
        /// As the global `session_state`.
        session_state: Option<SessionState> = NULL, Kind::Choice(SessionState::WORDS), Reload, Ours, InEffect;
        /// As the global `session_audit_sample`, for the pools of this user.
        session_audit_sample: Option<u32> = NULL, Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum number of server connections in each pool of this user; 0 means as many as are needed.
        pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The number of additional server connections that each pool of this user may open when clients wait for long.
        reserve_pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The maximum number of server connections of this user, over all databases.
        max_user_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of this user.
        max_user_client_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// How long a statement of this user may run; 0 means without limit.
        query_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// How long this user's clients wait for a server; 0 means without limit.
        query_wait_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// How long this user's clients may be idle inside a transaction; 0 means without limit.
        idle_transaction_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// How long a transaction of this user may last; 0 means without limit.
        transaction_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// How long this user's clients may be idle outside a transaction; 0 means without limit.
        client_idle_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// As the global `log_min_duration_ms`, for the pools of this user.
        log_min_duration_ms: Option<Duration> = NULL, Kind::Milliseconds, Reload, Ours, InEffect;
    }
}
