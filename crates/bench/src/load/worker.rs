//! A thread of the load: an event loop over its connections, and the times at which transactions begin.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::connection::{Common, Connection, Seen};
use super::mix::Random;
use super::outcome::Outcome;
use super::plan::{Pace, Plan, Protocol, Share};
use crate::processes::interrupt::Interrupt;

/// So many connections of a thread are being opened at the same time before the load begins.
const OPENING_MAX: usize = 64;
/// Clients that could not log in by then are given up.
const LOGIN_LIMIT: Duration = Duration::from_secs(60);
/// How long a client that lost its connection waits before it opens another one.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often a loop looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const EVENTS: usize = 512;

/// What all threads of a load share.
pub(super) struct Shared<'a> {
    pub(super) plan: &'a Plan,
    pub(super) interrupt: &'a Interrupt,
    /// All have logged in; the load begins.
    pub(super) start: &'a Barrier,
    /// Transactions done, for the progress line.
    pub(super) done: &'a AtomicU64,
    /// Clients that have logged in before the load began.
    pub(super) inside: &'a AtomicU64,
    /// The load is over.
    pub(super) stop: &'a AtomicBool,
}

/// A client of the load: its connection, if it has one, and what it is doing.
#[derive(Default)]
struct Client {
    connection: Option<Connection>,
    dialed: Option<Instant>,
    work: Option<Work>,
    /// Its socket is watched for room as well.
    watched_for_room: bool,
}

/// A transaction on its way.
struct Work {
    script: usize,
    /// Statement of the script that was sent last.
    step: usize,
    due: Instant,
    failed: bool,
    /// ROLLBACK was sent.
    cleaning: bool,
}

