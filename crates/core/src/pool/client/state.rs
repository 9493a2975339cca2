//! A client of a pool: its states, each with what only that state needs. Moves are made by the pool; this file has no behaviour
//! but what a client knows about itself.

use std::sync::Arc;

use pgweir_settings::PoolMode;

use crate::client_handoff::{Counted, Login, Origin, Replication};
use crate::context::Env;
use crate::driver::{ConnId, Peer};
use crate::ids::{ServerId, StatementId};
use crate::pool::Branch;
use crate::pool::cache::capture::SentAt;
use crate::pool::cache::{ProbeWait, Reader};
use crate::pool::cancel_key::CancelKey;
use crate::pool::client::rolled_back::RolledBack;
use crate::pool::cluster::causal::must_see::MustSee;
use crate::pool::cluster::commit::AtCommit;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::cluster::route::Routing;
use crate::pool::listen::notify_listener::Listener;
use crate::pool::prepared::parse_contexts;
use crate::pool::prepared::schema_version::Makes;
use crate::pool::prepared::shapes::Doubts;
use crate::pool::prepared::statements::{ClientStatements, Meaning, Statements};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::known_answers::same_read::SameRead;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::sequences::state::{Drawing, Draws};
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::pool::session::pins::{Pin, Reasons, Touched};
use crate::pool::startup::checked::Opened;

/// A client connection.
pub(crate) struct Client {
    pub(crate) conn: ConnId,
    /// SHOW's column `id`.
    pub(crate) serial: u64,
    pub(crate) state: ClientState,
    /// The bytes received and not yet passed on: part of a message, or messages that wait for a server. Empty and unallocated when
    /// the client is idle.
    pub(crate) inbox: Vec<u8>,
    /// Number of bytes of a message that is to be ignored and has not arrived yet.
    pub(crate) skip: usize,
    /// Whether reads from the client are paused: too much waits here, or the server does not take what was sent.
    pub(crate) reads_paused: bool,
    /// Whether the connection has ended with a Terminate in the inbox. The client stays until the messages ahead of it are sent.
    pub(crate) departed: bool,
    pub(crate) origin: Box<Origin>,
    pub(crate) account: Account,
}

/// The account of a pool's client: its user, its session and its request.
pub(crate) struct Account {
    /// The user that the client logged in as; the pool's user may be another one.
    pub(crate) user: Arc<str>,
    pub(crate) replication: Replication,
    /// The tracked parameters as this client was last told of them.
    pub(crate) params: Arc<Params>,
    /// The client's session settings and channels, apart from `params`, as they were when its last transaction ended.
    pub(crate) session: Arc<Session>,
    /// The settings that the client started with, tracked parameters included: RESET goes back to them. `None` if they are those that
    /// servers start with.
    pub(crate) startup: Option<Arc<Session>>,
    /// The startup settings that the client's own server must have been opened with, in session pooling. `None` in other modes.
    pub(crate) own: Option<Box<Own>>,
    /// The client's prepared statements by name. `None` if it has prepared none.
    pub(crate) statements: Option<Box<ClientStatements>>,
    /// The unnamed statement that the client prepared and did not use at once.
    pub(crate) unnamed: Option<Box<Unnamed>>,
    /// The context in which the client's texts are parsed, as last found.
    pub(crate) parse_context: Option<parse_contexts::Known>,
    /// A time (monotonic, µs) at which the client's last group that may have changed data was answered already. The query cache gives the
    /// client no answer to a statement that was sent before it. [`WRITING`](crate::pool::cache::WRITING) if such a group was sent since the
    /// cache was last asked.
    pub(crate) wrote_us: u64,
    /// A time (monotonic, µs) at which the client's last group was answered already that may have changed definitions or rights although no answer
    /// tells so. No answer of the query cache to a statement that was sent before it is given to the client, also if its tables are followed;
    /// [`WRITING`](crate::pool::cache::WRITING) as for `wrote_us`.
    pub(crate) redefined_us: u64,
    /// The number of a probe: the client may have seen what was visible when that probe was sent, so answers of the query cache must be confirmed
    /// by a later one. [`SEEING`](crate::pool::cache::SEEING) if a server may have answered the client since the cache was last asked.
    pub(crate) seen_probe: u64,
    /// Whether the client waits for a probe.
    pub(crate) probe_wait: ProbeWait,
    /// The facts that the query cache needs about the client. `None` before the client's first statement that is looked up.
    pub(crate) reader: Option<Box<Reader>>,
    /// The client's use of sequences, as far as pgweir knows it.
    pub(crate) draws: Draws,
    /// The client's channels in transaction pooling, and the notifications that it must still be sent. `None` if it does not listen.
    pub(crate) listener: Option<Box<Listener>>,
    /// The key that the client's cancel requests must carry.
    pub(crate) cancel_key: CancelKey,
    pub(crate) request: Request,
    /// Last activity, for `client_idle_timeout`.
    pub(crate) active_us: u64,
    /// The client's places in counters, which it has until this is dropped.
    pub(crate) _counted: Counted,
    /// Number of servers since the client's last request that could not be brought to its session.
    pub(crate) refused_servers: u8,
    /// The node that the client waits for, or that served it last.
    pub(crate) branch: Branch,
    /// The route of the client's transactions, as last found. `None` without a cluster.
    pub(crate) routing: Option<Box<Routing>>,
    /// The changes that the client must see at standbys. `None` without a cluster, or if reads need not see anything.
    pub(crate) must_see: Option<Box<MustSee>>,
}

