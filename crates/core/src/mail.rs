//! Messages between workers, and between a worker and the control plane. Typed, never shared state.

use std::sync::Arc;
use std::time::Duration;

use pgweir_auth::{Access, UserList};
use pgweir_settings::Config;

use crate::cluster::source::SourceReport;
use crate::context::Suspicion;
use crate::driver::WorkerId;
use crate::ids::UnpooledId;
use crate::stats::Window;
use crate::stats::snapshot::{Snapshot, SnapshotRequest};
use crate::stats::trace::TracedStatement;
use crate::worker::console::command::{Command, Outcome};
use crate::worker::login::inquiry::{Answer, Inquiry, Lookup};

/// Everything a machine runs by that comes from files: replaced as a whole by RELOAD.
#[derive(Clone)]
pub struct Rules {
    /// The parsed configuration.
    pub config: Arc<Config>,
    /// The users of `auth_file`.
    pub users: Arc<UserList>,
    /// What `auth_type = hba` goes by.
    pub access: Arc<Access>,
    /// Counts up whenever the TLS configuration towards servers changed: pools then recycle their servers.
    pub server_tls_epoch: u64,
}

/// How the process is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// At once (SIGQUIT, SHUTDOWN).
    Now,
    /// When all servers are released (SIGINT, SHUTDOWN WAIT_FOR_SERVERS).
    WaitForServers,
    /// When everything has been handed to a successor (`-R`).
    HandOver,
    /// When all clients have left (SIGTERM, SHUTDOWN WAIT_FOR_CLIENTS).
    WaitForClients,
}

/// By which limit that spans pools servers are scarce.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scarce {
    /// `max_db_connections`, of the database of this name.
    Database(Arc<str>),
    /// The same at a standby of its cluster: the database and the node.
    Standby(Arc<str>, Arc<str>),
    /// `max_user_connections`, of this server user.
    User(Arc<str>),
}

/// A message to a worker's machine.
pub enum Mail {
    /// New configuration (RELOAD, SIGHUP or SET).
    Rules(Rules),
    /// A console command, to be carried out by this worker for its own pools; [`Mail::Outcome`] goes back.
    Command {
        /// The worker with the console client that asked.
        from: WorkerId,
        /// That worker's number for the question.
        ticket: u64,
        /// What to do.
        command: Command,
    },
    /// A worker's, or the control plane's, answer to a console command.
    Outcome {
        /// As in [`Mail::Command`].
        ticket: u64,
        /// What came of it.
        outcome: Outcome,
    },
    /// A CancelRequest for a client that is not on the worker that received it. That worker has closed the
    /// requesting connection already, as PostgreSQL does, without saying whether it found anything.
    Cancel {
        /// The key as the client sent it: process id, then secret.
        key: Vec<u8>,
    },
    /// A login needs to know a user's secret, and the pool that can tell is the receiver's.
    LookUp(Box<Lookup>),
    /// The client that a [`Mail::LookUp`] was for has left.
    ForgetLookUp {
        /// As in the lookup.
        from: WorkerId,
        /// As in the lookup.
        client: UnpooledId,
        /// As in the lookup.
        database: Arc<str>,
        /// As in the lookup.
        auth_user: Arc<str>,
    },
    /// What came of a question that a login asked.
    Answered {
        /// The client that logs in.
        client: UnpooledId,
        /// The answer.
        answer: Answer,
    },
    /// A worker's pool needs a server and a limit that spans pools is reached: an idle one is to be closed by one of the
    /// others. It goes from worker to worker until one has done so, or it is back.
    Evict {
        /// The worker that asks; told with [`Mail::Room`] when a server is free later.
        from: WorkerId,
        /// The limit that is reached.
        of: Scarce,
        /// One was closed: this is the answer.
        done: bool,
    },
    /// An evicted server is gone: starving pools may try again.
    Room,
    /// A client of another worker has dropped roles.
    RolesDropped,
    /// SIGUSR2: undo PAUSE or SUSPEND, whichever is in force. The first worker says in the log which it was.
    Continue,
    /// Stop (signal, or SHUTDOWN on any console).
    Shutdown(Shutdown),
    /// The process that this one has replaced hands over nothing more.
    AllArrived,
    /// The process that took our place is gone before everything was handed over: the clients that are here
    /// are served here.
    SuccessorGone,
    /// The view of a cluster has changed: [`Shared::views`](crate::Shared) has the new one.
    Views,
    /// The source of a cluster has answered, or could not be asked.
    Source(Arc<SourceReport>),
    /// What came of [`Question::MeasureLag`].
    Lag {
        /// The cluster.
        cluster: Arc<str>,
        /// The standby.
        node: Arc<str>,
        /// Its lag, or why it is not known.
        told: Result<Duration, String>,
    },
    /// A switchover drains: how many transactions are open at the sender. The receiver watches the cluster.
    OpenTransactions {
        /// The cluster.
        cluster: Arc<str>,
        /// The switchover's number.
        number: u64,
        /// The worker that counts.
        from: WorkerId,
        /// Their number.
        open: u32,
    },
    /// Patroni has answered [`Question::Switchover`].
    Switched {
        /// The cluster.
        cluster: Arc<str>,
        /// As in the question.
        number: u64,
        /// Done, or why not.
        result: Result<(), String>,
    },
    /// A connection to the primary of a cluster that the receiver watches failed or ended.
    Suspect(Suspicion),
    /// The control plane looks; [`Question::Seen`] answers.
    SnapshotRequest {
        /// The control plane's number for it.
        ticket: u64,
        /// At what.
        look: SnapshotRequest,
    },
    /// The control plane gives a console command in an administrator's name, as if it was typed here;
    /// [`Question::Operated`] answers when it is done everywhere.
    Operate {
        /// The control plane's number for it.
        ticket: u64,
        /// What to do.
        command: Command,
    },
}

