//! One database that is followed: the state of its two connections, the question that is asked next, and what is told to the workers.

mod answers;
mod asking;
mod primary;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pgweir_settings::{Config, Database};

use crate::cluster::answer::Lsn;
use crate::cluster::view::Target;
use crate::context::{Cx, Env};
use crate::driver::{ConnId, Driver, Level};
use crate::ids::PoolId;
use crate::limits::SUBSCRIPTION_ANSWER_US_MAX;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::cache::wal::changes::Touched;
use crate::pool::cache::wal::decoder::ChangedRows;
use crate::pool::cache::wal::node::{self, Node};
use crate::pool::cache::wal::probes::Probes;
use crate::pool::cache::wal::stamp::Stamp;
use crate::pool::cache::wal::{Began, ChangesMade, News};
use crate::pool::server::following::Streamed;
use crate::pool::server::state::Serves;
use crate::pool::server::watching::WatchState;
use crate::pool::{Pool, PoolState};
use crate::shared::Counts;
use crate::worker::subscriptions::definitions::Definitions;
use crate::worker::subscriptions::questions::{self, Checked};
use crate::worker::subscriptions::spill::Spill;

/// The time after a failure at which pgweir tries again the first time. It doubles with each failure.
const RETRY_US_MIN: u64 = 1_000_000;
const RETRY_US_MAX: u64 = 60_000_000;
/// A database that is followed.
pub(super) struct Subscription {
    pub(super) database: Arc<str>,
    options: Options,
    stream: Pool,
    monitor: Pool,
    phase: Phase,
    /// The question that the monitor has not answered, and the time at which it was asked (monotonic, µs).
    asked: Option<(Asked, u64)>,
    /// The time of the next action (monotonic, µs).
    pub(super) due_us: u64,
    /// The time until which a failed subscription waits, and then its next one (µs).
    retry_us: u64,
    /// The primary that the connections were opened to, if the database has a cluster.
    primary: Option<Target>,
    /// The reason of the last failure, so that it is logged once.
    failure: String,
    slot: String,
    probes_sent: Arc<AtomicU64>,
    pub(super) news: Vec<News>,
    /// The connections that were opened, for the worker to give them their role.
    pub(super) opened: Vec<(ConnId, Serves)>,
    /// The settings with which connections began when they were last asked for, and the server that has told them. `None` before the first time.
    settings: Option<(Node, Box<str>)>,
    session: Session,
}

/// The configuration that a subscription depends on.
#[derive(Clone, PartialEq)]
pub(super) struct Options {
    pub(super) database: Database,
    pub(super) publication: String,
    pub(super) probe_us: u64,
    pub(super) definitions_us: u64,
    pub(super) lag_bytes: u64,
}

