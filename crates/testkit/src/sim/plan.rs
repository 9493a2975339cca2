//! The meaning of one seed: the pooler's configuration, the behaviour of the network and the server, the
//! faults, the clients.

use std::fmt::Write as _;

use pgweir_core::limits::{HOLD_MESSAGE_BYTES, Limits};

use super::client::script::{self, Script, ScriptWriter};
use super::model::followed::FOLLOWER;
use super::model::followed::follower::STALLED_US;
use super::model::nodes::WATCHER;
use super::model::nodes::lag::LAG_QUERY;
use super::rng::Rng;
use crate::sim::network::net::NetBehaviour;

/// The setting `pool_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Session pooling.
    Session,
    /// Transaction pooling.
    Transaction,
    /// Statement pooling.
    Statement,
}

impl Mode {
    /// Returns the mode's word in the ini file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Session => "session",
            Mode::Transaction => "transaction",
            Mode::Statement => "statement",
        }
    }
}

/// The main subject of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Theme {
    /// A mix of all subjects.
    Mixed,
    /// Many cancel requests, slow to take effect, on few servers.
    Cancels,
    /// Large results and copies, slow readers.
    Bulk,
    /// Many clients that share prepared statements, and servers that keep few of them.
    Prepared,
    /// Many clients with short scripts.
    Crowd,
    /// Many clients with one session's parameters and short statements, on few servers: they are multiplexed.
    Multiplexed,
    /// The same, and servers end, lie, and are cancelled just when one client is queued behind another.
    Faults,
    /// Clients that change what their sessions hold: tables, locks, prepared statements, cursors, channels.
    Sessions,
}

impl Theme {
    /// Many clients are multiplexed.
    #[must_use]
    pub fn is_multiplexed(self) -> bool {
        matches!(self, Theme::Multiplexed | Theme::Faults)
    }
}

/// The abilities of an engine under test. Scripts ask for no others.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The pool modes that the engine has.
    pub modes: &'static [Mode],
    /// Most workers.
    pub workers_max: u16,
    /// `true` if the engine honours pool sizes and the other limits.
    pub has_limits: bool,
    /// Named prepared statements work in transaction mode.
    pub has_prepared: bool,
    /// The extended protocol works.
    pub has_extended: bool,
    /// Faults of servers and the network towards them may occur.
    pub bears_faults: bool,
    /// Clients may vanish.
    pub bears_vanishing: bool,
    /// Timeouts of the configuration work.
    pub has_timeouts: bool,
    /// The console works.
    pub has_console: bool,
}

/// The behaviour of servers.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// SSLRequest is answered with S.
    pub speaks_tls: bool,
    /// Protocol 3.2, as PostgreSQL 18 and later.
    pub speaks_3_2: bool,
    /// ParameterStatus comes at once, as before PostgreSQL 14.
    pub reports_early: bool,
    /// Servers read slowly: a few hundred bytes, then they are busy up to so many microseconds; 0 is not.
    pub read_us_max: u64,
    /// Longest time a connection takes to open.
    pub connect_us_max: u64,
    /// Longest time a login takes.
    pub login_us_max: u64,
    /// max_connections; more are refused with 53300.
    pub connections_max: usize,
    /// Longest time until a cancel request takes effect, and again until its connection is closed.
    pub cancel_us_max: u64,
}

/// The faults of the servers, in percent of the connections.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Dials that are refused.
    pub dial_refused: u64,
    /// Logins that are refused, or in which the server dies.
    pub login_fails: u64,
    /// Servers that die at some point of their protocol.
    pub dies: u64,
    /// Servers that send what PostgreSQL would never send.
    pub nonsense: u64,
}

impl FaultPlan {
    /// Returns whether there are no faults.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.dial_refused + self.login_fails + self.dies + self.nonsense == 0
    }
}

/// Timeouts of the pooler in seconds; 0 is off.
#[derive(Clone, Debug, Default)]
pub struct Timeouts {
    /// query_wait_timeout
    pub query_wait_s: u64,
    /// client_idle_timeout
    pub client_idle_s: u64,
    /// idle_transaction_timeout
    pub idle_transaction_s: u64,
    /// query_timeout
    pub query_s: u64,
    /// server_lifetime
    pub server_lifetime_s: u64,
    /// server_idle_timeout
    pub server_idle_s: u64,
}

