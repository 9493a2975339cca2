//! One database that is followed: the state of its two connections, the question that is asked next, and what is told to the workers.

mod primary;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgweir_settings::{Config, Database};

use crate::cluster::answer::Lsn;
use crate::cluster::view::Target;
use crate::context::{Cx, Env};
use crate::driver::{ConnId, Driver, Level};
use crate::ids::PoolId;
use crate::limits::SUBSCRIPTION_ANSWER_US_MAX;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::cache::wal::changes::{StampNumber, Touched};
use crate::pool::cache::wal::decoder::ChangedRows;
use crate::pool::cache::wal::node::{self, Node};
use crate::pool::cache::wal::probes::Probes;
use crate::pool::cache::wal::stamp::Stamp;
use crate::pool::cache::wal::{Began, ChangesMade, News};
use crate::pool::server::asked::Replies;
use crate::pool::server::following::Streamed;
use crate::pool::server::state::Serves;
use crate::pool::server::watching::WatchState;
use crate::pool::{Pool, PoolState};
use crate::shared::Counts;
use crate::worker::subscriptions::questions::{self, Checked, Definitions};
use crate::worker::subscriptions::spill::{SPILL_EVERY_US, Spill};

/// The time after a failure at which pgweir tries again the first time. It doubles with each failure.
const RETRY_US_MIN: u64 = 1_000_000;
const RETRY_US_MAX: u64 = 60_000_000;
/// The time after which a probe that is not confirmed is followed by one that makes PostgreSQL write its log.
const FLUSH_AFTER_US: u64 = 20_000;
/// The same while a client waits.
const AWAITED_FLUSH_AFTER_US: u64 = 2_000;
/// The part of a server's time that the question for definitions may take: one in so many.
const DEFINITIONS_SHARE: u64 = 100;
/// The number of such questions of which the fastest one counts.
const DEFINITIONS_MEASURED: usize = 8;
/// After a change through pgweir the definitions are asked for at once, but not more often than that: one in so many intervals.
const DEFINITIONS_SOONER: u64 = 10;

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

