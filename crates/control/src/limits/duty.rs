//! One pooler's work for shared limits: reads etcd, follows the division, writes its report, and leads if it is the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pgweir_core::driver::{Level, WorkerId};
use pgweir_core::mail::Scarce;
use pgweir_core::places::{BackendsSeen, LimitReport, LimitsSeen};
use pgweir_settings::Config;
use tokio::select;
use tokio::time::{sleep, sleep_until};

use super::Outside;
use super::divide::{PoolerId, Report};
use super::documents::Document;
use super::local::{Demands, Spec, WorkerClock, is_one_server, limit_of};
use super::looks::Looks;
use super::member::{Left, Parts, Snapshot};
use super::register::Keys;
use crate::plane::Event;
use crate::sources::http::Client;
use crate::sources::session::Session;

/// The time between two rounds, if nothing happens.
const PERIOD: Duration = Duration::from_millis(500);
/// The minimum time between two rounds.
const APART: Duration = Duration::from_millis(40);
/// The longest time that the end of the process waits for logins that are under way.
const LOGINS_MAX: Duration = Duration::from_secs(1);
/// The time between two looks at whether such logins have ended.
const LOGINS_POLL: Duration = Duration::from_millis(10);
/// The least time that is left to a login whose pooler has ended without notice, until PostgreSQL shows its process.
const LOGIN_LATE_MIN: Duration = Duration::from_secs(2);

/// The work for shared limits.
pub(super) struct Duty {
    spec: Spec,
    session: Session,
    keys: Keys,
    outside: Outside,
    config: Arc<Config>,
    standing: Standing,
    parts: Parts,
    /// The keys in etcd, as they were read last.
    snapshot: Snapshot,
    /// The revision at which this pooler's report was last written.
    own_at: u64,
    /// The time at which the lease was last renewed.
    renewed: Option<Instant>,
    workers: BTreeMap<WorkerId, LimitsSeen>,
    clock: WorkerClock,
    demands: Demands,
    looks: Looks,
    /// The connections of the process that this one has replaced, by limit, when it opened its last one.
    inherited: BTreeMap<Scarce, u32>,
    /// The time at which the last round ended.
    last: Instant,
    /// The parts that are in effect at the workers, each with the number of connections above which free ones are closed.
    applied: BTreeMap<Scarce, (u32, u32)>,
    /// The last fault that was logged, so that the log has it only once.
    said: Option<String>,
}

/// The name of this pooler among the poolers.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Standing {
    /// The pooler has no name yet, and began to ask for one at the time `since`. A process that replaces another one waits for the name of
    /// that process.
    Nameless { is_successor: bool, since: Instant },
    /// The pooler has this name, and keeps it without a lease.
    Named(PoolerId),
    /// Another process takes over the name.
    HandedOver(PoolerId),
}

impl Duty {
    /// Begins the work. `is_successor`: this process has replaced another one, and goes on with its name.
    pub(super) fn new(
        spec: Spec,
        client: Client,
        outside: Outside,
        config: Arc<Config>,
        is_successor: bool,
    ) -> Duty {
        Duty {
            session: Session::new(client, spec.endpoints.clone(), spec.login.clone(), spec.ttl),
            keys: Keys::new(&spec.prefix),
            spec,
            outside,
            config,
            standing: Standing::Nameless { is_successor, since: Instant::now() },
            parts: Parts::default(),
            snapshot: Snapshot::default(),
            own_at: 0,
            renewed: None,
            workers: BTreeMap::new(),
            clock: WorkerClock::default(),
            demands: Demands::default(),
            looks: Looks::default(),
            inherited: BTreeMap::new(),
            last: Instant::now(),
            applied: BTreeMap::new(),
            said: None,
        }
    }

    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Uses another configuration from now on.
    pub(super) fn follow(&mut self, client: Client, config: Arc<Config>) {
        self.session.use_client(client);
        self.config = config;
    }

    /// Takes a worker's report. Returns whether a round is due at once.
    pub(super) fn seen(&mut self, worker: WorkerId, seen: LimitsSeen) -> bool {
        self.clock.note(Instant::now(), seen.at_us);
        self.workers.insert(worker, seen);
        let sums = self.sum_of_workers();
        self.demands.note(Instant::now(), sums.iter().map(|(of, report)| (of, report.demand)));
        sums.keys().any(|of| self.parts.of(of) < self.demands.of(of))
    }