/// The cluster of the servers, and how the pooler watches it.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of events of the nodes, one after the other.
    pub happenings: u64,
    /// check_interval_ms
    pub check_interval_ms: u64,
    /// check_timeout_ms
    pub check_timeout_ms: u64,
    /// down_after_ms
    pub down_after_ms: u64,
    /// primary_max_age_ms
    pub primary_max_age_ms: u64,
    /// primary_wait in seconds.
    pub primary_wait_s: u64,
    /// causal_reads
    pub causal_reads: &'static str,
    /// commit_outcome
    pub commit_outcome: &'static str,
    /// wal_level=logical
    pub wal_is_logical: bool,
    /// causal_wait_ms
    pub causal_wait_ms: u64,
    /// begin_undeclared
    pub begin_undeclared: &'static str,
    /// `true` if the snapshots of clients are checked even with `causal_reads=off`.
    pub is_checked: bool,
    /// `true` if the cluster has a `lag_query`.
    pub asks_lag: bool,
    /// route of each database, in their order.
    pub routes: Vec<&'static str>,
    /// The nodes are discovered, and a source says so often which one is the primary (µs); `None`: a fixed list.
    pub source_us: Option<u64>,
}

/// The values that follow from a seed before the first event.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of the plan.
    pub seed: u64,
    /// The main subject of the run.
    pub theme: Theme,
    /// The setting `pool_mode`.
    pub mode: Mode,
    /// The number of machines.
    pub workers: u16,
    /// Databases; each is configured, and exists on the server, by this name.
    pub databases: Vec<String>,
    /// The users of the run.
    pub users: Vec<String>,
    /// default_pool_size
    pub pool_size: u32,
    /// reserve_pool_size
    pub reserve_pool_size: u32,
    /// max_db_connections; 0 is no limit.
    pub max_db_connections: u32,
    /// max_user_connections; 0 is no limit.
    pub max_user_connections: u32,
    /// max_client_conn
    pub max_client_conn: u32,
    /// max_prepared_statements; 0 is off.
    pub max_prepared_statements: u32,
    /// server_login_retry in seconds.
    pub login_retry_s: u64,
    /// The timeouts of the run.
    pub timeouts: Timeouts,
    /// server_check_delay is 0: every server is checked before use.
    pub checks_always: bool,
    /// session_state: settings that servers do not report are kept, too.
    pub keeps_sessions: bool,
    /// server_reset_query
    pub reset_query: &'static str,
    /// The setting `auth_type`.
    pub auth_type: &'static str,
    /// max_db_client_connections; 0 is no limit.
    pub max_db_client_connections: u32,
    /// max_user_client_connections; 0 is no limit.
    pub max_user_client_connections: u32,
    /// The first database has this user for all its servers, if any.
    pub forced_user: Option<String>,
    /// connect_query of every database.
    pub connect_query: bool,
    /// client_tls_sslmode
    pub client_tls: &'static str,
    /// server_tls_sslmode
    pub server_tls: &'static str,
    /// multiplex_depth, multiplex_max_ms, multiplex_servers.
    pub multiplex: (u32, u64, &'static str),
    /// Settings that may be as they like, with other values than their defaults.
    pub extras: Vec<(&'static str, &'static str)>,
    /// An administrator works at the console.
    pub has_operator: bool,
    /// The engine honours limits.
    pub has_limits: bool,
    /// The limits of the machine.
    pub limits: Limits,
    /// The network.
    pub net: NetBehaviour,
    /// The servers.
    pub server: ServerPlan,
    /// The faults of the run.
    pub faults: FaultPlan,
    /// The servers are in a cluster.
    pub cluster: Option<ClusterPlan>,
    /// The pooler has a query cache, and clients have something to ask it for.
    pub cache: Option<CachePlan>,
    /// A thousand clients.
    pub is_crowd: bool,
    /// A script has at most so many passages.
    pub passages_max: u32,
    /// The clients.
    pub clients: Vec<Script>,
}

/// The query cache of a plan.
#[derive(Clone, Copy, Debug)]
pub struct CachePlan {
    /// The age at which an answer is no longer given. 0: `query_cache=coalesce`.
    pub ttl_ms: u64,
    /// query_cache_bytes
    pub bytes: u32,
    /// query_cache_max_answer
    pub answer_bytes: u32,
    /// Answers are given until their tables change (`follow=wal`).
    pub follow: Option<FollowPlan>,
}

/// The database whose changes are followed, and how the pooler does that.
#[derive(Clone, Copy, Debug)]
pub struct FollowPlan {
    /// query_cache_max_age_ms
    pub max_age_ms: u64,
    /// query_cache_probe_ms
    pub probe_ms: u64,
    /// query_cache_ddl_ms
    pub ddl_ms: u64,
    /// The longest delay of the stream (µs), which is rare.
    pub lag_us_max: u64,
    /// The number of rows from which on a transaction is sent before its commit.
    pub large_from: usize,
    /// The longest time between two things that others do (µs).
    pub quiet_us_max: u64,
    /// Connections that follow end, slots are refused, the server is restarted, answers are late.
    pub has_faults: bool,
    /// query_cache_verify
    pub verify: u32,
}

