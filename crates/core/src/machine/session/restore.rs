//! RESET and DISCARD go back to what the client started with. A server goes back to what it started with itself; so the
//! client's own values follow right behind, in the same packet and the same transaction: with it they come, and with it
//! they go.

use pgweir_wire::frontend::tag;

use crate::client::ClientState;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::ledger::Purpose;
use crate::machine::Machine;
use crate::session::set_config;

impl Machine {
    /// What ends a group of messages is passed on: the client's startup values follow, if something in it reset them.
    #[inline]
    pub(in crate::machine) fn has_to_restore(&self, id: ClientId, message: u8) -> bool {
        if !matches!(message, tag::QUERY | tag::SYNC) {
            return false;
        }
        let link = match self.clients.get(id).map(|client| &client.state) {
            Some(ClientState::Linked(link)) => link,
            _ => return false,
        };
        link.streaming == 0 && link.touched.as_ref().is_some_and(|touched| !touched.restore.is_empty())
    }

    /// See [`Machine::has_to_restore`].
    pub(in crate::machine) fn restore<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(startup) = client.account.as_ref().and_then(|account| account.startup.clone()) else {
            return;
        };
        let ClientState::Linked(link) = &mut client.state else { return };
        let Some(touched) = &mut link.touched else { return };
        let names = std::mem::take(&mut touched.restore);
        let calls =
            names.iter().filter_map(|(name, local)| Some((&**name, Some(startup.get(name)?), *local)));
        let mut text = Vec::new();
        set_config(&mut text, calls);
        self.send_hidden(d, server_id, Purpose::Restore, &text);
    }
}
