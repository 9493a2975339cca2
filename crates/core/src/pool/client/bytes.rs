//! The loop that takes a client's bytes through its states.

use crate::client_handoff::Replication;
use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ClientId;
use crate::pool::client::state::ClientState;
use crate::pool::{Pool, ServerId, Step};
use crate::stats::rare_path::RarePath;

impl Pool {
    /// Bytes of a client, in any state.
    #[inline]
    pub(crate) fn client_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.account.active_us = cx.env.now.mono_us;
        self.state.numbers.stats.received_bytes += bytes.len() as u64;
        if client.inbox.is_empty() {
            let used = self.client_consume(cx, id, bytes);
            self.client_keep(cx, id, None, bytes, used);
        } else {
            let mut inbox = std::mem::take(&mut client.inbox);
            inbox.extend_from_slice(bytes);
            let used = self.client_consume(cx, id, &inbox);
            self.client_keep(cx, id, Some(inbox), &[], used);
        }
    }

    /// Looks again at bytes that a client sent earlier, after its state has changed.
    pub(crate) fn client_resume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.inbox.is_empty() && !client.reads_paused {
            return;
        }
        if !client.inbox.is_empty() {
            let inbox = std::mem::take(&mut client.inbox);
            let used = self.client_consume(cx, id, &inbox);
            self.client_keep(cx, id, Some(inbox), &[], used);
        }
        self.client_unpause(cx, id);
    }

    /// Keeps the bytes that were not used, and stops reading from a client that has too much waiting here.
    #[inline]
    fn client_keep<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        held: Option<Vec<u8>>,
        bytes: &[u8],
        used: usize,
    ) {
        let Some(client) = self.clients.get_mut(id) else {
            if let Some(buffer) = held {
                cx.env.buffers.give_back(buffer);
            }
            return;
        };
        debug_assert!(client.inbox.is_empty(), "bytes were kept while others were being looked at");
        if held.is_some() || used < bytes.len() {
            client.inbox = cx.env.buffers.remainder(held, bytes, used);
        }
        let (conn, was_paused) = (client.conn, client.reads_paused);
        let too_much_waits = client.inbox.len() > cx.env.limits.inbox_bytes && self.client_is_stalled(id);
        // A client that sends requests without reading the answers is not read further.
        if too_much_waits || cx.driver.backlog(conn) > cx.env.limits.backlog_bytes {
            if too_much_waits && !was_paused {
                cx.driver.reached(RarePath::InboxFull);
            }
            self.pause_client(cx, id);
        }
    }

    /// Takes bytes through the client's states until they are used up or must wait; returns the number of bytes used.
    fn client_consume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let Some(client) = self.clients.get_mut(id) else { return bytes.len() };
            if client.skip > 0 {
                let skipped = client.skip.min(bytes.len() - at);
                client.skip -= skipped;
                at += skipped;
                continue;
            }
            let rest = &bytes[at..];
            let step = match &client.state {
                ClientState::AwaitingServer(_) | ClientState::Waiting(_) | ClientState::QueuedBehind(_) => {
                    Step::Wait
                }
                ClientState::Idle | ClientState::DeferredBegin(_) => {
                    self.client_without_server_sent(cx, id, rest)
                }
                ClientState::Ignoring => self.ignoring_client_sent(cx, id, rest),
                ClientState::RolledBack(_) => self.rolled_back_client_sent(cx, id, rest),
                ClientState::Linked(link) if client.replication() != Replication::None => {
                    let server = link.server;
                    self.replication_client_sent(cx, id, server, rest)
                }
                ClientState::Linked(link) => {
                    let server = link.server;
                    self.linked_client_sent(cx, id, server, rest)
                }
            };
            match step {
                Step::Used(used) => at += used,
                Step::Wait => break,
                Step::Gone => return bytes.len(),
            }
        }
        at
    }

    /// Lets the client's server go on after the client took all bytes.
    pub(crate) fn client_drained<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        // Only now, with its answer sent, may the client count as idle.
        client.account.active_us = cx.env.now.mono_us;
        if let ClientState::Linked(link) = &client.state {
            let server = link.server;
            if let Some(server) = self.servers.get_mut(server) {
                server.active_us = cx.env.now.mono_us;
            }
            self.server_unpause(cx, server);
        }
        self.client_resume(cx, id);
    }

    /// Lets the server's client go on after the server took all bytes.
    pub(crate) fn server_drained<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if let Some(client) = self.servers.get(id).and_then(|server| server.state.client()) {
            self.client_unpause(cx, client);
        }
    }
}
