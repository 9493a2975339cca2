//! A worker's sockets and lists, and the machine's requests ([`Driver`]) carried out on them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use mio::{Interest, Registry};
use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{
    CloseMode, Closed, ConnId, DoorSeen, Driver, Endpoint, Level, NamesSeen, TlsRole, WorkerId,
};
use pgweir_core::mail::{Mail, Question};
use rustls::crypto::SecureRandom;
use socket2::Socket;

use crate::connection::bulk;
use crate::connection::conn::{Conn, Origin, Tools};
use crate::connection::out::BufferPool;
use crate::connection::table::{State, Table, token};
use crate::connection::uring_batch::UringBatch;
use crate::options::SocketOptions;
use crate::resolve::Names;
use crate::sys;
use crate::takeover::{HandoverMessage, Package};
use crate::tls::TlsConfigs;
use crate::tls::stream::{SCRATCH_BYTES, TlsStream};
use crate::worker::mesh::{ClientTransfer, Mesh, WorkerMessage};
use crate::worker::workers::Log;

/// The size from which a piece is written at once, without a copy, if nothing is queued before it.
const LARGE_PIECE_BYTES: usize = 16 * 1024;

/// The size of a backlog whose end is reported by `drained`, even if the socket was never full: the machine
/// may have stopped reading because of it.
pub const DEEP_BACKLOG_BYTES: usize = 16 * 1024;

/// A report to the machine that has to wait, because the machine is the caller.
pub(crate) enum Report {
    /// The connection ended.
    Closed(Closed),
    /// The backlog was written completely.
    Drained,
}

/// A worker's sockets and lists, without the machine.
pub(crate) struct Io {
    pub(crate) me: WorkerId,
    pub(crate) registry: Registry,
    pub(crate) table: Table,
    pub(crate) pool: BufferPool,
    pub(crate) scratch: Box<[u8]>,
    /// Connections that may have something to read.
    pub(crate) ready: Vec<ConnId>,
    /// Connections with something to write.
    pub(crate) dirty: Vec<ConnId>,
    pub(crate) reports: VecDeque<(ConnId, Report)>,
    /// The ends of connections that the machine has closed and whose end it waits for.
    pub(crate) ends: VecDeque<(ConnId, Closed)>,
    /// Connections that the machine has closed, with the time at which they are dropped, ordered by time.
    pub(crate) lingering: VecDeque<(u64, ConnId)>,
    /// Unix sockets to connect to again, with the time, ordered by time.
    pub(crate) redials: VecDeque<(u64, ConnId)>,
    /// Connections that are read in large portions, with the time of the next check for a pause.
    pub(crate) bulk: VecDeque<(u64, ConnId)>,
    pub(crate) mesh: Mesh,
    pub(crate) names: Names,
    pub(crate) options: SocketOptions,
    pub(crate) tls: TlsConfigs,
    /// `true` if the machine wants no more clients over TCP; the listeners are closed before the turn ends.
    pub(crate) stop_listening: bool,
    /// The listeners, for SHOW FDS.
    pub(crate) doors: Vec<DoorSeen>,
    /// The time of this turn.
    pub(crate) now_us: u64,
    /// The number of the current window of [`crate::scheduling`]. It wraps around and skips 0, which means
    /// "none".
    pub(crate) window: u32,
    /// The number of clients that sent something in this window.
    pub(crate) window_clients: u32,
    /// The batch that sends a turn's messages together, if the kernel can.
    pub(crate) uring_batch: UringBatch,
    /// The number of messages that were sent together with others, since the worker began.
    pub(crate) batched_sends: u64,
    /// The channel for connections that the machine gives away, during an online restart.
    pub(crate) successor: Option<Arc<Sender<HandoverMessage>>>,
    /// The number of connections that were given away and that the new process has not taken yet.
    pub(crate) on_their_way: u64,
    /// The channel for keys of cancel requests that are unknown here, after an online restart.
    pub(crate) predecessor: Option<Sender<Vec<u8>>>,
    surrendered: Sender<OwnedFd>,
    questions: Sender<(WorkerId, Question)>,
    randomness: &'static dyn SecureRandom,
    log: Log,
    /// `true` if a line was logged since the log was last settled.
    has_said: Cell<bool>,
}

