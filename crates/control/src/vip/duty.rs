//! One virtual address: looks at etcd and at the network interface at intervals, and does what [`Seen::step`] says.

mod address;
mod holder;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgweir_core::Shared;
use pgweir_core::driver::Level;
use pgweir_core::vip::VipReport;
use tokio::select;
use tokio::time::sleep;

use super::Setup;
use super::ahead::Ahead;
use super::announce::OtherAnnouncements;
use super::clients::Clients;
use super::decide::{Holding, Lease, OldHolder, Purpose, Seen, Step};
use super::interface::{self, Link};
use super::lease::Register;
use super::rights;
use super::spec::Spec;
use crate::log::Log;
use crate::sources::http::Client;

/// The maximum number of steps of a round: drop, ask, campaign, take, revoke.
const STEPS_MAX: usize = 6;
/// The pause after the address could not be set. Another pooler may take it.
const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// The minimum time between two rounds.
const APART: Duration = Duration::from_millis(20);

/// The result of an attempt to get the lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Campaign {
    /// There was none since the last look, or etcd did not answer.
    None,
    /// The lease was granted to this pooler.
    Won,
    /// etcd has answered, and must be read again.
    Over,
}

/// The work for one virtual address.
pub(super) struct Duty {
    spec: Spec,
    register: Register,
    log: Log,
    shared: Arc<Shared>,
    clients: Clients,
    ahead: Ahead,
    /// The network interface; the reason if there is none.
    link: Result<Link, String>,
    /// The address, as far as this pooler has taken it.
    holding: Holding,
    /// The address may be set, as far as the commands have told. `true` before the first command.
    is_set_by_command: bool,
    others: Option<OtherAnnouncements>,
    /// The time of the last announcement.
    announced: Option<Instant>,
    /// The time at which the address was taken.
    taken: Instant,
    /// The last failure to set the address.
    failure: Option<(Instant, String)>,
    lease: Lease,
    /// The pooler that has the lease, this one or another.
    holder: Option<String>,
    /// The time since which etcd has said, at each reading, that another pooler has the lease.
    other_since: Option<Instant>,
    /// The pooler that had the lease last.
    last: Option<String>,
    /// The reason why etcd could not be asked.
    silence: Option<String>,
    /// The last line of each kind that was logged, so that the log has it only once.
    said: [Option<String>; 2],
}

impl Duty {
    /// Begins the work. If this process has replaced another one, that one may have set the address, which this one then has.
    pub(super) fn new(spec: Spec, client: Client, setup: &Setup) -> Duty {
        let address = spec.address.ip.to_string();
        let register = Register::new(client, spec.endpoints.clone(), spec.login.clone(), &address, spec.ttl);
        let link = interface::find(spec.address, &spec.interface);
        let is_set = link.as_ref().is_ok_and(|link| link.has_address);
        let inherited = setup.is_successor && spec.commands.is_none() && is_set;
        let mut duty = Duty {
            holding: if inherited { Holding::Taken } else { Holding::No },
            link,
            clients: Clients::new(spec.address.ip, Arc::clone(&setup.shared), Arc::clone(&setup.end_clients)),
            spec,
            register,
            log: setup.log.clone(),
            shared: Arc::clone(&setup.shared),
            ahead: Ahead::default(),
            is_set_by_command: true,
            others: None,
            announced: None,
            taken: Instant::now(),
            failure: None,
            lease: Lease::Unknown,
            holder: None,
            other_since: None,
            last: None,
            silence: None,
            said: [None, None],
        };
        // etcd may take long to answer.
        duty.publish(Purpose::Usual);
        duty
    }

    pub(super) fn spec(&self) -> &Spec {
        &self.spec
    }

    pub(super) fn use_client(&mut self, client: Client) {
        self.register.use_client(client);
    }

    /// Waits until the next round is due.
    pub(super) async fn wait(&mut self) {
        let period = self.spec.period();
        let Duty { register, others, .. } = self;
        sleep(APART).await;
        select! {
            () = sleep(period) => {}
            () = register.changed() => {}
            () = first(others) => {}
        }
    }

    /// Removes the address and gives the lease back.
    pub(super) async fn give_away(&mut self) {
        self.act(Purpose::Leave).await;
    }

