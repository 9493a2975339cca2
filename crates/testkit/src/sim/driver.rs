//! A worker's side of the virtual network: its table of connections, and the machine's [`Driver`].

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{
    CloseMode, Closed, ConnId, Driver, Endpoint, Level, Peer, TlsInfo, TlsRole, WorkerId,
};
use pgweir_core::mail::{Mail, Question};
use pgweir_core::stats::rare_path::RarePath;

use super::context::{Event, LinkId, Moving, PeerEnd, PoolerEnd, SimContext};
use crate::sim::model::nodes::Nodes;
use crate::sim::network::net::{Dir, End};

/// An input that waits for a worker's next turn.
pub enum Inbound {
    /// A client connected.
    Accepted(ConnId, Peer),
    /// A client from another worker.
    Adopted(ConnId, Box<ClientHandoff>),
    /// Bytes or an end may be there to read.
    Readable(ConnId),
    /// The connection has room to write.
    Writable(ConnId),
    /// The bytes that had been stuck were sent.
    Drained(ConnId),
    /// A dialed connection is up.
    Connected(ConnId),
    /// A dialed connection failed.
    DialFailed(ConnId, Closed),
    /// A TLS handshake is over.
    Secured(ConnId),
    /// Mail from another worker, or from the control plane.
    Mail(Mail),
}

impl Inbound {
    /// The connection it concerns; order is kept between events of one connection.
    #[must_use]
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            Inbound::Accepted(conn, _)
            | Inbound::Adopted(conn, _)
            | Inbound::Readable(conn)
            | Inbound::Writable(conn)
            | Inbound::Drained(conn)
            | Inbound::Connected(conn)
            | Inbound::DialFailed(conn, _)
            | Inbound::Secured(conn) => Some(*conn),
            Inbound::Mail(_) => None,
        }
    }
}

/// The side that a socket belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// An accepted connection.
    Client,
    /// A dialed connection.
    Server,
}

/// One socket of a worker.
#[derive(Debug)]
pub struct Sock {
    /// `None` while it is being dialed.
    pub link: Option<LinkId>,
    /// The side that the socket belongs to.
    pub side: Side,
    /// Queued and not taken by the network.
    pub out: Vec<u8>,
    /// `true` if bytes had to wait: then the machine is told when none are left.
    pub stuck: bool,
    /// Reads are paused.
    pub paused: bool,
    /// The machine closed it and what is queued still leaves.
    pub lingering: bool,
    /// TLS: bytes of the client's hello that have arrived, while the handshake lasts.
    pub hello: Option<usize>,
}

/// The only bytes that a client sends in a TLS handshake here. Bytes that it encrypts afterwards are plain
/// text.
pub const TLS_HELLO: [u8; 5] = [0x16, 3, 1, 0, 0];

#[derive(Default)]
struct Slot {
    generation: u32,
    sock: Option<Sock>,
}

/// One worker's sockets and what waits for its next turn.
pub struct SimWorker {
    /// The worker's number.
    pub id: WorkerId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The inputs since the worker's last turn.
    pub inbox: Vec<Inbound>,
    /// Connections with something to write at the end of the turn.
    pub dirty: Vec<ConnId>,
    /// A turn is in the calendar.
    pub tick_planned: bool,
    /// The deadline that is in the calendar.
    pub alarm_us: Option<u64>,
}

/// The time for which the driver tries to deliver the last bytes to a peer that does not read.
const LINGER_US: u64 = 5_000_000;

impl SimWorker {
    /// A worker without connections.
    #[must_use]
    pub fn new(id: WorkerId) -> Self {
        SimWorker {
            id,
            slots: Vec::new(),
            free: Vec::new(),
            inbox: Vec::new(),
            dirty: Vec::new(),
            tick_planned: false,
            alarm_us: None,
        }
    }

