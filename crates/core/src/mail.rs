//! Messages between workers, and between a worker and the control plane. Typed, never shared state.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pgweir_auth::{Access, UserList};
use pgweir_settings::Config;

use crate::cluster::source::SourceReport;
use crate::context::Suspicion;
use crate::driver::WorkerId;
use crate::ids::UnpooledId;
use crate::pool::cache::wal::News;
use crate::shared::places::{BackendsSeen, LimitsSeen};
use crate::stats::Window;
use crate::stats::snapshot::{Snapshot, SnapshotRequest};
use crate::stats::trace::TracedStatement;
use crate::worker::console::command::{Command, Outcome};
use crate::worker::login::inquiry::{Answer, Inquiry, Lookup};

/// The configuration of a machine that comes from files; RELOAD replaces it as a whole.
#[derive(Clone)]
pub struct Rules {
    /// The parsed configuration.
    pub config: Arc<Config>,
    /// The users of `auth_file`.
    pub users: Arc<UserList>,
    /// The rules of `auth_type = hba`.
    pub access: Arc<Access>,
    /// Counts up whenever the TLS configuration towards servers changed: pools then recycle their servers.
    pub server_tls_epoch: u64,
}

/// The kind of a shutdown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// The process ends at once (SIGQUIT, SHUTDOWN).
    Now,
    /// The process ends when all servers are released (SIGINT, SHUTDOWN WAIT_FOR_SERVERS).
    WaitForServers,
    /// The process ends when everything has been handed to a successor (`-R`).
    HandOver,
    /// The process ends when all clients have left (SIGTERM, SHUTDOWN WAIT_FOR_CLIENTS).
    WaitForClients,
}

