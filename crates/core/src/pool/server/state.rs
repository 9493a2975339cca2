//! A connection to PostgreSQL: its states, each with what only that state needs. Moves are made by `moves/server.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use pgweir_auth::Prover;
use pgweir_wire::backend::TxStatus;

use crate::cluster::Term;
use crate::driver::{ConnId, Endpoint, Level, Now};
use crate::ids::ClientId;
use crate::pool::cache::capture::Capture;
use crate::pool::cache::wal::node::Node;
use crate::pool::cluster::in_flight::InFlight;
use crate::pool::multiplex::pipelined::Pipelined;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::statements::ServerStatements;
use crate::pool::relay::attempt::Attempt;
use crate::pool::relay::ledger::{Ledger, Owner, Purpose};
use crate::pool::sequences::state::Users;
use crate::pool::server::abandoned::Abandoned;
use crate::pool::server::asked::{AskedServer, Replies};
use crate::pool::server::following::Stream;
use crate::pool::server::following::analysis::AnalysisWanted;
use crate::pool::session::content::Session;
use crate::pool::session::known_sets::PlainSet;
use crate::pool::session::params::Params;
use crate::pool::session::pins::Reasons;
use crate::pool::startup::checked::Opened;
use crate::pool::{Branch, PoolState, ServerKind};
use crate::stats::statements::{Followed, Recent, Running};
use crate::stats::times::Split;
use crate::stats::trace::Traced;
use crate::worker::login::inquiry::{Answer, Lookup};

/// A connection to PostgreSQL.
pub(crate) struct Server {
    pub(crate) conn: ConnId,
    pub(crate) state: ServerState,
    pub(crate) ledger: Ledger,
    pub(crate) tx: TxStatus,
    /// The values of the tracked parameters that the server reported last.
    pub(crate) params: Arc<Params>,
    /// The rest of the session's contents, for the client that had the server last.
    pub(crate) session: Arc<Session>,
    /// The clients that may have drawn values of sequences that the server holds.
    pub(crate) users: Users,
    /// The parameters that the server was opened with for a client in session pooling.
    pub(crate) opened: Opened,
    /// The client in session pooling that the server is opened for, or that was told of it and has not sent a statement yet.
    pub(crate) kept_for: Option<ClientId>,
    pub(crate) statements: ServerStatements,
    /// The exchange that the client sent first after the server owed nothing, as far as it may have to be sent again.
    pub(crate) attempt: Attempt,
    pub(crate) incoming: Incoming,
    /// The work of the client that runs on this server, in a pool with a cluster.
    pub(crate) in_flight: Option<Box<InFlight>>,
    /// The clients that are queued after the server's client.
    pub(crate) pipelined: Pipelined,
    /// The place of the server: its address, and its identity there.
    pub(crate) at: Reached,
    /// The present work of the server, for the statistics and timeouts.
    pub(crate) work: Work,
    /// The node of the pool that the server belongs to.
    pub(crate) branch: Branch,
    /// The time of the last activity on the connection (monotonic, µs).
    pub(crate) active_us: u64,
    /// The number of cancel requests that are on their way to the server: no other client may have it before they are over.
    pub(crate) cancels: u32,
    /// The reason for closing the server when its present work is over. `None` if it stays.
    pub(crate) retiring: Option<Retiring>,
    pub(crate) ending: Ending,
    pub(crate) connection: ConnectionState,
    /// The work that a client that is gone has left running on the server, if any.
    pub(crate) abandoned: Option<Box<Abandoned>>,
    pub(crate) serves: Serves,
    /// Whether the client may have reset startup values, which must then be put back.
    pub(crate) resets: bool,
}

/// The ParameterDescription at the front of the answer that a server is giving, if that describes a statement which may be described again.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Description {
    /// The answer has no ParameterDescription so far.
    #[default]
    Nothing,
    /// The client has received the ParameterDescription.
    Shown,
    /// An error follows this message. If the statement is described again, the client receives neither.
    Held(Box<[u8]>),
}

