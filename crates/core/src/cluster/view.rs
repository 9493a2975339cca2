//! A view of a cluster: the state that all workers are told, and by which they route clients.

use std::sync::Arc;

use crate::cluster::lag::Lag;
use crate::cluster::node::{Node, NodeState};
use crate::cluster::outcome::Followed;
use crate::cluster::switchover::Drain;
use crate::cluster::{Cluster, Run, Term};
use crate::driver::Endpoint;

/// The share of a warm standby of weight 1.
pub(crate) const SHARE_WHOLE: u32 = 1000;

/// The state of a cluster as the workers use it. The worker that watches the cluster sends it to all workers whenever it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub(crate) cluster: Arc<str>,
    pub(crate) epoch: u64,
    /// The highest timeline that a node has shown (`Cluster::newest`); 0 if none has. A primary of an older timeline is deposed, and its
    /// answers to commits are not passed on.
    pub(crate) newest: u32,
    /// The node to which all new work is sent; `None` while clients have to wait.
    pub(crate) primary: Option<Target>,
    /// The position up to which the primary, while it was a standby, had replayed the log of the previous primary; `None` if that is not
    /// known.
    pub(crate) followed: Option<Followed>,
    /// The time since which there is no primary that takes work (monotonic, µs); `None` while there is one.
    pub(crate) held_since_us: Option<u64>,
    /// The attached standbys, to which reads may be sent.
    pub(crate) standbys: Vec<Standby>,
    /// The time since which no standby takes reads (monotonic, µs); `None` while one does.
    pub(crate) bare_since_us: Option<u64>,
    /// The names of attached nodes whose role is not known at present. They get no new work, and keep their server connections.
    pub(crate) undecided: Vec<Arc<str>>,
    /// There is no primary because a switchover is under way: clients wait for it, even if `primary_wait` is shorter.
    pub(crate) is_planned: bool,
    /// The instruction for open transactions during a switchover; `None` if there is no instruction.
    pub(crate) drain: Option<Drain>,
    /// The names of nodes whose `drain_timeout` is over. Their server connections are closed at once.
    pub(crate) drained: Vec<Arc<str>>,
    /// The names of nodes that are down, refused or gone. Their server connections are closed at once.
    pub(crate) cut_off: Vec<Arc<str>>,
    /// The reason why there is no primary or no standby: each node with its state. Empty if there are both.
    pub(crate) obstacle: String,
}

/// A node to which server connections are opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) term: Term,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

/// A standby of a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standby {
    pub(crate) target: Target,
    /// The standby's share of the reads, in thousandths of the share of a warm standby of weight 1; 0 means no reads.
    pub(crate) share: u32,
    /// The standby gets no reads because its lag is over a limit.
    pub(crate) is_behind: bool,
    /// Another standby lags much less; always `false` without `prefer_lower_lag`.
    pub(crate) is_late: bool,
    /// The node's `zone`.
    pub(crate) zone: Arc<str>,
}

/// The operator's setting for a node: ATTACH, DRAIN or DETACH NODE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// The node is used according to its role.
    Attached,
    /// No new work is sent to the node.
    Draining,
    /// The node is only checked, and counts for nothing else.
    Detached,
}

impl Switch {
    /// Returns the number by which the value is handed over to another process.
    pub(crate) fn number(self) -> u8 {
        match self {
            Switch::Attached => 0,
            Switch::Draining => 1,
            Switch::Detached => 2,
        }
    }

    /// Returns the value that has this [`Switch::number`]; `None` for a number that only a later version knows.
    pub(crate) fn of_number(number: u8) -> Option<Switch> {
        [Switch::Attached, Switch::Draining, Switch::Detached]
            .into_iter()
            .find(|known| known.number() == number)
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Switch::Attached => "attached",
            Switch::Draining => "draining",
            Switch::Detached => "detached",
        }
    }
}

