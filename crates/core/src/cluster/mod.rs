//! A cluster: one primary and its standbys. What its nodes said, which of them is the primary now, and what that means for a
//! server connection.
//!
//! Everything here is a function of observations and the time. This room must never open a connection, and never see a pool.

pub(crate) mod answer;
pub(crate) mod choice;
pub(crate) mod lag;
pub(crate) mod node;
pub(crate) mod outcome;
pub(crate) mod replayed;
mod roles;
pub mod source;
pub(crate) mod switchover;
#[cfg(test)]
mod tests;
pub(crate) mod token;
pub mod view;

use std::sync::Arc;

use pgweir_settings::{ClusterOptions, NodeOptions};

use crate::cluster::answer::{Answer, Lsn};
use crate::cluster::lag::{Lag, LagLimits, Positions, ToldLag};
use crate::cluster::node::{Node, NodeState, Observation, cut};
use crate::cluster::outcome::Followed;
use crate::cluster::source::Source;
use crate::cluster::switchover::{Ended, Switchover};
use crate::cluster::view::Switch;
use crate::context::duration_us;
use crate::driver::Level;

/// A node of a cluster. A node that gets another address is another node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeId(pub(crate) u32);

/// One run of a primary: from a promotion or a start of its server to the next one. A server connection that was opened in another run
/// is of an older epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) system_identifier: u64,
    pub(crate) timeline: u32,
    /// When the server was started, by its own clock (µs since 1970).
    pub(crate) started_us: i64,
}

/// What the settings say of the times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) interval_us: u64,
    pub(crate) timeout_us: u64,
    pub(crate) down_after_us: u64,
    pub(crate) recovery_wait_us: u64,
    pub(crate) primary_max_age_us: u64,
    pub(crate) primary_wait_us: u64,
    /// `drain_timeout`; 0: without limit.
    pub(crate) node_drain_us: u64,
    /// `switchover_drain_ms`, `switchover_max_lag_bytes`
    pub(crate) drain_us: u64,
    pub(crate) max_lag_bytes: u64,
    pub(crate) warm_up_us: u64,
    pub(crate) lag: LagLimits,
    pub(crate) prefers_lower_lag: bool,
}

impl Limits {
    pub(crate) fn of(options: &ClusterOptions) -> Limits {
        let us = |ms: u32| u64::from(ms) * 1000;
        Limits {
            interval_us: us(options.check_interval_ms),
            timeout_us: us(options.check_timeout_ms),
            down_after_us: us(options.down_after_ms),
            recovery_wait_us: us(options.recovery_wait_ms),
            primary_max_age_us: us(options.primary_max_age_ms),
            primary_wait_us: duration_us(options.primary_wait),
            node_drain_us: duration_us(options.drain_timeout),
            drain_us: us(options.switchover_drain_ms),
            max_lag_bytes: options.switchover_max_lag_bytes.into(),
            warm_up_us: us(options.warm_up_ms),
            lag: LagLimits {
                is_told: options.lag_query.is_some() || options.lag_command.is_some(),
                us: us(options.lag_limit_ms),
                bytes: u64::from(options.lag_limit_bytes),
            },
            prefers_lower_lag: options.prefer_lower_lag,
        }
    }
}

/// Nodes that are gone and are remembered, so that what is open there ends once another node is the primary.
const GONE_MAX: usize = 64;

/// Checks of one node are not nearer to each other, whatever happens.
pub(crate) const APART_US_MIN: u64 = 10_000;

/// A node as the primary, in one run; or as a standby, since its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Term {
    /// The node's name.
    pub(crate) node: Arc<str>,
    pub(crate) run: Run,
}

impl Term {
    /// Whether commits of the other term are in the history of this one: the same server under another name, or after a restart in place.
    pub(crate) fn continues(&self, other: &Term) -> bool {
        let history = |term: &Term| (term.run.system_identifier, term.run.timeline);
        let is_same_server = self.node == other.node || self.run.started_us == other.run.started_us;
        is_same_server && history(self) == history(other)
    }