impl FollowPlan {
    fn draw(rng: &mut Rng) -> Self {
        let (max_age_ms, probe_ms) = *rng.pick(&[(4, 2), (20, 5), (50, 20), (1_000, 20), (1_000, 20)]);
        FollowPlan {
            max_age_ms,
            probe_ms,
            ddl_ms: *rng.pick(&[300, 1_000]),
            lag_us_max: *rng.pick(&[1_000, 100_000, 3_000_000]),
            large_from: *rng.pick(&[2, 4, 1_000]),
            quiet_us_max: *rng.pick(&[10_000, 100_000, 500_000]),
            has_faults: rng.percent(50),
            verify: *rng.pick(&[0, 0, 1, 3]),
        }
    }

    /// Returns the time for which nothing is promised after a change of definitions that does not go through the pooler (µs).
    #[must_use]
    pub fn window_us(&self) -> u64 {
        // The question is on its way for a while, and two in a row may be late.
        self.ddl_ms * 1000 + 300_000 + if self.has_faults { 2 * STALLED_US } else { 0 }
    }
}

/// The maximum number of clients in a cluster that change data in transactions.
const CHANGING_CLIENTS: usize = 6;

/// scram_iterations, of pooler and servers: few, for thousands of logins.
pub const SCRAM_ITERATIONS: u32 = 16;

/// The password of a user; where the login needs one, client, pooler and server agree on it.
#[must_use]
pub fn password(user: &str) -> String {
    format!("secret of {user}")
}

impl Plan {
    /// Draws the plan of a seed for an engine with these abilities.
    #[must_use]
    pub fn new(seed: u64, profile: &Profile) -> Self {
        Plan::make(seed, profile, None, None)
    }

    /// A pooler with a query cache: clients send the same texts, and change what these read.
    #[must_use]
    pub fn cached(seed: u64, profile: &Profile) -> Self {
        let mut rng = Rng::new(seed ^ 0xca_c4_e5);
        let ttl_ms = *rng.pick(&[1, 20, 300, 3_000]);
        let coalesces = Rng::new(seed ^ 0xc0_a1).percent(30);
        // The smallest keeps two or three answers, and not the longest ones.
        let (bytes, answer_bytes) = *rng.pick(&[(2_000, 400), (20_000, 5_000), (1_000_000, 64_000)]);
        let mut follow_rng = Rng::new(seed ^ 0xf0_11_03);
        let follows = !coalesces && follow_rng.percent(60);
        let follow = follows.then(|| FollowPlan::draw(&mut follow_rng));
        let ttl_ms = if coalesces { 0 } else { ttl_ms };
        // The least room is too little for any row of what is followed.
        let (bytes, answer_bytes) =
            if follows { (bytes.max(10_000), answer_bytes.max(2_000)) } else { (bytes, answer_bytes) };
        let mut plan =
            Plan::make(seed, profile, None, Some(CachePlan { ttl_ms, bytes, answer_bytes, follow }));
        if follow.is_some() {
            // The two connections that follow find room.
            (plan.max_db_connections, plan.max_user_connections) = (0, 0);
            plan.server.connections_max = 1000;
            plan.stay_a_while(&mut follow_rng);
        }
        plan
    }

    /// Clients come when the changes may be followed, and most of them read what is followed again and again.
    fn stay_a_while(&mut self, rng: &mut Rng) {
        // A cancel request must be known to hit a statement of its client's: in most worlds there is none.
        let cancels = rng.percent(20) && self.clients.iter().any(|client| client.cancels);
        for client in &mut self.clients {
            client.begin_us += rng.below(200_000);
            if !cancels && client.intruder.is_none() && (client.cancels || rng.percent(70)) {
                client.steps = script::reads_of_followed(client.id, rng);
                (client.cancels, client.vanish) = (false, None);
            }
        }
    }

    /// Returns the database that is followed, if one is.
    #[must_use]
    pub fn follow(&self) -> Option<FollowPlan> {
        self.cache.as_ref()?.follow
    }

    /// A thousand clients that change what their sessions hold.
    #[must_use]
    pub fn thousand_sessions(seed: u64, profile: &Profile) -> Self {
        Plan::make(seed, profile, Some(1000), None)
    }

