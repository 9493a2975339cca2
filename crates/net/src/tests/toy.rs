//! A toy machine: it echoes or relays, hands over, starts TLS, and reports its events to the test.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::{ClientHandoff, Counted, Login, Origin, Replication};
use pgweir_core::driver::{
    CloseMode, Closed, ConnId, Driver, Endpoint, Level, Now, Peer, TlsInfo, TlsRole, WorkerId,
};
use pgweir_core::mail::Mail;
use pgweir_core::params::Params;

use crate::listening::listen::{ListenSettings, Listeners, open_listeners};
use crate::options::SocketOptions;
use crate::tls::TlsConfigs;
use crate::worker::workers::{Setup, Workers};
use pgweir_core::Engine;

/// The backlog from which the toy stops reading the source.
pub(crate) const TOY_BACKLOG_MAX_BYTES: usize = 64 * 1024;

/// The timeout of every wait. It is a safety net only: no wait lasts that long unless something is broken.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// An event of the toy.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Accepted(Peer),
    Connected(String),
    Received(Vec<u8>),
    Adopted(WorkerId),
    Established(TlsInfo),
    Drained,
    Closed(Closed),
    Mail,
    Turn,
}

/// The behaviour of the toy.
#[derive(Clone, Default)]
pub(crate) struct Plan {
    /// Relay to this endpoint; `None` means echo.
    pub(crate) upstream: Option<Endpoint>,
    /// Start TLS with clients at once.
    pub(crate) tls_accept: Option<TlsRole>,
    /// Start TLS with clients when their first bytes have arrived, which belong to the session.
    pub(crate) tls_on_first_bytes: Option<TlsRole>,
    /// Start TLS with the upstream once connected.
    pub(crate) tls_connect: Option<TlsRole>,
    /// Hand every client over to the next of this number of workers, after this many bytes.
    pub(crate) move_after: Option<(u16, usize)>,
    /// Pause after every piece; mail resumes reading.
    pub(crate) pause_always: bool,
    /// Answer the first bytes with this and close.
    pub(crate) last_words: Option<(Vec<u8>, CloseMode)>,
    /// Report received bytes.
    pub(crate) tell_bytes: bool,
    /// Report where turns begin.
    pub(crate) tell_turns: bool,
    /// Send these pieces as soon as a client is there.
    pub(crate) greeting: Vec<Vec<u8>>,
    /// Send these bytes to the client through mail, after the greeting.
    pub(crate) by_mail: Vec<u8>,
}

pub(crate) struct Toy {
    me: WorkerId,
    plan: Plan,
    tell: Sender<Seen>,
    backlog_max: Arc<Mutex<usize>>,
    /// The other end of a relay; for an echo, the connection itself.
    other: HashMap<ConnId, ConnId>,
    received: HashMap<ConnId, usize>,
    /// Clients that wait for their upstream, with the bytes that they have sent already.
    waiting: HashMap<ConnId, Vec<u8>>,
}

impl Toy {
    fn say(&self, seen: Seen) {
        let _ = self.tell.send(seen);
    }

    fn pass(&mut self, d: &mut impl Driver, from: ConnId, to: ConnId, bytes: &[u8]) {
        d.send(to, bytes);
        let backlog = d.backlog(to);
        let mut highest = self.backlog_max.lock().unwrap();
        *highest = highest.max(backlog);
        if backlog > TOY_BACKLOG_MAX_BYTES {
            d.pause_reads(from);
        }
    }

    fn begin(&mut self, d: &mut impl Driver, conn: ConnId) {
        match self.plan.upstream.clone() {
            None => {
                self.other.insert(conn, conn);
            }
            Some(endpoint) => {
                let server = d.dial(&endpoint);
                self.other.insert(conn, server);
                self.other.insert(server, conn);
                self.waiting.insert(server, Vec::new());
            }
        }
    }

    fn ready(&mut self, d: &mut impl Driver, server: ConnId) {
        let (Some(early), Some(client)) = (self.waiting.remove(&server), self.other.get(&server).copied())
        else {
            return;
        };
        self.pass(d, client, server, &early);
    }
}

