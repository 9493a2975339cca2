//! The parts that the actors of a run share: the clock, the calendar of events, the network, randomness, the
//! checks.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{Closed, ConnId, Endpoint, WorkerId};
use pgweir_core::mail::{Mail, Question};

use super::locks::Locks;
use super::plan::Plan;
use super::rng::Rng;
use super::trace::Trace;
use crate::sim::check::board::Board;
use crate::sim::check::checks::Checks;
use crate::sim::check::notify_check::NotifyCheck;
use crate::sim::model::followed::{Wal, WalEvent};
use crate::sim::model::nodes::Nodes;
use crate::sim::network::net::{Dir, End, NetBehaviour, Pipe};

/// A connection of the virtual network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LinkId(pub usize);

/// The pooler's end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolerEnd {
    /// A worker's connection.
    At(WorkerId, ConnId),
    /// The connection is moving from one worker to another.
    Moving,
    /// The connection is closed.
    Gone,
}

/// The other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerEnd {
    /// A model client, by number.
    Client(usize),
    /// A connection that carries a CancelRequest, by number.
    Canceller(usize),
    /// A server process, by number.
    Backend(usize),
    /// An administrator at the console.
    Operator,
}

/// One connection.
#[derive(Debug)]
pub struct Link {
    /// Bytes to the pooler.
    pub to_pooler: Pipe,
    /// Bytes to the peer.
    pub to_peer: Pipe,
    /// The pooler's end.
    pub pooler: PoolerEnd,
    /// The other end.
    pub peer: PeerEnd,
    /// The last time a byte moved on it.
    pub moved_us: u64,
    /// A TLS handshake took place.
    pub is_tls: bool,
    /// The times at which the pooler sent the bytes that a server has not read yet.
    pub sent: SendTimes,
}

/// The times at which the pooler sent the bytes of a connection.
#[derive(Default, Debug)]
pub struct SendTimes {
    bytes: u64,
    /// The parts: the end of each in the stream, and the time at which it was sent.
    parts: VecDeque<(u64, u64)>,
}

impl SendTimes {
    /// Notes that this number of bytes was sent.
    pub fn add(&mut self, bytes: usize, now_us: u64) {
        self.bytes += bytes as u64;
        self.parts.push_back((self.bytes, now_us));
    }

    /// Returns the time at which the byte at this place of the stream was sent, and forgets earlier ones.
    /// `None` if it was not sent.
    pub fn take(&mut self, at: u64) -> Option<u64> {
        while self.parts.front().is_some_and(|(end, _)| *end <= at) {
            self.parts.pop_front();
        }
        self.parts.front().map(|(_, sent_us)| *sent_us)
    }
}

/// The action for which a client wakes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientTimer {
    /// The client connects.
    Begin,
    /// The client sends its next step, if it still is at this one.
    Step(usize),
    /// The next piece of what it writes.
    Write,
    /// The client, being slow, reads again.
    Read,
    /// The client asks for a cancel, if it still is at this step.
    Cancel(usize),
    /// The client vanishes.
    Vanish,
}

/// An event in the calendar.
pub enum Event {
    /// A segment arrives.
    Arrive(LinkId, Dir),
    /// A sender that waited has room again.
    Room(LinkId, Dir),
    /// A worker's turn.
    Tick(WorkerId),
    /// A worker's deadline.
    Deadline(WorkerId),
    /// A peer's connection reaches the listener.
    Accept(LinkId),
    /// A dialed connection is up, or is not.
    Dialed(WorkerId, ConnId, Endpoint),
    /// A client's connection reaches another worker.
    Adopt {
        /// The receiving worker.
        to: WorkerId,
        /// The connection and what belongs to it.
        transfer: Box<Moving>,
    },
    /// A message between workers arrives.
    Mail {
        /// The receiver.
        to: WorkerId,
        /// The sending worker.
        from: WorkerId,
    },
    /// A TLS handshake is over.
    TlsDone(WorkerId, ConnId),
    /// A server process wakes up; the number tells stale alarms.
    Backend(usize, u64),
    /// An advisory lock was given up, which other processes may wait for.
    Unlocked,
    /// A notification was committed: the listeners are signalled.
    Notified,
    /// The signal reaches a server process.
    Signalled(usize),
    /// A server process meets its outcome.
    Outcome(usize),
    /// A cancel request takes effect.
    CancelFires(usize),
    /// A client wakes up.
    Client(usize, ClientTimer),
    /// The operator wakes up.
    Operator,
    /// The control plane answers what was asked first.
    Answer,
    /// The pooler no longer waits for a peer to take its last words.
    GiveUp(WorkerId, ConnId),
    /// Time to look for forgotten waiters.
    Probe,
    /// The next event of the cluster's nodes is due.
    Nodes,
    /// The source of the cluster says something, or does not.
    Source,
    /// Something happens to the log of the followed server.
    Wal(WalEvent),
}