/// The unnamed statement, as Parse gave it.
pub(crate) struct Unnamed {
    pub(crate) query: Box<[u8]>,
    /// Four bytes each.
    pub(crate) types: Box<[u8]>,
}

/// The client that owns the unnamed statement of a linked server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum UnnamedOnServer {
    /// The statement may belong to another client or to pgweir.
    #[default]
    NotOwn,
    /// The statement is the client's, or there is none; but not if the server skips the message that prepares it, after an error in
    /// its group.
    OwnUnlessSkipped,
    /// The statement is the client's, or there is none.
    Own,
}

/// The life of a client of a pool: first it waits until its pool knows what to tell it, then it is Idle, Waiting, Linked in turn. A
/// client that leaves is removed at once; the driver flushes its last words.
pub(crate) enum ClientState {
    /// Proven; its pool has not yet seen a server, so what to tell the client is not known.
    AwaitingServer(Box<Login>),
    /// Logged in, has no server, asks for nothing.
    Idle,
    /// The client was told that its transaction is open; no server knows of it yet.
    DeferredBegin(DeferredBegin),
    /// Asked for something and waits for a server.
    Waiting(Waiting),
    /// The client was told an error within a group that no server saw. Its messages up to Sync are ignored.
    Ignoring,
    /// The client's transaction was lost with the connection to the primary, and the client has not ended it yet.
    RolledBack(RolledBack),
    /// The client's statement was sent to a server that answers in order, after those of other clients, and waits for its turn there.
    QueuedBehind(QueuedBehind),
    /// The client has a server.
    Linked(Link),
}

/// The last request of a client for a server. It stays the same if the client has to wait again for it (`moves/requeue.rs`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Request {
    /// The time of the request (monotonic, µs). The client's timeouts while it waits count from here.
    pub(crate) since_us: u64,
    /// Whether the client was told that it waits (`query_wait_notify`).
    pub(crate) is_notified: bool,
    /// The age of code at that time: what was judged of the client's messages then holds as long as that stays.
    pub(crate) code_age: u64,
    /// The wait for the answer to another client's statement.
    pub(crate) same_read: SameRead,
}

impl Request {
    /// A request that is made now.
    pub(crate) fn new(env: &Env) -> Request {
        Request {
            since_us: env.now.mono_us,
            is_notified: false,
            code_age: env.shared.routines(),
            same_read: SameRead::NotFound,
        }
    }
}

/// The state of a client in a pool's queue.
pub(crate) struct Waiting {
    /// The group that the client asks for, if that may share a server with other clients' groups.
    pub(crate) group: Option<Group>,
    pub(crate) first: First,
}

