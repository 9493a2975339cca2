//! What a pool is and has beside its clients and servers: its queue, its lists, its numbers. It decides nothing about bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use pgweir_auth::Learned;
use pgweir_settings::{Config, Database, PoolMode, SequenceAffinity, SessionState};
use pgweir_wire::error::SqlState;

use crate::driver::Endpoint;
use crate::ids::{ClientId, ServerId};
use crate::limits::{KNOWN_PARAMS_MAX, SETTABLE_MAX};
use crate::pool::cancel::WaitingCancel;
use crate::pool::catalog::reach::Reach;
use crate::pool::catalog::routines::Routines;
use crate::pool::checks::schedule::SessionChecks;
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::multiplex::pace::Pace;
use crate::pool::multiplex::pipelined::MultiplexStats;
use crate::pool::sequences::state::{Affinities, Askers};
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::session::content::KnownSessions;
use crate::pool::session::known_sets::KnownSets;
use crate::pool::session::params::{Params, Tracked};
use crate::pool::startup::checked::StartupChecks;
use crate::shared::Counts;
use crate::stats::continuity::Continuity;
use crate::stats::times::Times;
use crate::stats::{Stats, Window};
use crate::worker::login::inquiry::Lookup;

/// The lists a server can be in, as SHOW POOLS counts them (its `sv_used` is a server that idled for long).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    Login,
    Idle,
    Active,
    Tested,
    BeingCanceled,
    /// It listens for all clients of the pool, and belongs to none of them: not counted as one of the pool's
    /// servers.
    Listening,
}

/// The number of kinds.
const KINDS: usize = 6;