    /// Takes an answer about PostgreSQL's processes.
    pub(super) fn backends(&mut self, seen: &BackendsSeen) {
        for (of, pids) in [&seen.by_database, &seen.by_user] {
            let living = self.living_pids(of);
            if is_one_server(&self.config, of) {
                self.looks.answered(of, (seen.number, pids), &living);
            }
        }
    }

    /// Waits until the next round is due.
    pub(super) async fn wait(&mut self) {
        sleep_until((self.last + APART).into()).await;
        select! {
            () = sleep_until((self.last + PERIOD).into()) => {}
            () = self.session.changed() => {}
        }
    }

    /// Does all that is to be done now.
    pub(super) async fn round(&mut self) {
        let result = self.act().await;
        self.publish(result.err());
        self.last = Instant::now();
    }

    async fn act(&mut self) -> Result<(), String> {
        self.read().await?;
        if let Standing::HandedOver(_) = self.standing {
            return Ok(());
        }
        let Some(id) = self.name().await? else { return Ok(()) };
        self.parts.lower(&self.snapshot, &id);
        self.apply(&id);
        self.write(&id).await?;
        self.watch_ended();
        let next = match self.snapshot.leader.as_ref() {
            Some(leader) if *leader == id => self.settled(true),
            Some(_) => self.settled(false),
            None => {
                let (keys, session) = (&self.keys, &mut self.session);
                return session.ask(async |session: &mut Session| keys.campaign(session, &id).await).await;
            }
        };
        if next.division != self.snapshot.division {
            let (keys, at) = (&self.keys, self.snapshot.division_at);
            // If it was not written, another pooler was faster, and the next round sees what it wrote.
            let write = async |session: &mut Session| keys.write_division(session, &next.division, at).await;
            self.session.ask(write).await?;
        }
        Ok(())
    }

    /// Renews the lease and reads the keys.
    async fn read(&mut self) -> Result<(), String> {
        let renews = self.renewed.is_none_or(|at| at.elapsed() >= self.spec.ttl / 6);
        let (began, had_lease) = (Instant::now(), self.session.lease.is_some());
        let keys = &self.keys;
        let read = async |session: &mut Session| {
            if renews {
                session.renew().await?;
            }
            keys.read(session).await
        };
        self.snapshot = self.session.ask(read).await?;
        if renews {
            self.renewed = Some(began);
        }
        let own = match &self.standing {
            Standing::Named(id) => self.snapshot.members.get(id),
            _ => None,
        };
        let is_over = had_lease && (self.session.lease.is_none() || own.is_none() && self.own_at > 0);
        if is_over && !matches!(self.standing, Standing::HandedOver(_)) {
            // Nothing is opened any more under the parts of that lease; what is open stays.
            self.lose_parts();
            self.session.lease = None;
            self.own_at = 0;
            self.say("this pooler's lease is over: other poolers may have its part of the limits".to_owned());
        } else if self.session.lease.is_some()
            && let Some(renewed) = self.renewed
            && let Some(until_us) = self.clock.at(renewed + self.spec.part_lasts())
        {
            self.outside.shared.hold_parts_until(until_us);
        }
        Ok(())
    }

    /// Returns this pooler's name, which it gets with its first lease; `None` while it waits for that of the process before it.
    async fn name(&mut self) -> Result<Option<PoolerId>, String> {
        if self.session.lease.is_none() {
            let began = Instant::now();
            self.session.lease =
                Some(self.session.ask(async |session: &mut Session| session.grant().await).await?);
            self.renewed = Some(began);
        }
        let Standing::Nameless { is_successor, since } = self.standing else {
            return Ok(match &self.standing {
                Standing::Named(id) => Some(id.clone()),
                _ => None,
            });
        };
        let alike =
            self.snapshot.members.iter().filter(|(_, (document, _))| document.label == self.spec.label);
        let mut alike = alike.filter(|_| is_successor).peekable();
        if alike.peek().is_some() {
            if let Some((id, (document, at))) = alike.find(|(_, (document, _))| document.is_handed_over) {
                let (id, at) = (id.clone(), *at);
                self.inherited =
                    document.limits.iter().map(|(of, report)| (of.clone(), report.held)).collect();
                self.own_at = at;
                self.standing = Standing::Named(id.clone());
                return Ok(Some(id));
            }
            if since.elapsed() < self.spec.ttl * 2 {
                return Ok(None);
            }
        }
        // The number of a lease is given out once.
        let id = format!("{}#{:x}", self.spec.label, self.session.lease.unwrap_or_default());
        self.standing = Standing::Named(id.clone());
        Ok(Some(id))
    }

