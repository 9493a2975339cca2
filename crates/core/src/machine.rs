//! The machine: one worker's clients, servers and pools, and the verbs by which the driver feeds it.
//!
//! Each file below owns one part of a connection's life; this one owns the data and the dispatch. Nothing here may
//! block, and nothing here knows how bytes travel.

mod actions;
mod admin;
mod admission;
mod arriving;
mod asynchronous;
mod begin;
mod cancel;
mod client_moves;
mod connect_query;
mod console_extended;
mod descriptors;
mod from_client;
mod from_server;
mod greeting;
mod handout;
mod hosts;
mod leaving;
mod login;
mod login_log;
mod lookup;
mod maintenance;
mod measure;
mod multiplex;
mod observe;
mod peering;
mod plain;
mod prepared;
mod proof;
mod reading;
mod replication;
mod report;
mod schema_version;
mod server_errors;
mod server_login;
mod server_moves;
mod session;
mod startup;
mod turned_down;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use slotmap::SlotMap;

use crate::buffer_pool::BufferPool;
use crate::cancel_key::KeyHead;
use crate::carried::Carried;
use crate::client::{Client, ClientState, Greeting};
use crate::client_handoff::{ClientHandoff, Origin};
use crate::console::command::{PendingCommand, Tasks};
use crate::driver::{Closed, ConnId, Driver, Level, Now, Peer, TlsInfo, WorkerId};
use crate::engine::Engine;
use crate::estimate::Estimates;
use crate::ids::{CancelId, ClientId, ForwardId, PoolId, ServerId};
use crate::inquiry::Answer;
use crate::mail::{Mail, Rules, Scarce, Shutdown};
use crate::params::Tracked;
use crate::pool::Pool;
use crate::readings::Readings;
use crate::server::Server;
use crate::session_checks::Watched;
use crate::shared::Shared;
use crate::snapshot::{Counters, SlowSnapshot};
use crate::statements::Statements;
use crate::stats::statements::StatementStats;
use crate::texts::Texts;
use crate::trace::Sampler;

use cancel::CancelConnection;
pub(crate) use cancel::WaitingCancel;
use maintenance::Rounds;
use peering::Peering;

/// The parts that a machine is built from.
pub struct Setup {
    /// Its number.
    pub worker: WorkerId,
    /// The configuration to begin with.
    pub rules: Rules,
    /// The state that all workers of the process share.
    pub shared: Arc<Shared>,
    /// The time.
    pub now: Now,
}

/// One worker's part of the pooler. See the module's head.
pub struct Machine {
    worker: WorkerId,
    now: Now,
    rules: Rules,
    shared: Arc<Shared>,
    tracked: Arc<Tracked>,
    roles: Vec<Option<(u32, Role)>>,
    clients: SlotMap<ClientId, Client>,
    servers: SlotMap<ServerId, Server>,
    pools: SlotMap<PoolId, Pool>,
    pool_names: HashMap<(Arc<str>, Arc<str>), PoolId>,
    cancels: SlotMap<CancelId, CancelConnection>,
    /// Cancel requests on their way to other processes.
    peering: Peering,
    /// Clients by the head of their cancel key.
    cancel_keys: HashMap<KeyHead, ClientId, foldhash::fast::FixedState>,
    statements: Statements,
    readings: Readings,
    /// Results for texts that come again.
    texts: Texts,
    /// The expected cost of statements.
    estimates: Estimates,
    /// The measured time of statements, by text.
    measured: StatementStats,
    sampler: Sampler,
    /// Statements that change sessions unseen.
    watched: Watched,
    /// The last ones that took long, the newest last.
    slow: VecDeque<SlowSnapshot>,
    /// When a client will have waited so long that an idle server is woken for it (monotonic, µs).
    wake_us: Option<u64>,
    /// Clients that were released from a server and may have sent more.
    to_resume: VecDeque<ClientId>,
    /// Answers to questions of clients that log in, to be looked at when the tick ends.
    answers: Vec<(ClientId, Answer)>,
    /// Clients that notifications wait for.
    notified: Vec<ClientId>,
    /// Pools to look at when the tick ends.
    noticed: Vec<PoolId>,
    /// For messages that are put together before they are sent.
    scratch: Vec<u8>,
    buffers: BufferPool,
    /// Clients that have logged in to the console, for SHOW STATS.
    console_logins: u64,
    activity: Activity,
    stopping: Option<Shutdown>,
    /// When that began (monotonic, µs).
    stopping_us: u64,
    /// Console commands that wait for other workers or for an event.
    commands: HashMap<u64, PendingCommand>,
    tasks: Tasks,
    tickets: u64,
    /// Workers that asked for a server to be closed when none was free.
    starving_workers: Vec<WorkerId>,
    /// The scarce places for which this worker asked other workers to close a server. It asks one worker after the other,
    /// and once at a time.
    asked_to_evict: Vec<Scarce>,
    /// The console client that began a SUSPEND: if it leaves, the SUSPEND is undone.
    suspended_by: Option<ClientId>,
    said_drained: bool,
    /// The process that this one has replaced may have more to hand over.
    awaits_arrivals: bool,
    /// Pools that our successor was told of.
    told_pools: leaving::ToldPools,
    /// When to look again whether the queued bytes have left, so that more can be handed over (monotonic, µs).
    leave_us: Option<u64>,
    rounds: Rounds,
    stats_us: u64,
    /// Counters beside those of the pools.
    counters: Counters,
    /// How a moment (seconds since 1970) is written for people; the machine knows no time zone.
    write_time: Option<WriteTime>,
}

