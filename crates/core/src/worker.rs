//! A worker: it routes events to its pools and to the clients that are in none, and carries out the requests of pools to other pools and
//! workers.
//!
//! The driver reports events to [`Machine`]. This module must not block, and must not know how bytes travel.

mod actions;
mod addresses;
mod cancel;
mod clusters;
pub mod console;
pub(crate) mod login;
mod lookup;
pub(crate) mod maintenance;
mod observe;
mod peering;
mod pools;
mod subscriptions;
mod takeover;
pub(crate) mod unpooled;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use clusters::Clusters;
use maintenance::Rounds;
use peering::Peering;
use slotmap::SlotMap;
use subscriptions::Subscriptions;
use takeover::ToldPools;

use crate::client_handoff::{ClientHandoff, Origin};
use crate::context::{Activity, Cx, Effect, Env, Role, WriteTime, duration_us};
use crate::driver::{Closed, ConnId, Driver, Now, Peer, TlsInfo, WorkerId};
use crate::engine::Engine;
use crate::ids::{PoolId, UnpooledId};
use crate::limits::Limits;
use crate::mail::{Mail, Rules, Scarce};
use crate::pool::Pool;
use crate::pool::takeover::carried::Carried;
use crate::shared::Shared;
use crate::worker::console::command::{Command, PendingCommand, Tasks};
use crate::worker::login::inquiry::Answer;
use crate::worker::unpooled::{Greeting, Unpooled, UnpooledState};

/// The parts that a machine is built from.
pub struct Setup {
    /// The worker's number.
    pub worker: WorkerId,
    /// The configuration to begin with.
    pub rules: Rules,
    /// The state that all workers of the process share.
    pub shared: Arc<Shared>,
    /// The time.
    pub now: Now,
}

/// One worker's part of the pooler. The methods of [`crate::Engine`] report events to it.
pub struct Machine {
    env: Env,
    worker: Worker,
}

/// The state of a worker: its pools, and the clients that are in none. It routes events, and carries out the requests of pools to other
/// pools and workers.
pub(crate) struct Worker {
    /// Clients that log in or talk to the console.
    unpooled: SlotMap<UnpooledId, Unpooled>,
    pools: SlotMap<PoolId, Pool>,
    pool_names: HashMap<(Arc<str>, Arc<str>), PoolId>,
    /// The clusters that this worker watches.
    clusters: Clusters,
    /// The databases that this worker follows for the query cache.
    subscriptions: Subscriptions,
    /// Cancel requests on their way to other processes.
    peering: Peering,
    /// Answers to questions of clients that log in, to be looked at when the tick ends.
    answers: Vec<(UnpooledId, Answer)>,
    /// Pools that have something to do when the tick ends.
    noticed: Vec<PoolId>,
    /// Pools with clients that notifications wait for.
    notified: Vec<PoolId>,
    /// Clients that have logged in to the console, for SHOW STATS.
    console_logins: u64,
    /// The time at which the shutdown began (monotonic, µs).
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
    suspended_by: Option<UnpooledId>,
    said_drained: bool,
    /// The process that this one has replaced may have more to hand over.
    awaits_arrivals: bool,
    /// The pools of which the successor process was told.
    told_pools: ToldPools,
    /// The time at which the worker checks again whether the queued bytes have left, so that more can be handed over (monotonic, µs).
    leave_us: Option<u64>,
    rounds: Rounds,
    stats_us: u64,
    due: Due,
}

/// The work for consoles at the end of the tick.
#[derive(Default)]
pub(crate) struct Due {
    /// Consoles whose command was answered: they may have sent more.
    pub(crate) answered: Vec<UnpooledId>,
    /// Commands that undo the commands of a console that no longer waits, or left.
    pub(crate) undo: Vec<Command>,
}

impl Due {
    #[inline]
    fn is_empty(&self) -> bool {
        self.answered.is_empty() && self.undo.is_empty()
    }
}