    /// Writes the report if it has changed, and uses the parts in it when it is written.
    async fn write(&mut self, id: &PoolerId) -> Result<(), String> {
        let document = self.document(id);
        if self.snapshot.members.get(id).is_some_and(|(written, _)| *written == document) {
            self.use_parts(id, &document);
            return Ok(());
        }
        let (keys, division_at) = (&self.keys, self.snapshot.division_at);
        let own_at = self.snapshot.members.get(id).map_or(0, |(_, at)| *at);
        let write = async |session: &mut Session| {
            keys.write_report(session, (id, &document), (own_at, division_at)).await
        };
        if let Some(at) = self.session.ask(write).await? {
            self.own_at = at;
            self.use_parts(id, &document);
            self.snapshot.members.insert(id.clone(), (document, at));
        }
        Ok(())
    }

    fn use_parts(&mut self, id: &PoolerId, document: &Document) {
        if self.parts.raise(document) {
            self.apply(id);
        }
    }

    /// Returns this pooler's report.
    fn document(&self, id: &PoolerId) -> Document {
        let sums = self.sum_of_workers();
        let limits = self.known_limits().into_iter().filter_map(|of| {
            let limit = limit_of(&self.config, &of);
            let held = self.held(&of);
            let seen = sums.get(&of);
            let report = Report {
                limit,
                part: if limit == 0 { 0 } else { self.snapshot.grant(&of, id) },
                held,
                unconfirmed: seen.map_or(0, |seen| seen.unconfirmed).min(held),
                // To look at PostgreSQL takes a connection, too.
                demand: self
                    .demands
                    .of(&of)
                    .saturating_add(u32::from(self.looks.is_watching(&of)))
                    .min(limit),
                pids: seen.map(|seen| seen.pids.clone()).unwrap_or_default(),
            };
            let has_share = self.snapshot.division.get(&of).is_some_and(|shares| shares.contains_key(id));
            (limit > 0 || report.held > 0 || has_share).then_some((of, report))
        });
        Document { label: self.spec.label.clone(), is_handed_over: false, limits: limits.collect() }
    }

    /// The limits that this process knows: those of its files, of its workers and in etcd.
    fn known_limits(&self) -> BTreeSet<Scarce> {
        let databases = self.config.databases.keys().map(|name| Scarce::Database(name.as_str().into()));
        let users = self.config.users.keys().map(|name| Scarce::User(name.as_str().into()));
        let seen = self.workers.values().flat_map(|worker| &worker.limits).map(|seen| seen.of.clone());
        databases.chain(users).chain(seen).chain(self.snapshot.limits()).collect()
    }

    /// The connections that the process before this one may still have.
    fn left_behind(&self, of: &Scarce) -> u32 {
        let arrived = self.outside.shared.counts(of).arrived.load(Ordering::Acquire);
        self.inherited.get(of).map_or(0, |held| held.saturating_sub(arrived))
    }

    /// Whether the process before this one has not ended.
    fn is_inheriting(&self) -> bool {
        matches!(&self.standing, Standing::Named(id) if self.snapshot.handed_over.contains(id))
    }

    /// The connections of this pooler, with those of the process before it.
    fn held(&self, of: &Scarce) -> u32 {
        let left = self.left_behind(of);
        self.outside.shared.counts(of).servers.taken().saturating_add(left)
    }