/// The knowledge that was gathered since the connections were opened.
#[derive(Default)]
struct Session {
    checked: Option<Checked>,
    definitions: Option<Definitions>,
    /// The changes through pgweir that were made when the question for definitions was last asked, and when it was last answered.
    changes: (ChangesMade, ChangesMade),
    catalog: Option<Arc<Catalog>>,
    probes: Probes,
    /// The last stamp, near which the stream's numbers of transactions are.
    near: Option<Arc<Stamp>>,
    /// Whether a worker has asked for a probe since the last one was sent, and whether a client waits for it.
    wanted: Wanted,
    /// Whether a client has begun to wait for a probe since the last one was confirmed.
    is_awaited: bool,
    /// The time of the last probe, and of the last question for definitions (monotonic, µs).
    probed_us: u64,
    looked_us: u64,
    /// The durations of the last questions for definitions (µs).
    durations_us: Vec<u64>,
    acknowledged: Lsn,
    spill: Spill,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Wanted {
    #[default]
    No,
    Soon,
    Now,
}

enum Phase {
    /// Nothing is followed. The next attempt begins when it is due.
    Off,
    /// The connections are being opened since this time, and the monitor is asked what it is.
    Dialing(u64),
    /// The server at the other end of the stream's connection is asked which one it is, since this time.
    Identifying(u64),
    /// The slot is being made. PostgreSQL waits for the transactions that have written, however long they take.
    Creating,
    /// The stream was asked for.
    Starting(u64),
    /// The stream has begun. The transactions that run are waited for.
    Opening(Opening),
    /// Answers may be kept.
    Following,
}

/// The steps of waiting for transactions. A snapshot leaves out those that are newer than the last transaction that has ended.
enum Opening {
    /// The next probe is a transaction of its own, so that all transactions that run now are older than one that has ended.
    Marking,
    /// The probe with a number was answered: the next stamp tells of all transactions that ran before it.
    Marked,
    /// The transactions of this stamp are waited for.
    Awaiting(Arc<Stamp>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Check,
    Definitions,
    Catalog,
    Spilled,
    Probe,
}

impl Subscription {
    pub(super) fn new(
        env: &Env,
        database: Arc<str>,
        options: Options,
        probes_sent: Arc<AtomicU64>,
    ) -> Subscription {
        let (stream, monitor) = (pool(env, &options.database), pool(env, &options.database));
        Subscription {
            database,
            options,
            stream,
            monitor,
            phase: Phase::Off,
            asked: None,
            due_us: env.now.mono_us,
            retry_us: RETRY_US_MIN,
            primary: None,
            failure: String::new(),
            slot: String::new(),
            probes_sent,
            news: Vec::new(),
            opened: Vec::new(),
            settings: None,
            session: Session::default(),
        }
    }

    pub(super) fn has_options(&self, options: &Options) -> bool {
        self.options == *options
    }

    pub(super) fn pool_mut(&mut self, serves: Serves) -> &mut Pool {
        if serves == Serves::Stream { &mut self.stream } else { &mut self.monitor }
    }

    /// A worker asks for a probe, because its clients ask for answers. `is_awaited`: the probe is waited for.
    pub(super) fn want_probe(&mut self, is_awaited: bool) {
        self.session.is_awaited |= is_awaited;
        self.session.wanted = self.session.wanted.max(if is_awaited { Wanted::Now } else { Wanted::Soon });
    }

    /// Does what is due, after an event or at the time that was set. The caller tells the news, and gives roles to the connections.
    pub(super) fn act<D: Driver>(&mut self, cx: &mut Cx<'_, D>, next_number: &mut u64) {
        if matches!(self.phase, Phase::Off) {
            if cx.env.now.mono_us >= self.due_us {
                self.dial(cx);
            }
            return;
        }
        if let Err(reason) = self.go_on(cx, next_number) {
            self.end(cx, &reason);
        }
    }

    /// Ends the subscription, if it has begun, to begin again later.
    pub(super) fn leave<D: Driver>(&mut self, cx: &mut Cx<'_, D>, reason: &str) {
        if !matches!(self.phase, Phase::Off) {
            self.end(cx, reason);
        }
    }

    /// Ends the subscription, to begin again later.
    pub(super) fn end<D: Driver>(&mut self, cx: &mut Cx<'_, D>, reason: &str) {
        self.stream.end_watch(cx, "changes are not followed any more");
        self.monitor.end_watch(cx, "changes are not followed any more");
        if reason != self.failure {
            let line =
                format!("query cache: changes of database \"{}\" are not followed: {reason}", self.database);
            cx.log(Level::Warning, &line);
            reason.clone_into(&mut self.failure);
        }
        self.opened.clear();
        self.phase = Phase::Off;
        self.asked = None;
        self.session = Session::default();
        self.due_us = cx.env.now.mono_us.saturating_add(self.retry_us);
        self.retry_us = (self.retry_us * 2).min(RETRY_US_MAX);
        self.news.push(News::Ended("off", reason.into()));
    }

