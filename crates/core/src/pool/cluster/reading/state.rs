//! What is kept of a transaction that reads at a standby, and which clients are in one.

use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::cluster::route::{Asked, Routing};

impl Pool {
    /// The BEGIN of a client's first try, if there is one: it goes to the primary, too.
    pub(in crate::pool::cluster) fn take_begin(&mut self, id: ClientId) -> Option<Vec<u8>> {
        let routing = self.routing_mut(id)?;
        match routing.asked {
            Asked::Transaction(_) => Some(std::mem::take(&mut routing.reading.begin)),
            Asked::Read(_) | Asked::Other | Asked::Change => None,
        }
    }

    pub(super) fn routing_mut(&mut self, id: ClientId) -> Option<&mut Routing> {
        self.clients.get_mut(id)?.account.routing.as_deref_mut()
    }

    /// Whether the client's session has channels, which it listens to through the primary.
    pub(in crate::pool::cluster) fn listens(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(|client| !client.account.session.channels().is_empty())
    }

    /// Whether the client is in a transaction that reads at a standby, on this server.
    #[inline]
    pub(crate) fn reads_at_standby(&self, id: ClientId, server_id: ServerId) -> bool {
        let is_at_standby = self.servers.get(server_id).is_some_and(|server| !server.branch.is_primary());
        is_at_standby && self.clients.get(id).is_some_and(is_reading)
    }
}

/// Whether a client has a server and is in a transaction that may read at a standby. The server may be the primary's.
pub(in crate::pool::cluster) fn is_reading(client: &Client) -> bool {
    let asked = client.account.routing.as_deref().map(|routing| routing.asked);
    matches!(client.state, ClientState::Linked(_)) && matches!(asked, Some(Asked::Transaction(_)))
}
