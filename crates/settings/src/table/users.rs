//! The keys of `[users]`: `name = key=value ...`.

use super::COUNT_MAX;
use std::time::Duration;

use super::{Kind, settings};
use crate::{Balance, BeginUndeclared, CausalReads, CommitOutcome, PoolMode, Route, SessionState};

settings! {
    /// Settings for one user; they override those of a database and global ones.
    struct UserOptions, USER_ROWS;
    group "Users" {
        /// The event after which a server is released, for the pools of this user.
        pool_mode: Option<PoolMode> = NULL, Kind::Choice(PoolMode::WORDS), Reload, PgBouncer, InEffect;
        /// Overrides `route` of `[clusters]`, for this user's clients in databases with a cluster.
        route: Option<Route> = NULL, Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// Overrides `balance` of `[clusters]`, for this user's clients.
        balance: Option<Balance> = NULL, Kind::Choice(Balance::WORDS), Reload, Ours, InEffect;
        /// Overrides `read_functions` of `[clusters]`, for this user's clients.
        read_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `write_functions` of `[clusters]`, for this user's clients.
        write_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `primary_names` of `[clusters]`, for this user's clients.
        primary_names: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Overrides `commit_outcome` of `[clusters]`, for this user's clients in databases with a cluster.
        commit_outcome: Option<CommitOutcome> = NULL, Kind::Choice(CommitOutcome::WORDS), Reload, Ours, InEffect;
        /// Overrides `begin_undeclared` of `[clusters]`, for this user's clients in databases with a cluster.
        begin_undeclared: Option<BeginUndeclared> = NULL, Kind::Choice(BeginUndeclared::WORDS), Reload, Ours, InEffect;
        /// Overrides `causal_reads` of `[clusters]`, for this user's clients in databases with a cluster.
        causal_reads: Option<CausalReads> = NULL, Kind::Choice(CausalReads::WORDS), Reload, Ours, InEffect;
        /// Overrides `causal_wait_ms` of `[clusters]`, for this user's clients in databases with a cluster.
        causal_wait_ms: Option<u32> = NULL, Kind::Count(0, 60_000), Reload, Ours, InEffect;
        /// Overrides the global `session_state`, for the pools of this user.
        session_state: Option<SessionState> = NULL, Kind::Choice(SessionState::WORDS), Reload, Ours, InEffect;
        /// Overrides the global `session_audit_sample`, for the pools of this user.
        session_audit_sample: Option<u32> = NULL, Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum number of server connections in each pool of this user; 0 means as many as are needed.
        pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The number of additional server connections that each pool of this user may open when clients wait for long.
        reserve_pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
        /// The maximum number of server connections of this user, over all databases.
        max_user_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// The maximum number of clients of this user.
        max_user_client_connections: Option<u32> = NULL, Kind::OwnLimit, Reload, PgBouncer, InEffect;
        /// The time that a statement of this user may run; 0 means without limit.
        query_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// The time that this user's clients wait for a server; 0 means without limit.
        query_wait_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// The time that this user's clients may be idle inside a transaction; 0 means without limit.
        idle_transaction_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// The time that a transaction of this user may last; 0 means without limit.
        transaction_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// The time that this user's clients may be idle outside a transaction; 0 means without limit.
        client_idle_timeout: Option<Duration> = NULL, Kind::OwnSeconds, Reload, PgBouncer, InEffect;
        /// Overrides the global `log_min_duration_ms`, for the pools of this user.
        log_min_duration_ms: Option<Duration> = NULL, Kind::Milliseconds, Reload, Ours, InEffect;
    }
}
