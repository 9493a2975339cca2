//! The number of servers that the machine keeps busy with short statements, on database hosts with few and many processors:
//! it must find about the best number by itself, soon, and find it again when the load is another one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use pgweir_auth::UserList;
use pgweir_core::driver::{ConnId, Now, Peer, WorkerId};
use pgweir_core::mail::Rules;
use pgweir_core::{Engine, Machine, Setup, Shared};
use pgweir_settings::Config;
use pgweir_testkit::stage::answers::{Answers, ends_with_ready, greeting};
use pgweir_testkit::stage::quiet::Quiet;
use pgweir_wire::Header;
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::{encode_query, encode_startup};

const SECOND_US: u64 = 1_000_000;
/// A backend that slept takes so much of a processor to begin.
const WAKE_US: u64 = 60;
/// Between the pooler and the database host, one way.
const WAY_US: u64 = 20;

/// A statement of the load, by what it takes.
#[derive(Clone, Copy)]
struct Load {
    sql: &'static [&'static str],
    /// Of a processor.
    work_us: u64,
    /// Beside that (µs).
    sleep_us: u64,
}

/// 1 ms of a processor.
const SHORT: Load =
    Load { sql: &["SELECT abalance FROM accounts WHERE aid = 7"], work_us: 1_000, sleep_us: 0 };
/// 20 ms, and hardly any processor.
const LONG: Load = Load { sql: &["SELECT waits FROM somewhere"], work_us: 50, sleep_us: 20_000 };
/// Three statements, as they are.
const TRANSACTION: Load =
    Load { sql: &["BEGIN", "UPDATE accounts SET abalance = 1", "COMMIT"], work_us: 300, sleep_us: 0 };

/// What happens at its time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client sends its next statement.
    Ask(usize),
    /// A backend is reached by so many statements.
    Reach(usize, Vec<u8>),
    /// A backend is done with a statement.
    Done(usize),
    /// The pooler is reached by an answer.
    Answer(usize, Vec<u8>),
}

struct Client {
    conn: ConnId,
    /// Which of the load's statements it waits for.
    at: usize,
    waits: bool,
}

struct Backend {
    conn: ConnId,
    status: TxStatus,
    due: VecDeque<Vec<u8>>,
}

/// Clients, the machine, and a host whose backends share its processors.
struct Town {
    machine: Machine,
    driver: Quiet,
    now: Now,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    answers: Answers,
    clients: Vec<Client>,
    backends: Vec<Backend>,
    load: Load,
    cores: u64,
    /// What else runs on the host, as a number of busy processes.
    beside: u64,
    busy: u64,
    answered: u64,
}

impl Town {
    fn new(cores: u64, beside: u64, settings: &str) -> Town {
        let now = Now { mono_us: 1_000 * SECOND_US, wall_us: 1_750_000_000 * SECOND_US };
        let shared = Arc::new(Shared::new(1, [7; 32]));
        Town {
            machine: Machine::new(Setup { worker: WorkerId(0), rules: rules(settings), shared, now }),
            driver: Quiet::default(),
            now,
            events: BinaryHeap::new(),
            serial: 0,
            answers: Answers::new(),
            clients: Vec::new(),
            backends: Vec::new(),
            load: SHORT,
            cores,
            beside,
            busy: 0,
            answered: 0,
        }
    }

