//! The last sample of the workers, the changes since the one before, and the last hour. It has only numbers:
//! other modules decide how they are shown, and to whom.

mod series;
mod track;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pgweir_core::snapshot::{
    CacheNumbers, ClientNumbers, Counters, FollowedNumbers, MultiplexNumbers, PoolSnapshot, ServerNumbers,
    WorkerSnapshot,
};
use pgweir_core::stats::Stats;
use pgweir_core::stats::continuity::Continuity;
use pgweir_core::stats::times::Times;

use super::Load;
use super::limits::TRACKS_MAX;
use super::process::Process;
use series::Gauges;
pub(super) use series::{COLUMNS, Lately, Series};
pub(super) use track::{Rates, Track, together};

/// A pool's name: database and server user.
pub(super) type PoolName = (Arc<str>, Arc<str>);

/// The numbers of all workers; see the module's head.
pub(super) struct Model {
    pools: BTreeMap<PoolName, PoolState>,
    databases: BTreeMap<Arc<str>, Track>,
    /// The counters of pools that are gone, by database, as long as the database has other pools.
    past: BTreeMap<Arc<str>, Past>,
    /// The track of the whole process.
    whole: Track,
    workers: Vec<WorkerState>,
    counters: Counters,
    consoles: u32,
    logging_in: u32,
    activity: Activity,
    pub(super) process: Process,
    cpu_share: Option<f64>,
    prepared_statements: u32,
    followed: FollowedNumbers,
    sampled_at: Option<Instant>,
    sampled_s: f64,
    /// The number of samples since the end of the last second.
    looks: u32,
    /// The end of the last second, and the CPU time that the process had used by then.
    second: Option<(Instant, Option<f64>)>,
    /// The ends of the steps of series, the newest last.
    clock: series::Clock,
}

/// The state of the process as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    Active,
    Paused,
    Suspended,
    Stopping,
}

impl Activity {
    /// Returns the state of a process with these workers. If one worker is stopping, the process is.
    pub(super) fn of(workers: &[WorkerSnapshot]) -> Activity {
        let any = |says: fn(&WorkerSnapshot) -> bool| workers.iter().any(says);
        match () {
            () if any(|worker| worker.stopping.is_some()) => Activity::Stopping,
            () if any(|worker| worker.suspended) => Activity::Suspended,
            () if any(|worker| worker.paused) => Activity::Paused,
            () => Activity::Active,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Activity::Active => "active",
            Activity::Paused => "paused",
            Activity::Suspended => "suspended",
            Activity::Stopping => "stopping",
        }
    }
}

/// A worker's counters, and its share of the last second.
#[derive(Clone, Copy, Default)]
pub(super) struct WorkerState {
    pub(super) load: Load,
    before: Load,
    pub(super) busy: f64,
}

/// The last sample of a pool.
pub(super) struct PoolState {
    pub(super) snapshot: PoolSnapshot,
    pub(super) track: Track,
    gauges: Gauges,
    pub(super) lately: Option<Lately>,
}

/// The counters and numbers of several pools, added up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) clients: ClientNumbers,
    pub(super) servers: ServerNumbers,
    pub(super) multiplexing: MultiplexNumbers,
    pub(super) cache: CacheNumbers,
    pub(super) stats: Stats,
    pub(super) continuity: Continuity,
    pub(super) errors: u64,
    pub(super) size: u64,
    pub(super) wait_oldest_us: u64,
}

