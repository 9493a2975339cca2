//! The state of a worker that the control plane reads ([`crate::mail::Mail::SnapshotRequest`]): numbers, copied at once and in pieces of
//! bounded size, so that a request never holds up a worker for long. The control plane decides how they are shown.

use std::sync::Arc;

use pgweir_settings::PoolMode;

use crate::mail::Shutdown;
use crate::stats::Stats;
use crate::stats::continuity::Continuity;
use crate::stats::errors::ErrorCounts;
use crate::stats::histogram::Histogram;
use crate::stats::times::{Split, Times};

/// The part of a worker's state that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRequest {
    /// The worker, and at most `limit` of its pools. The order of pools is stable while none is created or removed.
    Pools {
        /// The number of pools to skip.
        skip: usize,
        /// The maximum number of pools to return.
        limit: usize,
    },
    /// The numbers of clients that have the same database, user, `application_name` and state.
    ClientCounts,
    /// The statements that took most time, and the last slow ones.
    Statements,
}

/// The requested part of a worker's state.
#[derive(Clone, Debug)]
pub enum Snapshot {
    /// The answer to [`SnapshotRequest::Pools`].
    Pools {
        /// The worker; with the first of its pools only.
        worker: Option<Box<WorkerSnapshot>>,
        /// The worker's pools.
        pools: Vec<PoolSnapshot>,
        /// The worker has further pools.
        more: bool,
    },
    /// The answer to [`SnapshotRequest::ClientCounts`].
    ClientCounts(Vec<ClientCount>),
    /// The answer to [`SnapshotRequest::Statements`].
    Statements {
        /// The statements that took most time, in descending order.
        top: Vec<StatementSnapshot>,
        /// The last statements that took at least `log_min_duration_ms`, the newest last.
        slow: Vec<SlowSnapshot>,
    },
}

/// The statistics of a statement in a pool, since it was entered in the list. Its text has no literals.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementSnapshot {
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the servers are logged in as.
    pub user: Arc<str>,
    /// The fingerprint of the text, which is the same in every process; see `pgweir_sql`.
    pub fingerprint: u64,
    /// The statement's text.
    pub text: Box<str>,
    /// The number of times that the statement was answered.
    pub calls: u64,
    /// The total time, in microseconds.
    pub total_us: u64,
    /// The part of the total time in which clients waited for a server, in microseconds.
    pub wait_us: u64,
    /// The part of the total time in which the server was held up by clients that did not read, in microseconds.
    pub client_us: u64,
    /// The longest time, in microseconds.
    pub max_us: u64,
    /// The median time, in microseconds.
    pub p50_us: f64,
    /// The 95th percentile of the time, in microseconds.
    pub p95_us: f64,
    /// The 99th percentile of the time, in microseconds.
    pub p99_us: f64,
    /// The number of rows that were returned or changed.
    pub rows: u64,
    /// The size of the answers in bytes.
    pub bytes: u64,
    /// The number of statements that failed.
    pub errors: u64,
    /// Whether the query cache keeps the statement's answers: `yes`, or why not.
    pub cache: Box<str>,
    /// The number of times that the query cache answered the statement. They are not among the calls.
    pub cache_hits: u64,
    /// The time at the server that these saved: for each, the mean time at the server at that moment, in microseconds.
    pub cache_saved_us: u64,
}

impl StatementSnapshot {
    /// Returns the total time at the server, in microseconds.
    #[must_use]
    pub fn server_us(&self) -> u64 {
        self.total_us.saturating_sub(self.wait_us).saturating_sub(self.client_us)
    }

    /// Returns the average time, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.total_us.checked_div(self.calls).unwrap_or(0)
    }
}

/// A statement that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowSnapshot {
    /// The time at which the statement was answered (µs since 1970).
    pub at_us: u64,
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the client logged in as.
    pub user: Arc<str>,
    /// The client's `application_name`.
    pub application_name: String,
    /// The statement's text without literals; `None` if statements are not followed.
    pub text: Option<Box<str>>,
    /// The parts of the statement's time.
    pub split: Split,
    /// The number of rows that were returned or changed.
    pub rows: u64,
    /// The size of the answer in bytes.
    pub bytes: u64,
    /// The statement failed.
    pub failed: bool,
}