    /// Takes the address although etcd cannot be asked. An address of another pooler that has the lease, or answers that it has the
    /// address, is not taken: the error names that pooler.
    pub(super) async fn take_by_force(&mut self) -> Result<(), String> {
        let old_holder = self.act(Purpose::Force).await;
        if self.holding != Holding::No {
            return Ok(());
        }
        let unknown = || "another pooler".to_owned();
        Err(match (self.obstacle(), self.lease, old_holder) {
            (Some(why), _, _) => why,
            (None, Lease::Other, _) => {
                format!("{} has the lease", self.holder.clone().unwrap_or_else(unknown))
            }
            (None, _, OldHolder::Serves) => {
                format!("{} answers that it has the address", self.last.clone().unwrap_or_else(unknown))
            }
            _ => "another pooler was faster; see SHOW VIP".to_owned(),
        })
    }

    /// Does what is left to do for a process that another one has replaced, and which still serves clients: they are ended as soon as the
    /// machine does not have the address any more. The other process takes care of the address.
    pub(super) async fn stay_behind(&mut self) {
        let mut had = self.holding != Holding::No;
        loop {
            match self.machine_has_address().await {
                Some(true) => had = true,
                Some(false) if std::mem::take(&mut had) => self.clients.end().await,
                Some(false) => self.clients.end_late(),
                None => {}
            }
            sleep(self.spec.period()).await;
        }
    }

    /// Looks, and does all that is to be done now.
    pub(super) async fn round(&mut self) {
        self.act(Purpose::Usual).await;
    }

    /// Does a round, and returns what the pooler that had the address last has answered.
    async fn act(&mut self, purpose: Purpose) -> OldHolder {
        let mut old_holder = OldHolder::NotAsked;
        let mut campaign = Campaign::None;
        for _ in 0..STEPS_MAX {
            let seen = match std::mem::replace(&mut campaign, Campaign::None) {
                Campaign::Won => self.facts(old_holder, purpose),
                _ => self.look(old_holder, purpose).await,
            };
            match seen.step() {
                Step::Rest => break,
                Step::Ask => old_holder = self.ask().await,
                Step::Campaign => {
                    // What was answered before the lease ended may have changed. Nothing waits for this answer.
                    let is_answered_ahead = old_holder != seen.old_holder;
                    let again = if is_answered_ahead { self.question() } else { None };
                    campaign = self.campaign().await;
                    if campaign == Campaign::None {
                        break;
                    }
                    if let Some(OldHolder::Serves) = again.and_then(|again| again.answer()) {
                        old_holder = OldHolder::Serves;
                        self.ahead.forget();
                    }
                }
                Step::Take => self.take().await,
                Step::Keep { announces } => {
                    if announces {
                        self.announce_if_due(seen.other_announces);
                    }
                    break;
                }
                Step::Drop => self.remove(&seen).await,
                Step::Revoke => {
                    if let Err(why) = self.register.revoke().await {
                        self.silence = Some(why);
                    }
                    self.lease = Lease::Unknown;
                    break;
                }
            }
            self.publish(purpose);
        }
        self.holding = match (self.holding, self.lease, purpose) {
            (Holding::No, _, _) => Holding::No,
            (_, Lease::Own, _) => Holding::Taken,
            (_, _, Purpose::Force) => Holding::Forced,
            (holding, _, _) => holding,
        };
        if self.holding == Holding::No {
            self.clients.end_late();
            self.ask_ahead();
        }
        self.publish(purpose);
        old_holder
    }

    /// Returns the facts of this moment. Renews the address and the lease of a pooler that has them.
    async fn look(&mut self, old_holder: OldHolder, purpose: Purpose) -> Seen {
        self.look_at_link();
        // etcd may be slow to answer, and the address must live until then.
        if purpose != Purpose::Leave && self.holding != Holding::No && self.is_set() {
            self.renew();
        }
        if purpose == Purpose::Leave {
            self.lease = if self.register.has_lease() { Lease::Own } else { Lease::Unknown };
        } else {
            self.read().await;
        }
        self.facts(old_holder, purpose)
    }

    /// Returns the facts of this moment, without a question to etcd.
    fn facts(&mut self, old_holder: OldHolder, purpose: Purpose) -> Seen {
        // Time may have passed, in which the kernel has removed the address.
        self.look_at_link();
        let is_answered_ahead = old_holder == OldHolder::NotAsked
            && purpose == Purpose::Usual
            && self.holding == Holding::No
            && self.lease == Lease::Free
            && self.is_last_gone();
        let old_holder = if is_answered_ahead { OldHolder::Gone } else { old_holder };
        Seen {
            lease: self.lease,
            holding: self.holding,
            purpose,
            is_set: self.is_set(),
            is_able: self.obstacle().is_none(),
            other_announces: self.others.as_mut().is_some_and(OtherAnnouncements::take),
            old_holder,
        }
    }