/// The bytes that come from a server.
#[derive(Default)]
pub(crate) struct Incoming {
    /// The first part of a message whose rest has not come yet.
    pub(crate) inbox: Vec<u8>,
    /// The rest of a message that is passed on as it comes.
    pub(crate) streaming: Option<Streaming>,
    /// The time since which the server is not read because its client does not keep up (monotonic, µs). `None` while it is read.
    pub(crate) paused_us: Option<u64>,
    /// The answer to the client's last group, while it may be kept.
    pub(crate) capture: Option<Box<Capture>>,
    /// The statement that the server is to be asked about when its client has left it.
    pub(crate) analysis: Option<Box<AnalysisWanted>>,
    /// The parameter types that the server has told of the statement that it is about to describe, four bytes each. Empty unless pgweir
    /// looks at the description.
    pub(crate) described_params: Box<[u8]>,
    /// The ParameterDescription of a statement whose description is not complete.
    pub(crate) description: Description,
}

/// The place of a server.
pub(crate) struct Reached {
    /// The number in SHOW's column `id`.
    pub(crate) serial: u64,
    pub(crate) endpoint: Endpoint,
    /// The address that the server was reached at; `None` before that, and for a unix socket.
    pub(crate) remote: Option<SocketAddr>,
    /// The address of pgweir's end, as `ip:port`; "" for a unix socket.
    pub(crate) local: String,
    /// The description of the TLS session; "" without one.
    pub(crate) tls: String,
    /// The time at which the server was dialed.
    pub(crate) since: Now,
    /// The time at which a standby was logged in, as [`Replayed`](crate::cluster::replayed::Replayed) counts.
    pub(crate) logged_in_us: u64,
    /// The major version that the server reported at login; 0 if it is not known.
    pub(crate) version: u16,
    /// The PostgreSQL server and database at the other end, as the server has told for the query cache. `None` if the server was not asked, or if
    /// its answers cannot be followed.
    pub(crate) node: Option<Node>,
    /// The process number for cancel requests, as PostgreSQL gave it.
    pub(crate) pid: u32,
    pub(crate) key: Box<[u8]>,
    /// The NoticeResponse messages of the login, for the server's first client.
    pub(crate) notices: Vec<u8>,
    /// The term of the node that the server was opened to, in a pool with a cluster; after that node's promotion, the term of the new
    /// primary.
    pub(crate) term: Option<Term>,
    /// Whether the server was opened to a standby that was promoted since: its transactions may change something.
    pub(crate) is_promoted: bool,
}

/// The present work of a server.
#[derive(Default)]
pub(crate) struct Work {
    /// The time at which the current statement (or pipeline) began (monotonic, µs); 0 when none runs.
    pub(crate) query_us: u64,
    /// The time at which the current transaction began (monotonic, µs); 0 when none is open.
    pub(crate) xact_us: u64,
    /// The time that the client had waited for the server (µs), until its first statement is accounted for.
    pub(crate) waited_us: u64,
    /// The time for which the server was not read since its current statement began (µs), without a pause that still lasts.
    pub(crate) stalled_us: u64,
    /// The changes of the database's objects that the transaction has made.
    pub(crate) changes: SchemaChanges,
    /// Whether the server has ever had a client.
    pub(crate) used: bool,
    /// The number of bytes that the server has sent in its life.
    pub(crate) received_bytes: u64,
    /// The identity and the effects of the current statement.
    pub(crate) running: Running,
    /// The statements that the server answered last, and the number of transactions since its session was looked at.
    pub(crate) recent: Recent,
    pub(crate) unseen: u32,
    /// The statements that the client prepared on the server by itself: only for the statistics.
    pub(crate) followed: Followed,
    /// The statement that is traced, if any.
    pub(crate) traced: Option<Box<Traced>>,
}

/// The changes of the database's objects that a transaction has made, as a set.
#[derive(Clone, Copy, Default)]
pub(crate) struct SchemaChanges(u8);

impl SchemaChanges {
    /// The transaction has changed the results of statements.
    pub(crate) const STATEMENTS: SchemaChanges = SchemaChanges(1);
    /// The transaction has made routines or triggers.
    pub(crate) const ROUTINES: SchemaChanges = SchemaChanges(2);
    /// The transaction has dropped roles.
    pub(crate) const ROLES: SchemaChanges = SchemaChanges(4);

    /// The transaction has changed an object or a right, so that the same statement may have another answer.
    pub(crate) const ANSWERS: SchemaChanges = SchemaChanges(8);

    /// The transaction is prepared: another session may commit it later.
    pub(crate) const IN_PREPARED: SchemaChanges = SchemaChanges(16);