/// A limit on server connections that spans pools.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scarce {
    /// The limit `max_db_connections` of the database of this name.
    Database(Arc<str>),
    /// The limit `max_db_connections` at a standby of the database's cluster: the database and the node.
    Standby(Arc<str>, Arc<str>),
    /// The limit `max_user_connections` of this server user.
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
        /// The number that the worker gave to the question.
        ticket: u64,
        /// The command.
        command: Command,
    },
    /// A worker's, or the control plane's, answer to a console command.
    Outcome {
        /// The receiver's number for the question, from [`Mail::Command`].
        ticket: u64,
        /// The outcome of the command.
        outcome: Outcome,
    },
    /// A CancelRequest for a client that is not on the worker that received it.
    Cancel {
        /// The key as the client sent it: process id, then secret.
        key: Vec<u8>,
        /// The worker and the connection that the request came by. [`Mail::CancelOver`] goes back when the request is over here. `None`: the
        /// request came to another process, which has closed the connection already.
        from: Option<(WorkerId, UnpooledId)>,
    },
    /// A CancelRequest of [`Mail::Cancel`] is over at one of the workers that were asked: it hits nothing more there.
    CancelOver {
        /// The connection that the request came by.
        requester: UnpooledId,
    },
    /// A login needs to know a user's secret, and the pool that can tell is the receiver's.
    LookUp(Box<Lookup>),
    /// The client that a [`Mail::LookUp`] was for has left.
    ForgetLookUp {
        /// The worker of the client, as in the lookup.
        from: WorkerId,
        /// The client, as in the lookup.
        client: UnpooledId,
        /// The database of the pool that was asked, as in the lookup.
        database: Arc<str>,
        /// The user of that pool, as in the lookup.
        auth_user: Arc<str>,
    },
    /// The answer to a question of a login.
    Answered {
        /// The client that logs in.
        client: UnpooledId,
        /// The answer.
        answer: Answer,
    },
    /// A worker's pool needs a server and a limit that spans pools is reached: another worker is to close an idle server. The message goes
    /// from worker to worker until one has done so, or until it is back.
    Evict {
        /// The worker that asks; told with [`Mail::Room`] when a server is free later.
        from: WorkerId,
        /// The limit that is reached.
        of: Scarce,
        /// A server was closed: this message is the answer.
        done: bool,
    },
    /// An evicted server is gone: starving pools may try again.
    Room,
    /// The parts of shared limits that this process has were changed. Free servers above a part are closed, and pools below one may open servers.
    Parts,
    /// The control plane must know which server processes PostgreSQL has that count towards this limit: [`Question::Backends`] follows from
    /// each pool that counts towards the limit and gets a free server.
    LookAtBackends {
        /// The control plane's number for the request.
        number: u64,
        /// The limit.
        of: Scarce,
    },
    /// A virtual address that has left the process, or is about to: clients that came by it are ended. [`Shared::addresses_left`]
    /// grows when that is done.
    ///
    /// [`Shared::addresses_left`]: crate::Shared::addresses_left
    AddressLeft(IpAddr),
    /// A client of another worker has dropped roles.
    RolesDropped,
    /// SIGUSR2: undo PAUSE or SUSPEND, whichever is in force. The first worker says in the log which it was.
    Continue,
    /// The process must end (signal, or SHUTDOWN on any console).
    Shutdown(Shutdown),
    /// The process that this one has replaced hands over nothing more.
    AllArrived,
    /// The successor process is gone before everything was handed over: the clients that are still here are served here.
    SuccessorGone,
    /// The view of a cluster has changed: [`Shared::views`](crate::Shared) has the new one.
    Views,
    /// The source of a cluster has answered, or could not be asked.
    Source(Arc<SourceReport>),
    /// The answer to [`Question::MeasureLag`].
    Lag {
        /// The cluster.
        cluster: Arc<str>,
        /// The standby.
        node: Arc<str>,
        /// The standby's lag, or the reason why it is not known.
        told: Result<Duration, String>,
    },
    /// The number of transactions that are open at the sender while a switchover drains. The receiver watches the cluster.
    OpenTransactions {
        /// The cluster.
        cluster: Arc<str>,
        /// The switchover's number.
        number: u64,
        /// The worker that counts.
        from: WorkerId,
        /// The number of open transactions.
        open: u32,
    },
    /// Patroni has answered [`Question::Switchover`], or the program of [`Question::Promote`] has ended.
    Switched {
        /// The cluster.
        cluster: Arc<str>,
        /// The switchover's number, as in the question.
        number: u64,
        /// The result; the error is the reason why Patroni or the program did not switch over.
        result: Result<(), String>,
    },
    /// A connection to the primary of a cluster that the receiver watches failed or ended.
    Suspect(Suspicion),
    /// News of a database that the sender follows, in order.
    Followed(FollowedNews),
    /// Clients of the sender ask for answers of a database that the receiver follows.
    WantProbe {
        /// The name of the database.
        database: Arc<str>,
        /// Whether the next probe is waited for: by a client, or to judge an answer that differs from a server's.
        is_awaited: bool,
    },
    /// A server of this database, which the receiver follows, is not the PostgreSQL server whose changes are followed.
    OtherNode(Arc<str>),
    /// The control plane requests a part of the worker's state; [`Question::Seen`] answers.
    SnapshotRequest {
        /// The control plane's number for it.
        ticket: u64,
        /// The requested part.
        look: SnapshotRequest,
    },
    /// The control plane gives a console command in an administrator's name, as if it was typed here;
    /// [`Question::Operated`] answers when it is done everywhere.
    Operate {
        /// The control plane's number for it.
        ticket: u64,
        /// The command.
        command: Command,
    },
}

/// News of a database whose changes are followed for the query cache, in order.
pub struct FollowedNews {
    pub(crate) database: Arc<str>,
    pub(crate) news: Arc<[News]>,
}

/// A run of `lag_command`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LagRequest {
    /// The cluster.
    pub cluster: Arc<str>,
    /// The standby.
    pub node: Arc<str>,
    /// The standby's host.
    pub host: Arc<str>,
    /// The standby's port.
    pub port: u16,
    /// The value of `lag_command`.
    pub command: String,
    /// The value of `lag_command_timeout`.
    pub limit: Duration,
}