/// The work that must be done before the next message of a client that waits.
#[derive(Default)]
pub(crate) enum First {
    /// No work is needed.
    #[default]
    Nothing,
    /// The BEGIN that pgweir has already answered must be sent to the server.
    Begin(Vec<u8>),
    /// The answer to the client's COMMIT, whose server was lost, must be asked of the new primary.
    Outcome(Box<AtCommit>),
}

impl First {
    pub(crate) fn of_begin(begin: Option<Vec<u8>>) -> First {
        begin.map_or(First::Nothing, First::Begin)
    }

    /// The BEGIN that was answered already.
    pub(crate) fn begin(&self) -> Option<&[u8]> {
        match self {
            First::Begin(text) => Some(text),
            First::Nothing | First::Outcome(_) => None,
        }
    }

    /// Whether the client has no earlier work to do, so that it may be sent an error instead of an answer to its next message.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, First::Nothing)
    }
}

/// Queued on a server behind other clients. What it asked for stays at the front of its inbox until it is
/// answered: if the server dies before it looked at it, it is sent again to another server.
pub(crate) struct QueuedBehind {
    pub(crate) server: ServerId,
    pub(crate) group: Group,
    /// The time at which the group was sent, for the query cache; `None` if there is no cache.
    pub(crate) sent: Option<SentAt>,
}

/// The state of a client between BEGIN, which pgweir has answered, and the transaction's first statement.
pub(crate) struct DeferredBegin {
    /// The BEGIN as the client wrote it.
    pub(crate) text: Vec<u8>,
    /// The time of the BEGIN (monotonic, µs).
    pub(crate) since_us: u64,
}

/// The tracked parameters that were set on a server for its client, or that its statements have changed there.
#[derive(Clone, Copy, Default)]
pub(crate) struct ChangedParameters {
    all: u64,
    /// The parameters that the client's statements have changed.
    noted: u64,
    /// The parameters that had the server's own value, without being set, before they were changed. The server does not list them
    /// when they have that value again.
    from_own: u64,
}

impl ChangedParameters {
    /// Returns the bit of the parameter at this position. All positions beyond the last bit share that bit.
    fn bit(position: usize) -> u64 {
        1 << position.min(63)
    }

    /// Notes that the parameter was set for the client.
    pub(crate) fn add(&mut self, position: usize) {
        self.all |= ChangedParameters::bit(position);
    }

    /// Notes that a statement has changed the parameter. `from_own`: it had the server's own value before.
    pub(crate) fn note(&mut self, position: usize, from_own: bool) {
        let bit = ChangedParameters::bit(position);
        if from_own && self.all & bit == 0 {
            self.from_own |= bit;
        }
        self.all |= bit;
        self.noted |= bit;
    }

    /// Whether the client's statements have changed a parameter.
    pub(crate) fn by_statements(self) -> bool {
        self.noted != 0
    }

    pub(crate) fn has(self, position: usize) -> bool {
        self.all & ChangedParameters::bit(position) != 0
    }

    /// Whether the server would report a parameter that was reset to its own value. `false` if it had that value before without being
    /// set.
    pub(crate) fn tells_of_reset(self, position: usize) -> bool {
        self.all & !self.from_own & ChangedParameters::bit(position) != 0
    }
}

/// The reasons for which a linked client's messages wait, as a set. Each reason has a bit of its own, so that the end of one reason cannot
/// end the wait for another one. `Pool::resume_held` looks at them after each answer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Waits(u8);

impl Waits {
    /// A DEALLOCATE or DISCARD is on its way: what names a prepared statement waits until that is answered.
    pub(crate) const DISCARDS: Waits = Waits(1);
    /// A message waits in the inbox for answers that are owed.
    pub(crate) const HELD: Waits = Waits(2);
    /// A message waits in the inbox because the server owes as many answers as it may owe (`Limits::ledger_entries`). It goes on when the
    /// server owes half of them.
    pub(crate) const FULL: Waits = Waits(4);

    /// Adds this reason, or takes it out of the set.
    #[inline]
    pub(crate) fn set(&mut self, reason: Waits, is_so: bool) {
        self.0 = self.0 & !reason.0 | if is_so { reason.0 } else { 0 };
    }