    /// Servers in a cluster, to whose nodes things happen; nothing else goes wrong.
    #[must_use]
    pub fn cluster(seed: u64, profile: &Profile) -> Self {
        let mut plan = Plan::make(seed, profile, None, None);
        let mut rng = Rng::new(seed ^ 0xc1_05_7e_55);
        plan.faults = FaultPlan::default();
        plan.timeouts = Timeouts { server_lifetime_s: 3600, server_idle_s: 600, ..Timeouts::default() };
        plan.server.connections_max = 1000;
        plan.server.read_us_max = 0;
        plan.server_tls = "disable";
        plan.has_operator = false;
        plan.connect_query = false;
        let check_interval_ms = rng.between(50, 200);
        plan.cluster = Some(ClusterPlan {
            nodes: usize::try_from(rng.between(2, 3)).expect("few nodes"),
            happenings: rng.between(1, 8),
            check_interval_ms,
            check_timeout_ms: rng.between(50, 200),
            down_after_ms: rng.between(100, 600),
            primary_max_age_ms: check_interval_ms + rng.between(1000, 2000),
            primary_wait_s: *rng.pick(&[0, 1, 5, 20, 20]),
            causal_reads: rng.pick::<&str>(&["off", "session", "session", "database"]),
            causal_wait_ms: *rng.pick(&[0, 10, 10, 200]),
            // Drawn by itself: `first` means something only beside a `defer_begin` that is not off.
            begin_undeclared: Rng::new(seed ^ 0xbe_61_f1).pick::<&str>(&["first", "primary"]),
            is_checked: false,
            asks_lag: Rng::new(seed ^ 0x1a_95).percent(30),
            commit_outcome: match rng.percent(70) {
                true if seed.is_multiple_of(2) => "exact",
                true => "on",
                false => "off",
            },
            wal_is_logical: rng.percent(25),
            routes: plan
                .databases
                .iter()
                .map(|_| {
                    *rng.pick(&["primary", "auto", "auto", "standby", "standby", "prefer-standby", "any"])
                })
                .collect(),
            source_us: rng.percent(50).then(|| rng.between(20_000, 200_000)),
        });
        plan.change_and_read(&mut rng);
        plan.change_in_transactions(&mut rng);
        plan
    }

    /// Clients that may go to any node change something, and read at a standby behind that.
    fn change_and_read(&mut self, rng: &mut Rng) {
        if self.mode != Mode::Transaction || !self.keeps_sessions {
            return;
        }
        for at in 0..self.clients.len() {
            let route = self.route_of(&self.clients[at].database);
            if matches!(route, Some("any" | "prefer-standby" | "auto")) && rng.percent(70) {
                let steps = script::changes_and_reads(self.clients[at].id, route == Some("auto"), rng);
                self.clients[at].steps.extend(steps);
            }
        }
    }

    /// Clients that may change something do so in transactions, while things happen to the nodes.
    fn change_in_transactions(&mut self, rng: &mut Rng) {
        if self.mode != Mode::Transaction {
            return;
        }
        // In some worlds, for as long as things happen.
        let goes_on = rng.percent(35);
        if goes_on {
            self.pool_size = self.pool_size.max(4);
        }
        let count = if goes_on { 300 } else { 6 };
        let reads_first = self.cluster.as_ref().is_some_and(|cluster| cluster.begin_undeclared == "first");
        let changes = |at: &usize| self.route_of(&self.clients[*at].database) != Some("standby");
        let clients: Vec<usize> = (0..self.clients.len()).filter(changes).take(CHANGING_CLIENTS).collect();
        for at in clients {
            let steps = script::transactions(&self.clients[at], count, reads_first, rng);
            self.clients[at].steps.extend(steps);
        }
    }