/// The parts of an [`Io`].
pub(crate) struct Parts {
    pub(crate) me: WorkerId,
    pub(crate) registry: Registry,
    pub(crate) mesh: Mesh,
    pub(crate) names: Names,
    pub(crate) options: SocketOptions,
    pub(crate) tls: TlsConfigs,
    pub(crate) questions: Sender<(WorkerId, Question)>,
    pub(crate) surrendered: Sender<OwnedFd>,
    pub(crate) log: Log,
}

impl Io {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            me: parts.me,
            registry: parts.registry,
            table: Table::default(),
            pool: BufferPool::default(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            ready: Vec::new(),
            dirty: Vec::new(),
            reports: VecDeque::new(),
            ends: VecDeque::new(),
            lingering: VecDeque::new(),
            redials: VecDeque::new(),
            bulk: VecDeque::new(),
            mesh: parts.mesh,
            names: parts.names,
            options: parts.options,
            tls: parts.tls,
            stop_listening: false,
            doors: Vec::new(),
            now_us: 0,
            window: 1,
            window_clients: 0,
            uring_batch: UringBatch::default(),
            batched_sends: 0,
            successor: None,
            on_their_way: 0,
            predecessor: None,
            surrendered: parts.surrendered,
            questions: parts.questions,
            randomness: rustls::crypto::aws_lc_rs::default_provider().secure_random,
            log: parts.log,
            has_said: Cell::new(false),
        }
    }

    pub(crate) fn say(&self, level: Level, line: &str) {
        self.log.write(level, line);
        self.has_said.set(true);
    }

    /// Makes logged lines readable. It is called before anything is sent or closed, so that the reason can be
    /// read in the log.
    #[inline]
    pub(crate) fn settle_log(&self) {
        if self.has_said.take() {
            self.log.settle();
        }
    }

    /// Adds a socket to the table and registers it with the poll.
    pub(crate) fn adopt_socket(&mut self, conn: Conn) -> std::io::Result<ConnId> {
        let id = self.table.insert(State::Open(conn));
        let conn = self.table.open(id).expect("just inserted");
        let watched = sys::register(&self.registry, &conn.socket, token(id), Interest::READABLE);
        if let Err(e) = watched {
            self.table.remove(id);
            return Err(e);
        }
        Ok(id)
    }

    /// Adds a connection to the list of those to read, unless it is there.
    pub(crate) fn list_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.table.any(id)
            && !std::mem::replace(&mut conn.read.listed, true)
        {
            self.ready.push(id);
        }
    }

    /// Adds a connection to the list of those to flush, unless it is there.
    pub(crate) fn list_dirty(&mut self, id: ConnId) {
        if let Some(conn) = self.table.any(id)
            && !std::mem::replace(&mut conn.write.listed, true)
        {
            self.dirty.push(id);
        }
    }

    /// Drops a connection in any state, and returns its buffers to the pool.
    pub(crate) fn discard(&mut self, id: ConnId) {
        match self.table.remove(id) {
            State::Open(conn) => conn.recycle(&mut self.pool),
            State::Lingering(lingering) => lingering.conn.recycle(&mut self.pool),
            State::Dialing(_) | State::Free => {}
        }
    }

    /// Returns the time of the driver's next event that is due without input.
    pub(crate) fn deadline_us(&self) -> Option<u64> {
        let first = |list: &VecDeque<(u64, ConnId)>| list.front().map_or(u64::MAX, |(due_us, _)| *due_us);
        let zones_us = self.names.deadline_us(self.options.dns_zone_check_us).unwrap_or(u64::MAX);
        let due_us = first(&self.lingering).min(first(&self.redials)).min(first(&self.bulk)).min(zones_us);
        (due_us < u64::MAX).then_some(due_us)
    }

    /// Returns whether the next turn has something to do already.
    pub(crate) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.dirty.is_empty() || !self.reports.is_empty() || !self.ends.is_empty()
    }

    /// Ends a window of [`crate::scheduling`]. Returns the number of clients that sent something in it.
    pub(crate) fn end_window(&mut self) -> u32 {
        self.window = self.window.wrapping_add(1).max(1);
        std::mem::take(&mut self.window_clients)
    }

    /// Removes a connection from the loop, for another process.
    fn detach(&mut self, id: ConnId) -> Option<Socket> {
        self.table.open(id)?;
        let State::Open(mut conn) = self.table.remove(id) else { return None };
        bulk::unmark(&mut conn.read, &conn.socket);
        // If this fails, the poll forgets the socket when its last owner closes it.
        let _ = sys::deregister(&self.registry, &conn.socket);
        Some(conn.socket)
    }

    fn prepare_tls(&mut self, id: ConnId, role: &TlsRole, received: &[u8]) -> Result<(), String> {
        let Some(conn) = self.table.open(id) else { return Ok(()) };
        let mut stream = TlsStream::new(&self.tls, role)?;
        stream.wire = std::mem::take(&mut conn.out);
        stream.keep_unread(received, &mut self.pool);
        stream.kicked = true;
        conn.tls = Some(Box::new(stream));
        self.list_ready(id);
        self.list_dirty(id);
        Ok(())
    }
}

