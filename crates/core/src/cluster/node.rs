//! A node: its states, and how an observation changes them. This module does not decide whether a node that reports to be the primary gets
//! that role: that depends on the other nodes (`roles.rs`).

use std::sync::Arc;

use pgweir_settings::NodeOptions;

use crate::cluster::answer::{Answer, Lsn};
use crate::cluster::lag::Lag;
use crate::cluster::outcome::Followed;
use crate::cluster::view::{SHARE_WHOLE, Switch};
use crate::cluster::{Limits, NodeId, Run};

/// The result of a check of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Observation {
    /// The node answered the question.
    Answered(Answer),
    /// A new connection could not be opened, or the node did not answer the question in time. No other observation is evidence against a
    /// node.
    Failed(String),
    /// The server refused the connection with SQLSTATE 57P03: it starts up, recovers or shuts down.
    Starting(String),
    /// The server runs, but did not answer the question: it refused the connection with SQLSTATE 53300, or answered with an error.
    Lives(String),
    /// The server does not let `check_user` log in (SQLSTATE 28xxx or 3D000).
    LoginRefused(String),
    /// The check failed because of this machine (no free descriptor, no free port). The observation says nothing about the node.
    OwnFault(String),
}

/// The knowledge about a node that has answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    /// The node's last answer.
    pub(crate) answer: Answer,
    /// The time at which the last answer came (monotonic, µs).
    pub(crate) heard_us: u64,
    /// The number of consecutive answers with the same role in the same run; `same_since_us` is the time of the first of them (monotonic,
    /// µs).
    pub(crate) checks: u32,
    pub(crate) same_since_us: u64,
    /// The checks that have failed since the last answer; `None` if none has.
    pub(crate) failing: Option<Failing>,
}

/// A series of failed checks, without a successful check between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failing {
    /// The time at which the first of the checks failed (monotonic, µs).
    pub(crate) since_us: u64,
    pub(crate) count: u32,
}

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodeState {
    /// The node has never answered, or what it answered was discarded by RECHECK.
    Unknown(Unknown),
    /// The node is in recovery.
    Standby(Member),
    /// The node reports to be the primary, and no other node and no source contradicts it.
    Primary(Member),
    /// The node has reported to be the primary, but that is in doubt: no new work is sent to it.
    Unsure(Unsure),
    /// The node's server starts up or recovers.
    Starting(Starting),
    /// The node's checks have failed for `down_after_ms`, or it has been starting for `recovery_wait_ms`. Its server connections are
    /// closed.
    Down(Down),
    /// The node must not be used in its present condition. Its server connections are closed.
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
    /// The time since which the server reports that it is starting (monotonic, µs).
    pub(crate) since_us: u64,
    pub(crate) failing: Option<Failing>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Down {
    /// The number of consecutive checks that the node has answered since it went down.
    pub(crate) good: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) why: Refusal,
    /// The node's last answer; `None` if the node does not let `check_user` log in.
    pub(crate) member: Option<Member>,
}

/// The reason why a node that reports to be the primary is not trusted at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doubt {
    /// The node has answered, but it has not been compared with the other nodes yet.
    New,
    /// The node has not reported to be the primary for `primary_max_age_ms`, or not since its last failed check.
    Unconfirmed,
    /// Another node reports to be the primary, too.
    TwoPrimaries,
    /// An operator has detached the node.
    Detached,
    /// The cluster's source says that the node is not the primary.
    Source,
    /// The cluster's source does not answer, and with `source_lost=hold` no node counts as the primary without it.
    SourceSilent,
}

/// The reason why a node is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The node is not a copy of the cluster's primary: its system identifier differs.
    Stranger { theirs: u64, ours: u64 },
    /// The node reports to be the primary, but on an older timeline than the cluster's newest one.
    OldPrimary { timeline: u32, newer: u32 },
    /// The node reports to be the primary on the same timeline as the node `of`, which has the role.
    Twin { of: Arc<str> },
    /// The standby has replayed changes that the present primary never wrote: it was ahead of the standby that was promoted.
    Diverged { position: Lsn, primary: Lsn },
    /// The node does not let `check_user` log in.
    LoginRefused,
    /// The server's version is before 14. Such a server does not report at login whether it is in recovery.
    TooOld { version: u32 },
}
/// The minimum number of consecutive failed checks before a node counts as down.
const FAILURES_MIN: u32 = 3;
/// The number of consecutive answered checks after which a node no longer counts as down.
const GOOD_MIN: u32 = 2;

/// The log message for a standby whose `lag_query` or `lag_command` did not return a lag.
pub(crate) const LAG_UNKNOWN: &str = "its lag is not known";
/// The message for a standby that follows the primary but still reports the previous timeline.
pub(crate) const TIMELINE_UNKNOWN: &str = "it does not say yet that it is on the primary's timeline, so it gets no reads that must be fresh; \
     it says so at once if check_user is a member of pg_read_all_stats";
/// Maximum number of characters that are kept of the text of an error.
const ERROR_CHARS_MAX: usize = 200;

/// The result of comparing a standby's replay position with the primary's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// The standby has replayed up to `position`, and the primary's last answer was before that. The primary may have been asked before the
    /// standby.
    Perhaps { position: Lsn, started_us: i64 },
    /// The primary's next answer was before `position`, too, so the standby has changes that the primary does not have.
    Proven { position: Lsn, primary: Lsn, started_us: i64 },
}

