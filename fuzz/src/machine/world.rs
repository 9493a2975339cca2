//! The world around the machine: carries bytes between it and its peers, does what it asks for, and watches it.

use std::collections::HashMap;
use std::sync::Arc;

use pgweir_core::console::command::Outcome;
use pgweir_core::driver::{Closed, ConnId, Now, Peer, TlsInfo, WorkerId};
use pgweir_core::mail::{Mail, Question, Rules};
use pgweir_core::{Engine, Machine, Setup, Shared};
use pgweir_settings::AuthType;
use pgweir_wire::{Header, backend};

use super::phrases::{self, COMMANDS, PHRASES};
use super::postgres::Postgres;
use super::recorder::{Asked, Recorder, Side};
use super::rules::rules;

/// How often something may happen within one turn before it is said not to come to rest.
const ROUNDS_MAX: usize = 10_000;
/// The databases whose counters are looked at in the end.
const DATABASES: [&str; 4] = ["p", "few", "kept", "own"];
/// Longer than any timeout of the configurations.
const AGE_US: u64 = 10_000_000_000;

/// The world.
pub struct World {
    machine: Machine,
    driver: Recorder,
    shared: Arc<Shared>,
    rules: Rules,
    now_us: u64,
    /// Clients by the number that a step has for them; the last is the console's.
    clients: HashMap<usize, ConnId>,
    servers: HashMap<u32, Postgres>,
    hostile: Side,
    /// Connections cannot be opened.
    pub network_is_down: bool,
    /// Servers that keep to the protocol answer at once.
    pub servers_answer: bool,
}

const CONSOLE: usize = usize::MAX;

impl World {
    pub fn new(selector: u8, hostile: Side) -> Self {
        let (rules, shared) = (rules(selector), Arc::new(Shared::new(1, [7; 32])));
        let now_us = 1_000_000;
        let setup =
            Setup { worker: WorkerId(0), rules: rules.clone(), shared: Arc::clone(&shared), now: at(now_us) };
        let mut world = World {
            machine: Machine::new(setup),
            driver: Recorder::default(),
            shared,
            rules,
            now_us,
            clients: HashMap::new(),
            servers: HashMap::new(),
            hostile,
            network_is_down: false,
            servers_answer: hostile == Side::Client,
        };
        world.machine.begin_tick(at(now_us));
        for (which, database) in [(0, "p"), (1, "few")] {
            let conn = world.client(which);
            world.give(conn, &phrases::startup("alice", database));
            // The first server is then the first client's.
            world.turn();
        }
        world
    }

    /// A client by its number; it connects if it is not there.
    fn client(&mut self, which: usize) -> ConnId {
        if let Some(&conn) = self.clients.get(&which)
            && self.driver.open(conn).is_some()
        {
            return conn;
        }
        let conn = self.driver.insert(Side::Client);
        self.clients.insert(which, conn);
        let address = |port| ([127, 0, 0, 1], port).into();
        // The console's client comes from the same machine, as the same user: it needs no password.
        let peer = match which {
            CONSOLE => Peer::Unix { pid: 1, uid: 1, same_user: true, port: 6432 },
            _ => Peer::Tcp { remote: address(50_000), local: address(6432) },
        };
        self.machine.accepted(&mut self.driver, conn, peer);
        conn
    }

    /// A peer sent something; the machine reads it when it wants to.
    fn give(&mut self, conn: ConnId, bytes: &[u8]) {
        if let Some(conn) = self.driver.open(conn) {
            conn.inbound.extend_from_slice(bytes);
        }
        self.deliver(conn);
    }

    fn deliver(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.driver.open(id) else { return false };
        if conn.inbound.is_empty() || conn.paused || !conn.up || conn.in_handshake {
            return false;
        }
        let bytes = std::mem::take(&mut conn.inbound);
        self.machine.received(&mut self.driver, id, &bytes);
        true
    }

    fn named(&self, side: Side, which: usize) -> Option<ConnId> {
        match side {
            Side::Client => self.clients.get(&which).copied(),
            Side::Server => self.driver.of(side).get(which).copied(),
        }
    }

    pub fn says(&mut self, side: Side, which: usize, bytes: &[u8]) {
        let conn = match side {
            Side::Client => Some(self.client(which)),
            Side::Server => self.named(side, which),
        };
        if let Some(conn) = conn {
            self.give(conn, bytes);
        }
    }

