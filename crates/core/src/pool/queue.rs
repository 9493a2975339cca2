//! Who waits in a pool, and for what.

use std::collections::VecDeque;

use crate::ids::ClientId;
use crate::pool::cancel::WaitingCancel;
use crate::worker::login::inquiry::Lookup;

/// A pool's queues.
#[derive(Default)]
pub(crate) struct Queue {
    /// Clients that wait for a server, longest first. One that left stays until it is looked at.
    pub(crate) clients: VecDeque<ClientId>,
    /// The number of clients in the queue that really wait.
    pub(crate) waiting: u32,
    /// Proven clients that wait until the pool knows what to tell them.
    pub(crate) awaiting: Vec<ClientId>,
    /// Proven replication clients that wait for room for a new server connection, longest first.
    pub(crate) replicating: VecDeque<ClientId>,
    /// Questions of logins that wait for a server (`auth_query`), longest first.
    pub(crate) lookups: VecDeque<Box<Lookup>>,
    /// Cancel requests that wait until fewer are on their way.
    pub(crate) cancels: VecDeque<WaitingCancel>,
}

impl Queue {
    /// Nothing waits for a server.
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
            && self.awaiting.is_empty()
            && self.replicating.is_empty()
            && self.lookups.is_empty()
    }

    /// Clients that cannot go on before there is a server. `greets`: the pool knows what to tell new clients.
    pub(crate) fn demand(&self, greets: bool) -> u32 {
        let awaiting = self.awaiting.len() as u32;
        let waiting = self.waiting_for_a_server();
        // The pool's first server serves all clients that only wait for the parameters of a greeting.
        if greets { waiting.saturating_add(awaiting) } else { waiting.max(awaiting.min(1)) }
    }

    /// Clients that wait, at login or with a statement.
    pub(crate) fn held(&self) -> u32 {
        self.waiting.saturating_add(u32::try_from(self.at_login()).unwrap_or(u32::MAX))
    }

    /// Clients that are proven and not yet told so.
    pub(crate) fn at_login(&self) -> usize {
        self.awaiting.len() + self.replicating.len()
    }

    /// A client leaves before it was told that it is proven.
    pub(crate) fn forget_at_login(&mut self, id: ClientId) {
        self.awaiting.retain(|&other| other != id);
        self.replicating.retain(|&other| other != id);
    }

    /// Clients and questions that a free server would serve.
    pub(crate) fn waiting_for_a_server(&self) -> u32 {
        self.waiting.saturating_add(u32::try_from(self.lookups.len()).unwrap_or(u32::MAX))
    }
}
