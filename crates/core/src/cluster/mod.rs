//! A cluster: one primary and its standbys. The module keeps the answers of the nodes, decides which of them is the primary, and what that
//! means for a server connection.
//!
//! Every result is a function of observations and the time. This module must never open a connection, and never see a pool.

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
pub mod vip;

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
    /// The time at which the server was started, by its own clock (µs since 1970).
    pub(crate) started_us: i64,
}

/// The limits of a cluster, as the settings give them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) interval_us: u64,
    pub(crate) timeout_us: u64,
    pub(crate) down_after_us: u64,
    pub(crate) recovery_wait_us: u64,
    pub(crate) primary_max_age_us: u64,
    pub(crate) primary_wait_us: u64,
    /// The value of `drain_timeout`; 0 means without limit.
    pub(crate) node_drain_us: u64,
    /// The value of `switchover_drain_ms`; `max_lag_bytes` is that of `switchover_max_lag_bytes`.
    pub(crate) drain_us: u64,
    pub(crate) max_lag_bytes: u64,
    /// The value of `promote_command_timeout`; `None` if the cluster has no `promote_command`.
    pub(crate) promote_us: Option<u64>,
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
            promote_us: options
                .promote_command
                .as_ref()
                .map(|_| duration_us(options.promote_command_timeout)),
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

/// Maximum number of removed nodes that are remembered. Their server connections end once another node is the primary.
const GONE_MAX: usize = 64;

/// The minimum time between two checks of a node.
pub(crate) const APART_US_MIN: u64 = 10_000;

/// A period in which a node is the primary in one run of its server, or a standby since the start of its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Term {
    /// The node's name.
    pub(crate) node: Arc<str>,
    pub(crate) run: Run,
}

impl Term {
    /// Whether the commits of `other` are in the history of this term: the same server under another name, or after a restart in place.
    pub(crate) fn continues(&self, other: &Term) -> bool {
        let history = |term: &Term| (term.run.system_identifier, term.run.timeline);
        let is_same_server = self.node == other.node || self.run.started_us == other.run.started_us;
        is_same_server && history(self) == history(other)
    }

    /// Whether both terms are of the same server process, on any timeline: a standby follows its primary to the next timeline.
    pub(crate) fn is_same_start(&self, other: &Term) -> bool {
        let start = |term: &Term| (term.run.system_identifier, term.run.started_us);
        self.node == other.node && start(self) == start(other)
    }
}

/// A message for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Remark {
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// A cluster: its nodes, and the decision which of them is the primary.
pub(crate) struct Cluster {
    pub(crate) name: Arc<str>,
    pub(crate) nodes: Vec<Node>,
    limits: Limits,
    /// The source that names the nodes and their roles (Patroni, etcd or DNS); `None` if only the nodes themselves are asked.
    source: Option<Source>,
    /// The names of nodes that the configuration or the source no longer names; at most [`GONE_MAX`].
    gone: Vec<Arc<str>>,
    /// The number of times that another primary, or another run of the same one, was found; 0 if there was no primary yet.
    epoch: u64,
    /// The term of the last primary; `None` if there was none yet.
    last: Option<Term>,
    /// The time at which the last primary last reported to be the primary (monotonic, µs), and the position at which its recovery had
    /// ended.
    heard: Option<(u64, Option<Lsn>)>,
    /// The system identifier of the cluster's primary; `None` before there was one.
    identifier: Option<u64>,
    /// The highest timeline of any primary that the cluster has had.
    timeline: u32,
    /// The highest timeline that a node of the cluster has shown, unless the source contradicts that node. It is known before the primary
    /// of that timeline is. A commit on an older timeline is lost from then on.
    newest: u32,
    /// The time at which the roles were decided last (monotonic, µs).
    decided_us: u64,
    /// The recent positions of the primary, from which the lag of standbys is measured.
    positions: Positions,
    /// The time since which no new work can be sent to a primary (monotonic, µs); `None` while it can.
    held_since_us: Option<u64>,
    /// The time since which no standby takes reads (monotonic, µs); `None` while one does.
    bare_since_us: Option<u64>,
    /// New work waits because a switchover is under way: one that an operator has begun here, or one that the source announces.
    planned: bool,
    switchover: Option<Switchover>,
    ended: Option<Ended>,
    /// The number of the last switchover that was begun here.
    switchovers: u64,
    remarks: Vec<Remark>,
    next_id: u32,
}

impl Cluster {
    /// Returns a cluster without nodes, of which nothing is known.
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

    /// Follows the configuration of the source. If `discovery` has changed, everything that the old source said is discarded.
    pub(crate) fn follow_source(&mut self, options: &ClusterOptions) {
        match &mut self.source {
            Some(source) if source.discovery() == options.discovery => source.follow(options),
            source => *source = Source::of(options),
        }
    }