    fn later(&mut self, in_us: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((self.now.mono_us + in_us, self.serial, event)));
    }

    /// So many clients come at once and ask without end.
    fn come(&mut self, clients: usize) {
        let mut hello = Vec::new();
        encode_startup(&mut hello, (3, 0), &[(b"user", b"bench"), (b"database", b"bench")]);
        for _ in 0..clients {
            let conn = self.driver.open();
            let peer = Peer::Tcp {
                remote: "10.0.0.1:4711".parse().expect("an address"),
                local: "10.0.0.2:6432".parse().expect("an address"),
            };
            self.turn(|machine, driver| {
                machine.accepted(driver, conn, peer);
                machine.received(driver, conn, &hello);
            });
            self.clients.push(Client { conn, at: usize::MAX, waits: true });
        }
        self.look();
    }

    /// Time goes on for so long; returns the number of rounds of the load's statements that were answered, in a second.
    fn run(&mut self, seconds_tenths: u64) -> u64 {
        let end_us = self.now.mono_us + seconds_tenths * SECOND_US / 10;
        let before = self.answered;
        loop {
            let next_us = self.events.peek().map_or(end_us, |Reverse((at_us, ..))| *at_us);
            let due_us = self.machine.deadline().unwrap_or(end_us).max(self.now.mono_us);
            let at_us = next_us.min(due_us).min(end_us);
            self.now.wall_us += at_us - self.now.mono_us;
            self.now.mono_us = at_us;
            if at_us == end_us {
                break;
            }
            self.step();
        }
        (self.answered - before) * 10 / seconds_tenths
    }

    /// All that happens now.
    fn step(&mut self) {
        let now_us = self.now.mono_us;
        self.machine.begin_tick(self.now);
        while self.events.peek().is_some_and(|Reverse((at_us, ..))| *at_us <= now_us) {
            let Some(Reverse((_, _, event))) = self.events.pop() else { break };
            match event {
                Event::Ask(client) => self.ask(client),
                Event::Reach(backend, bytes) => self.reach(backend, &bytes),
                Event::Done(backend) => self.done(backend),
                Event::Answer(backend, bytes) => {
                    self.machine.received(&mut self.driver, self.backends[backend].conn, &bytes);
                }
            }
        }
        if self.machine.deadline().is_some_and(|due_us| due_us <= now_us) {
            self.machine.timeout(&mut self.driver);
        }
        self.machine.end_tick(&mut self.driver);
        self.look();
    }

    fn turn(&mut self, what: impl FnOnce(&mut Machine, &mut Quiet)) {
        self.machine.begin_tick(self.now);
        what(&mut self.machine, &mut self.driver);
        self.machine.end_tick(&mut self.driver);
    }

    fn ask(&mut self, client: usize) {
        let client = &mut self.clients[client];
        (client.at, client.waits) = (if client.at < self.load.sql.len() { client.at } else { 0 }, true);
        let mut query = Vec::new();
        encode_query(&mut query, self.load.sql[client.at].as_bytes());
        self.machine.received(&mut self.driver, client.conn, &query);
    }

    fn reach(&mut self, backend: usize, mut bytes: &[u8]) {
        let idle = self.backends[backend].due.is_empty();
        while let Ok(Some(header)) = Header::peek(bytes) {
            self.backends[backend].due.push_back(bytes[..header.total()].to_vec());
            bytes = &bytes[header.total()..];
        }
        if idle && !self.backends[backend].due.is_empty() {
            self.busy += 1;
            self.begin(backend, WAKE_US);
        }
    }

    /// The next statement of a backend: processors are shared, and switching between many costs something.
    fn begin(&mut self, backend: usize, more_us: u64) {
        let runs = self.busy + self.beside;
        let surplus = runs.saturating_sub(self.cores);
        let work_us = (self.load.work_us + more_us) * runs.max(self.cores) / self.cores;
        self.later(work_us * (100 + 3 * surplus.min(20)) / 100 + self.load.sleep_us, Event::Done(backend));
    }

    fn done(&mut self, at: usize) {
        let backend = &mut self.backends[at];
        let Some(asked) = backend.due.pop_front() else { return };
        let mut said = Vec::new();
        self.answers.to(&asked, &mut backend.status, &mut said);
        let more = !backend.due.is_empty();
        self.later(WAY_US, Event::Answer(at, said));
        if more {
            self.begin(at, 0);
        } else {
            self.busy -= 1;
        }
    }

    /// What the machine sent, and whom it called.
    fn look(&mut self) {
        while let Some((conn, _)) = self.driver.dialed.pop() {
            self.backends.push(Backend { conn, status: TxStatus::Idle, due: VecDeque::new() });
            self.turn(|machine, driver| machine.connected(driver, conn, String::new()));
            self.driver.take(conn);
            let greeting = greeting(false);
            self.turn(|machine, driver| machine.received(driver, conn, &greeting));
        }
        for at in 0..self.backends.len() {
            if self.driver.has(self.backends[at].conn) {
                let bytes = self.driver.take(self.backends[at].conn);
                self.later(WAY_US, Event::Reach(at, bytes));
            }
        }
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if client.waits && self.driver.has(client.conn) {
                let told = self.driver.take(client.conn);
                assert!(ends_with_ready(&told), "whole answers in one piece");
                client.waits = false;
                let first = client.at == usize::MAX;
                client.at = if first { 0 } else { client.at + 1 };
                self.answered += u64::from(!first && client.at >= self.load.sql.len());
                self.later(WAY_US, Event::Ask(at));
            }
        }
    }
}

fn rules(settings: &str) -> Rules {
    let text = format!(
        "[pgbouncer]\nauth_type = trust\npool_mode = transaction\ndefault_pool_size = 40\nmax_client_conn = 1000\n\
         server_tls_sslmode = disable\nlog_stats = 0\nlog_connections = 0\nlog_disconnections = 0\nsession_audit_sample = 0\n{settings}\n\
         [databases]\nbench = host=pg\n"
    );
    let config = Config::load("pace.ini", &mut |_: &str| Ok(text.clone())).expect("a good configuration");
    let (users, _) = UserList::parse("\"bench\" \"\"\n");
    Rules { config: Arc::new(config), users: Arc::new(users), access: Arc::default(), server_tls_epoch: 0 }
}

/// What a load does in the second that begins after so many tenths of one.
fn after(town: &mut Town, load: Load, tenths: u64) -> u64 {
    town.load = load;
    town.run(tenths);
    town.run(10)
}

#[test]
fn about_the_best_number_is_found_with_few_and_many_processors() {
    for (cores, best) in [(1, 1), (4, 4), (32, 32)] {
        let mut fixed = Town::new(cores, 0, &format!("multiplex_servers = {best}"));
        fixed.come(200);
        let fixed = after(&mut fixed, SHORT, 5);
        let mut auto = Town::new(cores, 0, "");
        auto.come(200);
        let auto = after(&mut auto, SHORT, 25);
        assert!(auto * 100 >= fixed * 88, "{cores} processors: {auto} a second, {fixed} with {best} servers");
    }
}

#[test]
fn with_the_pooler_and_its_clients_on_the_same_machine_few_are_enough() {
    let mut one = Town::new(2, 1, "multiplex_servers = 1");
    one.come(200);
    let one = after(&mut one, SHORT, 5);
    let mut auto = Town::new(2, 1, "");
    auto.come(200);
    let found = after(&mut auto, SHORT, 25);
    assert!(found * 100 >= one * 90, "{found} a second, {one} with one server");
}

#[test]
fn it_adapts_within_a_second_when_the_load_changes_its_nature() {
    let mut town = Town::new(4, 0, "");
    let mut without = Town::new(4, 0, "multiplex_depth = 0");
    town.come(100);
    without.come(100);
    for (name, load) in [("short", SHORT), ("long", LONG), ("transactions", TRANSACTION), ("short", SHORT)] {
        let (with, plain) = (after(&mut town, load, 10), after(&mut without, load, 10));
        assert!(with * 100 >= plain * 90, "{name}: {with} a second, {plain} without multiplexing");
    }
}
