//! Linked → Waiting: a client whose session cannot be brought to its server gets another one.

use pgweir_settings::PoolMode;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::limits::REFUSED_SERVERS_MAX;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, First, Opening};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::relay::attempt::Causes;
use crate::pool::server::state::ServerState;
use crate::stats::rare_path::RarePath;

impl Pool {
    /// The client of the session that this server is being brought to waits for another server, ahead of all other clients,
    /// with all its requests. `false` if that is not possible: it was refused too often, or it asked for more than is kept.
    pub(crate) fn gets_another_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) -> bool {
        let Some(server) = self.servers.get_mut(server_id) else { return false };
        let Some(id) = server.state.client() else { return false };
        let Some(client) = self.clients.get_mut(id) else { return false };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return false;
        };
        if account.refused_servers + 1 >= REFUSED_SERVERS_MAX || link.made_in == PoolMode::Session {
            return false;
        }
        let is_first_try = link.first_try != FirstTry::None;
        let was_sent =
            matches!(server.state, ServerState::Busy(_)) && !matches!(link.first_try, FirstTry::Unsent(_));
        let is_kept = server.attempt.is_for(Causes::SESSION) || server.attempt.holds_later();
        if was_sent && !is_kept {
            return false;
        }
        let mut begin = None;
        if let Opening::Unsent(text) = &mut link.opening {
            begin = Some(std::mem::take(text));
        }
        account.refused_servers += 1;
        cx.driver.reached(RarePath::SessionRefused);
        if was_sent {
            begin = begin.or(self.take_back_attempt(cx.env, id, server_id).flatten());
        }
        match is_first_try {
            true => self.wait_at_primary(cx, id),
            false => self.requeue(cx, id, First::of_begin(begin)),
        }
        true
    }
}
