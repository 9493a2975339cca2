//! Reads from standbys: which node a client's transactions run on, and what becomes of them when that node is gone.

use std::collections::VecDeque;

use pgweir_core::driver::Peer;

use crate::clusters::{MAIN, primary, says, says_at};
use crate::rig::{End, Rig, be, fe, greeting};

/// Three nodes, and a database for each route.
pub(super) const CLUSTER: &str = "app = cluster=main\n\
    app_ro = cluster=main dbname=app route=standby\n\
    app_prefer = cluster=main dbname=app route=prefer-standby\n\
    app_any = cluster=main dbname=app route=any\n\
    app_auto = cluster=main dbname=app route=auto begin_undeclared=primary\n\
    app_first = cluster=main dbname=app route=auto\n\
    app_named = cluster=main dbname=app route=auto read_functions=note_* primary_names=audit_*\n\
    [clusters]\nmain = nodes=m1,m2,m3 check_user=carol down_after_ms=500 primary_max_age_ms=3000 primary_wait=5 causal_reads=off\n\
    [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\nm3 = host=10.0.0.3\n";

/// The text of a `lag_query`.
pub(super) const LAG_QUERY: &str = "select seconds from heartbeat";

/// A cluster of three nodes that answers its watches.
pub(super) struct Stage {
    pub(super) rig: Rig,
    watches: Vec<(End, usize)>,
    /// Servers that are connected and not greeted, and their nodes.
    pub(super) servers: VecDeque<(End, usize)>,
    /// What each node says of itself; `None`: it cannot be reached.
    pub(super) says: [Option<Vec<u8>>; 3],
    /// What each node answers to `lag_query`; `None`: nothing.
    pub(super) lags: [Option<Vec<u8>>; 3],
    /// So often it was asked.
    pub(super) lags_asked: [usize; 3],
}

impl Stage {
    pub(super) fn new(main: &str) -> Stage {
        Stage::of(Rig::with(&format!("{MAIN}\n{main}"), CLUSTER, 1))
    }

    /// With these words in place of `causal_reads=off`.
    pub(super) fn causal(words: &str) -> Stage {
        Stage::of(Rig::with(MAIN, &CLUSTER.replace("causal_reads=off", words), 1))
    }

    pub(super) fn of(rig: Rig) -> Stage {
        let says = [primary(1), says(true, 1, 2), says(true, 1, 3)].map(Some);
        let mut stage = Stage {
            rig,
            watches: Vec::new(),
            servers: VecDeque::new(),
            says,
            lags: Default::default(),
            lags_asked: [0; 3],
        };
        stage.pass_us(1);
        stage
    }

    /// Time passes, and the watches are answered.
    pub(super) fn pass_us(&mut self, us: u64) {
        let mut left = us;
        while left > 0 {
            let step = left.min(50_000);
            left -= step;
            self.rig.pass_us(step);
            self.answer_watches();
        }
    }

    pub(super) fn answer_watches(&mut self) {
        for (watch, node) in self.watches.clone() {
            self.answer_watch(watch, node);
        }
        while self.rig.new_dials() > 0 {
            let end = self.rig.dialed();
            let place = self.rig.endpoint(end);
            let node = (1..=3).find(|node| place == format!("10.0.0.{node}:5432")).expect("a node");
            let Some(answer) = self.says[node - 1].clone() else {
                self.rig.refuse_dial(end, "no route to host");
                continue;
            };
            if self.rig.connect(end).contains("user carol") {
                self.watches.push((end, node));
                self.rig.send(end, &greeting());
                self.rig.raw(end);
                self.rig.send(end, &answer);
                self.answer_watch(end, node);
            } else {
                self.servers.push_back((end, node));
            }
        }
    }

    fn answer_watch(&mut self, watch: End, node: usize) {
        while !self.rig.is_closed(watch) {
            let asked = self.rig.raw(watch);
            if asked.is_empty() {
                return;
            }
            if String::from_utf8_lossy(&asked).contains(LAG_QUERY) {
                self.lags_asked[node - 1] += 1;
                let Some(answer) = &self.lags[node - 1] else { return };
                self.rig.send(watch, answer);
            } else if let Some(answer) = &self.says[node - 1] {
                self.rig.send(watch, answer);
            } else {
                self.rig.eof(watch);
            }
        }
    }