impl Driver for Io {
    fn send(&mut self, id: ConnId, bytes: &[u8]) {
        let Self { table, pool, scratch, .. } = self;
        let Some(conn) = table.open(id) else { return };
        // The machine learns of the failure by a report; until then its bytes are dropped.
        if conn.write.failed.is_some() || bytes.is_empty() {
            return;
        }
        let mut rest = bytes;
        if bytes.len() >= LARGE_PIECE_BYTES && conn.backlog() == 0 && !conn.write.blocked {
            match conn.send_now(bytes, &mut Tools { pool, scratch }) {
                Ok(taken) => rest = &bytes[taken..],
                Err(e) => return self.write_failed(id, &e),
            }
            if rest.is_empty() && conn.backlog() == 0 {
                return;
            }
            conn.out.push(rest, pool);
            return self.block(id);
        }
        conn.out.push(rest, pool);
        if conn.backlog() >= DEEP_BACKLOG_BYTES {
            conn.write.deep = true;
        }
        if !conn.write.blocked && !std::mem::replace(&mut conn.write.listed, true) {
            self.dirty.push(id);
        }
    }

    fn backlog(&self, id: ConnId) -> usize {
        self.table.peek(id).map_or(0, Conn::backlog)
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        self.start_dial(endpoint)
    }

    fn remote(&self, id: ConnId) -> Option<SocketAddr> {
        self.table.peek(id)?.socket.peer_addr().ok()?.as_socket()
    }

    fn descriptor(&self, id: ConnId) -> Option<i32> {
        Some(self.table.peek(id)?.socket.as_raw_fd())
    }

    fn doors(&self) -> Vec<DoorSeen> {
        self.doors.clone()
    }

    fn send_beside(&mut self, id: ConnId, bytes: &[u8], descriptor: i32) -> bool {
        let Some(conn) = self.table.open(id) else { return false };
        // Queued bytes would arrive after the descriptor.
        let is_first = conn.backlog() == 0 && conn.tls.is_none() && conn.write.failed.is_none();
        is_first && sys::send_with_descriptor(&conn.socket, bytes, descriptor).is_ok()
    }

    fn names(&self) -> NamesSeen {
        self.names.seen(self.now_us)
    }

