//! A simulator that cannot fail is worth nothing: the machine, broken on purpose in one way at a time, must be caught,
//! and by the check that is meant for it.

use std::cell::Cell;
use std::net::SocketAddr;

use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::{
    CloseMode, Closed, ConnId, Driver, Endpoint, Level, Now, Peer, TlsInfo, TlsRole, WorkerId,
};
use pgweir_core::mail::{Mail, Question};
use pgweir_core::stats::rare_path::RarePath;
use pgweir_core::{Engine, Machine};
use pgweir_testkit::sim::plan::{Mode, Plan, Profile};
use pgweir_testkit::sim::report::run_seed;
use pgweir_testkit::sim::subject::Subject;
use pgweir_testkit::sim::trace::Trace;

/// One way to be wrong.
type Way = usize;

thread_local! {
    /// How the machines of this thread's world are wrong. (As a parameter of the type it would have the whole simulator compiled
    /// once for each way.)
    static WAY: Cell<Way> = const { Cell::new(SWAPS_ANSWERS) };
}

/// Sends an answer to another client.
const SWAPS_ANSWERS: Way = 0;
/// Loses an answer.
const LOSES_ANSWERS: Way = 1;
/// Sends an answer twice.
const DOUBLES_ANSWERS: Way = 2;
/// Changes one bit in the middle of an answer.
const FLIPS_BITS: Way = 3;
/// Loses what a client sent.
const LOSES_REQUESTS: Way = 4;
/// Opens more servers than the pool may have.
const OVERFILLS_POOLS: Way = 5;
/// Opens more servers than the database may have.
const OVERFILLS_DATABASES: Way = 6;
/// Lets in more clients than allowed.
const LETS_EVERYBODY_IN: Way = 7;
/// Takes a transaction for its end.
const SHARES_TRANSACTIONS: Way = 8;
/// Does not wait for the end of a cancel request.
const FORGETS_CANCELS: Way = 9;
/// Hands servers out only now and then.
const HANDS_OUT_LATE: Way = 10;
/// Does not slow down the side that is too fast.
const NEVER_PAUSES: Way = 11;
/// Does not close the servers of clients that are gone.
const NEVER_CLOSES_SERVERS: Way = 12;
/// Does not clean a session before the next client gets it.
const NEVER_RESETS: Way = 13;
/// Disconnects clients for no reason.
const DROPS_CLIENTS: Way = 14;
/// Replaces each server after one use.
const WASTES_SERVERS: Way = 15;
/// Panics.
const PANICS: Way = 16;

/// The machine, broken.
struct Mutant {
    way: Way,
    machine: Machine,
    mischief: Mischief,
}

/// What a mutant remembers.
#[derive(Default)]
struct Mischief {
    calls: u64,
    clients: Vec<ConnId>,
    /// Connections that carry a cancel request to a server.
    cancels: Vec<ConnId>,
}

impl Mischief {
    /// Every so often.
    fn every(&mut self, times: u64) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(times)
    }
}

/// The driver, as a broken machine uses it.
struct Bent<'a, D: Driver> {
    way: Way,
    d: &'a mut D,
    mischief: &'a mut Mischief,
}