    fn make(seed: u64, profile: &Profile, sessions: Option<u64>, cache: Option<CachePlan>) -> Self {
        let mut rng = Rng::new(seed);
        let mut mode = *rng.pick(profile.modes);
        if cache.is_some() {
            mode = Mode::Transaction;
        }
        let theme = match rng.below(100) {
            0..8 => Theme::Cancels,
            8..14 => Theme::Bulk,
            14..24 => Theme::Prepared,
            24..30 => Theme::Crowd,
            30..43 => Theme::Multiplexed,
            43..50 => Theme::Faults,
            86..100 => Theme::Sessions,
            _ => Theme::Mixed,
        };
        let theme = if sessions.is_some() { Theme::Sessions } else { theme };
        let databases: Vec<String> = (0..rng.between(1, 3)).map(|i| format!("db{i}")).collect();
        let users: Vec<String> = (0..rng.between(1, 2)).map(|i| format!("user{i}")).collect();
        let mut plan = Plan {
            seed,
            theme,
            mode,
            workers: u16::try_from(rng.between(1, u64::from(profile.workers_max))).expect("few workers"),
            databases,
            users,
            pool_size: rng.count(1, 5),
            reserve_pool_size: if rng.percent(20) { rng.count(1, 2) } else { 0 },
            max_db_connections: if rng.percent(25) { rng.count(1, 4) } else { 0 },
            max_user_connections: if rng.percent(15) { rng.count(1, 4) } else { 0 },
            max_client_conn: if rng.percent(15) { rng.count(2, 6) } else { 100 },
            max_prepared_statements: if rng.percent(15) { 0 } else { rng.count(1, 5) },
            login_retry_s: rng.between(1, 3),
            timeouts: timeouts(&mut rng, profile),
            checks_always: rng.percent(25),
            keeps_sessions: cache.is_some() || !seed.is_multiple_of(4),
            reset_query: "DISCARD ALL",
            auth_type: match rng.below(10) {
                0 => "plain",
                1 => "md5",
                2 => "scram-sha-256",
                _ => "trust",
            },
            max_db_client_connections: if rng.percent(8) { rng.count(1, 5) } else { 0 },
            max_user_client_connections: if rng.percent(8) { rng.count(1, 5) } else { 0 },
            forced_user: rng.percent(12).then(|| "boss".to_owned()),
            connect_query: rng.percent(10),
            client_tls: if rng.percent(25) { "prefer" } else { "disable" },
            server_tls: if rng.percent(25) { "prefer" } else { "disable" },
            multiplex: multiplex(&mut rng),
            extras: extras(&mut rng),
            has_operator: profile.has_console && rng.percent(12),
            has_limits: profile.has_limits,
            limits: limits(seed),
            net: net_behaviour(&mut rng),
            server: server_plan(&mut rng, profile),
            faults: faults(&mut rng, profile),
            cluster: None,
            cache,
            is_crowd: sessions.is_some(),
            passages_max: match theme {
                Theme::Crowd => 3,
                Theme::Multiplexed | Theme::Faults => 40,
                _ => 12,
            },
            clients: Vec::new(),
        };
        plan.follow_theme(&mut rng, profile);
        if plan.cache.is_some() {
            // Clients have answers in common in one pool of one worker.
            (plan.workers, plan.max_client_conn) = (plan.workers.min(2), 100);
            plan.databases.truncate(1);
            plan.users.truncate(1);
            plan.passages_max = 40;
        }
        let mut client_rng = rng.fork();
        let count = match theme {
            Theme::Crowd => rng.between(15, 40),
            Theme::Multiplexed | Theme::Faults => rng.between(6, 30),
            Theme::Prepared | Theme::Cancels => rng.between(4, 12),
            Theme::Bulk => rng.between(2, 6),
            Theme::Sessions => rng.between(3, 40),
            Theme::Mixed => rng.between(1, 10),
        };
        let count = sessions.unwrap_or(count);
        if sessions.is_some() {
            plan.hold_a_crowd();
        }
        for id in 0..usize::try_from(count).expect("few clients") {
            let script = ScriptWriter::new(&plan, profile, client_rng.fork(), id).write();
            plan.clients.push(script);
        }
        plan
    }

    fn follow_theme(&mut self, rng: &mut Rng, profile: &Profile) {
        match self.theme {
            Theme::Cancels => {
                self.databases.truncate(1);
                self.users.truncate(1);
                self.net.delay_us_max = *rng.pick(&[1, 50, 1_000]);
                self.pool_size = rng.count(1, 2);
                self.server.cancel_us_max = 20_000;
            }
            Theme::Prepared => {
                self.pool_size = rng.count(1, 3);
                self.max_prepared_statements = rng.count(1, 4);
            }
            Theme::Multiplexed | Theme::Faults => {
                self.databases.truncate(1);
                self.users.truncate(1);
                self.pool_size = rng.count(1, 3);
                self.net.delay_us_max = *rng.pick(&[1, 50, 1_000, 5_000]);
                self.net.window_bytes = 65_536;
                if rng.percent(85) {
                    self.multiplex.0 = *rng.pick(&[2, 4, 32, 32]);
                }
                if self.mode == Mode::Session {
                    self.mode = Mode::Transaction;
                }
                if self.theme == Theme::Faults {
                    self.pool_size = rng.count(1, 2);
                    self.net.delay_us_max = *rng.pick(&[1, 50, 500]);
                    self.multiplex = (*rng.pick(&[3, 8, 32]), 50, *rng.pick(&["auto", "1", "2"]));
                    self.server.cancel_us_max = *rng.pick(&[3_000, 20_000]);
                    self.server.connect_us_max = *rng.pick(&[10, 500]);
                    if profile.bears_faults {
                        let (dies, nonsense) = *rng.pick(&[(0, 0), (70, 0), (70, 20), (0, 70)]);
                        self.faults = FaultPlan { dies, nonsense, ..FaultPlan::default() };
                    }
                }
            }
            Theme::Sessions => {
                self.databases.truncate(2);
                self.keeps_sessions = true;
                self.pool_size = rng.count(1, 8);
            }
            Theme::Mixed | Theme::Bulk | Theme::Crowd => {}
        }
    }