    fn dial<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if self.options.database.cluster.is_some() && !self.aim_at_primary(cx.env) {
            return;
        }
        self.phase = Phase::Dialing(cx.env.now.mono_us);
        self.due_us = cx.env.now.mono_us.saturating_add(SUBSCRIPTION_ANSWER_US_MAX);
        for serves in [Serves::Monitor, Serves::Stream] {
            match self.pool_mut(serves).dial_follower(cx, serves) {
                Some(conn) => self.opened.push((conn, serves)),
                None => return self.end(cx, "max_db_connections or max_user_connections leaves no room"),
            }
        }
        self.news.push(News::Ended("opening", "connecting".into()));
    }

    fn go_on<D: Driver>(&mut self, cx: &mut Cx<'_, D>, next_number: &mut u64) -> Result<(), String> {
        for pool in [&mut self.stream, &mut self.monitor] {
            if pool.watch_state() == WatchState::Apart {
                let failure = pool.state.node.failure.take();
                return Err(failure.map_or_else(
                    || "the connection ended".to_owned(),
                    |failure| {
                        let code = failure.code.map(|code| code.as_bytes().to_vec()).unwrap_or_default();
                        questions::mended(&code, &failure.text, &pool.state.user)
                    },
                ));
            }
        }
        self.take_stream(cx)?;
        if let Some((asked, asked_us)) = self.asked
            && let Some(answer) = self.monitor.take_answer()
        {
            self.asked = None;
            self.take_answer(cx, asked, asked_us, &answer, next_number)?;
        }
        self.advance_phase(cx)?;
        self.ask_next(cx);
        self.rearm(cx.env)
    }

    /// Takes what has arrived in the stream.
    fn take_stream<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> Result<(), String> {
        let mut replies = false;
        for streamed in self.stream.take_streamed()? {
            match streamed {
                Streamed::Began => self.began()?,
                Streamed::Committed(committed) => {
                    let near = self.session.near.as_deref().ok_or("the stream came too early")?;
                    let xid = near.widen(committed.xid);
                    if !committed.tables.is_empty() {
                        self.news.push(News::Changed(xid, self.touched(committed.tables)));
                    }
                    self.session.probes.advance(committed.end);
                }
                Streamed::Position(position) => self.session.probes.advance(position),
                Streamed::WantsReply => replies = true,
            }
        }
        let position = self.session.probes.position();
        if replies || position > self.session.acknowledged {
            self.stream.acknowledge(cx, position);
            self.session.acknowledged = position;
        }
        self.confirm()
    }

    /// Returns what a transaction has touched, by the keys that the workers know.
    fn touched(&self, changed: BTreeMap<u32, ChangedRows>) -> Arc<[(u32, Touched)]> {
        match &self.session.catalog {
            Some(catalog) => catalog.touched(changed),
            // Nothing is kept before the next catalog is known.
            None => changed.into_keys().map(|table| (table, Touched::All)).collect(),
        }
    }

    fn confirm(&mut self) -> Result<(), String> {
        let lag_bytes = self.session.probes.lag_bytes();
        if lag_bytes > self.options.lag_bytes {
            return Err(format!("reading is {lag_bytes} bytes behind (query_cache_lag_bytes)"));
        }
        if let Some(fresh) = self.session.probes.confirm() {
            self.session.is_awaited = false;
            self.news.push(News::Fresh(fresh, lag_bytes));
        }
        Ok(())
    }

    fn began(&mut self) -> Result<(), String> {
        let (Phase::Starting(_), Some(checked), Some(catalog)) =
            (&self.phase, &self.session.checked, &self.session.catalog)
        else {
            return Err("the stream began without having been asked for".to_owned());
        };
        let probes_sent = Arc::clone(&self.probes_sent);
        self.news.push(News::Began(Began { probes_sent, node: checked.node }));
        self.news.push(News::Catalog(Arc::clone(catalog)));
        self.news.push(News::Looked(self.session.changes.1));
        self.wait_for_transactions();
        Ok(())
    }