    /// Puts a socket into the table.
    pub fn insert(&mut self, link: Option<LinkId>, side: Side) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("few connections")
        });
        let slot = &mut self.slots[index as usize];
        slot.sock = Some(Sock {
            link,
            side,
            out: Vec::new(),
            stuck: false,
            paused: false,
            lingering: false,
            hello: None,
        });
        ConnId { index, generation: slot.generation }
    }

    /// Takes a socket out of the table; its name is dead from here on.
    pub fn remove(&mut self, conn: ConnId) -> Option<Sock> {
        let slot =
            self.slots.get_mut(conn.index as usize).filter(|slot| slot.generation == conn.generation)?;
        let sock = slot.sock.take()?;
        slot.generation += 1;
        self.free.push(conn.index);
        Some(sock)
    }

    /// A socket that the machine still knows.
    #[must_use]
    pub fn sock(&self, conn: ConnId) -> Option<&Sock> {
        self.any_sock(conn).filter(|sock| !sock.lingering)
    }

    /// Returns the socket like [`SimWorker::sock`], but mutable.
    pub fn sock_mut(&mut self, conn: ConnId) -> Option<&mut Sock> {
        self.any_sock_mut(conn).filter(|sock| !sock.lingering)
    }

    /// A socket, even one whose last words still leave.
    #[must_use]
    pub fn any_sock(&self, conn: ConnId) -> Option<&Sock> {
        let slot = self.slots.get(conn.index as usize)?;
        slot.sock.as_ref().filter(|_| slot.generation == conn.generation)
    }

    /// Returns the socket like [`SimWorker::any_sock`], but mutable.
    pub fn any_sock_mut(&mut self, conn: ConnId) -> Option<&mut Sock> {
        let slot = self.slots.get_mut(conn.index as usize)?;
        slot.sock.as_mut().filter(|_| slot.generation == conn.generation)
    }

    /// Puts something before the machine, and its turn into the calendar.
    pub fn deliver(&mut self, cx: &mut SimContext, inbound: Inbound) {
        self.inbox.push(inbound);
        self.plan_tick(cx);
    }

    /// A turn soon. A busy worker comes to it later, and finds more then.
    pub fn plan_tick(&mut self, cx: &mut SimContext) {
        if !self.tick_planned {
            self.tick_planned = true;
            let in_us = 1 + cx.rng.skewed(200);
            cx.after(in_us, Event::Tick(self.id));
        }
    }

    /// Writes what is queued for a connection, as far as the network takes it. `true` if it had been stuck and is free now.
    pub fn write_out(&mut self, cx: &mut SimContext, conn: ConnId) -> bool {
        let Some(sock) = self.any_sock_mut(conn) else { return false };
        let Some(link) = sock.link else { return false };
        let taken = cx.write(link, Dir::ToPeer, &sock.out);
        sock.out.drain(..taken);
        let was_stuck = std::mem::replace(&mut sock.stuck, !sock.out.is_empty());
        if !sock.out.is_empty() {
            return false;
        }
        if sock.lingering {
            self.remove(conn);
            cx.end(link, Dir::ToPeer, End::Fin);
            return false;
        }
        was_stuck
    }

    /// The driver has waited long enough for a peer to take its last words.
    pub fn give_up(&mut self, cx: &mut SimContext, conn: ConnId) {
        if self.any_sock(conn).is_some_and(|sock| sock.lingering)
            && let Some(Sock { link: Some(link), .. }) = self.remove(conn)
        {
            cx.end(link, Dir::ToPeer, End::Reset);
        }
    }
}

/// The simulator's [`Driver`]: one worker's own state, and the world.
pub struct SimDriver<'a> {
    /// The worker's sockets.
    pub sim_worker: &'a mut SimWorker,
    /// The shared parts of the run.
    pub cx: &'a mut SimContext,
}

/// Log lines of the machine about events that no peer sees, each with the name of its counter.
const TOLD: [(&str, &str); 23] = [
    ("was lost behind COMMIT: it was committed", "outcomes told committed"),
    ("was lost behind COMMIT: it was rolled back", "outcomes told rolled back"),
    ("was lost behind COMMIT: the outcome is unknown", "outcomes of COMMIT told unknown"),
    ("a cancel request waits until its statement is the first", "cancels held back"),
    ("a stranger's cancel request may have hit runs again", "statements run again after a cancel"),
    ("keeps its server:", "pins"),
    ("taken for self-contained left a transaction open", "broken trust without queued statements"),
    ("behind one that takes long run elsewhere", "queued statements rescued"),
    ("is the primary (epoch", "primaries found"),
    ("has begun, what is open on older ones ends", "newer timelines found"),
    ("is refused: it is an old primary", "old primaries refused"),
    ("is unsure: another node", "two primaries at a time"),
    ("closing because: the standby is down", "servers of standbys cut off"),
    ("is unsure: the source of the cluster", "claims denied by the source"),
    ("a switchover is under way", "switchovers announced"),
    ("is down", "nodes found down"),
    ("closing because: the primary has changed", "servers of an older epoch closed"),
    ("closing because: the node is not the primary", "servers cut off"),
    ("pooler error: the transaction was rolled back: the connection", "transactions told rolled back"),
    ("pooler error: the connection to the primary was lost; it is not", "outcomes told unknown"),
    ("has no primary (primary_wait)", "clients told that there is no primary"),
    ("has no usable standby (primary_wait)", "clients told that there is no standby"),
    ("closing because: the node takes no more reads", "servers of standbys ended"),
];

