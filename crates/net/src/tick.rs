//! The event loop of one worker, a turn at a time: wait, read, let the machine work, write.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use mio::{Events, Poll};
use pgweir_core::driver::{Closed, ConnId, Level, Now};
use pgweir_settings::WorkerScheduling;
use socket2::Socket;

use crate::accept::Acceptor;
use crate::clock::Clock;
use crate::conn::{Conn, Origin};
use crate::dial::Outcome;
use crate::io::{Io, Report};
use crate::manners::{Manners, Way, Work};
use crate::mesh::{Arrival, Letter, NetCommand, Parcel};
use crate::sys;
use crate::table::{Source, State, source};
use crate::workers::WorkerLoad;
use pgweir_core::Engine;

/// Events taken from the kernel at a time.
const EVENTS_PER_POLL: usize = 1024;

/// So long the wall clock is taken to go as the monotonic one does (it may be set).
const WALL_CHECK_US: u64 = 100_000;

/// A worker: the machine, its sockets, and the loop that joins them.
pub(crate) struct Worker<E> {
    pub(crate) engine: E,
    pub(crate) io: Io,
    pub(crate) acceptor: Acceptor,
    /// What was read.
    pub(crate) buffer: Box<[u8]>,
    /// What was decrypted.
    pub(crate) plain: Vec<u8>,
    /// The ready list's other half, kept for its allocation.
    pub(crate) spare_list: Vec<ConnId>,
    clock: Clock,
    poll: Poll,
    letters: Receiver<Letter>,
    load: Arc<WorkerLoad>,
    /// `None` where it is not for this worker to choose: `worker_scheduling`, or whoever started the process, says so.
    manners: Option<Manners>,
    work: Work,
    /// When the last turn ended (monotonic, µs).
    ended_us: u64,
    /// What the wall clock is ahead, and when to look again (monotonic, µs).
    wall_offset_us: u64,
    wall_due_us: u64,
}

/// What a loop works with beside the machine.
pub(crate) struct Desk {
    pub(crate) io: Io,
    pub(crate) acceptor: Acceptor,
    pub(crate) clock: Clock,
    pub(crate) poll: Poll,
    pub(crate) letters: Receiver<Letter>,
    pub(crate) load: Arc<WorkerLoad>,
}

/// Whether the loop goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Turn,
    Stop,
}

impl<E: Engine> Worker<E> {
    pub(crate) fn new(engine: E, desk: Desk) -> Self {
        Self {
            engine,
            io: desk.io,
            acceptor: desk.acceptor,
            buffer: vec![0; crate::read::READ_BUFFER_BYTES].into_boxed_slice(),
            plain: Vec::new(),
            spare_list: Vec::new(),
            clock: desk.clock,
            poll: desk.poll,
            letters: desk.letters,
            load: desk.load,
            manners: None,
            work: Work::default(),
            ended_us: 0,
            wall_offset_us: 0,
            wall_due_us: 0,
        }
    }

