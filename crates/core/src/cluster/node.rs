//! A node: its states, and what an observation makes of them. Whether a node that says it is the primary gets that role is not
//! decided here: that depends on the other nodes (`roles.rs`).

use std::sync::Arc;

use pgweir_settings::NodeOptions;

use crate::cluster::answer::{Answer, Lsn};
use crate::cluster::lag::Lag;
use crate::cluster::outcome::Followed;
use crate::cluster::view::{SHARE_WHOLE, Switch};
use crate::cluster::{Limits, NodeId, Run};

/// What a check found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Observation {
    /// The node answered the question.
    Answered(Answer),
    /// A new connection could not be opened, or a question was not answered in time. Nothing else is evidence against a node.
    Failed(String),
    /// SQLSTATE 57P03: it starts up, recovers or shuts down.
    Starting(String),
    /// It lives, and did not answer the question: 53300, or an error in the place of the answer.
    Lives(String),
    /// It does not let `check_user` in (28xxx, 3D000).
    LoginRefused(String),
    /// The reason lies with this machine: no descriptor, no port.
    OwnFault(String),
}

/// What is known of a node that answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// Its last answer.
    pub(crate) answer: Answer,
    /// When that came (monotonic, µs).
    pub(crate) heard_us: u64,
    /// So many answers in a row gave it the same role in the same run, and when the first of them came (monotonic, µs).
    pub(crate) checks: u32,
    pub(crate) same_since_us: u64,
    /// Its checks have failed since that answer.
    pub(crate) failing: Option<Failing>,
}

/// Checks that failed without one that succeeded between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failing {
    /// When the first of them failed (monotonic, µs).
    pub(crate) since_us: u64,
    pub(crate) count: u32,
}

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// It never answered.
    Unknown(Unknown),
    /// It is in recovery.
    Standby(Member),
    /// It says that it is the primary, and nothing speaks against it.
    Primary(Member),
    /// It said that it is the primary, and that is in doubt: nothing new is sent to it.
    Unsure(Unsure),
    /// It starts up or recovers.
    Starting(Starting),
    /// Its checks failed for long. Its servers are closed.
    Down(Down),
    /// It must not be used as it is. Its servers are closed.
    Refused(Refused),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Unknown {
    pub(crate) failing: Option<Failing>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unsure {
    pub(crate) member: Member,
    pub(crate) why: Doubt,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Starting {
    /// Since when it says so (monotonic, µs).
    pub(crate) since_us: u64,
    pub(crate) failing: Option<Failing>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Down {
    /// So many checks have succeeded since.
    pub(crate) good: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    /// `None`: it does not let `check_user` in.
    pub(crate) member: Option<Member>,
}

/// Why a node that says it is the primary is not trusted at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doubt {
    /// It has not been looked at together with the other nodes yet.
    New,
    /// It has not said so for `primary_max_age_ms`, or not since its last check failed.
    Unconfirmed,
    /// Another node says so, too.
    TwoPrimaries,
    /// An operator has detached it.
    Detached,
    /// The cluster's source says that it is not.
    Source,
    /// The cluster's source is silent, and without it no node counts as the primary.
    SourceSilent,
}

/// Why a node is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is no copy of the cluster's primary: another system identifier.
    Stranger { theirs: u64, ours: u64 },
    /// It says that it is the primary, of a timeline that another one has left behind.
    OldPrimary { timeline: u32, newer: u32 },
    /// It says that it is the primary, on the timeline of this one.
    Twin { of: Arc<str> },
    /// A standby that has replayed what the primary never wrote: it was ahead of the one that was promoted.
    Diverged { position: Lsn, primary: Lsn },
    /// It does not let `check_user` in.
    LoginRefused,
    /// Versions before 14 do not say whether they are in recovery when a client logs in.
    TooOld { version: u32 },
}
/// So many failed checks make a node down, at least.
const FAILURES_MIN: u32 = 3;
/// So many good checks in a row end that.
const GOOD_MIN: u32 = 2;

/// What is said of a standby that should have told its lag.
pub(crate) const LAG_UNKNOWN: &str = "its lag is not known";
/// What is said of a standby that follows the primary and still names the timeline before.
pub(crate) const TIMELINE_UNKNOWN: &str = "it does not say yet that it is on the primary's timeline, so it gets no reads that must be fresh; \
     it says so at once if check_user is a member of pg_read_all_stats";
/// Longest text of an error that is kept.
const ERROR_CHARS_MAX: usize = 200;

/// What a primary's answers say of a standby's position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// It has replayed up to here, and the primary's last answer was behind that: it may have been asked before the standby.
    Perhaps { position: Lsn, started_us: i64 },
    /// So was the next one.
    Proven { position: Lsn, primary: Lsn, started_us: i64 },
}

