//! Peers that say anything at any time: whatever they do, nothing panics, and in the end nothing is left.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe, greeting};

/// A small generator: the same seed tells the same story.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("below a usize")
    }
}

const NAMES: [&str; 4] = ["", "a", "b", "c"];

fn from_client(dice: &mut Dice) -> Vec<u8> {
    let name = NAMES[dice.below(4)];
    match dice.below(24) {
        0..3 => fe::query(["select 1", "begin", "commit", "discard all", "copy t from stdin"][dice.below(5)]),
        3 | 4 => fe::parse(name, ["select 1", "select 2", "selec", "deallocate all"][dice.below(4)]),
        5 | 6 => fe::bind(name),
        7 => [fe::bind(name), fe::describe_portal(), fe::execute(), fe::sync()].concat(),
        8 => fe::describe(name),
        9 | 10 => fe::execute(),
        11 => fe::close(name),
        12..16 => fe::sync(),
        16 => fe::flush(),
        17 => fe::copy_data(&vec![b'x'; [1, 20_000][dice.below(2)]]),
        18 => fe::copy_done(),
        19 => fe::copy_fail("no"),
        20 => fe::function_call(),
        21 => fe::bind_with(name, 40_000),
        22 => fe::query(&"x".repeat(30_000)),
        _ if dice.below(8) == 0 => fe::terminate(),
        _ if dice.below(8) == 0 => fe::message(dice.below(256) as u8, &vec![0; dice.below(10)]),
        _ => fe::sync(),
    }
}

/// Often what is due, sometimes nonsense.
fn from_server(dice: &mut Dice, asked: &[String]) -> Vec<u8> {
    let status = ['I', 'I', 'I', 'T', 'E'][dice.below(5)];
    if dice.below(10) > 0 {
        let mut out = Vec::new();
        let mut skipping = false;
        for message in asked {
            let word = message.split(' ').next().unwrap_or_default();
            if skipping && word != "Sync" {
                continue;
            }
            skipping = word != "Sync" && word != "Query" && dice.below(8) == 0;
            if skipping {
                let outdated = matches!(word, "Bind" | "Describe") && dice.below(2) == 0;
                out.extend(if outdated { be::outdated() } else { be::error("42601", "no") });
                continue;
            }
            out.extend(match word {
                "Query" if message.contains("copy") => be::copy_in(),
                "Query" if message.to_lowercase().contains("discard all") => {
                    [be::complete("DISCARD ALL"), be::ready(status)].concat()
                }
                "Query" => [be::one_row("1"), be::ready(status)].concat(),
                "Parse" => be::parse_complete(),
                "Bind" => be::bind_complete(),
                "Describe" => [be::parameters(), be::no_data()].concat(),
                "Execute" => [be::row_of([1, 50_000][dice.below(2)]), be::complete("SELECT 1")].concat(),
                "Close" => be::close_complete(),
                "Sync" => be::ready(status),
                "CopyDone" => [be::complete("COPY 1"), be::ready(status)].concat(),
                "CopyFail" => [be::error("57014", "failed"), be::ready(status)].concat(),
                "FunctionCall" => [be::function_result(4), be::ready(status)].concat(),
                _ => Vec::new(),
            });
        }
        return out;
    }
    match dice.below(12) {
        0 => be::error("42601", "no"),
        1 => be::fatal("57P01", "going down"),
        2 => be::notice("hm"),
        3 => be::parameter("TimeZone", ["UTC", "GMT"][dice.below(2)]),
        4 => be::notification(),
        5 => be::ready(status),
        6 => be::row("1"),
        7 => be::copy_in(),
        8 => be::copy_out(),
        9 => be::parse_complete(),
        10 => be::complete("DEALLOCATE ALL"),
        _ => vec![dice.below(256) as u8; dice.below(12)],
    }
}

struct Chaos {
    rig: Rig,
    dice: Dice,
    workers: usize,
    clients: Vec<End>,
    requesters: Vec<End>,
    console: End,
}

