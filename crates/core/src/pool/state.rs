//! What a pool is and has beside its clients and servers: its queue, its lists, its numbers. It decides nothing about bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use pgweir_settings::{Config, Database};

use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::catalog::reach::Reach;
use crate::pool::catalog::routines::Routines;
use crate::pool::checks::schedule::SessionChecks;
use crate::pool::cluster::Membership;
use crate::pool::cluster::standbys::StandbyPool;
use crate::pool::known::Known;
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::node::{Branch, NodePool};
use crate::pool::numbers::Numbers;
use crate::pool::policy::Policy;
use crate::pool::queue::Queue;
use crate::pool::sequences::state::Drawn;
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::greeting::freshness::Freshness;
use crate::pool::session::params::Tracked;
use crate::pool::startup::checked::Opened;
use crate::shared::Counts;

/// What a pool is and has beside its connections.
pub(crate) struct PoolState {
    /// The database as clients name it.
    pub(crate) database: Arc<str>,
    /// The user the servers are logged in as.
    pub(crate) user: Arc<str>,
    pub(crate) config: Arc<Database>,
    pub(crate) policy: Policy,
    /// The limits that it counts towards.
    pub(crate) shared: SharedCounts,
    /// Its servers, of the one PostgreSQL that it has; in a cluster those of the primary.
    pub(crate) node: NodePool,
    /// In a cluster: its servers of the standbys. The first places are no nodes: [`Branch::NO_STANDBY`], [`Branch::ASKING`].
    pub(crate) standbys: Vec<StandbyPool>,
    /// The node that questions of logins go to (`auth_query`).
    pub(crate) asks_at: Branch,
    pub(crate) queue: Queue,
    pub(crate) count: ClientCounts,
    pub(crate) numbers: Numbers,
    pub(crate) due: Due,
    pub(crate) known: Known,
    /// Parameters of new servers: those of the newest server are told to every client that logs in.
    pub(crate) greeting: Option<Arc<ServerGreeting>>,
    /// When a server last confirmed the greeting.
    pub(crate) freshness: Freshness,
    pub(crate) drawn: Drawn,
    /// When the session of a released server is looked at.
    pub(crate) session_checks: SessionChecks,
    /// Routines that ask for drawn values.
    pub(crate) routines: Routines,
    /// What its database says of names, so that of a text it is known whether it only reads.
    pub(crate) reach: Reach,
    /// The knowledge of names while it is in doubt: none.
    no_reach: Reach,
    /// A client's reads go to standbys (`route=auto`): names are known as they are there, too.
    pub(crate) balances: bool,
    /// Which clients listen to which channels, if any does.
    pub(crate) notify_listener: Option<Box<NotifyListener>>,
    /// When the last client left, or the last question of a login came (monotonic, µs).
    pub(crate) empty_us: u64,
    /// The cluster that its servers are in, if its database has one.
    pub(crate) cluster: Option<Box<Membership>>,
    /// Whether servers are handed out.
    pub(crate) gate: Gate,
}

/// Whether a pool hands out servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    Open,
    /// Its cluster has no primary: clients wait.
    Held,
    /// PAUSE or KILL of its database.
    Paused,
}

/// Counters of connections that several pools share.
pub(crate) struct SharedCounts {
    pub(crate) database: Arc<Counts>,
    pub(crate) user: Arc<Counts>,
}

/// Clients by what they have.
#[derive(Default)]
pub(crate) struct ClientCounts {
    /// Clients that have a server.
    pub(crate) linked: u32,
    /// Clients queued on a server behind other clients.
    pub(crate) queued_behind: u32,
    /// Clients that keep their server between transactions.
    pub(crate) pinned: u32,
}

