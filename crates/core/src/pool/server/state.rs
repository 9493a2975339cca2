//! A connection to PostgreSQL: its states, each with what only that state needs. Moves are made by `moves/server.rs`.

use std::net::SocketAddr;
use std::sync::Arc;

use pgweir_auth::Prover;
use pgweir_wire::backend::TxStatus;

use crate::cluster::Term;
use crate::driver::{ConnId, Endpoint, Level, Now};
use crate::ids::ClientId;
use crate::pool::cluster::in_flight::InFlight;
use crate::pool::multiplex::pipelined::Pipelined;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::statements::ServerStatements;
use crate::pool::relay::attempt::Attempt;
use crate::pool::relay::known_answers::Tap;
use crate::pool::relay::ledger::{Ledger, Owner, Purpose};
use crate::pool::sequences::state::Users;
use crate::pool::server::abandoned::Abandoned;
use crate::pool::server::asked::{AskedServer, Replies};
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
    /// What it last reported of the tracked parameters.
    pub(crate) params: Arc<Params>,
    /// What its session holds besides, for the client that had it last.
    pub(crate) session: Arc<Session>,
    /// The clients that may have drawn values of sequences that it holds.
    pub(crate) users: Users,
    /// What it was opened with for a client in session pooling.
    pub(crate) opened: Opened,
    /// The client in session pooling that it is opened for, or that was told of it and has not asked for anything yet.
    pub(crate) kept_for: Option<ClientId>,
    pub(crate) statements: ServerStatements,
    /// The exchange that its client sent first since it owed nothing, as far as that may have to be sent again.
    pub(crate) attempt: Attempt,
    pub(crate) incoming: Incoming,
    /// In a pool with a cluster: what its client has asked for.
    pub(crate) in_flight: Option<Box<InFlight>>,
    /// The clients that are queued behind its client.
    pub(crate) pipelined: Pipelined,
    /// Where it is, and what it is called there.
    pub(crate) at: Reached,
    /// What it is at, for the statistics and timeouts.
    pub(crate) work: Work,
    /// Which of its pool's nodes it is of.
    pub(crate) branch: Branch,
    /// When anything last happened on it. Monotonic, µs.
    pub(crate) active_us: u64,
    /// Cancel requests that are on their way to it: no other client may have it before they are over.
    pub(crate) cancels: u32,
    /// Why it is to be closed at its next rest, if so.
    pub(crate) retire: Option<&'static str>,
    pub(crate) ending: Ending,
    /// Work that a client that is gone has left running here, if any.
    pub(crate) abandoned: Option<Box<Abandoned>>,
    pub(crate) serves: Serves,
    /// Its client may have reset startup values, which are then to be put back.
    pub(crate) resets: bool,
}

/// What comes from a server.
#[derive(Default)]
pub(crate) struct Incoming {
    /// Part of a message.
    pub(crate) inbox: Vec<u8>,
    /// The rest of a message that is passed on as it comes.
    pub(crate) streaming: Option<Streaming>,
    /// Since when it is not read because its client does not keep up (monotonic, µs).
    pub(crate) paused_us: Option<u64>,
    /// The known answers that are waited for.
    pub(crate) taps: Vec<Tap>,
    /// The parameter types that the server has told of the statement that it is about to describe, four bytes each. Empty unless pgweir
    /// looks at the description.
    pub(crate) described_params: Box<[u8]>,
}

/// Where a server is.
pub(crate) struct Reached {
    /// SHOW's column `id`.
    pub(crate) serial: u64,
    pub(crate) endpoint: Endpoint,
    /// The address that it was reached at; `None` before, and for a unix socket.
    pub(crate) remote: Option<SocketAddr>,
    /// Our end, as `ip:port`; "" for a unix socket.
    pub(crate) local: String,
    /// What is known of its TLS session; "" without one.
    pub(crate) tls: String,
    /// When it was dialed.
    pub(crate) since: Now,
    /// A standby's: when it was logged in, as [`Replayed`](crate::cluster::replayed::Replayed) counts.
    pub(crate) logged_in_us: u64,
    /// The major version that it reported at login; 0 if it is not known.
    pub(crate) version: u16,
    /// For cancel requests, as PostgreSQL gave them.
    pub(crate) pid: u32,
    pub(crate) key: Box<[u8]>,
    /// NoticeResponse messages of its login, for its first client.
    pub(crate) notices: Vec<u8>,
    /// The node that it was opened to, in a pool with a cluster; once that is promoted, the term of the new primary.
    pub(crate) term: Option<Term>,
    /// Whether the server was opened to a standby that was promoted since: its transactions may change something.
    pub(crate) is_promoted: bool,
}

