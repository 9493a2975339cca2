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

use crate::carried::Carried;
use crate::client::{Client, ClientState, Greeting};
use crate::client_handoff::{ClientHandoff, Origin};
use crate::console::command::{PendingCommand, Tasks};
use crate::context::{Activity, Cx, Env, Role, duration_us};
use crate::driver::{Closed, ConnId, Driver, Level, Now, Peer, TlsInfo, WorkerId};
use crate::engine::Engine;
use crate::ids::{CancelId, ClientId, PoolId, ServerId};
use crate::inquiry::Answer;
use crate::mail::{Mail, Rules, Scarce};
use crate::pool::Pool;
use crate::server::Server;
use crate::shared::Shared;

use cancel::CancelConnection;
pub(crate) use cancel::WaitingCancel;
use maintenance::Rounds;
pub(crate) use measure::share_bytes;
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

/// One worker's part of the pooler: what [`crate::Engine`] names happens to it.
pub struct Machine {
    env: Env,
    worker: Worker,
}

/// The clients, servers and pools of one worker.
struct Worker {
    clients: SlotMap<ClientId, Client>,
    servers: SlotMap<ServerId, Server>,
    pools: SlotMap<PoolId, Pool>,
    pool_names: HashMap<(Arc<str>, Arc<str>), PoolId>,
    cancels: SlotMap<CancelId, CancelConnection>,
    /// Cancel requests on their way to other processes.
    peering: Peering,
    /// Clients that were released from a server and may have sent more.
    to_resume: VecDeque<ClientId>,
    /// Answers to questions of clients that log in, to be looked at when the tick ends.
    answers: Vec<(ClientId, Answer)>,
    /// Clients that notifications wait for.
    notified: Vec<ClientId>,
    /// Pools to look at when the tick ends.
    noticed: Vec<PoolId>,
    /// Clients that have logged in to the console, for SHOW STATS.
    console_logins: u64,
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
    /// How a moment (seconds since 1970) is written for people; the machine knows no time zone.
    write_time: Option<WriteTime>,
}

/// See [`Machine::show_times_by`].
pub type WriteTime = Arc<dyn Fn(u64) -> String + Send + Sync>;

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
        self.worker.write_time = Some(write);
        self
    }

    /// A machine without connections.
    #[must_use]
    pub fn new(setup: Setup) -> Machine {
        let stats_us = setup.now.mono_us + duration_us(setup.rules.config.main.stats_period);
        let worker = Worker {
            clients: SlotMap::with_key(),
            servers: SlotMap::with_key(),
            pools: SlotMap::with_key(),
            pool_names: HashMap::new(),
            cancels: SlotMap::with_key(),
            peering: Peering::default(),
            to_resume: VecDeque::new(),
            answers: Vec::new(),
            notified: Vec::new(),
            noticed: Vec::new(),
            console_logins: 0,
            stopping_us: 0,
            commands: HashMap::new(),
            tasks: Tasks::new(),
            tickets: 0,
            starving_workers: Vec::new(),
            asked_to_evict: Vec::new(),
            suspended_by: None,
            said_drained: false,
            awaits_arrivals: setup.shared.generation() > 0,
            told_pools: leaving::ToldPools::new(),
            leave_us: None,
            rounds: Rounds::from(setup.now.mono_us),
            stats_us,
            write_time: None,
        };
        Machine { env: Env::new(setup), worker }
    }
}

impl Engine for Machine {
    fn begin_tick(&mut self, now: Now) {
        self.env.now = now;
    }

    fn accepted<D: Driver>(&mut self, d: &mut D, conn: ConnId, peer: Peer) {
        self.worker.accepted(&mut Cx::new(d, &mut self.env), conn, peer);
    }

    fn adopted<D: Driver>(&mut self, d: &mut D, conn: ConnId, handoff: Box<ClientHandoff>) {
        self.worker.adopt(&mut Cx::new(d, &mut self.env), conn, *handoff);
    }

