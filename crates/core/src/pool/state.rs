//! The state of a pool besides its clients and servers: its queue, its lists, its numbers. It decides nothing about bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use pgweir_settings::{Config, Database};

use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::cache::PoolCache;
use crate::pool::catalog::columns::ColumnTypes;
use crate::pool::catalog::reach::Reach;
use crate::pool::catalog::routines::Routines;
use crate::pool::checks::schedule::SessionChecks;
use crate::pool::cluster::Membership;
use crate::pool::cluster::standbys::StandbyPool;
use crate::pool::known::Known;
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::node::{Branch, NodePool};
use crate::pool::numbers::Numbers;
use crate::pool::policy::{OnLoss, Policy};
use crate::pool::queue::Queue;
use crate::pool::sequences::state::Drawn;
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::greeting::freshness::Freshness;
use crate::pool::session::params::Tracked;
use crate::pool::startup::checked::Opened;
use crate::shared::Counts;

/// The state of a pool besides its connections.
pub(crate) struct PoolState {
    /// The database as clients name it.
    pub(crate) database: Arc<str>,
    /// The user that the servers are logged in as.
    pub(crate) user: Arc<str>,
    pub(crate) config: Arc<Database>,
    pub(crate) policy: Policy,
    /// The limits that the pool counts towards.
    pub(crate) shared: SharedCounts,
    /// The servers of the one PostgreSQL that the pool has; in a cluster, those of the primary.
    pub(crate) node: NodePool,
    /// The servers of the standbys, in a cluster. The first places are no nodes: [`Branch::NO_STANDBY`], [`Branch::ASKING`].
    pub(crate) standbys: Vec<StandbyPool>,
    /// The node that questions of logins go to (`auth_query`).
    pub(crate) asks_at: Branch,
    pub(crate) queue: Queue,
    pub(crate) count: ClientCounts,
    pub(crate) numbers: Numbers,
    pub(crate) cache: PoolCache,
    pub(crate) due: Due,
    pub(crate) known: Known,
    /// The parameters of new servers: those of the newest server are told to every client that logs in.
    pub(crate) greeting: Option<Arc<ServerGreeting>>,
    /// The time at which a server last confirmed the greeting, and what servers said of it.
    pub(crate) freshness: Freshness,
    pub(crate) drawn: Drawn,
    /// The schedule by which the sessions of released servers are checked.
    pub(crate) session_checks: SessionChecks,
    /// The routines that ask for drawn values.
    pub(crate) routines: Routines,
    /// The database's answers about names, by which pgweir knows whether a text only reads.
    pub(crate) reach: Reach,
    /// The types of the database's columns at the last answer of the catalog.
    pub(crate) columns: ColumnTypes,
    /// The empty knowledge of names, which is used while that of `reach` is in doubt.
    no_reach: Reach,
    /// Whether a client's reads go to standbys (`route=auto`): names are known as they are there, too.
    pub(crate) balances: bool,
    /// The channels that clients listen to; `None` if no client listens.
    pub(crate) notify_listener: Option<Box<NotifyListener>>,
    /// The time at which the last client left, or the last question of a login came (monotonic, µs).
    pub(crate) empty_us: u64,
    /// The cluster that the servers are in, if the database has one.
    pub(crate) cluster: Option<Box<Membership>>,
    /// Whether servers are handed out.
    pub(crate) gate: Gate,
}

/// Whether a pool hands out servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    Open,
    /// Clients wait: the cluster has no primary.
    Held,
    /// Clients wait: the database has had a PAUSE or KILL.
    Paused,
}

/// The counters of connections that several pools share.
pub(crate) struct SharedCounts {
    pub(crate) database: Arc<Counts>,
    pub(crate) user: Arc<Counts>,
}

/// The numbers of clients by what they have.
#[derive(Default)]
pub(crate) struct ClientCounts {
    /// The number of clients that have a server.
    pub(crate) linked: u32,
    /// The number of clients that are queued on a server after other clients.
    pub(crate) queued_behind: u32,
    /// The number of clients that keep their server between transactions.
    pub(crate) pinned: u32,
}

/// The work that is done when an event, or the tick, ends.
#[derive(Default)]
pub(crate) struct Due {
    /// Clients that were released from a server and may have sent more.
    pub(crate) to_resume: VecDeque<ClientId>,
    /// Clients that notifications wait for.
    pub(crate) notified: Vec<ClientId>,
    /// The connection that listened for clients is closed, and they were not told yet.
    pub(crate) lost_listener: Option<Box<NotifyListener>>,
    /// Whether the queue must be looked at.
    pub(crate) noticed: bool,
    /// Whether the pool is in the worker's list of pools that have work.
    pub(crate) listed: bool,
}

impl PoolState {
    pub(crate) fn new(
        database: Arc<str>,
        user: Arc<str>,
        config: Arc<Database>,
        counts: (Arc<Counts>, Arc<Counts>),
        now_us: u64,
    ) -> PoolState {
        PoolState {
            database,
            user,
            config,
            policy: Policy::default(),
            shared: SharedCounts { database: counts.0, user: counts.1 },
            node: NodePool::default(),
            standbys: Vec::new(),
            asks_at: Branch::PRIMARY,
            queue: Queue::default(),
            count: ClientCounts::default(),
            numbers: Numbers::from(now_us),
            cache: PoolCache::default(),
            due: Due::default(),
            known: Known::default(),
            greeting: None,
            freshness: Freshness::default(),
            drawn: Drawn::default(),
            session_checks: SessionChecks::default(),
            routines: Routines::default(),
            columns: ColumnTypes::default(),
            reach: Reach::default(),
            no_reach: Reach::default(),
            balances: false,
            notify_listener: None,
            empty_us: now_us,
            cluster: None,
            gate: Gate::Open,
        }
    }

