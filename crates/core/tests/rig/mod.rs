//! A scripted world around the machine: a driver that remembers, virtual time, and both ends of the protocol by hand. A
//! test reads like a conversation: the client sends, the server gets, the server answers, the client gets.

pub(crate) mod be;
pub(crate) mod describer;
pub(crate) mod driver;
pub(crate) mod fe;
pub(crate) mod node;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pgweir_auth::{Access, Hba, IdentMaps, UserList};
use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{CloseMode, Closed, ConnId, Endpoint, Now, Peer, TlsInfo, WorkerId};
use pgweir_core::limits::Limits;
use pgweir_core::mail::{Mail, Question, Rules, Shutdown};
use pgweir_core::{Engine, Machine, Setup, Shared};
use pgweir_settings::Config;
use pgweir_wire::header::Header;

use driver::{Recorder, Wire};

/// One end of a connection, the client's or the server's. It stays the same when a client moves to another worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End(usize);

/// A worker.
struct Worker {
    machine: Machine,
    driver: Recorder,
}

/// On its way between workers.
enum Post {
    Client(usize, ConnId, usize, Box<ClientHandoff>),
    Mail(usize, Mail),
    Carried(usize, Option<ConnId>, Option<ConnId>, Box<Carried>),
}

/// The world.
pub(crate) struct Rig {
    post: VecDeque<Post>,
    delivering: bool,
    workers: Vec<Worker>,
    pub(crate) shared: Arc<Shared>,
    now: Now,
    ends: Vec<(usize, ConnId)>,
    /// Server connections in the order in which they were dialed.
    pub(crate) dials: Vec<End>,
    /// The endpoints that they go to, by number.
    endpoints: HashMap<usize, Endpoint>,
    /// The number of them that were looked at.
    taken: usize,
    /// The server connections that came up.
    greeted: Vec<End>,
    /// What the machine allocated, all in all.
    pub(crate) allocations: u64,
    /// What servers say of their routines; `None`: nothing.
    pub(crate) catalog: Option<Vec<[&'static str; 3]>>,
    /// What servers say that new connections begin with, which clients that log in are told; `None`: nothing.
    pub(crate) look: Option<Vec<[&'static str; 3]>>,
    /// Cancel keys that clients were told.
    keys: Vec<(End, Vec<u8>)>,
    /// The Describe after a named Parse is seen, and answered by the test. Otherwise each statement has no columns.
    pub(crate) describes: bool,
    /// Clients that go to another worker do not arrive there.
    pub(crate) loses_moved: bool,
}

/// How the question for routines begins.
pub(crate) const CATALOG: &[u8] = b"SELECT 'g', NULL";
/// The settings of a question go ahead of it.
const SETTINGS: &[u8] = b"SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// How the question begins that asks what new connections begin with.
pub(crate) const LOOK: &[u8] = b"SELECT 'o', NULL";

const USERS: &str = "\"alice\" \"alices\"\n\"bob\" \"bobs\"\n\"admin\" \"admins\"\n\"carol\" \"carols\"\n";

/// What PostgreSQL reports at login, as far as it matters here.
pub(crate) const REPORTED: [(&str, &str); 7] = [
    ("server_version", "18.0"),
    ("DateStyle", "ISO, MDY"),
    ("client_encoding", "UTF8"),
    ("TimeZone", "UTC"),
    ("standard_conforming_strings", "on"),
    ("application_name", ""),
    ("IntervalStyle", "postgres"),
];

fn rules(main: &str, databases: &str) -> Rules {
    let base = "auth_type = trust\nserver_tls_sslmode = disable\nadmin_users = admin\nlog_stats = 0";
    // A BEGIN is seen as it is sent, unless that is the matter.
    let begin = if main.contains("defer_begin") { "" } else { "defer_begin = off" };
    let text = format!("[pgbouncer]\n{base}\n{begin}\n{main}\n[databases]\n{databases}\n");
    let mut read = |_: &str| Ok(text.clone());
    let config = Config::load("t.ini", &mut read).expect("a good configuration");
    let (users, warnings) = UserList::parse(USERS);
    assert!(warnings.is_empty(), "{warnings:?}");
    Rules { config: Arc::new(config), users: Arc::new(users), access: Arc::default(), server_tls_epoch: 0 }
}

impl Rig {
    /// One worker; transaction pooling; a database `app` at host `pg`. Lines of `main` are settings of `[pgbouncer]`.
    pub(crate) fn new(main: &str) -> Rig {
        Rig::with(main, "app = host=pg", 1)
    }

    pub(crate) fn with(main: &str, databases: &str, workers: u16) -> Rig {
        let main = format!("pool_mode = transaction\n{main}");
        let shared = Arc::new(Shared::new(workers, [7; 32]));
        let now = Now { mono_us: 1_000_000_000, wall_us: 1_750_000_000_000_000 };
        let rules = rules(&main, databases);
        let workers = (0..workers)
            .map(|number| {
                let setup = Setup {
                    worker: WorkerId(number),
                    rules: rules.clone(),
                    shared: Arc::clone(&shared),
                    now,
                };
                Worker { machine: Machine::new(setup), driver: Recorder::default() }
            })
            .collect();
        Rig {
            post: VecDeque::new(),
            delivering: false,
            workers,
            shared,
            now,
            ends: Vec::new(),
            dials: Vec::new(),
            endpoints: HashMap::new(),
            taken: 0,
            greeted: Vec::new(),
            keys: Vec::new(),
            allocations: 0,
            catalog: Some(Vec::new()),
            look: Some(Vec::new()),
            describes: false,
            loses_moved: false,
        }
    }

    /// From now on these limits hold on the first worker.
    pub(crate) fn limit_by(mut self, limits: Limits) -> Rig {
        let Worker { machine, driver } = self.workers.remove(0);
        self.workers.insert(0, Worker { machine: machine.limit_by(limits), driver });
        self
    }

    /// RELOAD with other settings.
    pub(crate) fn reload(&mut self, main: &str, databases: &str) {
        let rules = rules(&format!("pool_mode = transaction\n{main}"), databases);
        for worker in 0..self.workers.len() {
            self.mail(worker, Mail::Rules(rules.clone()));
        }
    }

    /// RELOAD with `auth_type = hba` and these files.
    pub(crate) fn reload_access(&mut self, main: &str, hba: &str, ident: &str) {
        let (hba, warnings) = Hba::parse(hba, &mut |_| Err("there are no files".to_owned()));
        assert_eq!(warnings, Vec::<String>::new());
        let access = Access { hba, ident: IdentMaps::parse(ident).0, ldap: None };
        let main = format!("pool_mode = transaction\nauth_type = hba\n{main}");
        let rules = Rules { access: Arc::new(access), ..rules(&main, "app = host=pg") };
        for worker in 0..self.workers.len() {
            self.mail(worker, Mail::Rules(rules.clone()));
        }
    }

    /// A turn of a worker's loop, and of all others that it causes.
    pub(crate) fn turn(&mut self, worker: usize, event: impl FnOnce(&mut Machine, &mut Recorder)) {
        let Worker { machine, driver } = &mut self.workers[worker];
        let now = self.now;
        let counted = allocation_counter::measure(|| {
            machine.begin_tick(now);
            event(machine, driver);
            if machine.deadline().is_some_and(|deadline| deadline <= now.mono_us) {
                machine.timeout(driver);
            }
            machine.end_tick(driver);
        });
        self.allocations += counted.count_total;
        self.after(worker);
    }

    /// What the driver does after a turn: writes, reports, carries.
    fn after(&mut self, worker: usize) {
        for conn in self.workers[worker].driver.flush() {
            self.turn(worker, |machine, driver| machine.drained(driver, conn));
        }
        let dialed = std::mem::take(&mut self.workers[worker].driver.dialed);
        for (conn, endpoint) in dialed {
            self.ends.push((worker, conn));
            self.endpoints.insert(self.ends.len() - 1, endpoint);
            self.dials.push(End(self.ends.len() - 1));
        }
        let driver = &mut self.workers[worker].driver;
        for (client, server, carried) in std::mem::take(&mut driver.given) {
            self.post.push_back(Post::Carried(worker, client, server, carried));
        }
        let moved = std::mem::take(&mut driver.moved);
        for (conn, to, handoff) in moved.into_iter().filter(|_| !self.loses_moved) {
            self.post.push_back(Post::Client(worker, conn, usize::from(to.0), handoff));
        }
        for (to, mail) in std::mem::take(&mut driver.mails) {
            self.post.push_back(Post::Mail(usize::from(to.0), mail));
        }
        self.deliver();
        self.tell_catalog(worker);
    }

    /// Servers answer questions that are not what a test is about: which routines change their sessions ([`Rig::catalog`]), and what
    /// new connections begin with ([`Rig::look`]).
    fn tell_catalog(&mut self, worker: usize) {
        if let Some(catalog) = self.catalog.clone()
            && let Some(conn) = self.take_question(worker, CATALOG)
        {
            // Its database has no code of users of which nothing is said here, and PostgreSQL's own isolation level.
            let names = [["v", "", ""], ["r", "", ""], ["i", "read committed", ""]];
            let names = names.iter().filter(|name| !catalog.iter().any(|row| row[0] == name[0]));
            // Code is called as it is numbered.
            let named: Vec<_> =
                catalog.iter().filter(|row| row[0] == "g").map(|row| ["o", row[1], row[1]]).collect();
            let rows: Vec<&[&str]> = catalog.iter().chain(names).chain(&named).map(|row| &row[..]).collect();
            let answer = self.described(worker, conn, &be::answer(&rows));
            self.turn(worker, |machine, driver| machine.received(driver, conn, &answer));
        }
        if let Some(look) = self.look.clone()
            && let Some(conn) = self.take_question(worker, LOOK)
        {
            let answer = self.described(worker, conn, &be::look(&look));
            self.turn(worker, |machine, driver| machine.received(driver, conn, &answer));
        }
    }

    /// Takes a question that begins so out of what arrived at a server.
    fn take_question(&mut self, worker: usize, begin: &[u8]) -> Option<ConnId> {
        let asked = |wire: &Wire| {
            // Not looked for in what is longer than that question and a startup packet.
            if wire.arrived.len() > 32768 {
                return None;
            }
            let place = wire.arrived.windows(begin.len()).position(|part| part == begin)?;
            let settings = wire.arrived[..place].windows(SETTINGS.len()).rposition(|part| part == SETTINGS);
            let at = settings.unwrap_or(place).checked_sub(5)?;
            let end =
                at + 1 + usize::try_from(u32::from_be_bytes(*wire.arrived[at + 1..].first_chunk()?)).ok()?;
            Some((at, end))
        };
        let wires = &self.workers[worker].driver.wires;
        let (index, (at, end)) =
            wires.iter().enumerate().find_map(|(index, wire)| Some((index, asked(wire)?)))?;
        self.workers[worker].driver.wires[index].arrived.drain(at..end);
        Some(ConnId { index: u32::try_from(index).expect("few connections"), generation: 0 })
    }

    /// What goes between workers arrives in order, each in a separate turn.
    fn deliver(&mut self) {
        if std::mem::replace(&mut self.delivering, true) {
            return;
        }
        while let Some(post) = self.post.pop_front() {
            match post {
                Post::Client(from, conn, to, handoff) => self.carry(from, conn, to, handoff),
                Post::Mail(to, mail) => self.mail(to, mail),
                Post::Carried(from, client, server, carried) => self.inherit(from, client, server, &carried),
            }
        }
        self.delivering = false;
    }

    /// From now on mail is on its way, until [`Rig::deliver_mail`].
    pub(crate) fn hold_mail(&mut self) {
        self.delivering = true;
    }

    /// What was on its way arrives.
    pub(crate) fn deliver_mail(&mut self) {
        self.delivering = false;
        self.deliver();
    }

    /// Another process takes the place of this one, with these settings. It is the last worker from then on.
    pub(crate) fn take_over(&mut self, main: &str, databases: &str) {
        let generation = self.shared.generation() + 1;
        self.shared = Arc::new(Shared::new(1, [7; 32]).of_generation(generation));
        let setup = Setup {
            worker: WorkerId(0),
            rules: rules(&format!("pool_mode = transaction\n{main}"), databases),
            shared: Arc::clone(&self.shared),
            now: self.now,
        };
        self.workers.push(Worker { machine: Machine::new(setup), driver: Recorder::default() });
        let old = self.workers.len() - 2;
        self.mail(old, Mail::Shutdown(Shutdown::HandOver));
    }

    /// As it goes between processes: as bytes.
    fn inherit(&mut self, from: usize, client: Option<ConnId>, server: Option<ConnId>, carried: &Carried) {
        let to = from + 1;
        let [client, server] = [client, server].map(|conn| conn.map(|conn| self.move_wire(from, conn, to)));
        let carried = Carried::decode(&carried.encode()).expect("it was encoded just now");
        self.turn(to, |machine, driver| machine.carried(driver, client, server, Box::new(carried)));
    }

    fn move_wire(&mut self, from: usize, conn: ConnId, to: usize) -> ConnId {
        let wire = std::mem::take(self.workers[from].driver.wire(conn));
        assert!(wire.queued.is_empty() && wire.closed.is_none(), "it was not at rest");
        let there = self.workers[to].driver.open();
        *self.workers[to].driver.wire(there) = Wire { paused: false, ..wire };
        let end = self.ends.iter_mut().find(|end| **end == (from, conn)).expect("a known connection");
        *end = (to, there);
        there
    }

    fn carry(&mut self, from: usize, conn: ConnId, to: usize, handoff: Box<ClientHandoff>) {
        let wire = std::mem::take(self.workers[from].driver.wire(conn));
        let there = self.workers[to].driver.open();
        *self.workers[to].driver.wire(there) = wire;
        let end = self.ends.iter_mut().find(|end| **end == (from, conn)).expect("a known connection");
        *end = (to, there);
        self.turn(to, |machine, driver| machine.adopted(driver, there, handoff));
    }

    pub(crate) fn mail(&mut self, worker: usize, mail: Mail) {
        self.turn(worker, |machine, driver| machine.mail(driver, mail));
    }

    /// Time passes, with a turn three times a second.
    pub(crate) fn pass_s(&mut self, seconds: u64) {
        for _ in 0..seconds * 3 + 1 {
            self.pass_us(334_000);
        }
    }

    /// Time passes without a turn, as for a process that is stopped; then there is one.
    pub(crate) fn stand_still_s(&mut self, seconds: u64) {
        self.pass_us(seconds * 1_000_000);
    }

    pub(crate) fn pass_us(&mut self, us: u64) {
        self.now.mono_us += us;
        self.now.wall_us += us;
        for worker in 0..self.workers.len() {
            self.turn(worker, |_, _| ());
        }
    }

    /// Sets the time back: what follows happens in an older turn.
    pub(crate) fn set_back_us(&mut self, us: u64) {
        self.now.mono_us -= us;
    }

    // Clients.

    /// A client connects to a worker.
    pub(crate) fn accept_at(&mut self, worker: usize) -> End {
        let peer = Peer::Tcp {
            remote: "10.0.0.1:4711".parse().expect("an address"),
            local: "10.0.0.2:6432".parse().expect("an address"),
        };
        self.accept_from(worker, peer)
    }

    /// A client of this user id connects over the unix socket.
    pub(crate) fn accept_unix(&mut self, uid: u32) -> End {
        self.accept_from(0, Peer::Unix { pid: 77, uid, same_user: false, port: 6432 })
    }

    pub(crate) fn accept_from(&mut self, worker: usize, peer: Peer) -> End {
        let conn = self.workers[worker].driver.open();
        self.ends.push((worker, conn));
        let client = End(self.ends.len() - 1);
        self.turn(worker, |machine, driver| machine.accepted(driver, conn, peer));
        client
    }

    pub(crate) fn accept(&mut self) -> End {
        self.accept_at(0)
    }

    /// A client that has sent its startup packet.
    pub(crate) fn knock(&mut self, user: &str, database: &str) -> End {
        let client = self.accept();
        self.send(client, &fe::startup(&[("user", user), ("database", database)]));
        client
    }

    /// A client of `app` that is logged in and was told everything; a server is made up if the pool has none.
    pub(crate) fn client(&mut self, user: &str) -> End {
        self.client_with(&[("user", user), ("database", "app")])
    }

    pub(crate) fn client_with(&mut self, params: &[(&str, &str)]) -> End {
        let client = self.accept();
        self.send(client, &fe::startup(params));
        if !self.peek(client).contains(&"Ready I".to_owned()) {
            let fresh = self.dials.iter().find(|end| !self.greeted.contains(end));
            let server = *fresh.expect("no connection was dialed");
            self.greet(server);
        }
        let told = self.gets(client);
        assert_eq!(told.last().map(String::as_str), Some("Ready I"), "the login failed: {told:?}");
        client
    }

    /// An administrator at the console.
    pub(crate) fn console(&mut self) -> End {
        self.console_at(0)
    }

    pub(crate) fn console_at(&mut self, worker: usize) -> End {
        let client = self.accept_at(worker);
        self.send(client, &fe::startup(&[("user", "admin"), ("database", "pgbouncer")]));
        let told = self.gets(client);
        assert_eq!(told.last().map(String::as_str), Some("Ready I"));
        client
    }

    /// A command on the console, and what it says.
    pub(crate) fn command(&mut self, console: End, text: &str) -> Vec<String> {
        self.send(console, &fe::query(text));
        self.gets(console)
    }

    // Servers.

    /// The next server connection that was dialed.
    pub(crate) fn dialed(&mut self) -> End {
        let server = *self.dials.get(self.taken).expect("no connection was dialed");
        self.taken += 1;
        server
    }

    /// The endpoint that a dialed connection goes to.
    pub(crate) fn endpoint(&self, server: End) -> String {
        match &self.endpoints[&server.0] {
            Endpoint::Tcp { host, port } => format!("{host}:{port}"),
            Endpoint::Unix { path } => format!("unix:{path}"),
        }
    }

    /// The number of connections that were dialed and not looked at.
    pub(crate) fn new_dials(&self) -> usize {
        self.dials.len() - self.taken
    }

    /// The next connection that is dialed for clients comes up and logs us in. Those for cancel requests before it come up, too.
    pub(crate) fn next_server(&mut self) -> End {
        loop {
            let end = self.dialed();
            if self.connect(end).contains("user") {
                self.send(end, &greeting());
                return end;
            }
        }
    }

    /// Has a dialed server come up and log us in.
    pub(crate) fn greet(&mut self, server: End) {
        self.connect(server);
        self.send(server, &greeting());
    }

    /// A dialed server is up; its startup packet is returned as text.
    pub(crate) fn connect(&mut self, server: End) -> String {
        self.greeted.push(server);
        let (worker, conn) = self.ends[server.0];
        self.turn(worker, |machine, driver| machine.connected(driver, conn, "10.0.0.2:5001".to_owned()));
        let raw = self.raw(server);
        String::from_utf8_lossy(&raw).replace('\0', " ")
    }

    /// As [`Rig::connect`], without taking what is sent.
    pub(crate) fn connect_silently(&mut self, server: End) {
        self.greeted.push(server);
        let (worker, conn) = self.ends[server.0];
        self.turn(worker, |machine, driver| machine.connected(driver, conn, String::new()));
    }

    /// A TLS handshake is complete.
    pub(crate) fn secure(&mut self, end: End, info: TlsInfo) {
        let (worker, conn) = self.ends[end.0];
        self.turn(worker, |machine, driver| machine.tls_established(driver, conn, info));
    }

    /// Whether a server was told to have come up.
    pub(crate) fn is_up(&self, server: End) -> bool {
        self.greeted.contains(&server)
    }

    /// Whether a client was told how to cancel.
    pub(crate) fn has_key(&self, client: End) -> bool {
        self.keys.iter().any(|(end, _)| *end == client)
    }

    /// What a client got, for tests that do not care what it is.
    pub(crate) fn gets_raw(&mut self, client: End) {
        let raw = self.raw(client);
        if let Some(key) = cancel_key(&raw) {
            self.keys.push((client, key));
        }
    }

    /// As [`Rig::gets`] for a server; what is no message of a login is dropped.
    pub(crate) fn gets_loosely(&mut self, server: End) -> Vec<String> {
        let is_message = self.wire(server).arrived.first().is_none_or(u8::is_ascii_alphabetic);
        if is_message {
            return self.gets(server);
        }
        self.raw(server);
        Vec::new()
    }

    /// Dialing fails.
    pub(crate) fn refuse_dial(&mut self, server: End, text: &str) {
        self.end(server, Closed::DialFailed(text.to_owned()));
    }

    // Both.

    /// Bytes of a peer arrive.
    pub(crate) fn send(&mut self, end: End, bytes: &[u8]) {
        let (worker, conn) = self.ends[end.0];
        assert!(self.wire(end).closed.is_none(), "the connection is closed");
        let bytes = match self.dials.contains(&end) {
            true => self.described(worker, conn, bytes),
            false => bytes.to_vec(),
        };
        self.turn(worker, |machine, driver| machine.received(driver, conn, &bytes));
    }

    /// As [`Rig::send`], of a server that answers each Describe itself.
    pub(crate) fn send_unchanged(&mut self, server: End, bytes: &[u8]) {
        let (worker, conn) = self.ends[server.0];
        self.turn(worker, |machine, driver| machine.received(driver, conn, bytes));
    }

    /// What a server says, with what it says of the statements that it has prepared.
    fn described(&mut self, worker: usize, conn: ConnId, bytes: &[u8]) -> Vec<u8> {
        let told = self.workers[worker].driver.wire(conn).describer.answers(bytes);
        if self.describes { bytes.to_vec() } else { told }
    }

    /// The same byte by byte.
    pub(crate) fn send_bytewise(&mut self, end: End, bytes: &[u8]) {
        for byte in bytes.chunks(1) {
            self.send(end, byte);
        }
    }

    /// Events of one turn of worker 0's loop, in this order.
    pub(crate) fn send_together(&mut self, pieces: &[(End, &[u8])]) {
        let mut sent = Vec::new();
        for (end, bytes) in pieces {
            let conn = self.ends[end.0].1;
            let bytes = match self.dials.contains(end) {
                true => self.described(0, conn, bytes),
                false => bytes.to_vec(),
            };
            sent.push((conn, bytes));
        }
        self.turn(0, |machine, driver| {
            for (conn, bytes) in sent {
                machine.received(driver, conn, &bytes);
            }
        });
    }

    /// The last bytes of a client and the end of its connection come in one turn.
    pub(crate) fn send_and_end(&mut self, end: End, bytes: &[u8]) {
        let (worker, conn) = self.ends[end.0];
        self.turn(worker, |machine, driver| {
            machine.received(driver, conn, bytes);
            if driver.wire(conn).closed.is_none() {
                machine.closed(driver, conn, Closed::Eof);
            }
        });
    }

    /// A peer ends its connection.
    pub(crate) fn end(&mut self, end: End, why: Closed) {
        let (worker, conn) = self.ends[end.0];
        // The machine hears of the end of a connection that it has closed only if it asked for that.
        if self.wire(end).closed.is_some_and(|mode| !matches!(mode, CloseMode::Confirm { .. })) {
            return;
        }
        self.workers[worker].driver.wire(conn).closed = None;
        self.turn(worker, |machine, driver| machine.closed(driver, conn, why));
    }

    /// Connections of worker 0 end in one turn, in this order.
    pub(crate) fn end_together(&mut self, ends: &[End]) {
        let conns: Vec<ConnId> = ends.iter().map(|end| self.ends[end.0].1).collect();
        self.turn(0, |machine, driver| {
            for conn in conns {
                machine.closed(driver, conn, Closed::Eof);
            }
        });
    }

    pub(crate) fn eof(&mut self, end: End) {
        self.end(end, Closed::Eof);
    }

    /// PostgreSQL has run what a client left, and reads the Terminate that follows it.
    pub(crate) fn lets_go(&mut self, server: End) {
        assert!(!self.is_closed(server), "it counts as long as PostgreSQL runs a statement");
        assert_eq!(self.gets(server).last().map(String::as_str), Some("Terminate"));
        self.eof(server);
        assert!(self.is_closed(server));
    }

    /// The whole messages that a peer got, as text. The start of an incomplete message stays.
    pub(crate) fn gets(&mut self, end: End) -> Vec<String> {
        let is_server = self.dials.contains(&end);
        let arrived = std::mem::take(&mut self.wire_mut(end).arrived);
        if let Some(key) = cancel_key(&arrived).filter(|_| !is_server) {
            self.keys.push((end, key));
        }
        let (texts, used) = messages(&arrived, is_server, is_server && !self.describes);
        self.wire_mut(end).arrived = arrived[used..].to_vec();
        texts
    }

    /// The error that ends the login of a client that has proven its user.
    pub(crate) fn refusal(&mut self, client: End) -> String {
        let told = self.gets(client);
        let [proven, error] = &told[..] else { panic!("not refused: {told:?}") };
        assert_eq!(proven, "Auth ok", "PostgreSQL says so ahead of the error");
        assert!(self.is_closed(client), "{error}");
        error.clone()
    }

    /// The key that a client was told: process id and secret.
    pub(crate) fn key_of(&self, client: End) -> Vec<u8> {
        self.keys.iter().find(|(end, _)| *end == client).expect("it was told a key").1.clone()
    }

    /// Whether every worker was told to close its doors.
    pub(crate) fn stopped_listening(&self) -> bool {
        self.workers.iter().all(|worker| worker.driver.stopped_listening)
    }

    /// A CancelRequest with the key that a client was told arrives at a worker.
    pub(crate) fn cancel_at(&mut self, worker: usize, client: End) -> End {
        let key = self.key_of(client);
        let request = self.accept_at(worker);
        self.send(request, &fe::cancel(&key));
        request
    }

    pub(crate) fn cancel(&mut self, client: End) -> End {
        self.cancel_at(0, client)
    }

    pub(crate) fn peek(&mut self, end: End) -> Vec<String> {
        messages(&self.wire(end).arrived, false, false).0
    }

    /// Asserts that nothing arrived.
    pub(crate) fn gets_nothing(&mut self, end: End) {
        assert_eq!(self.gets(end), Vec::<String>::new());
        assert!(self.wire(end).arrived.is_empty(), "part of a message arrived");
    }

    /// Everything that arrived, as bytes.
    pub(crate) fn raw(&mut self, end: End) -> Vec<u8> {
        std::mem::take(&mut self.wire_mut(end).arrived)
    }

    pub(crate) fn wire(&self, end: End) -> &Wire {
        let (worker, conn) = self.ends[end.0];
        &self.workers[worker].driver.wires[conn.index as usize]
    }

    fn wire_mut(&mut self, end: End) -> &mut Wire {
        let (worker, conn) = self.ends[end.0];
        self.workers[worker].driver.wire(conn)
    }

    pub(crate) fn is_closed(&self, end: End) -> bool {
        self.wire(end).closed.is_some()
    }

    pub(crate) fn is_paused(&self, end: End) -> bool {
        self.wire(end).paused
    }

    pub(crate) fn backlog(&self, end: End) -> usize {
        self.wire(end).queued.len()
    }

    /// The peer takes nothing any more.
    pub(crate) fn stop_taking(&mut self, end: End) {
        self.wire_mut(end).stuck = true;
    }

    /// The peer takes everything again.
    pub(crate) fn take_again(&mut self, end: End) {
        self.wire_mut(end).stuck = false;
        let worker = self.ends[end.0].0;
        self.after(worker);
    }

    /// The worker a client is at.
    pub(crate) fn worker_of(&self, end: End) -> usize {
        self.ends[end.0].0
    }

    /// Whether a log line holds this text.
    pub(crate) fn logged(&self, text: &str) -> bool {
        self.workers.iter().any(|worker| worker.driver.log.iter().any(|(_, line)| line.contains(text)))
    }

    /// The number of log lines that have this in them.
    pub(crate) fn logged_times(&self, text: &str) -> usize {
        let lines = self.workers.iter().flat_map(|worker| &worker.driver.log);
        lines.filter(|(_, line)| line.contains(text)).count()
    }

    /// What the control plane was asked.
    pub(crate) fn asked(&mut self) -> Vec<Question> {
        self.workers.iter_mut().flat_map(|worker| std::mem::take(&mut worker.driver.asked)).collect()
    }

    /// The row of SHOW POOLS_EXTENDED for a database and user, by column name.
    pub(crate) fn pool(&mut self, console: End, name: &str) -> Vec<String> {
        let rows = self.command(console, "SHOW POOLS_EXTENDED");
        let row = rows.iter().find(|row| row.starts_with(&format!("Row {name},")));
        let row = row.unwrap_or_else(|| panic!("no pool {name} in {rows:?}"));
        row.split(',').map(str::to_owned).collect()
    }

    /// A server's answer, and what the client makes of it.
    pub(crate) fn answer(&mut self, server: End, bytes: &[u8], client: End) -> Vec<String> {
        self.send(server, bytes);
        self.gets(client)
    }
}

/// What PostgreSQL says when it has nothing to ask.
pub(crate) fn greeting() -> Vec<u8> {
    let mut out = be::auth_ok();
    for (name, value) in REPORTED {
        out.extend(be::parameter(name, value));
    }
    out.extend(be::key(4242));
    out.extend(be::ready('I'));
    out
}

/// Process id and secret of the BackendKeyData among these messages.
fn cancel_key(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while let Some(Ok(Some(header))) = bytes.get(at..).map(Header::peek) {
        let message = bytes.get(at..at + header.total())?;
        if header.tag == pgweir_wire::backend::tag::BACKEND_KEY_DATA {
            return Some(message[5..].to_vec());
        }
        at += header.total();
    }
    None
}

fn messages(bytes: &[u8], is_server: bool, leaves_out: bool) -> (Vec<String>, usize) {
    let (mut texts, mut at) = (Vec::new(), 0);
    while let Some(header) = Header::peek(&bytes[at..]).expect("a header") {
        let Some(message) = bytes.get(at..at + header.total()) else { break };
        texts.push(if is_server { fe::show(message) } else { be::show(message) });
        at += header.total();
        if leaves_out {
            at += describer::describes(message, &bytes[at..]).unwrap_or(0);
        }
    }
    (texts, at)
}