/// See [`Machine::show_times_by`].
pub type WriteTime = Arc<dyn Fn(u64) -> String + Send + Sync>;

/// The role of a connection in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Client(ClientId),
    Server(ServerId),
    Cancel(CancelId),
    Peer(ForwardId),
}

/// PAUSE and SUSPEND without a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Activity {
    /// Servers are handed out.
    #[default]
    Active,
    /// PAUSE: no server is handed out.
    Paused,
    /// SUSPEND: nothing is read either.
    Suspended,
}

/// The result of looking at received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// This number of bytes is handled; look at the rest.
    Used(usize),
    /// The rest must wait: for more bytes, a server, an answer.
    Wait,
    /// The connection is gone, and its bytes with it.
    Gone,
}

impl Machine {
    /// From now on SHOW writes moments (seconds since 1970) by this function: as local time.
    #[must_use]
    pub fn show_times_by(mut self, write: WriteTime) -> Machine {
        self.write_time = Some(write);
        self
    }

    /// A machine without connections.
    #[must_use]
    pub fn new(setup: Setup) -> Machine {
        let extra = setup.rules.config.main.track_extra_parameters.iter().map(String::as_str);
        let tracked = Arc::new(Tracked::new(extra));
        let stats_us = setup.now.mono_us + duration_us(setup.rules.config.main.stats_period);
        let measured_bytes = measure::share_bytes(&setup.rules.config.main, &setup.shared);
        let sampler = Sampler::new(&setup.rules.config.main);
        let first_serial = first_serial(setup.shared.generation(), setup.worker);
        let awaits_arrivals = setup.shared.generation() > 0;
        Machine {
            worker: setup.worker,
            now: setup.now,
            rules: setup.rules,
            shared: setup.shared,
            tracked,
            roles: Vec::new(),
            clients: SlotMap::with_key(),
            servers: SlotMap::with_key(),
            pools: SlotMap::with_key(),
            pool_names: HashMap::new(),
            cancels: SlotMap::with_key(),
            peering: Peering::default(),
            cancel_keys: HashMap::default(),
            texts: Texts::default(),
            estimates: Estimates::default(),
            measured: StatementStats::new(measured_bytes),
            sampler,
            watched: Watched::default(),
            slow: VecDeque::new(),
            wake_us: None,
            to_resume: VecDeque::new(),
            statements: Statements::numbered_from(first_serial),
            readings: Readings::default(),
            answers: Vec::new(),
            notified: Vec::new(),
            noticed: Vec::new(),
            scratch: Vec::new(),
            buffers: BufferPool::default(),
            console_logins: 0,
            activity: Activity::Active,
            stopping: None,
            stopping_us: 0,
            commands: HashMap::new(),
            tasks: Tasks::new(),
            tickets: 0,
            starving_workers: Vec::new(),
            asked_to_evict: Vec::new(),
            suspended_by: None,
            said_drained: false,
            awaits_arrivals,
            told_pools: leaving::ToldPools::new(),
            leave_us: None,
            rounds: Rounds::from(setup.now.mono_us),
            stats_us,
            counters: Counters::default(),
            write_time: None,
        }
    }
}

