//! Replication clients: each has its own connection, which counts as one of the pool's. A client that finds no room waits, as
//! other clients wait for a server; the first of all waiting clients is next. Nothing of ours is ever sent on such a connection
//! after its login.

use std::sync::Arc;

use pgweir_wire::frontend::tag;
use pgweir_wire::header::Header;

use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::HOLD_MESSAGE_BYTES;
use crate::pool::client::state::ClientState;
use crate::pool::relay::route::{Flaw, Route, oversized, route};
use crate::pool::{Branch, Pool, ServerKind, Step};

/// The decision for the front of a replication client's bytes.
enum Front {
    /// The first bytes, of this number, go to the server.
    Passes(usize),
    /// The rest of the message is needed first.
    Waits,
    Leaves,
    Refused(Fault),
    Rejected(Flaw, u8),
}

impl Pool {
    /// Queues a proven replication client for a connection of its own.
    pub(crate) fn request_replication<D: Driver>(&mut self, cx: &mut Cx<'_, D>, client: ClientId) {
        if let Some(fault) = self.known_failure(cx.env, Branch::PRIMARY) {
            self.refuse_client(cx, client, &fault);
            return;
        }
        self.state.queue.replicating.push_back(client);
        self.notice();
    }

    /// Opens connections for the clients that are next, as long as there is room, or a free server that can go.
    pub(crate) fn serve_replication<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        while let Some(client) = self.next_replicating(cx.env)
            && self.make_room(cx)
        {
            self.state.queue.replicating.pop_front();
            self.dial_server(cx, Branch::PRIMARY, Some(client));
        }
    }

    /// The replication client that is next: no client has waited longer, and nothing keeps the pool from opening connections.
    /// A server that becomes free is not for other clients then.
    pub(crate) fn next_replicating(&mut self, env: &Env) -> Option<ClientId> {
        let client = *self.state.queue.replicating.front()?;
        let since_us = self.clients.get(client)?.account.request.since_us;
        let first = self.first_waiting(Branch::PRIMARY);
        (first.is_none_or(|(_, first_us)| since_us <= first_us) && self.may_dial(env, Branch::PRIMARY))
            .then_some(client)
    }

    /// Takes a place for one more connection; a free server goes for it if necessary.
    fn make_room<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> bool {
        let config = Arc::clone(&cx.env.rules.config);
        let pool = &self.state;
        let size = config.pool_size(&pool.config, &pool.user);
        if size > 0
            && pool.node.servers_total() >= size
            && let Some(&idle) = pool.node.idle.front()
        {
            self.close_server(cx, idle, "evicted", CloseMode::Flush);
        }
        let full = size > 0 && self.state.node.servers_total() >= size;
        !full && self.take_place(cx, Branch::PRIMARY, true)
    }

    /// Connections that are being opened for one client each, and will never be the pool's.
    pub(crate) fn logins_for_replication(&self) -> u32 {
        let reserved = self
            .servers
            .values()
            .filter(|server| server.is_replication() && server.state.kind() == ServerKind::Login);
        reserved.count() as u32
    }

    /// The bytes of a linked replication client go to its server as they are. pgweir adds nothing and notes nothing: the server
    /// is this client's alone, and ends with it.
    pub(crate) fn replication_client_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        let mut used = 0;
        let end = loop {
            match self.replication_front(cx.env, id, &bytes[used..]) {
                Front::Passes(len) if len > 0 => used += len,
                end => break end,
            }
        };
        let Some(server) = self.servers.get_mut(server_id) else { return Step::Gone };
        server.active_us = cx.env.now.mono_us;
        let conn = server.conn;
        if used > 0 {
            cx.driver.send(conn, &bytes[..used]);
        }
        match end {
            Front::Leaves => return self.client_left(cx, id, "client close request"),
            Front::Refused(fault) => return self.refuse_client(cx, id, &fault),
            Front::Rejected(route, tag) => return self.reject(cx, id, route, tag),
            Front::Passes(_) | Front::Waits => {}
        }
        if cx.driver.backlog(conn) > cx.env.limits.backlog_bytes {
            self.pause_client(cx, id);
        }
        if used == 0 { Step::Wait } else { Step::Used(used) }
    }

    /// The next message, or the rest of one.
    fn replication_front(&mut self, env: &Env, id: ClientId, rest: &[u8]) -> Front {
        let main = &env.rules.config.main;
        let Some(client) = self.clients.get_mut(id) else { return Front::Waits };
        let ClientState::Linked(link) = &mut client.state else { return Front::Waits };
        if link.streaming > 0 {
            let len = link.streaming.min(rest.len());
            link.streaming -= len;
            return Front::Passes(len);
        }
        let header = match Header::peek(rest) {
            Ok(Some(header)) => header,
            Ok(None) => return Front::Waits,
            Err(error) => return Front::Refused(Fault::Protocol(error.to_string().into())),
        };
        if let Some(fault) = oversized(main, header) {
            return Front::Refused(fault);
        }
        if header.tag == tag::QUERY && main.disable_pqexec {
            return Front::Refused(Fault::SimpleQueryDisabled);
        }
        let len = rest.len().min(header.total());
        if len < header.total() && header.total() <= HOLD_MESSAGE_BYTES {
            return Front::Waits;
        }
        match route(header, rest, false) {
            Route::Pass(_) | Route::Bind(_) | Route::Prepared | Route::Unnamed(_) => {
                link.streaming = header.total() - len;
                Front::Passes(len)
            }
            Route::More => Front::Waits,
            Route::Leave => Front::Leaves,
            Route::Refused(flaw) => Front::Rejected(flaw, header.tag),
        }
    }
}