    /// The client has sent a text that may make a table by a query: the tag of a SELECT tells a change then.
    pub(crate) const BY_QUERY: SchemaChanges = SchemaChanges(32);

    /// The changes as bits.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// Returns the changes of these bits, which [`SchemaChanges::bits`] has given.
    pub(crate) fn of_bits(bits: u8) -> SchemaChanges {
        SchemaChanges(bits)
    }

    /// Adds the other changes to the set if `is_so` is true.
    pub(crate) fn add(&mut self, other: SchemaChanges, is_so: bool) {
        self.0 |= if is_so { other.0 } else { 0 };
    }

    /// Whether the set has any of these changes.
    pub(crate) fn has(self, other: SchemaChanges) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The progress of a server towards its end.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ending {
    /// The server does not end.
    #[default]
    No,
    /// The server sent a FATAL error to its client, which needs no second one.
    SaidFatal,
    /// The end of the server is being handled: a client that leaves it now need not clean up.
    Lost,
}

/// The user of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// The pool's clients.
    Clients,
    /// One replication client. The server ends with it.
    ReplicationClient,
    /// The watch of a cluster's node.
    Watch,
    /// The replication stream with the changes of a database.
    Stream,
    /// The questions about a database whose changes are followed.
    Monitor,
}

/// The state of the connection to PostgreSQL, as the driver has told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState {
    /// The connection is open, or being opened.
    Open,
    /// PostgreSQL has closed the connection: its process has ended.
    ClosedByServer,
    /// The connection broke: PostgreSQL's process may still run.
    Broken,
}

/// The client that gets the rest of a message.
#[derive(Clone, Copy)]
pub(crate) struct Streaming {
    pub(crate) left: usize,
    /// The client that gets the bytes; `None` if no client wants them.
    pub(crate) to: Option<ClientId>,
}

/// The life of a server connection.
pub(crate) enum ServerState {
    /// The connection is being opened.
    Dialing(Beginning),
    /// SSLRequest was sent, or the handshake runs.
    SecuringTls(Beginning),
    /// The startup packet was sent.
    LoggingIn(Box<LoggingIn>),
    /// The server is free.
    Idle,
    /// The server is linked to a client.
    Linked(LinkedServer),
    /// The client is gone. The answer to it is dropped, and then the clients queued after it have their turn.
    Draining,
    /// The server has no client, and answers a question of pgweir's.
    Asked(AskedServer),
    /// `auth_query` runs, for a client that logs in.
    Inquiring(Box<Inquiring>),
    /// The server was released, but a cancel request may still reach it.
    HeldForCancel,
    /// The server listens for its pool's clients.
    Listening,
    /// The server is asked for the state of its node or its database, again and again, or has a replication stream.
    Watching(Box<Watching>),
}

/// The answer of a node or a database that is watched.
#[derive(Default)]
pub(crate) struct Watching {
    pub(crate) answer: Replies,
    /// Whether the answer is complete.
    pub(crate) is_answered: bool,
    /// The replication stream; `None` before the server was asked for one.
    pub(crate) stream: Option<Box<Stream>>,
}

/// A connection that is being opened.
pub(crate) struct Beginning {
    /// The replication client that the connection is opened for; `None` if it is for any client.
    pub(crate) only_for: Option<ClientId>,
}

/// A server that is linked to a client.
pub(crate) struct LinkedServer {
    pub(crate) client: ClientId,
    pub(crate) task: ServerTask,
}

/// The task of a server that is linked to a client.
pub(crate) enum ServerTask {
    /// The server runs what the client sends.
    Serving,
    /// The server is brought to the client's session. The client's statement waits for that.
    Syncing(Syncing),
    /// The client's transaction is over, and the server is asked for the contents of its session.
    Auditing(Box<Auditing>),
}

/// A server that is being brought to its client's session.
pub(crate) struct Syncing {
    /// The names of the statements that are being prepared, in order.
    pub(crate) preparing: Vec<Box<[u8]>>,
}

