//! The state that the pools of one worker have in common, and the argument of every method that acts: the driver and the worker's [`Env`].
//! This file must not know a client or a server.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pgweir_settings::SharedLimits;

use crate::buffer_pool::BufferPool;
use crate::cluster::outcome::Outcomes;
use crate::cluster::view::View;
use crate::driver::{ConnId, Driver, Level, Now, WorkerId};
use crate::ids::{CancelId, ClientId, ForwardId, PoolId, ServerId, SubscriptionId, UnpooledId, WatchId};
use crate::limits::Limits;
use crate::mail::{Rules, Scarce, Shutdown};
use crate::pool::cache::QueryCache;
use crate::pool::cache::wal::FollowedDatabases;
use crate::pool::cancel::Requester;
use crate::pool::cancel_key::{CancelKey, KeyHead};
use crate::pool::checks::schedule::Watched;
use crate::pool::multiplex::estimate::Estimates;
use crate::pool::prepared::parse_contexts::ParseContexts;
use crate::pool::prepared::statements::Statements;
use crate::pool::prepared::texts::Texts;
use crate::pool::relay::ahead::Ahead;
use crate::pool::server::closing::ClosingServers;
use crate::pool::session::params::{Params, Tracked};
use crate::pool::show::measure::share_bytes;
use crate::shared::{Counts, Shared};
use crate::stats::snapshot::{Counters, SlowSnapshot};
use crate::stats::statements::StatementStats;
use crate::stats::trace::Sampler;
use crate::worker::Setup;
use crate::worker::login::inquiry::Answer;

/// The driver and the state that the worker's pools have in common, for the duration of one event.
pub(crate) struct Cx<'a, D> {
    pub(crate) driver: &'a mut D,
    pub(crate) env: &'a mut Env,
}

impl<'a, D: Driver> Cx<'a, D> {
    #[inline]
    pub(crate) fn new(driver: &'a mut D, env: &'a mut Env) -> Cx<'a, D> {
        Cx { driver, env }
    }

    /// Writes a log line.
    pub(crate) fn log(&mut self, level: Level, line: &str) {
        self.driver.log(level, line);
    }

    /// Returns a cancel key that no other client of this worker has, and registers it for `owner`. With `pid` the key has the process id of
    /// a server.
    pub(crate) fn new_cancel_key(&mut self, owner: KeyOwner, minor: u16, pid: Option<u32>) -> CancelKey {
        loop {
            let peer_id = self.env.rules.config.main.peer_id;
            let mut key = CancelKey::new(minor, peer_id, |bytes| self.driver.random(bytes));
            if let Some(pid) = pid {
                key = key.with_pid(pid);
            }
            if let Entry::Vacant(place) = self.env.cancel_keys.entry(key.head()) {
                place.insert(owner);
                return key;
            }
        }
    }
}

/// The state that the pools of one worker have in common: the time, the configuration, the knowledge about statements, buffers.
pub(crate) struct Env {
    /// The worker's number.
    pub(crate) worker: WorkerId,
    /// The time of the present tick.
    pub(crate) now: Now,
    pub(crate) rules: Rules,
    pub(crate) limits: Limits,
    pub(crate) shared: Arc<Shared>,
    pub(crate) clusters: KnownClusters,
    pub(crate) tracked: Arc<Tracked>,
    /// The role of each connection, by its index; with the generation of its name.
    roles: Vec<Option<(u32, Role)>>,
    /// Clients by the head of their cancel key.
    pub(crate) cancel_keys: HashMap<KeyHead, KeyOwner, foldhash::fast::FixedState>,
    pub(crate) statements: Statements,
    pub(crate) parse_contexts: ParseContexts,
    /// The results of analysing texts that come repeatedly.
    pub(crate) texts: Texts,
    pub(crate) measured: Measured,
    /// Statements that change sessions unseen.
    pub(crate) watched: Watched,
    /// The time at which a client will have waited so long that an idle server is woken for it (monotonic, µs).
    pub(crate) wake_us: Option<u64>,
    /// A buffer for messages that are put together before they are sent.
    pub(crate) scratch: Vec<u8>,
    /// The messages that are sent to the server ahead of the client's message that is being passed on.
    pub(crate) ahead: Ahead,
    pub(crate) buffers: BufferPool,
    pub(crate) activity: Activity,
    pub(crate) stopping: Option<Shutdown>,
    /// The databases whose changes are followed.
    pub(crate) followed: FollowedDatabases,
    /// The answers that are given again without a server; `None` if none is kept.
    pub(crate) cache: Option<Box<QueryCache>>,
    /// The server connections that are closed and count towards shared limits until PostgreSQL has ended them.
    pub(crate) closing: ClosingServers,
    /// The counters that belong to no pool.
    pub(crate) counters: Counters,
    /// The requests of pools to others, in order. The worker carries them out when the pool has finished its turn.
    pub(crate) effects: Vec<Effect>,
    /// The function that writes a time (seconds since 1970) for people; the machine knows no time zone.
    pub(crate) write_time: Option<WriteTime>,
    /// The version of pgweir itself, for SHOW VERSION; [`crate::Machine::of_version`] sets it.
    pub(crate) version: &'static str,
}