/// The counters of a worker that belong to no pool, since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The times from accepting a client to its first ReadyForQuery.
    pub login: Histogram,
    /// The times from dialing a server to its first ReadyForQuery.
    pub connect: Histogram,
    /// The number of connections to servers that could not be opened.
    pub connect_failures: u64,
    /// The number of clients' cancel requests.
    pub cancel_requests: u64,
    /// The errors that clients were sent, by servers or by pgweir.
    pub errors: ErrorCounts,
}

/// A worker as a whole.
#[derive(Clone, Debug)]
pub struct WorkerSnapshot {
    /// The worker's counters.
    pub counters: Counters,
    /// The number of clients that use the console.
    pub consoles: u32,
    /// The number of clients that have not logged in yet.
    pub logging_in: u32,
    /// PAUSE without a database is in force.
    pub paused: bool,
    /// SUSPEND is in force.
    pub suspended: bool,
    /// A shutdown has begun.
    pub stopping: Option<Shutdown>,
    /// The number of texts of prepared statements that are kept.
    pub prepared_statements: u32,
    /// The numbers of the statements that are followed by their texts.
    pub followed: FollowedNumbers,
}

/// The numbers of the statements that are followed by their texts, for SHOW STATEMENTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedNumbers {
    /// The number of followed statements.
    pub count: u64,
    /// The memory that the statements take, in bytes.
    pub bytes: u64,
    /// The number of statements that were dropped in favour of other statements.
    pub forgotten: u64,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolSnapshot {
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the servers are logged in as.
    pub user: Arc<str>,
    /// The pool mode.
    pub mode: PoolMode,
    /// PAUSE or KILL of its database is in force.
    pub paused: bool,
    /// The number of servers that the pool may have: `pool_size` at each node that it uses; 0 is no limit.
    pub size: u32,
    /// The numbers of the pool's clients.
    pub clients: ClientNumbers,
    /// The numbers of the pool's servers.
    pub servers: ServerNumbers,
    /// The numbers of short statements that share servers.
    pub multiplexing: MultiplexNumbers,
    /// Answers that are given again.
    pub cache: CacheNumbers,
    /// The counters of session continuity.
    pub continuity: Continuity,
    /// The time that the longest waiting client has waited, in microseconds.
    pub wait_oldest_us: u64,
    /// The counters of SHOW STATS.
    pub stats: Stats,
    /// The number of errors that the pool's clients were sent.
    pub errors: u64,
    /// The times of the pool's statements; `None` if no time was added since the last snapshot.
    pub times: Option<Box<Times>>,
    /// The last failure to connect to a server; `None` if a connection has succeeded since.
    pub failure: Option<ConnectFailure>,
}

/// The reason why a pool cannot connect to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// The error text that clients get.
    pub text: String,
    /// The time until the pool may try again, in microseconds; 0 means as soon as a client needs a server.
    pub retry_in_us: u64,
}

/// The numbers of a pool's clients, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientNumbers {
    /// The number of clients that have a server.
    pub linked: u32,
    /// The number of linked clients that keep their server between their transactions.
    pub pinned: u32,
    /// The number of clients with a server that have an open transaction and have sent nothing since its last statement ended.
    pub idle_in_transaction: u32,
    /// The number of clients that wait for a server, or for their turn on one.
    pub waiting: u32,
    /// The number of waiting clients with a statement that is queued on a server after another client's.
    pub queued_behind: u32,
    /// The number of clients without a request.
    pub idle: u32,
    /// The number of the clients' cancel requests that were sent to a server.
    pub cancels_sent: u32,
    /// The number of the clients' cancel requests that wait for a connection.
    pub cancels_waiting: u32,
}

