//! What the control plane sees of a worker when it looks ([`crate::mail::Mail::SnapshotRequest`]): numbers, copied in one go and in
//! pieces of bounded size, so that a look never holds up a worker for long. How they are shown is the looker's affair.

use std::sync::Arc;

use pgweir_settings::PoolMode;

use crate::mail::Shutdown;
use crate::stats::Stats;
use crate::stats::continuity::Continuity;
use crate::stats::errors::ErrorCounts;
use crate::stats::histogram::Histogram;
use crate::stats::times::{Split, Times};

/// What to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRequest {
    /// The worker, and its pools from a place on, at most so many. The order of pools is stable while none comes or goes.
    Pools {
        /// Pools to pass over.
        skip: usize,
        /// Pools to show.
        limit: usize,
    },
    /// Clients, counted by what they have in common.
    ClientCounts,
    /// The statements that took most time, and the last slow ones.
    Statements,
}

/// What was seen.
#[derive(Clone, Debug)]
pub enum Snapshot {
    /// See [`SnapshotRequest::Pools`].
    Pools {
        /// The worker; with the first of its pools only.
        worker: Option<Box<WorkerSnapshot>>,
        /// Its pools.
        pools: Vec<PoolSnapshot>,
        /// There are more.
        more: bool,
    },
    /// See [`SnapshotRequest::ClientCounts`].
    ClientCounts(Vec<ClientCount>),
    /// See [`SnapshotRequest::Statements`].
    Statements {
        /// The top list: most time first.
        top: Vec<StatementSnapshot>,
        /// The last ones that took at least `log_min_duration_ms`, the newest last.
        slow: Vec<SlowSnapshot>,
    },
}

/// A statement in a pool, since it is in the list. Its text has no literals.
#[derive(Clone, Debug, PartialEq)]
pub struct StatementSnapshot {
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the servers are logged in as.
    pub user: Arc<str>,
    /// Stays the same everywhere; see `pgweir_sql`.
    pub fingerprint: u64,
    /// The text.
    pub text: Box<str>,
    /// How often it was answered.
    pub calls: u64,
    /// All its time, in microseconds.
    pub total_us: u64,
    /// Of that, waiting for a server.
    pub wait_us: u64,
    /// Of that, held up by clients that did not read.
    pub client_us: u64,
    /// The longest one.
    pub max_us: u64,
    /// Half of them took at most so long.
    pub p50_us: f64,
    /// 95 of 100.
    pub p95_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// Rows that were returned or changed.
    pub rows: u64,
    /// Bytes of the answers.
    pub bytes: u64,
    /// The number of statements that failed.
    pub errors: u64,
}

impl StatementSnapshot {
    /// Its time at the server, in microseconds.
    #[must_use]
    pub fn server_us(&self) -> u64 {
        self.total_us.saturating_sub(self.wait_us).saturating_sub(self.client_us)
    }

    /// Its average time, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.total_us.checked_div(self.calls).unwrap_or(0)
    }
}

/// A statement that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowSnapshot {
    /// When it was answered: microseconds since 1970.
    pub at_us: u64,
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the client logged in as.
    pub user: Arc<str>,
    /// Its `application_name`.
    pub application_name: String,
    /// Its text without literals; `None` if statements are not followed.
    pub text: Option<Box<str>>,
    /// Where its time went.
    pub split: Split,
    /// Rows that were returned or changed.
    pub rows: u64,
    /// Bytes of its answer.
    pub bytes: u64,
    /// It failed.
    pub failed: bool,
}

/// What a worker counts that belongs to no pool. Since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// From accepting a client to its first ReadyForQuery.
    pub login: Histogram,
    /// From dialing a server to its first ReadyForQuery.
    pub connect: Histogram,
    /// Connections to servers that could not be opened.
    pub connect_failures: u64,
    /// Cancel requests of clients.
    pub cancel_requests: u64,
    /// Errors that clients were sent, by servers or by us.
    pub errors: ErrorCounts,
}