/// A node.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    pub(crate) switch: Switch,
    /// Since when (monotonic, µs).
    switched_us: u64,
    pub(crate) weight: u32,
    pub(crate) zone: Arc<str>,
    /// What it had replayed of the primary, as a standby.
    pub(crate) followed: Option<Followed>,
    /// How far it is behind, as a standby.
    pub(crate) lag: Option<Lag>,
    /// Why its lag in time is not known, although it should have been told.
    pub(crate) lag_error: Option<String>,
    /// As a standby of this run, it may have changes that the primary does not have.
    ahead: Option<Ahead>,
    /// So far that it gets no reads.
    pub(crate) is_behind: bool,
    /// When it came back, or was attached (monotonic, µs).
    pub(crate) warm_since_us: Option<u64>,
    /// `attached` in the configuration: an operator's command counts until that changes.
    attached: bool,
    pub(crate) state: NodeState,
    /// Since when it has this state (monotonic, µs).
    pub(crate) since_us: u64,
    /// When its last check ended (monotonic, µs).
    pub(crate) checked_us: Option<u64>,
    pub(crate) last_error: Option<String>,
    /// What the log was told last: the word for its state, and why it has it.
    pub(crate) told: Option<(&'static str, Option<String>)>,
}

impl Node {
    pub(crate) fn new(id: NodeId, name: &str, options: &NodeOptions, now_us: u64) -> Node {
        Node {
            id,
            name: name.into(),
            host: options.host.as_str().into(),
            port: options.port,
            switch: switch_of(options),
            switched_us: now_us,
            weight: options.weight,
            zone: options.zone.as_str().into(),
            followed: None,
            lag: None,
            lag_error: None,
            ahead: None,
            is_behind: false,
            warm_since_us: None,
            attached: options.attached,
            state: NodeState::Unknown(Unknown::default()),
            since_us: now_us,
            checked_us: None,
            last_error: None,
            told: Some(("unknown", None)),
        }
    }

    /// It was never asked.
    pub(crate) fn is_new(&self) -> bool {
        self.checked_us.is_none()
    }

    /// It is the node of this line of the configuration.
    pub(crate) fn is_at(&self, name: &str, options: &NodeOptions) -> bool {
        *self.name == *name && *self.host == *options.host && self.port == options.port
    }

    pub(crate) fn follow(&mut self, options: &NodeOptions, now_us: u64) {
        self.weight = options.weight;
        self.zone = options.zone.as_str().into();
        if self.attached != options.attached {
            self.attached = options.attached;
            self.turn(switch_of(options), now_us);
        }
    }

    /// An operator's word on it.
    pub(crate) fn turn(&mut self, switch: Switch, now_us: u64) {
        if self.switch != switch {
            self.switched_us = now_us;
        }
        self.switch = switch;
    }

    /// Until when transactions may last on it, as it is drained or detached (monotonic, µs).
    pub(crate) fn drain_ends_us(&self, limits: &Limits) -> Option<u64> {
        let ends = self.switch != Switch::Attached && limits.node_drain_us > 0;
        ends.then(|| self.switched_us.saturating_add(limits.node_drain_us))
    }

    /// The primary said where it inserts. A standby of it that has replayed more, by what it said before the primary was asked, can
    /// never follow it. Returns whether that was found out now.
    pub(crate) fn compare(&mut self, primary: Lsn) -> bool {
        let Some(answer) =
            self.state.member().map(|member| member.answer).filter(|answer| answer.in_recovery)
        else {
            return false;
        };
        let started_us = answer.run.started_us;
        self.ahead = match self.ahead {
            Some(Ahead::Proven { started_us: run, .. }) if run == started_us => return false,
            Some(Ahead::Perhaps { position, started_us: run }) if run == started_us && position > primary => {
                Some(Ahead::Proven { position, primary, started_us })
            }
            _ => answer
                .position
                .filter(|position| *position > primary)
                .map(|position| Ahead::Perhaps { position, started_us }),
        };
        matches!(self.ahead, Some(Ahead::Proven { .. }))
    }

    /// Why it can never follow the primary, as long as its server is not started again.
    pub(crate) fn divergence(&self, answer: &Answer) -> Option<Refusal> {
        match self.ahead {
            Some(Ahead::Proven { position, primary, started_us }) if started_us == answer.run.started_us => {
                Some(Refusal::Diverged { position, primary })
            }
            _ => None,
        }
    }

    /// There is another primary.
    pub(crate) fn forget_divergence(&mut self) {
        self.ahead = None;
    }

    /// What was known counts no longer.
    pub(crate) fn forget(&mut self, now_us: u64) {
        self.enter(NodeState::Unknown(Unknown::default()), now_us);
        self.ahead = None;
        self.last_error = None;
    }