const COMMANDS: [&str; 14] = [
    "PAUSE",
    "RESUME",
    "PAUSE app",
    "RESUME app",
    "RECONNECT",
    "KILL app",
    "SUSPEND",
    "SHOW POOLS",
    "SHOW SERVERS",
    "SHOW CLIENTS",
    "SHOW SOCKETS",
    "WAIT_CLOSE",
    "SHOW STATS",
    "SHOW LISTS",
];

impl Chaos {
    fn new(seed: u64, main: &str, databases: &str, workers: u16) -> Chaos {
        let mut rig = Rig::with(main, databases, workers);
        let console = rig.console();
        let dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Chaos { rig, dice, workers: workers.into(), clients: Vec::new(), requesters: Vec::new(), console }
    }

    fn send(&mut self, end: End, bytes: &[u8]) {
        let cut = if bytes.is_empty() { 0 } else { self.dice.below(bytes.len()) };
        let pieces = if self.dice.below(3) == 0 { [&bytes[..cut], &bytes[cut..]] } else { [bytes, &[]] };
        for piece in pieces {
            if !piece.is_empty() && !self.rig.is_closed(end) && !self.rig.is_paused(end) {
                self.rig.send(end, piece);
            }
        }
    }

    fn some_client(&mut self) -> Option<End> {
        let open: Vec<End> = self.clients.iter().copied().filter(|&end| !self.rig.is_closed(end)).collect();
        (!open.is_empty()).then(|| open[self.dice.below(open.len())])
    }

    fn some_server(&mut self) -> Option<End> {
        let open: Vec<End> = self.rig.dials.iter().copied().filter(|&end| !self.rig.is_closed(end)).collect();
        (!open.is_empty()).then(|| open[self.dice.below(open.len())])
    }

    fn client_acts(&mut self) {
        let Some(client) = self.some_client() else { return };
        let count = 1 + self.dice.below(6);
        let bytes: Vec<u8> = (0..count).flat_map(|_| from_client(&mut self.dice)).collect();
        self.send(client, &bytes);
        self.rig.gets_raw(client);
    }

    fn server_acts(&mut self) {
        let Some(server) = self.some_server() else { return };
        if !self.rig.is_up(server) {
            match self.dice.below(12) {
                0 => self.rig.refuse_dial(server, "refused"),
                1 => {
                    self.rig.connect(server);
                    let bytes: Vec<u8> = (0..3).flat_map(|_| from_server(&mut self.dice, &[])).collect();
                    self.send(server, &bytes);
                }
                2 => {
                    self.rig.connect(server);
                    let code = ["57P03", "3D000"][self.dice.below(2)];
                    self.send(server, &be::fatal(code, "no"));
                }
                _ => {
                    self.rig.connect(server);
                    self.send(server, &greeting());
                }
            }
            return;
        }
        let asked = self.rig.gets_loosely(server);
        let bytes = from_server(&mut self.dice, &asked);
        self.send(server, &bytes);
    }

    fn step(&mut self) {
        match self.dice.below(40) {
            0..16 => self.client_acts(),
            16..30 => self.server_acts(),
            30 | 31 => {
                let user = ["alice", "bob"][self.dice.below(2)];
                let database = ["app", "app", "session", "statement"][self.dice.below(4)];
                let name = ["", "x", "y"][self.dice.below(3)];
                let mut params = vec![("user", user), ("database", database), ("application_name", name)];
                if self.dice.below(10) == 0 {
                    params.push(("replication", "true"));
                }
                let client = self.rig.accept_at(self.dice.below(self.workers));
                let mut startup = fe::startup(&params);
                if self.dice.below(20) == 0 {
                    let place = self.dice.below(startup.len());
                    startup[place] = self.dice.below(256) as u8;
                }
                self.send(client, &startup);
                self.clients.push(client);
            }
            32 => {
                if let Some(end) = self.some_client() {
                    self.rig.end(end, Closed::Broken("reset".to_owned()));
                }
            }
            33 => {
                if let Some(end) = self.some_server() {
                    self.rig.eof(end);
                }
            }
            34 => {
                let end = if self.dice.below(2) == 0 { self.some_client() } else { self.some_server() };
                if let Some(end) = end {
                    self.rig.stop_taking(end);
                }
            }
            35 | 36 => self.all_take(),
            37 => {
                let client = self.some_client();
                if let Some(client) = client.filter(|&client| self.rig.has_key(client)) {
                    let requester = self.rig.cancel_at(self.dice.below(self.workers), client);
                    self.requesters.push(requester);
                }
            }
            38 => {
                if self.rig.is_closed(self.console) {
                    self.console = self.rig.console_at(self.dice.below(self.workers));
                }
                let command = COMMANDS[self.dice.below(COMMANDS.len())];
                self.rig.command(self.console, command);
            }
            _ => {
                let us = [1000, 400_000, 30_000_000][self.dice.below(3)];
                self.rig.pass_us(us);
            }
        }
    }