/// A server that is being asked for the contents of its session.
pub(crate) struct Auditing {
    pub(crate) question: Question,
    /// The settings that are asked for by name.
    pub(crate) names: Vec<Box<[u8]>>,
    /// The pins that no answer can take back.
    pub(crate) sticky: Reasons,
    /// Whether statements prepared by SQL keep the client at this server.
    pub(crate) reshaped: bool,
    /// The client's parse context, if it is known and did not change during the transaction.
    pub(crate) parse_context: Option<ParseContext>,
    /// Whether the client may have prepared statements by SQL, also under names that it had prepared before.
    pub(crate) prepares: bool,
    pub(crate) answer: Replies,
    pub(crate) attempts: u8,
    /// The effect of a SET statement that is asked for at the same time, for the next use of that statement.
    pub(crate) probe: Option<Probe>,
    pub(crate) stage: Stage,
    /// The contents of the session after the client's startup values are put back.
    pub(crate) restored: Option<Arc<Session>>,
}

impl Auditing {
    /// Returns an audit that has no answer yet.
    pub(crate) fn new(stage: Stage) -> Auditing {
        Auditing {
            question: Question::Values,
            names: Vec::new(),
            sticky: Reasons::NONE,
            reshaped: false,
            parse_context: None,
            prepares: false,
            answer: Replies::default(),
            attempts: 0,
            probe: None,
            stage,
            restored: None,
        }
    }
}

/// The question about a server's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// The values of some settings.
    Values,
    /// The whole contents of the session.
    Everything,
}

/// A question for the value that a setting has after a SET statement.
pub(crate) struct Probe {
    pub(crate) set: PlainSet,
    /// The value of the setting, once it is known.
    pub(crate) value: Option<Box<[u8]>>,
}

/// The step between the end of a transaction and the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server answers a question about its session's contents.
    Asking,
    /// The server puts back the values that its client started with and that were reset unseen.
    Restoring(Reasons),
    /// The connection that listens for the pool's clients joins the new channels. The client will keep its server for these reasons.
    Joining(Reasons),
    /// The server passes on the notifications that came before its barrier.
    BarrierSent(Reasons),
    /// The server has reached its barrier, and stops listening to barriers.
    BarrierSeen(Reasons),
    /// The listening connection must still reach the barrier.
    Meeting(Reasons),
    /// The listening connection is gone. When the server has answered the questions for a barrier, it listens for its client.
    Alone(Reasons),
    /// The client's own notifications must still come from the listening connection.
    Owing(Reasons),
}

/// A login exchange with PostgreSQL.
pub(crate) struct LoggingIn {
    pub(crate) only_for: Option<ClientId>,
    /// The prover of the exchange; `None` only while a message is being handled.
    pub(crate) prover: Option<Prover>,
    /// Whether the server was asked for a version above 3.0, and has not answered yet.
    pub(crate) asked_newer: bool,
    /// Whether AuthenticationOk was received.
    pub(crate) proven: bool,
    /// The NoticeResponse messages, as they came.
    pub(crate) notices: Vec<u8>,
    /// The parameters that the server reported, in order.
    pub(crate) reported: Vec<Reported>,
}

/// A question of a login, and its answer as far as it is known.
pub(crate) struct Inquiring {
    pub(crate) lookup: Box<Lookup>,
    pub(crate) answer: Answer,
}

/// The name and value of a ParameterStatus.
pub(crate) type Reported = (Box<[u8]>, Box<[u8]>);

impl ServerState {
    /// Returns the state of a server that is linked to this client and has this task.
    pub(crate) fn linked(client: ClientId, task: ServerTask) -> ServerState {
        ServerState::Linked(LinkedServer { client, task })
    }

    /// Returns the state of a server that runs what this client sends.
    pub(crate) fn serving(client: ClientId) -> ServerState {
        ServerState::linked(client, ServerTask::Serving)
    }

    /// Returns the client whose messages the server runs now. `None` also while the server is linked to a client and has another task.
    #[inline]
    pub(crate) fn served_client(&self) -> Option<ClientId> {
        match self {
            ServerState::Linked(LinkedServer { client, task: ServerTask::Serving }) => Some(*client),
            _ => None,
        }
    }

    /// Whether the server runs what a client sends.
    #[inline]
    pub(crate) fn is_serving(&self) -> bool {
        self.served_client().is_some()
    }

    /// Returns what is known of the server while it is brought to its client's session. `None` if it is not.
    pub(crate) fn syncing(&self) -> Option<&Syncing> {
        match self {
            ServerState::Linked(LinkedServer { task: ServerTask::Syncing(syncing), .. }) => Some(syncing),
            _ => None,
        }
    }

