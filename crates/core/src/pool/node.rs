//! A pool's connections to one PostgreSQL: in which lists they are, which clients wait for them, whether further ones can be opened,
//! and how many of them it pays to keep busy. A pool has one node; with a cluster it has the primary, and each standby that it reads from.

use std::collections::VecDeque;

use pgweir_wire::error::SqlState;

use crate::driver::Endpoint;
use crate::ids::{ClientId, ServerId};
use crate::pool::choose::parts::BackendsQuestion;
use crate::pool::multiplex::pace::Pace;

/// The lists a server can be in, as SHOW POOLS counts them (its `sv_used` is a server that idled for long).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    Login,
    Idle,
    Active,
    Tested,
    BeingCanceled,
    /// A server that listens for all clients of the pool. It belongs to no client and does not count as one of the pool's servers.
    Listening,
}

/// The way in which a client enters or leaves a state that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Enters,
    /// The client leaves the state for a server, which may have clients ahead of it.
    IsServed,
    Leaves,
}

/// The node of a pool that a client or server belongs to: the primary (the only one without a cluster), or a standby
/// (`pool/cluster/standbys.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Branch(pub(super) u8);

impl Branch {
    pub(crate) const PRIMARY: Branch = Branch(0);
    /// The place of clients that wait for a standby while none is usable. No node has this place.
    pub(crate) const NO_STANDBY: Branch = Branch(1);
    /// The place of clients that wait until it is known which standby shows what they must see. No node has this place.
    pub(crate) const ASKING: Branch = Branch(2);
    /// The number of places without a node.
    pub(super) const PLACES_APART: usize = 2;

    pub(crate) fn is_primary(self) -> bool {
        self == Branch::PRIMARY
    }

    /// Whether this node is a standby.
    pub(crate) fn is_standby(self) -> bool {
        self.0 > Branch::ASKING.0
    }
}

/// Time until the next connection after a failure in a cluster (µs). It doubles with each failure, up to `REDIAL_US_MAX`.
pub(crate) const REDIAL_US_MIN: u64 = 50_000;
pub(crate) const REDIAL_US_MAX: u64 = 1_000_000;

/// Number of logins that may start at once at a node whose role is new.
const LOGINS_FIRST: u32 = 2;

/// The number of `ServerKind`s.
const KINDS: usize = 6;

/// The servers and waiting clients of a pool at one node.
pub(crate) struct NodePool {
    /// The clients that wait for a server of the node, longest first. A client that left stays until it is looked at.
    pub(crate) clients: VecDeque<ClientId>,
    /// The number of clients in this queue that really wait.
    pub(crate) waiting: u32,
    /// The number of these that wait for the answer to another client's statement, and need no server before it is there
    /// (`relay/known_answers/same_read.rs`), as found when the queue was served last. They are at its front.
    pub(crate) passed_over: u32,
    /// Proven clients that wait for the pool's first server, which tells the greeting.
    pub(crate) awaiting: Vec<ClientId>,
    /// Free servers, in the order of their release.
    pub(crate) idle: VecDeque<ServerId>,
    /// Servers that are reset or checked, in no order: free soon.
    pub(crate) tested: Vec<ServerId>,
    counts: [u32; KINDS],
    /// Servers with a head that is known to be short, in the order in which they became so: the first of them
    /// take further statements.
    pub(crate) short: Vec<ServerId>,
    pub(crate) pace: Pace,
    pub(crate) failure: Option<Failure>,
    /// The time until the next connection after a failure in a cluster (µs).
    pub(crate) redial_us: u64,
    /// Number of servers that have logged in; in a cluster, since the node got its role.
    logins: u32,
    /// Number of servers that ended right after their login since the last one that served a client.
    pub(crate) stillborn: u8,
    /// Time before which no further server is opened, if several ended right after their login (monotonic, µs).
    pub(crate) dial_after_us: u64,
    /// Whether the node's servers do not negotiate the protocol version: they refuse a connection that asks for more than 3.0.
    pub(crate) speaks_only_3_0: bool,
    /// The index of the host in the list that is tried next.
    pub(crate) next_host: usize,
    /// The hosts that failed, and when (monotonic, µs). Other hosts are preferred for `server_login_retry`.
    pub(crate) failed_hosts: Vec<(Endpoint, u64)>,
    /// Time at which a server was last closed for its age (monotonic, µs). The closings are spread over time.
    pub(crate) aged_us: u64,
    /// The question about the processes that PostgreSQL has.
    pub(crate) backends: BackendsQuestion,
}

