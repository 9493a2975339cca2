//! Who waits in a pool, and for what. Clients that wait for a server of one node are in that node's queue (`node.rs`).

use std::collections::VecDeque;

use crate::ids::ClientId;
use crate::pool::cancel::WaitingCancel;
use crate::pool::client::state::ClientState;
use crate::pool::{Branch, Pool};
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

impl Pool {
    /// Returns the client that is next to get a server of this node, behind those that are passed over. It stays where it is.
    pub(crate) fn next_waiter(&mut self, branch: Branch) -> Option<ClientId> {
        let node = self.state.node_at_mut(branch);
        let passed_over = node.passed_over as usize;
        while let Some(&id) = node.clients.get(passed_over) {
            let state = self.clients.get(id).map(|client| &client.state);
            if matches!(state, Some(ClientState::Waiting(_))) {
                return Some(id);
            }
            node.clients.remove(passed_over);
        }
        debug_assert_eq!(node.waiting as usize, passed_over, "a waiting client is in no queue");
        None
    }

    /// The client that has waited longest for a server of this node, and since when (monotonic, µs). Those that are passed over need none.
    pub(crate) fn first_waiting(&self, branch: Branch) -> Option<(ClientId, u64)> {
        self.state.node_at(branch).in_need().find_map(|id| {
            let client = self.clients.get(id)?;
            matches!(client.state, ClientState::Waiting(_)).then_some((id, client.account.request.since_us))
        })
    }
}
