//! A machine between clients that send the same again and again and servers that answer at once.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pgweir_auth::{Credential, PlainPassword, Proof, Prover, ScramSecret, UserList};
use pgweir_core::driver::{Closed, ConnId, Endpoint, Now, Peer, WorkerId};
use pgweir_core::mail::Rules;
use pgweir_core::{Engine, Machine, Setup, Shared};
use pgweir_settings::Config;
use pgweir_testkit::stage::answers::{Answers, MANY_ROWS, ends_with_ready, greeting, state_of_node};
use pgweir_testkit::stage::quiet::Quiet;
use pgweir_wire::Header;
use pgweir_wire::backend::{Authentication, TxStatus};
use pgweir_wire::frontend::{
    Target, encode_bind_head, encode_describe, encode_execute, encode_parse, encode_query, encode_startup,
    encode_sync, encode_terminate,
};
use pgweir_wire::header::HEADER_LEN;

use crate::parts::SELECT;

/// The way in which a client sends its statement.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Simple,
    /// Simple, with another literal each time.
    Fresh,
    Extended,
    Prepared,
    Transaction,
    /// Simple, and the answer has many rows.
    Rows,
}

/// The way in which clients log in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    Trust,
    Md5,
    Scram,
}

/// The statements that are recorded for SHOW STATEMENTS and the slow log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Eyes {
    /// The default: statements by their texts.
    Open,
    /// The default, and statements that take long are logged, of which there are none.
    Wide,
    /// No statements.
    Shut,
    /// The default, but sessions are not kept (`session_state = pgbouncer`).
    Forgetful,
    /// The default, and the database is a cluster of a primary and a standby.
    Clustered,
    /// The default, and a rule of the query cache keeps each answer for longer than the run takes.
    Cached,
}

const SERVERS: u32 = 4;
/// The time after which a standby has its whole share of reads.
const WARM_S: u32 = 300;
const PASSWORD: &str = "a password of usual length";

/// Runs `times` statements, rounded up to whole turns, from `clients` clients.
pub(crate) fn statements(times: u32, clients: u32, kind: Kind) {
    watched(times, clients, kind, Eyes::Open);
}

/// The same, watched as `eyes` says.
pub(crate) fn watched(times: u32, clients: u32, kind: Kind, eyes: Eyes) {
    let mut world = World::new(Door::Trust, eyes);
    if eyes == Eyes::Clustered {
        world.watch();
    }
    let clients: Vec<ConnId> = (0..clients).map(|_| world.login()).collect();
    let mut steps = steps(kind);
    if kind == Kind::Prepared {
        let mut prepare = Vec::new();
        encode_parse(&mut prepare, b"select", SELECT.as_bytes(), &[0, 0]);
        encode_sync(&mut prepare);
        for client in &clients {
            world.ask(std::slice::from_ref(client), &prepare);
        }
    }
    let each = u32::try_from(clients.len()).expect("few clients");
    for turn in 0..times.div_ceil(each) {
        if kind == Kind::Fresh {
            write_number(&mut steps[0], turn);
        }
        for step in &steps {
            world.ask(&clients, step);
        }
    }
}

