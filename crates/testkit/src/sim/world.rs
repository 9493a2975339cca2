//! One run: the calendar is worked off until all clients have left and everything is at rest, or an invariant is broken.
//! A worker's turn is in `turn.rs`, the looking on in `watch.rs`.

use std::rc::Rc;
use std::sync::Arc;

use pgweir_core::driver::{Closed, ConnId, Endpoint, Now, Peer, WorkerId};
use pgweir_core::mail::Mail;

use super::client::message;
use super::client::run::Client;
use super::context::{ClientTimer, Event, LinkId, Moving, PeerEnd, PoolerEnd, SimContext};
use super::driver::{Inbound, Side, SimWorker, shown};
use super::model::cluster::Cluster;
use super::model::followed::WalEvent;
use super::model::followed::outside::Blow;
use super::model::nodes::{Status, TOLD, schedule};
use super::operator::Operator;
use super::plan::Plan;
use super::rng::Rng;
use super::subject::Subject;
use super::trace::Trace;
use crate::sim::check::watch::PROBE_US;
use crate::sim::network::net::{Dir, End};

/// A connection that carries a client's cancel request.
pub(super) struct Canceller {
    link: LinkId,
    /// The pooler has closed it.
    pub(super) done: bool,
}

/// See the module's head.
pub struct World<E: Subject> {
    /// Clock, network, chance, checks.
    pub cx: SimContext,
    pub(super) engines: Vec<E>,
    pub(super) sim_workers: Vec<SimWorker>,
    pub(super) cluster: Cluster,
    pub(super) clients: Vec<Client>,
    pub(super) cancellers: Vec<Canceller>,
    pub(super) operator: Option<Operator>,
    /// The time at which the last message reached a client or a client left.
    pub(super) progress: (u64, u64),
    pub(super) resting_since_us: Option<u64>,
    /// The number of the first clients that are gone, which the loop does not ask again at each event.
    gone: usize,
    shared: E::Shared,
}

/// Events after which a run is called endless.
const EVENTS_MAX: u64 = 40_000_000;
/// The time for which the end is watched: the driver's lingering, timers and cancels must be over by then.
const REST_US: u64 = 12_000_000;
/// The time within which the pooler follows a database again when nothing goes wrong any more: it tries once a minute at least.
const FOLLOW_AGAIN_US: u64 = 150_000_000;
/// The wall clock at the beginning of a run.
const WALL_US: u64 = 1_700_000_000_000_000;