impl ClientNumbers {
    /// Returns the number of all clients; cancel requests are no clients of a pool.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.linked + self.waiting + self.idle
    }
}

/// The numbers of a pool's servers, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerNumbers {
    /// The number of servers that have a client.
    pub active: u32,
    /// The number of connections that carry a cancel request.
    pub active_cancel: u32,
    /// The number of servers that are held back because a cancel request may still reach them.
    pub being_canceled: u32,
    /// The number of free servers.
    pub idle: u32,
    /// The number of servers that have been free for longer than `server_check_delay`.
    pub used: u32,
    /// The number of servers that are being reset or checked.
    pub tested: u32,
    /// The number of servers that are being opened.
    pub login: u32,
}

impl ServerNumbers {
    /// Returns the number of all servers, without connections that carry a cancel request.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.active + self.being_canceled + self.idle + self.used + self.tested + self.login
    }
}

/// The numbers of short statements that share servers, in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultiplexNumbers {
    /// The number of servers that should be busy with short statements.
    pub target: u32,
    /// The number of servers that are busy with short statements.
    pub busy: u32,
    /// The number of times that the target was decided again.
    pub decisions: u64,
    /// The number of statements that were queued after another client's.
    pub multiplexed: u64,
    /// The number of queued statements that had to run on another server.
    pub requeued: u64,
    /// The number of statements that had an effect that their analysis had excluded.
    pub violations: u64,
}

/// The query cache, as far as a pool uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheNumbers {
    /// Answers that are kept now.
    pub answers: u64,
    /// The memory that they take.
    pub bytes: u64,
    /// Statements that were answered without a server.
    pub hits: u64,
    /// Statements of a rule of `[cache]` that needed a server.
    pub misses: u64,
    /// Answers that were kept.
    pub fills: u64,
    /// Answers that were longer than `query_cache_max_answer`.
    pub too_long: u64,
    /// Answers with an error, a notice or another message that was not asked for.
    pub unfit: u64,
    /// Kept answers that gave way to others.
    pub evicted: u64,
    /// Of the statements that were answered without a server, those whose client had waited for one.
    pub coalesced: u64,
    /// Of the misses, those whose kept answer had reached the age of its rule.
    pub expired: u64,
    /// Of the misses, those whose kept answer was from before a change by the client itself. Other clients may still get the answer.
    pub own_changes: u64,
    /// Of the misses, those whose kept answer was from before a change of definitions or rights, or of the primary.
    pub redefined: u64,
    /// Of the misses, those whose kept answer was dropped because a table had changed (`follow=wal`).
    pub changed: u64,
    /// Of `changed`, those whose answer depended on one row, which had changed, or any row of its table (`follow=wal`).
    pub row_changed: u64,
    /// Of the misses, those whose client was not told in time that no table had changed (`follow=wal`).
    pub not_fresh: u64,
    /// Answers that were not kept because a table was changed while the statement ran, or shortly before (`follow=wal`).
    pub unsettled: u64,
    /// Kept answers that were compared with a server's (`query_cache_verify`).
    pub verified: u64,
    /// Of these, those that were wrong.
    pub wrong: u64,
    /// Answers that were dropped together: by CACHE PURGE, by RECONNECT, or because the database has another server.
    pub purged: u64,
    /// The number of given answers whose age counts: hits, without those of clients that had waited.
    pub aged: u64,
    /// The sum of their ages, in microseconds.
    pub age_us: u64,
    /// The time at PostgreSQL that hits saved, in microseconds: for each hit, the statement's mean time at that moment. 0 if statements are
    /// not followed (`statement_stats_bytes = 0`).
    pub saved_us: u64,
}

/// The number of clients that have the same database, user, `application_name` and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCount {
    /// The database.
    pub database: Arc<str>,
    /// The user that the clients logged in as.
    pub user: Arc<str>,
    /// The clients' `application_name`.
    pub application_name: String,
    /// The clients' state, as in SHOW CLIENTS.
    pub state: &'static str,
    /// The number of these clients.
    pub count: u32,
}
