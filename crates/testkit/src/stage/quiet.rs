//! A driver that costs next to nothing: bytes are gathered in buffers that keep their memory.

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{CloseMode, ConnId, Driver, Endpoint, Level, TlsRole, WorkerId};
use pgweir_core::mail::{Mail, Question};

/// A driver that records the bytes sent to each connection, and the connections dialed.
#[derive(Default)]
pub struct Quiet {
    sent: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// Connections that were dialed since this was last taken, and where to.
    pub dialed: Vec<(ConnId, Endpoint)>,
    generations: Vec<u32>,
    random: u64,
}

impl Quiet {
    /// A new connection, in a place that may have been used before.
    ///
    /// # Panics
    /// With more connections than 2^32.
    pub fn open(&mut self) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.sent.push(Vec::new());
            self.generations.push(0);
            u32::try_from(self.sent.len() - 1).expect("few connections")
        });
        ConnId { index, generation: self.generations[index as usize] }
    }

    /// Returns whether bytes were sent to a connection since they were last taken.
    pub fn has(&self, conn: ConnId) -> bool {
        !self.sent[conn.index as usize].is_empty()
    }

    /// Returns the bytes sent to a connection since they were last taken; [`Quiet::give_back`] returns the
    /// memory.
    pub fn take(&mut self, conn: ConnId) -> Vec<u8> {
        std::mem::take(&mut self.sent[conn.index as usize])
    }

    /// Makes the random numbers from here on the same as after the last call.
    pub fn rewind_random(&mut self) {
        self.random = 0;
    }

    /// See [`Quiet::take`].
    pub fn give_back(&mut self, conn: ConnId, mut buffer: Vec<u8>) {
        buffer.clear();
        self.sent[conn.index as usize] = buffer;
    }
}

impl Driver for Quiet {
    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.sent[conn.index as usize].extend_from_slice(bytes);
    }

    fn backlog(&self, _conn: ConnId) -> usize {
        0
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        let conn = self.open();
        self.dialed.push((conn, endpoint.clone()));
        conn
    }

    fn close(&mut self, conn: ConnId, _mode: CloseMode) {
        self.sent[conn.index as usize].clear();
        self.generations[conn.index as usize] += 1;
        self.free.push(conn.index);
    }

    fn pause_reads(&mut self, _conn: ConnId) {}

    fn resume_reads(&mut self, _conn: ConnId) {}

    fn start_tls(&mut self, _conn: ConnId, _role: TlsRole, _received: &[u8]) {
        unreachable!("no path here uses TLS");
    }

    fn hand_over(&mut self, _conn: ConnId, _to: WorkerId, _handoff: Box<ClientHandoff>) {
        unreachable!("there is one worker");
    }

    fn surrender(&mut self, _conn: ConnId) {
        unreachable!("no process takes over");
    }

    fn give_away(&mut self, _: Option<ConnId>, _: Option<ConnId>, _: Box<Carried>) {
        unreachable!("no process takes over");
    }

    fn stop_listening(&mut self) {}

    fn mail(&mut self, _to: WorkerId, _mail: Mail) {}

    fn ask(&mut self, _question: Question) {}

    fn random(&mut self, out: &mut [u8]) {
        for byte in out {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (self.random >> 56) as u8;
        }
    }

    fn log(&mut self, level: Level, line: &str) {
        assert!(level > Level::Warning, "the machine complains: {line}");
    }
}