/// Another number in the place of the one that the statement ends in.
fn write_number(query: &mut [u8], mut number: u32) {
    for digit in query.iter_mut().rev().skip_while(|byte| !byte.is_ascii_digit()).take(7) {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Lets `times` clients in, and out again.
pub(crate) fn logins(times: u32, door: Door) {
    let mut world = World::new(door, Eyes::Open);
    let mut bye = Vec::new();
    encode_terminate(&mut bye);
    // A first client, so that the pool has a server that tells its parameters.
    world.login();
    for _ in 0..times {
        let client = world.login();
        world.turn(|machine, driver| machine.received(driver, client, &bye));
        world.turn(|machine, driver| machine.closed(driver, client, Closed::Eof));
    }
}

/// Returns the messages of a client, turn by turn.
fn steps(kind: Kind) -> Vec<Vec<u8>> {
    let query = |sql: &str| {
        let mut out = Vec::new();
        encode_query(&mut out, sql.as_bytes());
        out
    };
    let bound = |statement: &[u8]| {
        let mut out = Vec::new();
        // No parameter formats, no parameters, no result formats.
        encode_bind_head(&mut out, b"", statement, 6);
        out.extend([0; 6]);
        encode_describe(&mut out, Target::Portal, b"");
        encode_execute(&mut out, b"", 0);
        encode_sync(&mut out);
        out
    };
    match kind {
        Kind::Simple | Kind::Fresh => vec![query(SELECT)],
        Kind::Rows => vec![query(MANY_ROWS)],
        Kind::Transaction => vec![query("BEGIN;"), query(SELECT), query("COMMIT;")],
        Kind::Prepared => vec![bound(b"select")],
        Kind::Extended => {
            let mut out = Vec::new();
            encode_parse(&mut out, b"", SELECT.as_bytes(), &[0, 0]);
            out.extend(bound(b""));
            vec![out]
        }
    }
}

struct World {
    machine: Machine,
    driver: Quiet,
    now: Now,
    door: Door,
    /// The messages with which a client authenticates.
    proofs: Rc<[Vec<u8>]>,
    servers: Vec<Server>,
    answers: Answers,
    /// The messages that a server is sending.
    said: Vec<u8>,
}

/// A model server: what it needs to answer for.
struct Server {
    conn: ConnId,
    status: TxStatus,
    /// The answer to each question, on a connection on which pgweir watches a node.
    state: Option<Vec<u8>>,
}

/// The user as whom nodes are watched.
const WATCHER: &str = "watcher";
/// The host of the cluster's standby.
const STANDBY: &str = "standby";

impl World {
    fn new(door: Door, eyes: Eyes) -> Self {
        let now = Now { mono_us: 1_000_000_000, wall_us: 1_750_000_000_000_000 };
        let setup = Setup {
            worker: WorkerId(0),
            rules: rules(door, eyes),
            shared: Arc::new(Shared::new(1, [7; 32])),
            now,
        };
        Self {
            machine: Machine::new(setup),
            driver: Quiet::default(),
            now,
            door,
            proofs: Rc::new([]),
            servers: Vec::new(),
            answers: Answers::new(),
            said: Vec::new(),
        }
    }

    /// Authenticates once, and keeps what was sent: challenges are the same each time here, as what is
    /// random starts from the same seed for each client.
    fn learn_proofs(&mut self, hello: &[u8]) {
        let client = self.accept();
        self.turn(|machine, driver| machine.received(driver, client, hello));
        let mut proofs = Vec::new();
        let mut prover = Prover::new("bench", Credential::Password(PlainPassword::new(PASSWORD)));
        loop {
            let asked = self.driver.take(client);
            // A client that is logged in is asked nothing more.
            let Some(header) = Header::peek(&asked).expect("a message") else { break };
            let request = Authentication::parse(&asked[HEADER_LEN..header.total()]).expect("a question");
            match prover.handle(request, &mut |out| out.fill(7)) {
                Proof::Reply(next, reply) => {
                    self.turn(|machine, driver| machine.received(driver, client, &reply));
                    proofs.push(reply);
                    prover = next;
                }
                Proof::Waiting(_) | Proof::Done => break,
                Proof::Failed(error) => panic!("the login failed: {error}"),
            }
        }
        self.proofs = proofs.into();
    }

    fn accept(&mut self) -> ConnId {
        let client = self.driver.open();
        self.driver.rewind_random();
        let peer = Peer::Tcp {
            remote: SocketAddr::from(([10, 0, 0, 1], 4711)),
            local: SocketAddr::from(([10, 0, 0, 2], 6432)),
        };
        self.turn(|machine, driver| machine.accepted(driver, client, peer));
        client
    }

    /// A client that is in: it was told so.
    fn login(&mut self) -> ConnId {
        let mut hello = Vec::new();
        encode_startup(&mut hello, (3, 0), &[(b"user", b"bench"), (b"database", b"bench")]);
        if self.door != Door::Trust && self.proofs.is_empty() {
            self.learn_proofs(&hello);
        }
        let client = self.accept();
        self.turn(|machine, driver| machine.received(driver, client, &hello));
        for proof in Rc::clone(&self.proofs).iter() {
            let asked = self.driver.take(client);
            self.driver.give_back(client, asked);
            self.turn(|machine, driver| machine.received(driver, client, proof));
        }
        self.serve();
        let told = self.driver.take(client);
        assert!(ends_with_ready(&told), "the login failed");
        self.driver.give_back(client, told);
        client
    }

    /// Sends the same from all these clients in one turn, and expects each to be answered to the end.
    fn ask(&mut self, clients: &[ConnId], bytes: &[u8]) {
        self.turn(|machine, driver| {
            for client in clients {
                machine.received(driver, *client, bytes);
            }
        });
        self.serve();
        for client in clients {
            let told = self.driver.take(*client);
            assert!(ends_with_ready(&told), "a statement was not answered");
            self.driver.give_back(*client, told);
        }
    }

    /// Lets pgweir find out which node is the primary, and the standby warm up.
    fn watch(&mut self) {
        for _ in 0..WARM_S * 10 {
            self.now.mono_us += 100_000;
            self.now.wall_us += 100_000;
            self.turn(|_, _| {});
            self.serve();
        }
    }

    /// Turns in which servers come up and answer, until none has anything to do.
    fn serve(&mut self) {
        loop {
            for (conn, endpoint) in std::mem::take(&mut self.driver.dialed) {
                self.turn(|machine, driver| machine.connected(driver, conn, String::new()));
                let hello = self.driver.take(conn);
                let watches = hello.windows(WATCHER.len()).any(|word| word == WATCHER.as_bytes());
                let is_standby = matches!(&endpoint, Endpoint::Tcp { host, .. } if **host == *STANDBY);
                let state = watches.then(|| state_of_node(is_standby));
                self.servers.push(Server { conn, status: TxStatus::Idle, state });
                self.driver.give_back(conn, hello);
                let greeting = greeting(is_standby);
                self.turn(|machine, driver| machine.received(driver, conn, &greeting));
            }
            let mut answered = false;
            let (servers, answers) = (&mut self.servers, &self.answers);
            self.machine.begin_tick(self.now);
            for server in servers {
                let asked = self.driver.take(server.conn);
                if asked.is_empty() {
                    self.driver.give_back(server.conn, asked);
                    continue;
                }
                self.said.clear();
                match &server.state {
                    Some(state) => self.said.extend_from_slice(state),
                    None => answers.to(&asked, &mut server.status, &mut self.said),
                }
                self.driver.give_back(server.conn, asked);
                self.machine.received(&mut self.driver, server.conn, &self.said);
                answered = true;
            }
            self.machine.end_tick(&mut self.driver);
            if !answered && self.driver.dialed.is_empty() {
                return;
            }
        }
    }

    fn turn(&mut self, event: impl FnOnce(&mut Machine, &mut Quiet)) {
        // 20 us a turn: time passes, and maintenance has its share.
        self.now.mono_us += 20;
        self.now.wall_us += 20;
        self.machine.begin_tick(self.now);
        event(&mut self.machine, &mut self.driver);
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now.mono_us) {
            self.machine.timeout(&mut self.driver);
        }
        self.machine.end_tick(&mut self.driver);
    }
}

fn rules(door: Door, eyes: Eyes) -> Rules {
    let stored = || {
        let secret = ScramSecret::derive(&PlainPassword::new(PASSWORD), &[7; 16], 4096);
        secret.expect("few iterations").format()
    };
    let (auth_type, secret) = match door {
        Door::Trust => ("trust", String::new()),
        Door::Md5 => ("md5", PASSWORD.to_owned()),
        Door::Scram => ("scram-sha-256", stored()),
    };
    let watching = match eyes {
        Eyes::Wide => "log_min_duration_ms = 60000\n",
        Eyes::Shut => "statement_stats_bytes = 0\n",
        Eyes::Forgetful => "session_state = pgbouncer\n",
        Eyes::Cached => "query_cache = on\n",
        Eyes::Open | Eyes::Clustered => "",
    };
    let databases = match eyes {
        Eyes::Clustered => format!(
            "[databases]\nbench = cluster=main route=auto\n[clusters]\nmain = nodes=m1,m2 check_user={WATCHER}\n\
             [nodes]\nm1 = host=primary\nm2 = host={STANDBY}\n"
        ),
        Eyes::Cached => "[databases]\nbench = host=pg\n[cache]\nall = ttl_ms=3600000\n".to_owned(),
        _ => "[databases]\nbench = host=pg\n".to_owned(),
    };
    let text = format!(
        "[pgbouncer]\nsession_audit_sample = 0\n{watching}auth_type = {auth_type}\npool_mode = transaction\ndefault_pool_size = {SERVERS}\n\
         server_tls_sslmode = disable\nlog_stats = 0\nlog_connections = 0\nlog_disconnections = 0\n{databases}"
    );
    let mut read = |_: &str| Ok(text.clone());
    let config = Config::load("instructions.ini", &mut read).expect("a good configuration");
    let (users, _) = UserList::parse(&format!("\"bench\" \"{secret}\"\n"));
    Rules { config: Arc::new(config), users: Arc::new(users), access: Arc::default(), server_tls_epoch: 0 }
}