    pub fn client_says(&mut self, which: usize, phrase: u8) {
        let fresh = self.named(Side::Client, which).is_none_or(|conn| self.driver.open(conn).is_none());
        let conn = self.client(which);
        if fresh {
            let (user, database) =
                [("alice", "p"), ("bob", "few"), ("bob", "own"), ("alice", "kept")][which % 4];
            self.give(conn, &phrases::startup(user, database));
        }
        self.give(conn, &PHRASES[usize::from(phrase) % PHRASES.len()]);
    }

    pub fn typed(&mut self, command: u8) {
        let fresh = self.named(Side::Client, CONSOLE).is_none_or(|conn| self.driver.open(conn).is_none());
        let conn = self.client(CONSOLE);
        if fresh {
            self.give(conn, &phrases::startup("pgbouncer", "pgbouncer"));
        }
        self.give(conn, &phrases::query(COMMANDS[usize::from(command) % COMMANDS.len()]));
    }

    pub fn hangs_up(&mut self, side: Side, which: usize, why: Closed) {
        if let Some(conn) = self.named(side, which) {
            self.ends(conn, why);
        }
    }

    fn ends(&mut self, id: ConnId, why: Closed) {
        let Some(conn) = self.driver.open(id) else { return };
        conn.open = false;
        let why = if conn.up { why } else { Closed::DialFailed("refused".to_owned()) };
        self.machine.closed(&mut self.driver, id, why);
    }

    /// A peer takes no more bytes, or takes them again.
    pub fn stalls(&mut self, side: Side, which: usize, stalls: bool) {
        let Some(id) = self.named(side, which) else { return };
        let Some(conn) = self.driver.open(id) else { return };
        match (stalls, conn.stalled) {
            (true, None) => conn.stalled = Some(0),
            (false, Some(queued)) => {
                conn.stalled = None;
                if queued > 0 {
                    self.machine.drained(&mut self.driver, id);
                }
            }
            _ => {}
        }
    }