/// The decision whether a server connection may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retirement {
    /// The connection is of the present epoch and is kept.
    Stays,
    /// The connection takes no new work, and is closed when its open transaction ends.
    Ends,
    /// The connection's node is not the primary of the newest history any more. A commit there would be lost, so no answer to a change is
    /// passed on. The connection is closed at once, unless it only answers a read.
    Deposed,
    /// The connection is closed at once.
    Cut,
}

impl View {
    /// Returns the view of a cluster of which no node has been asked yet.
    pub(crate) fn unknown(cluster: &str, now_us: u64) -> View {
        View {
            cluster: cluster.into(),
            epoch: 0,
            newest: 0,
            primary: None,
            followed: None,
            held_since_us: Some(now_us),
            standbys: Vec::new(),
            bare_since_us: Some(now_us),
            undecided: Vec::new(),
            is_planned: false,
            drain: None,
            drained: Vec::new(),
            cut_off: Vec::new(),
            obstacle: "no node has been asked yet".to_owned(),
        }
    }

    /// Returns what to do with a server connection to the primary that was opened in this term; `None` means that the term is not known.
    ///
    /// While no primary is known, the connection is kept unless a newer timeline is known: the same primary may be confirmed a moment
    /// later.
    pub(crate) fn retirement(&self, opened_in: Option<&Term>) -> Retirement {
        let Some(term) = opened_in else {
            return if self.primary.is_some() { Retirement::Ends } else { Retirement::Stays };
        };
        match &self.primary {
            _ if self.is_cut_off(&term.node) => Retirement::Cut,
            _ if term.run.timeline < self.newest => Retirement::Deposed,
            Some(primary) if primary.term == *term => Retirement::Stays,
            Some(primary) if primary.term.continues(term) => Retirement::Ends,
            Some(_) => Retirement::Deposed,
            None => Retirement::Stays,
        }
    }
}

impl View {
    /// Returns the standby of this name; `None` if the view has none.
    pub(crate) fn standby(&self, name: &str) -> Option<&Standby> {
        self.standbys.iter().find(|standby| *standby.target.term.node == *name)
    }

    /// Whether the server connections of this node are closed at once, even during a transaction.
    fn is_cut_off(&self, node: &Arc<str>) -> bool {
        self.cut_off.contains(node) || self.drained.contains(node)
    }

    /// Returns what to do with a server connection that was opened to a standby. A connection ends if its node was drained, promoted or
    /// removed.
    pub(crate) fn retirement_at_standby(&self, opened_in: &Term) -> Retirement {
        match self.standby(&opened_in.node) {
            _ if self.is_cut_off(&opened_in.node) => Retirement::Cut,
            Some(standby) if standby.target.term.is_same_start(opened_in) => Retirement::Stays,
            None if self.undecided.contains(&opened_in.node) => Retirement::Stays,
            _ => Retirement::Ends,
        }
    }

    /// Returns what to do with a server connection whose standby was promoted in this term. The connection takes no further transaction,
    /// and no answer to a change is passed on once there is a newer timeline.
    pub(crate) fn retirement_at_promoted(&self, term: &Term) -> Retirement {
        match () {
            () if self.is_cut_off(&term.node) => Retirement::Cut,
            () if term.run.timeline < self.newest => Retirement::Deposed,
            () => Retirement::Ends,
        }
    }
}

impl Target {
    /// Returns the address to connect to.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::of_host(&self.host, self.port)
    }
}