impl Machine {
    /// Sets the function by which SHOW writes a time (seconds since 1970) as local time.
    #[must_use]
    pub fn show_times_by(mut self, write: WriteTime) -> Machine {
        self.env.write_time = Some(write);
        self
    }

    /// Sets the version of pgweir for SHOW VERSION.
    #[must_use]
    pub fn of_version(mut self, version: &'static str) -> Machine {
        self.env.version = version;
        self
    }

    /// Sets the limits, instead of [`Limits::default`].
    #[must_use]
    pub fn limit_by(mut self, limits: Limits) -> Machine {
        self.env.limits = limits;
        self
    }

    /// Returns a machine without connections.
    #[must_use]
    pub fn new(setup: Setup) -> Machine {
        let stats_us = setup.now.mono_us + duration_us(setup.rules.config.main.stats_period);
        let worker = Worker {
            unpooled: SlotMap::with_key(),
            pools: SlotMap::with_key(),
            pool_names: HashMap::new(),
            clusters: Clusters::default(),
            subscriptions: Subscriptions::default(),
            peering: Peering::default(),
            answers: Vec::new(),
            noticed: Vec::new(),
            notified: Vec::new(),
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
            told_pools: ToldPools::new(),
            leave_us: None,
            rounds: Rounds::from(setup.now.mono_us),
            stats_us,
            due: Due::default(),
        };
        Machine { env: Env::new(setup), worker }
    }

    /// Takes the views of clusters that other workers have told, before any other action: if a primary is deposed, no bytes are sent to its
    /// servers, and their answers no longer count. The mail about it may still be on its way.
    #[inline]
    fn follow_views<D: Driver>(&mut self, d: &mut D) {
        if self.env.shared.views_told() != self.env.clusters.views_taken {
            self.worker.take_views(&mut Cx::new(d, &mut self.env));
        }
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
        self.follow_views(d);
        self.worker.adopt(&mut Cx::new(d, &mut self.env), conn, *handoff);
    }

    fn carried<D: Driver>(
        &mut self,
        d: &mut D,
        client: Option<ConnId>,
        server: Option<ConnId>,
        carried: Box<Carried>,
    ) {
        self.follow_views(d);
        self.worker.arrive(&mut Cx::new(d, &mut self.env), client, server, *carried);
    }