    /// Room for a thousand clients, with nothing in their way but each other.
    fn hold_a_crowd(&mut self) {
        self.mode = Mode::Transaction;
        self.pool_size = 20;
        self.max_client_conn = 2000;
        (self.max_db_client_connections, self.max_user_client_connections) = (0, 0);
        self.timeouts = Timeouts { server_lifetime_s: 3600, server_idle_s: 600, ..Timeouts::default() };
        self.server.read_us_max = 0;
        self.net.delay_us_max = self.net.delay_us_max.min(1_000);
        self.net.window_bytes = 65_536;
        if self.seed % 64 != 1 {
            // So that there can be many such worlds.
            self.passages_max = 2;
        }
    }

    /// The command that runs it again.
    #[must_use]
    pub fn repeat(&self) -> String {
        if self.cluster.is_some() {
            return format!("make sim ARGS=\"--cluster {}\"", self.seed);
        }
        if self.cache.is_some() {
            return format!("make sim ARGS=\"--cache {}\"", self.seed);
        }
        match self.is_crowd {
            true => format!("make sim ARGS=\"--thousand {}\"", self.seed),
            false => format!("make sim SEED={}", self.seed),
        }
    }

    /// Clients listen, and where servers are not their own, one connection of each pool does so for them.
    #[must_use]
    pub fn has_hubs(&self) -> bool {
        self.theme == Theme::Sessions && self.mode != Mode::Session
    }

    /// The pool that serves a client of this database and user.
    #[must_use]
    pub fn pool_of(&self, database: &str, user: &str) -> (String, String) {
        let forced = self
            .forced_user
            .as_ref()
            .filter(|_| self.databases.first().is_some_and(|first| first == database));
        (database.to_owned(), forced.cloned().unwrap_or_else(|| user.to_owned()))
    }