    /// Whether at least one of these reasons is set.
    #[inline]
    pub(crate) fn has(self, reasons: Waits) -> bool {
        self.0 & reasons.0 != 0
    }

    /// Whether a message waits in the inbox.
    #[inline]
    pub(crate) fn holds(self) -> bool {
        self.has(Waits(Waits::HELD.0 | Waits::FULL.0))
    }

    /// Notes that a message in the inbox must be checked again for whether it must still wait.
    #[inline]
    pub(crate) fn look_again(&mut self) {
        self.0 &= !(Waits::HELD.0 | Waits::FULL.0);
    }
}

/// The link of a client to its server.
pub(crate) struct Link {
    pub(crate) server: ServerId,
    /// Bytes of the current message that are still to come and go straight to the server.
    pub(crate) streaming: usize,
    pub(crate) waits: Waits,
    /// The group that the client asked for. `None` after it was sent.
    pub(crate) group: Option<Group>,
    /// The work that pgweir does on the server besides forwarding the client's messages.
    pub(crate) phase: LinkPhase,
    /// The client that owns the server's unnamed statement.
    pub(crate) unnamed: UnnamedOnServer,
    /// The progress of a group that runs on the primary if this server, of a standby, does not run it.
    pub(crate) first_try: FirstTry,
    /// Questions of the client about statements that may have another shape on this server; `None` if it used no such statement.
    pub(crate) doubts: Option<Box<Doubts>>,
    /// The pool's mode when the link was made. A session's traces depend on it, even if RELOAD has changed the mode since.
    pub(crate) made_in: PoolMode,
    /// The statements that the server knows by the client's own names.
    pub(crate) own_names: OwnNames,
    /// The group ([`Ledger::group`](crate::pool::relay::ledger::Ledger::group)) in which a text that uses names of prepared statements
    /// was last sent or bound.
    pub(crate) names_used_in: Option<u64>,
    /// Number of times that the link's first group was asked again.
    pub(crate) asked_again: u8,
    /// The marks that the client's transaction may have left in the session. `None` if there are none.
    pub(crate) touched: Option<Box<Touched>>,
    /// The parameters that were set for the client on this server, or that its statements have changed.
    pub(crate) changed: ChangedParameters,
    /// Whether texts may mean something else in this transaction: it changed settings for itself (SET LOCAL), or has tables that
    /// other sessions lack.
    pub(crate) reads_locally: bool,
    /// The kinds of objects (tables, functions and others) that the texts of its transaction make.
    pub(crate) makes: Makes,
    /// The use of sequences in the transaction.
    pub(crate) drawing: Drawing,
    /// The reasons for which the client keeps the server after its transaction. `None` if it does not keep it.
    pub(crate) pin: Option<Box<Pin>>,
    /// The server has ended the transaction, but the client has not received ReadyForQuery yet: pgweir first waits for the client's
    /// LISTEN and its own notifications, which PostgreSQL sends before ReadyForQuery.
    pub(crate) ready_due: bool,
}

impl Link {
    /// Whether the group that is being sent must not be cut at a full ledger: it is the client's first try at a standby, or a change that
    /// pgweir has put into a transaction of its own.
    pub(crate) fn sends_whole_group(&self) -> bool {
        self.first_try == FirstTry::Sending || matches!(self.phase, LinkPhase::Exchange(Preamble::Block(_)))
    }

    /// A new link, with nothing sent.
    pub(crate) fn new(server: ServerId, made_in: PoolMode) -> Link {
        Link {
            server,
            streaming: 0,
            waits: Waits::default(),
            group: None,
            phase: LinkPhase::PLAIN,
            unnamed: UnnamedOnServer::NotOwn,
            first_try: FirstTry::None,
            doubts: None,
            made_in,
            own_names: OwnNames::Hidden,
            names_used_in: None,
            asked_again: 0,
            touched: None,
            changed: ChangedParameters::default(),
            reads_locally: false,
            makes: Makes::Nothing,
            drawing: Drawing::Nothing,
            pin: None,
            ready_due: false,
        }
    }