    fn received<D: Driver>(&mut self, d: &mut D, conn: ConnId, bytes: &[u8]) {
        self.follow_views(d);
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.client_received(cx, id, bytes));
            }
            Some(Role::Server(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.server_received(cx, id, bytes));
            }
            Some(Role::Unpooled(id)) => self.worker.unpooled_received(cx, id, bytes),
            Some(Role::Cancel(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.cancel_received(cx, id, bytes));
            }
            Some(Role::Peer(id)) => self.worker.peer_received(cx, id),
            Some(Role::Watch(id)) => {
                self.worker.in_watch(cx, id, |pool, cx, server| pool.server_received(cx, server, bytes));
            }
            Some(Role::Follower(id, which)) => {
                let act =
                    |pool: &mut Pool, cx: &mut Cx<'_, D>, server| pool.server_received(cx, server, bytes);
                self.worker.in_subscription(cx, id, which, act);
            }
            Some(Role::ClosingServer) | None => {}
        }
    }

    fn connected<D: Driver>(&mut self, d: &mut D, conn: ConnId, local: String) {
        self.follow_views(d);
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Server(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.server_connected(cx, id, local));
            }
            Some(Role::Cancel(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.cancel_connected(cx, id));
            }
            Some(Role::Peer(id)) => self.worker.peer_connected(cx, id),
            Some(Role::Watch(id)) => {
                self.worker.in_watch(cx, id, |pool, cx, server| pool.server_connected(cx, server, local));
            }
            Some(Role::Follower(id, which)) => {
                let act =
                    |pool: &mut Pool, cx: &mut Cx<'_, D>, server| pool.server_connected(cx, server, local);
                self.worker.in_subscription(cx, id, which, act);
            }
            Some(Role::Client(..) | Role::Unpooled(_) | Role::ClosingServer) | None => {}
        }
    }

    fn tls_established<D: Driver>(&mut self, d: &mut D, conn: ConnId, info: TlsInfo) {
        self.follow_views(d);
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Unpooled(id)) => self.worker.client_secured(id, info),
            Some(Role::Server(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.server_secured(cx, id, &info));
            }
            Some(Role::Cancel(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.cancel_secured(cx, id));
            }
            Some(Role::Watch(id)) => {
                self.worker.in_watch(cx, id, |pool, cx, server| pool.server_secured(cx, server, &info));
            }
            Some(Role::Follower(id, which)) => {
                let act =
                    |pool: &mut Pool, cx: &mut Cx<'_, D>, server| pool.server_secured(cx, server, &info);
                self.worker.in_subscription(cx, id, which, act);
            }
            Some(Role::Client(..) | Role::Peer(_) | Role::ClosingServer) | None => {}
        }
    }

    fn drained<D: Driver>(&mut self, d: &mut D, conn: ConnId) {
        self.follow_views(d);
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.client_drained(cx, id));
            }
            Some(Role::Server(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.server_drained(cx, id));
            }
            Some(Role::Unpooled(id)) => self.worker.unpooled_resume(cx, id),
            Some(
                Role::Cancel(..) | Role::Peer(_) | Role::Watch(_) | Role::Follower(..) | Role::ClosingServer,
            )
            | None => {}
        }
    }

    fn closed<D: Driver>(&mut self, d: &mut D, conn: ConnId, why: Closed) {
        self.follow_views(d);
        let role = self.env.role(conn);
        let cx = &mut Cx::new(d, &mut self.env);
        match role {
            Some(Role::Client(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.client_closed(cx, id, &why));
            }
            Some(Role::Server(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.server_closed(cx, id, &why));
            }
            Some(Role::Unpooled(id)) => self.worker.unpooled_closed(cx, id, &why),
            Some(Role::Cancel(pool, id)) => {
                self.worker.in_pool(cx, pool, |pool, cx| pool.cancel_closed(cx, id, &why));
            }
            Some(Role::Peer(id)) => self.worker.peer_closed(cx, id),
            Some(Role::Watch(id)) => {
                self.worker.in_watch(cx, id, |pool, cx, server| pool.server_closed(cx, server, &why));
            }
            Some(Role::ClosingServer) => {
                if let Some(pool) = cx.env.closing_ended(conn, &why) {
                    self.worker.in_pool(cx, pool, |pool, _| pool.notice());
                }
            }
            Some(Role::Follower(id, which)) => {
                let act = |pool: &mut Pool, cx: &mut Cx<'_, D>, server| pool.server_closed(cx, server, &why);
                self.worker.in_subscription(cx, id, which, act);
            }
            None => {}
        }
    }

    fn host_moved<D: Driver>(&mut self, d: &mut D, host: &str, addresses: &[SocketAddr]) {
        self.worker.leave_addresses(&mut Cx::new(d, &mut self.env), host, addresses);
    }

    fn mail<D: Driver>(&mut self, d: &mut D, mail: Mail) {
        self.follow_views(d);
        self.worker.take_mail(&mut Cx::new(d, &mut self.env), mail);
    }

    fn timeout<D: Driver>(&mut self, d: &mut D) {
        self.follow_views(d);
        self.worker.timeout(&mut Cx::new(d, &mut self.env));
    }

    fn end_tick<D: Driver>(&mut self, d: &mut D) {
        if self.worker.has_work(&self.env) {
            self.follow_views(d);
            self.worker.end_tick(&mut Cx::new(d, &mut self.env));
        }
    }

    fn deadline(&self) -> Option<u64> {
        let due_us = self.worker.rounds.due_us().min(self.worker.clusters.due_us);
        [self.env.wake_us, self.worker.leave_us, Some(due_us)].into_iter().flatten().min()
    }
}