    /// Whether reads may go to standbys. In session pooling a client has one server for all its statements.
    pub(crate) fn balances_reads(&self) -> bool {
        self.balances && !self.policy.keeps_server()
    }

    /// Notes that the queue must be looked at when the tick ends.
    #[inline]
    pub(crate) fn notice(&mut self) {
        self.due.noticed = true;
    }

    /// Has the queue looked at if clients were passed over in it: the answer that they wait for may be there, or will not come.
    pub(crate) fn look_at_passed_over(&mut self) {
        if self.node.passed_over > 0 {
            self.notice();
        }
    }

    /// Returns the statements that are run on each new server, if there are any.
    pub(crate) fn connect_query(&self) -> Option<&str> {
        self.config.connect_query.as_deref().filter(|query| !query.is_empty())
    }

    /// Takes the values with which every client begins, which are known now.
    pub(crate) fn greeting_with(&mut self, greeting: Arc<ServerGreeting>) {
        self.known.sessions.begin_with(&greeting.session);
        self.greeting = Some(greeting);
    }

    /// Whether servers report this parameter and the settings say that it is tracked. If servers do not report it, its value belongs to the
    /// rest of a session's contents, as if the settings did not name it.
    pub(crate) fn is_tracked(&self, tracked: &Tracked, name: &[u8]) -> bool {
        tracked.position(name).is_some_and(|position| {
            self.greeting.as_deref().is_none_or(|greeting| greeting.params.get(position).is_some())
        })
    }

    /// Notes the report of a server that has logged in: new clients are told these values.
    pub(crate) fn greeting_renewed(&mut self, now: &ServerGreeting, tracked: &Tracked, opened: &Opened) {
        let renewed = self.greeting.as_deref().and_then(|greeting| greeting.renewed_by(now, tracked, opened));
        if let Some(greeting) = renewed {
            // Clients with startup parameters are told the others as they were when a server was asked.
            self.known.startup_checks.clear();
            self.greeting = Some(Arc::new(greeting));
        }
    }

    /// Notes a value that a server reports: new clients are told this value.
    pub(crate) fn greeting_telling(&mut self, name: &[u8], value: &[u8]) {
        if let Some(greeting) = self.greeting.as_deref().and_then(|greeting| greeting.telling(name, value)) {
            self.greeting = Some(Arc::new(greeting));
        }
    }

    /// Follows the configuration.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.policy = Policy::of(config, &self.config, &self.user);
        if self.policy.on_loss == OnLoss::Ends && !self.standbys.is_empty() {
            // The database had a cluster: a transaction may still read at a standby.
            self.policy.on_loss = OnLoss::EndsAtFence;
        }
        let one_in = config.session_audit_sample(&self.config, &self.user);
        let connect_query = self.config.connect_query.as_deref().unwrap_or_default();
        self.session_checks.follow(if self.policy.keeps_sessions() { one_in } else { 0 }, connect_query);
        self.known.startup_checks.clear();
        self.known.known_sets.clear();
        self.routines.doubt();
    }

    /// Returns the knowledge of names for a statement that comes now: none, if code was made since the catalog was asked.
    #[inline]
    pub(crate) fn reach_now(&self, env: &Env) -> &Reach {
        match self.routines.are_current(env.shared.routines()) {
            true => &self.reach,
            false => &self.no_reach,
        }
    }

    /// Returns the number of clients and questions that cannot go on before there is a server of this node.
    pub(crate) fn demand_at(&self, branch: Branch) -> u32 {
        let node = self.node_at(branch);
        let lookups = if branch == self.asks_at { self.queue.lookups.len() as u32 } else { 0 };
        let waiting = node.waiting.saturating_sub(node.passed_over).saturating_add(lookups);
        let awaiting = node.awaiting.len() as u32;
        // One server serves all clients that only wait for the parameters of a greeting.
        match self.greeting {
            Some(_) if !self.freshness.is_wanted() => waiting.saturating_add(awaiting),
            _ => waiting.max(awaiting.min(1)),
        }
    }

    /// Whether a client waits for a connection of this pool, or for the room that one takes.
    pub(crate) fn is_starving(&self) -> bool {
        !self.queue.replicating.is_empty()
            || self.demand_at(Branch::PRIMARY) > 0
            || self.standby_branches().any(|branch| self.demand_at(branch) > 0)
    }

    /// Whether nothing waits for a server of this node.
    #[inline]
    pub(crate) fn is_unwanted(&self, branch: Branch) -> bool {
        let node = self.node_at(branch);
        node.clients.is_empty()
            && node.awaiting.is_empty()
            && self.queue.replicating.is_empty()
            && self.queue.lookups.is_empty()
    }

    /// Returns the number of clients that wait with a statement.
    pub(crate) fn waiting(&self) -> u32 {
        self.nodes().map(|node| node.waiting).sum()
    }

    /// Returns the number of clients that are proven and not yet told so.
    pub(crate) fn at_login(&self) -> u32 {
        let awaiting: usize = self.nodes().map(|node| node.awaiting.len()).sum();
        (awaiting + self.queue.replicating.len()) as u32
    }

    /// Removes a client that leaves before it was told that it is proven.
    pub(crate) fn forget_at_login(&mut self, id: ClientId) {
        for branch in self.branches() {
            self.node_at_mut(branch).awaiting.retain(|&other| other != id);
        }
        self.queue.replicating.retain(|&other| other != id);
    }
}