/// A worker as a whole.
#[derive(Clone, Debug)]
pub struct WorkerSnapshot {
    /// What it counts.
    pub counters: Counters,
    /// Clients at the console.
    pub consoles: u32,
    /// Clients that have not logged in yet.
    pub logging_in: u32,
    /// PAUSE without a database is in force.
    pub paused: bool,
    /// SUSPEND is in force.
    pub suspended: bool,
    /// A shutdown has begun.
    pub stopping: Option<Shutdown>,
    /// Texts of prepared statements that are kept.
    pub prepared_statements: u32,
    /// Statements that are followed by their texts.
    pub followed: FollowedNumbers,
}

/// Statements that are followed by their texts, for SHOW STATEMENTS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowedNumbers {
    /// Their number.
    pub count: u64,
    /// The memory they take.
    pub bytes: u64,
    /// The number that was given up in favour of other statements.
    pub forgotten: u64,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolSnapshot {
    /// The database as clients name it.
    pub database: Arc<str>,
    /// The user the servers are logged in as.
    pub user: Arc<str>,
    /// Its mode.
    pub mode: PoolMode,
    /// PAUSE or KILL of its database is in force.
    pub paused: bool,
    /// The number of servers that the pool may have: `pool_size` at each node that it uses; 0 is no limit.
    pub size: u32,
    /// Its clients.
    pub clients: ClientNumbers,
    /// Its servers.
    pub servers: ServerNumbers,
    /// Short statements that share servers.
    pub multiplexing: MultiplexNumbers,
    /// What session continuity did.
    pub continuity: Continuity,
    /// How long the client that waits longest has waited, in microseconds.
    pub wait_oldest_us: u64,
    /// What SHOW STATS counts.
    pub stats: Stats,
    /// Errors that its clients were sent.
    pub errors: u64,
    /// How long its statements took; `None` if nothing was added since the last look.
    pub times: Option<Box<Times>>,
    /// The last connection to a server failed, and none succeeded since.
    pub failure: Option<ConnectFailure>,
}

/// Why a pool cannot connect to its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectFailure {
    /// What clients are told.
    pub text: String,
    /// When the pool may try again, in microseconds from now; 0: as soon as a client needs a server.
    pub retry_in_us: u64,
}

/// Clients of a pool, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientNumbers {
    /// Have a server.
    pub linked: u32,
    /// Of these, keep it between their transactions.
    pub pinned: u32,
    /// Of these, have a transaction open and have sent nothing since its last statement ended.
    pub idle_in_transaction: u32,
    /// Wait for a server, or for their turn on one.
    pub waiting: u32,
    /// Of these, clients with a statement that is queued on a server behind another client's.
    pub queued_behind: u32,
    /// Ask for nothing.
    pub idle: u32,
    /// Their cancel requests that were sent on.
    pub cancels_sent: u32,
    /// Their cancel requests that wait for a connection.
    pub cancels_waiting: u32,
}

impl ClientNumbers {
    /// All of them; requests to cancel are no clients of a pool.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.linked + self.waiting + self.idle
    }
}

/// Servers of a pool, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerNumbers {
    /// Have a client.
    pub active: u32,
    /// Connections that carry a cancel request.
    pub active_cancel: u32,
    /// Held because a cancel request may still reach them.
    pub being_canceled: u32,
    /// Free.
    pub idle: u32,
    /// Free for longer than `server_check_delay`.
    pub used: u32,
    /// Being reset or checked.
    pub tested: u32,
    /// Being opened.
    pub login: u32,
}

impl ServerNumbers {
    /// All of them, without those that carry a cancel request.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.active + self.being_canceled + self.idle + self.used + self.tested + self.login
    }
}

/// Short statements that share servers, in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultiplexNumbers {
    /// The number of servers that are to be busy with short statements.
    pub target: u32,
    /// The number of servers that are busy with them.
    pub busy: u32,
    /// How often the target was looked at again.
    pub decisions: u64,
    /// Statements that were queued behind another client's.
    pub multiplexed: u64,
    /// The number of these that had to run on another server.
    pub requeued: u64,
    /// Statements that did what they were certain not to do.
    pub violations: u64,
}

/// So many clients are alike in this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCount {
    /// The database.
    pub database: Arc<str>,
    /// The user they logged in as.
    pub user: Arc<str>,
    /// Their `application_name`.
    pub application_name: String,
    /// As in SHOW CLIENTS.
    pub state: &'static str,
    /// Their number.
    pub count: u32,
}
