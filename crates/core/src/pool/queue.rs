//! Who waits in a pool, and for what. Clients that wait for a server of one node are in that node's queue (`node.rs`).

use std::collections::VecDeque;

use crate::ids::ClientId;
use crate::pool::cancel::WaitingCancel;
use crate::worker::login::inquiry::Lookup;

/// A pool's queues.
#[derive(Default)]
pub(crate) struct Queue {
    /// Proven replication clients that wait for room for a new server connection, longest first.
    pub(crate) replicating: VecDeque<ClientId>,
    /// Questions of logins that wait for a server (`auth_query`), longest first.
    pub(crate) lookups: VecDeque<Box<Lookup>>,
    /// Cancel requests that wait until fewer are on their way.
    pub(crate) cancels: VecDeque<WaitingCancel>,
}
