//! Linked → Waiting: a client whose session cannot be brought to its server gets another one.

use pgweir_settings::PoolMode;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::limits::REFUSED_SERVERS_MAX;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, First, Opening};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::relay::first_ask::FirstAsk;
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
        let (mut begin, mut sent) = (None, Vec::new());
        // What is kept in its inbox is there.
        if matches!(server.state, ServerState::Busy(_)) && link.kept == 0 {
            let FirstAsk::Kept(kept) = std::mem::replace(&mut server.first_ask, FirstAsk::Lost) else {
                return false;
            };
            if !kept.behind_replay {
                return false;
            }
            (begin, sent) = (kept.begin, kept.bytes);
        }
        if let Opening::Unsent(text) = &mut link.opening {
            begin = Some(std::mem::take(text));
        }
        account.refused_servers += 1;
        cx.driver.reached(RarePath::SessionRefused);
        if !sent.is_empty() {
            sent.extend_from_slice(&client.inbox);
            cx.env.buffers.give_back(std::mem::replace(&mut client.inbox, sent));
        }
        match is_first_try {
            true => self.wait_at_primary(cx, id),
            false => self.requeue(cx, id, First::of_begin(begin)),
        }
        true
    }
}