    /// Whether the server is linked to a client whose messages wait until the server has ended another task.
    pub(crate) fn lets_client_wait(&self) -> bool {
        matches!(self, ServerState::Linked(linked) if !matches!(linked.task, ServerTask::Serving))
    }

    /// Returns the audit of the client's session that runs on the server. `None` if no audit runs.
    pub(crate) fn auditing(&self) -> Option<&Auditing> {
        match self {
            ServerState::Linked(LinkedServer { task: ServerTask::Auditing(auditing), .. }) => Some(auditing),
            _ => None,
        }
    }

    /// Returns the audit of the client's session that runs on the server, to change it. `None` if no audit runs.
    pub(crate) fn auditing_mut(&mut self) -> Option<&mut Auditing> {
        match self {
            ServerState::Linked(LinkedServer { task: ServerTask::Auditing(auditing), .. }) => Some(auditing),
            _ => None,
        }
    }

    /// Returns the list that a server in this state is in.
    pub(crate) fn kind(&self) -> ServerKind {
        match self {
            ServerState::Dialing(_) | ServerState::SecuringTls(_) | ServerState::LoggingIn(_) => {
                ServerKind::Login
            }
            ServerState::Idle => ServerKind::Idle,
            ServerState::Linked(_)
            | ServerState::Draining
            | ServerState::Inquiring(_)
            | ServerState::Watching(_) => ServerKind::Active,
            ServerState::Asked(asked) => asked.kind(),
            ServerState::HeldForCancel => ServerKind::BeingCanceled,
            ServerState::Listening => ServerKind::Listening,
        }
    }

    /// Returns the client that the server is linked to, or is opened for.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self {
            ServerState::Linked(linked) => Some(linked.client),
            ServerState::Dialing(beginning) | ServerState::SecuringTls(beginning) => beginning.only_for,
            ServerState::LoggingIn(login) => login.only_for,
            _ => None,
        }
    }
}

/// The reason why a server is closed when its present work is over, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retiring {
    /// The client may go on as long as it keeps the server.
    Closes(&'static str),
    /// The primary has changed, or the node takes no more reads: the server takes nothing but the rest of its client's transaction, and a client
    /// that would keep it longer loses it.
    Fenced(&'static str),
}

impl Retiring {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Retiring::Closes(reason) | Retiring::Fenced(reason) => reason,
        }
    }
}

impl Server {
    /// Whether the server serves one replication client and ends with it.
    pub(crate) fn is_replication(&self) -> bool {
        self.serves == Serves::ReplicationClient
    }

    /// Whether clients use the server. A server that watches a node, or follows a database, counts towards no limit.
    pub(crate) fn is_for_clients(&self) -> bool {
        match self.serves {
            Serves::Clients | Serves::ReplicationClient => true,
            Serves::Watch | Serves::Stream | Serves::Monitor => false,
        }
    }

    /// Returns the level of a log line about this server. The lines of a watch, and of a database that is followed, are for debugging: other
    /// lines tell what is found out.
    pub(crate) fn log_level(&self, level: Level) -> Level {
        if self.is_for_clients() { level } else { Level::Debug }
    }

    /// Whether the server has sent a FATAL error to its client, or its end is being handled.
    pub(crate) fn has_said_fatal(&self) -> bool {
        self.ending != Ending::No
    }

    /// Whether the end of the server is being handled ([`Ending::Lost`]).
    pub(crate) fn is_lost(&self) -> bool {
        self.ending == Ending::Lost
    }