/// What is to be done when an event, or the tick, ends.
#[derive(Default)]
pub(crate) struct Due {
    /// Clients that were released from a server and may have sent more.
    pub(crate) to_resume: VecDeque<ClientId>,
    /// Clients that notifications wait for.
    pub(crate) notified: Vec<ClientId>,
    /// The connection that listened for clients is closed, and they were not told yet.
    pub(crate) lost_listener: Option<Box<NotifyListener>>,
    /// The queue is to be looked at.
    pub(crate) noticed: bool,
    /// The pool is in the worker's list of pools that have work.
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
            due: Due::default(),
            known: Known::default(),
            greeting: None,
            freshness: Freshness::default(),
            drawn: Drawn::default(),
            session_checks: SessionChecks::default(),
            routines: Routines::default(),
            reach: Reach::default(),
            no_reach: Reach::default(),
            balances: false,
            notify_listener: None,
            empty_us: now_us,
            cluster: None,
            gate: Gate::Open,
        }
    }

    /// Reads may go to standbys. In session pooling a client has one server for all its statements.
    pub(crate) fn balances_reads(&self) -> bool {
        self.balances && !self.policy.keeps_server()
    }

    /// Its queue is to be looked at when the tick ends.
    #[inline]
    pub(crate) fn notice(&mut self) {
        self.due.noticed = true;
    }

    /// What is run on each new server, if anything is.
    pub(crate) fn connect_query(&self) -> Option<&str> {
        self.config.connect_query.as_deref().filter(|query| !query.is_empty())
    }

    /// What every client begins with is known.
    pub(crate) fn greeting_with(&mut self, greeting: Arc<ServerGreeting>) {
        self.known.sessions.begin_with(&greeting.session);
        self.greeting = Some(greeting);
    }

    /// Whether servers report this parameter and the settings say that it is tracked. If servers do not report it, its value belongs to what
    /// a session holds besides, as if the settings did not name it.
    pub(crate) fn is_tracked(&self, tracked: &Tracked, name: &[u8]) -> bool {
        tracked.position(name).is_some_and(|position| {
            self.greeting.as_deref().is_none_or(|greeting| greeting.params.get(position).is_some())
        })
    }

    /// A server has logged in: new clients are told what it reports.
    pub(crate) fn greeting_renewed(&mut self, now: &ServerGreeting, tracked: &Tracked, opened: &Opened) {
        let renewed = self.greeting.as_deref().and_then(|greeting| greeting.renewed_by(now, tracked, opened));
        if let Some(greeting) = renewed {
            // Clients with startup parameters are told the others as they were when a server was asked.
            self.known.startup_checks.clear();
            self.greeting = Some(Arc::new(greeting));
        }
    }

    /// A server says what it is now: new clients are told so.
    pub(crate) fn greeting_telling(&mut self, name: &[u8], value: &[u8]) {
        if let Some(greeting) = self.greeting.as_deref().and_then(|greeting| greeting.telling(name, value)) {
            self.greeting = Some(Arc::new(greeting));
        }
    }

    /// Follows the configuration.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.policy = Policy::of(config, &self.config, &self.user);
        let one_in = config.session_audit_sample(&self.config, &self.user);
        let connect_query = self.config.connect_query.as_deref().unwrap_or_default();
        self.session_checks.follow(if self.policy.keeps_sessions() { one_in } else { 0 }, connect_query);
        self.known.startup_checks.clear();
        self.known.known_sets.clear();
        self.routines.doubt();
    }

    /// The knowledge of names for a statement that comes now: none, if code was made since the catalog was asked.
    #[inline]
    pub(crate) fn reach_now(&self, env: &Env) -> &Reach {
        match self.routines.are_current(env.shared.routines()) {
            true => &self.reach,
            false => &self.no_reach,
        }
    }

    /// Clients and questions that cannot go on before there is a server of this node.
    pub(crate) fn demand_at(&self, branch: Branch) -> u32 {
        let node = self.node_at(branch);
        let lookups = if branch == self.asks_at { self.queue.lookups.len() as u32 } else { 0 };
        let (waiting, awaiting) = (node.waiting.saturating_add(lookups), node.awaiting.len() as u32);
        // One server serves all clients that only wait for the parameters of a greeting.
        match self.greeting {
            Some(_) if !self.freshness.is_wanted() => waiting.saturating_add(awaiting),
            _ => waiting.max(awaiting.min(1)),
        }
    }

    /// A client waits for one of its connections, or for the room that one takes.
    pub(crate) fn is_starving(&self) -> bool {
        !self.queue.replicating.is_empty()
            || self.demand_at(Branch::PRIMARY) > 0
            || self.standby_branches().any(|branch| self.demand_at(branch) > 0)
    }

    /// Nothing waits for a server of this node.
    #[inline]
    pub(crate) fn is_unwanted(&self, branch: Branch) -> bool {
        let node = self.node_at(branch);
        node.clients.is_empty()
            && node.awaiting.is_empty()
            && self.queue.replicating.is_empty()
            && self.queue.lookups.is_empty()
    }

    /// Clients that wait with a statement.
    pub(crate) fn waiting(&self) -> u32 {
        self.nodes().map(|node| node.waiting).sum()
    }

    /// Clients that are proven and not yet told so.
    pub(crate) fn at_login(&self) -> u32 {
        let awaiting: usize = self.nodes().map(|node| node.awaiting.len()).sum();
        (awaiting + self.queue.replicating.len()) as u32
    }

    /// A client leaves before it was told that it is proven.
    pub(crate) fn forget_at_login(&mut self, id: ClientId) {
        for branch in self.branches() {
            self.node_at_mut(branch).awaiting.retain(|&other| other != id);
        }
        self.queue.replicating.retain(|&other| other != id);
    }
}