/// What a pool is and has beside its connections.
pub(crate) struct PoolState {
    /// The database as clients name it.
    pub(crate) database: Arc<str>,
    /// The user the servers are logged in as.
    pub(crate) user: Arc<str>,
    pub(crate) config: Arc<Database>,
    /// Its mode: user, then database, then global. Kept here because it is asked for with every statement.
    pub(crate) mode: PoolMode,
    /// A limit that spans pools concerns it; kept for the same reason.
    pub(crate) is_limited: bool,
    /// Named prepared statements are known by content here.
    pub(crate) tracks_statements: bool,
    /// Clients keep their session although servers change hands.
    pub(crate) keeps_sessions: bool,
    /// Startup parameters are tried on a server, whatever they are.
    pub(crate) tries_startup: bool,
    /// A client that would keep its server is refused.
    pub(crate) refuses_pins: bool,
    /// From this time on its statements are logged (µs).
    pub(crate) slow_us: u64,
    /// Clients that keep their server between transactions.
    pub(crate) pinned: u32,
    pub(crate) continuity: Continuity,
    /// What is done for `currval` and `lastval`.
    pub(crate) sequences: SequenceAffinity,
    pub(crate) askers: Askers,
    pub(crate) affinities: Affinities,
    /// When the session of a released server is looked at.
    pub(crate) session_checks: SessionChecks,
    /// Routines that ask for drawn values.
    pub(crate) routines: Routines,
    /// What its database says of names, so that of a text it is known whether it only reads.
    pub(crate) reach: Reach,
    /// Clients that wait for a server, longest first. One that left stays until it is looked at.
    pub(crate) queue: VecDeque<ClientId>,
    /// The number of clients in the queue that really wait.
    pub(crate) waiting: u32,
    /// Proven clients that wait until the pool knows what to tell them.
    pub(crate) awaiting: Vec<ClientId>,
    /// Proven replication clients that wait for room for a connection of their own, longest first.
    pub(crate) replicating: VecDeque<ClientId>,
    /// Questions of logins that wait for a server (`auth_query`), longest first.
    pub(crate) lookups: VecDeque<Box<Lookup>>,
    /// All its clients.
    pub(crate) clients: u32,
    /// Clients that have a server.
    pub(crate) linked: u32,
    /// Clients queued on a server behind other clients.
    pub(crate) queued_behind: u32,
    /// Servers with a head that is known to be short, in the order in which they became so: the first of them
    /// take further statements.
    pub(crate) short: Vec<ServerId>,
    pub(crate) pace: Pace,
    pub(crate) multiplexing: MultiplexStats,
    /// Free servers, in the order of their release.
    pub(crate) idle: VecDeque<ServerId>,
    /// Servers that are reset or checked, in no order: free soon.
    pub(crate) tested: Vec<ServerId>,
    counts: [u32; KINDS],
    /// What servers are when they are new; the first one's is told to every client.
    pub(crate) greeting: Option<Arc<ServerGreeting>>,
    pub(crate) failure: Option<Failure>,
    /// So many servers ended right after their login since one served a client.
    pub(crate) stillborn: u8,
    /// If there were several, no other is opened before this (monotonic, µs).
    pub(crate) dial_after_us: u64,
    /// Its servers do not negotiate: they refuse a connection that asks for more than 3.0.
    pub(crate) speaks_only_3_0: bool,
    /// Connections to PostgreSQL that carry a cancel request.
    pub(crate) cancels: u32,
    /// Cancel requests that wait until there are fewer.
    pub(crate) waiting_cancels: VecDeque<WaitingCancel>,
    pub(crate) stats: Stats,
    /// How long its statements took; of a pool that never had one, nothing.
    pub(crate) times: Option<Box<Times>>,
    /// Errors that its clients were sent, by servers or by us.
    pub(crate) errors: u64,
    /// The statements it had when its times were last shown: they are shown again only when there are more.
    pub(crate) shown_queries: Option<u64>,
    /// What they were when the last period ended, and when that was (monotonic, µs).
    snapshot: (Stats, u64),
    /// The same of its times. What did not change is there once.
    times_snapshot: Option<Arc<Times>>,
    times_earlier: Option<Arc<Times>>,
    /// The same of the period before.
    earlier: (Stats, u64),
    pub(crate) database_counts: Arc<Counts>,
    pub(crate) user_counts: Arc<Counts>,
    /// Which host of a list is next.
    pub(crate) next_host: usize,
    /// Which of them failed last, and when (monotonic, µs): for `server_login_retry` others are tried.
    pub(crate) failed_hosts: Vec<(Endpoint, u64)>,
    /// When a server was last closed for its age: closings are spread (monotonic, µs).
    pub(crate) aged_us: u64,
    /// When the last client left, or the last question of a login came (monotonic, µs).
    pub(crate) empty_us: u64,
    /// PAUSE or KILL of its database: no server is handed out.
    pub(crate) paused: bool,
    /// Sets of parameters seen last, the newest at the end.
    known_params: VecDeque<KnownParams>,
    pub(crate) sessions: KnownSessions,
    /// Settings that were found set in a session: its user may set them, and take them back.
    pub(crate) settable: Vec<Box<[u8]>>,
    pub(crate) startup_checks: StartupChecks,
    pub(crate) known_sets: KnownSets,
    /// Which clients listen to which channels, if any does.
    pub(crate) notify_listener: Option<Box<NotifyListener>>,
    /// What a client's login taught us that helps to log in to servers (the pool's user is the client's own).
    pub(crate) learned: Learned,
    /// Clients that were released from a server and may have sent more.
    pub(crate) to_resume: VecDeque<ClientId>,
    /// Clients that notifications wait for.
    pub(crate) notified: Vec<ClientId>,
    /// Its queue is to be looked at when the tick ends.
    pub(crate) noticed: bool,
    /// It is in the worker's list of pools that have work when the tick ends.
    pub(crate) listed: bool,
}

/// A set of parameters that clients or servers of the pool have.
struct KnownParams {
    params: Arc<Params>,
    /// ParameterStatus of all of it, once a client was told.
    told: Box<[u8]>,
}