/// The views of clusters, by name.
#[derive(Default)]
pub(crate) struct KnownClusters {
    pub(crate) views: HashMap<Arc<str>, Arc<View>>,
    /// The value of [`Shared::views_told`] when this worker took those views.
    pub(crate) views_taken: u64,
    /// The outcomes of COMMITs whose primary was lost, by cluster.
    pub(crate) outcomes: HashMap<Arc<str>, Outcomes>,
}

/// The measurements of statements.
pub(crate) struct Measured {
    /// The estimated cost of statements.
    pub(crate) estimates: Estimates,
    /// The time that statements took, by text.
    pub(crate) stats: StatementStats,
    pub(crate) sampler: Sampler,
    /// The last slow statements, the newest last.
    pub(crate) slow: VecDeque<SlowSnapshot>,
}

/// A function that writes a time (seconds since 1970) for people; see [`crate::Machine::show_times_by`].
pub type WriteTime = Arc<dyn Fn(u64) -> String + Send + Sync>;

/// A request of a pool to the worker, to another pool or to a client that is in none.
pub(crate) enum Effect {
    /// A place is free that other pools may have waited for: those that wait look again, here and on other workers.
    NoticeStarving,
    /// A server became free that no client of its pool waits for: other pools may have its place.
    OfferRoom,
    /// A free server of this database or user is to be closed, so that the pool may open one.
    Evict(Scarce),
    /// The answer to a question of a client that logs in.
    Answered(UnpooledId, Answer),
    /// The cancel request of this client is over.
    EndRequester(Requester, Cow<'static, str>),
    /// Roles were dropped: servers whose session may have a role are closed, here and on other workers.
    RolesDropped,
    /// A connection to a cluster's primary failed or ended.
    Suspect(Suspicion),
    /// A client asks for answers of this database that is followed: the worker that follows it is to ask for a probe. `is_awaited`: the
    /// client waits for it, or an answer that differs from a server's is to be judged.
    WantProbe { database: Arc<str>, is_awaited: bool },
    /// A server of this database is not the PostgreSQL server whose changes are followed.
    OtherNode(Arc<str>),
    /// Queued bytes have not left: the worker looks again at this time (monotonic, µs) whether more can be handed over.
    LeaveAt(u64),
}

/// A connection to the primary of a cluster failed or ended: its nodes are to be asked. That alone is no evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// The cluster.
    pub(crate) cluster: Arc<str>,
    /// A new connection failed: the nodes are asked on new connections, too.
    pub(crate) reconnects: bool,
}

/// The client to which a cancel key belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyOwner {
    Client(PoolId, ClientId),
    Console(UnpooledId),
}

/// The role of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Unpooled(UnpooledId),
    Client(PoolId, ClientId),
    Server(PoolId, ServerId),
    Cancel(PoolId, CancelId),
    Peer(ForwardId),
    Watch(WatchId),
    /// A closed server connection that counts towards a shared limit until PostgreSQL has ended it.
    ClosingServer,
    /// One of the two connections by which a database is followed.
    Follower(SubscriptionId, Follower),
}