    fn carried<D: Driver>(
        &mut self,
        d: &mut D,
        client: Option<ConnId>,
        server: Option<ConnId>,
        carried: Box<Carried>,
    ) {
        self.worker.arrive(&mut Cx::new(d, &mut self.env), client, server, *carried);
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(id)) => self.worker.client_received(cx, id, bytes),
            Some(Role::Server(id)) => self.worker.server_received(cx, id, bytes),
            Some(Role::Cancel(id)) => self.worker.cancel_received(cx, id, bytes),
            Some(Role::Peer(id)) => self.worker.peer_received(cx, id),
            None => {}
        }
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Server(id)) => self.worker.server_connected(cx, id, local),
            Some(Role::Cancel(id)) => self.worker.cancel_connected(cx, id),
            Some(Role::Peer(id)) => self.worker.peer_connected(cx, id),
            Some(Role::Client(_)) | None => {}
        }
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(id)) => self.worker.client_secured(id, info),
            Some(Role::Server(id)) => self.worker.server_secured(cx, id, &info),
            Some(Role::Cancel(id)) => self.worker.cancel_secured(cx, id),
            Some(Role::Peer(_)) | None => {}
        }
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(id)) => self.worker.client_drained(cx, id),
            Some(Role::Server(id)) => self.worker.server_drained(cx, id),
            Some(Role::Cancel(_) | Role::Peer(_)) | None => {}
        }
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(id)) => self.worker.client_closed(cx, id, &why),
            Some(Role::Server(id)) => self.worker.server_closed(cx, id, &why),
            Some(Role::Cancel(id)) => self.worker.cancel_closed(cx, id, &why),
            Some(Role::Peer(id)) => self.worker.peer_closed(cx, id),
            None => {}
        }
    }

    fn host_moved<D: Driver>(&mut self, d: &mut D, host: &str, addresses: &[SocketAddr]) {
        self.worker.leave_addresses(&mut Cx::new(d, &mut self.env), host, addresses);
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.worker.take_mail(&mut Cx::new(d, &mut self.env), mail);
    }

    fn timeout<D: Driver>(&mut self, d: &mut D) {
        self.worker.timeout(&mut Cx::new(d, &mut self.env));
    }

    fn end_tick<D: Driver>(&mut self, d: &mut D) {
        self.worker.end_tick(&mut Cx::new(d, &mut self.env));
    }

    fn deadline(&self) -> Option<u64> {
        [self.env.wake_us, self.worker.leave_us, Some(self.worker.rounds.due_us())]
            .into_iter()
            .flatten()
            .min()
    }
}

impl Worker {
    /// A client connected.
    fn accepted<D: Driver>(&mut self, cx: &mut Cx<'_, D>, conn: ConnId, peer: Peer) {
        let origin = Origin { peer, tls: None, since: cx.env.now };
        let serial = cx.env.shared.next_serial();
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
        cx.env.set_role(conn, Role::Client(id));
        if cx.env.activity == Activity::Suspended {
            self.pause_client(cx, id);
        }
    }

    fn timeout<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.wake_us.is_some_and(|due_us| due_us <= cx.env.now.mono_us) {
            cx.env.wake_us = None;
            self.notice_starving();
            self.rescue_queued(cx);
        }
        if self.rounds.begin(cx.env.now.mono_us) {
            self.maintain(cx);
        }
    }

    fn end_tick<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.resume_released(cx);
        self.leave(cx);
        // Handing out may notice further pools (an evicted server was another pool's); they get their turn, too.
        loop {
            while let Some(id) = self.noticed.pop() {
                if let Some(pool) = self.pools.get_mut(id) {
                    pool.noticed = false;
                    self.hand_out(cx, id);
                }
            }
            let turned_down = !self.to_resume.is_empty();
            self.resume_released(cx);
            if !self.deliver_answers(cx) && !turned_down {
                break;
            }
        }
        self.notify_clients(cx);
        self.check_commands(cx);
        self.check_stopping(cx);
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

    /// With `verbose`: a decision that is made with every transaction.
    #[inline]
    fn log_debug<D: Driver>(&self, cx: &mut Cx<'_, D>, line: impl FnOnce(&Worker, &Env) -> Option<String>) {
        if cx.env.rules.config.main.verbose > 0 {
            self.log_decision(cx, line);
        }
    }

    /// A client and a server as log lines name them.
    fn log_names(&self, client: ClientId, server: ServerId) -> Option<(String, String)> {
        let (client, server) = (self.clients.get(client)?, self.servers.get(server)?);
        Some((self.client_log_name(client), self.server_log_name(server)))
    }

    #[cold]
    #[inline(never)]
    fn log_decision<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        line: impl FnOnce(&Worker, &Env) -> Option<String>,
    ) {
        if let Some(line) = line(self, cx.env) {
            cx.log(Level::Debug, &line);
        }
    }
}