/// The last attempt to open a server failed.
pub(crate) struct Failure {
    /// When (monotonic, µs).
    pub(crate) at_us: u64,
    /// What PostgreSQL or the operating system said.
    pub(crate) text: String,
    /// PostgreSQL's SQLSTATE, if it refused the login.
    pub(crate) code: Option<SqlState>,
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
            mode: PoolMode::Session,
            is_limited: false,
            tracks_statements: false,
            keeps_sessions: false,
            tries_startup: false,
            refuses_pins: false,
            slow_us: u64::MAX,
            pinned: 0,
            continuity: Continuity::default(),
            sequences: SequenceAffinity::Off,
            askers: Askers::default(),
            affinities: Affinities::default(),
            session_checks: SessionChecks::default(),
            routines: Routines::default(),
            reach: Reach::default(),
            queue: VecDeque::new(),
            waiting: 0,
            awaiting: Vec::new(),
            replicating: VecDeque::new(),
            lookups: VecDeque::new(),
            clients: 0,
            linked: 0,
            queued_behind: 0,
            short: Vec::new(),
            pace: Pace::new(),
            multiplexing: MultiplexStats::default(),
            idle: VecDeque::new(),
            tested: Vec::new(),
            counts: [0; KINDS],
            greeting: None,
            failure: None,
            stillborn: 0,
            dial_after_us: 0,
            speaks_only_3_0: false,
            cancels: 0,
            waiting_cancels: VecDeque::new(),
            stats: Stats::default(),
            times: None,
            errors: 0,
            shown_queries: None,
            snapshot: (Stats::default(), now_us),
            times_snapshot: None,
            times_earlier: None,
            earlier: (Stats::default(), now_us),
            database_counts: counts.0,
            user_counts: counts.1,
            next_host: 0,
            failed_hosts: Vec::new(),
            aged_us: 0,
            empty_us: now_us,
            paused: false,
            known_params: VecDeque::new(),
            sessions: KnownSessions::default(),
            settable: Vec::new(),
            startup_checks: StartupChecks::default(),
            known_sets: KnownSets::default(),
            notify_listener: None,
            learned: Learned::Nothing,
            to_resume: VecDeque::new(),
            notified: Vec::new(),
            noticed: false,
            listed: false,
        }
    }

    /// The object for a set of parameters: clients and servers that share it need no comparing.
    pub(crate) fn share(&mut self, params: Params) -> Arc<Params> {
        if let Some(known) = self.known_params.iter().rev().find(|known| *known.params == params) {
            return Arc::clone(&known.params);
        }
        if self.known_params.len() >= KNOWN_PARAMS_MAX {
            self.known_params.pop_front();
        }
        let params = Arc::new(params);
        self.known_params.push_back(KnownParams { params: Arc::clone(&params), told: Box::default() });
        params
    }

    /// Appends ParameterStatus of everything known in these parameters.
    pub(crate) fn tell_params(&mut self, out: &mut Vec<u8>, tracked: &Tracked, params: &Arc<Params>) {
        let known = self.known_params.iter_mut().rev().find(|known| Arc::ptr_eq(&known.params, params));
        let Some(known) = known else { return params.encode(out, tracked) };
        if known.told.is_empty() {
            let mut told = Vec::new();
            params.encode(&mut told, tracked);
            known.told = told.into();
        }
        out.extend_from_slice(&known.told);
    }

    /// What is run on each new server, if anything is.
    pub(crate) fn connect_query(&self) -> Option<&str> {
        self.config.connect_query.as_deref().filter(|query| !query.is_empty())
    }

    /// What every client begins with is known.
    pub(crate) fn greeting_with(&mut self, greeting: Arc<ServerGreeting>) {
        self.sessions.begin_with(&greeting.session);
        self.greeting = Some(greeting);
    }

    /// A server says what it is now: new clients are told so.
    pub(crate) fn greeting_telling(&mut self, name: &[u8], value: &[u8]) {
        if let Some(greeting) = self.greeting.as_deref().and_then(|greeting| greeting.telling(name, value)) {
            self.greeting = Some(Arc::new(greeting));
        }
    }

    /// These were set in a session.
    pub(crate) fn note_settable<'a>(&mut self, names: impl Iterator<Item = &'a Box<[u8]>>) {
        for name in names {
            let room = self.settable.len() < SETTABLE_MAX;
            if room && !name.contains(&b'.') && !self.settable.contains(name) {
                self.settable.push(name.clone());
            }
        }
    }

    /// A server came (`from` is `None`), moved, or left (`to` is `None`).
    pub(crate) fn list(&mut self, id: ServerId, from: Option<ServerKind>, to: Option<ServerKind>) {
        if let Some(from) = from {
            let place = &mut self.counts[from as usize];
            debug_assert!(*place > 0, "a server left a list it was not in");
            *place = place.saturating_sub(1);
        }
        match from {
            // Servers are taken from an end; only an eviction takes one from the middle.
            Some(ServerKind::Idle) if self.idle.back() == Some(&id) => drop(self.idle.pop_back()),
            Some(ServerKind::Idle) => self.idle.retain(|&other| other != id),
            Some(ServerKind::Tested) => self.tested.retain(|&other| other != id),
            _ => {}
        }
        match to {
            Some(ServerKind::Idle) => self.idle.push_back(id),
            Some(ServerKind::Tested) => self.tested.push(id),
            _ => {}
        }
        if let Some(to) = to {
            self.counts[to as usize] += 1;
        }
    }

    /// Servers of a kind.
    pub(crate) fn servers(&self, kind: ServerKind) -> u32 {
        self.counts[kind as usize]
    }

    /// All server connections that are for clients, those being opened included.
    pub(crate) fn servers_total(&self) -> u32 {
        self.counts.iter().sum::<u32>() - self.servers(ServerKind::Listening)
    }

    /// Follows the configuration.
    pub(crate) fn follow(&mut self, config: &Config) {
        self.mode = config.pool_mode(&self.config, &self.user);
        self.is_limited =
            config.max_db_connections(&self.config) > 0 || config.max_user_connections(&self.user) > 0;
        self.tracks_statements = self.mode != PoolMode::Session && config.main.max_prepared_statements > 0;
        let state = config.session_state(&self.config, &self.user);
        self.tries_startup = state != SessionState::Pgbouncer;
        self.refuses_pins = state == SessionState::Error;
        self.keeps_sessions = self.mode != PoolMode::Session && self.tries_startup;
        self.sequences = match config.main.sequence_affinity {
            _ if !self.keeps_sessions => SequenceAffinity::Off,
            SequenceAffinity::Pin if self.refuses_pins => SequenceAffinity::Wait,
            affinity => affinity,
        };
        let one_in = config.session_audit_sample(&self.config, &self.user);
        let connect_query = self.config.connect_query.as_deref().unwrap_or_default();
        self.session_checks.follow(if self.keeps_sessions { one_in } else { 0 }, connect_query);
        let slow = config.log_min_duration(&self.config, &self.user);
        self.slow_us = slow.map_or(u64::MAX, |slow| u64::try_from(slow.as_micros()).unwrap_or(u64::MAX));
        self.startup_checks.clear();
        self.known_sets.clear();
        self.routines.doubt();
    }

    /// A connection to this host failed a short time ago.
    pub(crate) fn has_failed(&self, host: &Endpoint) -> bool {
        self.failed_hosts.iter().any(|(failed, _)| failed == host)
    }

    /// Clients that cannot go on before there is a server.
    pub(crate) fn demand(&self) -> u32 {
        let awaiting = self.awaiting.len() as u32;
        // The pool's first server serves all clients that only wait for the parameters of a welcome.
        let waiting = self.waiting_for_a_server();
        if self.greeting.is_none() { waiting.max(awaiting.min(1)) } else { waiting.saturating_add(awaiting) }
    }

    /// A client waits for one of its connections, or for the room that one takes.
    pub(crate) fn is_starving(&self) -> bool {
        self.demand() > 0 || !self.replicating.is_empty()
    }

    /// Clients that are proven and not yet told so.
    pub(crate) fn at_login(&self) -> usize {
        self.awaiting.len() + self.replicating.len()
    }

    /// A client leaves before it was told that it is proven.
    pub(crate) fn forget_at_login(&mut self, id: ClientId) {
        self.awaiting.retain(|&other| other != id);
        self.replicating.retain(|&other| other != id);
    }

    /// Clients and questions that a free server would serve.
    pub(crate) fn waiting_for_a_server(&self) -> u32 {
        self.waiting.saturating_add(u32::try_from(self.lookups.len()).unwrap_or(u32::MAX))
    }

    /// Ends a period and returns it.
    pub(crate) fn end_period(&mut self, now_us: u64) -> Window {
        let changed =
            self.snapshot.0.queries != self.stats.queries || self.snapshot.0.xacts != self.stats.xacts;
        let times = match &self.times {
            Some(times) if changed => Some(Arc::new((**times).clone())),
            _ => self.times_snapshot.clone(),
        };
        self.times_earlier = std::mem::replace(&mut self.times_snapshot, times);
        self.earlier = std::mem::replace(&mut self.snapshot, (self.stats, now_us));
        self.since(&self.earlier, now_us)
    }

    /// What the averages of SHOW STATS are made of: the last whole period, and what there is of the present one.
    pub(crate) fn window(&self, now_us: u64) -> Window {
        self.since(&self.earlier, now_us)
    }

    /// The times of the same; `None` for a pool that never had a statement.
    pub(crate) fn recent_times(&self) -> Option<Times> {
        let times = self.times.as_deref()?;
        Some(self.times_earlier.as_deref().map_or_else(|| times.clone(), |earlier| times.since(earlier)))
    }

    fn since(&self, (stats, at_us): &(Stats, u64), now_us: u64) -> Window {
        Window { change: self.stats.since(stats), elapsed_us: now_us.saturating_sub(*at_us) }
    }
}