/// The last failed attempt to open a server.
pub(crate) struct Failure {
    /// The time of the failure (monotonic, µs).
    pub(crate) at_us: u64,
    /// The error text of PostgreSQL or the operating system.
    pub(crate) text: String,
    /// PostgreSQL's SQLSTATE if the server refused the login; otherwise `None`.
    pub(crate) code: Option<SqlState>,
}

impl Default for NodePool {
    fn default() -> NodePool {
        NodePool {
            clients: VecDeque::new(),
            waiting: 0,
            passed_over: 0,
            awaiting: Vec::new(),
            idle: VecDeque::new(),
            tested: Vec::new(),
            counts: [0; KINDS],
            short: Vec::new(),
            pace: Pace::new(),
            failure: None,
            redial_us: REDIAL_US_MIN,
            logins: 0,
            stillborn: 0,
            dial_after_us: 0,
            speaks_only_3_0: false,
            next_host: 0,
            failed_hosts: Vec::new(),
            aged_us: 0,
            backends: BackendsQuestion::None,
        }
    }
}

impl NodePool {
    /// Returns the clients in the queue that need a server, longest first. Clients that left may be among them.
    pub(crate) fn in_need(&self) -> impl DoubleEndedIterator<Item = ClientId> {
        self.clients.iter().skip(self.passed_over as usize).copied()
    }

    /// The client that is next in the queue, behind those that are passed over, leaves the queue.
    #[inline]
    pub(crate) fn leave_queue(&mut self) {
        match self.passed_over {
            0 => self.clients.pop_front(),
            passed_over => self.clients.remove(passed_over as usize),
        };
    }

    /// A server came (`from` is `None`), moved, or left (`to` is `None`).
    #[inline]
    pub(crate) fn list(&mut self, id: ServerId, from: Option<ServerKind>, to: Option<ServerKind>) {
        if let Some(from) = from {
            let place = &mut self.counts[from as usize];
            debug_assert!(*place > 0, "a server left a list it was not in");
            *place = place.saturating_sub(1);
        }
        match from {
            // Servers are taken from an end; only an eviction takes one from the middle.
            Some(ServerKind::Idle) if self.idle.back() == Some(&id) => drop(self.idle.pop_back()),
            Some(ServerKind::Idle) => self.idle.retain(|&other| other != id),
            Some(ServerKind::Tested) => self.tested.retain(|&other| other != id),
            _ => {}
        }
        match to {
            Some(ServerKind::Idle) => self.idle.push_back(id),
            Some(ServerKind::Tested) => self.tested.push(id),
            _ => {}
        }
        if let Some(to) = to {
            self.counts[to as usize] += 1;
        }
    }

    /// Servers of a kind.
    pub(crate) fn servers(&self, kind: ServerKind) -> u32 {
        self.counts[kind as usize]
    }

    /// All server connections that are for clients, those being opened included.
    pub(crate) fn servers_total(&self) -> u32 {
        self.counts.iter().sum::<u32>() - self.servers(ServerKind::Listening)
    }

    /// Returns the number of server connections for clients that have logged in. (One that still logs in may become the pool's listener.)
    pub(crate) fn servers_ready(&self) -> u32 {
        self.servers_total() - self.servers(ServerKind::Login)
    }

    /// Whether a connection to this host failed a short time ago.
    pub(crate) fn has_failed(&self, host: &Endpoint) -> bool {
        self.failed_hosts.iter().any(|(failed, _)| failed == host)
    }

    /// Notes that a server has logged in, which ends the state after a failure.
    pub(crate) fn logged_in(&mut self) {
        (self.failure, self.redial_us) = (None, REDIAL_US_MIN);
        self.logins = self.logins.saturating_add(1);
    }

    /// Notes that the node got another role, which resets the number of its logins.
    pub(crate) fn begin_role(&mut self) {
        self.logins = 0;
    }

    /// The number of logins that may be under way at once. It grows with each login while the node's role is new.
    pub(crate) fn logins_max(&self) -> u32 {
        LOGINS_FIRST.saturating_add(self.logins)
    }

    /// Whether the node has no server, and no client waits for one.
    pub(crate) fn is_vacant(&self) -> bool {
        self.waiting == 0 && self.awaiting.is_empty() && self.counts.iter().all(|count| *count == 0)
    }

    /// Forgets the node's failures, because the configuration changed or an operator asked for it.
    pub(crate) fn forget_failures(&mut self) {
        self.failure = None;
        self.redial_us = REDIAL_US_MIN;
        self.failed_hosts.clear();
        self.dial_after_us = 0;
        self.speaks_only_3_0 = false;
    }
}