impl Engine for Toy {
    fn begin_tick(&mut self, now: Now) {
        assert!(now.mono_us > 0);
        if self.plan.tell_turns {
            self.say(Seen::Turn);
        }
    }

    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer) {
        self.say(Seen::Accepted(peer));
        if let Some(role) = self.plan.tls_accept.clone() {
            d.start_tls(conn, role, &[]);
        }
        for piece in &self.plan.greeting {
            d.send(conn, piece);
        }
        if !self.plan.by_mail.is_empty() {
            d.mail(self.me, Mail::Cancel { key: Vec::new(), from: None });
        }
        self.begin(d, conn);
    }

    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, handoff: Box<ClientHandoff>) {
        self.say(Seen::Adopted(self.me));
        self.other.insert(conn, conn);
        d.send(conn, &handoff.unread);
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        if self.plan.tell_bytes {
            self.say(Seen::Received(bytes.to_vec()));
        }
        if let Some(role) = self.plan.tls_on_first_bytes.take() {
            return d.start_tls(conn, role, bytes);
        }
        if let Some((words, mode)) = self.plan.last_words.clone() {
            d.send(conn, &words);
            return d.close(conn, mode);
        }
        if let Some((workers, after)) = self.plan.move_after {
            let total = self.received.entry(conn).or_default();
            *total += bytes.len();
            if *total > after {
                // Half is answered before the move and half after it.
                let (now, later) = bytes.split_at(bytes.len() / 2);
                d.send(conn, now);
                self.other.remove(&conn);
                self.received.remove(&conn);
                let next = WorkerId((self.me.0 + 1) % workers);
                return d.hand_over(conn, next, handoff(later.to_vec()));
            }
        }
        let Some(to) = self.other.get(&conn).copied() else { panic!("bytes from an unknown connection") };
        if let Some(early) = self.waiting.get_mut(&to) {
            early.extend_from_slice(bytes);
            return d.pause_reads(conn);
        }
        self.pass(d, conn, to, bytes);
        if self.plan.pause_always {
            d.pause_reads(conn);
        }
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        self.say(Seen::Connected(local));
        match self.plan.tls_connect.clone() {
            Some(role) => d.start_tls(conn, role, &[]),
            None => {
                self.ready(d, conn);
                d.resume_reads(self.other[&conn]);
            }
        }
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        self.say(Seen::Established(info));
        if self.waiting.contains_key(&conn) {
            self.ready(d, conn);
            d.resume_reads(self.other[&conn]);
        }
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        self.say(Seen::Drained);
        assert_eq!(d.backlog(conn), 0);
        if let Some(source) = self.other.get(&conn) {
            d.resume_reads(*source);
        }
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        self.say(Seen::Closed(why));
        assert_eq!(d.backlog(conn), 0);
        if let Some(other) = self.other.remove(&conn) {
            self.other.remove(&other);
            d.close(other, CloseMode::Flush);
        }
    }

    fn carried<D: Driver>(&mut self, _: &mut D, _: Option<ConnId>, _: Option<ConnId>, _: Box<Carried>) {}

    fn host_moved<D: Driver>(&mut self, _d: &mut D, host: &str, addresses: &[SocketAddr]) {
        panic!("no test has a name that changes, and {host} has {addresses:?}");
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.say(Seen::Mail);
        if matches!(mail, Mail::Shutdown(_)) {
            d.stop_listening();
        }
        for conn in self.other.keys() {
            d.send(*conn, &self.plan.by_mail);
            d.resume_reads(*conn);
        }
    }

    fn timeout<D: Driver>(&mut self, _: &mut D) {
        unreachable!("it never asks for one");
    }

    fn end_tick<D: Driver>(&mut self, _: &mut D) {}

    fn deadline(&self) -> Option<u64> {
        None
    }
}

pub(crate) fn handoff(unread: Vec<u8>) -> Box<ClientHandoff> {
    let peer = Peer::Unix { pid: 0, uid: 0, same_user: false, port: 0 };
    Box::new(ClientHandoff {
        serial: 1,
        origin: Origin { peer, tls: None, since: Now::default() },
        login: Login {
            database: "d".into(),
            user: "u".into(),
            params: Params::default(),
            session: pgweir_core::session::Session::default(),
            minor: 0,
            replication: Replication::None,
            options: None,
            learned: pgweir_auth::Learned::Nothing,
        },
        counted: Counted::default(),
        unread,
    })
}