impl Cluster {
    /// Returns the present view for the workers.
    pub(crate) fn view(&self) -> View {
        let at = |node: &Node, term| Target { term, host: Arc::clone(&node.host), port: node.port };
        let primary = self.serving().zip(self.last.clone()).map(|(node, term)| at(node, term));
        let followed = self
            .serving()
            .zip(self.last.as_ref())
            .and_then(|(node, term)| node.followed.clone().filter(|followed| followed.leads_to(&term.run)));
        let least = self.least_lag();
        let standbys = self.standbys().map(|(node, run)| Standby {
            target: at(node, Term { node: Arc::clone(&node.name), run }),
            share: node.share(self.limits(), self.decided_us),
            is_behind: node.is_behind,
            is_late: least.is_some_and(|least| self.is_late(node, least)),
            zone: Arc::clone(&node.zone),
        });
        let standbys: Vec<Standby> = standbys.collect();
        let cut_off = self.nodes.iter().filter(|node| node.state.is_cut_off());
        let mut cut_off: Vec<Arc<str>> = cut_off.map(|node| Arc::clone(&node.name)).collect();
        if primary.is_some() && self.source.is_some() {
            cut_off.extend(self.gone.iter().cloned());
        }
        let is_over = |ends_us: u64| ends_us <= self.decided_us;
        let drained = self.nodes.iter().filter(|node| node.drain_ends_us(self.limits()).is_some_and(is_over));
        let is_undecided = |node: &&Node| {
            node.switch == Switch::Attached
                && matches!(node.state, NodeState::Unknown(_) | NodeState::Starting(_))
        };
        let undecided = self.nodes.iter().filter(is_undecided);
        let undecided = undecided.map(|node| Arc::clone(&node.name)).collect();
        let lacks =
            primary.is_none() || standbys.iter().all(|standby| standby.share == 0) && self.nodes.len() > 1;
        let obstacle = if lacks { self.obstacle() } else { String::new() };
        View {
            cluster: Arc::clone(&self.name),
            epoch: self.epoch(),
            newest: self.newest,
            primary,
            followed,
            held_since_us: self.held_since_us,
            standbys,
            bare_since_us: self.bare_since_us,
            undecided,
            is_planned: self.is_planned(),
            drain: self.drain(),
            drained: drained.map(|node| Arc::clone(&node.name)).collect(),
            cut_off,
            obstacle,
        }
    }

    /// Returns the attached standbys and their runs.
    pub(super) fn standbys(&self) -> impl Iterator<Item = (&Node, Run)> {
        self.nodes.iter().filter_map(|node| match &node.state {
            NodeState::Standby(member) if node.switch == Switch::Attached => Some((node, member.answer.run)),
            _ => None,
        })
    }

    /// Returns the least lag, in time and in bytes, among the standbys that take reads; `None` without `prefer_lower_lag`.
    fn least_lag(&self) -> Option<Lag> {
        let reads = |node: &&Node| node.share(self.limits(), self.decided_us) > 0;
        let lags = self.standbys().map(|(node, _)| node).filter(reads).filter_map(|node| node.lag);
        if self.limits().prefers_lower_lag { lags.reduce(Lag::least) } else { None }
    }

    fn is_late(&self, node: &Node, least: Lag) -> bool {
        node.lag.is_some_and(|lag| lag.is_late_beside(least, self.limits().lag))
    }

    fn obstacle(&self) -> String {
        if self.is_planned() {
            return "a switchover is under way".to_owned();
        }
        if self.nodes.is_empty() {
            let source = self.source.as_ref();
            let why = source.and_then(|source| source.error()).unwrap_or("it has not answered yet");
            return format!("the source has named no node: {why}");
        }
        let nodes = self.nodes.iter().map(|node| {
            let why = match &node.state {
                _ if node.switch != Switch::Attached => node.switch.word().to_owned(),
                NodeState::Unsure(unsure) => unsure.why.to_string(),
                NodeState::Refused(refused) => refused.why.to_string(),
                state if node.is_behind && node.lag_error.is_some() => {
                    format!("{}, its lag is not known", state.word())
                }
                state if node.is_behind => format!("{}, too far behind", state.word()),
                state => state.word().to_owned(),
            };
            let error = node
                .last_error
                .as_deref()
                .or(node.lag_error.as_deref())
                .map(|text| format!(" ({text})"))
                .unwrap_or_default();
            format!("{}: {why}{error}", node.name)
        });
        nodes.collect::<Vec<_>>().join("; ")
    }
}