impl<D: Driver> Driver for Bent<'_, D> {
    fn reached(&mut self, path: RarePath) {
        self.d.reached(path);
    }

    fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        let to_client = self.mischief.clients.contains(&conn);
        match self.way {
            SWAPS_ANSWERS if to_client && self.mischief.every(40) => {
                let other = self.mischief.clients.iter().copied().find(|&other| other != conn);
                self.d.send(other.unwrap_or(conn), bytes);
            }
            LOSES_ANSWERS if to_client && self.mischief.every(40) => {}
            DOUBLES_ANSWERS if to_client && self.mischief.every(40) => {
                self.d.send(conn, bytes);
                self.d.send(conn, bytes);
            }
            FLIPS_BITS if to_client && bytes.len() > 200 && self.mischief.every(10) => {
                let mut bytes = bytes.to_vec();
                bytes[150] ^= 1;
                self.d.send(conn, &bytes);
            }
            FORGETS_CANCELS if bytes.len() >= 16 && bytes[4..8] == [4, 210, 22, 46] => {
                self.mischief.cancels.push(conn);
                self.d.send(conn, bytes);
            }
            PANICS if to_client && self.mischief.every(40) => panic!("as told"),
            _ => self.d.send(conn, bytes),
        }
    }

    fn backlog(&self, conn: ConnId) -> usize {
        if self.way == NEVER_PAUSES { 0 } else { self.d.backlog(conn) }
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        self.d.dial(endpoint)
    }

    fn close(&mut self, conn: ConnId, mode: CloseMode) {
        let is_client = self.mischief.clients.contains(&conn);
        self.mischief.clients.retain(|&client| client != conn);
        if self.way == NEVER_CLOSES_SERVERS && !is_client {
            return;
        }
        let sent = self.mischief.cancels.contains(&conn);
        self.d.close(conn, if sent { CloseMode::Flush } else { mode });
    }

    fn pause_reads(&mut self, conn: ConnId) {
        self.d.pause_reads(conn);
    }

    fn resume_reads(&mut self, conn: ConnId) {
        self.d.resume_reads(conn);
    }

    fn start_tls(&mut self, conn: ConnId, role: TlsRole, received: &[u8]) {
        self.d.start_tls(conn, role, received);
    }

    fn hand_over(&mut self, conn: ConnId, to: WorkerId, handoff: Box<ClientHandoff>) {
        self.mischief.clients.retain(|&client| client != conn);
        self.d.hand_over(conn, to, handoff);
    }

    fn surrender(&mut self, conn: ConnId) {
        self.d.surrender(conn);
    }

    fn give_away(&mut self, client: Option<ConnId>, server: Option<ConnId>, carried: Box<Carried>) {
        self.d.give_away(client, server, carried);
    }

    fn stop_listening(&mut self) {
        self.d.stop_listening();
    }

    fn mail(&mut self, to: WorkerId, mail: Mail) {
        self.d.mail(to, mail);
    }

    fn ask(&mut self, question: Question) {
        self.d.ask(question);
    }

    fn random(&mut self, out: &mut [u8]) {
        self.d.random(out);
    }

    fn log(&mut self, level: Level, line: &str) {
        self.d.log(level, line);
    }
}

impl Mutant {
    fn bend<D: Driver>(&mut self, d: &mut D, verb: impl FnOnce(&mut Machine, &mut Bent<'_, D>)) {
        verb(&mut self.machine, &mut Bent { way: self.way, d, mischief: &mut self.mischief });
    }

    fn told<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        self.bend(d, |machine, d| machine.received(d, conn, bytes));
    }
}

impl Subject for Mutant {
    type Shared = <Machine as Subject>::Shared;

    fn profile() -> Profile {
        let profile = <Machine as Subject>::profile();
        match WAY.get() {
            NEVER_RESETS => {
                Profile { modes: &[Mode::Session], bears_faults: false, has_console: false, ..profile }
            }
            SHARES_TRANSACTIONS => Profile { modes: &[Mode::Transaction], bears_faults: false, ..profile },
            _ => Profile { bears_faults: false, has_timeouts: false, has_console: false, ..profile },
        }
    }

    fn shared(plan: &Plan) -> Self::Shared {
        let mut told = plan.clone();
        match WAY.get() {
            OVERFILLS_POOLS => told.pool_size += 2,
            OVERFILLS_DATABASES => told.max_db_connections = 0,
            LETS_EVERYBODY_IN => told.max_client_conn += 3,
            NEVER_RESETS => told.reset_query = "",
            WASTES_SERVERS => told.timeouts.server_lifetime_s = 1,
            _ => {}
        }
        <Machine as Subject>::shared(&told)
    }

    fn start(plan: &Plan, shared: &Self::Shared, worker: WorkerId, now: Now) -> Self {
        let machine = <Machine as Subject>::start(plan, shared, worker, now);
        Mutant { way: WAY.get(), machine, mischief: Mischief::default() }
    }

    fn answer(plan: &Plan, shared: &Self::Shared, question: Question) -> Vec<(WorkerId, Mail)> {
        <Machine as Subject>::answer(plan, shared, question)
    }
}

