//! A BEGIN that a client with a server sends is answered here, too, and what follows it until a statement needs the server.

use pgweir_settings::DeferBegin;
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::Header;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{ClientState, DeferredBegin, Waits};
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::{Pool, Step};

impl Pool {
    /// A linked client begins a transaction on a server that has got nothing from it: the server stays with the client until the
    /// transaction is over. `None`: the client says more than that, or something else.
    pub(crate) fn begin_with_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Option<Step> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let server = self.servers.get(server_id)?;
        // While it is brought to the client's session, everything waits.
        let ready = server.state.is_serving() && server.is_at_rest();
        if !ready || server.is_lost() || server.tx != TxStatus::Idle {
            return None;
        }
        match link.phase {
            LinkPhase::Exchange(Preamble::None) if link.streaming == 0 => {}
            LinkPhase::Exchange(Preamble::Begin(_)) => {
                return self.deferred_with_server(cx, id, server_id, bytes);
            }
            _ => return None,
        }
        if self.defers_begin(cx.env, id) != DeferBegin::Packet {
            return None;
        }
        let (group, text) = self.beginning_at_front(cx.env, id, bytes)?;
        if !group.is_all_of(bytes) {
            cx.env.buffers.give_back(text);
            return None;
        }
        self.answer_block(cx, id, group, TxStatus::InTransaction);
        if let ClientState::Linked(link) = &mut self.clients[id].state {
            link.phase = LinkPhase::Exchange(Preamble::Begin(text));
            // It has all its answers: nothing is uncertain of its names any more.
            link.waits.set(Waits::DISCARDS, false);
        }
        let server = &mut self.servers[server_id];
        server.active_us = cx.env.now.mono_us;
        server.work.xact_us = cx.env.now.mono_us;
        Some(Step::Used(group.len))
    }

    /// Answers the messages of a transaction that its server does not know of, if they need no server.
    pub(crate) fn deferred_with_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Option<Step> {
        let header = Header::peek(bytes).ok().flatten().filter(|header| bytes.len() >= header.total())?;
        if header.tag == tag::TERMINATE {
            return Some(self.client_left(cx, id, "client close request"));
        }
        if let Some(step) = self.answer_message(cx, id, header, bytes, TxStatus::InTransaction) {
            if header.tag == tag::SYNC
                && step == Step::Used(bytes.len())
                && self.defers_begin(cx.env, id) == DeferBegin::Server
            {
                self.rest_while_deferred(cx, id, server_id);
            }
            return Some(step);
        }
        let group = self.end_at_front(cx.env, id, bytes)?;
        self.answer_block(cx, id, group, TxStatus::Idle);
        if let ClientState::Linked(link) = &mut self.clients[id].state
            && let LinkPhase::Exchange(Preamble::Begin(text)) =
                std::mem::replace(&mut link.phase, LinkPhase::PLAIN)
        {
            cx.env.buffers.give_back(text);
        }
        self.servers[server_id].work.xact_us = 0;
        self.server_rests(cx, server_id);
        Some(Step::Used(group.len))
    }

    /// A client with a deferred BEGIN got a server for a message that was answered without it: the server is not held while
    /// the client thinks.
    pub(crate) fn rest_while_deferred<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
    ) {
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return;
        };
        if link.pin.is_some() || link.touched.is_some() {
            return;
        }
        let LinkPhase::Exchange(Preamble::Begin(text)) = std::mem::replace(&mut link.phase, LinkPhase::PLAIN)
        else {
            return;
        };
        self.server_rests(cx, server_id);
        match self.clients.get_mut(id).map(|client| &mut client.state) {
            Some(ClientState::Linked(link)) => link.phase = LinkPhase::Exchange(Preamble::Begin(text)),
            Some(ClientState::Idle) => {
                let since_us = cx.env.now.mono_us;
                self.set_client_state(id, ClientState::DeferredBegin(DeferredBegin { text, since_us }));
            }
            _ => {}
        }
    }
}
