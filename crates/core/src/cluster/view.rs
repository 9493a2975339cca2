//! A view of a cluster: what every worker knows of it, and goes by.

use std::sync::Arc;

use crate::cluster::node::NodeState;
use crate::cluster::{Cluster, Term};
use crate::driver::Endpoint;

/// See the file's head. It is sent to all workers whenever it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    pub(crate) cluster: Arc<str>,
    pub(crate) epoch: u64,
    /// The node that everything new goes to; `None` while clients have to wait.
    pub(crate) primary: Option<Primary>,
    /// Since when there is none (monotonic, µs).
    pub(crate) held_since_us: Option<u64>,
    /// Nodes whose servers are closed at once.
    pub(crate) cut_off: Vec<Arc<str>>,
    /// Why there is no primary: each node, and what it is.
    pub(crate) obstacle: String,
}

/// The primary of a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Primary {
    pub(crate) term: Term,
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
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
pub(crate) enum Fate {
    /// It is of the present epoch.
    Stays,
    /// It takes nothing more: it ends with the transaction that it is at.
    Ends,
    /// It ends now.
    Cut,
}

impl View {
    /// Nothing is known yet.
    pub(crate) fn unknown(cluster: &str, now_us: u64) -> View {
        View {
            cluster: cluster.into(),
            epoch: 0,
            primary: None,
            held_since_us: Some(now_us),
            cut_off: Vec::new(),
            obstacle: "no node has been asked yet".to_owned(),
        }
    }

    /// What becomes of a server that was opened in this term; `None`: it is not known in which.
    ///
    /// While no primary is known, nothing is decided about servers: the same primary may be confirmed a moment later.
    pub(crate) fn fate(&self, opened_in: Option<&Term>) -> Fate {
        let is_cut_off = opened_in.is_some_and(|term| self.cut_off.contains(&term.node));
        match &self.primary {
            _ if is_cut_off => Fate::Cut,
            Some(primary) if Some(&primary.term) != opened_in => Fate::Ends,
            _ => Fate::Stays,
        }
    }
}

impl Primary {
    /// Where to connect to.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::of_host(&self.host, self.port)
    }
}

impl Cluster {
    /// What the workers are to go by now.
    pub(crate) fn view(&self) -> View {
        let primary = self.serving().zip(self.last.clone()).map(|(node, term)| Primary {
            term,
            host: Arc::clone(&node.host),
            port: node.port,
        });
        let cut_off = self.nodes.iter().filter(|node| node.state.is_cut_off());
        let cut_off = cut_off.map(|node| Arc::clone(&node.name)).collect();
        let obstacle = if primary.is_some() { String::new() } else { self.obstacle() };
        View {
            cluster: Arc::clone(&self.name),
            epoch: self.epoch(),
            primary,
            held_since_us: self.held_since_us,
            cut_off,
            obstacle,
        }
    }

    fn obstacle(&self) -> String {
        let nodes = self.nodes.iter().map(|node| {
            let why = match &node.state {
                _ if node.switch != Switch::Attached => node.switch.word().to_owned(),
                NodeState::Unsure(unsure) => unsure.why.to_string(),
                NodeState::Refused(refused) => refused.why.to_string(),
                state => state.word().to_owned(),
            };
            let error = node.last_error.as_deref().map(|text| format!(" ({text})")).unwrap_or_default();
            format!("{}: {why}{error}", node.name)
        });
        nodes.collect::<Vec<_>>().join("; ")
    }
}
