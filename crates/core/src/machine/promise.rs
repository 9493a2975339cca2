//! A server that is sent COMMIT or ROLLBACK and nothing else will be free when it has answered, whatever it answers. Who is next
//! in its pool's queue with nothing but a BEGIN gets its answer already then (`defer_begin = packet`), so its first statement is
//! there sooner: the server is not idle for as long as a client takes.
//!
//! The client keeps its place in the queue, and gets the server that it would have got. It must never be told so where its server
//! might be kept by whom it has now; and there are never more who were told so than servers at work.

use pgweir_settings::{DeferBegin, PoolMode};
use pgweir_wire::backend::TxStatus;

use super::Machine;
use crate::client::{Begun, ClientState, Opening, Waiting};
use crate::driver::Driver;
use crate::ids::{ClientId, PoolId, ServerId};
use crate::pool::ServerKind;
use crate::server::ServerState;

impl Machine {
    /// What a linked client sends ends its transaction, and will be all that its server has to do; somebody waits for it.
    pub(super) fn will_release(&self, id: ClientId, server_id: ServerId, bytes: &[u8]) -> bool {
        let Some(server) = self.servers.get(server_id) else { return false };
        if server.tx == TxStatus::Idle || !server.ledger.is_empty() || self.pools[server.pool].waiting == 0 {
            return false;
        }
        let Some(client) = self.clients.get(id) else { return false };
        let ClientState::Linked(link) = &client.state else { return false };
        matches!(link.opening, Opening::Done)
            && link.streaming == 0
            && self.client_mode(client) == PoolMode::Transaction
            && link.pin.is_none()
            && link.touched.is_none()
            && self.reason_to_retire(server_id).is_none()
            && self.defers_begin(id) == DeferBegin::Packet
            && self.end_at_front(id, bytes).is_some_and(|group| group.len == bytes.len())
    }

    /// A server will be free soon: answers the BEGIN of who is next, if that is all it said.
    pub(super) fn promise_server<D: Driver>(&mut self, d: &mut D, pool_id: PoolId) {
        let pool = &self.pools[pool_id];
        let mut promised = 0;
        let mut next = None;
        for &id in &pool.queue {
            match self.clients.get(id).map(|client| &client.state) {
                Some(ClientState::Begun(begun)) if begun.in_line => promised += 1,
                Some(ClientState::Waiting(waiting)) if waiting.begin.is_some() => promised += 1,
                Some(ClientState::Waiting(waiting)) => {
                    next = Some((id, waiting.since_us));
                    break;
                }
                _ => {}
            }
        }
        let Some((id, since_us)) = next.filter(|_| promised < pool.servers(ServerKind::Active)) else {
            return;
        };
        if self.defers_begin(id) != DeferBegin::Packet {
            return;
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        let inbox = std::mem::take(&mut client.inbox);
        let Some((group, text)) = self.beginning_at_front(id, &inbox) else {
            self.clients[id].inbox = inbox;
            return;
        };
        self.spare.give_back(inbox);
        self.answer_block(d, id, group, TxStatus::InTransaction);
        let now_us = self.now.mono_us;
        self.clients[id].state = ClientState::Begun(Begun { text, since_us: now_us, in_line: true });
        let pool = &mut self.pools[pool_id];
        pool.waiting -= 1;
        pool.stats.wait_us += now_us.saturating_sub(since_us);
    }

    /// A server for who is next. One that was told so may not have said what it wants: its BEGIN goes along when it has.
    pub(super) fn seat<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Begun(begun), Some(account)) = (&mut client.state, &client.account) else {
            return self.link(d, id, server_id);
        };
        let begin = Some(std::mem::take(&mut begun.text));
        let since_us = self.now.mono_us;
        client.state = ClientState::Waiting(Waiting { since_us, notified: false, group: None, begin });
        self.pools[account.pool].waiting += 1;
        self.link(d, id, server_id);
        if let Some(server) = self.servers.get_mut(server_id)
            && matches!(server.state, ServerState::Busy(_))
        {
            server.xact_us = since_us;
        }
    }

    /// The client has no use for its place in the queue any more.
    pub(super) fn leave_line(&mut self, id: ClientId) {
        let Some(account) = self.clients.get(id).and_then(|client| client.account.as_deref()) else { return };
        self.pools[account.pool].queue.retain(|&other| other != id);
    }
}
