//! A view of a cluster: what every worker knows of it, and goes by.

use std::sync::Arc;

use crate::cluster::lag::Lag;
use crate::cluster::node::{Node, NodeState};
use crate::cluster::outcome::Followed;
use crate::cluster::switchover::Drain;
use crate::cluster::{Cluster, Run, Term};
use crate::driver::Endpoint;

/// The share of a standby of weight 1 that is warm.
pub(crate) const SHARE_WHOLE: u32 = 1000;

/// See the file's head. It is sent to all workers whenever it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub(crate) cluster: Arc<str>,
    pub(crate) epoch: u64,
    /// The highest timeline that a node has shown (`Cluster::newest`); 0 if none has. A primary of an older one is deposed, and what it
    /// says of commits is not passed on.
    pub(crate) newest: u32,
    /// The node that everything new goes to; `None` while clients have to wait.
    pub(crate) primary: Option<Target>,
    /// What that had replayed as a standby of the one before.
    pub(crate) followed: Option<Followed>,
    /// Since when there is none (monotonic, µs).
    pub(crate) held_since_us: Option<u64>,
    /// The nodes that reads may go to.
    pub(crate) standbys: Vec<Standby>,
    /// Since when there is none of them (monotonic, µs).
    pub(crate) bare_since_us: Option<u64>,
    /// Nodes of which nothing is known at present: they get nothing new, and keep what they have.
    pub(crate) undecided: Vec<Arc<str>>,
    /// There is none because a switchover is under way: clients wait, however short `primary_wait` is.
    pub(crate) is_planned: bool,
    /// What is done about open transactions.
    pub(crate) drain: Option<Drain>,
    /// Nodes that were drained for `drain_timeout`: their servers are closed at once, too.
    pub(crate) drained: Vec<Arc<str>>,
    /// Nodes whose servers are closed at once.
    pub(crate) cut_off: Vec<Arc<str>>,
    /// Why there is no primary, or no standby: each node, and what it is.
    pub(crate) obstacle: String,
}

/// A node that servers are opened to.
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
    /// Its part of the reads: thousandths of a node of weight 1 that is warm. Zero: none.
    pub(crate) share: u32,
    /// It gets none because it is too far behind.
    pub(crate) is_behind: bool,
    /// `prefer_lower_lag`: other standbys lag much less.
    pub(crate) is_late: bool,
    /// The node's `zone`.
    pub(crate) zone: Arc<str>,
}

/// An operator's word on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// It takes part.
    Attached,
    /// Nothing new is sent to it.
    Draining,
    /// As if it were not there, except that it is watched.
    Detached,
}

impl Switch {
    /// As it goes to another process.
    pub(crate) fn number(self) -> u8 {
        match self {
            Switch::Attached => 0,
            Switch::Draining => 1,
            Switch::Detached => 2,
        }
    }

    /// The other way; of a later version's number nothing is known.
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

/// What becomes of a server connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retirement {
    /// It is of the present epoch.
    Stays,
    /// It takes nothing more: it ends with the transaction that it is at.
    Ends,
    /// Its node is not the primary of the newest history any more. What it would commit is lost, so nothing that it says of a change is
    /// believed. It ends now, unless it does nothing but answer a read.
    Deposed,
    /// It ends now.
    Cut,
}

impl View {
    /// Nothing is known yet.
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

    /// The fate of a server of the primary that was opened in this term. `None`: the term is not known.
    ///
    /// While no primary is known, a server stays unless a newer timeline is: the same primary may be confirmed a moment later.
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
    /// The standby of this name.
    pub(crate) fn standby(&self, name: &str) -> Option<&Standby> {
        self.standbys.iter().find(|standby| *standby.target.term.node == *name)
    }

    /// The servers of this node are closed, whatever they do.
    fn is_cut_off(&self, node: &Arc<str>) -> bool {
        self.cut_off.contains(node) || self.drained.contains(node)
    }

    /// What becomes of a server that was opened to a standby. Those of one that is drained, promoted or gone end.
    pub(crate) fn retirement_at_standby(&self, opened_in: &Term) -> Retirement {
        match self.standby(&opened_in.node) {
            _ if self.is_cut_off(&opened_in.node) => Retirement::Cut,
            Some(standby) if standby.target.term.is_same_start(opened_in) => Retirement::Stays,
            None if self.undecided.contains(&opened_in.node) => Retirement::Stays,
            _ => Retirement::Ends,
        }
    }

    /// What becomes of a server that was opened to a standby, if its node was promoted since: in this term, as far as it is known. The server
    /// takes no further transaction, and nothing of a change is believed once there is a newer primary.
    pub(crate) fn retirement_at_promoted(&self, term: &Term) -> Retirement {
        match () {
            () if self.is_cut_off(&term.node) => Retirement::Cut,
            () if term.run.timeline < self.newest => Retirement::Deposed,
            () => Retirement::Ends,
        }
    }
}

impl Target {
    /// Where to connect to.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::of_host(&self.host, self.port)
    }
}

impl Cluster {
    /// What the workers are to go by now.
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

    /// The nodes that reads may go to, and their runs.
    pub(super) fn standbys(&self) -> impl Iterator<Item = (&Node, Run)> {
        self.nodes.iter().filter_map(|node| match &node.state {
            NodeState::Standby(member) if node.switch == Switch::Attached => Some((node, member.answer.run)),
            _ => None,
        })
    }

    /// With `prefer_lower_lag`: the least lag of a standby that takes reads, in time and in bytes.
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
