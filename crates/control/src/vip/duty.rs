//! One virtual address: looks at etcd and at the network interface at intervals, and does what [`Seen::step`] says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pgweir_core::Shared;
use pgweir_core::driver::Level;
use pgweir_core::vip::VipReport;
use pgweir_settings::SourceUrl;
use tokio::select;
use tokio::time::sleep;

use super::Setup;
use super::ahead::{Ahead, Question};
use super::announce::{OtherAnnouncements, announce};
use super::clients::Clients;
use super::decide::{Holding, Lease, OldHolder, Purpose, Seen, Step};
use super::interface::{self, Link};
use super::lease::Register;
use super::rights;
use super::spec::Spec;
use crate::commands::Program;
use crate::log::Log;
use crate::sources::http::{Call, Client, Reply};

/// The maximum number of steps of a round: drop, ask, campaign, take, revoke.
const STEPS_MAX: usize = 6;
/// The time in which an address that was taken is announced in each round: an announcement may be lost, and for a moment the machine of a dead
/// process may answer for the address, too.
const ANNOUNCED_AT_FIRST: Duration = Duration::from_secs(3);
/// The time between two announcements after that, for machines and switches that were cut off.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(5);
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

    /// Returns whether the process that has replaced this one has the address; `None` if that is not known.
    async fn machine_has_address(&mut self) -> Option<bool> {
        if self.spec.commands.is_none() {
            self.look_at_link();
            return Some(self.is_set());
        }
        // It has this one's name.
        let url = SourceUrl::parse(&self.name()?).ok()?;
        match ask_at(self.register.client(), &url, &self.spec).await.ok()? {
            Reply { status: 200, .. } => Some(true),
            reply => (reply.body.starts_with(b"no address")).then_some(false),
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

    /// Whether the pooler that had the lease last did not answer shortly before its lease ended.
    fn is_last_gone(&mut self) -> bool {
        // While no question is under way, the next one begins in the next round; and one that is not answered takes all of its time.
        let age = (self.spec.question_lasts() + self.spec.period()) * 2;
        let Duty { ahead, last, .. } = self;
        last.as_deref().is_some_and(|last| ahead.is_gone(last, age))
    }

    /// Asks the pooler that has the lease ahead of its end, beside the other work.
    fn ask_ahead(&mut self) {
        if self.lease == Lease::Other
            && let Some(holder) = &self.holder
            && let Ok(url) = SourceUrl::parse(holder)
        {
            let question = self.question_at(url);
            self.ahead.ask(holder, question);
        }
    }

    /// Asks the pooler that had the lease last beside the other work; `None` if there is none that can be asked.
    fn question(&self) -> Option<Question> {
        let url = SourceUrl::parse(self.last.as_deref()?).ok()?;
        Some(Question::begin(self.question_at(url)))
    }

    /// Returns the question to the pooler at this place.
    fn question_at(&self, url: SourceUrl) -> impl Future<Output = OldHolder> + use<> {
        let (client, spec) = (self.register.client().clone(), self.spec.clone());
        async move { old_holder(&ask_at(&client, &url, &spec).await) }
    }

    /// Asks the pooler that has the lease, or had it last, whether it has the address and serves.
    async fn ask(&self) -> OldHolder {
        // The lease of a dead pooler would have ended: this one is renewed, although its pooler may not answer here.
        if self.other_since.is_some_and(|since| since.elapsed() > self.spec.ttl * 2) {
            return OldHolder::Serves;
        }
        let name = self.name();
        let asked = match self.lease {
            Lease::Other => self.holder.as_deref(),
            _ => self.last.as_deref().filter(|last| name.as_deref() != Some(*last)),
        };
        let url = match asked.map(SourceUrl::parse) {
            Some(Ok(url)) => url,
            // A pooler that has the lease and cannot be asked may well serve.
            Some(Err(_)) if self.lease == Lease::Other => return OldHolder::Serves,
            _ => return OldHolder::Gone,
        };
        old_holder(&ask_at(self.register.client(), &url, &self.spec).await)
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

    async fn take(&mut self) {
        let address = self.spec.address;
        let said = match (&self.spec.commands, &self.link) {
            (Some(commands), _) => self.run("vip_up_command", &commands.up).await,
            (None, Ok(link)) => interface::set(link, address, self.spec.lifetime_s())
                .map_err(|error| format!("the address cannot be set on {}: {error}", link.name)),
            (None, Err(why)) => Err(why.clone()),
        };
        if let Err(why) = said {
            self.failure = Some((Instant::now(), why));
            if std::mem::replace(&mut self.holding, Holding::No) != Holding::No {
                self.clients.end().await;
            }
            return;
        }
        self.failure = None;
        self.is_set_by_command = true;
        self.clients.address_is_back();
        self.taken = Instant::now();
        // Without the lease, only force takes the address.
        let (taken, how) = match self.lease {
            Lease::Own => (Holding::Taken, ""),
            _ => (Holding::Forced, ", by force"),
        };
        if std::mem::replace(&mut self.holding, taken) == Holding::No {
            self.log.write(Level::Log, &format!("vip {address}: this pooler has the address now{how}"));
        }
    }

    /// Renews the lifetime of an address that is set. A failure shows when the kernel has removed the address.
    fn renew(&self) {
        if let (None, Ok(link)) = (&self.spec.commands, &self.link) {
            let _ = interface::set(link, self.spec.address, self.spec.lifetime_s());
        }
    }

    async fn remove(&mut self, seen: &Seen) {
        self.clients.end().await;
        let said = match (&self.spec.commands, &self.link) {
            (Some(commands), _) => self.run("vip_down_command", &commands.down).await,
            (None, Ok(link)) => interface::remove(link, self.spec.address)
                .map_err(|error| format!("the address cannot be removed from {}: {error}", link.name)),
            // With its interface the address is gone.
            (None, Err(_)) => Ok(()),
        };
        // Some may have connected in the meantime.
        self.clients.end_late();
        self.is_set_by_command = false;
        let held = std::mem::replace(&mut self.holding, Holding::No) != Holding::No;
        if let Err(why) = said {
            self.failure = Some((Instant::now(), why));
        }
        if held {
            let line = format!(
                "vip {}: this pooler does not have the address any more: {}",
                self.spec.address,
                self.reason(seen)
            );
            self.log.write(Level::Log, &line);
        }
    }

    /// Returns the reason why the address was removed.
    fn reason(&self, seen: &Seen) -> String {
        match (seen.lease, &self.holder) {
            _ if seen.purpose == Purpose::Leave => "it is given away".to_owned(),
            _ if !seen.is_able => self.obstacle().unwrap_or_default(),
            (Lease::Other, Some(holder)) => format!("{holder} has the lease"),
            _ if seen.other_announces => "another machine announces it".to_owned(),
            _ => "the kernel has removed it, because it was not renewed in time".to_owned(),
        }
    }

    fn announce_if_due(&mut self, is_contested: bool) {
        let is_due = self.taken.elapsed() < ANNOUNCED_AT_FIRST
            || self.announced.is_none_or(|at| at.elapsed() >= ANNOUNCE_AGAIN);
        if self.spec.commands.is_some() || !(is_due || is_contested) {
            return;
        }
        if let Ok(link) = &self.link {
            self.announced = Some(Instant::now());
            let said = announce(link, self.spec.address.ip);
            let fault = said.err().map(|error| format!("the address cannot be announced: {error}"));
            self.say(1, Level::Warning, fault);
        }
    }

    async fn run(&self, setting: &'static str, command: &str) -> Result<(), String> {
        let interface =
            self.link.as_ref().map(|link| link.name.clone()).unwrap_or_else(|_| self.spec.interface.clone());
        let program = Program {
            setting,
            words: command,
            arguments: Vec::new(),
            variables: vec![
                ("PGWEIR_VIP", self.spec.address.to_string()),
                ("PGWEIR_VIP_INTERFACE", interface),
            ],
            limit: self.spec.ttl,
            limit_setting: "vip_ttl",
        };
        program.run().await?.succeeded(setting)
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

/// Asks the pooler at this place whether it has the address and serves.
async fn ask_at(client: &Client, url: &SourceUrl, spec: &Spec) -> Result<Reply, String> {
    let path = format!("/readyz?vip={}", spec.address.ip);
    client.call(url, Call::get(&path), spec.question_lasts()).await
}

/// Returns what the answer of a pooler says about it. No answer is one, too.
fn old_holder(reply: &Result<Reply, String>) -> OldHolder {
    match reply {
        Ok(reply) if reply.status == 200 => OldHolder::Serves,
        _ => OldHolder::Gone,
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