impl Engine for Machine {
    fn begin_tick(&mut self, now: Now) {
        self.now = now;
    }

    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer) {
        let origin = Origin { peer, tls: None, since: self.now };
        let serial = self.shared.next_serial();
        let id = self.clients.insert(Client {
            conn,
            serial,
            state: ClientState::Greeting(Greeting::default()),
            inbox: Vec::new(),
            skip: 0,
            reads_paused: false,
            origin: Box::new(origin),
            account: None,
        });
        self.set_role(conn, Role::Client(id));
        if self.activity == Activity::Suspended {
            self.pause_client(d, id);
        }
    }

    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, handoff: Box<ClientHandoff>) {
        self.adopt(d, conn, *handoff);
    }

    fn carried<D: Driver>(
        &mut self,
        d: &mut D,
        client: Option<ConnId>,
        server: Option<ConnId>,
        carried: Box<Carried>,
    ) {
        self.arrive(d, client, server, *carried);
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        match self.role(conn) {
            Some(Role::Client(id)) => self.client_received(d, id, bytes),
            Some(Role::Server(id)) => self.server_received(d, id, bytes),
            Some(Role::Cancel(id)) => self.cancel_received(d, id, bytes),
            Some(Role::Peer(id)) => self.peer_received(d, id),
            None => {}
        }
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        match self.role(conn) {
            Some(Role::Server(id)) => self.server_connected(d, id, local),
            Some(Role::Cancel(id)) => self.cancel_connected(d, id),
            Some(Role::Peer(id)) => self.peer_connected(d, id),
            Some(Role::Client(_)) | None => {}
        }
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        match self.role(conn) {
            Some(Role::Client(id)) => self.client_secured(id, info),
            Some(Role::Server(id)) => self.server_secured(d, id, &info),
            Some(Role::Cancel(id)) => self.cancel_secured(d, id),
            Some(Role::Peer(_)) | None => {}
        }
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        match self.role(conn) {
            Some(Role::Client(id)) => self.client_drained(d, id),
            Some(Role::Server(id)) => self.server_drained(d, id),
            Some(Role::Cancel(_) | Role::Peer(_)) | None => {}
        }
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        match self.role(conn) {
            Some(Role::Client(id)) => self.client_closed(d, id, &why),
            Some(Role::Server(id)) => self.server_closed(d, id, &why),
            Some(Role::Cancel(id)) => self.cancel_closed(d, id, &why),
            Some(Role::Peer(id)) => self.peer_closed(d, id),
            None => {}
        }
    }

    fn host_moved<D: Driver>(&mut self, d: &mut D, host: &str, addresses: &[SocketAddr]) {
        self.leave_addresses(d, host, addresses);
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.take_mail(d, mail);
    }

    fn timeout<D: Driver>(&mut self, d: &mut D) {
        if self.wake_us.is_some_and(|due_us| due_us <= self.now.mono_us) {
            self.wake_us = None;
            self.notice_starving();
            self.rescue_queued(d);
        }
        if self.rounds.begin(self.now.mono_us) {
            self.maintain(d);
        }
    }

    fn end_tick<D: Driver>(&mut self, d: &mut D) {
        self.resume_released(d);
        self.leave(d);
        // Handing out may notice further pools (an evicted server was another pool's); they get their turn, too.
        loop {
            while let Some(id) = self.noticed.pop() {
                if let Some(pool) = self.pools.get_mut(id) {
                    pool.noticed = false;
                    self.hand_out(d, id);
                }
            }
            let turned_down = !self.to_resume.is_empty();
            self.resume_released(d);
            if !self.deliver_answers(d) && !turned_down {
                break;
            }
        }
        self.notify_clients(d);
        self.check_commands(d);
        self.check_stopping(d);
    }

    fn deadline(&self) -> Option<u64> {
        [self.wake_us, self.leave_us, Some(self.rounds.due_us())].into_iter().flatten().min()
    }
}

impl Machine {
    /// Has those looked at then that wait for a time to pass (monotonic, µs).
    fn wake_at(&mut self, due_us: u64) {
        self.wake_us = Some(self.wake_us.map_or(due_us, |other_us| other_us.min(due_us)));
    }

    /// Has this pool looked at when the tick ends.
    fn notice(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get_mut(id)
            && !pool.noticed
        {
            pool.noticed = true;
            self.noticed.push(id);
        }
    }

    fn role(&self, conn: ConnId) -> Option<Role> {
        match self.roles.get(conn.index as usize) {
            Some(Some((generation, role))) if *generation == conn.generation => Some(*role),
            _ => None,
        }
    }

    fn set_role(&mut self, conn: ConnId, role: Role) {
        let index = conn.index as usize;
        if self.roles.len() <= index {
            self.roles.resize(index + 1, None);
        }
        self.roles[index] = Some((conn.generation, role));
    }

    fn clear_role(&mut self, conn: ConnId) {
        if let Some(place) = self.roles.get_mut(conn.index as usize)
            && place.is_some_and(|(generation, _)| generation == conn.generation)
        {
            *place = None;
        }
    }

    fn log<D: Driver>(&self, d: &mut D, level: Level, line: &str) {
        d.log(level, line);
    }

    /// With `verbose`: a decision that is made with every transaction.
    #[inline]
    fn log_debug<D: Driver>(&self, d: &mut D, line: impl FnOnce(&Machine) -> Option<String>) {
        if self.rules.config.main.verbose > 0 {
            self.log_decision(d, line);
        }
    }

    /// A client and a server as log lines name them.
    fn log_names(&self, client: ClientId, server: ServerId) -> Option<(String, String)> {
        let (client, server) = (self.clients.get(client)?, self.servers.get(server)?);
        Some((self.client_log_name(client), self.server_log_name(server)))
    }

    #[cold]
    #[inline(never)]
    fn log_decision<D: Driver>(&self, d: &mut D, line: impl FnOnce(&Machine) -> Option<String>) {
        if let Some(line) = line(self) {
            d.log(Level::Debug, &line);
        }
    }
}

/// Numbers of statements: a range for each generation, and in it one for each worker.
fn first_serial(generation: u32, worker: WorkerId) -> u64 {
    u64::from(generation) << 40 | u64::from(worker.0) << 28
}

/// A duration of the settings in microseconds.
fn duration_us(duration: std::time::Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(duration.subsec_micros()))
}