    fn all_take(&mut self) {
        let ends: Vec<End> = self.clients.iter().chain(&self.rig.dials).copied().collect();
        for end in ends {
            self.rig.take_again(end);
        }
    }

    /// All clients leave; what is counted must be nothing then.
    fn finish(&mut self, seed: u64) {
        self.all_take();
        let mut resume = vec!["RESUME".to_owned()];
        resume.extend(["app", "session", "statement"].map(|name| format!("RESUME {name}")));
        self.console = self.rig.console();
        for command in resume {
            self.rig.command(self.console, &command);
        }
        for &end in &self.rig.dials {
            assert!(self.rig.is_closed(end) || !self.rig.is_paused(end), "seed {seed}: a server is not read");
        }
        for end in self.clients.clone() {
            self.rig.eof(end);
        }
        // A client that said Terminate behind its last messages waits for a server as long as others do.
        for _ in 0..2 {
            while let Some(server) = self.some_server() {
                self.rig.eof(server);
            }
            self.rig.pass_us(121_000_000);
        }
        for end in &self.requesters {
            assert!(self.rig.is_closed(*end), "seed {seed}: a cancel request is left");
        }
        assert_eq!(self.rig.shared.clients.taken(), 0, "seed {seed}");
        for name in ["app", "session", "statement"] {
            let counts = self.rig.shared.database(name);
            assert_eq!((counts.clients.taken(), counts.servers.taken()), (0, 0), "seed {seed}: {name}");
        }
        let memory = self.rig.command(self.console, "SHOW MEM");
        let cache =
            memory.iter().find(|row| row.contains("server_prepared_statement_cache")).expect("its row");
        assert_eq!(cache.split(',').nth(2), Some("0"), "seed {seed}: statements are left");
    }
}

fn run(seeds: std::ops::Range<u64>, main: &str, workers: u16) {
    let databases =
        "app = host=pg\nsession = host=pg pool_mode=session\nstatement = host=pg pool_mode=statement";
    for seed in seeds {
        let mut chaos = Chaos::new(seed, main, databases, workers);
        for _ in 0..300 {
            chaos.step();
        }
        chaos.finish(seed);
    }
}

const LIMITS: &str = "default_pool_size = 2\nmax_db_connections = 2\nmax_user_connections = 3\nreserve_pool_size = 1\n\
    min_pool_size = 1\nserver_check_delay = 0\nserver_lifetime = 20\nclient_idle_timeout = 50\nquery_timeout = 20\n\
    transaction_timeout = 40\nmax_prepared_statements = 1\nserver_login_retry = 1\npool_idle_timeout = 20";

/// The number of stories that each test tells.
const N: u64 = 300;

#[test]
fn nothing_is_left_of_any_disorder() {
    run(0..N, "default_pool_size = 2\nmax_prepared_statements = 2\nserver_login_retry = 1", 1);
}

#[test]
fn nothing_is_left_under_limits_either() {
    run(10_000..10_000 + N, LIMITS, 1);
}

#[test]
fn nothing_is_left_on_several_workers() {
    run(20_000..20_000 + N, LIMITS, 3);
}

#[test]
fn nothing_is_left_where_begin_is_deferred() {
    run(30_000..30_000 + N, "default_pool_size = 2\ndefer_begin = packet\nserver_login_retry = 1", 1);
}
