//! A pool's connections to one PostgreSQL: in which lists they are, who waits for them, whether further ones can be opened, the
//! number that are worth to be busy. A pool has one node; with a cluster it has the primary, and each standby that it reads from.

use std::collections::VecDeque;

use pgweir_wire::error::SqlState;

use crate::driver::Endpoint;
use crate::ids::{ClientId, ServerId};
use crate::pool::multiplex::pace::Pace;

/// The lists a server can be in, as SHOW POOLS counts them (its `sv_used` is a server that idled for long).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerKind {
    Login,
    Idle,
    Active,
    Tested,
    BeingCanceled,
    /// It listens for all clients of the pool, and belongs to none of them: not counted as one of the pool's
    /// servers.
    Listening,
}

/// What a client does with a state that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    Enters,
    /// It leaves it for a server: alone, or behind other clients.
    IsServed,
    Leaves,
}

/// Which of a pool's nodes: the primary (the only one without a cluster), or a standby (`pool/cluster/standbys.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Branch(pub(super) u8);

impl Branch {
    pub(crate) const PRIMARY: Branch = Branch(0);
    /// No node: here clients wait for a standby while none is usable.
    pub(crate) const NO_STANDBY: Branch = Branch(1);
    /// No node: here clients wait until it is known which standby shows what they must see.
    pub(crate) const ASKING: Branch = Branch(2);
    /// The number of these two.
    pub(super) const PLACES_APART: usize = 2;

    pub(crate) fn is_primary(self) -> bool {
        self == Branch::PRIMARY
    }

    /// It is a standby.
    pub(crate) fn is_standby(self) -> bool {
        self.0 > Branch::ASKING.0
    }
}

/// After a failure in a cluster the next connection is tried so soon, then after twice as long, and so on up to the other limit.
pub(crate) const REDIAL_US_MIN: u64 = 50_000;
pub(crate) const REDIAL_US_MAX: u64 = 1_000_000;

/// So many logins are begun at once at a node whose role is new.
const LOGINS_FIRST: u32 = 2;

/// The number of kinds.
const KINDS: usize = 6;

/// See the file's head.
pub(crate) struct NodePool {
    /// Clients that wait for one of its servers, longest first. One that left stays until it is looked at.
    pub(crate) clients: VecDeque<ClientId>,
    /// The number of clients in this queue that really wait.
    pub(crate) waiting: u32,
    /// Proven clients that wait until the pool knows what to tell them.
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
    /// In a cluster: how long after a failure the next connection is tried.
    pub(crate) redial_us: u64,
    /// So many servers have logged in. In a cluster: since the node has its role.
    logins: u32,
    /// So many servers ended right after their login since one served a client.
    pub(crate) stillborn: u8,
    /// If there were several, no other is opened before this (monotonic, µs).
    pub(crate) dial_after_us: u64,
    /// Its servers do not negotiate: they refuse a connection that asks for more than 3.0.
    pub(crate) speaks_only_3_0: bool,
    /// Which host of a list is next.
    pub(crate) next_host: usize,
    /// Which of them failed last, and when (monotonic, µs): for `server_login_retry` others are tried.
    pub(crate) failed_hosts: Vec<(Endpoint, u64)>,
    /// When a server was last closed for its age: closings are spread (monotonic, µs).
    pub(crate) aged_us: u64,
}

/// The last attempt to open a server failed.
pub(crate) struct Failure {
    /// When (monotonic, µs).
    pub(crate) at_us: u64,
    /// What PostgreSQL or the operating system said.
    pub(crate) text: String,
    /// PostgreSQL's SQLSTATE, if it refused the login.
    pub(crate) code: Option<SqlState>,
}

impl Default for NodePool {
    fn default() -> NodePool {
        NodePool {
            clients: VecDeque::new(),
            waiting: 0,
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
        }
    }
}

impl NodePool {
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

    /// A connection to this host failed a short time ago.
    pub(crate) fn has_failed(&self, host: &Endpoint) -> bool {
        self.failed_hosts.iter().any(|(failed, _)| failed == host)
    }

    /// A server has logged in.
    pub(crate) fn logged_in(&mut self) {
        (self.failure, self.redial_us) = (None, REDIAL_US_MIN);
        self.logins = self.logins.saturating_add(1);
    }

    /// It has another role than before.
    pub(crate) fn begin_role(&mut self) {
        self.logins = 0;
    }

    /// So many logins may be under way at once, as far as the node's role is new.
    pub(crate) fn logins_max(&self) -> u32 {
        LOGINS_FIRST.saturating_add(self.logins)
    }

    /// It has no server, and no client waits for one.
    pub(crate) fn is_vacant(&self) -> bool {
        self.waiting == 0 && self.awaiting.is_empty() && self.counts.iter().all(|count| *count == 0)
    }

    /// What was known of failures does not count any longer: the configuration changed, or an operator says so.
    pub(crate) fn forget_failures(&mut self) {
        self.failure = None;
        self.redial_us = REDIAL_US_MIN;
        self.failed_hosts.clear();
        self.dial_after_us = 0;
        self.speaks_only_3_0 = false;
    }
}