/// A node.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    pub(crate) switch: Switch,
    /// The time at which `switch` changed last (monotonic, µs).
    switched_us: u64,
    pub(crate) weight: u32,
    pub(crate) zone: Arc<str>,
    /// The position up to which the node, as a standby, was last seen to have replayed a primary's log; `None` if it was not seen so.
    pub(crate) followed: Option<Followed>,
    /// The node's lag as a standby; `None` if it was not measured in the present state.
    pub(crate) lag: Option<Lag>,
    /// The error of `lag_query` or `lag_command`; `None` if the lag in time was told, or need not be.
    pub(crate) lag_error: Option<String>,
    /// Evidence that the standby has changes that the primary does not have; `None` if there is none.
    ahead: Option<Ahead>,
    /// Whether the standby's lag is over a limit, so that it gets no reads.
    pub(crate) is_behind: bool,
    /// The time at which the node came back or was attached (monotonic, µs); its share of the reads grows from then on. `None` for a node
    /// that has been there from the start.
    pub(crate) warm_since_us: Option<u64>,
    /// The value of `attached` in the configuration. An operator's command counts until that value changes.
    attached: bool,
    pub(crate) state: NodeState,
    /// The time since which the node has its state (monotonic, µs).
    pub(crate) since_us: u64,
    /// The time at which the node's last check ended (monotonic, µs); `None` before the first one.
    pub(crate) checked_us: Option<u64>,
    pub(crate) last_error: Option<String>,
    /// The state, and the reason for it, that the log last reported for this node.
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

    /// Whether the node has not been checked yet.
    pub(crate) fn is_new(&self) -> bool {
        self.checked_us.is_none()
    }

    /// Whether the node is the one of this line of the configuration: the same name, host and port.
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

    /// Attaches, drains or detaches the node.
    pub(crate) fn turn(&mut self, switch: Switch, now_us: u64) {
        if self.switch != switch {
            self.switched_us = now_us;
        }
        self.switch = switch;
    }

    /// Returns the time until which open transactions may last on a draining or detached node (monotonic, µs); `None` for an attached node,
    /// or without `drain_timeout`.
    pub(crate) fn drain_ends_us(&self, limits: &Limits) -> Option<u64> {
        let ends = self.switch != Switch::Attached && limits.node_drain_us > 0;
        ends.then(|| self.switched_us.saturating_add(limits.node_drain_us))
    }

    /// Compares a standby with the primary's insert position. A standby that has replayed more, by an answer from before the primary was
    /// asked, can never follow it. Returns whether this call has proven that.
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

    /// Returns the refusal of a standby that was proven to have diverged from the primary; `None` if that is not proven for the present
    /// start of its server.
    pub(crate) fn divergence(&self, answer: &Answer) -> Option<Refusal> {
        match self.ahead {
            Some(Ahead::Proven { position, primary, started_us }) if started_us == answer.run.started_us => {
                Some(Refusal::Diverged { position, primary })
            }
            _ => None,
        }
    }

    /// Forgets the evidence of divergence, because there is another primary.
    pub(crate) fn forget_divergence(&mut self) {
        self.ahead = None;
    }

    /// Forgets the node's state, its divergence and its last error.
    pub(crate) fn forget(&mut self, now_us: u64) {
        self.enter(NodeState::Unknown(Unknown::default()), now_us);
        self.ahead = None;
        self.last_error = None;
    }

    /// Returns the node's last error, or the reason why it is not used; `None` if there is neither.
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

    /// Returns the node's share of the reads, in thousandths of the share of a warm standby of weight 1. While the standby warms up, the
    /// share grows in tenths.
    pub(crate) fn share(&self, limits: &Limits, now_us: u64) -> u32 {
        if self.is_behind { 0 } else { self.weight * SHARE_WHOLE / 10 * self.tenths(limits, now_us) }
    }

    fn tenths(&self, limits: &Limits, now_us: u64) -> u32 {
        let Some(since_us) = self.warm_since_us else { return 10 };
        let step_us = limits.warm_up_us / 9;
        let steps = now_us.saturating_sub(since_us).checked_div(step_us).unwrap_or(9);
        u32::try_from(steps).unwrap_or(9).min(9) + 1
    }

    /// Returns the time at which the node's share grows next (monotonic, µs); `None` if the node is warm.
    pub(crate) fn warmer_us(&self, limits: &Limits, now_us: u64) -> Option<u64> {
        let (since_us, tenths) = (self.warm_since_us?, self.tenths(limits, now_us));
        let next_us = since_us.saturating_add(u64::from(tenths) * (limits.warm_up_us / 9));
        (tenths < 10).then_some(next_us.max(now_us + 1))
    }

    /// Records the result of a check, and changes the node's state accordingly.
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

    /// Corrects the timeline of an answer. A standby that has lost its primary may report an older timeline than before, because it no
    /// longer reports what it has received. Its timeline does not go back while its server runs.
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

    /// Refuses the node, unless it has reported to be the primary. A primary keeps its role until its last answer is too old, because the
    /// server refused the check only.
    fn login_refused(&mut self, now_us: u64) {
        self.lives();
        if !matches!(self.state, NodeState::Primary(_) | NodeState::Unsure(_)) {
            self.enter(NodeState::Refused(Refused { why: Refusal::LoginRefused, member: None }), now_us);
        }
    }
}

/// Returns the first [`ERROR_CHARS_MAX`] characters of the text of an error.
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

    /// Returns the place where failed checks are counted; `None` in a state that failures do not change.
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

    /// Returns the name of the state in SHOW NODES and in the log.
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

    /// Whether server connections to a node in this state are closed at once, even during a transaction.
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