    async fn read(&mut self) {
        let me = self.name();
        match self.register.read(me.as_deref()).await {
            Ok(reading) => {
                self.lease = reading.lease(me.as_deref());
                self.holder = reading.holder().map(str::to_owned);
                self.last = reading.last;
                self.silence = None;
            }
            Err(why) => {
                (self.lease, self.holder) = (Lease::Unknown, None);
                self.silence = Some(why);
            }
        }
        let is_other = self.lease == Lease::Other;
        self.other_since = is_other.then(|| self.other_since.unwrap_or_else(Instant::now));
    }

    fn look_at_link(&mut self) {
        self.link = interface::find(self.spec.address, &self.spec.interface);
        if let Ok(link) = &self.link
            && self.spec.commands.is_none()
            && self.others.as_ref().is_none_or(|others| !others.is_at(link))
        {
            // Without the right to receive them, there is none to set the address either, and `obstacle` says so.
            self.others = OtherAnnouncements::open(link, self.spec.address.ip).ok();
        }
    }

    fn is_set(&self) -> bool {
        match (&self.spec.commands, &self.link) {
            (Some(_), _) => self.is_set_by_command,
            (None, Ok(link)) => link.has_address,
            (None, Err(_)) => false,
        }
    }

    fn name(&self) -> Option<String> {
        self.spec.name(self.link.as_ref().ok().and_then(|link| link.own))
    }

    /// Returns the reason why this pooler cannot take the address.
    fn obstacle(&self) -> Option<String> {
        if self.spec.commands.is_none() {
            if let Err(why) = &self.link {
                return Some(why.clone());
            }
            if let Some(why) = rights::lacking() {
                return Some(why);
            }
        }
        if self.name().is_none() {
            return Some(
                "http_listen has no address, and the network interface has none that others reach".to_owned(),
            );
        }
        let recent = self.failure.as_ref().filter(|(at, _)| at.elapsed() < AFTER_FAILURE);
        recent.map(|(_, why)| why.clone())
    }

    /// Tries to get the lease.
    async fn campaign(&mut self) -> Campaign {
        let Some(me) = self.name() else { return Campaign::None };
        match self.register.campaign(&me).await {
            Ok(true) => {
                (self.lease, self.holder, self.silence) = (Lease::Own, Some(me.clone()), None);
                self.last = Some(me);
                Campaign::Won
            }
            Ok(false) => {
                self.silence = None;
                Campaign::Over
            }
            Err(why) => {
                self.silence = Some(why);
                Campaign::None
            }
        }
    }

    /// Shows the present state, and logs what is wrong.
    fn publish(&mut self, purpose: Purpose) {
        let obstacle = self.obstacle();
        let state = match &obstacle {
            _ if purpose == Purpose::Leave => "given away",
            _ if self.holding != Holding::No => "holds",
            Some(_) => "unable",
            None => "standby",
        };
        let lease = match self.lease {
            Lease::Unknown => "unknown",
            Lease::Free => "free",
            Lease::Own => "own",
            Lease::Other => "other",
        };
        let level = if obstacle.is_some() { Level::Error } else { Level::Warning };
        let error =
            obstacle.or_else(|| self.silence.as_ref().map(|why| format!("etcd cannot be asked: {why}")));
        self.shared.tell_vip(Some(VipReport {
            address: self.spec.address.to_string(),
            interface: self.link.as_ref().ok().map(|link| link.name.clone()),
            state,
            lease,
            holder: self.holder.clone(),
            error: error.clone(),
        }));
        self.say(0, level, error);
    }

    /// Logs a fault of a kind when it begins or changes.
    fn say(&mut self, kind: usize, level: Level, fault: Option<String>) {
        if self.said[kind] == fault {
            return;
        }
        if let Some(fault) = &fault {
            self.log.write(level, &format!("vip {}: {fault}", self.spec.address));
        }
        self.said[kind] = fault;
    }
}

/// Waits until another machine announces the address. Never returns if announcements are not received.
async fn first(others: &mut Option<OtherAnnouncements>) {
    if let Some(others) = others
        && others.first().await.is_ok()
    {
        return;
    }
    // The interface is gone, or there is none yet. The next round looks for it.
    std::future::pending::<()>().await;
}
