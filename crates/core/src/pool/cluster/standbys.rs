//! A pool's servers of the standbys of its cluster: a [`NodePool`] for each. A place in the list is a node's as long as it has servers
//! or clients; then another node may get it.

use std::sync::Arc;

use pgweir_settings::{Config, Route};

use crate::cluster::Term;
use crate::cluster::choice::{self, Candidate, Nearness};
use crate::cluster::replayed::Replayed;
use crate::cluster::view::{Standby, View};
use crate::context::Env;
use crate::driver::Endpoint;
use crate::limits::STANDBYS_MAX;
use crate::mail::Scarce;
use crate::pool::cluster::causal::guards::Guard;
use crate::pool::cluster::causal::must_see::Left;
use crate::pool::cluster::counters::SentReads;
use crate::pool::node::{NodePool, REDIAL_US_MAX, Turn};
use crate::pool::{Branch, Failure, Gate, Pool, PoolState, ServerKind};
use crate::shared::Counts;

/// Time after a failed connection during which other standbys are preferred.
const FAILING_US: u64 = REDIAL_US_MAX;

/// Number of refused reads out of [`TRIES`] above which a standby gets no reads for a while.
const REFUSED_MAX: u32 = TRIES / 5;
const TRIES: u32 = 100;

/// Time during which a standby that has refused too many reads gets none (µs).
pub(super) const REST_US: u64 = 30_000_000;

/// A pool's servers of one standby.
pub(crate) struct StandbyPool {
    /// The node's name; "" where there is no node.
    pub(crate) name: Arc<str>,
    pub(crate) node: NodePool,
    /// The standby's address and role as the cluster's view has them; `None` while it gets no new work.
    pub(crate) standby: Option<Standby>,
    /// The standby's counter for `max_db_connections`, which limits each node separately.
    counts: Arc<Counts>,
    /// The standby's position in the turns between equally good standbys.
    pass: u64,
    /// Counters of the reads that the standby was sent.
    pub(super) sent: SentReads,
    /// The recent reads of `route=auto` at this standby, and those that it refused.
    tries: Tries,
    /// The position up to which the standby is known to have replayed.
    pub(super) replayed: Replayed,
    /// The question for that position.
    pub(super) guard: Guard,
    /// The last time that a server reported that the node is no standby any more.
    pub(super) left: Left,
    /// Whether the servers opened before the promotion are to be ended.
    pub(super) is_to_be_left: bool,
    /// Whether the clients that wait at this standby must be checked again for what they must see.
    pub(super) looks_again: bool,
}

/// The last reads that may run on the primary instead, up to a hundred; and those of them that the standby refused.
#[derive(Default)]
struct Tries {
    reads: u32,
    refused: u32,
    /// Time until which the standby gets no reads (monotonic, µs).
    rests_until_us: u64,
}

impl StandbyPool {
    fn new(name: Arc<str>, counts: Arc<Counts>, now_us: u64) -> StandbyPool {
        StandbyPool {
            name,
            node: NodePool::default(),
            standby: None,
            counts,
            pass: 0,
            sent: SentReads::default(),
            tries: Tries::default(),
            replayed: Replayed::new(now_us),
            guard: Guard::default(),
            left: Left::default(),
            is_to_be_left: false,
            looks_again: false,
        }
    }

    /// Whether the standby has no free server and a connection to it has failed recently.
    fn is_failing(&self, now_us: u64) -> bool {
        let failed = |failure: &Failure| now_us.saturating_sub(failure.at_us) < FAILING_US;
        self.node.idle.is_empty() && self.node.failure.as_ref().is_some_and(failed)
    }

    /// Returns the properties that the choice between standbys depends on.
    #[inline]
    pub(super) fn candidate(&self, env: &Env) -> Candidate {
        let Some(standby) = &self.standby else { return Candidate::CLOSED };
        let own = &env.rules.config.main.zone;
        let is_far = !own.is_empty() && **own != *standby.zone;
        Candidate {
            is_failing: self.is_failing(env.now.mono_us) || self.tries.rests_until_us > env.now.mono_us,
            nearness: Nearness::of(is_far, standby.is_late),
            load: self.node.servers(ServerKind::Active).saturating_add(self.node.waiting),
            share: standby.share,
            pass: self.pass,
        }
    }
}

