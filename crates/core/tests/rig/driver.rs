//! A driver that does nothing but remember what it was asked for.

use std::net::SocketAddr;

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{CloseMode, ConnId, Driver, Endpoint, Level, TlsRole, WorkerId};
use pgweir_core::mail::{Mail, Question};

use crate::rig::describer::Describer;

/// One connection as the driver sees it.
#[derive(Default)]
pub(crate) struct Wire {
    /// Queued by the machine and not yet taken by the peer.
    pub(crate) queued: Vec<u8>,
    /// Taken by the peer.
    pub(crate) arrived: Vec<u8>,
    /// The peer takes nothing.
    pub(crate) stuck: bool,
    /// The backlog was so deep that the machine may wait for `drained`.
    pub(crate) deep: bool,
    pub(crate) paused: bool,
    pub(crate) closed: Option<CloseMode>,
    pub(crate) tls: Option<TlsRole>,
    /// Of a server's connection.
    pub(crate) describer: Describer,
}

/// As `pgweir-net` does it: a backlog of this size is reported when it is gone.
const DEEP_BYTES: usize = 16 * 1024;

/// A worker's driver.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) wires: Vec<Wire>,
    pub(crate) dialed: Vec<(ConnId, Endpoint)>,
    pub(crate) log: Vec<(Level, String)>,
    pub(crate) asked: Vec<Question>,
    pub(crate) mails: Vec<(WorkerId, Mail)>,
    pub(crate) moved: Vec<(ConnId, WorkerId, Box<ClientHandoff>)>,
    pub(crate) given: Vec<(Option<ConnId>, Option<ConnId>, Box<Carried>)>,
    pub(crate) surrendered: Vec<ConnId>,
    pub(crate) stopped_listening: bool,
    /// The address at which servers are reached, if a test has a host with several.
    pub(crate) reached: Option<SocketAddr>,
    random: u64,
}

impl Recorder {
    pub(crate) fn open(&mut self) -> ConnId {
        self.wires.push(Wire::default());
        ConnId { index: u32::try_from(self.wires.len() - 1).expect("few connections"), generation: 0 }
    }

    pub(crate) fn wire(&mut self, conn: ConnId) -> &mut Wire {
        &mut self.wires[conn.index as usize]
    }

    /// Writes what is queued; returns connections that have sent their deep backlog.
    pub(crate) fn flush(&mut self) -> Vec<ConnId> {
        let mut drained = Vec::new();
        for (index, wire) in self.wires.iter_mut().enumerate() {
            if wire.stuck || wire.queued.is_empty() {
                continue;
            }
            wire.arrived.append(&mut wire.queued);
            if std::mem::take(&mut wire.deep) && wire.closed.is_none() {
                drained.push(ConnId { index: u32::try_from(index).expect("few"), generation: 0 });
            }
        }
        drained
    }
}

impl Driver for Recorder {
    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let wire = self.wire(conn);
        if wire.closed.is_none() {
            wire.queued.extend_from_slice(bytes);
            wire.describer.sent(bytes);
            wire.deep |= wire.stuck || wire.queued.len() >= DEEP_BYTES;
        }
    }

    fn backlog(&self, conn: ConnId) -> usize {
        self.wires[conn.index as usize].queued.len()
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        let conn = self.open();
        self.dialed.push((conn, endpoint.clone()));
        conn
    }

    fn remote(&self, _conn: ConnId) -> Option<SocketAddr> {
        self.reached
    }

    fn close(&mut self, conn: ConnId, mode: CloseMode) {
        let wire = self.wire(conn);
        assert!(wire.closed.is_none(), "a connection was closed twice");
        wire.closed = Some(mode);
        if mode == CloseMode::Now {
            wire.queued.clear();
        }
    }

    fn pause_reads(&mut self, conn: ConnId) {
        let wire = self.wire(conn);
        assert!(!wire.paused, "paused twice");
        wire.paused = true;
    }

    fn resume_reads(&mut self, conn: ConnId) {
        let wire = self.wire(conn);
        assert!(wire.paused, "resumed what was not paused");
        wire.paused = false;
    }

    fn start_tls(&mut self, conn: ConnId, role: TlsRole, _received: &[u8]) {
        self.wire(conn).tls = Some(role);
    }

    fn hand_over(&mut self, conn: ConnId, to: WorkerId, handoff: Box<ClientHandoff>) {
        self.moved.push((conn, to, handoff));
    }

    fn surrender(&mut self, conn: ConnId) {
        self.surrendered.push(conn);
    }

    fn give_away(&mut self, client: Option<ConnId>, server: Option<ConnId>, carried: Box<Carried>) {
        self.given.push((client, server, carried));
    }

    fn stop_listening(&mut self) {
        self.stopped_listening = true;
    }

    fn mail(&mut self, to: WorkerId, mail: Mail) {
        self.mails.push((to, mail));
    }

    fn ask(&mut self, question: Question) {
        self.asked.push(question);
    }

    fn random(&mut self, out: &mut [u8]) {
        for byte in out {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.random >> 56) as u8;
        }
    }

    fn log(&mut self, level: Level, line: &str) {
        self.log.push((level, line.to_owned()));
    }
}