    /// Notes that the server sent a FATAL error. It ends the session, whichever client is told: no other client gets this server.
    pub(crate) fn says_goodbye(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::SaidFatal;
        }
        self.retire("the server ended the session");
    }

    /// Has the server closed when its present work is over. If that is so already, the earlier reason stays.
    pub(crate) fn retire(&mut self, reason: &'static str) {
        self.retiring.get_or_insert(Retiring::Closes(reason));
    }

    /// Fences the server, whatever else it is to be closed for.
    pub(crate) fn fence(&mut self, reason: &'static str) {
        self.retiring = Some(Retiring::Fenced(reason));
    }

    /// Whether the server takes nothing but the rest of its client's transaction ([`Retiring::Fenced`]).
    pub(crate) fn is_fenced(&self) -> bool {
        matches!(self.retiring, Some(Retiring::Fenced(_)))
    }

    /// Notes that a client's message goes to the server: its statement begins, and perhaps its transaction.
    pub(crate) fn note_begin(&mut self, now_us: u64) {
        if self.work.query_us == 0 {
            self.work.query_us = now_us;
            self.work.stalled_us = 0;
            self.work.running.begin(self.work.received_bytes);
        }
        if self.work.xact_us == 0 {
            self.work.xact_us = now_us;
        }
    }

    /// Notes that all messages of the client are answered. Returns the times of the statement, if one ran.
    #[inline]
    pub(crate) fn note_end(&mut self, pool: &mut PoolState, now_us: u64) -> Option<Split> {
        let mut ended = None;
        let times = pool.numbers.times.get_or_insert_default();
        if self.work.query_us != 0 {
            let query_us = now_us.saturating_sub(self.work.query_us);
            pool.numbers.stats.queries += 1;
            pool.numbers.stats.query_us += query_us;
            let client_us = self.take_stall(now_us).min(query_us);
            let wait_us = std::mem::take(&mut self.work.waited_us);
            let split = Split { wait_us, server_us: query_us - client_us, client_us };
            times.statement(split);
            ended = Some(split);
            self.work.query_us = 0;
        }
        if self.tx == TxStatus::Idle && self.work.xact_us != 0 {
            let xact_us = now_us.saturating_sub(self.work.xact_us);
            pool.numbers.stats.xacts += 1;
            pool.numbers.stats.xact_us += xact_us;
            times.transaction(xact_us);
            self.work.xact_us = 0;
        }
        ended
    }

    /// Notes that the server is not read from now on.
    pub(crate) fn note_pause(&mut self, now_us: u64) {
        self.incoming.paused_us = Some(now_us);
    }

    /// Notes that the server is read again.
    pub(crate) fn note_unpause(&mut self, now_us: u64) {
        if let Some(since_us) = self.incoming.paused_us.take() {
            self.work.stalled_us += now_us.saturating_sub(since_us);
        }
    }

    /// Returns the time (µs) for which paused reads have held up the current statement, and begins to count again from zero.
    fn take_stall(&mut self, now_us: u64) -> u64 {
        let mut present_us = 0;
        if let Some(since_us) = &mut self.incoming.paused_us {
            present_us = now_us.saturating_sub(*since_us);
            *since_us = now_us;
        }
        std::mem::take(&mut self.work.stalled_us) + present_us
    }

    /// Whether the server may serve another client: nothing is owed, no transaction is open, no byte is left over.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ledger.is_at_rest()
            && self.tx == TxStatus::Idle
            && self.incoming.streaming.is_none()
            && self.incoming.inbox.is_empty()
    }

    /// Whether the server is outside of a transaction and owes only answers to statements that put back its client's startup values.
    pub(crate) fn only_restores(&self) -> bool {
        self.tx == TxStatus::Idle
            && !self.ledger.is_empty()
            && self.ledger.entries().all(|entry| entry.owner == Owner::Hidden(Purpose::Restore))
    }

    /// Whether the client has a transaction open, and has sent nothing since its last statement ended.
    pub(crate) fn is_idle_in_transaction(&self) -> bool {
        self.tx != TxStatus::Idle && self.work.query_us == 0 && self.state.is_serving()
    }

    /// Whether the server is outside of a transaction and owes only the answer that shows which Syncs of a failed COPY it has answered.
    pub(crate) fn only_fenced(&self) -> bool {
        self.tx == TxStatus::Idle
            && !self.ledger.is_empty()
            && self.ledger.entries().all(|entry| entry.owner == Owner::Hidden(Purpose::Fence))
    }

    /// Returns the endpoint of this very server, even if its host has further addresses.
    pub(crate) fn place(&self) -> Endpoint {
        match self.at.remote {
            Some(remote) => Endpoint::Tcp { host: remote.ip().to_string().into(), port: remote.port() },
            None => self.at.endpoint.clone(),
        }
    }

    /// Returns the server's address as log lines show it.
    pub(crate) fn address(&self) -> String {
        if let Some(remote) = self.at.remote {
            return remote.to_string();
        }
        match &self.at.endpoint {
            Endpoint::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Endpoint::Tcp { host, port } => format!("{host}:{port}"),
            Endpoint::Unix { path } => {
                let port = path.rsplit('.').next().unwrap_or_default();
                format!("unix:{port}")
            }
        }
    }
}
