//! What the configuration says of a pool, as it is asked with every statement.

use pgweir_settings::{
    CommitOutcome, Config, Database, DeferBegin, PoolMode, SequenceAffinity, SessionState,
};

use crate::client_handoff::Replication;
use crate::context::duration_us;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::multiplex::pipelined::MultiplexLimits;

/// The settings of a pool that depend on its database and user, as looked up from the configuration.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// The pool mode, from the user's setting, then the database's, then the global one.
    pub(crate) mode: PoolMode,
    session_state: SessionState,
    /// The treatment of `currval` and `lastval`.
    pub(crate) sequences: SequenceAffinity,
    /// Duration from which a statement is logged (µs); the maximum if none is.
    pub(crate) slow_us: u64,
    /// Duration from which a statement is too long to have others queued behind it (`multiplex_max_ms`, in µs).
    pub(crate) long_us: u64,
    /// `server_lifetime` of the pool's servers (µs).
    pub(crate) lifetime_us: u64,
    /// Whether a limit that spans several pools applies to this one.
    pub(crate) is_limited: bool,
    /// Whether named prepared statements are known by content in this pool.
    pub(crate) tracks_statements: bool,
    /// The BEGINs that pgweir answers without a server.
    pub(crate) without_server: BeginsWithoutServer,
    /// The information that a client gets if its server is lost.
    pub(crate) on_loss: OnLoss,
    /// The bounds of multiplexing; `None` if the pool does not multiplex.
    pub(crate) multiplex: Option<MultiplexLimits>,
}

/// The extent to which pgweir notes the sessions of a pool's servers. A server may hold state of a client that pgweir has not noted if the
/// server was used under other notes. So the pool's servers are replaced when a reload changes this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionNotes {
    kept: SessionKept,
    tracks_statements: bool,
}

/// The place of a client's session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionKept {
    /// The server, which is the client's until it leaves (session pooling).
    AtServer,
    /// pgweir, which brings each server to it.
    AtPgweir,
    /// Whichever server the client had (`session_state=pgbouncer`).
    Nowhere,
}

/// The BEGINs that pgweir answers without a server, as `defer_begin` sets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BeginsWithoutServer {
    None,
    /// BEGINs of transactions that may read at a standby.
    OfReads,
    All,
}

/// The information that a client gets if its server is lost during a transaction or statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnLoss {
    /// The client's connection ends without further information.
    Ends,
    /// The client's connection ends. In a cluster, a server whose node has another role than before gets nothing new.
    EndsAtFence,
    /// The client learns at once whether its transaction is rolled back. The pool has a cluster, and its servers change hands.
    Tells,
    /// The client learns the same as with `Tells`, and also the outcome of its COMMIT, for which the next primary is asked
    /// (`commit_outcome`).
    Asks,
    /// The client learns the same as with `Asks`. In addition COMMIT is sent only after the number of its transaction is known.
    AsksFirst,
}

impl OnLoss {
    /// Whether the next primary is asked for the outcome of a COMMIT.
    pub(crate) fn asks(self) -> bool {
        matches!(self, OnLoss::Asks | OnLoss::AsksFirst)
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            mode: PoolMode::Session,
            session_state: SessionState::Pgbouncer,
            sequences: SequenceAffinity::Off,
            slow_us: u64::MAX,
            long_us: 0,
            lifetime_us: u64::MAX,
            is_limited: false,
            tracks_statements: false,
            without_server: BeginsWithoutServer::None,
            on_loss: OnLoss::Ends,
            multiplex: None,
        }
    }
}

impl Policy {
    /// Looks up the settings of the pool for this database and user.
    pub(crate) fn of(config: &Config, database: &Database, user: &str) -> Policy {
        let mode = config.pool_mode(database, user);
        let slow = config.log_min_duration(database, user);
        let mut policy = Policy {
            mode,
            session_state: config.session_state(database, user),
            sequences: config.main.sequence_affinity,
            slow_us: slow.map_or(u64::MAX, |slow| u64::try_from(slow.as_micros()).unwrap_or(u64::MAX)),
            long_us: duration_us(config.main.multiplex_max_ms),
            lifetime_us: duration_us(config.server_lifetime(database)),
            is_limited: config.max_db_connections(database) > 0 || config.max_user_connections(user) > 0,
            tracks_statements: mode != PoolMode::Session && config.main.max_prepared_statements > 0,
            without_server: match config.main.defer_begin {
                DeferBegin::Server if mode == PoolMode::Transaction => BeginsWithoutServer::All,
                DeferBegin::Packet if mode == PoolMode::Transaction && database.cluster.is_some() => {
                    BeginsWithoutServer::OfReads
                }
                _ => BeginsWithoutServer::None,
            },
            on_loss: match database.cluster {
                Some(_) if mode != PoolMode::Session => match config.commit_outcome(database, user) {
                    CommitOutcome::Off => OnLoss::Tells,
                    CommitOutcome::On => OnLoss::Asks,
                    CommitOutcome::Exact => OnLoss::AsksFirst,
                },
                Some(_) => OnLoss::EndsAtFence,
                None => OnLoss::Ends,
            },
            multiplex: None,
        };
        let resets = config.main.server_reset_query_always && !config.main.server_reset_query.is_empty();
        if mode != PoolMode::Session && config.main.multiplex_depth > 0 && !resets {
            policy.multiplex =
                Some(MultiplexLimits { depth: config.main.multiplex_depth as usize, max_us: policy.long_us });
        }
        policy.sequences = match policy.sequences {
            _ if !policy.keeps_sessions() => SequenceAffinity::Off,
            SequenceAffinity::Pin if policy.refuses_pins() => SequenceAffinity::Wait,
            affinity => affinity,
        };
        policy
    }

    /// Whether a client keeps its server until it leaves (session pooling).
    pub(crate) fn keeps_server(&self) -> bool {
        self.mode == PoolMode::Session
    }

    /// Whether clients keep their session although servers change hands.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.mode != PoolMode::Session && self.tries_startup()
    }

    /// Returns the extent to which pgweir notes the sessions of the pool's servers.
    pub(crate) fn session_notes(&self) -> SessionNotes {
        let kept = match () {
            () if self.keeps_server() => SessionKept::AtServer,
            () if self.keeps_sessions() => SessionKept::AtPgweir,
            () => SessionKept::Nowhere,
        };
        SessionNotes { kept, tracks_statements: self.tracks_statements }
    }

    /// Whether all startup parameters are tried on a server.
    pub(crate) fn tries_startup(&self) -> bool {
        self.session_state != SessionState::Pgbouncer
    }

    /// Whether a client that would keep its server is refused.
    pub(crate) fn refuses_pins(&self) -> bool {
        self.session_state == SessionState::Error
    }
}

impl Pool {
    /// Whether statements of this client are known by content: it shares servers with other clients, and `max_prepared_statements` is
    /// on.
    pub(crate) fn client_tracks_statements(&self, id: ClientId) -> bool {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else {
            return false;
        };
        // A client with names known by content keeps that, even if RELOAD changes the setting.
        (self.state.policy.tracks_statements || account.statements.is_some())
            && account.replication == Replication::None
    }
}
