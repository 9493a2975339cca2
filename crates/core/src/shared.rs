//! The state that the workers share: limits that span pools, the owner of each pool, and the views of clusters. Counters, and maps that are
//! only read at login, on reload, and when a view has changed. A statement reads one number here: whether a worker has told a newer view of
//! a cluster. This and the counters that a scrape reads are the only state that two threads see.

pub mod places;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cluster::view::{Switch, View};
use crate::cluster::vip::VipReport;
use crate::driver::WorkerId;
use crate::mail::Scarce;
use crate::pool::server::state::SchemaChanges;
use crate::shared::places::{LimitReport, Places};

/// A counter with a limit that is given at each use, because RELOAD may change it.
#[derive(Default, Debug)]
pub struct Counter(AtomicU32);

impl Counter {
    /// Takes one if fewer than `limit` are taken; 0 is no limit.
    #[must_use]
    pub fn try_take(&self, limit: u32) -> bool {
        self.try_take_below(if limit == 0 { u32::MAX } else { limit })
    }

    /// Takes one if fewer than `limit` are taken; with 0 no caller gets one.
    #[must_use]
    pub fn try_take_below(&self, limit: u32) -> bool {
        let below = |taken: u32| (taken < limit).then_some(taken + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, below).is_ok()
    }

    /// Gives one back.
    pub fn give_back(&self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "given back what was never taken");
    }

    /// The number that is taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// The numbers of connections of one database or one user.
#[derive(Default, Debug)]
pub struct Counts {
    /// The number of server connections.
    pub servers: Places,
    /// The number of server connections above which free ones are closed, because this process's part of a shared limit is lower.
    keep: Keep,
    /// The number of server connections that were closed and count until PostgreSQL has ended them.
    pub closing: Counter,
    /// The number of server connections whose login is not over, or was given up and may still succeed: `pg_stat_activity` does not show these.
    pub logins: Counter,
    /// The number of server connections that another process has ever handed over.
    pub arrived: AtomicU32,
    /// The number of clients, from the time their names are known.
    pub clients: Counter,
}

/// A number of connections to keep; all of them by default.
#[derive(Debug)]
struct Keep(AtomicU32);

impl Default for Keep {
    fn default() -> Keep {
        Keep(AtomicU32::new(u32::MAX))
    }
}

impl Counts {
    /// Sets the number of server connections above which free ones are closed.
    pub fn keep(&self, most: u32) {
        self.keep.0.store(most, Ordering::Release);
    }

    /// Whether this process has more server connections than its part of a shared limit, besides those that are ending.
    pub(crate) fn is_above_part(&self) -> bool {
        let keep = self.keep.0.load(Ordering::Acquire);
        keep < u32::MAX && self.servers.taken().saturating_sub(self.closing.taken()) > keep
    }
}

/// Switches of one database, set on the console.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switches {
    /// PAUSE or KILL: no server is handed out.
    pub paused: bool,
    /// DISABLE: no new client is accepted.
    pub disabled: bool,
}

/// The state that all workers of a process share.
#[derive(Debug)]
pub struct Shared {
    /// The number of clients of every kind but the console's, logging in or logged in (`max_client_conn`).
    pub clients: Arc<Counter>,
    /// The last number that was given out for SHOW's column `id`, for clients and servers alike.
    serial: AtomicU64,
    /// The number of times that statements began to return something else.
    age: AtomicU64,
    /// The number of times that routines or triggers were created.
    routines: AtomicU64,
    /// The number of changes of objects, rights and roles through pgweir.
    changes: AtomicU64,
    /// The kinds of changes that prepared transactions have made, as bits.
    prepared_changes: AtomicU8,
    /// The seed of the salts that unknown users are shown; stable while the process lives.
    pub mock_seed: [u8; 32],
    workers: u16,
    generation: u32,
    book: Mutex<Book>,
    /// The view of each cluster that the worker which watches it has told last.
    views: Mutex<BTreeMap<Arc<str>, Arc<View>>>,
    /// The number of changes of `views`.
    views_told: AtomicU64,
    /// The state of the virtual address, as the control plane has told it last; `None` if `vip` is not set.
    vip: Mutex<Option<VipReport>>,
    /// The number of times that a worker has ended the clients of an address that has left the process.
    addresses_left: AtomicU64,
    /// The time until which this process's parts of shared limits hold (monotonic, µs): after that no connection is opened under them.
    parts_until_us: AtomicU64,
    /// The shared limits, as the control plane has told them last.
    limits: Mutex<Vec<LimitReport>>,
}