    /// Returns the setting `defer_begin`.
    #[must_use]
    pub fn defer_begin(&self) -> &'static str {
        ["off", "packet", "server"][(self.seed % 3) as usize]
    }

    /// Returns the route of a database's clients, if the servers are in a cluster.
    #[must_use]
    pub fn route_of(&self, database: &str) -> Option<&'static str> {
        let routes = &self.cluster.as_ref()?.routes;
        let place = self.databases.iter().position(|known| known == database);
        place.and_then(|place| routes.get(place).copied()).or(Some("primary"))
    }

    /// Returns whether transactions that do not say what they do may begin at a standby (`begin_undeclared=first`).
    #[must_use]
    pub fn begins_undeclared(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.begin_undeclared == "first")
    }

    /// The configuration as the pooler reads it.
    #[must_use]
    pub fn ini(&self) -> String {
        let mut ini = String::from("[databases]\n");
        for database in &self.databases {
            let place = match self.route_of(database) {
                Some(route) => format!("cluster=main route={route}"),
                None => "host=server port=5432".to_owned(),
            };
            let _ = write!(ini, "{database} = {place} dbname={database}");
            let (_, user) = self.pool_of(database, "");
            if !user.is_empty() {
                let _ = write!(ini, " user={user} password='{}'", password(&user));
            }
            ini.push_str(if self.connect_query { " connect_query='SELECT 1'\n" } else { "\n" });
        }
        ini.push_str("[pgbouncer]\nlisten_addr = 127.0.0.1\nunix_socket_dir =\nauth_file = users\n");
        ini.push_str("client_tls_key_file = key.pem\nclient_tls_cert_file = cert.pem\nadmin_users = admin\n");
        let settings: [(&str, String); 32] = [
            ("defer_begin", self.defer_begin().to_owned()),
            ("multiplex_depth", self.multiplex.0.to_string()),
            ("multiplex_max_ms", self.multiplex.1.to_string()),
            ("multiplex_servers", self.multiplex.2.to_owned()),
            ("scram_iterations", SCRAM_ITERATIONS.to_string()),
            ("client_tls_sslmode", self.client_tls.to_owned()),
            ("server_tls_sslmode", self.server_tls.to_owned()),
            ("max_db_client_connections", self.max_db_client_connections.to_string()),
            ("max_user_client_connections", self.max_user_client_connections.to_string()),
            ("server_reset_query", self.reset_query.to_owned()),
            ("session_state", if self.keeps_sessions { "preserve" } else { "pgbouncer" }.to_owned()),
            ("session_audit_sample", [0, 1, 3, 20, 0][(self.seed % 5) as usize].to_string()),
            ("auth_type", self.auth_type.to_owned()),
            ("pool_mode", self.mode.name().to_owned()),
            ("default_pool_size", self.pool_size.to_string()),
            ("reserve_pool_size", self.reserve_pool_size.to_string()),
            ("reserve_pool_timeout", "1".to_owned()),
            ("max_db_connections", self.max_db_connections.to_string()),
            ("max_user_connections", self.max_user_connections.to_string()),
            ("max_client_conn", self.max_client_conn.to_string()),
            ("max_prepared_statements", self.max_prepared_statements.to_string()),
            ("server_login_retry", self.login_retry_s.to_string()),
            ("query_wait_timeout", self.timeouts.query_wait_s.to_string()),
            ("client_idle_timeout", self.timeouts.client_idle_s.to_string()),
            ("idle_transaction_timeout", self.timeouts.idle_transaction_s.to_string()),
            ("query_timeout", self.timeouts.query_s.to_string()),
            ("server_lifetime", self.timeouts.server_lifetime_s.max(1).to_string()),
            ("server_idle_timeout", self.timeouts.server_idle_s.to_string()),
            ("server_check_delay", if self.checks_always { "0" } else { "30" }.to_owned()),
            ("client_login_timeout", "0".to_owned()),
            ("server_connect_timeout", "5".to_owned()),
            ("track_extra_parameters", "IntervalStyle".to_owned()),
        ];
        for (name, value) in settings {
            let _ = writeln!(ini, "{name} = {value}");
        }
        for (name, value) in &self.extras {
            let _ = writeln!(ini, "{name} = {value}");
        }
        if let Some(cluster) = &self.cluster {
            cluster.write_to(&mut ini);
        }
        if let Some(CachePlan { ttl_ms, bytes, answer_bytes, follow }) = self.cache {
            let _ = writeln!(ini, "query_cache_bytes = {bytes}\nquery_cache_max_answer = {answer_bytes}");
            if let Some(FollowPlan { max_age_ms, probe_ms, ddl_ms, verify, .. }) = follow {
                let _ = writeln!(
                    ini,
                    "query_cache_user = {FOLLOWER}\nquery_cache_max_age_ms = {max_age_ms}\nquery_cache_probe_ms = {probe_ms}\nquery_cache_ddl_ms = {ddl_ms}\nquery_cache_verify = {verify}"
                );
            }
            let _ = match ttl_ms {
                _ if follow.is_some() => writeln!(ini, "query_cache = on\n[cache]\nall = follow=wal"),
                0 => writeln!(ini, "query_cache = coalesce"),
                _ => writeln!(ini, "query_cache = on\n[cache]\nall = ttl_ms={ttl_ms}"),
            };
        }
        ini
    }

    /// The users as `auth_file` has them.
    #[must_use]
    pub fn auth_file(&self) -> String {
        let admin = "admin".to_owned();
        let others = [WATCHER.to_owned(), FOLLOWER.to_owned()];
        self.users.iter().chain([&admin]).chain(&others).fold(String::new(), |mut text, user| {
            let _ = writeln!(text, "\"{user}\" \"{}\"", password(user));
            text
        })
    }

    /// One line for a report.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{:?}: {} pooling, {} workers, {} databases x {} users, pool {}+{}, max_db {}, max_user {}, max_client {}, \
             prepared {}, multiplexed {:?}, auth {}, {} clients, delay {} us, window {} B, {:?}, faults {:?}, timeouts {:?}",
            self.theme,
            self.mode.name(),
            self.workers,
            self.databases.len(),
            self.users.len(),
            self.pool_size,
            self.reserve_pool_size,
            self.max_db_connections,
            self.max_user_connections,
            self.max_client_conn,
            self.max_prepared_statements,
            self.multiplex,
            self.auth_type,
            self.clients.len(),
            self.net.delay_us_max,
            self.net.window_bytes,
            self.limits,
            self.faults,
            self.timeouts,
        )
    }
}