    /// Keeps answers from being kept until the transactions that run now are over.
    fn wait_for_transactions(&mut self) {
        self.phase = Phase::Opening(Opening::Marking);
        self.news.push(News::Closed("waiting for the transactions that were open at the start".into()));
    }

    fn open<D: Driver>(&mut self, cx: &mut Cx<'_, D>, next_number: &mut u64) {
        *next_number += 1;
        self.news.push(News::Opened(*next_number));
        self.retry_us = RETRY_US_MIN;
        let tables = self.session.catalog.as_ref().map_or(0, |catalog| catalog.tables());
        let line =
            format!("query cache: changes of database \"{}\" are followed, {tables} tables", self.database);
        let level = if std::mem::take(&mut self.failure).is_empty() { Level::Debug } else { Level::Log };
        cx.log(level, &line);
    }

    /// Goes from one phase to the next if its question is answered.
    fn advance_phase<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> Result<(), String> {
        let now_us = cx.env.now.mono_us;
        match self.phase {
            Phase::Dialing(_)
                if self.session.catalog.is_some() && self.stream.watch_state() == WatchState::Answered =>
            {
                self.stream.ask_follower(cx, node::QUESTION);
                self.phase = Phase::Identifying(now_us);
            }
            Phase::Identifying(_) => {
                if let Some(answer) = self.stream.take_answer() {
                    let node = questions::read_node(&answer)?;
                    if Some(self.node()?) != node {
                        return Err("the two connections have reached different servers".to_owned());
                    }
                    self.create_slot(cx);
                }
            }
            Phase::Creating => {
                if let Some(answer) = self.stream.take_answer() {
                    if let Some((code, text)) = &answer.failed {
                        return Err(questions::mended(code.as_bytes(), text, &self.stream.state.user));
                    }
                    let text = questions::start_replication(&self.slot, &self.options.publication);
                    self.stream.begin_stream(cx, &text);
                    self.phase = Phase::Starting(now_us);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn create_slot<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let mut random = [0; 8];
        cx.driver.random(&mut random);
        self.slot = format!("pgweir_cache_{:016x}", u64::from_be_bytes(random));
        let text = questions::create_slot(&self.slot);
        self.stream.ask_follower(cx, &text);
        self.phase = Phase::Creating;
        self.session.spill.asked_us = cx.env.now.mono_us;
        let reason = "making the slot: PostgreSQL waits for the transactions that have written";
        self.news.push(News::Ended("opening", reason.into()));
    }
}

/// Returns a pool for one of the connections. It counts towards no limit of others.
fn pool(env: &Env, database: &Database) -> Pool {
    let user: Arc<str> = database.user.as_deref().unwrap_or_default().into();
    let name: Arc<str> = database.name.as_str().into();
    let counts = (Arc::<Counts>::default(), Arc::<Counts>::default());
    let mut state = PoolState::new(name, user, Arc::new(database.clone()), counts, env.now.mono_us);
    state.follow(&env.rules.config);
    Pool::new(PoolId::default(), state)
}

impl Options {
    /// Returns the options for a database; `None` if the configuration does not follow it.
    pub(super) fn of(config: &Config, name: &str) -> Option<Options> {
        let main = &config.main;
        if !config.is_followed(name) {
            return None;
        }
        let database = config.databases.get(name)?;
        let milliseconds = |value: u32| u64::from(value) * 1000;
        Some(Options {
            database: Database {
                user: Some(main.query_cache_user.clone()),
                password: None,
                application_name: Some("pgweir query cache".to_owned()),
                client_encoding: None,
                datestyle: None,
                timezone: None,
                connect_query: None,
                ..database.clone()
            },
            publication: main.query_cache_publication.clone(),
            probe_us: milliseconds(main.query_cache_probe_ms),
            definitions_us: milliseconds(main.query_cache_ddl_ms),
            lag_bytes: u64::from(main.query_cache_lag_bytes),
        })
    }
}