impl Sum {
    pub(super) fn of<'a>(pools: impl IntoIterator<Item = &'a PoolSnapshot>) -> Sum {
        let mut sum = Sum::default();
        pools.into_iter().for_each(|pool| sum.add(pool));
        sum
    }

    pub(super) fn add(&mut self, pool: &PoolSnapshot) {
        let (own, their) = (&mut self.clients, &pool.clients);
        own.linked += their.linked;
        own.pinned += their.pinned;
        own.idle_in_transaction += their.idle_in_transaction;
        own.queued_behind += their.queued_behind;
        own.waiting += their.waiting;
        own.idle += their.idle;
        own.cancels_sent += their.cancels_sent;
        own.cancels_waiting += their.cancels_waiting;
        let (own, their) = (&mut self.servers, &pool.servers);
        own.active += their.active;
        own.active_cancel += their.active_cancel;
        own.being_canceled += their.being_canceled;
        own.idle += their.idle;
        own.used += their.used;
        own.tested += their.tested;
        own.login += their.login;
        self.multiplexing.target += pool.multiplexing.target;
        self.multiplexing.busy += pool.multiplexing.busy;
        self.cache.answers += pool.cache.answers;
        self.cache.bytes += pool.cache.bytes;
        self.size += u64::from(pool.size);
        self.wait_oldest_us = self.wait_oldest_us.max(pool.wait_oldest_us);
        self.add_counters((&pool.multiplexing, &pool.cache), &pool.stats, &pool.continuity, pool.errors);
    }

    /// Adds the counters of pools that are gone.
    pub(super) fn add_past(&mut self, past: &Sum) {
        self.add_counters((&past.multiplexing, &past.cache), &past.stats, &past.continuity, past.errors);
    }

    /// Adds the numbers that only grow.
    fn add_counters(
        &mut self,
        (multiplexing, cache): (&MultiplexNumbers, &CacheNumbers),
        stats: &Stats,
        continuity: &Continuity,
        errors: u64,
    ) {
        self.multiplexing.decisions += multiplexing.decisions;
        self.multiplexing.multiplexed += multiplexing.multiplexed;
        self.multiplexing.requeued += multiplexing.requeued;
        self.multiplexing.violations += multiplexing.violations;
        self.cache.hits += cache.hits;
        self.cache.misses += cache.misses;
        self.cache.fills += cache.fills;
        self.cache.too_long += cache.too_long;
        self.cache.unfit += cache.unfit;
        self.cache.evicted += cache.evicted;
        self.cache.coalesced += cache.coalesced;
        self.cache.expired += cache.expired;
        self.cache.own_changes += cache.own_changes;
        self.cache.changed += cache.changed;
        self.cache.row_changed += cache.row_changed;
        self.cache.verified += cache.verified;
        self.cache.wrong += cache.wrong;
        self.cache.not_fresh += cache.not_fresh;
        self.cache.unsettled += cache.unsettled;
        self.cache.redefined += cache.redefined;
        self.cache.purged += cache.purged;
        self.cache.aged += cache.aged;
        self.cache.age_us += cache.age_us;
        self.cache.saved_us += cache.saved_us;
        self.stats = self.stats.plus(stats);
        self.continuity = self.continuity.plus(continuity);
        self.errors += errors;
    }
}

/// The counters of pools that are gone. Without them, the sum over a database's pools would decrease.
#[derive(Default)]
pub(super) struct Past {
    pub(super) sum: Sum,
    pub(super) times: Option<Box<Times>>,
}

