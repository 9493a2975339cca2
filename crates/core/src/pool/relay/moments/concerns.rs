//! Whether any feature concerns a client on its server. If none does, the moments *answer* and *rest* ask no feature, so a client that uses
//! none pays for none.
//!
//! The answer is not kept beside what it follows from: it is found again each time, in a few comparisons, so it cannot be wrong
//! because a feature forgot to say something.

use pgweir_wire::backend::TxStatus;

use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, Link, OwnNames};
use crate::pool::relay::ledger::Owner;
use crate::pool::sequences::state::Drawing;
use crate::pool::session::restore::has_to_restore;

impl Link {
    /// Whether a feature keeps something of what this client did on its server.
    #[inline]
    pub(crate) fn is_concerned(&self) -> bool {
        !self.phase.is_plain() || self.is_marked()
    }

    /// Whether a feature other than the present exchange and its BEGIN concerns the client, so that the session on the server may be another one than the client's
    /// session was when the client got the server.
    pub(crate) fn is_marked(&self) -> bool {
        self.touched.is_some()
            || self.pin.is_some()
            || self.drawing != Drawing::Nothing
            || self.own_names != OwnNames::Hidden
            || self.ready_due
    }
}

impl Pool {
    /// Whether a feature must be asked about what this server says. `false` if the server answers a client about which no feature has
    /// anything to say.
    #[inline]
    pub(crate) fn is_concerned(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return true };
        let Some(client_id) = server.state.served_client() else { return true };
        let Some(client) = self.clients.get(client_id) else { return true };
        let ClientState::Linked(link) = &client.state else { return true };
        let changes = server.work.changes;
        server.resets || !changes.is_empty() || client.account.listener.is_some() || link.is_concerned()
    }

    /// Whether the features have nothing to say about this client on its server. Tests and the simulator use this to check `is_concerned`.
    pub(super) fn are_features_silent(&mut self, id: ServerId, client_id: ClientId) -> bool {
        let (owner, status) = (Owner::Client(client_id), TxStatus::Idle);
        let delays = self.delays_ready(id, owner, status) || self.has_notifications(client_id, id, status);
        let keeps = self.pins_drawer(client_id).is_some() || self.own_notifications_due(client_id).is_some();
        let Some(ClientState::Linked(link)) = self.clients.get(client_id).map(|client| &client.state) else {
            return true;
        };
        !delays && !keeps && !link.phase.holds() && !has_to_restore(link)
    }
}