/// The connections by which a database is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Follower {
    /// The connection with the replication stream.
    Stream,
    /// The connection that is asked questions.
    Monitor,
}

/// PAUSE and SUSPEND without a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Activity {
    /// Servers are handed out.
    #[default]
    Active,
    /// PAUSE: no server is handed out.
    Paused,
    /// SUSPEND: no server is handed out, and no bytes are read.
    Suspended,
}

impl Env {
    pub(crate) fn new(setup: Setup) -> Env {
        let tracked = Arc::new(Tracked::of(&setup.rules.config.main));
        let measured = Measured {
            estimates: Estimates::default(),
            stats: StatementStats::new(share_bytes(&setup.rules.config.main, &setup.shared)),
            sampler: Sampler::new(&setup.rules.config.main),
            slow: VecDeque::new(),
        };
        let cache = QueryCache::of(&setup.rules.config, &setup.shared);
        let first_serial = first_serial(setup.shared.generation(), setup.worker);
        Env {
            worker: setup.worker,
            now: setup.now,
            rules: setup.rules,
            limits: Limits::default(),
            shared: setup.shared,
            clusters: KnownClusters::default(),
            tracked,
            roles: Vec::new(),
            cancel_keys: HashMap::default(),
            statements: Statements::numbered_from(first_serial),
            parse_contexts: ParseContexts::default(),
            texts: Texts::default(),
            measured,
            watched: Watched::default(),
            wake_us: None,
            scratch: Vec::new(),
            ahead: Ahead::default(),
            buffers: BufferPool::default(),
            activity: Activity::Active,
            stopping: None,
            closing: ClosingServers::default(),
            counters: Counters::default(),
            followed: FollowedDatabases::default(),
            cache,
            effects: Vec::new(),
            write_time: None,
            version: "",
        }
    }

    /// Returns the client's `application_name` among its tracked parameters; `None` if it has none.
    pub(crate) fn application_name<'a>(&self, params: &'a Params) -> Option<&'a [u8]> {
        params.get(self.tracked.position(b"application_name")?)
    }

    /// One server fewer counts towards the limits that span pools. `is_limited`: one of them is in effect, so that pools that starved by it
    /// may try again.
    pub(crate) fn give_back_places(&mut self, counts: [&Counts; 2], is_limited: bool) {
        counts.iter().for_each(|counts| counts.servers.give_back());
        if is_limited {
            self.want(Effect::NoticeStarving);
        }
    }

    /// Whether limits that span pools hold for several poolers together.
    pub(crate) fn shares_limits(&self) -> bool {
        self.rules.config.main.shared_limits == SharedLimits::Etcd
    }

    /// Adds a request of a pool to others.
    pub(crate) fn want(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Sets a time (monotonic, µs) at which the worker wakes up, unless it wakes up earlier.
    pub(crate) fn wake_at(&mut self, due_us: u64) {
        self.wake_us = Some(self.wake_us.map_or(due_us, |other_us| other_us.min(due_us)));
    }

    #[inline]
    pub(crate) fn role(&self, conn: ConnId) -> Option<Role> {
        match self.roles.get(conn.index as usize) {
            Some(Some((generation, role))) if *generation == conn.generation => Some(*role),
            _ => None,
        }
    }

    pub(crate) fn set_role(&mut self, conn: ConnId, role: Role) {
        let index = conn.index as usize;
        if self.roles.len() <= index {
            self.roles.resize(index + 1, None);
        }
        self.roles[index] = Some((conn.generation, role));
    }

    pub(crate) fn clear_role(&mut self, conn: ConnId) {
        if let Some(place) = self.roles.get_mut(conn.index as usize)
            && place.is_some_and(|(generation, _)| generation == conn.generation)
        {
            *place = None;
        }
    }
}

/// Returns the first number for statements: there is a range for each generation, and in it one for each worker.
fn first_serial(generation: u32, worker: WorkerId) -> u64 {
    u64::from(generation) << 40 | u64::from(worker.0) << 28
}

/// Returns a duration of the settings in microseconds.
pub(crate) fn duration_us(duration: std::time::Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(duration.subsec_micros()))
}
