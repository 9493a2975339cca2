//! Linked → Waiting: a client whose session cannot be brought to its server gets another one.

use pgweir_settings::PoolMode;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, First};
use crate::pool::relay::attempt::after_failure::{AfterFailure, ExchangeFailure, decide};
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::stats::rare_path::RarePath;

impl Pool {
    /// The client of the session that this server is being brought to waits for another server, ahead of all other clients, with all that it
    /// has asked for. `false` if it does not, and is to be told why.
    pub(crate) fn gets_another_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) -> bool {
        let Some(id) = self.servers.get(server_id).and_then(|server| server.state.client()) else {
            return false;
        };
        let decision =
            decide(ExchangeFailure::SessionRefused, self.clients.get(id), self.servers.get(server_id));
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return false;
        };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return false;
        };
        if !matches!(decision, AfterFailure::AtPrimary | AfterFailure::Elsewhere)
            || link.made_in == PoolMode::Session
        {
            return false;
        }
        account.refused_servers += 1;
        cx.driver.reached(RarePath::SessionRefused);
        let unsent_begin = match &mut link.phase {
            LinkPhase::Exchange(Preamble::Begin(text)) => Some(std::mem::take(text)),
            _ => None,
        };
        let sent_begin = server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
        match decision {
            AfterFailure::AtPrimary => self.wait_at_primary(cx, id),
            _ => self.requeue(cx, id, First::of_begin(unsent_begin.or(sent_begin))),
        }
        true
    }
}