/// What a server is at.
#[derive(Default)]
pub(crate) struct Work {
    /// When its current statement (or pipeline) began; 0 when none runs. Monotonic, µs.
    pub(crate) query_us: u64,
    /// When its current transaction began; 0 when none is open. Monotonic, µs.
    pub(crate) xact_us: u64,
    /// How long its client had waited for it, until its first statement is accounted for.
    pub(crate) waited_us: u64,
    /// How long it was not read since its current statement began; a pause that lasts is not in it yet.
    pub(crate) stalled_us: u64,
    /// What its transaction has changed of the database's objects.
    pub(crate) changes: SchemaChanges,
    /// It had a client once.
    pub(crate) used: bool,
    /// Bytes that it sent, all in all.
    pub(crate) received_bytes: u64,
    /// What its current statement is, and does.
    pub(crate) running: Running,
    /// What it answered last, and the number of transactions since its session was looked at.
    pub(crate) recent: Recent,
    pub(crate) unseen: u32,
    /// What its client prepared on it by itself: only for the statistics.
    pub(crate) followed: Followed,
    /// That is traced.
    pub(crate) traced: Option<Box<Traced>>,
}

/// What a transaction has changed of the database's objects.
#[derive(Clone, Copy, Default)]
pub(crate) struct SchemaChanges(u8);

impl SchemaChanges {
    /// What statements return.
    pub(crate) const STATEMENTS: SchemaChanges = SchemaChanges(1);
    /// It has made routines or triggers.
    pub(crate) const ROUTINES: SchemaChanges = SchemaChanges(2);
    /// It has dropped roles.
    pub(crate) const ROLES: SchemaChanges = SchemaChanges(4);

    /// This as well, if that is so.
    pub(crate) fn add(&mut self, other: SchemaChanges, is_so: bool) {
        self.0 |= if is_so { other.0 } else { 0 };
    }

    /// It has changed any of these.
    pub(crate) fn has(self, other: SchemaChanges) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// How far a server is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ending {
    /// Not at all.
    #[default]
    No,
    /// It sent a FATAL error to its client, which needs no second one.
    SaidFatal,
    /// Its end is being dealt with: a client that leaves it now need not clean up.
    Lost,
}

/// Whom a server is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serves {
    /// The pool's clients.
    Clients,
    /// One replication client, with which it ends.
    ReplicationClient,
    /// The watch of a cluster's node.
    Watch,
}

/// The client that gets the rest of a message.
#[derive(Clone, Copy)]
pub(crate) struct Streaming {
    pub(crate) left: usize,
    /// `None`: no client wants it.
    pub(crate) to: Option<ClientId>,
}

/// The life of a server connection.
pub(crate) enum ServerState {
    /// Connecting.
    Dialing(Beginning),
    /// SSLRequest was sent, or the handshake runs.
    SecuringTls(Beginning),
    /// The startup packet was sent.
    LoggingIn(Box<LoggingIn>),
    /// Free.
    Idle,
    /// Linked, and brought to its client's parameters; the client's statement waits for that.
    SyncingSession(SyncingSession),
    /// Linked.
    Busy(ClientId),
    /// Its client is gone; the answer to it is dropped, and then the clients queued behind it have their
    /// turn.
    Draining,
    /// The server has no client, and answers a question of pgweir's.
    Asked(AskedServer),
    /// `auth_query` runs, for a client that logs in.
    Inquiring(Box<Inquiring>),
    /// Linked, its client's transaction is over, and it is asked what its session holds now.
    Auditing(Box<Auditing>),
    /// Released, but a cancel request may still reach it.
    HeldForCancel,
    /// It listens for its pool's clients.
    Listening,
    /// It is asked, again and again, what its node is.
    Watching(Box<Watching>),
}