/// What is known since the connections were opened.
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
    /// That probe was answered: the next stamp tells of all transactions that ran before it.
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

    /// A worker's clients ask for answers; `waits`: one waits for a probe.
    pub(super) fn want_probe(&mut self, waits: bool) {
        self.session.is_awaited |= waits;
        self.session.wanted = self.session.wanted.max(if waits { Wanted::Now } else { Wanted::Soon });
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

    fn take_answer<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        asked: Asked,
        asked_us: u64,
        answer: &Replies,
        next_number: &mut u64,
    ) -> Result<(), String> {
        match asked {
            Asked::Check => {
                let checked = Checked::read(answer, &self.options.publication)?;
                self.session.near = Some(Arc::new(checked.stamp.clone()));
                self.session.checked = Some(checked);
                Ok(())
            }
            Asked::Definitions => self.take_definitions(cx.env.now.mono_us, asked_us, answer),
            Asked::Catalog => {
                let catalog = Arc::new(questions::read_catalog(answer)?);
                self.session.catalog = Some(Arc::clone(&catalog));
                match self.phase {
                    Phase::Following => {
                        self.news.push(News::Catalog(catalog));
                        self.open(cx, next_number);
                    }
                    Phase::Opening(_) => self.news.push(News::Catalog(catalog)),
                    _ => {}
                }
                Ok(())
            }
            Asked::Spilled => self.take_spilled(answer),
            Asked::Probe => self.take_probe(cx, answer, next_number),
        }
    }

    fn take_definitions(&mut self, now_us: u64, asked_us: u64, answer: &Replies) -> Result<(), String> {
        let found = Definitions::read(answer)?;
        self.measure_definitions(now_us.saturating_sub(asked_us))?;
        let node = self.node()?;
        let begins_with = (node, found.settings.clone());
        if self.settings.as_ref() != Some(&begins_with) {
            // Servers that logged in before may have other settings than those that log in now.
            self.settings = Some(begins_with);
            self.news.push(News::Settings);
        }
        let is_told = matches!(self.phase, Phase::Following | Phase::Opening(_));
        self.session.changes.1 = self.session.changes.0;
        let looked = News::Looked(self.session.changes.1);
        let before = self.session.definitions.replace(found.clone());
        if before.as_ref().is_none_or(|before| *before == found) {
            self.news.extend(is_told.then_some(looked));
            return Ok(());
        }
        self.session.catalog = None;
        if is_told {
            self.news.push(News::Closed("definitions, rights or settings have changed".into()));
            self.news.push(looked);
        }
        if before.is_some_and(|before| before.publication != found.publication) && is_told {
            // Changes that a transaction made before its table was published are never sent.
            self.wait_for_transactions();
        }
        Ok(())
    }

    fn take_spilled(&mut self, answer: &Replies) -> Result<(), String> {
        let (bytes, stamp) = questions::read_spilled(answer)?;
        let spilled_bytes = self.session.spill.take(bytes, stamp);
        if spilled_bytes <= self.options.lag_bytes {
            return Ok(());
        }
        Err(format!(
            "PostgreSQL has written {spilled_bytes} bytes of transactions under way to its disk for the slot (query_cache_lag_bytes)"
        ))
    }

    /// Returns the server that the monitor has reached.
    fn node(&self) -> Result<Node, String> {
        self.session
            .checked
            .as_ref()
            .map(|checked| checked.node)
            .ok_or_else(|| "the server is not known".to_owned())
    }

    /// Notes the duration of a question for definitions (µs).
    ///
    /// # Errors
    /// The questions take too much of a server's time.
    fn measure_definitions(&mut self, duration_us: u64) -> Result<(), String> {
        let durations_us = &mut self.session.durations_us;
        if durations_us.len() >= DEFINITIONS_MEASURED {
            durations_us.remove(0);
        }
        durations_us.push(duration_us);
        let fastest_us = durations_us.iter().min().copied().unwrap_or(0);
        let needed_us = fastest_us.saturating_mul(DEFINITIONS_SHARE);
        if durations_us.len() < DEFINITIONS_MEASURED || needed_us <= self.options.definitions_us {
            return Ok(());
        }
        // With this configuration the next attempt will hardly go better.
        self.retry_us = RETRY_US_MAX;
        // Rounded up, so that the same text is logged once.
        let needed_ms = needed_us.div_ceil(1_000_000) * 1000;
        Err(format!(
            "asking whether definitions have changed takes more than a hundredth of query_cache_ddl_ms: set it to {needed_ms} or more"
        ))
    }

    fn take_probe<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        answer: &Replies,
        next_number: &mut u64,
    ) -> Result<(), String> {
        let (stamp, position) = questions::read_probe(answer, &self.node()?)?;
        let page_bytes = self.session.checked.as_ref().map_or(0, |checked| checked.page_bytes);
        let stamp = Arc::new(stamp);
        let Some(probe) = self.session.probes.answer(position, page_bytes) else { return Ok(()) };
        self.session.near = Some(Arc::clone(&stamp));
        self.news.push(News::Stamp(probe.number, Arc::clone(&stamp)));
        if let Phase::Opening(Opening::Marking) = self.phase {
            self.phase = Phase::Opening(Opening::Marked);
            return self.confirm();
        }
        if let Phase::Opening(Opening::Marked) = self.phase {
            self.phase = Phase::Opening(Opening::Awaiting(Arc::clone(&stamp)));
        }
        let Phase::Opening(Opening::Awaiting(first)) = &self.phase else { return self.confirm() };
        if stamp.is_after_all_of(first) {
            if self.session.catalog.is_some() {
                self.phase = Phase::Following;
                self.open(cx, next_number);
            }
        } else {
            let reason = format!("waiting for transaction {}, which was open at the start", stamp.oldest());
            self.news.push(News::Closed(reason.into()));
        }
        self.confirm()
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

    /// Asks the monitor the next question that is due, if it has answered the one before.
    fn ask_next<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if self.asked.is_some() || self.monitor.watch_state() != WatchState::Answered {
            return;
        }
        let now_us = cx.env.now.mono_us;
        let publication = &self.options.publication;
        let version = self.session.checked.as_ref().map_or(0, |checked| checked.version);
        let (asked, text) = if self.session.checked.is_none() {
            (Asked::Check, questions::check(publication))
        } else if self.session.definitions.is_none() || now_us >= self.definitions_due_us(cx.env) {
            self.session.looked_us = now_us;
            self.session.changes.0 = changes_made(cx.env);
            let text = match self.session.definitions {
                None => questions::first_definitions(publication, version),
                Some(_) => questions::DEFINITIONS.to_owned(),
            };
            (Asked::Definitions, text)
        } else if self.session.catalog.is_none() {
            (Asked::Catalog, questions::catalog(publication, version))
        } else if now_us >= self.spill_due_us() {
            self.session.spill.asked_us = now_us;
            (Asked::Spilled, questions::spilled(&self.slot))
        } else if self.is_streaming() && now_us >= self.probe_due_us() {
            (Asked::Probe, self.probe(now_us).to_owned())
        } else {
            return;
        };
        self.asked = Some((asked, now_us));
        self.monitor.ask_follower(cx, &text);
    }

    fn probe(&mut self, now_us: u64) -> &'static str {
        let flush_us = self.flush_us();
        let session = &mut self.session;
        (session.probed_us, session.wanted) = (now_us, Wanted::No);
        let number = self.probes_sent.fetch_add(1, Ordering::SeqCst) + 1;
        session.probes.send(StampNumber(number), now_us);
        let waits_us = session.probes.unconfirmed_since_us().map(|since_us| now_us.saturating_sub(since_us));
        match waits_us {
            _ if matches!(self.phase, Phase::Opening(Opening::Marking)) => questions::FLUSHING_PROBE,
            Some(waits_us) if waits_us >= flush_us => questions::FLUSHING_PROBE,
            _ => questions::PROBE,
        }
    }

    /// The time after which a probe that is not confirmed is followed by one that makes PostgreSQL write its log (µs).
    fn flush_us(&self) -> u64 {
        if self.session.is_awaited { AWAITED_FLUSH_AFTER_US } else { FLUSH_AFTER_US }
    }

    fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Opening(_) | Phase::Following)
    }

    /// The time at which the next probe is due (monotonic, µs).
    fn probe_due_us(&self) -> u64 {
        let regular_us = self.session.probed_us.saturating_add(self.options.probe_us);
        let unconfirmed_us = self.session.probes.unconfirmed_since_us();
        let flush_due_us = match unconfirmed_us {
            Some(_) => self.session.probed_us.saturating_add(self.flush_us()),
            None => u64::MAX,
        };
        match (&self.phase, self.session.wanted) {
            (Phase::Opening(Opening::Marked), _) => 0,
            (Phase::Opening(_), _) => regular_us,
            (Phase::Following, Wanted::Now) => 0,
            (Phase::Following, Wanted::Soon) => regular_us.min(flush_due_us),
            // A probe that is not confirmed may need another one.
            (Phase::Following, Wanted::No) if unconfirmed_us.is_some() => flush_due_us,
            _ => u64::MAX,
        }
    }

    /// The time at which the spilled bytes are to be asked for next (monotonic, µs).
    fn spill_due_us(&self) -> u64 {
        match self.phase {
            Phase::Off | Phase::Dialing(_) | Phase::Identifying(_) => u64::MAX,
            Phase::Creating | Phase::Starting(_) | Phase::Opening(_) | Phase::Following => {
                self.session.spill.asked_us.saturating_add(SPILL_EVERY_US)
            }
        }
    }

    /// The time at which the definitions are to be asked for next (monotonic, µs).
    fn definitions_due_us(&self, env: &Env) -> u64 {
        let every_us = self.options.definitions_us;
        let has_changed = changes_made(env) != self.session.changes.0;
        let after_us = if has_changed { every_us / DEFINITIONS_SOONER } else { every_us };
        self.session.looked_us.saturating_add(after_us)
    }

    /// Sets the time of the next action.
    ///
    /// # Errors
    /// The server has not answered in time.
    fn rearm(&mut self, env: &Env) -> Result<(), String> {
        let now_us = env.now.mono_us;
        let patience_us = |since_us: u64| since_us.saturating_add(SUBSCRIPTION_ANSWER_US_MAX);
        let question_late_us = self.asked.map_or(u64::MAX, |(_, asked_us)| patience_us(asked_us));
        let phase_late_us = match &self.phase {
            Phase::Dialing(since_us) | Phase::Identifying(since_us) | Phase::Starting(since_us) => {
                patience_us(*since_us)
            }
            // The slot is made when the transactions that have written are over.
            _ => u64::MAX,
        };
        let late_us = question_late_us.min(phase_late_us);
        if now_us >= late_us {
            return Err("the server did not answer in time".to_owned());
        }
        let next_us = match (self.asked, self.session.checked.is_some()) {
            (None, true) => self.definitions_due_us(env).min(self.probe_due_us()).min(self.spill_due_us()),
            _ => u64::MAX,
        };
        self.due_us = late_us.min(next_us).max(now_us);
        Ok(())
    }
}

/// Returns the changes that were made through pgweir up to now.
fn changes_made(env: &Env) -> ChangesMade {
    ChangesMade { age: env.shared.age(), changes: env.shared.changes() }
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
