//! The event loop of one worker, one turn at a time: wait, read, let the machine work, write.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use mio::{Events, Poll};
use pgweir_core::driver::{Closed, ConnId, Level, Now};
use pgweir_settings::WorkerScheduling;
use socket2::Socket;

use crate::clock::Clock;
use crate::connection::conn::{Conn, Origin};
use crate::connection::dial::Outcome;
use crate::connection::table::{Source, State, source};
use crate::connection::uring_batch::UringBatch;
use crate::listening::accept::Acceptor;
use crate::options::SocketOptions;
use crate::scheduling::{Policy, PollPermit, PollPermits, Scheduling, Work};
use crate::sys;
use crate::worker::io::{Io, Report};
use crate::worker::mesh::{Arrival, ClientTransfer, NetCommand, WorkerMessage};
use crate::worker::workers::WorkerLoad;
use pgweir_core::Engine;

/// The number of events that are taken from the kernel at a time.
const EVENTS_PER_POLL: usize = 1024;

/// The time for which the wall clock is assumed to advance like the monotonic clock (it may be set).
const WALL_CHECK_US: u64 = 100_000;

/// A worker: the machine, its sockets, and the loop that connects them.
pub(crate) struct Worker<E> {
    pub(crate) engine: E,
    pub(crate) io: Io,
    pub(crate) acceptor: Acceptor,
    /// The buffer for reading from sockets.
    pub(crate) buffer: Box<[u8]>,
    /// The buffer for decrypted bytes.
    pub(crate) plain: Vec<u8>,
    /// The ready list of the last turn, emptied and kept for its allocation.
    pub(crate) spare_list: Vec<ConnId>,
    clock: Clock,
    poll: Poll,
    messages: Receiver<WorkerMessage>,
    load: Arc<WorkerLoad>,
    /// The scheduling of this worker; `None` if the settings, or the policy that the process was started
    /// with, leave no choice.
    scheduling: Option<Scheduling>,
    /// The permit to poll before sleeping; `None` while the worker does not poll.
    poll_permit: Option<PollPermit>,
    poll_permits: Arc<PollPermits>,
    work: Work,
    /// The time at which the clock was last read (monotonic, µs): the end of the last turn or later.
    looked_us: u64,
    /// The difference between the wall clock and the monotonic clock, and the time of the next comparison
    /// (monotonic, µs).
    wall_offset_us: u64,
    wall_due_us: u64,
}

/// The parts of a worker beside the machine.
pub(crate) struct WorkerParts {
    pub(crate) io: Io,
    pub(crate) acceptor: Acceptor,
    pub(crate) clock: Clock,
    pub(crate) poll: Poll,
    pub(crate) messages: Receiver<WorkerMessage>,
    pub(crate) load: Arc<WorkerLoad>,
    pub(crate) poll_permits: Arc<PollPermits>,
}

/// The continuation after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Turn,
    Stop,
}

impl<E: Engine> Worker<E> {
    pub(crate) fn new(engine: E, parts: WorkerParts) -> Self {
        Self {
            engine,
            io: parts.io,
            acceptor: parts.acceptor,
            buffer: vec![0; crate::connection::read::READ_BUFFER_BYTES].into_boxed_slice(),
            plain: Vec::new(),
            spare_list: Vec::new(),
            clock: parts.clock,
            poll: parts.poll,
            messages: parts.messages,
            load: parts.load,
            scheduling: None,
            poll_permit: None,
            poll_permits: parts.poll_permits,
            work: Work::default(),
            looked_us: 0,
            wall_offset_us: 0,
            wall_due_us: 0,
        }
    }