/// What a node was asked, and said.
#[derive(Default)]
pub(crate) struct Watching {
    pub(crate) answer: Replies,
    /// The answer is complete.
    pub(crate) is_answered: bool,
}

/// A connection that is being opened.
pub(crate) struct Beginning {
    /// For this replication client alone.
    pub(crate) only_for: Option<ClientId>,
}

/// It is being brought to its client's session.
pub(crate) struct SyncingSession {
    pub(crate) client: ClientId,
    /// What is being prepared, by name and in order.
    pub(crate) preparing: Vec<Box<[u8]>>,
}

/// What a server's session holds is being asked.
pub(crate) struct Auditing {
    pub(crate) client: ClientId,
    pub(crate) question: Question,
    /// The settings that are asked for by name.
    pub(crate) names: Vec<Box<[u8]>>,
    /// Pins that no answer can take back.
    pub(crate) sticky: Reasons,
    /// Statements prepared by SQL keep the client here.
    pub(crate) reshaped: bool,
    /// How the client reads, if that is known and was so all the time.
    pub(crate) parse_context: Option<ParseContext>,
    /// It may have prepared by SQL, also what it had prepared before.
    pub(crate) prepares: bool,
    pub(crate) answer: Replies,
    pub(crate) attempts: u8,
    /// What is found out besides, for the next time.
    pub(crate) probe: Option<Probe>,
    pub(crate) stage: Stage,
    /// What the session holds when the client's startup values are back.
    pub(crate) restored: Option<Arc<Session>>,
}

impl Auditing {
    /// Of which nothing is known yet.
    pub(crate) fn new(client: ClientId, stage: Stage) -> Auditing {
        Auditing {
            client,
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

/// What a server is asked of its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Question {
    /// The values of some settings.
    Values,
    /// Everything that it holds.
    Everything,
}

/// Which value a setting has after a SET statement.
pub(crate) struct Probe {
    pub(crate) set: PlainSet,
    /// The answer.
    pub(crate) value: Option<Box<[u8]>>,
}

/// What is waited for between the end of a transaction and the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server says what its session holds.
    Asking,
    /// The server puts back what its client started with and what was reset unseen.
    Restoring(Reasons),
    /// The connection that listens for the pool's clients joins the channels that are new. For these reasons the client will keep
    /// its server.
    Joining(Reasons),
    /// The server passes on what it was notified of before its barrier.
    BarrierSent(Reasons),
    /// It has come to it, and ceases to listen to barriers.
    BarrierSeen(Reasons),
    /// The listening connection is to come to the barrier.
    Meeting(Reasons),
    /// The listening connection is gone. When the server has answered what it was asked for a barrier, it listens for its client.
    Alone(Reasons),
    /// The client's own notifications are to come from the listening connection.
    Owing(Reasons),
}

/// A login exchange with PostgreSQL.
pub(crate) struct LoggingIn {
    pub(crate) only_for: Option<ClientId>,
    /// `None` only while a message is being handled.
    pub(crate) prover: Option<Prover>,
    /// It was asked for a version above 3.0, and has not answered yet.
    pub(crate) asked_newer: bool,
    /// AuthenticationOk was received.
    pub(crate) proven: bool,
    /// NoticeResponse messages, as they came.
    pub(crate) notices: Vec<u8>,
    /// Everything that was reported, in order.
    pub(crate) reported: Vec<Reported>,
}

/// A question of a login, and its answer as far as it is known.
pub(crate) struct Inquiring {
    pub(crate) lookup: Box<Lookup>,
    pub(crate) answer: Answer,
}

/// Name and value of a ParameterStatus.
pub(crate) type Reported = (Box<[u8]>, Box<[u8]>);

impl ServerState {
    /// The list it is in.
    pub(crate) fn kind(&self) -> ServerKind {
        match self {
            ServerState::Dialing(_) | ServerState::SecuringTls(_) | ServerState::LoggingIn(_) => {
                ServerKind::Login
            }
            ServerState::Idle => ServerKind::Idle,
            ServerState::SyncingSession(_)
            | ServerState::Busy(_)
            | ServerState::Draining
            | ServerState::Inquiring(_)
            | ServerState::Auditing(_)
            | ServerState::Watching(_) => ServerKind::Active,
            ServerState::Asked(asked) => asked.kind(),
            ServerState::HeldForCancel => ServerKind::BeingCanceled,
            ServerState::Listening => ServerKind::Listening,
        }
    }