    /// Whether a text means something else on this server than under the settings that are known of the client.
    pub(crate) fn reads_alone(&self) -> bool {
        self.reads_locally
            || self.touched.as_deref().is_some_and(|touched| !touched.keeps_parse_context())
            || self.pin.as_deref().is_some_and(|pin| pin.reasons.has(Reasons::READS_ALONE))
    }
}

/// The names that a server knows, of the client's own names, for statements that the client prepared through the protocol.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum OwnNames {
    /// The server knows the client's statements by content only, so no name of the client's is visible there.
    #[default]
    Hidden,
    /// The server knows only this name, which a text deallocates. The number is the ticket of the name, valid until the message that
    /// deallocates it is sent.
    Ending(Box<[u8]>, u32),
    /// All names of the client, and none of other clients'. The client's messages pass unchanged.
    Exposed,
}

/// The settings and the server that are a client's own in session pooling.
pub(crate) struct Own {
    /// The settings that the client asked for in its startup packet.
    pub(crate) opening: Opened,
    /// The server that is being opened, or kept, for the client. The entry counts only if that server names the client as well.
    pub(crate) kept: Option<ServerId>,
}

impl Account {
    /// Whether code was made since the client asked for a server, so that the findings about its messages may not hold any more.
    #[inline]
    pub(crate) fn is_outdated(&self, env: &Env) -> bool {
        self.request.code_age != env.shared.routines()
    }

    /// Whether the notify listener has not yet passed on all notifications that the client itself has sent.
    pub(crate) fn owes_notifications(&self) -> bool {
        self.listener.as_deref().is_some_and(|listener| !listener.own.is_empty())
    }

    /// The meaning of a name under which the client has prepared a statement.
    pub(crate) fn named(&self, name: &[u8]) -> Option<Meaning> {
        self.statements.as_ref()?.named(name)
    }

    /// The statement that the client prepared under this name.
    pub(crate) fn statement(&self, name: &[u8]) -> Option<StatementId> {
        self.statements.as_ref()?.get(name)
    }

    /// The text of the statement that the client prepared under this name.
    pub(crate) fn text_of<'a>(&self, statements: &'a Statements, name: &[u8]) -> Option<&'a [u8]> {
        Some(&statements.get(self.statement(name)?)?.query)
    }
}

impl Client {
    /// Whether the client's server knows its prepared statements by the client's own names.
    pub(crate) fn has_exposed_names(&self) -> bool {
        matches!(&self.state, ClientState::Linked(link) if link.own_names == OwnNames::Exposed)
    }

    /// Whether the client listens on the server that it is linked to.
    pub(crate) fn listens_on_server(&self) -> bool {
        matches!(&self.state, ClientState::Linked(link)
            if link.pin.as_ref().is_some_and(|pin| pin.reasons.has(Reasons::LISTENS)))
    }

    /// Whether the client waits for the outcome of its COMMIT after its server was lost.
    pub(crate) fn is_at_commit(&self) -> bool {
        match &self.state {
            ClientState::Waiting(waiting) => matches!(waiting.first, First::Outcome(_)),
            ClientState::Linked(link) => matches!(link.phase, LinkPhase::Outcome(_)),
            _ => false,
        }
    }

    /// The kind of replication connection that the client has, or asks for at its login.
    pub(crate) fn replication(&self) -> Replication {
        self.account.replication
    }
}

/// `C-0x12: database/user@host:port` as log lines begin.
pub(crate) fn log_name(serial: u64, database: &str, user: &str, peer: &Peer) -> String {
    let (database, user) = (printable(database.as_bytes()), printable(user.as_bytes()));
    format!("C-{serial:#x}: {database}/{user}@{}", peer_text(peer))
}

/// A peer's bytes as they may stand in a log line: bounded, without control characters.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 128;
    let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    String::from_utf8_lossy(shown).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `127.0.0.1:4711`, `[::1]:4711` or `unix(4711):6432`.
pub(crate) fn peer_text(peer: &Peer) -> String {
    match peer {
        Peer::Tcp { remote, .. } => remote.to_string(),
        Peer::Unix { pid: 0, port, .. } => format!("unix:{port}"),
        Peer::Unix { pid, port, .. } => format!("unix({pid}):{port}"),
    }
}