/// A connection between two workers.
pub struct Moving {
    /// The connection.
    pub link: LinkId,
    /// Queued bytes.
    pub out: Vec<u8>,
    /// The state that the machine sends along.
    pub handoff: Box<ClientHandoff>,
}

struct Entry {
    at_us: u64,
    serial: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.serial) == (other.at_us, other.serial)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.serial).cmp(&(other.at_us, other.serial))
    }
}

/// See the module's head.
pub struct SimContext {
    /// Virtual time; begins at [`START_US`].
    pub now_us: u64,
    /// The run's configuration and scripts.
    pub plan: Rc<Plan>,
    /// The random numbers of the run.
    pub rng: Rng,
    /// The invariants.
    pub checks: Checks,
    /// The nodes of the servers' cluster, if they are in one.
    pub nodes: Option<Nodes>,
    /// The value that all clients change and read with the same texts; `None` if the pooler has no query cache.
    pub board: Option<Board>,
    /// The log of the server, if the pooler follows its changes. Then there is no board.
    pub wal: Option<Box<Wal>>,
    /// Advisory locks.
    pub locks: Locks,
    /// Notifications.
    pub notify_check: NotifyCheck,
    /// The trace of the run.
    pub trace: Trace,
    /// Mail on its way, by pair of workers (receiver, sender).
    pub mailbags: Vec<((WorkerId, WorkerId), VecDeque<Mail>)>,
    /// The questions that the control plane has not answered yet.
    pub questions: VecDeque<Question>,
    calendar: BinaryHeap<Reverse<Entry>>,
    serial: u64,
    links: Vec<Link>,
    /// A running hash of all events: two runs of a seed must agree.
    digest: u64,
}

/// The virtual clock's beginning; not 0, as no monotonic clock of a running machine is.
pub const START_US: u64 = 1_000_000_000;

impl SimContext {
    /// An empty world.
    #[must_use]
    pub fn new(plan: Rc<Plan>, rng: Rng, trace: Trace) -> Self {
        SimContext {
            now_us: START_US,
            checks: Checks::new(Rc::clone(&plan)),
            nodes: plan.cluster.as_ref().map(|cluster| Nodes::new(cluster, plan.seed, START_US)),
            board: plan
                .cache
                .filter(|cache| cache.follow.is_none())
                .map(|cache| Board::new(cache.ttl_ms * 1_000)),
            wal: plan.follow().map(|follow| Box::new(Wal::new(follow, plan.seed, START_US))),
            plan,
            rng,
            locks: Locks::default(),
            notify_check: NotifyCheck::default(),
            trace,
            mailbags: Vec::new(),
            questions: VecDeque::new(),
            calendar: BinaryHeap::new(),
            serial: 0,
            links: Vec::new(),
            digest: 0,
        }
    }

    /// Puts an event into the calendar, `in_us` from now. Events of the same time happen in the order they were put.
    pub fn after(&mut self, in_us: u64, event: Event) {
        self.at(self.now_us + in_us, event);
    }

    /// Puts an event into the calendar.
    pub fn at(&mut self, at_us: u64, event: Event) {
        self.serial += 1;
        self.calendar.push(Reverse(Entry { at_us: at_us.max(self.now_us), serial: self.serial, event }));
    }

    /// Lets something happen to the log of the followed server, if there is one, and puts what follows from it into the calendar.
    pub fn in_wal<R>(&mut self, act: impl FnOnce(&mut Wal, &mut Rng) -> R) -> Option<R> {
        let wal = self.wal.as_mut()?;
        let result = act(wal, &mut self.rng);
        let due = std::mem::take(&mut wal.due);
        due.into_iter().for_each(|(in_us, event)| self.after(in_us, Event::Wal(event)));
        Some(result)
    }

    /// Takes the next event and moves the clock to it.
    pub fn next_event(&mut self) -> Option<Event> {
        let Reverse(entry) = self.calendar.pop()?;
        self.now_us = entry.at_us;
        self.digest = (self.digest ^ entry.at_us ^ (entry.serial << 40)).wrapping_mul(0x0100_0000_01b3);
        Some(entry.event)
    }