    /// The next server that is dialed, connected and not greeted; and its node.
    pub(super) fn dialed(&mut self) -> (End, usize) {
        self.answer_watches();
        self.servers.pop_front().expect("no server was dialed")
    }

    pub(super) fn dials_nothing(&mut self) {
        self.answer_watches();
        assert!(self.servers.is_empty(), "{} servers were dialed", self.servers.len());
    }

    /// It logs us in, in this role.
    pub(super) fn greet(&mut self, server: End, in_hot_standby: bool) {
        let role = be::parameter("in_hot_standby", if in_hot_standby { "on" } else { "off" });
        let (told, auth) = (greeting(), be::auth_ok());
        self.rig.send(server, &[&auth[..], &role, &told[auth.len()..]].concat());
    }

    /// A server that is up, and its node.
    pub(super) fn server(&mut self) -> (End, usize) {
        let (server, node) = self.dialed();
        self.greet(server, node > 1);
        (server, node)
    }

    /// A client that is served by a server of its own.
    pub(super) fn served(&mut self, database: &str) -> (End, End, usize) {
        let client = self.rig.knock("alice", database);
        let (server, node) = self.server();
        assert_eq!(self.rig.gets(client).last().map(String::as_str), Some("Ready I"));
        (client, server, node)
    }

    /// The client's text goes to this server, and is answered.
    pub(super) fn runs(&mut self, client: End, server: End, text: &str, tag: &str, status: char) {
        self.rig.gets_raw(client);
        self.rig.send(client, &fe::query(text));
        assert_eq!(self.rig.gets(server), [format!("Query {text}")]);
        self.rig.send(server, &[be::complete(tag), be::ready(status)].concat());
        assert_eq!(self.rig.gets(client).last(), Some(&format!("Ready {status}")));
    }

    /// sv_active, sv_idle, cl_waiting and reads of a node.
    fn at_node(&mut self, node: &str) -> [u64; 4] {
        self.counts_at(node, 13)
    }

    /// second_tries and misrouted of a node.
    pub(super) fn second_tries(&mut self, node: &str) -> [u64; 2] {
        self.counts_at(node, 19)
    }

    fn counts_at<const N: usize>(&mut self, node: &str, first: usize) -> [u64; N] {
        let row = self.shown(node);
        let cells: Vec<&str> = row.split(',').collect();
        std::array::from_fn(|place| cells[first + place].parse().expect("a number"))
    }

    /// The row of a node, from its third column on.
    pub(super) fn shown(&mut self, node: &str) -> String {
        let console = self.rig.console();
        let rows = self.rig.command(console, "SHOW NODES");
        let row = rows.iter().find_map(|row| row.strip_prefix(&format!("Row main,{node},")));
        row.expect("the node is shown").to_owned()
    }

    /// Reads that fell back, as there was no standby, and for lag.
    fn fell_back(&mut self) -> [u64; 2] {
        let console = self.rig.console();
        let rows = self.rig.command(console, "SHOW CLUSTERS");
        let row = rows.iter().find(|row| row.starts_with("Row main,")).expect("the cluster is shown");
        let cells: Vec<&str> = row.rsplit(',').collect();
        [6, 5].map(|place| cells[place].parse().expect("a number"))
    }

    pub(super) fn command(&mut self, text: &str) {
        let console = self.rig.console();
        self.rig.command(console, text);
        self.answer_watches();
    }
}