/// A run of `lag_command`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LagRequest {
    /// The cluster.
    pub cluster: Arc<str>,
    /// The standby.
    pub node: Arc<str>,
    /// Its host.
    pub host: Arc<str>,
    /// Its port.
    pub port: u16,
    /// `lag_command`
    pub command: String,
    /// `lag_command_timeout`
    pub limit: Duration,
}

/// What came of [`Mail::Operate`]: the rows of a SHOW (none for other commands), or what an administrator at the console
/// would be told.
pub type Operated = Result<Vec<Vec<Option<String>>>, String>;

/// What the machine asks of the control plane.
#[derive(Debug)]
pub enum Question {
    /// Read the files again: [`Mail::Rules`] for every worker if they are good, then [`Mail::Outcome`].
    Reload {
        /// The worker that gets the outcome.
        from: WorkerId,
        /// See [`Mail::Command`].
        ticket: u64,
    },
    /// SET on the console: [`Mail::Rules`] for every worker if it is good, then [`Mail::Outcome`].
    Set {
        /// The worker that gets the outcome.
        from: WorkerId,
        /// See [`Mail::Command`].
        ticket: u64,
        /// The setting.
        key: String,
        /// Its new value, as text.
        value: String,
    },
    /// A login has to know something: [`Mail::Answered`] to the worker that asked, when it is known.
    Login(Box<Inquiry>),
    /// Patroni is to make another node the primary: [`Mail::Switched`] when it has, or has not.
    Switchover {
        /// The cluster.
        cluster: Arc<str>,
        /// The switchover's number.
        number: u64,
        /// The primary.
        from: Arc<str>,
        /// The node that is to be the primary.
        to: Arc<str>,
    },
    /// `lag_command` is to be run for a standby: [`Mail::Lag`] when it has ended, or was ended.
    MeasureLag(Box<LagRequest>),
    /// A cluster's source is to be asked more often while there is no primary that takes work, or as usual.
    HurrySource {
        /// The cluster.
        cluster: Arc<str>,
        /// More often.
        hurries: bool,
    },
    /// SHUTDOWN was typed on a console: all workers are to be told.
    Shutdown(Shutdown),
    /// This worker has nothing left that a shutdown waits for.
    Drained(WorkerId),
    /// A `stats_period` is over on this worker: what happened in it, for the line of `log_stats`.
    PeriodOver(Window),
    /// No question: a statement that is traced was answered.
    Traced(Box<TracedStatement>),
    /// No question but an answer: to [`Mail::SnapshotRequest`].
    Seen {
        /// The worker that gives this view.
        worker: WorkerId,
        /// As in the mail.
        ticket: u64,
        /// What was seen.
        snapshot: Snapshot,
    },
    /// No question but an answer: to [`Mail::Operate`].
    Operated {
        /// As in the mail.
        ticket: u64,
        /// What came of it.
        result: Operated,
    },
}