impl ClusterPlan {
    fn write_to(&self, ini: &mut String) {
        let names: Vec<String> = (0..self.nodes).map(|n| format!("n{n}")).collect();
        let mut found_by = "discovery=patroni patroni_api=http://model:8008".to_owned();
        if self.source_us.is_some() {
            let _ = writeln!(ini, "[pgweir]\nallow_discovered_hosts = *");
        } else {
            let _ = writeln!(ini, "[nodes]");
            for (number, name) in names.iter().enumerate() {
                let _ = writeln!(ini, "{name} = host=node{number}");
            }
            found_by = format!("nodes={}", names.join(","));
        }
        let _ = writeln!(
            ini,
            "[clusters]\nmain = {found_by} check_user={WATCHER} check_interval_ms={} check_timeout_ms={} down_after_ms={} \
             primary_max_age_ms={} primary_wait={} causal_reads={} causal_wait_ms={} commit_outcome={} begin_undeclared={}",
            self.check_interval_ms,
            self.check_timeout_ms,
            self.down_after_ms,
            self.primary_max_age_ms,
            self.primary_wait_s,
            self.causal_reads,
            self.causal_wait_ms,
            self.commit_outcome,
            self.begin_undeclared,
        );
        if self.asks_lag {
            ini.truncate(ini.trim_end().len());
            let _ = writeln!(ini, " lag_query='{LAG_QUERY}'");
        }
    }
}

fn server_plan(rng: &mut Rng, profile: &Profile) -> ServerPlan {
    ServerPlan {
        speaks_tls: rng.percent(50),
        speaks_3_2: rng.percent(50),
        reports_early: rng.percent(40),
        read_us_max: if rng.percent(8) { 300 } else { 0 },
        connect_us_max: *rng.pick(&[10, 500, 20_000]),
        login_us_max: *rng.pick(&[10, 1_000, 50_000]),
        connections_max: if profile.bears_faults && rng.percent(3) { rng.index(4) + 1 } else { 1000 },
        cancel_us_max: *rng.pick(&[1, 100, 3_000, 20_000]),
    }
}

/// The limits of the machine: in every other run small ones, each by itself. They are drawn apart, so that a seed means the same clients
/// and faults with any limits.
fn limits(seed: u64) -> Limits {
    let usual = Limits::default();
    let mut rng = Rng::new(seed ^ 0x0011_a175);
    if rng.percent(50) {
        return usual;
    }
    Limits {
        // A message that is held until it is whole must fit.
        inbox_bytes: *rng.pick(&[HOLD_MESSAGE_BYTES + 1, usual.inbox_bytes]),
        backlog_bytes: *rng.pick(&[1, 100, 1_000, usual.backlog_bytes]),
        ledger_entries: *rng.pick(&[1, 2, 3, 10, usual.ledger_entries]),
    }
}

fn net_behaviour(rng: &mut Rng) -> NetBehaviour {
    NetBehaviour {
        delay_us_max: *rng.pick(&[1, 50, 1_000, 5_000]),
        window_bytes: *rng.pick(&[300, 4_096, 65_536, 65_536]),
        tiny_reads_percent: *rng.pick(&[0, 0, 5, 30]),
        cut_writes_percent: *rng.pick(&[0, 10, 50]),
    }
}

fn timeouts(rng: &mut Rng, profile: &Profile) -> Timeouts {
    let mut timeouts = Timeouts { server_lifetime_s: 3600, server_idle_s: 600, ..Timeouts::default() };
    if !profile.has_timeouts || !rng.percent(25) {
        return timeouts;
    }
    let mut sometimes = |low, high| if rng.percent(40) { rng.between(low, high) } else { 0 };
    timeouts.query_wait_s = sometimes(1, 3);
    timeouts.client_idle_s = sometimes(1, 3);
    timeouts.idle_transaction_s = sometimes(1, 3);
    timeouts.query_s = sometimes(1, 3);
    timeouts.server_lifetime_s = sometimes(1, 3);
    timeouts.server_idle_s = sometimes(1, 2);
    if timeouts.server_lifetime_s == 0 {
        timeouts.server_lifetime_s = 3600;
    }
    timeouts
}

fn extras(rng: &mut Rng) -> Vec<(&'static str, &'static str)> {
    let known = [
        ("server_round_robin", "1"),
        ("server_reset_query_always", "1"),
        ("min_pool_size", "1"),
        ("query_wait_notify", "1"),
        ("application_name_add_host", "0"),
    ];
    known.into_iter().filter(|_| rng.percent(10)).collect()
}

fn multiplex(rng: &mut Rng) -> (u32, u64, &'static str) {
    (*rng.pick(&[0, 1, 2, 8, 32]), *rng.pick(&[1, 5, 50]), *rng.pick(&["auto", "auto", "1", "2"]))
}

fn faults(rng: &mut Rng, profile: &Profile) -> FaultPlan {
    if !profile.bears_faults || rng.percent(55) {
        return FaultPlan::default();
    }
    let mut sometimes = |percent| if rng.percent(50) { percent } else { 0 };
    FaultPlan {
        dial_refused: sometimes(15),
        login_fails: sometimes(15),
        dies: sometimes(40),
        nonsense: sometimes(20),
    }
}