#[derive(Default, Debug)]
struct Book {
    databases: HashMap<String, Arc<Counts>>,
    users: HashMap<String, Arc<Counts>>,
    peers: HashMap<u32, Arc<Counts>>,
    switches: HashMap<String, Switches>,
    /// The operators' settings of nodes (ATTACH, DRAIN, DETACH), by cluster and node.
    nodes: HashMap<(String, String), Switch>,
    owners: HashMap<(String, String), WorkerId>,
    /// The number of clients that were placed on each worker and have not left.
    load: Vec<u32>,
}

/// The number of clients that a worker is given before the next one is used: few clients batch better on one worker.
const FILL_FIRST_CLIENTS: u32 = 64;

/// Locks a value, also after a panic in another thread: each change here is a single insert or replacement, so that none is half done.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Returns the state of a process with this number of workers.
    #[must_use]
    pub fn new(workers: u16, mock_seed: [u8; 32]) -> Shared {
        let book = Book { load: vec![0; usize::from(workers.max(1))], ..Book::default() };
        Shared {
            clients: Arc::default(),
            serial: AtomicU64::new(0),
            age: AtomicU64::new(0),
            routines: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            prepared_changes: AtomicU8::new(0),
            mock_seed,
            workers: workers.max(1),
            generation: 0,
            book: Mutex::new(book),
            views: Mutex::default(),
            views_told: AtomicU64::new(0),
            vip: Mutex::default(),
            addresses_left: AtomicU64::new(0),
            parts_until_us: AtomicU64::new(0),
            limits: Mutex::default(),
        }
    }

    /// Sets the generation of a process that replaces another one: one more than that of the other process.
    #[must_use]
    pub fn of_generation(self, generation: u32) -> Shared {
        Shared { generation, ..self }
    }

    /// The number of processes that were each other's successors before this one.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Begins a new age of statements, because statements return something else than before: a statement that is prepared from now on is of
    /// the new age.
    pub fn begin_age(&self) {
        self.age.fetch_add(1, Ordering::AcqRel);
    }

    /// The age of statements.
    #[must_use]
    pub fn age(&self) -> u64 {
        self.age.load(Ordering::Acquire)
    }

    /// Notes that routines or triggers were created, which may not be among the known ones.
    pub fn begin_routines(&self) {
        self.routines.fetch_add(1, Ordering::AcqRel);
    }

    /// The age of routines.
    #[must_use]
    pub fn routines(&self) -> u64 {
        self.routines.load(Ordering::Acquire)
    }

    /// Counts a change of an object, a right or a role through pgweir. Answers from before the change are not given again.
    pub fn begin_changes(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes the changes of a transaction that was prepared, to be committed later.
    pub(crate) fn prepare_changes(&self, changes: SchemaChanges) {
        self.prepared_changes.fetch_or(changes.bits(), Ordering::AcqRel);
    }

    /// Returns the kinds of changes of all transactions that were ever prepared: those that a COMMIT PREPARED may bring about.
    pub(crate) fn prepared_changes(&self) -> SchemaChanges {
        let bits = self.prepared_changes.load(Ordering::Acquire);
        let passing = SchemaChanges::IN_PREPARED.bits() | SchemaChanges::BY_QUERY.bits();
        SchemaChanges::of_bits(bits & !passing)
    }

    /// Returns the number of changes that [`Shared::begin_changes`] has counted.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Replaces the view of a cluster for all workers: a worker that gets bytes looks at [`Shared::views_told`] first.
    pub(crate) fn tell_view(&self, view: &Arc<View>) {
        lock(&self.views).insert(Arc::clone(&view.cluster), Arc::clone(view));
        self.views_told.fetch_add(1, Ordering::Release);
    }

    /// The number of views that were told. A worker that has seen this number knows the present ones.
    #[inline]
    pub(crate) fn views_told(&self) -> u64 {
        self.views_told.load(Ordering::Acquire)
    }

    /// The present view of each cluster.
    pub(crate) fn views(&self) -> Vec<Arc<View>> {
        lock(&self.views).values().cloned().collect()
    }

    /// Removes the view of a cluster that is not watched any more.
    pub(crate) fn forget_view(&self, cluster: &str) {
        lock(&self.views).remove(cluster);
    }

    /// Replaces the state of the virtual address that SHOW VIP shows.
    pub fn tell_vip(&self, report: Option<VipReport>) {
        *lock(&self.vip) = report;
    }

    /// The state of the virtual address; `None` if `vip` is not set.
    pub(crate) fn vip(&self) -> Option<VipReport> {
        lock(&self.vip).clone()
    }

    /// Counts a worker that has ended the clients of an address that has left the process.
    pub(crate) fn note_address_left(&self) {
        self.addresses_left.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of times that a worker has carried out [`Mail::AddressLeft`](crate::mail::Mail::AddressLeft).
    #[must_use]
    pub fn addresses_left(&self) -> u64 {
        self.addresses_left.load(Ordering::Acquire)
    }

    /// The counters of a limit that spans pools.
    #[must_use]
    pub fn counts(&self, of: &Scarce) -> Arc<Counts> {
        match of {
            Scarce::Database(database) => self.database(database),
            Scarce::Standby(database, node) => self.standby(database, node),
            Scarce::User(user) => self.user(user),
        }
    }

    /// The counters of a database at a standby of its cluster.
    pub(crate) fn standby(&self, database: &str, node: &str) -> Arc<Counts> {
        // No database has a name with a NUL in it.
        self.database(&format!("{database}\0{node}"))
    }

    /// Sets the time until which this process's parts of shared limits hold (monotonic, µs).
    pub fn hold_parts_until(&self, until_us: u64) {
        self.parts_until_us.store(until_us, Ordering::Release);
    }

    /// Whether this process's parts of shared limits hold at this time (monotonic, µs).
    #[must_use]
    pub fn parts_hold(&self, now_us: u64) -> bool {
        now_us < self.parts_until_us.load(Ordering::Acquire)
    }

    /// Takes away this process's part of every shared limit: no connection is opened under one any more.
    pub fn take_parts_away(&self) {
        self.hold_parts_until(0);
        let book = self.book();
        for counts in book.databases.values().chain(book.users.values()) {
            counts.servers.set_part(0);
            counts.keep(u32::MAX);
        }
    }

    /// Replaces the rows of SHOW LIMITS.
    pub fn tell_limits(&self, limits: Vec<LimitReport>) {
        *lock(&self.limits) = limits;
    }

    /// The rows of SHOW LIMITS.
    pub(crate) fn limits(&self) -> Vec<LimitReport> {
        lock(&self.limits).clone()
    }

    /// The number of workers.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.workers
    }

    /// The next number for a client or server.
    #[must_use]
    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// The counters of a database.
    #[must_use]
    pub fn database(&self, name: &str) -> Arc<Counts> {
        counts(&mut self.book().databases, name)
    }

    /// The counters of a user.
    #[must_use]
    pub fn user(&self, name: &str) -> Arc<Counts> {
        counts(&mut self.book().users, name)
    }

    /// The counters of a peer: its `servers` are the connections that carry cancel requests to it.
    #[must_use]
    pub fn peer(&self, id: u32) -> Arc<Counts> {
        Arc::clone(self.book().peers.entry(id).or_default())
    }

    /// The switches of a database.
    #[must_use]
    pub fn switches(&self, database: &str) -> Switches {
        self.book().switches.get(database).copied().unwrap_or_default()
    }

    /// Whether PAUSE or KILL of any database is in force.
    #[must_use]
    pub fn is_any_paused(&self) -> bool {
        self.book().switches.values().any(|switches| switches.paused)
    }

    /// Returns the databases with a switch that a command has changed.
    #[must_use]
    pub fn all_switches(&self) -> Vec<(String, Switches)> {
        let book = self.book();
        let changed = book.switches.iter().filter(|&(_, switches)| *switches != Switches::default());
        changed.map(|(name, switches)| (name.clone(), *switches)).collect()
    }

    /// Changes the switches of a database; returns what they were.
    pub fn switch(&self, database: &str, change: impl FnOnce(&mut Switches)) -> Switches {
        let mut book = self.book();
        let switches = book.switches.entry(database.to_owned()).or_default();
        let before = *switches;
        change(switches);
        before
    }

    /// Removes the switches of databases that are no longer configured: a later database of the same name is another one.
    pub fn keep_switches(&self, is_kept: impl Fn(&str) -> bool) {
        self.book().switches.retain(|name, _| is_kept(name));
    }

    /// Sets an operator's setting of a node of a cluster.
    pub(crate) fn switch_node(&self, cluster: &str, node: &str, switch: Switch) {
        self.book().nodes.insert((cluster.to_owned(), node.to_owned()), switch);
    }

    /// Returns an operator's last setting of a node of a cluster; `None` if there was none.
    pub(crate) fn node_switch(&self, cluster: &str, node: &str) -> Option<Switch> {
        self.book().nodes.get(&(cluster.to_owned(), node.to_owned())).copied()
    }

    /// Returns all settings of nodes: cluster, node, switch.
    pub(crate) fn node_switches(&self) -> Vec<(String, String, Switch)> {
        let book = self.book();
        book.nodes.iter().map(|((cluster, node), switch)| (cluster.clone(), node.clone(), *switch)).collect()
    }

    /// The worker that owns a pool. The first to ask decides: the first worker with few clients, else the one with fewest.
    #[must_use]
    pub fn owner(&self, database: &str, user: &str) -> WorkerId {
        if self.workers == 1 {
            return WorkerId(0);
        }
        let mut book = self.book();
        if let Some(&owner) = book.owners.get(&(database.to_owned(), user.to_owned())) {
            return owner;
        }
        let roomy = book.load.iter().position(|&clients| clients < FILL_FIRST_CLIENTS);
        let least =
            || book.load.iter().enumerate().min_by_key(|&(_, clients)| clients).map(|(index, _)| index);
        let index = roomy.or_else(least).unwrap_or(0);
        let owner = WorkerId(u16::try_from(index).unwrap_or(0));
        book.owners.insert((database.to_owned(), user.to_owned()), owner);
        owner
    }

    /// The worker that watches a cluster. The first to ask decides, as for a pool.
    #[must_use]
    pub fn watcher(&self, cluster: &str) -> WorkerId {
        // No database has a name with a NUL in it.
        self.owner(&format!("\0{cluster}"), "")
    }

    /// The worker that follows the changes of a database. The first to ask decides, as for a pool.
    #[must_use]
    pub fn follower(&self, database: &str) -> WorkerId {
        // No user has a name with a NUL in it.
        self.owner(database, "\0")
    }

    /// Counts a client that came to a worker (`true`) or left it.
    pub fn note_client(&self, worker: WorkerId, came: bool) {
        if self.workers > 1
            && let Some(load) = self.book().load.get_mut(usize::from(worker.0))
        {
            *load = if came { *load + 1 } else { load.saturating_sub(1) };
        }
    }

    /// Forgets the owner of a pool that is gone; the next pool of the same name may belong to another worker.
    pub fn forget_owner(&self, database: &str, user: &str) {
        if self.workers > 1 {
            self.book().owners.remove(&(database.to_owned(), user.to_owned()));
        }
    }
}

fn counts(map: &mut HashMap<String, Arc<Counts>>, name: &str) -> Arc<Counts> {
    if let Some(counts) = map.get(name) {
        return Arc::clone(counts);
    }
    Arc::clone(map.entry(name.to_owned()).or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_stops_at_its_limit() {
        let counter = Counter::default();
        assert!(counter.try_take(2) && counter.try_take(2) && !counter.try_take(2));
        counter.give_back();
        assert!(counter.try_take(2));
        assert!(counter.try_take(0), "0 is no limit");
        assert!(!Counter::default().try_take_below(0), "0 lets no client in");
    }

    #[test]
    fn a_pool_has_one_owner_and_the_first_worker_fills_first() {
        let shared = Shared::new(2, [0; 32]);
        assert_eq!(shared.owner("a", "u"), WorkerId(0));
        for _ in 0..FILL_FIRST_CLIENTS {
            shared.note_client(WorkerId(0), true);
        }
        assert_eq!(shared.owner("a", "u"), WorkerId(0), "where it lives, it stays");
        assert_eq!(shared.owner("b", "u"), WorkerId(1));
    }
}
