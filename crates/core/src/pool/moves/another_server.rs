//! Linked → Waiting: a client whose session cannot be brought to its server gets another one.

use pgweir_settings::PoolMode;
use pgweir_wire::error::SqlState;

use crate::context::Cx;
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::ids::ServerId;
use crate::limits::REFUSED_SERVERS_MAX;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, Opening, Waiting};
use crate::pool::relay::first_ask::FirstAsk;
use crate::pool::server::state::{ServerState, SyncingSession};
use crate::pool::session::replay::NOT_RESTORED;

impl Pool {
    /// The server does not reach the state that it should: its client gets another one, up to a number of times, and then is
    /// told. The server is not used any more.
    pub(crate) fn session_sync_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        code: SqlState,
        text: String,
    ) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        server.retire.get_or_insert(NOT_RESTORED);
        if self.gets_another_server(cx, server_id) {
            let line = format!(
                "{} could not be brought to a session: {text}",
                self.server_log_name(&self.servers[server_id])
            );
            cx.log(Level::Warning, &line);
            return self.close_server(cx, server_id, NOT_RESTORED, CloseMode::Now);
        }
        let Some(server) = self.servers.get(server_id) else { return };
        match server.state {
            ServerState::Busy(client) | ServerState::SyncingSession(SyncingSession { client, .. }) => {
                self.refuse_client(cx, client, &Fault::SessionNotRestored(code, text));
            }
            _ => self.lose_server(cx, server_id, format!("session could not be restored: {text}").into()),
        }
    }

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
        let (mut begin, mut sent) = (None, Vec::new());
        if matches!(server.state, ServerState::Busy(_)) {
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
        let since_us = account.request_us;
        if !sent.is_empty() {
            sent.extend_from_slice(&client.inbox);
            cx.env.buffers.give_back(std::mem::replace(&mut client.inbox, sent));
        }
        let waiting = Waiting { since_us, notified: false, group: None, begin };
        self.set_client_state(id, ClientState::Waiting(waiting));
        let branch = self.clients[id].account.branch;
        self.state.node_at_mut(branch).clients.push_front(id);
        self.end_cancels_for(cx, id);
        self.notice();
        self.client_unpause(cx, id);
        true
    }
}