    /// The same server process, on whichever timeline: a standby follows its primary to the next one.
    pub(crate) fn is_same_start(&self, other: &Term) -> bool {
        let start = |term: &Term| (term.run.system_identifier, term.run.started_us);
        self.node == other.node && start(self) == start(other)
    }
}

/// What an administrator should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Remark {
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// What is known of a cluster. It answers one question: which node is the primary?
pub(crate) struct Cluster {
    pub(crate) name: Arc<str>,
    pub(crate) nodes: Vec<Node>,
    limits: Limits,
    /// What says of the nodes what they are, besides themselves.
    source: Option<Source>,
    /// Nodes that the source does not name any more.
    gone: Vec<Arc<str>>,
    /// One more at each change of the primary, and at each restart of it. 0: there was none yet.
    epoch: u64,
    /// The primary that it had last.
    last: Option<Term>,
    /// When that said last that it is the primary (monotonic, µs), and where its recovery had ended.
    heard: Option<(u64, Option<Lsn>)>,
    /// The system identifier of its primary.
    identifier: Option<u64>,
    /// The highest timeline that a primary of it had.
    timeline: u32,
    /// The highest timeline that a node of it has shown, unless the source contradicts that node: what is committed on an older one from
    /// here on is lost. It is known before it is decided which node is the primary of that timeline.
    newest: u32,
    /// When it was decided last (monotonic, µs).
    decided_us: u64,
    /// Where the primary was.
    positions: Positions,
    /// Since when nothing new can be sent to a primary (monotonic, µs).
    held_since_us: Option<u64>,
    /// Since when there is no standby that reads may go to (monotonic, µs).
    bare_since_us: Option<u64>,
    /// New work waits for a switchover that is under way: ours, or one that the source announces.
    planned: bool,
    switchover: Option<Switchover>,
    ended: Option<Ended>,
    /// Number of the last switchover.
    switchovers: u64,
    remarks: Vec<Remark>,
    next_id: u32,
}

impl Cluster {
    /// A cluster of which nothing is known.
    pub(crate) fn new(name: &str, limits: Limits, now_us: u64) -> Cluster {
        Cluster {
            name: name.into(),
            nodes: Vec::new(),
            limits,
            source: None,
            gone: Vec::new(),
            epoch: 0,
            last: None,
            heard: None,
            identifier: None,
            timeline: 0,
            newest: 0,
            decided_us: now_us,
            positions: Positions::default(),
            held_since_us: Some(now_us),
            bare_since_us: Some(now_us),
            planned: false,
            switchover: None,
            ended: None,
            switchovers: 0,
            remarks: Vec::new(),
            next_id: 0,
        }
    }

    /// Follows the configuration of the source. With another way of discovery, what the old source said counts no longer.
    pub(crate) fn follow_source(&mut self, options: &ClusterOptions) {
        match &mut self.source {
            Some(source) if source.discovery() == options.discovery => source.follow(options),
            source => *source = Source::of(options),
        }
    }

    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Follows the list of nodes: those that stay keep what is known of them.
    pub(crate) fn follow(&mut self, limits: Limits, nodes: &[(&str, &NodeOptions)], now_us: u64) {
        self.limits = limits;
        let mut old = std::mem::take(&mut self.nodes);
        for (name, options) in nodes {
            let place = old.iter().position(|node| node.is_at(name, options));
            let mut node = match place {
                Some(place) => old.swap_remove(place),
                None => {
                    self.next_id += 1;
                    Node::new(NodeId(self.next_id), name, options, now_us)
                }
            };
            node.follow(options, now_us);
            self.nodes.push(node);
        }
        self.gone.extend(old.into_iter().map(|node| node.name));
        let nodes = &self.nodes;
        self.gone.retain(|name| nodes.iter().all(|node| node.name != *name));
        let excess = self.gone.len().saturating_sub(GONE_MAX);
        self.gone.drain(..excess);
        self.decide(now_us);
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub(crate) fn node_named(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| *node.name == *name)
    }

