//! What the configuration says of a pool, as it is asked with every statement.

use pgweir_settings::{
    CommitOutcome, Config, Database, DeferBegin, PoolMode, SequenceAffinity, SessionState,
};

use crate::client_handoff::Replication;
use crate::context::duration_us;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::multiplex::pipelined::MultiplexLimits;

/// See the file's head.
#[derive(Clone, Copy)]
pub(crate) struct Policy {
    /// Its mode: user, then database, then global.
    pub(crate) mode: PoolMode,
    session_state: SessionState,
    /// What is done for `currval` and `lastval`.
    pub(crate) sequences: SequenceAffinity,
    /// From this time on its statements are logged (µs).
    pub(crate) slow_us: u64,
    /// From this time on a statement is too long to have others queued behind it (`multiplex_max_ms`, µs).
    pub(crate) long_us: u64,
    /// `server_lifetime` of its servers (µs).
    pub(crate) lifetime_us: u64,
    /// A limit that spans pools concerns it.
    pub(crate) is_limited: bool,
    /// Named prepared statements are known by content here.
    pub(crate) tracks_statements: bool,
    /// Which BEGINs are answered without a server.
    pub(crate) without_server: BeginsWithoutServer,
    /// What its clients learn if their server is lost.
    pub(crate) on_loss: OnLoss,
    /// The bounds of multiplexing; `None` if it does not multiplex.
    pub(crate) multiplex: Option<MultiplexLimits>,
}

/// Which BEGINs are answered without a server, as far as the configuration says (`defer_begin`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BeginsWithoutServer {
    None,
    /// Those of transactions that may read at a standby.
    OfReads,
    All,
}

/// What a client learns if its server is lost in the middle of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnLoss {
    /// Its connection ends.
    Ends,
    /// The same, in a cluster: a server whose node has another role than before gets nothing new.
    EndsAtFence,
    /// What became of that, if it can be told at once: the pool has a cluster, and its servers change hands.
    Tells,
    /// And what became of its COMMIT, for which the next primary is asked (`commit_outcome`).
    Asks,
    /// The same; and COMMIT is sent only when its transaction's number is known.
    AsksFirst,
}

impl OnLoss {
    /// The next primary is asked what became of a COMMIT.
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
    /// For a pool of this database and user.
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

    /// A client keeps its server as long as it is there.
    pub(crate) fn keeps_server(&self) -> bool {
        self.mode == PoolMode::Session
    }

    /// Clients keep their session although servers change hands.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.mode != PoolMode::Session && self.tries_startup()
    }

    /// Startup parameters are tried on a server, whatever they are.
    pub(crate) fn tries_startup(&self) -> bool {
        self.session_state != SessionState::Pgbouncer
    }

    /// A client that would keep its server is refused.
    pub(crate) fn refuses_pins(&self) -> bool {
        self.session_state == SessionState::Error
    }
}

impl Pool {
    /// Statements of this client are known by content: it shares servers with other clients, and `max_prepared_statements`
    /// is on.
    pub(crate) fn client_tracks_statements(&self, id: ClientId) -> bool {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else {
            return false;
        };
        // A client with names known by content keeps that, even if RELOAD changes the setting.
        (self.state.policy.tracks_statements || account.statements.is_some())
            && account.replication == Replication::None
    }
}