impl Branch {
    /// The standby at this place of the list.
    pub(super) fn of_place(place: usize) -> Branch {
        Branch(u8::try_from(place + 1).unwrap_or(u8::MAX))
    }

    /// The place of the standby in the list; `None` for the primary.
    fn place(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

impl PoolState {
    /// A node's part of the pool.
    #[inline]
    pub(crate) fn node_at(&self, branch: Branch) -> &NodePool {
        if branch.is_primary() { &self.node } else { self.standby_node(branch) }
    }

    #[inline]
    pub(crate) fn node_at_mut(&mut self, branch: Branch) -> &mut NodePool {
        if branch.is_primary() { &mut self.node } else { self.standby_node_mut(branch) }
    }

    #[cold]
    fn standby_node(&self, branch: Branch) -> &NodePool {
        debug_assert!(self.standby_at(branch).is_some(), "there is no such branch");
        self.standby_at(branch).map_or(&self.node, |standby| &standby.node)
    }

    #[cold]
    fn standby_node_mut(&mut self, branch: Branch) -> &mut NodePool {
        debug_assert!(self.standby_at(branch).is_some(), "there is no such branch");
        let standby = branch.place().and_then(|place| self.standbys.get_mut(place));
        standby.map_or(&mut self.node, |standby| &mut standby.node)
    }

    /// A client waits for a server of a standby, or does no longer.
    #[cold]
    pub(crate) fn count_at_standby(&mut self, branch: Branch, turn: Turn) {
        let waiting = &mut self.standby_node_mut(branch).waiting;
        *waiting = if turn == Turn::Enters { *waiting + 1 } else { waiting.saturating_sub(1) };
        if turn == Turn::IsServed
            && let Some(standby) = self.standby_mut(branch)
        {
            standby.sent.reads += 1;
        }
    }

    /// The standby of a branch; `None` for the primary's.
    pub(crate) fn standby_at(&self, branch: Branch) -> Option<&StandbyPool> {
        self.standbys.get(branch.place()?)
    }

    pub(super) fn standby_mut(&mut self, branch: Branch) -> Option<&mut StandbyPool> {
        self.standbys.get_mut(branch.place()?).filter(|_| branch.is_standby())
    }

    /// All branches, the primary's first.
    pub(crate) fn branches(&self) -> impl Iterator<Item = Branch> + use<> {
        std::iter::once(Branch::PRIMARY).chain(self.standby_branches())
    }

    pub(crate) fn standby_branches(&self) -> impl Iterator<Item = Branch> + use<> {
        (0..self.standbys.len()).map(Branch::of_place)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodePool> {
        std::iter::once(&self.node).chain(self.standbys.iter().map(|standby| &standby.node))
    }

    pub(crate) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut NodePool> {
        let standbys = self.standbys.iter_mut().map(|standby| &mut standby.node);
        std::iter::once(&mut self.node).chain(standbys)
    }

    /// Servers of a kind, of all nodes.
    pub(crate) fn servers(&self, kind: ServerKind) -> u32 {
        self.nodes().map(|node| node.servers(kind)).sum()
    }

    /// The last failure to open a server, of any node.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.nodes().filter_map(|node| node.failure.as_ref()).max_by_key(|failure| failure.at_us)
    }

    /// Whether a node's servers are handed out.
    #[inline]
    pub(crate) fn gate_at(&self, branch: Branch) -> Gate {
        if branch.is_primary() { self.gate } else { self.gate_at_standby(branch) }
    }

    #[cold]
    fn gate_at_standby(&self, branch: Branch) -> Gate {
        let is_usable = self.standby_at(branch).is_some_and(|standby| standby.standby.is_some());
        match self.gate {
            Gate::Paused => Gate::Paused,
            _ if is_usable => Gate::Open,
            _ => Gate::Held,
        }
    }

    /// Clients that wait for a node that is not there, at login or with a statement.
    pub(crate) fn held(&self) -> u32 {
        let is_held = |branch: &Branch| *branch != Branch::ASKING && self.gate_at(*branch) == Gate::Held;
        let held = self.branches().filter(is_held);
        let clients = held.map(|branch| {
            let node = self.node_at(branch);
            let replicating = if branch.is_primary() { self.queue.replicating.len() } else { 0 };
            node.waiting as usize + node.awaiting.len() + replicating
        });
        u32::try_from(clients.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// Returns the counters of the limits that a server of this node counts towards: `max_db_connections` for the node, and
    /// `max_user_connections`.
    pub(crate) fn counts_of(&self, branch: Branch) -> [&Arc<Counts>; 2] {
        let by_database = self.standby_at(branch).map_or(&self.shared.database, |standby| &standby.counts);
        [by_database, &self.shared.user]
    }

    /// Returns the limit to name to a client if the node's counter is at `max_db_connections`.
    pub(crate) fn scarce_at(&self, branch: Branch) -> Scarce {
        let database = Arc::clone(&self.database);
        match self.standby_at(branch) {
            None => Scarce::Database(database),
            Some(standby) => Scarce::Standby(database, Arc::clone(&standby.name)),
        }
    }

    /// The node that a new server is opened to.
    pub(crate) fn term_at(&self, branch: Branch) -> Option<Term> {
        match self.standby_at(branch) {
            None => self.cluster.as_deref()?.term(),
            Some(standby) => standby.standby.as_ref().map(|standby| standby.target.term.clone()),
        }
    }

    /// Returns the address of the node. While the node gets no new work no connection is opened ([`PoolState::gate_at`]); the address
    /// returned then refuses connections.
    pub(crate) fn endpoint_at(&self, branch: Branch) -> Endpoint {
        let nowhere = || Endpoint::Unix { path: "@pgweir-no-node".into() };
        let target = match self.standby_at(branch) {
            None => self.cluster.as_deref().and_then(|cluster| cluster.view.primary.as_ref()),
            Some(standby) => standby.standby.as_ref().map(|standby| &standby.target),
        };
        target.map_or_else(nowhere, |target| target.endpoint())
    }

    /// The places in which clients wait that wait for no node.
    fn begin_standbys(&mut self) {
        while self.standbys.len() < Branch::PLACES_APART {
            self.standbys.push(StandbyPool::new("".into(), Arc::default(), 0));
        }
    }

    /// The branch of a node, made if it is new; [`Branch::NO_STANDBY`] if there are too many.
    pub(crate) fn branch_of(&mut self, env: &Env, name: &Arc<str>) -> Branch {
        self.begin_standbys();
        if let Some(place) = self.standbys.iter().position(|known| known.name == *name) {
            return Branch::of_place(place);
        }
        let counts = env.shared.standby(&self.database, name);
        let mut new = StandbyPool::new(Arc::clone(name), counts, env.now.mono_us);
        // It takes its turns from here on, and makes up for none.
        new.pass = self.standbys.iter().map(|known| known.pass).max().unwrap_or(0);
        let is_free = |known: &StandbyPool| known.standby.is_none() && known.node.is_vacant();
        let first = Branch::PLACES_APART;
        if let Some(place) = self.standbys.iter().skip(first).position(is_free) {
            // Clients that read at the standby that was at this place may still name the place.
            new.left = self.standbys[place + first].left;
            let old = std::mem::replace(&mut self.standbys[place + first], new);
            if let Some(cluster) = self.cluster.as_deref_mut() {
                cluster.counters.sent_to(&old.name, old.sent);
            }
            return Branch::of_place(place + first);
        }
        if self.standbys.len() >= STANDBYS_MAX {
            return Branch::NO_STANDBY;
        }
        self.standbys.push(new);
        Branch::of_place(self.standbys.len() - 1)
    }

    /// Follows a view: which standbys get new work.
    pub(super) fn follow_standbys(&mut self, env: &Env, view: &View) {
        self.begin_standbys();
        for known in self.standbys.iter_mut().skip(Branch::PLACES_APART) {
            known.standby = view.standby(&known.name).cloned();
        }
        for standby in &view.standbys {
            let branch = self.branch_of(env, &standby.target.term.node);
            if let Some(known) = self.standby_mut(branch) {
                known.standby = Some(standby.clone());
            }
        }
        let usable = |branch: &Branch| self.gate_at(*branch) == Gate::Open;
        let held = self.cluster.as_deref().is_some_and(|cluster| cluster.view.primary.is_none());
        let other = self.standby_branches().find(usable).filter(|_| held);
        self.asks_at = other.unwrap_or(Branch::PRIMARY);
    }

    /// The branch of this node, if it gets new work at present; its weight does not count.
    pub(super) fn usable_branch(&self, env: &Env, name: &str) -> Option<Branch> {
        let primary = self.cluster.as_deref()?.view.primary.as_ref();
        if primary.is_some_and(|primary| *primary.term.node == *name) {
            return Some(Branch::PRIMARY);
        }
        let place = self.standbys.iter().position(|known| *known.name == *name)?;
        let known = &self.standbys[place];
        let is_usable = known.standby.as_ref().is_some_and(|standby| !standby.is_behind);
        (is_usable && !known.is_failing(env.now.mono_us)).then(|| Branch::of_place(place))
    }

    /// The standby that the next read goes to; `home` is the one that served its client last.
    pub(super) fn next_standby(&mut self, env: &Env, home: Branch, stays: bool) -> Option<Branch> {
        let (place, best) = choice::next(self.standbys.iter().map(|standby| standby.candidate(env)))?;
        let at_home = self.standby_at(home).map(|standby| standby.candidate(env));
        let is_home = |own: &Candidate| own.share > 0 && (stays || choice::stays(own, &best));
        if at_home.as_ref().is_some_and(is_home) {
            return Some(home);
        }
        self.standbys[place].pass = choice::passed(&best);
        Some(Branch::of_place(place))
    }

    /// Counts a read that a standby gets and that may run on the primary instead.
    pub(super) fn note_try(&mut self, branch: Branch) {
        let Some(standby) = self.standby_mut(branch) else { return };
        if standby.tries.reads >= TRIES {
            (standby.tries.reads, standby.tries.refused) = (0, 0);
        }
        standby.tries.reads += 1;
    }

    /// Counts a read that goes to the primary because the standby did not run it.
    pub(super) fn note_second_try(&mut self, branch: Branch) {
        if let Some(standby) = self.standby_mut(branch) {
            standby.sent.second_tries += 1;
        }
    }

    /// Counts a read that the standby refused as a change.
    pub(super) fn note_misrouted_at(&mut self, branch: Branch) {
        if let Some(standby) = self.standby_mut(branch) {
            standby.sent.misrouted += 1;
        }
    }

    /// Counts a refused read of `route=auto`. Returns the standby's name if it has refused too many and gets no reads for a while.
    pub(super) fn note_refused(&mut self, branch: Branch, now_us: u64) -> Option<Arc<str>> {
        let standby = self.standby_mut(branch)?;
        standby.tries.refused += 1;
        if standby.tries.refused <= REFUSED_MAX {
            return None;
        }
        standby.tries = Tries { rests_until_us: now_us.saturating_add(REST_US), ..Tries::default() };
        Some(Arc::clone(&standby.name))
    }

    /// Whether the standby has refused so many reads that it gets none at present.
    pub(super) fn rests(&self, branch: Branch, now_us: u64) -> bool {
        self.standby_at(branch).is_some_and(|standby| standby.tries.rests_until_us > now_us)
    }

    /// Whether the primary has less load than the standby, for `route=any`.
    pub(super) fn is_primary_freer(&self, than: Branch) -> bool {
        let load = |node: &NodePool| node.servers(ServerKind::Active).saturating_add(node.waiting);
        self.gate == Gate::Open && load(&self.node) < load(self.node_at(than))
    }
}

impl Pool {
    /// The nodes that `min_pool_size` holds for: those that the clients of its database go to.
    pub(crate) fn branches_in_use(&self, config: &Config) -> Vec<Branch> {
        let pool = &self.state;
        let is_used = |branch: &Branch| match config.route(&pool.config, &pool.user) {
            Route::Primary => branch.is_primary(),
            Route::Standby | Route::PreferStandby => !branch.is_primary(),
            Route::Any | Route::Auto => true,
        };
        pool.branches().filter(|branch| pool.cluster.is_none() || is_used(branch)).collect()
    }
}