/// `Driver::send` passes a piece on at once if it is this large and nothing is queued before it.
const LARGE_PIECE_BYTES: usize = 16 * 1024;

impl Driver for SimDriver<'_> {
    fn reached(&mut self, path: RarePath) {
        self.cx.count(path.name());
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(sock) = self.sim_worker.sock_mut(conn) else { return };
        if let Some(link) = sock.link {
            let now_us = self.cx.now_us;
            self.cx.link_mut(link).sent.add(bytes.len(), now_us);
        }
        let mut rest = bytes;
        if let Some(link) = sock.link
            && sock.out.is_empty()
            && bytes.len() >= LARGE_PIECE_BYTES
        {
            rest = &bytes[self.cx.write(link, Dir::ToPeer, bytes)..];
            sock.stuck |= !rest.is_empty();
        }
        sock.out.extend_from_slice(rest);
        let queued = sock.out.len();
        // The machine may have paused the other side: it is told when these bytes are gone, even if the network takes them at once.
        sock.stuck |= queued > self.cx.plan.limits.backlog_bytes;
        self.cx.note(|| format!("{:?} send {conn:?} {}", self.sim_worker.id, shown(bytes)));
        self.cx.checks.saw_backlog(queued);
        if !self.sim_worker.dirty.contains(&conn) {
            self.sim_worker.dirty.push(conn);
        }
    }

    fn backlog(&self, conn: ConnId) -> usize {
        self.sim_worker.sock(conn).map_or(0, |sock| sock.out.len())
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        let conn = self.sim_worker.insert(None, Side::Server);
        let in_us = 1 + self.cx.rng.skewed(self.cx.plan.server.connect_us_max);
        self.cx.after(in_us, Event::Dialed(self.sim_worker.id, conn, endpoint.clone()));
        self.cx.note(|| format!("{:?} dial {conn:?} {endpoint:?}", self.sim_worker.id));
        self.cx.count("dials");
        conn
    }

    fn close(&mut self, conn: ConnId, mode: CloseMode) {
        let worker = self.sim_worker.id;
        let Some(sock) = self.sim_worker.sock_mut(conn) else { return };
        self.cx.note(|| format!("{worker:?} close {conn:?} {mode:?}"));
        let Some(link) = sock.link else {
            self.sim_worker.remove(conn);
            return;
        };
        if let PeerEnd::Client(client) = self.cx.link_mut(link).peer {
            let id = self.cx.plan.clients[client].id;
            self.cx.checks.may_be_cancelled(id);
        }
        let (side, now_us) = (sock.side, self.cx.now_us);
        self.cx.checks.pooler_closed(link, side, now_us);
        if mode == CloseMode::Flush && !sock.out.is_empty() {
            sock.lingering = true;
            self.cx.link_mut(link).to_pooler.go_deaf();
            self.cx.after(LINGER_US, Event::GiveUp(self.sim_worker.id, conn));
            if !self.sim_worker.dirty.contains(&conn) {
                self.sim_worker.dirty.push(conn);
            }
            return;
        }
        self.sim_worker.remove(conn);
        self.cx.end(link, Dir::ToPeer, End::Fin);
    }

    fn pause_reads(&mut self, conn: ConnId) {
        if let Some(sock) = self.sim_worker.sock_mut(conn) {
            sock.paused = true;
            self.cx.count("reads paused");
        }
    }

    fn resume_reads(&mut self, conn: ConnId) {
        if let Some(sock) = self.sim_worker.sock_mut(conn)
            && std::mem::take(&mut sock.paused)
        {
            self.sim_worker.deliver(self.cx, Inbound::Readable(conn));
        }
    }

    fn start_tls(&mut self, conn: ConnId, role: TlsRole, received: &[u8]) {
        let worker = self.sim_worker.id;
        let Some(sock) = self.sim_worker.sock_mut(conn) else { return };
        self.cx.note(|| format!("{worker:?} start_tls {conn:?} {role:?}"));
        if matches!(role, TlsRole::Accept { .. }) {
            sock.hello = Some(received.len());
        }
        if matches!(role, TlsRole::Accept { .. }) && received.len() < TLS_HELLO.len() {
            self.sim_worker.deliver(self.cx, Inbound::Readable(conn));
        } else {
            let in_us = 1 + self.cx.rng.below(2_000);
            self.cx.after(in_us, Event::TlsDone(worker, conn));
        }
    }

    fn hand_over(&mut self, conn: ConnId, to: WorkerId, handoff: Box<ClientHandoff>) {
        if self.sim_worker.sock(conn).is_none() {
            return;
        }
        let Some(Sock { link: Some(link), out, .. }) = self.sim_worker.remove(conn) else { return };
        self.cx.note(|| format!("{:?} hand over {conn:?} to {to:?}", self.sim_worker.id));
        self.cx.count("hand-overs");
        self.cx.link_mut(link).pooler = PoolerEnd::Moving;
        let in_us = 1 + self.cx.rng.skewed(500);
        self.cx.after(in_us, Event::Adopt { to, transfer: Box::new(Moving { link, out, handoff }) });
    }

    fn surrender(&mut self, _: ConnId) {
        unreachable!("no client in the simulation comes over a unix socket of our own user");
    }

    fn give_away(&mut self, _: Option<ConnId>, _: Option<ConnId>, _: Box<Carried>) {
        unreachable!("no process in the simulation takes over");
    }

    /// Clients of the simulation go on to arrive: what the machine does with late ones is looked at, too.
    fn stop_listening(&mut self) {}

    fn mail(&mut self, to: WorkerId, mail: Mail) {
        let pair = (to, self.sim_worker.id);
        let bags = &mut self.cx.mailbags;
        match bags.iter_mut().find(|(known, _)| *known == pair) {
            Some((_, bag)) => bag.push_back(mail),
            None => bags.push((pair, [mail].into())),
        }
        let in_us = 1 + self.cx.rng.skewed(500);
        self.cx.after(in_us, Event::Mail { to, from: self.sim_worker.id });
        self.cx.count("mails");
    }

    fn ask(&mut self, question: Question) {
        self.cx.note(|| format!("{:?} asks {question:?}", self.sim_worker.id));
        self.cx.questions.push_back(question);
        let in_us = 1 + self.cx.rng.skewed(5_000);
        self.cx.after(in_us, Event::Answer);
    }

    fn random(&mut self, out: &mut [u8]) {
        self.cx.rng.fill(out);
    }

    fn log(&mut self, level: Level, line: &str) {
        if let Some((_, what)) = TOLD.iter().find(|(words, _)| line.contains(words)) {
            self.cx.count(what);
        }
        self.cx.note(|| format!("{:?} log {level:?}: {line}", self.sim_worker.id));
        if let Some(wal) = &mut self.cx.wal {
            wal.hear(line);
        }
        if let Some(timeline) = Nodes::timeline_in(line) {
            let read_bytes = self.cx.links().map(|(_, link)| link.to_pooler.read_bytes()).collect();
            let now_us = self.cx.now_us;
            if let Some(nodes) = &mut self.cx.nodes {
                nodes.pooler_learns(timeline, now_us, read_bytes);
            }
        }
        let is_exact = self.cx.plan.cluster.as_ref().is_some_and(|cluster| cluster.commit_outcome == "exact");
        if is_exact && line.contains("COMMIT was sent before the number") {
            self.cx.checks.fail("with exact, COMMIT is sent when its number is known", line.to_owned());
        }
        if line.contains("a kept answer was wrong") {
            self.cx.checks.fail("a kept answer is that of a server", line.to_owned());
        }
        if line.contains("session that is not what it should be") {
            self.cx.checks.fail("a server's session is its last client's, and nothing else", line.to_owned());
        }
    }
}

/// The type TLS reports in the simulator, where it changes no byte.
#[must_use]
pub fn tls_info() -> TlsInfo {
    TlsInfo {
        description: "TLSv1.3/TLS_AES_256_GCM_SHA384".to_owned(),
        peer_names: Vec::new(),
        end_point: None,
    }
}

/// Bytes as the trace shows them.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 100;
    let head = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
    let text: String =
        head.iter().map(|&b| if (32..127).contains(&b) { char::from(b) } else { '.' }).collect();
    format!("[{} bytes] {text}", bytes.len())
}