impl Worker {
    /// Takes a client that has connected.
    fn accepted<D: Driver>(&mut self, cx: &mut Cx<'_, D>, conn: ConnId, peer: Peer) {
        let origin = Origin { peer, tls: None, since: cx.env.now };
        let serial = cx.env.shared.next_serial();
        let id = self.unpooled.insert(Unpooled {
            conn,
            serial,
            state: UnpooledState::Greeting(Greeting::default()),
            inbox: Vec::new(),
            reads_paused: false,
            origin,
        });
        cx.env.set_role(conn, Role::Unpooled(id));
        if cx.env.activity == Activity::Suspended {
            self.pause_unpooled(cx, id);
        }
    }

    /// Carries out the requests of pools to other pools and workers.
    #[cold]
    pub(crate) fn carry_out<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for effect in std::mem::take(&mut cx.env.effects) {
            match effect {
                Effect::NoticeStarving => {
                    self.notice_starving(cx);
                    for worker in self.other_workers(cx.env) {
                        cx.driver.mail(worker, Mail::Room);
                    }
                }
                Effect::OfferRoom => {
                    self.notice_starving(cx);
                    for worker in std::mem::take(&mut self.starving_workers) {
                        cx.driver.mail(worker, Mail::Room);
                    }
                }
                Effect::Evict(of) => self.evict(cx, of),
                Effect::RolesDropped => {
                    self.roles_dropped(cx);
                    for worker in self.other_workers(cx.env) {
                        cx.driver.mail(worker, Mail::RolesDropped);
                    }
                }
                Effect::Answered(id, answer) => self.answers.push((id, answer)),
                Effect::EndRequester(requester, reason) => self.end_requester(cx, requester, &reason),
                Effect::Suspect(suspicion) => self.suspect(cx, suspicion),
                Effect::OtherNode(database) => self.other_node(cx, &database),
                Effect::WantProbe { database, is_awaited } => self.want_probe(cx, &database, is_awaited),
                Effect::LeaveAt(due_us) => self.leave_us = Some(due_us),
            }
        }
    }

    /// Tells all pools that a client of any pool has dropped roles.
    #[cold]
    fn roles_dropped<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.for_pools(cx, |pool, cx| pool.roles_dropped(cx));
    }

    fn timeout<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.wake_us.is_some_and(|due_us| due_us <= cx.env.now.mono_us) {
            cx.env.wake_us = None;
            self.notice_starving(cx);
            self.for_pools(cx, |pool, cx| pool.rescue_queued(cx));
            self.resume_awaiting(cx, None);
        }
        self.check_clusters(cx);
        self.check_subscriptions(cx);
        if self.rounds.begin(cx.env.now.mono_us) {
            self.maintain(cx);
        }
    }

    /// Whether there is work for the end of the tick.
    #[inline]
    fn has_work(&self, env: &Env) -> bool {
        !self.noticed.is_empty()
            || !self.notified.is_empty()
            || !self.answers.is_empty()
            || !env.effects.is_empty()
            || !self.due.is_empty()
            || !self.tasks.is_empty()
            || env.stopping.is_some()
    }

    #[inline(never)]
    fn end_tick<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for place in 0..self.noticed.len() {
            let id = self.noticed[place];
            self.in_pool(cx, id, |pool, cx| pool.resume_released(cx));
        }
        self.leave(cx);
        self.serve_pools(cx);
        for id in std::mem::take(&mut self.notified) {
            self.in_pool(cx, id, |pool, cx| pool.notify_clients(cx));
        }
        if !self.tasks.is_empty() {
            self.check_commands(cx);
        }
        self.serve_pools(cx);
        self.check_stopping(cx);
    }

    /// Hands out servers, and carries out the requests of pools to others. That may give work to further pools (an evicted server was
    /// another pool's): they get their turn, too.
    fn serve_pools<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        loop {
            while let Some(id) = self.noticed.pop() {
                self.in_pool(cx, id, |pool, cx| {
                    pool.state.due.listed = false;
                    if std::mem::take(&mut pool.state.due.noticed) {
                        pool.hand_out(cx);
                    }
                    pool.resume_released(cx);
                });
            }
            if !cx.env.effects.is_empty() {
                self.carry_out(cx);
            } else if !self.due.is_empty() {
                self.serve_consoles(cx);
            } else if !self.deliver_answers(cx) {
                break;
            }
        }
    }

    /// Goes on with consoles whose command was answered, and undoes the commands of a console that left.
    #[cold]
    fn serve_consoles<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let Due { answered, undo } = std::mem::take(&mut self.due);
        for id in answered {
            self.unpooled_resume(cx, id);
        }
        for command in undo {
            self.distribute_silently(cx, command);
        }
    }

    /// Handles a message from another worker or the control plane.
    pub(crate) fn take_mail<D: Driver>(&mut self, cx: &mut Cx<'_, D>, mail: Mail) {
        match mail {
            Mail::Rules(rules) => self.follow_rules(cx, rules),
            Mail::Command { from, ticket, command } => self.perform(cx, from, ticket, command),
            Mail::Outcome { ticket, outcome } => self.command_done(cx, ticket, outcome, false),
            Mail::LookUp(lookup) => self.look_up(cx, lookup),
            Mail::ForgetLookUp { from, client, database, auth_user } => {
                self.forget_lookup(cx, from, client, (database, auth_user));
            }
            Mail::Answered { client, answer } => self.answers.push((client, answer)),
            Mail::Cancel { key, from } => self.cancel_by_mail(cx, &key, from),
            Mail::CancelOver { requester } => self.cancel_over(cx, requester, "cancel request is over"),
            Mail::Evict { from, of, done } => self.asked_to_evict(cx, from, of, done),
            Mail::Room => self.notice_starving(cx),
            Mail::Parts => self.follow_parts(cx),
            Mail::LookAtBackends { number, of } => self.look_at_backends(cx, number, &of),
            Mail::AddressLeft(address) => self.end_clients_of_address(cx, address),
            Mail::RolesDropped => self.roles_dropped(cx),
            Mail::Continue => self.resume_by_signal(cx),
            Mail::Shutdown(kind) => self.begin_stopping(cx, kind),
            Mail::Views => self.take_views(cx),
            Mail::OpenTransactions { cluster, number, from, open } => {
                self.count_open(cx, &cluster, number, from, open);
            }
            Mail::Switched { cluster, number, result } => self.switched(cx, &cluster, number, &result),
            Mail::Source(report) => self.take_source(cx, &report),
            Mail::Lag { cluster, node, told } => self.take_measured_lag(cx, &cluster, &node, told),
            Mail::Suspect(suspicion) => self.suspect(cx, suspicion),
            Mail::Followed(told) => self.take_followed(cx, &told.database, &told.news),
            Mail::OtherNode(database) => self.other_node(cx, &database),
            Mail::WantProbe { database, is_awaited } => self.want_probe(cx, &database, is_awaited),
            Mail::AllArrived => self.awaits_arrivals = false,
            Mail::SuccessorGone => self.serve_on(cx.env),
            Mail::SnapshotRequest { ticket, look } => self.look(cx, ticket, &look),
            Mail::Operate { ticket, command } => self.operate(cx, ticket, command),
        }
    }

    /// Goes on with the logins whose answers came in since the last tick. Returns whether there were any.
    pub(crate) fn deliver_answers<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> bool {
        let answers = std::mem::take(&mut self.answers);
        let any = !answers.is_empty();
        for (id, answer) in answers {
            self.answered(cx, id, answer);
            self.unpooled_resume(cx, id);
        }
        any
    }
}