    /// Hash of everything that has happened.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Notes a line of the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.trace.note(self.now_us, line);
    }

    /// Counts something that happened, for the report.
    pub fn count(&mut self, what: &'static str) {
        self.checks.count(what, 1);
    }

    /// Notes a violated invariant. The first one counts.
    pub fn fail(&mut self, check: &'static str, text: String) {
        self.note(|| format!("VIOLATION {check}: {text}"));
        self.checks.fail(check, text);
    }

    fn behaviour(&self) -> NetBehaviour {
        self.plan.net.clone()
    }

    /// Opens a connection.
    pub fn open_link(&mut self, pooler: PoolerEnd, peer: PeerEnd) -> LinkId {
        let behaviour = self.behaviour();
        self.links.push(Link {
            to_pooler: Pipe::new(&behaviour),
            to_peer: Pipe::new(&behaviour),
            pooler,
            peer,
            moved_us: self.now_us,
            is_tls: false,
            sent: SendTimes::default(),
        });
        LinkId(self.links.len() - 1)
    }

    /// A connection.
    #[must_use]
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0]
    }

    /// A connection, to change it.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id.0]
    }

    /// Returns the connections.
    pub fn links(&self) -> impl Iterator<Item = (LinkId, &Link)> {
        self.links.iter().enumerate().map(|(i, link)| (LinkId(i), link))
    }

    fn pipe(&mut self, id: LinkId, dir: Dir) -> &mut Pipe {
        let link = &mut self.links[id.0];
        match dir {
            Dir::ToPooler => &mut link.to_pooler,
            Dir::ToPeer => &mut link.to_peer,
        }
    }

    /// Writes into a connection; returns the number of bytes that were taken. [`Event::Room`] follows if not all.
    pub fn write(&mut self, id: LinkId, dir: Dir, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let plan = Rc::clone(&self.plan);
        let now_us = self.now_us;
        let link = &mut self.links[id.0];
        link.moved_us = now_us;
        let pipe = match dir {
            Dir::ToPooler => &mut link.to_pooler,
            Dir::ToPeer => &mut link.to_peer,
        };
        let (taken, arrivals) = pipe.write(now_us, &plan.net, &mut self.rng, bytes);
        for at_us in arrivals.into_iter().flatten() {
            self.at(at_us, Event::Arrive(id, dir));
        }
        taken
    }

    /// Reads what has arrived, up to `bytes_max`.
    pub fn read(&mut self, id: LinkId, dir: Dir, bytes_max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let sender_waits = self.pipe(id, dir).read(bytes_max, &mut bytes);
        if !bytes.is_empty() {
            self.links[id.0].moved_us = self.now_us;
        }
        if sender_waits {
            let in_us = 1 + self.rng.below(50);
            self.after(in_us, Event::Room(id, dir));
        }
        bytes
    }

    /// A segment's time has come.
    pub fn arrive(&mut self, id: LinkId, dir: Dir) {
        let (now_us, mut rng) = (self.now_us, self.rng.clone());
        self.pipe(id, dir).arrive(now_us, &mut rng);
        self.rng = rng;
        self.links[id.0].moved_us = now_us;
    }

    /// A connection is cut in between: its receiver sees the end of one direction, and the sender does not know of it.
    pub fn cut(&mut self, id: LinkId, sending: Dir) {
        let behaviour = self.behaviour();
        let (now_us, mut rng) = (self.now_us, self.rng.clone());
        let arrival = self.pipe(id, sending).close(now_us, &behaviour, &mut rng, End::Reset);
        self.rng = rng;
        if let Some(at_us) = arrival {
            self.at(at_us, Event::Arrive(id, sending));
        }
    }

    /// One side ends a connection: its own direction ends, and it no longer listens to the other.
    pub fn end(&mut self, id: LinkId, sending: Dir, end: End) {
        let behaviour = self.behaviour();
        let (now_us, mut rng) = (self.now_us, self.rng.clone());
        let arrival = self.pipe(id, sending).close(now_us, &behaviour, &mut rng, end);
        self.rng = rng;
        if let Some(at_us) = arrival {
            self.at(at_us, Event::Arrive(id, sending));
        }
        let (listening, ended_at) = match sending {
            Dir::ToPooler => (Dir::ToPeer, None),
            Dir::ToPeer => (Dir::ToPooler, Some(PoolerEnd::Gone)),
        };
        if let Some(pooler) = ended_at {
            self.links[id.0].pooler = pooler;
        }
        if self.pipe(id, listening).go_deaf() {
            self.after(1, Event::Room(id, listening));
        }
    }

    /// Returns how the pooler is told of an end.
    #[must_use]
    pub fn closed_by(end: End) -> Closed {
        match end {
            End::Fin => Closed::Eof,
            End::Reset => Closed::Broken("connection reset by peer".to_owned()),
        }
    }
}