impl<E: Subject> World<E> {
    /// The world of a plan.
    #[must_use]
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let plan = Rc::new(plan);
        let mut cx = SimContext::new(Rc::clone(&plan), Rng::new(!plan.seed), trace);
        let shared = E::shared(&plan);
        let now = now(&cx);
        let workers = || (0..plan.workers).map(WorkerId);
        for (i, script) in plan.clients.iter().enumerate() {
            cx.after(script.begin_us, Event::Client(i, ClientTimer::Begin));
        }
        cx.after(PROBE_US, Event::Probe);
        schedule(&mut cx);
        cx.in_wal(|_, _| ());
        if plan.cluster.as_ref().is_some_and(|cluster| cluster.source_us.is_some()) {
            // What a source says may hold clients at any time.
            cx.checks.operator_words.extend(TOLD);
            cx.after(1, Event::Source);
        }
        if plan.cluster.as_ref().is_some_and(|cluster| cluster.asks_lag) {
            // So may what the standbys say.
            cx.checks.operator_words.extend(TOLD);
        }
        let mut operator_rng = cx.rng.fork();
        if plan.has_operator {
            cx.after(operator_rng.skewed(300_000), Event::Operator);
        }
        World {
            engines: workers().map(|worker| E::start(&plan, &shared, worker, now)).collect(),
            sim_workers: workers().map(SimWorker::new).collect(),
            cluster: Cluster::default(),
            clients: (0..plan.clients.len()).map(|i| Client::new(i, &plan)).collect(),
            cancellers: Vec::new(),
            operator: plan.has_operator.then(|| Operator::new(&plan, &mut operator_rng)),
            progress: (0, cx.now_us),
            resting_since_us: None,
            gone: 0,
            cx,
            shared,
        }
    }

    /// Runs to the end; returns the number of events.
    pub fn run(&mut self) -> u64 {
        for worker in 0..self.sim_workers.len() {
            self.rearm(worker);
        }
        let mut events = 0;
        while self.cx.checks.violation().is_none() && !self.is_over() {
            let Some(event) = self.cx.next_event() else {
                self.cx.fail("no client is forgotten", "nothing is left to happen".to_owned());
                break;
            };
            events += 1;
            if events > EVENTS_MAX {
                self.cx.fail("a run ends", format!("{EVENTS_MAX} events"));
                break;
            }
            self.happen(event);
        }
        if self.cx.checks.violation().is_none() {
            self.check_the_end();
            self.count_rides();
        }
        events
    }

    fn is_over(&mut self) -> bool {
        while self.clients.get(self.gone).is_some_and(Client::is_gone) {
            self.gone += 1;
        }
        let since = match self.resting_since_us {
            Some(since_us) => since_us,
            None if self.gone == self.clients.len()
                && self.operator.as_ref().is_none_or(Operator::is_gone) =>
            {
                self.resting_since_us = Some(self.cx.now_us);
                self.cx.in_wal(|wal, rng| wal.ends(rng));
                self.cx.now_us
            }
            None => return false,
        };
        let follows = self.cx.wal.as_ref().is_none_or(|wal| wal.is_followed());
        self.cx.now_us >= since + if follows { REST_US } else { FOLLOW_AGAIN_US }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(link, dir) => self.arrive(link, dir),
            Event::Room(link, dir) => self.room(link, dir),
            Event::Tick(worker) => self.tick(worker),
            Event::Deadline(worker) => self.deadline(worker),
            Event::Accept(link) => self.accept(link),
            Event::Dialed(worker, conn, endpoint) => self.dialed(worker, conn, &endpoint),
            Event::Adopt { to, transfer } => self.adopt(to, *transfer),
            Event::Mail { to, from } => {
                let bag = self.cx.mailbags.iter_mut().find(|(pair, _)| *pair == (to, from));
                if let Some(mail) = bag.and_then(|(_, bag)| bag.pop_front()) {
                    self.deliver(to, Inbound::Mail(mail));
                }
            }
            Event::TlsDone(worker, conn) => {
                if let Some(link) = self.sim_worker(worker).sock(conn).and_then(|sock| sock.link) {
                    self.cx.link_mut(link).is_tls = true;
                    if let Some(sock) = self.sim_workers[place(worker)].sock_mut(conn) {
                        sock.hello = None;
                    }
                    self.deliver(worker, Inbound::Secured(conn));
                    self.deliver(worker, Inbound::Readable(conn));
                    if let PeerEnd::Client(client) = self.cx.link(link).peer {
                        self.clients[client].secured(&mut self.cx);
                    }
                }
            }
            Event::Backend(pid, alarm) => self.cluster.backends[pid].alarm(&mut self.cx, alarm),
            Event::Unlocked => self.cluster.unlocked(&mut self.cx),
            Event::Notified => self.cluster.notified(&mut self.cx),
            Event::Signalled(pid) => self.cluster.backends[pid].signalled(&mut self.cx),
            Event::Outcome(pid) => self.cluster.backends[pid].terminate(&mut self.cx),
            Event::CancelFires(pid) => self.cluster.cancel(&mut self.cx, pid),
            Event::Client(client, timer) => self.client_timer(client, timer),
            Event::GiveUp(worker, conn) => self.sim_workers[place(worker)].give_up(&mut self.cx, conn),
            Event::Operator => {
                if let Some(operator) = &mut self.operator {
                    operator.wake(&mut self.cx);
                }
            }
            Event::Answer => {
                let Some(question) = self.cx.questions.pop_front() else { return };
                for (to, mail) in E::answer(&self.cx.plan, &self.shared, question) {
                    self.deliver(to, Inbound::Mail(mail));
                }
            }
            Event::Probe => self.probe(),
            Event::Nodes => self.cluster.nodes_act(&mut self.cx),
            Event::Source => self.source_speaks(),
            Event::Wal(event) => self.wal_goes_on(event),
        }
    }

    /// Something happens to the log of the followed server.
    fn wal_goes_on(&mut self, event: WalEvent) {
        let (cx, cluster) = (&mut self.cx, &mut self.cluster);
        let now_us = cx.now_us;
        match event {
            WalEvent::Flushed(position) => {
                cx.in_wal(|wal, rng| wal.flushed(rng, position));
            }
            WalEvent::Visible(xid) => {
                let process = cx.in_wal(|wal, _| wal.becomes_visible(xid, now_us)).flatten();
                if let Some(process) = process {
                    cluster.backends[process].go_on(cx);
                }
            }
            WalEvent::Wake(process) => {
                cx.in_wal(|wal, _| wal.wakes(process));
                cluster.backends[process].go_on(cx);
            }
            WalEvent::Resume(process) => {
                cx.in_wal(|wal, _| wal.resumes(process));
                cluster.backends[process].go_on(cx);
            }
            WalEvent::Outside => {
                cx.in_wal(|wal, rng| wal.happens(rng));
            }
            WalEvent::Changes => match cx.in_wal(|wal, rng| wal.changes(rng, now_us)) {
                None | Some(Blow::None) => {}
                Some(Blow::EndFollower) => cluster.end_follower(cx),
                Some(Blow::Restart) => cluster.restart(cx),
            },
            WalEvent::Up => {
                cx.in_wal(|wal, _| wal.comes_up());
            }
        }
    }

    /// The control plane tells all workers what the source said.
    fn source_speaks(&mut self) {
        let now_us = self.cx.now_us;
        let Some(nodes) = &mut self.cx.nodes else { return };
        let (report, next_us) = nodes.ask_source(now_us);
        if let Some(at_us) = next_us {
            self.cx.at(at_us, Event::Source);
        }
        let Some(report) = report else { return };
        self.cx.note(|| format!("SOURCE {:?}", report.said));
        for worker in 0..self.cx.plan.workers {
            self.deliver(WorkerId(worker), Inbound::Mail(Mail::Source(Arc::clone(&report))));
        }
    }

    fn sim_worker(&self, worker: WorkerId) -> &SimWorker {
        &self.sim_workers[place(worker)]
    }

    fn deliver(&mut self, worker: WorkerId, inbound: Inbound) {
        self.sim_workers[place(worker)].deliver(&mut self.cx, inbound);
    }

    fn arrive(&mut self, link: LinkId, dir: Dir) {
        self.cx.arrive(link, dir);
        let (pooler, peer) = (self.cx.link(link).pooler, self.cx.link(link).peer);
        match (dir, pooler, peer) {
            (Dir::ToPooler, PoolerEnd::At(worker, conn), _) => self.deliver(worker, Inbound::Readable(conn)),
            (Dir::ToPooler, PoolerEnd::Moving | PoolerEnd::Gone, _) => {}
            (Dir::ToPeer, _, PeerEnd::Client(client)) => self.clients[client].arrived(&mut self.cx),
            (Dir::ToPeer, _, PeerEnd::Backend(pid)) => self.cluster.backends[pid].go_on(&mut self.cx),
            (Dir::ToPeer, _, PeerEnd::Canceller(number)) => self.canceller_arrived(number),
            (Dir::ToPeer, _, PeerEnd::Operator) => {
                if let Some(operator) = &mut self.operator {
                    operator.arrived(&mut self.cx);
                }
            }
        }
    }

    fn room(&mut self, link: LinkId, dir: Dir) {
        let (pooler, peer) = (self.cx.link(link).pooler, self.cx.link(link).peer);
        match (dir, pooler, peer) {
            (Dir::ToPeer, PoolerEnd::At(worker, conn), _) => self.deliver(worker, Inbound::Writable(conn)),
            (Dir::ToPeer, PoolerEnd::Moving | PoolerEnd::Gone, _) => {}
            (Dir::ToPooler, _, PeerEnd::Client(client)) => self.clients[client].room(&mut self.cx),
            (Dir::ToPooler, _, PeerEnd::Backend(pid)) => self.cluster.backends[pid].go_on(&mut self.cx),
            (Dir::ToPooler, _, PeerEnd::Canceller(_) | PeerEnd::Operator) => {}
        }
    }

    fn client_timer(&mut self, number: usize, timer: ClientTimer) {
        if timer == ClientTimer::Begin && self.cx.plan.clients[number].false_cancel {
            let mut key = vec![0; 8];
            self.cx.rng.fill(&mut key);
            self.send_cancel(&key);
        }
        if let Some(key) = self.clients[number].timer(&mut self.cx, timer) {
            self.send_cancel(&key);
        }
    }

    /// Opens a connection for a cancel request, as `PQcancel` does.
    fn send_cancel(&mut self, key: &[u8]) {
        let link = self.cx.open_link(PoolerEnd::Moving, PeerEnd::Canceller(self.cancellers.len()));
        self.cancellers.push(Canceller { link, done: false });
        let in_us = 1 + self.cx.rng.skewed(1000);
        self.cx.after(in_us, Event::Accept(link));
        self.cx.write(link, Dir::ToPooler, &message::cancel(key));
    }

    fn canceller_arrived(&mut self, number: usize) {
        let canceller = &mut self.cancellers[number];
        let bytes = self.cx.read(canceller.link, Dir::ToPeer, 1000);
        if !bytes.is_empty() {
            self.cx.fail("a cancel request is not answered", shown(&bytes));
        }
        if !canceller.done && self.cx.link(canceller.link).to_peer.end().is_some() {
            canceller.done = true;
            self.cx.end(canceller.link, Dir::ToPooler, End::Fin);
        }
    }

    fn accept(&mut self, link: LinkId) {
        let worker = WorkerId(u16::try_from(self.cx.rng.index(self.sim_workers.len())).expect("few workers"));
        let mut unix = self.cx.rng.percent(20);
        if let PeerEnd::Client(client) = self.cx.link(link).peer {
            self.cx.checks.accepted(link, self.clients[client].name());
            unix = self.clients[client].is_unix();
        }
        let sim_worker = &mut self.sim_workers[place(worker)];
        let conn = sim_worker.insert(Some(link), Side::Client);
        self.cx.link_mut(link).pooler = PoolerEnd::At(worker, conn);
        self.cx.note(|| format!("{worker:?} accepts {conn:?} of {:?}", self.cx.link(link).peer));
        let port = u16::try_from(10_000 + link.0 % 50_000).expect("below 65536");
        let peer = match unix {
            true => Peer::Unix { pid: u32::from(port), uid: 1000, same_user: false, port: 6432 },
            false => Peer::Tcp { remote: ([10, 0, 0, 1], port).into(), local: ([10, 0, 0, 2], 6432).into() },
        };
        self.deliver(worker, Inbound::Accepted(conn, peer));
        self.deliver(worker, Inbound::Readable(conn));
    }

    fn dialed(&mut self, worker: WorkerId, conn: ConnId, endpoint: &Endpoint) {
        if self.sim_worker(worker).sock(conn).is_none() {
            return;
        }
        let node = node_of(endpoint);
        if self.cx.wal.as_ref().is_some_and(|wal| wal.is_down()) {
            let now_us = self.cx.now_us;
            self.cx.checks.login_failed(None, now_us);
            let why = Closed::DialFailed("connection refused".to_owned());
            return self.deliver(worker, Inbound::DialFailed(conn, why));
        }
        match self.cx.nodes.as_ref().and_then(|nodes| nodes.nodes.get(node)) {
            // Nothing comes back, and nothing says so.
            Some(node) if node.isolated => return,
            Some(node) if node.status == Status::Stopped => {
                let now_us = self.cx.now_us;
                self.cx.checks.login_failed(None, now_us);
                let why = Closed::DialFailed("connection refused".to_owned());
                return self.deliver(worker, Inbound::DialFailed(conn, why));
            }
            _ => {}
        }
        let is_over = self.cx.wal.as_ref().is_some_and(|wal| wal.is_over());
        if !is_over && self.cx.rng.percent(self.cx.plan.faults.dial_refused) {
            let now_us = self.cx.now_us;
            self.cx.checks.login_failed(None, now_us);
            self.cx.note(|| format!("{worker:?} {conn:?} {endpoint:?} refuses"));
            let why = Closed::DialFailed("connection refused".to_owned());
            self.deliver(worker, Inbound::DialFailed(conn, why));
            return;
        }
        let link = self.cx.open_link(PoolerEnd::At(worker, conn), PeerEnd::Backend(self.cluster.next_pid()));
        self.cx.note(|| format!("{worker:?} {conn:?} is connected to server {}", self.cluster.next_pid()));
        self.cluster.start(&mut self.cx, link, node);
        let sim_worker = &mut self.sim_workers[place(worker)];
        if let Some(sock) = sim_worker.sock_mut(conn) {
            sock.link = Some(link);
            sim_worker.dirty.push(conn);
        }
        self.deliver(worker, Inbound::Connected(conn));
    }

    fn adopt(&mut self, to: WorkerId, transfer: Moving) {
        let Moving { link, out, handoff } = transfer;
        let sim_worker = &mut self.sim_workers[place(to)];
        let conn = sim_worker.insert(Some(link), Side::Client);
        if let Some(sock) = sim_worker.sock_mut(conn) {
            sock.out = out;
            sim_worker.dirty.push(conn);
        }
        self.cx.link_mut(link).pooler = PoolerEnd::At(to, conn);
        self.deliver(to, Inbound::Adopted(conn, handoff));
        self.deliver(to, Inbound::Readable(conn));
    }
}

/// The number of the node that a connection goes to; 0 where there is no cluster.
fn node_of(endpoint: &Endpoint) -> usize {
    match endpoint {
        Endpoint::Tcp { host, .. } => host.strip_prefix("node").and_then(|n| n.parse().ok()).unwrap_or(0),
        Endpoint::Unix { .. } => 0,
    }
}

pub(super) fn place(worker: WorkerId) -> usize {
    usize::from(worker.0)
}

pub(super) fn now(cx: &SimContext) -> Now {
    Now { mono_us: cx.now_us, wall_us: WALL_US + cx.now_us }
}