pub(super) struct Worker<'a> {
    shared: &'a Shared<'a>,
    share: Share,
    common: Common,
    epoll: Epoll,
    clients: Vec<Client>,
    /// Logged in, and without work.
    free: Vec<usize>,
    /// Arrivals that found no free client, by when they were due.
    backlog: VecDeque<Instant>,
    /// When a client does something by itself: thinks no more, or dials again.
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    next_arrival: Option<Instant>,
    random: Random,
    outcome: Outcome,
    out: Vec<u8>,
    scratch: Vec<u8>,
    measuring: bool,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, share: Share, seed: u64) -> io::Result<Self> {
        let plan = shared.plan;
        Ok(Self {
            shared,
            share,
            common: Common::new(&plan.login, plan.tls)?,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            clients: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            timers: BinaryHeap::new(),
            next_arrival: None,
            random: Random::new(seed),
            outcome: Outcome::new(plan.mix.scripts.len()),
            out: Vec::new(),
            scratch: Vec::new(),
            measuring: false,
        })
    }

    /// Logs all clients in, waits for the other threads, makes the load, leaves.
    pub(super) fn run(mut self) -> Outcome {
        if !self.plan().reconnect {
            self.log_in();
        }
        self.shared.start.wait();
        let begin = Instant::now();
        self.measure(begin);
        self.outcome.elapsed = begin.elapsed();
        let now = Instant::now();
        let due: Vec<(Instant, Option<usize>)> = self
            .clients
            .iter()
            .filter_map(|client| client.work.as_ref())
            .map(|work| (work.due, Some(work.script)))
            .chain(self.backlog.iter().map(|due| (*due, None)))
            .collect();
        for (due, script) in due {
            self.outcome.unfinished += 1;
            self.record(now.saturating_duration_since(due), script);
        }
        for connection in self.clients.into_iter().filter_map(|client| client.connection) {
            connection.leave();
        }
        self.outcome
    }

    fn plan(&self) -> &'a Plan {
        self.shared.plan
    }

    fn working(&self) -> usize {
        self.share.clients as usize
    }

    /// Opens every connection, idle ones too, a bounded number at a time.
    fn log_in(&mut self) {
        let all = self.working() + self.share.idle_clients as usize;
        let until = Instant::now() + LOGIN_LIMIT;
        let mut settled = 0;
        loop {
            let opening = self.clients.len() - settled;
            for _ in opening..OPENING_MAX.min(opening + all - self.clients.len()) {
                self.clients.push(Client::default());
                self.dial(self.clients.len() - 1);
            }
            settled = self.clients.iter().filter(|client| is_settled(client)).count();
            if settled == all || Instant::now() >= until || self.shared.interrupt.is_raised() {
                break;
            }
            self.wait(LOOK_EVERY);
        }
        for client in &mut self.clients {
            if client.connection.as_ref().is_none_or(|connection| !connection.is_in()) {
                client.connection = None;
                self.outcome.refused += 1;
            } else {
                self.shared.inside.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    fn measure(&mut self, begin: Instant) {
        let until = begin + self.plan().duration;
        self.measuring = true;
        if self.plan().reconnect {
            self.clients.resize_with(self.working(), Client::default);
        }
        match self.share.pace {
            Pace::Closed { think } => self.begin_closed(begin, think),
            Pace::Open { .. } => {
                self.free = (0..self.clients.len().min(self.working())).rev().collect();
                if !self.plan().reconnect {
                    self.free.retain(|index| self.clients[*index].connection.is_some());
                }
                self.next_arrival = Some(begin);
            }
        }
        loop {
            let now = Instant::now();
            if now >= until || self.shared.stop.load(Ordering::Relaxed) || self.shared.interrupt.is_raised() {
                return;
            }
            self.fire_timers(now);
            self.arrive(now);
            let timer = self.timers.peek().map(|Reverse((at, _))| *at);
            let next = [timer, self.next_arrival, Some(until)].into_iter().flatten().min().unwrap_or(until);
            self.wait(next.saturating_duration_since(now).min(LOOK_EVERY));
        }
    }

    /// Clients that think begin at different times, the others at once.
    fn begin_closed(&mut self, begin: Instant, think: Duration) {
        for index in 0..self.clients.len().min(self.working()) {
            if self.clients[index].connection.is_none() && !self.plan().reconnect {
                continue;
            }
            if think.is_zero() {
                self.begin(index, begin);
            } else {
                let wait = think.mul_f64(self.random.exponential().min(1.0));
                self.timers.push(Reverse((begin + wait, index)));
            }
        }
    }

    fn fire_timers(&mut self, now: Instant) {
        while let Some(Reverse((at, index))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            if self.clients[index].connection.is_none() && !self.plan().reconnect {
                self.dial(index);
            } else {
                // A generator that is late must not hide it: the transaction was due when the thought ended.
                self.begin(index, at);
            }
        }
    }

    /// Transactions whose time has come go to free clients, or wait for one.
    fn arrive(&mut self, now: Instant) {
        let Pace::Open { rate, burst } = self.share.pace else { return };
        while let Some(due) = self.next_arrival.filter(|due| *due <= now) {
            for _ in 0..burst.max(1) {
                match self.free.pop() {
                    Some(index) => {
                        let late_us = now.saturating_duration_since(due).as_micros();
                        self.outcome.lateness.record_us(u64::try_from(late_us).unwrap_or(u64::MAX));
                        self.begin(index, due);
                    }
                    None => self.backlog.push_back(due),
                }
            }
            let gap_s = self.random.exponential() * f64::from(burst.max(1)) / rate.max(1e-6);
            self.next_arrival = Some(due + Duration::from_secs_f64(gap_s.min(1e6)));
        }
    }

    /// Waits for readiness; to the fraction of a millisecond where the next arrival is that near.
    fn wait(&mut self, timeout: Duration) {
        let mut events = [EpollEvent::empty(); EVENTS];
        let whole_ms = u16::try_from(timeout.as_millis()).unwrap_or(u16::MAX);
        let milliseconds = if timeout > Duration::ZERO && timeout < Duration::from_millis(5) {
            let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            let _ = ppoll(&mut fds, Some(timeout.into()), None);
            0
        } else {
            whole_ms
        };
        let count = self.epoll.wait(&mut events, EpollTimeout::from(milliseconds)).unwrap_or(0);
        for event in &events[..count] {
            let index = usize::try_from(event.data()).expect("an index");
            if let Err(error) = self.serve(index, event.events()) {
                self.lose(index, &error);
            }
        }
    }

    fn serve(&mut self, index: usize, flags: EpollFlags) -> io::Result<()> {
        let prepare = (self.plan().protocol == Protocol::Prepared).then_some(&self.shared.plan.mix);
        let client = &mut self.clients[index];
        let Some(connection) = &mut client.connection else { return Ok(()) };
        let was_in = connection.is_in();
        if !was_in || flags.contains(EpollFlags::EPOLLOUT) {
            connection.writable(&self.common)?;
        }
        if !flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            return self.watch(index);
        }
        let prepare = prepare.filter(|_| index < self.share.clients as usize);
        let seen = connection.readable(&mut self.common, prepare)?;
        if !was_in
            && connection.is_in()
            && let Some(dialed) = client.dialed
        {
            let took_us = u64::try_from(dialed.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.outcome.connecting.record_us(took_us);
        }
        self.advance(index, &seen)?;
        self.watch(index)
    }

    /// Write interest only where something waits for room.
    fn watch(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        let Some(connection) = &client.connection else { return Ok(()) };
        let wants = connection.wants_room();
        if wants != client.watched_for_room {
            client.watched_for_room = wants;
            self.epoll.modify(connection.fd(), &mut interest(index, wants))?;
        }
        Ok(())
    }

    /// What an answer leads to.
    fn advance(&mut self, index: usize, seen: &Seen) -> io::Result<()> {
        let client = &mut self.clients[index];
        if let Some(error) = &seen.error {
            self.outcome.error(error);
            if let Some(work) = &mut client.work {
                work.failed = true;
            }
        }
        let Some(status) = seen.ready else { return Ok(()) };
        client.dialed = None;
        let Some(work) = &mut client.work else {
            if self.measuring && index < self.working() {
                self.become_free(index);
            }
            return Ok(());
        };
        let steps = self.shared.plan.mix.scripts[work.script].statements.len();
        if work.failed && status != b'I' && !work.cleaning {
            work.cleaning = true;
            return self.send_rollback(index);
        }
        if !work.failed && work.step < steps {
            return self.send_step(index);
        }
        let work = self.clients[index].work.take().expect("looked at above");
        if work.failed {
            self.outcome.failed += 1;
        } else {
            self.record(work.due.elapsed(), Some(work.script));
            self.outcome.done += 1;
            self.shared.done.fetch_add(1, Ordering::Relaxed);
        }
        if self.plan().reconnect
            && let Some(connection) = self.clients[index].connection.take()
        {
            connection.leave();
        }
        self.become_free(index);
        Ok(())
    }

    fn record(&mut self, took: Duration, script: Option<usize>) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.outcome.latency.record_us(us);
        if let Some(script) = script.filter(|_| self.outcome.by_script.len() > 1) {
            self.outcome.by_script[script].record_us(us);
        }
    }

    /// A client has nothing to do: it thinks, takes what waits, or waits for the next arrival.
    fn become_free(&mut self, index: usize) {
        match self.share.pace {
            Pace::Closed { think } if think.is_zero() => self.begin(index, Instant::now()),
            Pace::Closed { think } => {
                let until = Instant::now() + think.mul_f64(self.random.exponential());
                self.timers.push(Reverse((until, index)));
            }
            Pace::Open { .. } => match self.backlog.pop_front() {
                Some(due) => self.begin(index, due),
                None => self.free.push(index),
            },
        }
    }

    /// Begins a transaction that was due then.
    fn begin(&mut self, index: usize, due: Instant) {
        let script = self.shared.plan.mix.choose(&mut self.random);
        self.clients[index].work = Some(Work { script, step: 0, due, failed: false, cleaning: false });
        if self.clients[index].connection.is_none() {
            self.dial(index);
        } else if let Err(error) = self.send_step(index) {
            self.lose(index, &error);
        }
    }

    fn send_step(&mut self, index: usize) -> io::Result<()> {
        let (plan, client) = (self.shared.plan, &mut self.clients[index]);
        let (Some(work), Some(connection)) = (&mut client.work, &mut client.connection) else {
            return Ok(());
        };
        self.out.clear();
        let statement = &plan.mix.scripts[work.script].statements[work.step];
        statement.encode(plan.protocol, &mut self.random, &mut self.scratch, &mut self.out);
        work.step += 1;
        connection.send(&self.out)?;
        self.watch(index)
    }

    fn send_rollback(&mut self, index: usize) -> io::Result<()> {
        let Some(connection) = &mut self.clients[index].connection else { return Ok(()) };
        self.out.clear();
        pgweir_wire::frontend::encode_query(&mut self.out, b"ROLLBACK");
        connection.send(&self.out)?;
        self.watch(index)
    }

    fn dial(&mut self, index: usize) {
        let dialed = Instant::now();
        let connection = Connection::dial(&self.common).and_then(|connection| {
            self.epoll.add(connection.fd(), interest(index, true))?;
            Ok(connection)
        });
        match connection {
            Ok(connection) => {
                let client = &mut self.clients[index];
                (client.connection, client.dialed) = (Some(connection), Some(dialed));
                client.watched_for_room = true;
            }
            Err(error) => self.lose(index, &error),
        }
    }

    /// A connection is gone, or never came: its transaction failed, and it is opened again in a moment.
    fn lose(&mut self, index: usize, error: &io::Error) {
        self.outcome.error(&error.to_string());
        let client = &mut self.clients[index];
        (client.connection, client.dialed) = (None, None);
        if client.work.take().is_some() {
            self.outcome.failed += 1;
        }
        if self.measuring && index < self.working() {
            let again = Instant::now() + AGAIN_AFTER;
            if self.plan().reconnect && matches!(self.share.pace, Pace::Open { .. }) {
                self.free.push(index);
            } else {
                self.timers.push(Reverse((again, index)));
            }
        }
    }
}

/// What a connection is watched for.
fn interest(index: usize, room: bool) -> EpollEvent {
    let room = if room { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET | room, index as u64)
}

/// Logged in with nothing to wait for, or gone.
fn is_settled(client: &Client) -> bool {
    client.connection.is_none() || client.dialed.is_none()
}