/// Running workers with a toy in each.
pub(crate) struct World {
    pub(crate) workers: Option<Workers>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) seen: Receiver<Seen>,
    pub(crate) log: Receiver<(Level, String)>,
    pub(crate) backlog_max: Arc<Mutex<usize>>,
}

/// The options of a world.
pub(crate) struct World0 {
    pub(crate) workers: u16,
    pub(crate) plan: Plan,
    pub(crate) tls: TlsConfigs,
    pub(crate) listen: ListenSettings,
}

impl Default for World0 {
    fn default() -> Self {
        Self { workers: 1, plan: Plan::default(), tls: TlsConfigs::default(), listen: loopback() }
    }
}

/// TCP on loopback, on a port the kernel chooses.
pub(crate) fn loopback() -> ListenSettings {
    ListenSettings {
        standby_port: 0,
        addresses: vec!["127.0.0.1".to_owned()],
        port: 0,
        backlog: 128,
        reuse_port: false,
        unix_dir: String::new(),
        unix_mode: 0o700,
        unix_group: String::new(),
        vip: None,
        options: SocketOptions { defer_accept_s: 0, ..SocketOptions::default() },
    }
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        Self::with(World0 { plan, ..World0::default() })
    }

    pub(crate) fn with(setup: World0) -> Self {
        let listeners = open_listeners(&setup.listen, &mut Vec::new(), &|_, _| {}).unwrap();
        Self::on(listeners, setup)
    }

    pub(crate) fn on(listeners: Listeners, setup: World0) -> Self {
        let (tell, seen) = channel();
        let (logged, log) = channel();
        let (questions, _) = channel();
        let backlog_max = Arc::new(Mutex::new(0));
        let highest = Arc::clone(&backlog_max);
        let tell = Mutex::new(tell);
        let logged = Mutex::new(logged);
        let address = listeners.tcp_addresses().first().copied();
        let plan = setup.plan;
        let workers = Workers::start(Setup {
            workers: setup.workers,
            listeners,
            tls: setup.tls,
            options: setup.listen.options.clone(),
            log: Arc::new(move |level, line: &str| {
                let _ = logged.lock().unwrap().send((level, line.to_owned()));
            }),
            questions,
            surrendered: channel().0,
            machine: move |me, _now| Toy {
                me,
                plan: plan.clone(),
                tell: tell.lock().unwrap().clone(),
                backlog_max: Arc::clone(&highest),
                other: HashMap::new(),
                received: HashMap::new(),
                waiting: HashMap::new(),
            },
        })
        .unwrap();
        Self { workers: Some(workers), address, seen, log, backlog_max }
    }

    pub(crate) fn workers(&self) -> &Workers {
        self.workers.as_ref().unwrap()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        with_timeouts(TcpStream::connect(self.address.unwrap()).unwrap())
    }

    /// Waits for the next event for which `wanted` returns a value.
    pub(crate) fn await_seen<T>(&self, mut wanted: impl FnMut(Seen) -> Option<T>) -> T {
        loop {
            let seen = self.seen.recv_timeout(TIMEOUT).expect("the toy saw something");
            if let Some(found) = wanted(seen) {
                return found;
            }
        }
    }

    pub(crate) fn await_closed(&self) -> Closed {
        self.await_seen(|seen| match seen {
            Seen::Closed(why) => Some(why),
            _ => None,
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(workers) = self.workers.take() {
            workers.stop();
        }
    }
}

pub(crate) fn with_timeouts(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Returns bytes that repeat late, so that a lost or doubled piece is noticed.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Writes `bytes` from a second thread while reading as many here, in pieces.
pub(crate) fn exchange(stream: &TcpStream, bytes: &[u8]) -> Vec<u8> {
    let mut back = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| (&*stream).write_all(bytes).unwrap());
        (&*stream).read_exact(&mut back).unwrap();
    });
    back
}