impl Past {
    fn add(&mut self, pool: PoolSnapshot) {
        self.sum.add_counters((&pool.multiplexing, &pool.cache), &pool.stats, &pool.continuity, pool.errors);
        match (&mut self.times, pool.times) {
            (Some(all), Some(its)) => all.add(&its),
            (none, its) => *none = none.take().or(its),
        }
    }
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            pools: BTreeMap::new(),
            databases: BTreeMap::new(),
            past: BTreeMap::new(),
            whole: Track::new(true),
            workers: Vec::new(),
            counters: Counters::default(),
            consoles: 0,
            logging_in: 0,
            activity: Activity::Active,
            process: Process::default(),
            cpu_share: None,
            prepared_statements: 0,
            followed: FollowedNumbers::default(),
            sampled_at: None,
            sampled_s: 0.0,
            looks: 0,
            second: None,
            clock: series::Clock::new(),
        }
    }

    /// Takes a sample of all workers.
    pub(super) fn take(
        &mut self,
        at: Instant,
        workers: Vec<WorkerSnapshot>,
        pools: Vec<PoolSnapshot>,
        loads: Vec<Load>,
        process: Process,
    ) {
        self.sampled_at = Some(at);
        self.sampled_s = unix_s();
        self.looks += 1;
        self.process = process;
        self.take_workers(&workers, &loads);
        let mut before = std::mem::take(&mut self.pools);
        for mut snapshot in pools {
            let name = (Arc::clone(&snapshot.database), Arc::clone(&snapshot.user));
            let (mut known, mut track, mut gauges, lately) = match before.remove(&name) {
                Some(known) => (Some(known.snapshot), known.track, known.gauges, known.lately),
                None => (None, Track::new(false), Gauges::default(), None),
            };
            gauges.note(&snapshot);
            if let Some(gone) = known.take_if(|known| is_another(known, &snapshot)) {
                self.past.entry(Arc::clone(&name.0)).or_default().add(gone);
            }
            let added = added_times(known, &mut snapshot);
            if let Some(added) = &added {
                track.add_times(added);
                self.whole.add_times(added);
                self.database_track(&snapshot.database).add_times(added);
            }
            self.pools.insert(name, PoolState { snapshot, track, gauges, lately });
        }
        for ((database, _), gone) in before {
            self.past.entry(database).or_default().add(gone.snapshot);
        }
        // A database that comes again begins at 0, like its pools.
        let pools = &self.pools;
        self.past.retain(|database, _| {
            let first: PoolName = (Arc::clone(database), "".into());
            pools.range(first..).next().is_some_and(|((name, _), _)| name == database)
        });
    }

    fn take_workers(&mut self, workers: &[WorkerSnapshot], loads: &[Load]) {
        self.counters = Counters::default();
        (self.consoles, self.logging_in, self.prepared_statements) = (0, 0, 0);
        self.followed = FollowedNumbers::default();
        self.activity = Activity::of(workers);
        for worker in workers {
            let (sum, its) = (&mut self.counters, &worker.counters);
            sum.login.add(&its.login);
            sum.connect.add(&its.connect);
            sum.connect_failures += its.connect_failures;
            sum.cancel_requests += its.cancel_requests;
            its.errors.classes().for_each(|(class, count)| sum.errors.add(class, count));
            self.consoles += worker.consoles;
            self.logging_in += worker.logging_in;
            self.prepared_statements += worker.prepared_statements;
            self.followed.count += worker.followed.count;
            self.followed.bytes += worker.followed.bytes;
            self.followed.forgotten += worker.followed.forgotten;
        }
        self.workers.resize(loads.len(), WorkerState::default());
        for (worker, load) in self.workers.iter_mut().zip(loads) {
            worker.load = *load;
        }
    }

    fn database_track(&mut self, name: &Arc<str>) -> &mut Track {
        self.databases.entry(Arc::clone(name)).or_insert_with(|| Track::new(false))
    }

    /// Ends a second: computes rates, and adds a step to every series.
    pub(super) fn end_second(&mut self) {
        let Some(at) = self.sampled_at else { return };
        let cpu_s = self.process.cpu_s;
        let (elapsed_s, cpu_before_s) = match self.second.replace((at, cpu_s)) {
            Some((before, cpu_s)) => ((at - before).as_secs_f64(), cpu_s),
            None => (0.0, None),
        };
        self.cpu_share = (elapsed_s > 0.0)
            .then(|| cpu_s.zip(cpu_before_s).map(|(now, before)| ((now - before) / elapsed_s).max(0.0)))
            .flatten();
        for worker in &mut self.workers {
            let busy_us = worker.load.busy_us.saturating_sub(worker.before.busy_us);
            worker.busy = if elapsed_s > 0.0 { (busy_us as f64 / 1e6 / elapsed_s).min(1.0) } else { 0.0 };
            worker.before = worker.load;
        }
        let step = self.clock.tick(self.sampled_s);
        let looks = std::mem::take(&mut self.looks);
        let mut sums: BTreeMap<Arc<str>, (Sum, Gauges)> = BTreeMap::new();
        let (mut whole, mut whole_gauges) = (Sum::default(), Gauges::default());
        let mut kept = self.pools.values().filter(|pool| pool.track.has_series()).count();
        for (name, pool) in &mut self.pools {
            let sum = Sum::of([&pool.snapshot]);
            let gauges = std::mem::take(&mut pool.gauges).averaged(looks);
            pool.lately = Some(Lately::note(pool.lately, &gauges));
            let (database, its_gauges) = sums.entry(Arc::clone(&name.0)).or_default();
            database.add(&pool.snapshot);
            its_gauges.add(&gauges);
            whole.add(&pool.snapshot);
            whole_gauges.add(&gauges);
            // A pool without statements would take one of the few series for nothing.
            if !pool.track.has_series() && kept < TRACKS_MAX && sum.stats.queries > 0 {
                pool.track.keep_series(&self.clock);
                kept += 1;
            }
            pool.track.end_second(&sum, &gauges, elapsed_s, step);
        }
        self.databases.retain(|name, _| sums.contains_key(name));
        let mut kept = self.databases.values().filter(|track| track.has_series()).count();
        for (name, (sum, gauges)) in &sums {
            let track = self.databases.entry(Arc::clone(name)).or_insert_with(|| Track::new(false));
            if !track.has_series() && kept < TRACKS_MAX {
                track.keep_series(&self.clock);
                kept += 1;
            }
            track.end_second(sum, gauges, elapsed_s, step);
        }
        self.whole.end_second(&whole, &whole_gauges, elapsed_s, step);
    }

    pub(super) fn sampled_at(&self) -> Option<Instant> {
        self.sampled_at
    }

    /// Returns the Unix time of the last sample.
    pub(super) fn sampled_s(&self) -> f64 {
        self.sampled_s
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = &PoolState> {
        self.pools.values()
    }

    /// Returns the counters of a database's pools that are gone.
    pub(super) fn past(&self, database: &str) -> Option<&Past> {
        self.past.get(database)
    }

    pub(super) fn databases(&self) -> impl Iterator<Item = (&Arc<str>, &Track)> {
        self.databases.iter()
    }

    pub(super) fn whole(&self) -> &Track {
        &self.whole
    }

    pub(super) fn workers(&self) -> &[WorkerState] {
        &self.workers
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn consoles(&self) -> u32 {
        self.consoles
    }

    pub(super) fn logging_in(&self) -> u32 {
        self.logging_in
    }

    pub(super) fn activity(&self) -> Activity {
        self.activity
    }

    pub(super) fn cpu_share(&self) -> Option<f64> {
        self.cpu_share
    }

    pub(super) fn prepared_statements(&self) -> u32 {
        self.prepared_statements
    }

    pub(super) fn followed(&self) -> FollowedNumbers {
        self.followed
    }

    /// Returns the sum of all pools of a database, or of all pools.
    pub(super) fn sum(&self, database: Option<&str>) -> Sum {
        Sum::of(self.pools_of(database).map(|pool| &pool.snapshot))
    }

    pub(super) fn pools_of<'a>(&'a self, database: Option<&'a str>) -> impl Iterator<Item = &'a PoolState> {
        // Pools are sorted by the names of their databases.
        let first: PoolName = (database.unwrap_or_default().into(), "".into());
        self.pools
            .range(first..)
            .map(|(_, pool)| pool)
            .take_while(move |pool| database.is_none_or(|name| *pool.snapshot.database == *name))
    }

    /// Returns whether a database or a pool is known and will get a series, but has none yet.
    pub(super) fn awaits_series(&self, database: Option<&str>, user: Option<&str>) -> bool {
        let kept = self.pools.values().filter(|pool| pool.track.has_series()).count();
        let mut pools = self.pools_of(database).map(|pool| &pool.snapshot);
        kept < TRACKS_MAX && pools.any(|pool| user.is_none_or(|user| *pool.user == *user))
    }

    /// Returns the series of the process, of a database or of a pool, with the ends of its steps.
    pub(super) fn series(
        &self,
        database: Option<&str>,
        user: Option<&str>,
    ) -> Option<(&Series, &series::Clock)> {
        let track = match (database, user) {
            (None, _) => &self.whole,
            (Some(database), None) => self.databases.get(database)?,
            (Some(database), Some(user)) => &self.pools.get(&(database.into(), user.into()))?.track,
        };
        Some((track.series()?, &self.clock))
    }
}

/// Returns whether a pool was dropped and created again under its name since the last sample: then its
/// counters are lower.
fn is_another(before: &PoolSnapshot, now: &PoolSnapshot) -> bool {
    let (before, now) = (before.stats.columns(), now.stats.columns());
    before.iter().zip(&now).any(|(before, now)| before > now)
}

/// Returns the times that were added to a pool since the last sample. If there are none, the pool keeps the
/// times it had.
fn added_times(before: Option<PoolSnapshot>, snapshot: &mut PoolSnapshot) -> Option<Times> {
    match (before.and_then(|before| before.times), &snapshot.times) {
        (Some(before), Some(times)) => Some(times.since(&before)),
        (None, Some(times)) => Some((**times).clone()),
        (before, None) => {
            snapshot.times = before;
            None
        }
    }
}

pub(super) fn unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
pub(super) mod tests;