    /// A check of a node has ended.
    pub(crate) fn observe(&mut self, id: NodeId, observation: &Observation, now_us: u64) {
        let limits = self.limits;
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            node.observe(observation, &limits, now_us);
        }
        self.decide(now_us);
        self.measure(id, observation, now_us);
    }

    /// A node said where it is: how far it is behind, or how far the others are.
    fn measure(&mut self, id: NodeId, observation: &Observation, now_us: u64) {
        let Observation::Answered(_) = observation else { return };
        // What the node makes of it: it may know its timeline better.
        let Some(answer) = self.node(id).and_then(|node| node.state.member()).map(|member| member.answer)
        else {
            return;
        };
        if let Some(position) = answer.position {
            self.note_followed(id, &answer, position, now_us);
        }
        let Some(node) = self.node(id) else { return };
        match (&node.state, answer.position) {
            (NodeState::Primary(_), Some(position)) => {
                self.positions.note(position, now_us);
                let mut is_news = false;
                for other in self.nodes.iter_mut().filter(|node| node.id != id) {
                    is_news |= other.compare(position);
                }
                if is_news {
                    self.decide(now_us);
                }
            }
            // Without a primary nothing is known of the lag: what was known counts.
            (NodeState::Standby(_), position) => {
                let known = node.lag.unwrap_or_default();
                let measured = position.and_then(|position| self.positions.lag(position, now_us));
                if self.limits.lag.is_told {
                    let bytes = measured.unwrap_or(known).bytes;
                    self.set_lag(id, Lag { bytes, us: known.us }, now_us);
                } else if let Some(lag) = measured {
                    self.set_lag(id, lag, now_us);
                }
            }
            _ => {}
        }
    }

    /// A standby is to be asked for its lag. While no primary answers, what it told last counts: a heartbeat stands still then.
    pub(crate) fn wants_lag(&self, id: NodeId) -> bool {
        let primary = self.primary().and_then(|node| node.state.member());
        let is_written = primary.is_some_and(|member| member.failing.is_none());
        let is_unknown = |node: &Node| node.lag.is_none_or(|lag| lag.us.is_none());
        let standby = self.node(id).filter(|node| matches!(node.state, NodeState::Standby(_)));
        self.limits.lag.is_told && standby.is_some_and(|node| is_written || is_unknown(node))
    }

    /// A node told its lag in time, or did not.
    pub(crate) fn take_lag(&mut self, id: NodeId, told: ToldLag, now_us: u64) {
        let is_told = self.limits.lag.is_told;
        let standby = |node: &&mut Node| node.id == id && matches!(node.state, NodeState::Standby(_));
        let Some(node) = self.nodes.iter_mut().find(standby).filter(|_| is_told) else { return };
        let bytes = node.lag.unwrap_or_default().bytes;
        let us = told.as_ref().ok().copied();
        node.lag_error = told.err().map(|text| cut(&text));
        self.set_lag(id, Lag { bytes, us }, now_us);
        self.decide(now_us);
    }

    fn set_lag(&mut self, id: NodeId, lag: Lag, now_us: u64) {
        let limits = self.limits.lag;
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) else { return };
        // It need not come down to half of the limit if it was never known to be above.
        let was_over = node.is_behind && node.lag.is_some_and(|known| known.us.is_some());
        node.lag = Some(lag);
        if !limits.is_told {
            node.lag_error = None;
        }
        let is_behind = limits.exceeds(lag, was_over);
        if std::mem::replace(&mut node.is_behind, is_behind) != is_behind {
            self.decide(now_us);
        }
    }

    /// What a standby has replayed of a primary that was heard of just before.
    fn note_followed(&mut self, id: NodeId, answer: &Answer, position: Lsn, now_us: u64) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) else { return };
        match (&node.state, &self.last) {
            (NodeState::Primary(_), Some(last)) if last.node == node.name && last.run == answer.run => {
                self.heard = Some((now_us, answer.replayed));
            }
            (NodeState::Standby(_), Some(last)) => {
                let Some((heard_us, recovered)) = self.heard else { return };
                let is_recent = now_us.saturating_sub(heard_us) <= 2 * self.limits.interval_us;
                if is_recent && last.run.timeline == answer.run.timeline {
                    let (from, started_us) = (last.clone(), answer.run.started_us);
                    node.followed = Some(Followed { from, recovered, started_us, replayed: position });
                }
            }
            _ => {}
        }
    }

    /// What operators said of nodes that are new here: before this configuration, or in the process before.
    pub(crate) fn keep_switches(&mut self, switch_of: impl Fn(&str) -> Option<Switch>, now_us: u64) {
        for node in self.nodes.iter_mut().filter(|node| node.is_new()) {
            node.turn(switch_of(&node.name).unwrap_or(node.switch), now_us);
        }
        self.decide(now_us);
    }

    /// An operator attaches, drains or detaches a node.
    pub(crate) fn switch(&mut self, id: NodeId, switch: Switch, now_us: u64) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            if node.switch != switch {
                node.warm_since_us = Some(now_us);
            }
            node.turn(switch, now_us);
        }
        self.decide(now_us);
    }

    /// An operator says that what was known counts no longer: which cluster it is, and how far its history went.
    pub(crate) fn forget(&mut self, now_us: u64) {
        (self.identifier, self.timeline) = (None, 0);
        self.nodes.iter_mut().for_each(|node| node.forget(now_us));
        self.decide(now_us);
    }

    /// The node that has the role now, attached or not.
    pub(crate) fn primary(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| matches!(node.state, NodeState::Primary(_)))
    }

    /// The primary, if it takes new work.
    pub(crate) fn serving(&self) -> Option<&Node> {
        self.primary().filter(|node| node.switch == Switch::Attached && !self.is_planned())
    }

    /// A switchover is under way, so clients wait although the primary is known.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned
    }

    /// Checks follow faster: no primary is known, or the one that is did not answer its last check.
    pub(crate) fn hurries(&self) -> bool {
        self.lacks_since_us().is_some()
    }

    /// Since when no primary takes work, or the one that does failed its checks (monotonic, µs).
    fn lacks_since_us(&self) -> Option<u64> {
        match self.serving() {
            Some(node) => node.state.member()?.failing.map(|failing| failing.since_us),
            None => Some(self.held_since_us.unwrap_or(self.decided_us)),
        }
    }

    /// How long after a check of a node the next one follows (µs).
    pub(crate) fn pause_us(&self, id: NodeId, now_us: u64) -> u64 {
        let interval_us = self.limits.interval_us;
        if self.is_planned() || self.may_be_next(id, now_us) {
            APART_US_MIN
        } else if self.hurries() {
            (interval_us / 10).max(APART_US_MIN)
        } else {
            interval_us
        }
    }

    /// The node answers, and may become the primary while clients wait for one.
    fn may_be_next(&self, id: NodeId, now_us: u64) -> bool {
        let waits = |since_us: u64| now_us.saturating_sub(since_us) < self.limits.primary_wait_us;
        let member = self.node(id).and_then(|node| node.state.member());
        self.lacks_since_us().is_some_and(waits) && member.is_some_and(|member| member.failing.is_none())
    }

    /// Time has passed: a primary that is not confirmed loses its role.
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.decide(now_us);
    }

    /// When [`Cluster::expire`] is to be called although no check has ended (monotonic, µs).
    pub(crate) fn expires_us(&self, now_us: u64) -> Option<u64> {
        let of_role = self.primary().and_then(|node| {
            let heard_us = node.state.member()?.heard_us;
            Some(heard_us.saturating_add(self.limits.primary_max_age_us).saturating_add(1))
        });
        let of_shares = self.standbys().filter_map(|(node, _)| node.warmer_us(&self.limits, self.decided_us));
        let of_source = self.source_expires_us(now_us);
        let ends_us =
            |node: &Node| node.drain_ends_us(&self.limits).filter(|ends_us| *ends_us > self.decided_us);
        let of_drains = self.nodes.iter().filter_map(ends_us);
        let of_all = of_role.into_iter().chain(of_source).chain(self.switchover_expires_us());
        of_all.chain(of_shares).chain(of_drains).min()
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the log is to say, once.
    pub(crate) fn take_remarks(&mut self) -> Vec<Remark> {
        std::mem::take(&mut self.remarks)
    }
}