    /// The client it is linked to.
    pub(crate) fn client(&self) -> Option<ClientId> {
        match self {
            ServerState::Busy(id) => Some(*id),
            ServerState::SyncingSession(syncing) => Some(syncing.client),
            ServerState::Auditing(auditing) => Some(auditing.client),
            ServerState::Dialing(beginning) | ServerState::SecuringTls(beginning) => beginning.only_for,
            ServerState::LoggingIn(login) => login.only_for,
            _ => None,
        }
    }
}

impl Server {
    /// It serves one replication client and ends with it.
    pub(crate) fn is_replication(&self) -> bool {
        self.serves == Serves::ReplicationClient
    }

    /// How important a line about it is. A watch tells what it finds out in lines of its cluster.
    pub(crate) fn log_level(&self, level: Level) -> Level {
        if self.serves == Serves::Watch { Level::Debug } else { level }
    }

    /// See [`Ending::SaidFatal`].
    pub(crate) fn has_said_fatal(&self) -> bool {
        self.ending != Ending::No
    }

    /// See [`Ending::Lost`].
    pub(crate) fn is_lost(&self) -> bool {
        self.ending == Ending::Lost
    }

    /// A FATAL error ends a session, whichever client is told: no other client gets this server.
    pub(crate) fn says_goodbye(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::SaidFatal;
        }
        self.retire.get_or_insert("the server ended the session");
    }

    /// A client's message goes to it: its statement begins, and perhaps its transaction.
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

    /// Everything its client asked for is answered. Returns what the statement took, if one ran.
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

    /// Its reads are paused.
    pub(crate) fn note_pause(&mut self, now_us: u64) {
        self.incoming.paused_us = Some(now_us);
    }

    /// Its reads go on.
    pub(crate) fn note_unpause(&mut self, now_us: u64) {
        if let Some(since_us) = self.incoming.paused_us.take() {
            self.work.stalled_us += now_us.saturating_sub(since_us);
        }
    }

    /// How long its current statement was held up by paused reads.
    fn take_stall(&mut self, now_us: u64) -> u64 {
        let mut present_us = 0;
        if let Some(since_us) = &mut self.incoming.paused_us {
            present_us = now_us.saturating_sub(*since_us);
            *since_us = now_us;
        }
        std::mem::take(&mut self.work.stalled_us) + present_us
    }

    /// It may serve another client: nothing is owed, no transaction is open, no byte is left over.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ledger.is_at_rest()
            && self.tx == TxStatus::Idle
            && self.incoming.streaming.is_none()
            && self.incoming.inbox.is_empty()
    }

    /// It owes nothing but what puts back its client's startup values, outside of a transaction.
    pub(crate) fn only_restores(&self) -> bool {
        self.tx == TxStatus::Idle
            && !self.ledger.is_empty()
            && self.ledger.entries().all(|entry| entry.owner == Owner::Hidden(Purpose::Restore))
    }

    /// Its client has a transaction open, and has sent nothing since the last statement of it ended.
    pub(crate) fn is_idle_in_transaction(&self) -> bool {
        self.tx != TxStatus::Idle && self.work.query_us == 0 && matches!(self.state, ServerState::Busy(_))
    }

    /// It owes nothing but the answer that tells which Syncs of a failed COPY it has answered, outside of a transaction.
    pub(crate) fn only_fenced(&self) -> bool {
        self.tx == TxStatus::Idle
            && !self.ledger.is_empty()
            && self.ledger.entries().all(|entry| entry.owner == Owner::Hidden(Purpose::Fence))
    }

    /// The endpoint of this very server, even if its host has further addresses.
    pub(crate) fn place(&self) -> Endpoint {
        match self.at.remote {
            Some(remote) => Endpoint::Tcp { host: remote.ip().to_string().into(), port: remote.port() },
            None => self.at.endpoint.clone(),
        }
    }

    /// Its address as log lines show it.
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