    pub(crate) fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// Follows the list of nodes. The state of a node that stays is kept.
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

    /// Records the result of a check of a node, and decides the roles.
    pub(crate) fn observe(&mut self, id: NodeId, observation: &Observation, now_us: u64) {
        let limits = self.limits;
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            node.observe(observation, &limits, now_us);
        }
        self.decide(now_us);
        self.measure(id, observation, now_us);
    }

    /// Measures lag after an answer with a position: a standby's own lag, or, after an answer of the primary, whether a standby has
    /// diverged.
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

    /// Whether a node is a standby that is to be asked for its lag. While no primary answers, a known lag is kept, because the heartbeat
    /// does not advance then.
    pub(crate) fn wants_lag(&self, id: NodeId) -> bool {
        let primary = self.primary().and_then(|node| node.state.member());
        let is_written = primary.is_some_and(|member| member.failing.is_none());
        let is_unknown = |node: &Node| node.lag.is_none_or(|lag| lag.us.is_none());
        let standby = self.node(id).filter(|node| matches!(node.state, NodeState::Standby(_)));
        self.limits.lag.is_told && standby.is_some_and(|node| is_written || is_unknown(node))
    }

    /// Takes a standby's lag in time as `lag_query` or `lag_command` returned it, or the error of that.
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

    /// Notes the position that a standby has replayed of a primary that answered shortly before; for the primary itself, the time of its
    /// answer.
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

    /// Restores operators' ATTACH, DRAIN and DETACH commands for nodes that are new here: those given before this configuration, or in the
    /// previous process.
    pub(crate) fn keep_switches(&mut self, switch_of: impl Fn(&str) -> Option<Switch>, now_us: u64) {
        for node in self.nodes.iter_mut().filter(|node| node.is_new()) {
            node.turn(switch_of(&node.name).unwrap_or(node.switch), now_us);
        }
        self.decide(now_us);
    }

    /// Attaches, drains or detaches a node on behalf of an operator.
    pub(crate) fn switch(&mut self, id: NodeId, switch: Switch, now_us: u64) {
        if let Some(node) = self.nodes.iter_mut().find(|node| node.id == id) {
            if node.switch != switch {
                node.warm_since_us = Some(now_us);
            }
            node.turn(switch, now_us);
        }
        self.decide(now_us);
    }

    /// Forgets, for RECHECK, the states of all nodes, the cluster's system identifier, and its timeline.
    pub(crate) fn forget(&mut self, now_us: u64) {
        (self.identifier, self.timeline) = (None, 0);
        self.nodes.iter_mut().for_each(|node| node.forget(now_us));
        self.decide(now_us);
    }

    /// Returns the node that is the primary now, even if it is not attached.
    pub(crate) fn primary(&self) -> Option<&Node> {
        self.nodes.iter().find(|node| matches!(node.state, NodeState::Primary(_)))
    }

    /// Returns the primary, if new work may be sent to it: it is attached, and no switchover is under way.
    pub(crate) fn serving(&self) -> Option<&Node> {
        self.primary().filter(|node| node.switch == Switch::Attached && !self.is_planned())
    }

    /// Whether a switchover is under way, so that clients wait although the primary is known.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned
    }

    /// Whether checks follow each other faster, because no primary takes work or the primary did not answer its last check.
    pub(crate) fn hurries(&self) -> bool {
        self.lacks_since_us().is_some()
    }

    /// Returns the time since which no primary takes work, or since which the checks of the primary fail (monotonic, µs).
    fn lacks_since_us(&self) -> Option<u64> {
        match self.serving() {
            Some(node) => node.state.member()?.failing.map(|failing| failing.since_us),
            None => Some(self.held_since_us.unwrap_or(self.decided_us)),
        }
    }

    /// Returns the time from the start of a check of a node to the start of the next one (µs).
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

    /// Whether the node answers its checks and may become the primary while clients still wait for one (`primary_wait`).
    fn may_be_next(&self, id: NodeId, now_us: u64) -> bool {
        let waits = |since_us: u64| now_us.saturating_sub(since_us) < self.limits.primary_wait_us;
        let member = self.node(id).and_then(|node| node.state.member());
        self.lacks_since_us().is_some_and(waits) && member.is_some_and(|member| member.failing.is_none())
    }

    /// Decides the roles again because time has passed: a primary that is not confirmed loses its role.
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.decide(now_us);
    }

    /// Returns the time at which [`Cluster::expire`] must be called although no check has ended (monotonic, µs).
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

    /// Returns the messages for the log since the last call.
    pub(crate) fn take_remarks(&mut self) -> Vec<Remark> {
        std::mem::take(&mut self.remarks)
    }
}
