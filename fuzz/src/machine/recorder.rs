//! The machine's driver in a world without network: it keeps what the machine sends, and notes what it asks for.

use std::collections::VecDeque;

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{CloseMode, ConnId, Driver, Endpoint, Level, TlsRole, WorkerId};
use pgweir_core::mail::{Mail, Question};

/// Bytes the machine may have queued for one connection that does not take any. The machine stops reading the other side at
/// 256 KiB; one more read and one message of the machine may come on top.
const BACKLOG_BYTES_MAX: usize = 1024 * 1024;

/// Which end of the machine a connection is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Accepted.
    Client,
    /// Dialed.
    Server,
}

/// What the machine has asked for and what has not happened yet.
pub enum Asked {
    /// To be told that a dialed connection is up, or not.
    Dial(ConnId),
    /// A TLS handshake.
    Tls(ConnId),
    /// Mail to itself.
    Mail(Mail),
    /// A question to the control plane.
    Question(Question),
}

/// One connection.
pub struct Conn {
    /// Which end.
    pub side: Side,
    /// Neither closed by the machine nor by the peer.
    pub open: bool,
    /// Established: for a dialed connection, that the machine was told.
    pub up: bool,
    /// In a TLS handshake: nothing is delivered.
    pub in_handshake: bool,
    /// The machine does not want to read.
    pub paused: bool,
    /// What the peer sent and the machine has not read.
    pub inbound: Vec<u8>,
    /// What the machine sent, without the single bytes that answer a request for encryption.
    pub sent: Vec<u8>,
    /// How much of `sent` the peer has looked at.
    pub seen: usize,
    /// The peer does not take anything: this much is queued.
    pub stalled: Option<usize>,
}

/// The driver.
#[derive(Default)]
pub struct Recorder {
    /// All connections that ever were; a connection's index is its place.
    pub conns: Vec<Conn>,
    /// What was asked for, in order.
    pub asked: VecDeque<Asked>,
    random: u8,
}

impl Recorder {
    /// A new connection.
    pub fn insert(&mut self, side: Side) -> ConnId {
        self.conns.push(Conn {
            side,
            open: true,
            up: side == Side::Client,
            in_handshake: false,
            paused: false,
            inbound: Vec::new(),
            sent: Vec::new(),
            seen: 0,
            stalled: None,
        });
        name(self.conns.len() - 1)
    }

    /// A connection that is open.
    pub fn open(&mut self, conn: ConnId) -> Option<&mut Conn> {
        assert_eq!(conn.generation, GENERATION, "the machine made up a connection");
        let conn = self.conns.get_mut(conn.index as usize).expect("the machine made up a connection");
        conn.open.then_some(conn)
    }

    /// The open connections of one side, in order of their beginning.
    pub fn of(&self, side: Side) -> Vec<ConnId> {
        let places = self.conns.iter().enumerate().filter(|(_, conn)| conn.open && conn.side == side);
        places.map(|(place, _)| name(place)).collect()
    }
}

/// Names are not used again here, so that a late use of one is seen.
const GENERATION: u32 = 1;

fn name(place: usize) -> ConnId {
    ConnId { index: u32::try_from(place).expect("few connections"), generation: GENERATION }
}

impl Driver for Recorder {
    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(conn) = self.open(conn) else { return };
        assert!(conn.up, "bytes for a connection that is not up");
        assert!(!conn.in_handshake, "plain text into a TLS handshake");
        if conn.side == Side::Client && matches!(bytes, b"S" | b"N") {
            return;
        }
        conn.sent.extend_from_slice(bytes);
        if let Some(queued) = &mut conn.stalled {
            *queued += bytes.len();
            assert!(*queued <= BACKLOG_BYTES_MAX, "{queued} bytes are queued for a peer that reads nothing");
        }
    }

    fn backlog(&self, conn: ConnId) -> usize {
        self.conns.get(conn.index as usize).and_then(|conn| conn.stalled.filter(|_| conn.open)).unwrap_or(0)
    }

    fn dial(&mut self, _endpoint: &Endpoint) -> ConnId {
        let conn = self.insert(Side::Server);
        self.asked.push_back(Asked::Dial(conn));
        conn
    }

    fn close(&mut self, conn: ConnId, _mode: CloseMode) {
        if let Some(conn) = self.open(conn) {
            conn.open = false;
        }
    }

    fn pause_reads(&mut self, conn: ConnId) {
        if let Some(conn) = self.open(conn) {
            conn.paused = true;
        }
    }

    fn resume_reads(&mut self, conn: ConnId) {
        if let Some(conn) = self.open(conn) {
            conn.paused = false;
        }
    }

    fn start_tls(&mut self, conn: ConnId, _role: TlsRole, _received: &[u8]) {
        if let Some(open) = self.open(conn) {
            assert!(!open.in_handshake, "a TLS handshake within another");
            open.in_handshake = true;
            self.asked.push_back(Asked::Tls(conn));
        }
    }

    fn hand_over(&mut self, _conn: ConnId, to: WorkerId, _handoff: Box<ClientHandoff>) {
        panic!("handed over to {to:?}, but there is one worker");
    }

    fn surrender(&mut self, _: ConnId) {}

    fn give_away(&mut self, _: Option<ConnId>, _: Option<ConnId>, _: Box<Carried>) {}

    fn stop_listening(&mut self) {}

    fn mail(&mut self, to: WorkerId, mail: Mail) {
        assert_eq!(to, WorkerId(0), "there is one worker");
        self.asked.push_back(Asked::Mail(mail));
    }

    fn ask(&mut self, question: Question) {
        self.asked.push_back(Asked::Question(question));
    }

    fn random(&mut self, out: &mut [u8]) {
        for byte in out {
            self.random = self.random.wrapping_add(1);
            *byte = self.random;
        }
    }

    fn log(&mut self, _level: Level, line: &str) {
        assert!(!line.is_empty());
    }
}