    /// What an administrator should know of it: its last error, or why it is not used.
    pub(crate) fn trouble(&self) -> Option<String> {
        match &self.state {
            NodeState::Unsure(unsure) => Some(unsure.why.to_string()),
            NodeState::Refused(Refused { why: Refusal::LoginRefused, .. }) => self.last_error.clone(),
            NodeState::Refused(refused) => Some(refused.why.to_string()),
            NodeState::Standby(member) if self.last_error.is_none() => {
                let hindrance = member.answer.hindrance.map(|hindrance| hindrance.text().to_owned());
                hindrance.or_else(|| self.lag_error.clone())
            }
            _ => self.last_error.clone(),
        }
    }

    pub(crate) fn enter(&mut self, state: NodeState, now_us: u64) {
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&state) {
            self.since_us = now_us;
            (self.lag, self.lag_error, self.is_behind) = (None, None, false);
            let comes_back = !matches!(self.state, NodeState::Unknown(_));
            self.warm_since_us = comes_back.then_some(now_us);
        }
        self.state = state;
    }

    /// Its part of the reads, in thousandths of that of a standby of weight 1. It grows by tenths while the standby warms up.
    pub(crate) fn share(&self, limits: &Limits, now_us: u64) -> u32 {
        if self.is_behind { 0 } else { self.weight * SHARE_WHOLE / 10 * self.tenths(limits, now_us) }
    }

    fn tenths(&self, limits: &Limits, now_us: u64) -> u32 {
        let Some(since_us) = self.warm_since_us else { return 10 };
        let step_us = limits.warm_up_us / 9;
        let steps = now_us.saturating_sub(since_us).checked_div(step_us).unwrap_or(9);
        u32::try_from(steps).unwrap_or(9).min(9) + 1
    }

    /// When its share grows (monotonic, µs).
    pub(crate) fn warmer_us(&self, limits: &Limits, now_us: u64) -> Option<u64> {
        let (since_us, tenths) = (self.warm_since_us?, self.tenths(limits, now_us));
        let next_us = since_us.saturating_add(u64::from(tenths) * (limits.warm_up_us / 9));
        (tenths < 10).then_some(next_us.max(now_us + 1))
    }

    /// A check has ended.
    pub(crate) fn observe(&mut self, observation: &Observation, limits: &Limits, now_us: u64) {
        self.checked_us = Some(now_us);
        self.last_error = match observation {
            Observation::Answered(_) => None,
            Observation::Failed(text)
            | Observation::Starting(text)
            | Observation::Lives(text)
            | Observation::LoginRefused(text)
            | Observation::OwnFault(text) => Some(cut(text)),
        };
        match observation {
            Observation::Answered(answer) => self.answered(*answer, now_us),
            Observation::Failed(_) => self.failed(limits, now_us),
            Observation::Starting(_) => self.starts(limits, now_us),
            Observation::Lives(_) => self.lives(),
            Observation::LoginRefused(_) => self.login_refused(now_us),
            Observation::OwnFault(_) => {}
        }
    }

    fn answered(&mut self, answer: Answer, now_us: u64) {
        if let NodeState::Down(down) = &mut self.state {
            down.good += 1;
            if down.good < GOOD_MIN {
                return;
            }
        }
        let answer = self.on_its_timeline(answer);
        let same = |member: &&Member| {
            member.answer.in_recovery == answer.in_recovery && member.answer.run == answer.run
        };
        let before = self.state.member().filter(same).map(|member| (member.checks, member.same_since_us));
        let (checks, same_since_us) = before.unwrap_or((0, now_us));
        let checks = checks.saturating_add(1);
        let member = Member { answer, heard_us: now_us, checks, same_since_us, failing: None };
        let state = match &self.state {
            NodeState::Refused(refused) if refused.why != Refusal::LoginRefused => {
                NodeState::Refused(Refused { why: refused.why.clone(), member: Some(member) })
            }
            _ if answer.in_recovery => NodeState::Standby(member),
            NodeState::Primary(_) => NodeState::Primary(member),
            NodeState::Unsure(unsure) => NodeState::Unsure(Unsure { member, why: unsure.why }),
            _ => NodeState::Unsure(Unsure { member, why: Doubt::New }),
        };
        self.enter(state, now_us);
    }

    /// A standby that receives nothing may name an older timeline than before: when its primary is lost, it does not say any more what it
    /// has received. As long as its server runs, it does not go back.
    fn on_its_timeline(&self, mut answer: Answer) -> Answer {
        let start = |run: Run| (run.system_identifier, run.started_us);
        if let Some(before) = self.state.member().map(|member| member.answer)
            && before.in_recovery
            && answer.in_recovery
            && start(before.run) == start(answer.run)
        {
            answer.run.timeline = answer.run.timeline.max(before.run.timeline);
        }
        answer
    }

    fn failed(&mut self, limits: &Limits, now_us: u64) {
        if let NodeState::Down(down) = &mut self.state {
            down.good = 0;
            return;
        }
        let Some(failing) = self.state.failing_mut() else { return };
        let since = failing.get_or_insert(Failing { since_us: now_us, count: 0 });
        since.count = since.count.saturating_add(1);
        let for_us = now_us.saturating_sub(since.since_us);
        if since.count >= FAILURES_MIN && for_us >= limits.down_after_us {
            self.enter(NodeState::Down(Down { good: 0 }), now_us);
        }
    }

    fn starts(&mut self, limits: &Limits, now_us: u64) {
        match &mut self.state {
            NodeState::Down(down) => down.good = 0,
            NodeState::Starting(starting) => {
                starting.failing = None;
                if now_us.saturating_sub(starting.since_us) >= limits.recovery_wait_us {
                    self.enter(NodeState::Down(Down { good: 0 }), now_us);
                }
            }
            _ => self.enter(NodeState::Starting(Starting { since_us: now_us, failing: None }), now_us),
        }
    }

    fn lives(&mut self) {
        if let Some(failing) = self.state.failing_mut() {
            *failing = None;
        }
    }

    /// A primary has its role until its last word is too old: it is the watching that was refused.
    fn login_refused(&mut self, now_us: u64) {
        self.lives();
        if !matches!(self.state, NodeState::Primary(_) | NodeState::Unsure(_)) {
            self.enter(NodeState::Refused(Refused { why: Refusal::LoginRefused, member: None }), now_us);
        }
    }
}