#[test]
fn a_database_with_route_standby_is_served_by_standbys_alone() {
    let mut stage = Stage::new("");
    let client = stage.rig.knock("alice", "app_ro");
    let (server, node) = stage.server();
    assert_ne!(node, 1);
    let told = stage.rig.gets(client);
    assert!(told.iter().any(|line| line.contains("in_hot_standby") && line.contains("on")), "{told:?}");
    stage.rig.send(client, &fe::query("insert into t values (1)"));
    assert_eq!(stage.rig.gets(server), ["Query insert into t values (1)"]);
    let refused = be::error("25006", "cannot execute INSERT in a read-only transaction");
    stage.rig.send(server, &[refused, be::ready('I')].concat());
    assert!(stage.rig.gets(client)[0].contains("25006"), "PostgreSQL judges");
    stage.dials_nothing();
}

#[test]
fn other_databases_stay_at_the_primary() {
    let mut stage = Stage::new("");
    let (client, server, node) = stage.served("app");
    assert_eq!(node, 1);
    stage.runs(client, server, "select 1", "SELECT 1", 'I');
}

#[test]
fn a_server_that_says_it_is_no_standby_serves_no_read() {
    let mut stage = Stage::new("");
    let client = stage.rig.knock("alice", "app_ro");
    let (server, node) = stage.dialed();
    stage.greet(server, false);
    assert!(stage.rig.is_closed(server) && stage.rig.logged("the server is no standby"));
    stage.rig.gets_nothing(client);
    let (_, next) = stage.server();
    assert_ne!(node, next, "the other standby is tried at once");
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn clients_are_spread_over_the_standbys_by_load() {
    let mut stage = Stage::new("default_pool_size = 9");
    let (first, _, node) = stage.served("app_ro");
    let mut clients = vec![first];
    clients.extend((0..5).map(|_| stage.rig.knock("alice", "app_ro")));
    let mut at = vec![node];
    for client in clients {
        stage.rig.gets_raw(client);
        stage.rig.send(client, &fe::query("begin"));
        stage.answer_watches();
        if !stage.servers.is_empty() {
            at.push(stage.server().1);
        }
    }
    let counts = [2, 3].map(|node| at.iter().filter(|at| **at == node).count());
    assert_eq!(counts.iter().sum::<usize>(), at.len());
    assert!(counts.iter().all(|count| *count >= 2), "{at:?}");
}

#[test]
fn a_client_waits_for_a_standby_and_is_told_what_each_node_is() {
    let mut stage = Stage::new("");
    stage.command("DRAIN NODE main.m2");
    stage.command("DRAIN NODE main.m3");
    let client = stage.rig.knock("alice", "app_ro");
    stage.dials_nothing();
    let (_, _, node) = stage.served("app_prefer");
    assert_eq!(node, 1, "the primary serves it");
    stage.rig.gets_nothing(client);
    stage.pass_us(4_900_000);
    stage.rig.gets_nothing(client);
    stage.pass_us(600_000);
    let told = stage.rig.refusal(client);
    assert_eq!(told, "FATAL 57P03 cluster \"main\" has no usable standby (primary_wait)");
}

#[test]
fn a_client_that_waits_goes_to_the_standby_that_comes() {
    let mut stage = Stage::new("");
    stage.command("DRAIN NODE main.m2");
    stage.command("DRAIN NODE main.m3");
    let client = stage.rig.knock("alice", "app_ro");
    let patient = stage.rig.knock("alice", "app_ro");
    stage.pass_us(1_000_000);
    stage.rig.gets_nothing(client);
    stage.dials_nothing();
    stage.command("ATTACH NODE main.m3");
    let (server, node) = stage.server();
    assert_eq!(node, 3);
    stage.rig.gets_raw(patient);
    stage.runs(client, server, "select 1", "SELECT 1", 'I');
}

#[test]
fn a_standby_that_has_what_the_primary_never_wrote_gets_no_reads() {
    let mut stage = Stage::new("");
    stage.says[1] = Some(says_at("0/4000000", true, 1, 2));
    stage.pass_us(3_000_000);
    let (refused, used) = (stage.shown("m2"), stage.shown("m3"));
    assert!(
        refused.contains("refused") && refused.contains("changes that the primary never had"),
        "{refused}"
    );
    assert!(used.contains("standby"), "{used}");
    assert_eq!(stage.served("app_ro").2, 3);
}

#[test]
fn reads_go_on_without_a_primary() {
    let mut stage = Stage::new("");
    stage.says[0] = None;
    stage.pass_us(3_000_000);
    assert!(stage.rig.logged("node m1 is down"));
    let (client, server, node) = stage.served("app_ro");
    assert_ne!(node, 1);
    stage.runs(client, server, "select 1", "SELECT 1", 'I');
}

#[test]
fn a_standby_that_is_promoted_gives_its_servers_up() {
    let mut stage = Stage::new("");
    stage.command("DRAIN NODE main.m3");
    let (client, server, node) = stage.served("app_ro");
    assert_eq!(node, 2);
    let (idle_client, idle) = {
        stage.runs(client, server, "begin", "BEGIN", 'T');
        let other = stage.rig.knock("alice", "app_ro");
        stage.rig.send(other, &fe::query("select 1"));
        let (idle, _) = stage.server();
        stage.rig.send(idle, &[be::complete("SELECT 1"), be::ready('I')].concat());
        (other, idle)
    };
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.command("ATTACH NODE main.m3");
    stage.pass_us(2_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    assert!(stage.rig.is_closed(idle) && stage.rig.logged("closing because: the node takes no more reads"));
    assert!(!stage.rig.is_closed(server), "it ends with its transaction");
    stage.runs(client, server, "commit", "COMMIT", 'I');
    assert!(stage.rig.is_closed(server));
    stage.rig.send(idle_client, &fe::query("select 2"));
    assert_eq!(stage.server().1, 3);
}

/// A transaction of `app_ro` at m2, which is promoted meanwhile; m3 is its standby.
fn promoted_below_a_transaction(stage: &mut Stage) -> (End, End) {
    stage.command("DRAIN NODE main.m3");
    let (client, server, node) = stage.served("app_ro");
    assert_eq!(node, 2);
    stage.runs(client, server, "begin", "BEGIN", 'T');
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.command("ATTACH NODE main.m3");
    stage.pass_us(2_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    assert!(!stage.rig.is_closed(server), "it ends with its transaction");
    (client, server)
}

#[test]
fn a_standby_that_was_promoted_and_deposed_is_not_believed() {
    let mut stage = Stage::new("");
    let (client, server) = promoted_below_a_transaction(&mut stage);
    stage.runs(client, server, "insert into t values (1)", "INSERT 0 1", 'T');
    stage.rig.send(client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(server), ["Query commit"]);
    // m2 is frozen, and says nothing.
    stage.says[1] = Some(Vec::new());
    while !stage.rig.logged("node m2 is unsure: it has not confirmed") {
        stage.pass_us(100_000);
    }
    assert!(!stage.rig.is_closed(server));
    stage.says[2] = Some(says(false, 3, 3));
    while !stage.rig.logged("timeline 3 has begun") {
        stage.pass_us(10_000);
    }
    assert!(stage.rig.is_closed(server));
    let told = stage.rig.gets(client);
    assert!(told.iter().all(|line| line.starts_with("FATAL 08")) && told.len() == 1, "{told:?}");
}

#[test]
fn a_fence_stands_when_servers_are_to_reconnect() {
    let mut stage = Stage::new("");
    let (client, server) = promoted_below_a_transaction(&mut stage);
    stage.command("RECONNECT");
    stage.rig.send(client, &[fe::query("commit"), fe::query("insert into t values (2)")].concat());
    assert_eq!(stage.rig.gets(server), ["Query commit"], "the next group may belong elsewhere");
}

#[test]
fn a_node_that_says_it_was_promoted_is_asked() {
    let mut stage = Stage::new("");
    let (client, server, node) = stage.served("app_ro");
    stage.pass_us(500_000);
    stage.says[0] = None;
    stage.says[node - 1] = Some(says(false, 2, i64::try_from(node).expect("small")));
    stage.rig.send(client, &fe::query("select 1"));
    stage.rig.gets_raw(server);
    let off = be::parameter("in_hot_standby", "off");
    stage.rig.send(server, &[be::complete("SELECT 1"), off, be::ready('I')].concat());
    let told = stage.rig.gets(client);
    assert!(told.iter().any(|line| line.contains("in_hot_standby")), "{told:?}");
    stage.pass_us(50_000);
    assert!(stage.rig.logged(&format!("node m{node} is ")), "it was asked before its interval was over");
}

#[test]
fn a_session_says_where_it_goes() {
    let mut stage = Stage::new("");
    let (client, server, node) = stage.served("app");
    assert_eq!(node, 1);
    stage.rig.send(client, &fe::query("set pgweir.route = 'read-only'"));
    assert_eq!(stage.rig.gets(server), ["Query set pgweir.route = 'read-only'"]);
    stage.rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    // It is asked what its session holds.
    let asked = String::from_utf8_lossy(&stage.rig.raw(server)).into_owned();
    assert!(asked.contains("pgweir.route"), "{asked}");
    stage.rig.send(server, &be::answer(&[&["read-only"]]));
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    stage.rig.send(client, &fe::query("select 1"));
    let (standby, node) = stage.server();
    assert_ne!(node, 1);
    let asked = String::from_utf8_lossy(&stage.rig.raw(standby)).into_owned();
    assert!(asked.contains("pgweir.route") && asked.contains("select 1"), "its session is replayed: {asked}");
}

#[test]
fn a_startup_option_says_where_the_session_goes() {
    for (words, is_standby) in [("standby", true), ("nowhere", false)] {
        let mut stage = Stage::new("ignore_startup_parameters = pgweir.x");
        let client = stage.rig.accept();
        let option = format!("-c pgweir.route={words}");
        let startup = fe::startup(&[("user", "alice"), ("database", "app"), ("options", &option)]);
        stage.rig.send(client, &startup);
        assert_eq!(stage.dialed().1 > 1, is_standby, "{words}");
    }
}

/// A stage whose file has these lines in `[routes]`.
fn routed(lines: &str) -> Stage {
    Stage::of(Rig::with(MAIN, &format!("{CLUSTER}[routes]\n{lines}\n"), 1))
}

/// Where SHOW CLIENTS_EXTENDED says that clients of a database go, and what says so.
fn shown_routes(stage: &mut Stage, database: &str) -> Vec<String> {
    let console = stage.rig.console();
    let rows = stage.rig.command(console, "SHOW CLIENTS_EXTENDED");
    let of_database = rows.iter().filter(|row| row.starts_with(&format!("Row C,alice,{database},")));
    let last_two = |row: &String| {
        let cells: Vec<&str> = row.rsplitn(3, ',').collect();
        format!("{} by {}", cells[1], cells[0])
    };
    of_database.map(last_two).collect()
}

#[test]
fn a_line_of_routes_says_where_its_clients_go() {
    let mut stage = routed("bi = user=al* database=app node=m3\nro = route=standby");
    let (client, server, node) = stage.served("app");
    assert_eq!(node, 3, "at its login too");
    assert_eq!(shown_routes(&mut stage, "app"), ["node m3 by routes bi"]);
    stage.runs(client, server, "select 1", "SELECT 1", 'I');
    stage.command("DETACH NODE main.m3");
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 2"));
    let (other, node) = stage.server();
    assert_eq!(node, 2, "an unusable node means prefer-standby");
    assert_eq!(stage.rig.gets(other), ["Query select 2"]);
    stage.rig.send(other, &[be::complete("SELECT 1"), be::ready('I')].concat());
    stage.command("ATTACH NODE main.m3");
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 3"));
    assert_eq!(stage.server().1, 3);
    let (_, _, node) = stage.served("app_any");
    assert_ne!(node, 1);
    assert_eq!(shown_routes(&mut stage, "app_any"), ["standby by routes ro"]);
}

#[test]
fn the_application_name_of_the_login_counts() {
    let mut stage = routed("bi = application_name=meta* node=m3");
    for (name, expected) in [("metabase", 3), ("psql", 1)] {
        let client = stage.rig.accept();
        let startup = fe::startup(&[("user", "alice"), ("database", "app"), ("application_name", name)]);
        stage.rig.send(client, &startup);
        assert_eq!(stage.dialed().1, expected);
    }
}

#[test]
fn a_line_may_name_a_node_of_weight_0() {
    let cluster = CLUSTER.replace("m3 = host=10.0.0.3", "m3 = host=10.0.0.3 weight=0");
    let lines = "[routes]\nbi = database=app node=m3\n";
    let mut stage = Stage::of(Rig::with(MAIN, &format!("{cluster}{lines}"), 1));
    assert_eq!(stage.served("app").2, 3);
    assert_eq!(stage.served("app_ro").2, 2);
}

#[test]
fn a_client_that_changes_its_application_name_is_looked_at_again() {
    let mut stage = routed("bi = application_name=meta* node=m1");
    let (client, server, node) = stage.served("app_ro");
    assert_ne!(node, 1);
    stage.rig.send(client, &fe::query("set application_name = 'metabase'"));
    assert_eq!(stage.rig.gets(server), ["Query set application_name = 'metabase'"]);
    let changed = be::parameter("application_name", "metabase");
    stage.rig.send(server, &[be::complete("SET"), changed, be::ready('I')].concat());
    assert_eq!(shown_routes(&mut stage, "app_ro"), ["node m1 by routes bi"]);
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 1"));
    assert_eq!(stage.server().1, 1);
}

#[test]
fn a_session_goes_before_the_lines_of_routes() {
    let mut stage = routed("all = route=standby");
    let client = stage.rig.accept();
    let startup =
        fe::startup(&[("user", "alice"), ("database", "app"), ("options", "-c pgweir.route=primary")]);
    stage.rig.send(client, &startup);
    assert_eq!(stage.dialed().1, 1);
    let (_, _, node) = stage.served("app_any");
    assert_ne!(node, 1, "a line goes before the database");
    assert_eq!(shown_routes(&mut stage, "app_any"), ["standby by routes all"]);
    stage.rig.knock("alice", "app");
}

#[test]
fn a_client_that_comes_in_by_the_second_port_reads_from_standbys() {
    let tcp = |port| Peer::Tcp { remote: ([10, 0, 0, 1], 4711).into(), local: ([10, 0, 0, 2], port).into() };
    let unix = |port| Peer::Unix { pid: 7, uid: 1, same_user: false, port };
    for (peer, options, expected, by) in [
        (tcp(6432), "", "primary", "clusters"),
        (tcp(6433), "", "standby", "standby_listen_port"),
        (unix(6432), "", "primary", "clusters"),
        (unix(6433), "", "standby", "standby_listen_port"),
        (tcp(6433), "-c pgweir.route=primary", "primary", "session"),
    ] {
        let mut stage = Stage::new("standby_listen_port = 6433");
        let client = stage.rig.accept_from(0, peer);
        let startup = fe::startup(&[("user", "alice"), ("database", "app"), ("options", options)]);
        stage.rig.send(client, &startup);
        assert_eq!(stage.dialed().1 == 1, expected == "primary", "{by}");
        assert_eq!(shown_routes(&mut stage, "app"), [format!("{expected} by {by}")]);
    }
}

#[test]
fn a_session_pooled_client_has_its_server_at_a_standby() {
    let mut stage = Stage::new("pool_mode = session\nserver_reset_query =");
    let client = stage.rig.knock("alice", "app_ro");
    let (first, node) = stage.server();
    assert_ne!(node, 1);
    let mut own = first;
    stage.answer_watches();
    while !stage.servers.is_empty() {
        let (server, at) = stage.server();
        assert_ne!(at, 1);
        own = server;
    }
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    stage.runs(client, own, "select 1", "SELECT 1", 'I');
    stage.runs(client, own, "select 2", "SELECT 1", 'I');
}

#[test]
fn a_client_keeps_its_standby_or_takes_the_best_for_each_read() {
    for (options, nodes) in [("", 1), ("balance=statement", 2)] {
        let cluster = CLUSTER.replace("main = nodes=", &format!("main = {options} nodes="));
        let mut stage = Stage::of(Rig::with(MAIN, &cluster, 1));
        let (client, server, node) = stage.served("app_ro");
        let mut servers = vec![(server, node)];
        for _ in 0..4 {
            stage.rig.gets_raw(client);
            stage.rig.send(client, &fe::query("select 1"));
            stage.answer_watches();
            while !stage.servers.is_empty() {
                let new = stage.server();
                servers.push(new);
            }
            for (server, _) in &servers {
                if !stage.rig.gets(*server).is_empty() {
                    stage.rig.send(*server, &[be::complete("SELECT 1"), be::ready('I')].concat());
                }
            }
            assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
        }
        let mut of_reads: Vec<u64> = ["m2", "m3"].map(|node| stage.at_node(node)[3]).into();
        of_reads.sort_unstable();
        assert_eq!(of_reads, if nodes == 1 { [0, 4] } else { [2, 2] }, "{options}");
    }
}

#[test]
fn transactions_on_a_node_that_is_drained_last_so_long() {
    for (options, word) in [("", "DRAIN"), ("drain_timeout=5", "DETACH")] {
        let cluster = CLUSTER.replace("main = nodes=", &format!("main = {options} nodes="));
        let mut stage = Stage::of(Rig::with(MAIN, &cluster, 1));
        let (client, server, node) = stage.served("app_ro");
        stage.runs(client, server, "begin", "BEGIN", 'T');
        stage.command(&format!("{word} NODE main.m{node}"));
        stage.pass_us(if options.is_empty() { 59_000_000 } else { 4_000_000 });
        assert!(!stage.rig.is_closed(server));
        stage.runs(client, server, "select 1", "SELECT 1", 'T');
        stage.pass_us(1_100_000);
        assert!(stage.rig.is_closed(server));
        assert!(stage.rig.logged("the node was drained (drain_timeout)"));
        stage.rig.send(client, &fe::query("select 2"));
        assert!(stage.rig.gets(client)[0].contains("40001") || stage.rig.is_closed(client));
    }
}

#[test]
fn without_a_limit_they_last_as_long_as_they_like_and_attach_ends_the_drain() {
    for (options, attaches) in [("drain_timeout=0", false), ("drain_timeout=5", true)] {
        let cluster = CLUSTER.replace("main = nodes=", &format!("main = {options} nodes="));
        let mut stage = Stage::of(Rig::with(MAIN, &cluster, 1));
        let (client, server, node) = stage.served("app_ro");
        stage.runs(client, server, "begin", "BEGIN", 'T');
        stage.command(&format!("DRAIN NODE main.m{node}"));
        stage.pass_us(4_000_000);
        if attaches {
            stage.command(&format!("ATTACH NODE main.m{node}"));
        }
        stage.pass_us(100_000_000);
        assert!(!stage.rig.is_closed(server));
        stage.runs(client, server, "commit", "COMMIT", 'I');
    }
}

#[test]
fn what_each_node_is_sent_is_counted() {
    let mut stage = Stage::new("default_pool_size = 1");
    let (client, server, node) = stage.served("app_prefer");
    let (name, other) = if node == 2 { ("m2", "m3") } else { ("m3", "m2") };
    assert_eq!(stage.at_node(name), [0, 1, 0, 0], "a login is no read");
    stage.runs(client, server, "begin", "BEGIN", 'T');
    assert_eq!(stage.at_node(name), [1, 0, 0, 1]);
    stage.runs(client, server, "select 1", "SELECT 1", 'T');
    stage.runs(client, server, "commit", "COMMIT", 'I');
    assert_eq!(stage.at_node(name), [0, 1, 0, 1], "a transaction is one");
    stage.command(&format!("DETACH NODE main.{other}"));
    stage.runs(client, server, "begin", "BEGIN", 'T');
    let second = stage.rig.knock("alice", "app_prefer");
    stage.rig.gets_raw(second);
    stage.rig.send(second, &fe::query("select 2"));
    assert_eq!(stage.at_node(name), [1, 0, 1, 2], "one waits");
    stage.runs(client, server, "commit", "COMMIT", 'I');
    assert_eq!(stage.rig.gets(server), ["Query select 2"]);
    stage.rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(stage.at_node(name), [0, 1, 0, 3]);
    assert_eq!(stage.at_node("m1"), [0; 4]);
    assert_eq!(stage.fell_back(), [0, 0]);
    // A client that leaves the queue was not sent anywhere.
    stage.runs(client, server, "begin", "BEGIN", 'T');
    stage.rig.send(second, &fe::query("select 3"));
    stage.rig.eof(second);
    assert_eq!(stage.at_node(name), [1, 0, 0, 4]);
}

#[test]
fn reads_that_fall_back_to_the_primary_are_counted() {
    let mut stage = Stage::new("");
    let (client, _, _) = stage.served("app_prefer");
    for node in ["m2", "m3"] {
        stage.command(&format!("DETACH NODE main.{node}"));
    }
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 1"));
    let (server, node) = stage.server();
    assert_eq!(node, 1);
    assert_eq!(stage.rig.gets(server), ["Query select 1"]);
    stage.rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(stage.fell_back(), [1, 0]);
    assert_eq!(stage.at_node("m1"), [0, 1, 0, 1], "it is a read of the primary");
    let (of_primary, at_primary, _) = stage.served("app");
    stage.runs(of_primary, at_primary, "select 2", "SELECT 1", 'I');
    assert_eq!(stage.at_node("m1")[3], 1, "a client with route=primary has no reads");
    for node in ["m2", "m3"] {
        stage.command(&format!("ATTACH NODE main.{node}"));
    }
    // The primary goes on, and the standbys do not follow.
    stage.says[0] = Some(says_at("0/4000000", false, 1, 1));
    stage.pass_us(15_000_000);
    stage.runs(client, server, "select 3", "SELECT 1", 'I');
    assert_eq!(stage.fell_back(), [1, 1]);
}

#[test]
fn the_sizes_hold_for_each_node() {
    let mut stage = Stage::new("default_pool_size = 1\nmax_db_connections = 1");
    let (first, _, node) = stage.served("app_any");
    let mut clients = vec![first];
    clients.extend((0..5).map(|_| stage.rig.knock("alice", "app_any")));
    let mut at = vec![node];
    for client in clients {
        stage.rig.gets_raw(client);
        stage.rig.send(client, &fe::query("begin"));
        stage.answer_watches();
        while !stage.servers.is_empty() {
            at.push(stage.server().1);
        }
    }
    at.sort_unstable();
    assert_eq!(at, [1, 2, 3]);
}

#[test]
fn a_standby_that_is_down_has_its_servers_closed() {
    let mut stage = Stage::new("");
    let (client, server, node) = stage.served("app_ro");
    stage.runs(client, server, "begin", "BEGIN", 'T');
    stage.says[node - 1] = None;
    stage.pass_us(4_000_000);
    assert!(stage.rig.is_closed(server));
    stage.rig.send(client, &fe::query("commit"));
    let told = stage.rig.gets(client);
    let lost = "ERROR 40001 the transaction was rolled back: the connection to the standby was lost";
    assert_eq!(told, [lost, "Ready I"]);
    let other = stage.rig.client_with(&[("user", "alice"), ("database", "app_ro")]);
    stage.rig.send(other, &fe::query("select 1"));
    assert_ne!(stage.server().1, node);
}

#[test]
fn a_successor_keeps_a_client_at_its_standby() {
    let mut stage = Stage::new("");
    let (client, server, _) = stage.served("app_ro");
    stage.runs(client, server, "begin", "BEGIN", 'T');
    stage.rig.take_over(MAIN, CLUSTER);
    let mut stage = Stage::of(stage.rig);
    stage.pass_us(100_000);
    assert!(!stage.rig.is_closed(server));
    stage.runs(client, server, "commit", "COMMIT", 'I');
    assert!(!stage.rig.is_closed(server));
    stage.runs(client, server, "select 1", "SELECT 1", 'I');
}