    pub fn time_passes(&mut self, us: u64) {
        self.now_us += us;
        self.machine.begin_tick(at(self.now_us));
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now_us) {
            self.machine.timeout(&mut self.driver);
            let next = self.machine.deadline();
            assert!(next.is_none_or(|deadline| deadline > self.now_us), "a deadline that stays in the past");
        }
    }

    /// Ends the turn, and has turns until nothing happens any more.
    pub fn turn(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.machine.end_tick(&mut self.driver);
            self.machine.begin_tick(at(self.now_us));
            let asked = self.driver.asked.pop_front();
            let mut happened = asked.is_some();
            if let Some(asked) = asked {
                self.answer(asked);
            }
            for side in [Side::Client, Side::Server] {
                for conn in self.driver.of(side) {
                    happened |= self.deliver(conn);
                }
            }
            if self.servers_answer {
                for conn in self.driver.of(Side::Server) {
                    happened |= self.work(conn);
                }
            }
            if !happened {
                return;
            }
        }
        panic!("the machine does not come to rest");
    }

    fn answer(&mut self, asked: Asked) {
        match asked {
            Asked::Dial(id) if self.network_is_down => self.ends(id, Closed::Eof),
            Asked::Dial(id) => {
                let Some(conn) = self.driver.open(id) else { return };
                conn.up = true;
                self.machine.connected(&mut self.driver, id, "10.0.0.9:40000".to_owned());
            }
            Asked::Tls(id) => {
                let Some(conn) = self.driver.open(id) else { return };
                conn.in_handshake = false;
                self.machine.tls_established(&mut self.driver, id, TlsInfo::default());
            }
            Asked::Mail(mail) => self.machine.mail(&mut self.driver, mail),
            Asked::Question(question) => self.control(question),
        }
    }

    /// What the control plane does with a question.
    fn control(&mut self, question: Question) {
        let ticket = match question {
            Question::Shutdown(how) => return self.machine.mail(&mut self.driver, Mail::Shutdown(how)),
            Question::Reload { ticket, .. } => ticket,
            Question::Set { key, value, ticket, .. } => {
                let mut config = (*self.rules.config).clone();
                if config.set(&key, &value).is_ok() {
                    self.rules.config = Arc::new(config);
                }
                ticket
            }
            _ => return,
        };
        self.machine.mail(&mut self.driver, Mail::Rules(self.rules.clone()));
        self.machine.mail(&mut self.driver, Mail::Outcome { ticket, outcome: Outcome::Done });
    }

    /// A server answers as it should, if the input says when.
    pub fn server_answers(&mut self, which: usize) {
        if let Some(conn) = self.named(Side::Server, which) {
            while self.work(conn) {}
        }
    }

    /// A server looks at what it was sent, and answers one message.
    fn work(&mut self, id: ConnId) -> bool {
        let (speaks_tls, strict) = (id.index.is_multiple_of(2), self.hostile == Side::Client);
        let postgres = self.servers.entry(id.index).or_insert_with(|| Postgres::new(speaks_tls, strict));
        let Some(conn) = self.driver.open(id) else { return false };
        let mut answers = Vec::new();
        let used = postgres.handle(&conn.sent[conn.seen..], &mut answers);
        conn.seen += used;
        let gone = postgres.is_gone();
        self.give(id, &answers);
        if gone {
            self.ends(id, Closed::Eof);
        }
        used > 0
    }

    /// Everybody leaves. Nothing may be left over.
    pub fn end(mut self) {
        self.turn();
        self.network_is_down = true;
        for conn in self.driver.of(Side::Client) {
            self.ends(conn, Closed::Eof);
        }
        self.turn();
        assert_eq!(self.driver.of(Side::Client), [], "a client that has left");
        for conn in self.driver.of(Side::Server) {
            self.ends(conn, Closed::Eof);
        }
        self.turn();
        self.time_passes(AGE_US);
        self.turn();
        // A client that has said Terminate counts until what it sent before has run, or was refused.
        assert_eq!(self.shared.clients.taken(), 0, "clients that have left are counted");
        for name in DATABASES {
            assert_eq!(
                self.shared.database(name).clients.taken(),
                0,
                "clients of {name} that have left are counted"
            );
        }
        assert_eq!(self.driver.of(Side::Server), [], "no client is left, and connections are open");
        for name in DATABASES {
            assert_eq!(
                self.shared.database(name).servers.taken(),
                0,
                "servers of {name} that are gone are counted"
            );
        }
        self.check_what_was_sent();
    }

    /// Clients were sent whole messages; only who was left in the middle of one has a part of it. None is let in that has
    /// not proven itself.
    fn check_what_was_sent(&self) {
        let asks = matches!(self.rules.config.main.auth_type, AuthType::Md5 | AuthType::ScramSha256);
        let console = self.clients.get(&CONSOLE).map(|conn| conn.index as usize);
        for (place, conn) in self.driver.conns.iter().enumerate() {
            if conn.side != Side::Client {
                continue;
            }
            let mut rest = &conn.sent[..];
            while let Some(header) =
                Header::peek(rest).unwrap_or_else(|error| panic!("a client was sent {error}"))
            {
                assert!(
                    is_known(header.tag),
                    "a client was sent a message of type {:?}",
                    char::from(header.tag)
                );
                let Some((message, more)) = rest.split_at_checked(header.total()) else { break };
                let is_in = message == b"R\0\0\0\x08\0\0\0\0";
                assert!(!is_in || !asks || self.hostile != Side::Client || Some(place) == console, "let in");
                rest = more;
            }
        }
    }
}

fn is_known(tag: u8) -> bool {
    use backend::tag as t;
    [
        t::AUTHENTICATION,
        t::BACKEND_KEY_DATA,
        t::BIND_COMPLETE,
        t::CLOSE_COMPLETE,
        t::COMMAND_COMPLETE,
        t::COPY_DATA,
        t::COPY_DONE,
        t::COPY_IN,
        t::COPY_OUT,
        t::COPY_BOTH,
        t::DATA_ROW,
        t::EMPTY_QUERY,
        t::ERROR,
        t::FUNCTION_RESPONSE,
        t::NEGOTIATE,
        t::NO_DATA,
        t::NOTICE,
        t::NOTIFICATION,
        t::PARAMETER_DESCRIPTION,
        t::PARAMETER_STATUS,
        t::PARSE_COMPLETE,
        t::PORTAL_SUSPENDED,
        t::READY,
        t::ROW_DESCRIPTION,
    ]
    .contains(&tag)
}

fn at(mono_us: u64) -> Now {
    Now { mono_us, wall_us: 1_700_000_000_000_000 + mono_us }
}