    /// Runs turns until a command stops the worker, or the poll fails.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_POLL);
        self.begin_scheduling();
        self.begin_uring_batch();
        self.looked_us = self.clock.mono_us();
        loop {
            if !self.busy_poll(&mut events)? {
                let timeout = self.timeout();
                self.poll(&mut events, timeout)?;
            }
            if self.turn(&events) == Next::Stop {
                return Ok(());
            }
        }
    }

    fn poll(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(events, timeout) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(()),
        }
    }

    /// Polls for a moment instead of sleeping, with few clients; see [`crate::scheduling`]. Returns `true` if
    /// an event has come.
    fn busy_poll(&mut self, events: &mut Events) -> io::Result<bool> {
        if self.poll_permit.is_none() || self.has_work() {
            return Ok(false);
        }
        let began_us = self.looked_us;
        let last_us = began_us + self.io.options.busy_poll_us;
        let until_us = self.due_us().unwrap_or(u64::MAX).min(last_us);
        loop {
            self.poll(events, Some(Duration::ZERO))?;
            self.looked_us = self.clock.mono_us();
            if !events.is_empty() || self.looked_us >= until_us {
                break;
            }
            // Other threads that want this processor get it first.
            thread::yield_now();
        }
        let polled_us = self.looked_us - began_us;
        self.work.polled_us += polled_us;
        self.work.found_us += if !events.is_empty() && self.looked_us <= last_us { polled_us } else { 0 };
        self.load.busy_poll_us.store(self.work.polled_us, Ordering::Relaxed);
        Ok(!events.is_empty())
    }

    fn turn(&mut self, events: &Events) -> Next {
        let now = self.now();
        self.io.now_us = now.mono_us;
        self.engine.begin_tick(now);
        let mut next = Next::Turn;
        for event in events {
            match source(event.token()) {
                Source::Waker => next = self.read_messages(),
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
        // The log comes before the writes: a client that gets an error can read its reason there at once.
        self.io.settle_log();
        self.io.flush_dirty();
        self.io.mesh.wake();
        self.end_turn(now.mono_us);
        next
    }

    /// Returns the time at which a turn begins. The wall clock is read now and then; in between it advances
    /// like the monotonic clock.
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
        self.looked_us = self.clock.mono_us();
        self.work.busy_us += self.looked_us - began_us;
        self.work.turns += 1;
        self.load.busy_us.store(self.work.busy_us, Ordering::Relaxed);
        self.load.turns.store(self.work.turns, Ordering::Relaxed);
        self.load.batched_sends.store(self.io.batched_sends, Ordering::Relaxed);
        self.load.connections.store(self.io.table.len() as u64, Ordering::Relaxed);
        if self.scheduling.as_ref().is_some_and(|scheduling| scheduling.is_due(self.looked_us)) {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        let clients = self.io.end_window();
        let Some(scheduling) = &mut self.scheduling else { return };
        let policy = scheduling.window_ends(self.looked_us, self.work, clients);
        if !scheduling.polls() {
            self.poll_permit = None;
        } else if self.poll_permit.is_none() {
            self.poll_permit = PollPermits::take(&self.poll_permits);
        }
        if policy.is_some_and(|policy| sys::set_policy(policy).is_err()) {
            // A sandbox forbids the call, so the worker does without batch mode.
            self.scheduling = self.scheduling_of(false);
        }
    }

    /// Applies a change of `worker_scheduling` or `worker_busy_poll_us`.
    fn change_scheduling(&mut self) {
        // Only a policy that this worker has set itself is reset.
        let batches = self.scheduling.take().is_some_and(|scheduling| scheduling.policy() == Policy::Batch);
        self.poll_permit = None;
        if batches && sys::set_policy(Policy::Other).is_err() {
            return;
        }
        self.begin_scheduling();
    }

    fn begin_scheduling(&mut self) {
        let may_batch = self.io.options.scheduling == WorkerScheduling::Auto;
        self.scheduling = if sys::is_scheduled_by_default() { self.scheduling_of(may_batch) } else { None };
    }

    /// Sets up the batch that sends a turn's messages together, if the setting and the kernel allow it.
    fn begin_uring_batch(&mut self) {
        let uring_batch =
            if self.io.options.io_uring { UringBatch::new() } else { Ok(UringBatch::default()) };
        self.io.uring_batch = uring_batch.unwrap_or_else(|e| {
            let line =
                format!("io_uring cannot be used here ({}): messages are sent one by one", sys::text(&e));
            self.io.say(Level::Log, &line);
            UringBatch::default()
        });
    }

    /// Returns the scheduling for these settings; `None` if they leave no choice.
    fn scheduling_of(&self, may_batch: bool) -> Option<Scheduling> {
        let busy_poll_us = self.io.options.busy_poll_us;
        (may_batch || busy_poll_us > 0).then(|| Scheduling::new(may_batch, busy_poll_us))
    }

    fn has_work(&self) -> bool {
        self.io.has_work() || self.acceptor.has_work()
    }

    /// Returns the time of the next event that is due without input (monotonic, µs).
    fn due_us(&self) -> Option<u64> {
        [self.engine.deadline(), self.io.deadline_us(), self.acceptor.deadline_us()]
            .into_iter()
            .flatten()
            .min()
    }

    fn timeout(&self) -> Option<Duration> {
        if self.has_work() {
            return Some(Duration::ZERO);
        }
        Some(Duration::from_micros(self.due_us()?.saturating_sub(self.looked_us)))
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
                // A message of this turn made the machine send more, so the report follows when that is sent,
                // too.
                (Report::Drained, Some(State::Open(conn))) => conn.write.deep = true,
                _ => {}
            }
        }
        while let Some((id, why)) = self.io.ends.pop_front() {
            self.io.discard(id);
            self.engine.closed(&mut self.io, id, why);
        }
    }

    fn gone(&mut self, id: ConnId, why: Closed) {
        self.io.discard(id);
        self.engine.closed(&mut self.io, id, why);
    }

    fn read_messages(&mut self) -> Next {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                WorkerMessage::Mail(mail) => self.engine.mail(&mut self.io, mail),
                WorkerMessage::ClientTransfer(transfer) => self.adopt_client(*transfer),
                WorkerMessage::Arrival(arrival) => self.adopt_arrival(*arrival),
                WorkerMessage::Resolved(answer) => {
                    if let Some((host, addresses)) = self.io.resolved(*answer) {
                        self.engine.host_moved(&mut self.io, &host, &addresses);
                    }
                }
                WorkerMessage::Command(command) => {
                    if self.obey(*command) == Next::Stop {
                        return Next::Stop;
                    }
                }
            }
        }
        Next::Turn
    }

    /// Takes over a client from another worker, with its session, its queue, and its undelivered bytes.
    fn adopt_client(&mut self, transfer: ClientTransfer) {
        let ClientTransfer { conn, handoff } = transfer;
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
        self.engine.adopted(&mut self.io, id, handoff);
    }

    /// Takes over a client and a server from another process. Their sockets may have unread bytes, which the
    /// poll reports by itself.
    fn adopt_arrival(&mut self, arrival: Arrival) {
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
                let scheduling = |options: &SocketOptions| (options.scheduling, options.busy_poll_us);
                let is_other = scheduling(&options) != scheduling(&self.io.options);
                let rings_too = options.io_uring != self.io.options.io_uring;
                self.io.options = options;
                if is_other {
                    self.change_scheduling();
                }
                if rings_too {
                    self.begin_uring_batch();
                }
            }
            NetCommand::DuplicateListeners(reply) => {
                // This fails if the thread that asked has given up.
                let _ = reply.send(self.acceptor.duplicates());
            }
            NetCommand::GiveAway(successor) => {
                self.acceptor.close(&mut self.io, |_| true);
                self.io.successor = Some(successor);
            }
            NetCommand::Received => self.io.on_their_way = self.io.on_their_way.saturating_sub(1),
            NetCommand::PassBack(predecessor) => self.io.predecessor = Some(predecessor),
            NetCommand::Stop => return Next::Stop,
        }
        Next::Turn
    }
}