    /// Runs until it is told to stop, or the poll fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        self.begin_manners(self.io.options.scheduling);
        self.ended_us = self.clock.mono_us();
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            if self.turn(&events) == Next::Stop {
                return Ok(());
            }
        }
    }

    fn turn(&mut self, events: &Events) -> Next {
        let now = self.now();
        self.io.now_us = now.mono_us;
        self.engine.begin_tick(now);
        let mut next = Next::Turn;
        for event in events {
            match source(event.token()) {
                Source::Waker => next = self.read_letters(),
                Source::Listener(number) => self.acceptor.mark_ready(number),
                Source::Conn(id) => self.conn_event(id, event),
            }
        }
        self.tell_reports();
        self.accept_ready();
        self.read_ready();
        self.stop_listening();
        self.io.end_lingering();
        self.io.redial();
        self.io.names.check_zones(now.mono_us, self.io.options.dns_zone_check_us);
        self.io.end_bulk();
        if self.engine.deadline().is_some_and(|due_us| due_us <= now.mono_us) {
            self.engine.timeout(&mut self.io);
        }
        self.engine.end_tick(&mut self.io);
        self.io.flush_dirty();
        self.io.mesh.wake();
        self.end_turn(now.mono_us);
        next
    }

    /// The time at which a turn begins. The wall clock is looked at now and then; in between it advances as the other.
    fn now(&mut self) -> Now {
        let mono_us = self.clock.mono_us();
        if mono_us >= self.wall_due_us {
            let now = self.clock.now();
            (self.wall_offset_us, self.wall_due_us) =
                (now.wall_us.wrapping_sub(now.mono_us), now.mono_us + WALL_CHECK_US);
        }
        Now { mono_us, wall_us: self.wall_offset_us.wrapping_add(mono_us) }
    }

    fn end_turn(&mut self, began_us: u64) {
        self.ended_us = self.clock.mono_us();
        self.work.busy_us += self.ended_us - began_us;
        self.work.turns += 1;
        self.work.bytes = self.io.read_bytes;
        self.load.busy_us.store(self.work.busy_us, Ordering::Relaxed);
        self.load.turns.store(self.work.turns, Ordering::Relaxed);
        self.load.connections.store(self.io.table.len() as u64, Ordering::Relaxed);
        if let Some(manners) = &mut self.manners
            && manners.is_due(self.ended_us)
        {
            self.work.cpu_ns = sys::thread_cpu_ns();
            if let Some(way) = manners.window_ends(self.ended_us, self.work)
                && sys::schedule(way).is_err()
            {
                // A sandbox that forbids the call: then not.
                self.manners = None;
            }
        }
    }

    /// `worker_scheduling` is another one.
    fn choose_manners(&mut self, scheduling: WorkerScheduling) {
        if scheduling == self.io.options.scheduling {
            return;
        }
        // Only what this worker asked for itself is taken back.
        let patient = self.manners.take().is_some_and(|manners| manners.way() == Way::Patient);
        if patient && sys::schedule(Way::Prompt).is_err() {
            return;
        }
        self.begin_manners(scheduling);
    }

    fn begin_manners(&mut self, scheduling: WorkerScheduling) {
        let may = scheduling == WorkerScheduling::Auto && sys::is_scheduled_by_default();
        self.manners = may.then(Manners::new);
    }

    fn timeout(&self) -> Option<Duration> {
        if self.io.has_work() || self.acceptor.has_work() {
            return Some(Duration::ZERO);
        }
        let deadlines = [self.engine.deadline(), self.io.deadline_us(), self.acceptor.deadline_us()];
        let due_us = deadlines.into_iter().flatten().min()?;
        Some(Duration::from_micros(due_us.saturating_sub(self.ended_us)))
    }

    fn conn_event(&mut self, id: ConnId, event: &mio::event::Event) {
        match self.io.table.state(id) {
            Some(State::Dialing(_)) => return self.dial_event(id),
            Some(State::Open(_) | State::Lingering(_)) => {}
            Some(State::Free) | None => return,
        }
        if event.is_writable() {
            self.io.writable(id);
        }
        let ended = event.is_read_closed() || event.is_error();
        if (event.is_readable() || ended)
            && let Some(conn) = self.io.table.any(id)
        {
            conn.read.readable = true;
            conn.read.ended |= ended;
            if !conn.read.paused {
                self.io.list_ready(id);
            }
        }
    }

    fn dial_event(&mut self, id: ConnId) {
        match self.io.dial_event(id) {
            Outcome::Up(local) => self.engine.connected(&mut self.io, id, local),
            Outcome::Failed(why) => {
                self.io.discard(id);
                self.engine.closed(&mut self.io, id, why);
            }
            Outcome::Pending => {}
        }
    }

    fn tell_reports(&mut self) {
        for _ in 0..self.io.reports.len() {
            let Some((id, report)) = self.io.reports.pop_front() else { return };
            match (report, self.io.table.state(id)) {
                (Report::Closed(why), Some(State::Open(_) | State::Dialing(_))) => self.gone(id, why),
                (Report::Drained, Some(State::Open(conn))) if conn.backlog() == 0 => {
                    self.engine.drained(&mut self.io, id);
                }
                // A letter of this turn has had more sent: it is told when that is gone, too.
                (Report::Drained, Some(State::Open(conn))) => conn.write.deep = true,
                _ => {}
            }
        }
    }

    fn gone(&mut self, id: ConnId, why: Closed) {
        self.io.discard(id);
        self.engine.closed(&mut self.io, id, why);
    }

    fn read_letters(&mut self) -> Next {
        while let Ok(letter) = self.letters.try_recv() {
            match letter {
                Letter::Mail(mail) => self.engine.mail(&mut self.io, mail),
                Letter::Parcel(parcel) => self.unpack(*parcel),
                Letter::Arrival(arrival) => self.unload(*arrival),
                Letter::Resolved(answer) => {
                    if let Some((host, addresses)) = self.io.resolved(*answer) {
                        self.engine.host_moved(&mut self.io, &host, &addresses);
                    }
                }
                Letter::Command(command) => {
                    if self.obey(*command) == Next::Stop {
                        return Next::Stop;
                    }
                }
            }
        }
        Next::Turn
    }

    /// A client comes from another worker, with its session, its queue, and what was not delivered yet.
    fn unpack(&mut self, parcel: Parcel) {
        let Parcel { conn, luggage } = parcel;
        let fresh = Conn { read: Default::default(), write: Default::default(), ..conn };
        let (ended, failed) = (conn.read.ended, conn.write.failed);
        let id = match self.io.adopt_socket(fresh) {
            Ok(id) => id,
            Err(e) => {
                let line = format!("could not take over a client from another worker: {}", sys::text(&e));
                return self.io.say(Level::Error, &line);
            }
        };
        if let Some(conn) = self.io.table.open(id) {
            conn.write.failed = failed;
            conn.write.deep = conn.backlog() > 0;
            conn.read.ended = ended;
            conn.read.readable = ended;
        }
        self.io.list_ready(id);
        self.io.list_dirty(id);
        self.engine.adopted(&mut self.io, id, luggage);
    }

    /// Another process hands something over. Its sockets were not read to the end: the poll says so by itself.
    fn unload(&mut self, arrival: Arrival) {
        let Arrival { client, server, carried } = arrival;
        let Ok(client) = self.adopt_carried(client, Origin::Accepted) else { return };
        let Ok(server) = self.adopt_carried(server, Origin::Dialed) else {
            client.into_iter().for_each(|id| self.io.discard(id));
            return;
        };
        self.engine.carried(&mut self.io, client, server, carried);
    }

    fn adopt_carried(&mut self, socket: Option<Socket>, origin: Origin) -> io::Result<Option<ConnId>> {
        let adopted = socket.map(|socket| self.io.adopt_socket(Conn::new(socket, origin))).transpose();
        if let Err(e) = &adopted {
            self.io.say(Level::Error, &format!("could not take over a connection: {}", sys::text(e)));
        }
        adopted
    }

    fn obey(&mut self, command: NetCommand) -> Next {
        match command {
            NetCommand::Tls(configs) => self.io.tls = configs,
            NetCommand::Options(options) => {
                for listener in self.acceptor.tcp_sockets() {
                    let tuned = sys::tune_tcp(listener, &options)
                        .and_then(|()| sys::set_defer_accept(listener, options.defer_accept_s));
                    if let Err(e) = tuned {
                        let line = format!("could not set socket options on a listener: {}", sys::text(&e));
                        self.io.say(Level::Warning, &line);
                    }
                }
                self.choose_manners(options.scheduling);
                self.io.options = options;
            }
            NetCommand::LendListeners(lend) => {
                // Whoever asked may have given up.
                let _ = lend.send(self.acceptor.duplicates());
            }
            NetCommand::GiveAway(successor) => {
                self.acceptor.close(&mut self.io, |_| true);
                self.io.successor = Some(successor);
            }
            NetCommand::PassBack(predecessor) => self.io.predecessor = Some(predecessor),
            NetCommand::Stop => return Next::Stop,
        }
        Next::Turn
    }
}
