//! Back into the queue: a client that has a server, or is queued behind others on one, waits for a server again. Every
//! place that sends a client back calls this file.

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, First, Waiting};
use crate::stats::rare_path::RarePath;

impl Pool {
    /// Linked or QueuedBehind → Waiting, ahead of all that wait at the client's node. The caller sees to the server, and has put all that is to
    /// be sent into the client's inbox. The client's request stays what it was, unless the caller has begun another one: its timeouts count
    /// from there, and it is told once that it waits. A cancel request that waited for its turn is meant for what waits now.
    pub(crate) fn requeue<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, first: First) {
        self.set_client_state(id, ClientState::Waiting(Waiting { group: None, first }));
        let branch = self.clients[id].account.branch;
        self.state.node_at_mut(branch).clients.push_front(id);
        self.waits_again_at(branch);
        self.notice();
        self.client_unpause(cx, id);
    }

    /// The server is given up. The clients behind its head have only asked to read, and have seen no answer: their groups
    /// run elsewhere, before anything else.
    pub(crate) fn put_back_queued<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let clients = server.pipelined.rescue();
        self.take_off(cx, id, &clients);
    }

    /// QueuedBehind → Waiting, of these, in their order.
    pub(crate) fn take_off<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, clients: &[ClientId]) {
        for &client_id in clients.iter().rev() {
            let Some(client) = self.clients.get(client_id) else { continue };
            let ClientState::QueuedBehind(queued_behind) = &client.state else { continue };
            debug_assert!(queued_behind.server == id, "it is queued on another server");
            self.requeue(cx, client_id, First::Nothing);
            self.state.numbers.multiplexing.requeued += 1;
            cx.driver.reached(RarePath::PutBack);
        }
        if !clients.is_empty() {
            // One for a client that waits now need not wait for its turn.
            self.next_cancel(cx);
        }
    }
}