impl Engine for Mutant {
    fn begin_tick(&mut self, now: Now) {
        self.machine.begin_tick(now);
    }

    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer) {
        self.mischief.clients.push(conn);
        self.bend(d, |machine, d| machine.accepted(d, conn, peer));
    }

    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, handoff: Box<ClientHandoff>) {
        self.mischief.clients.push(conn);
        self.bend(d, |machine, d| machine.adopted(d, conn, handoff));
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        let from_client = self.mischief.clients.contains(&conn);
        match self.way {
            LOSES_REQUESTS if from_client && self.mischief.every(20) => {}
            SHARES_TRANSACTIONS if !from_client => {
                let mut bytes = bytes.to_vec();
                if let Some(bytes) = bytes.last_chunk_mut::<6>()
                    && *bytes == *b"Z\0\0\0\x05T"
                {
                    bytes[5] = b'I';
                }
                self.told(d, conn, &bytes);
            }
            DROPS_CLIENTS if from_client && self.mischief.every(50) => {
                d.close(conn, CloseMode::Now);
                self.bend(d, |machine, d| machine.closed(d, conn, Closed::Eof));
            }
            _ => self.told(d, conn, bytes),
        }
    }

    fn host_moved<D: Driver>(&mut self, d: &mut D, host: &str, addresses: &[SocketAddr]) {
        self.bend(d, |machine, d| machine.host_moved(d, host, addresses));
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        self.bend(d, |machine, d| machine.connected(d, conn, local));
        if self.mischief.cancels.contains(&conn) {
            self.bend(d, |machine, d| machine.closed(d, conn, Closed::Eof));
            self.mischief.cancels.clear();
        }
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        self.bend(d, |machine, d| machine.tls_established(d, conn, info));
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        self.bend(d, |machine, d| machine.drained(d, conn));
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        self.mischief.clients.retain(|&client| client != conn);
        self.bend(d, |machine, d| machine.closed(d, conn, why));
    }

    fn carried<D: Driver>(
        &mut self,
        d: &mut D,
        client: Option<ConnId>,
        server: Option<ConnId>,
        carried: Box<Carried>,
    ) {
        self.bend(d, |machine, d| machine.carried(d, client, server, carried));
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.bend(d, |machine, d| machine.mail(d, mail));
    }

    fn timeout<D: Driver>(&mut self, d: &mut D) {
        self.bend(d, |machine, d| machine.timeout(d));
        if self.way == HANDS_OUT_LATE {
            self.bend(d, |machine, d| machine.end_tick(d));
        }
    }

    fn end_tick<D: Driver>(&mut self, d: &mut D) {
        if self.way != HANDS_OUT_LATE {
            self.bend(d, |machine, d| machine.end_tick(d));
        }
    }

    fn deadline(&self) -> Option<u64> {
        self.machine.deadline()
    }
}

/// Seeds a mutant may need until it is caught.
const SEEDS: u64 = 1500;

/// The mutant is caught within [`SEEDS`] seeds by this check.
fn is_caught(way: Way, check: &str) {
    WAY.set(way);
    let mut others: Vec<String> = Vec::new();
    for seed in 1..=SEEDS {
        match run_seed::<Mutant>(seed, &Trace::off()).violation {
            Some(violation) if violation.check == check => return,
            Some(violation) => others.push(format!("{seed}: {}", violation.check)),
            None => {}
        }
    }
    panic!("not caught by \"{check}\" in {SEEDS} seeds; caught by {others:?}");
}

const ANSWERS: &str = "every client gets exactly its own answers, in order";

#[test]
fn wrong_answers() {
    is_caught(SWAPS_ANSWERS, ANSWERS);
    is_caught(LOSES_ANSWERS, ANSWERS);
    is_caught(DOUBLES_ANSWERS, ANSWERS);
    is_caught(FLIPS_BITS, ANSWERS);
}

#[test]
fn lost_requests() {
    is_caught(LOSES_REQUESTS, "no client is forgotten");
}

#[test]
fn broken_limits() {
    is_caught(OVERFILLS_POOLS, "pool_size");
    is_caught(OVERFILLS_DATABASES, "max_db_connections");
    is_caught(LETS_EVERYBODY_IN, "max_client_conn");
}

#[test]
fn shared_transactions() {
    is_caught(SHARES_TRANSACTIONS, "a server is not shared inside a transaction");
}

#[test]
fn strayed_cancels() {
    is_caught(FORGETS_CANCELS, "a cancel hits only its target");
}

#[test]
fn waiters_that_only_a_timer_finds() {
    is_caught(HANDS_OUT_LATE, "no waiter is forgotten while a server idles");
}

#[test]
fn unbounded_queues() {
    is_caught(NEVER_PAUSES, "back-pressure");
}

#[test]
fn connections_left_over() {
    is_caught(NEVER_CLOSES_SERVERS, "no connection is left over");
}

#[test]
fn leaking_sessions() {
    is_caught(NEVER_RESETS, ANSWERS);
}

#[test]
fn clients_without_luck() {
    is_caught(DROPS_CLIENTS, "no client is disconnected without a reason");
}

#[test]
fn wasted_servers() {
    is_caught(WASTES_SERVERS, "a client that vanishes costs at most one server");
}

#[test]
fn panics() {
    is_caught(PANICS, "the machine never panics");
}