    /// Puts the parts into effect.
    fn apply(&mut self, id: &PoolerId) {
        let is_inheriting = self.is_inheriting();
        let mut has_changed = false;
        for of in self.snapshot.limits() {
            let part = self.parts.of(&of).saturating_sub(self.left_behind(&of));
            // Without a share nothing is known about what to keep, and connections that come from another process are not to be closed.
            let has_share = self.snapshot.division.get(&of).is_some_and(|shares| shares.contains_key(id));
            let is_shared = limit_of(&self.config, &of) > 0;
            let keep = if has_share && is_shared && !is_inheriting { part } else { u32::MAX };
            if self.applied.insert(of.clone(), (part, keep)) != Some((part, keep)) {
                let counts = self.outside.shared.counts(&of);
                counts.servers.set_part(part);
                counts.keep(keep);
                has_changed = true;
            }
        }
        if has_changed {
            self.tell(Event::PartsChanged);
        }
    }

    /// Takes all parts away from the workers: the lease is over, or another process has it.
    fn lose_parts(&mut self) {
        self.outside.shared.take_parts_away();
        self.parts.lose();
        self.applied.clear();
    }

    fn tell(&self, event: Event) {
        // This fails if the process is ending and the receiver is gone.
        let _ = self.outside.events.send(event);
    }

    /// Sums up what the workers have reported.
    fn sum_of_workers(&self) -> BTreeMap<Scarce, Report> {
        let mut sums: BTreeMap<Scarce, Report> = BTreeMap::new();
        for seen in self.workers.values().flat_map(|worker| &worker.limits) {
            let sum = sums.entry(seen.of.clone()).or_default();
            sum.demand = sum.demand.saturating_add(seen.demand);
            sum.unconfirmed = sum.unconfirmed.saturating_add(seen.unconfirmed);
            sum.pids.extend(&seen.pids);
        }
        sums.values_mut().for_each(|sum| sum.pids.sort_unstable());
        sums
    }

    /// The processes of living poolers, this one's as its workers know them.
    fn living_pids(&self, of: &Scarce) -> BTreeSet<u32> {
        let mut pids = self.snapshot.pids(of);
        pids.extend(self.sum_of_workers().get(of).into_iter().flat_map(|sum| sum.pids.iter().copied()));
        pids
    }

    /// Notes which poolers have ended, and asks PostgreSQL for its processes.
    fn watch_ended(&mut self) {
        let is_inheriting = self.is_inheriting();
        for of in self.snapshot.limits() {
            let mut ended = self.snapshot.ended(&of);
            let is_left_behind = !is_inheriting && self.left_behind(&of) > 0;
            if is_left_behind {
                ended.insert("the process before this one".to_owned());
            }
            // A pooler that ends in order has given its grant back. If a lease is over, a login that began before may succeed later.
            let is_in_order = !is_left_behind && ended.iter().all(|id| self.snapshot.grant(&of, id) == 0);
            let late = if is_in_order { Duration::ZERO } else { (self.spec.ttl / 4).max(LOGIN_LATE_MIN) };
            let is_due = self.looks.follow(&of, ended, late) && is_one_server(&self.config, &of);
            if is_due {
                let number = self.looks.begin(&of);
                self.tell(Event::LookAtBackends { number, of });
            }
        }
    }

    /// Returns the keys in etcd as they should be: with the connections that PostgreSQL has shown of poolers that have ended and, if this
    /// pooler `leads`, with each limit divided by the present demands.
    fn settled(&mut self, leads: bool) -> Snapshot {
        let mut next = self.snapshot.clone();
        for of in self.looks.limits() {
            let living = self.living_pids(&of);
            if let Some(seen) = self.looks.count(&of, &living) {
                next.division = next.settled(&of, seen);
                if let Some(held) = self.inherited.get_mut(&of) {
                    let arrived = self.outside.shared.counts(&of).arrived.load(Ordering::Acquire);
                    *held = (*held).min(arrived.saturating_add(seen));
                }
            }
        }
        if leads {
            next.division = next.divided();
        }
        next
    }

    /// Hands the name over to the process that takes over: it is told what this one has.
    pub(super) async fn hand_over(&mut self) {
        let Standing::Named(id) = self.standing.clone() else { return };
        self.lose_parts();
        // The division may change at any time, and with it what the report has to be compared with.
        for _ in 0..5 {
            if self.read().await.is_err() {
                continue;
            }
            let mut document = self.document(&id);
            document.is_handed_over = true;
            document.limits.values_mut().for_each(|report| report.part = 0);
            let own_at = self.snapshot.members.get(&id).map_or(0, |(_, at)| *at);
            let (keys, division_at) = (&self.keys, self.snapshot.division_at);
            let write = async |session: &mut Session| {
                keys.write_report(session, (&id, &document), (own_at, division_at)).await
            };
            if let Ok(Some(_)) = self.session.ask(write).await {
                break;
            }
        }
        self.standing = Standing::HandedOver(id);
    }