/// The text of an error, as it is kept.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(ERROR_CHARS_MAX).collect()
}

fn switch_of(options: &NodeOptions) -> Switch {
    if options.attached { Switch::Attached } else { Switch::Detached }
}

impl NodeState {
    pub(crate) fn member(&self) -> Option<&Member> {
        match self {
            NodeState::Standby(member) | NodeState::Primary(member) => Some(member),
            NodeState::Unsure(unsure) => Some(&unsure.member),
            NodeState::Refused(refused) => refused.member.as_ref(),
            NodeState::Unknown(_) | NodeState::Starting(_) | NodeState::Down(_) => None,
        }
    }

    /// Where failures are counted; `None` in states that have no more to lose by them.
    fn failing_mut(&mut self) -> Option<&mut Option<Failing>> {
        match self {
            NodeState::Standby(member) | NodeState::Primary(member) => Some(&mut member.failing),
            NodeState::Unsure(unsure) => Some(&mut unsure.member.failing),
            NodeState::Refused(refused) => refused.member.as_mut().map(|member| &mut member.failing),
            NodeState::Unknown(unknown) => Some(&mut unknown.failing),
            NodeState::Starting(starting) => Some(&mut starting.failing),
            NodeState::Down(_) => None,
        }
    }

    /// The word for it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            NodeState::Unknown(_) => "unknown",
            NodeState::Standby(_) => "standby",
            NodeState::Primary(_) => "primary",
            NodeState::Unsure(_) => "unsure",
            NodeState::Starting(_) => "starting",
            NodeState::Down(_) => "down",
            NodeState::Refused(_) => "refused",
        }
    }

    /// Server connections to it are closed at once, whatever they do.
    pub(crate) fn is_cut_off(&self) -> bool {
        matches!(self, NodeState::Down(_) | NodeState::Refused(_))
    }
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Doubt::New => "it has just been found",
            Doubt::Unconfirmed => "it has not confirmed that it is the primary (primary_max_age_ms)",
            Doubt::TwoPrimaries => "another node says that it is the primary, too",
            Doubt::Detached => "it is detached",
            Doubt::Source => "the source of the cluster does not name it as the primary",
            Doubt::SourceSilent => "the source of the cluster does not answer (source_lost)",
        })
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Stranger { theirs, ours } => {
                write!(
                    f,
                    "it is no copy of the cluster's primary: its system identifier is {theirs}, not {ours}"
                )
            }
            Refusal::OldPrimary { timeline, newer } => write!(
                f,
                "it is an old primary: it still accepts changes on timeline {timeline}, and the cluster is on {newer}"
            ),
            Refusal::Twin { of } => write!(f, "it accepts changes on the same timeline as the primary, {of}"),
            Refusal::Diverged { position, primary } => write!(
                f,
                "it has changes that the primary never had: it has replayed up to {position}, and the primary was at {primary} after \
                 that; it needs pg_rewind or a new base backup"
            ),
            Refusal::LoginRefused => f.write_str("it does not let check_user log in"),
            Refusal::TooOld { version } => {
                write!(f, "PostgreSQL {} is too old for a cluster; it needs 14", version / 10_000)
            }
        }
    }
}