/// A node of a cluster, and the address of its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePlace {
    /// The node's name.
    pub name: Arc<str>,
    /// The node's host; empty if the node has left the cluster.
    pub host: Arc<str>,
    /// The node's port; 0 if the node has left the cluster.
    pub port: u16,
}

/// A run of `promote_command`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromoteRequest {
    /// The cluster.
    pub cluster: Arc<str>,
    /// The switchover's number.
    pub number: u64,
    /// The node that must become the primary.
    pub to: NodePlace,
    /// The primary, or the last one if the cluster has lost it.
    pub from: NodePlace,
    /// The value of `promote_command`.
    pub command: String,
    /// The value of `promote_command_timeout`.
    pub limit: Duration,
}

/// The outcome of [`Mail::Operate`]: the rows of a SHOW (none for other commands), or the error that an administrator at the console would
/// get.
pub type Operated = Result<Vec<Vec<Option<String>>>, String>;

/// A question or report of the machine to the control plane.
#[derive(Debug)]
pub enum Question {
    /// The control plane must read the files again: [`Mail::Rules`] for every worker if they are good, then [`Mail::Outcome`].
    Reload {
        /// The worker that gets the outcome.
        from: WorkerId,
        /// The number that the worker gave to the question.
        ticket: u64,
    },
    /// SET on the console: [`Mail::Rules`] for every worker if it is good, then [`Mail::Outcome`].
    Set {
        /// The worker that gets the outcome.
        from: WorkerId,
        /// The number that the worker gave to the question.
        ticket: u64,
        /// The setting.
        key: String,
        /// The setting's new value, as text.
        value: String,
    },
    /// VIP TAKE FORCE on the console: [`Mail::Outcome`] follows when this pooler has the address, or cannot take it.
    TakeVip {
        /// The worker that gets the outcome.
        from: WorkerId,
        /// The number that the worker gave to the question.
        ticket: u64,
    },
    /// A login has a question: [`Mail::Answered`] goes to the worker that asked when the answer is known.
    Login(Box<Inquiry>),
    /// The control plane must ask Patroni to make another node the primary: [`Mail::Switched`] has the result.
    Switchover {
        /// The cluster.
        cluster: Arc<str>,
        /// The switchover's number.
        number: u64,
        /// The primary.
        from: Arc<str>,
        /// The node that is to become the primary.
        to: Arc<str>,
    },
    /// The control plane must run `promote_command` for a switchover: [`Mail::Switched`] follows when it has ended, or was ended.
    Promote(Box<PromoteRequest>),
    /// The control plane must run `lag_command` for a standby: [`Mail::Lag`] follows when it has ended, or was ended.
    MeasureLag(Box<LagRequest>),
    /// The control plane must query a cluster's source more often while there is no primary that takes work, or at the usual rate.
    HurrySource {
        /// The cluster.
        cluster: Arc<str>,
        /// The source is queried more often; `false`: at the usual rate.
        hurries: bool,
    },
    /// A client of the console has given SHUTDOWN: the control plane must tell all workers.
    Shutdown(Shutdown),
    /// The worker has no client or server left for which a shutdown waits.
    Drained(WorkerId),
    /// The counters of a `stats_period` that is over on this worker, for the line of `log_stats`.
    PeriodOver(Window),
    /// The use of shared limits by the worker's pools, at each round of maintenance. No answer is expected.
    Limits(LimitsSeen),
    /// The answer to [`Mail::LookAtBackends`].
    Backends(Box<BackendsSeen>),
    /// A traced statement was answered. No answer is expected.
    Traced(Box<TracedStatement>),
    /// The answer to [`Mail::SnapshotRequest`].
    Seen {
        /// The worker whose state this is.
        worker: WorkerId,
        /// The control plane's number for the request.
        ticket: u64,
        /// The requested part of the state.
        snapshot: Snapshot,
    },
    /// The answer to [`Mail::Operate`].
    Operated {
        /// The control plane's number for the command.
        ticket: u64,
        /// The outcome of the command.
        result: Operated,
    },
}