    /// Gives back what this pooler does not need any more: the process ends.
    pub(super) async fn end(&mut self) {
        // They were taken away when the end was asked for; a round that ran at that time may have put them into effect again.
        self.lose_parts();
        if let Standing::Named(id) = self.standing.clone() {
            self.wait_for_logins().await;
            for _ in 0..3 {
                if self.read().await.is_err() {
                    break;
                }
                let left = self.snapshot.limits().into_iter().map(|of| {
                    let logins = self.outside.shared.counts(&of).logins.taken();
                    let left = Left { held: self.held(&of), logins };
                    (of, left)
                });
                let (division, at) = (self.snapshot.without(&id, &left.collect()), self.snapshot.division_at);
                let keys = &self.keys;
                let write = async |session: &mut Session| keys.write_division(session, &division, at).await;
                if !matches!(self.session.ask(write).await, Ok(false)) {
                    break;
                }
            }
        }
        // If this fails, the lease ends by itself.
        let _ = self.session.revoke().await;
        self.outside.shared.tell_limits(Vec::new());
    }

    /// Waits a short time for logins that are under way: no further step of them is taken, so that most end soon.
    async fn wait_for_logins(&self) {
        let began = Instant::now();
        let shared = &self.outside.shared;
        let is_any = || self.snapshot.limits().iter().any(|of| shared.counts(of).logins.taken() > 0);
        while is_any() && began.elapsed() < LOGINS_MAX {
            sleep(LOGINS_POLL).await;
        }
    }

    /// Shows the present state, and logs what is wrong.
    fn publish(&mut self, fault: Option<String>) {
        let is_known = fault.is_none();
        match fault {
            Some(fault) => self.say(format!("etcd cannot be asked: {fault}")),
            None if self.said.take().is_some() => {
                self.outside
                    .log
                    .write(Level::Log, "shared limits: etcd answers, and this pooler has its parts");
            }
            None => {}
        }
        let rows = self.known_limits().into_iter().filter_map(|of| self.row(of, is_known));
        self.outside.shared.tell_limits(rows.collect());
    }

    fn row(&self, of: Scarce, is_known: bool) -> Option<LimitReport> {
        let reports = self.snapshot.reports(&of);
        let limit = limit_of(&self.config, &of);
        let limit = super::divide::limit(&reports).unwrap_or(limit);
        let ended = self.snapshot.ended(&of);
        let shares = self.snapshot.division.get(&of);
        let kept_back =
            ended.iter().filter_map(|id| Some(shares?.get(id)?.reserved)).fold(0, u32::saturating_add);
        let is_over = self.clock.now_us().is_none_or(|now_us| !self.outside.shared.parts_hold(now_us));
        let reason = match () {
            () if !is_known => self.said.clone(),
            () if kept_back > 0 && !is_one_server(&self.config, &of) => {
                Some("the connections of a pooler that has ended are on more than one server, and cannot be counted".to_owned())
            }
            () if kept_back > 0 => Some("PostgreSQL may still have connections of a pooler that has ended".to_owned()),
            () => None,
        };
        let state = match &self.standing {
            Standing::Named(_) if is_over => "frozen",
            Standing::Named(_) => "shared",
            Standing::Nameless { .. } => "joining",
            Standing::HandedOver(_) => "handed over",
        };
        (limit > 0 || kept_back > 0).then(|| LimitReport {
            limit,
            granted: self.parts.of(&of),
            held: self.held(&of),
            demand: self.demands.of(&of).min(limit),
            poolers: u32::try_from(reports.len()).unwrap_or(u32::MAX),
            kept_back,
            leader: self.snapshot.leader.as_deref().map(Arc::from),
            state,
            reason,
            of,
        })
    }

    /// Logs a fault when it begins or changes.
    fn say(&mut self, fault: String) {
        if self.said.as_ref() != Some(&fault) {
            self.outside.log.write(Level::Warning, &format!("shared limits: {fault}"));
            self.said = Some(fault);
        }
    }
}