    fn close(&mut self, id: ConnId, mode: CloseMode) {
        match self.table.state(id) {
            Some(State::Dialing(_) | State::Open(_)) if matches!(mode, CloseMode::Confirm { .. }) => {
                self.confirm(id, mode == CloseMode::Confirm { flushes: true });
            }
            Some(State::Dialing(_)) => self.discard(id),
            Some(State::Open(_)) if mode == CloseMode::Flush => self.linger(id),
            Some(State::Open(_)) => {
                self.settle_log();
                self.discard(id);
            }
            Some(State::Lingering(_) | State::Free) | None => {}
        }
    }

    fn pause_reads(&mut self, id: ConnId) {
        if let Some(conn) = self.table.open(id) {
            conn.read.paused = true;
        }
    }

    fn resume_reads(&mut self, id: ConnId) {
        let Some(conn) = self.table.open(id) else { return };
        conn.read.paused = false;
        if conn.read.readable || conn.tls.as_ref().is_some_and(|tls| tls.has_work()) {
            self.list_ready(id);
        }
    }

    fn start_tls(&mut self, id: ConnId, role: TlsRole, received: &[u8]) {
        if let Err(text) = self.prepare_tls(id, &role, received) {
            self.reports.push_back((id, Report::Closed(Closed::Tls(text))));
        }
    }

    fn hand_over(&mut self, id: ConnId, to: WorkerId, handoff: Box<ClientHandoff>) {
        if self.table.open(id).is_none_or(|conn| conn.origin != Origin::Accepted) {
            return;
        }
        let State::Open(mut conn) = self.table.remove(id) else { return };
        bulk::unmark(&mut conn.read, &conn.socket);
        // If this fails, the old poll forgets the socket anyway when it is closed.
        let _ = sys::deregister(&self.registry, &conn.socket);
        self.mesh.post(to, WorkerMessage::ClientTransfer(Box::new(ClientTransfer { conn, handoff })));
    }

    fn surrender(&mut self, id: ConnId) {
        if let Some(socket) = self.detach(id) {
            // This fails if the process is ending and the receiver is gone.
            let _ = self.surrendered.send(socket.into());
        }
    }

    fn give_away(&mut self, client: Option<ConnId>, server: Option<ConnId>, carried: Box<Carried>) {
        let sockets: Option<Vec<Socket>> =
            [client, server].into_iter().flatten().map(|id| self.detach(id)).collect();
        let sent = self.successor.as_ref().zip(sockets);
        let from = self.me;
        let send = |(to, sockets): (&Arc<Sender<HandoverMessage>>, _)| {
            to.send(HandoverMessage::Package(Package { from, sockets, carried })).is_ok()
        };
        match sent.is_some_and(send) {
            true => self.on_their_way += 1,
            false => {
                self.say(
                    Level::Error,
                    "a connection was to be handed over and there is no process to take it",
                );
            }
        }
    }

    fn is_giving(&self) -> bool {
        self.on_their_way > 0
    }

    fn pass_back(&mut self, key: &[u8]) {
        if let Some(predecessor) = &self.predecessor
            && predecessor.send(key.to_vec()).is_err()
        {
            self.predecessor = None;
        }
    }

    fn stop_listening(&mut self) {
        self.stop_listening = true;
    }

    fn mail(&mut self, to: WorkerId, mail: Mail) {
        self.mesh.post(to, WorkerMessage::Mail(mail));
    }

    fn ask(&mut self, question: Question) {
        // This fails if the process is ending and the receiver is gone.
        let _ = self.questions.send((self.me, question));
    }

    fn random(&mut self, out: &mut [u8]) {
        self.randomness.fill(out).expect("the kernel's source of randomness does not fail once it is seeded");
    }

    fn log(&mut self, level: Level, line: &str) {
        self.say(level, line);
    }

    fn log_reaches_anybody(&self, level: Level) -> bool {
        self.log.reaches_anybody(level)
    }
}
