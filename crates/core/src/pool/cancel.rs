//! CancelRequest: a cancel reaches only the statement it was meant for.
//!
//! A cancel is a separate connection to PostgreSQL, which signals the backend and closes it. Until that is over the signal may
//! still arrive, so the server that it is aimed at is given to no other client meanwhile (`ServerState::HeldForCancel`). If the
//! client has no server any more when the cancel's connection is up, the cancel is not sent at all. A client that waits for a
//! server is told here that its statement is cancelled.

use pgweir_wire::frontend::{encode_cancel, encode_ssl_request};

use crate::context::Role;
use crate::context::{Cx, Effect};
use crate::driver::{CloseMode, Closed, ConnId, Driver, Endpoint, Level, TlsRole};
use crate::errors::Refusal;
use crate::ids::{CancelId, ClientId, ServerId, UnpooledId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::server::state::ServerState;

/// A connection to PostgreSQL for one cancel.
pub(crate) struct CancelConnection {
    pub(crate) conn: ConnId,
    /// The connection that asked, if it came to this worker; it is closed when the cancel is over.
    requester: Option<UnpooledId>,
    /// The client that runs the statement.
    target: ClientId,
    server: ServerId,
    stage: Stage,
    pub(crate) since_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dialing,
    SecuringTls,
    /// The server is held from here on.
    Sent,
}

/// A cancel that waits for its turn: a pool has at most twice its size of cancel connections.
pub(crate) struct WaitingCancel {
    pub(crate) requester: Option<UnpooledId>,
    pub(crate) target: ClientId,
    pub(crate) since_us: u64,
}

impl Pool {
    /// The statement of this client is to be cancelled.
    pub(crate) fn cancel_target<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        requester: Option<UnpooledId>,
        target: ClientId,
    ) {
        let Some(client) = self.clients.get(target) else {
            return end_requester(cx, requester, "failed cancel request");
        };
        let place = match &client.state {
            ClientState::Linked(link) => Some((link.server, false)),
            ClientState::QueuedBehind(queued_behind) => Some((queued_behind.server, true)),
            _ => None,
        };
        let Some((server, queued_behind)) = place else {
            let waited = self.turn_down(cx, target, Refusal::Canceled);
            let reason = if waited {
                "canceled a statement that waited for a server"
            } else {
                "cancel request for idle client"
            };
            return end_requester(cx, requester, reason);
        };
        if let Some(server) = self.servers.get_mut(server) {
            server.pipelined.close();
        }
        let since_us = cx.env.now.mono_us;
        if queued_behind {
            // Until it is at the head, a cancel would hit another client's statement.
            self.state.queue.cancels.push_back(WaitingCancel { requester, target, since_us });
            return cx
                .log(Level::Debug, "a cancel request waits until its statement is the first on its server");
        }
        if let Some(server) = self.servers.get_mut(server) {
            server.pipelined.trust_head();
        }
        let size = cx.env.rules.config.pool_size(&self.state.config, &self.state.user);
        if !may_cancel(size, self.cancels.len()) {
            self.state.queue.cancels.push_back(WaitingCancel { requester, target, since_us });
            return;
        }
        self.dial_cancel(cx, requester, target, server);
    }

    fn dial_cancel<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        requester: Option<UnpooledId>,
        target: ClientId,
        server_id: ServerId,
    ) {
        let Some(server) = self.servers.get(server_id) else { return };
        let conn = cx.driver.dial(&server.place());
        let since_us = cx.env.now.mono_us;
        let stage = Stage::Dialing;
        let cancel = CancelConnection { conn, requester, target, server: server_id, stage, since_us };
        let id = self.cancels.insert(cancel);
        cx.env.set_role(conn, Role::Cancel(self.id, id));
    }

    /// The connection is up. One to a server that is reached by TLS uses TLS, too.
    pub(crate) fn cancel_connected<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId) {
        let Some(cancel) = self.cancels.get_mut(id) else { return };
        let secured = self.servers.get(cancel.server).is_some_and(|server| !server.at.tls.is_empty());
        if !secured {
            return self.send_cancel(cx, id);
        }
        cancel.stage = Stage::SecuringTls;
        cx.env.scratch.clear();
        encode_ssl_request(&mut cx.env.scratch);
        cx.driver.send(cancel.conn, &cx.env.scratch);
    }

    /// The answer to SSLRequest; PostgreSQL says nothing else on such a connection.
    pub(crate) fn cancel_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId, bytes: &[u8]) {
        let Some(cancel) = self.cancels.get(id) else { return };
        let endpoint = self.servers.get(cancel.server).map(|server| &server.at.endpoint);
        match (cancel.stage, bytes, endpoint) {
            (Stage::SecuringTls, b"S", Some(Endpoint::Tcp { host, .. })) => {
                cx.driver.start_tls(cancel.conn, TlsRole::Connect { host: host.clone() }, &[]);
            }
            _ => self.end_cancel(cx, id, "cancel connection got an unexpected answer"),
        }
    }

    /// The handshake is complete.
    pub(crate) fn cancel_secured<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId) {
        self.send_cancel(cx, id);
    }

    fn send_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId) {
        let Some(cancel) = self.cancels.get_mut(id) else { return };
        let aimed = self.servers.get_mut(cancel.server).filter(|server| {
            matches!(server.state, ServerState::Busy(client) if client == cancel.target)
                && server.ledger.of_clients().next().is_some()
        });
        let Some(server) = aimed else {
            return self.end_cancel(cx, id, "cancel request for idle client");
        };
        cancel.stage = Stage::Sent;
        server.cancels += 1;
        server.pipelined.close();
        server.pipelined.expose();
        cx.env.scratch.clear();
        encode_cancel(&mut cx.env.scratch, server.at.pid, &server.at.key);
        cx.driver.send(cancel.conn, &cx.env.scratch);
        cx.log(Level::Log, "started sending cancel request");
    }

    /// PostgreSQL closes the connection when it has signalled the backend.
    pub(crate) fn cancel_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId, why: &Closed) {
        let sent = self.cancels.get(id).is_some_and(|cancel| cancel.stage == Stage::Sent);
        match why {
            Closed::Eof if sent => self.end_cancel(cx, id, "successfully sent cancel request"),
            // A reset after the request was sent: PostgreSQL may close without reading to the end.
            Closed::Broken(_) if sent => self.end_cancel(cx, id, "successfully sent cancel request"),
            _ => self.end_cancel(cx, id, "failed cancel request"),
        }
    }

    /// The cancel is over, for any reason.
    pub(crate) fn end_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId, reason: &str) {
        let Some(cancel) = self.cancels.remove(id) else { return };
        cx.env.clear_role(cancel.conn);
        cx.driver.close(cancel.conn, CloseMode::Now);
        if cancel.stage == Stage::Sent
            && let Some(server) = self.servers.get_mut(cancel.server)
        {
            server.cancels -= 1;
            match server.state {
                ServerState::HeldForCancel if server.cancels == 0 => self.free_server(cx, cancel.server),
                ServerState::Cleaning if server.cancels == 0 && server.is_at_rest() => {
                    self.cleaned(cx, cancel.server);
                }
                _ => self.restores_behind_cancel(cx, cancel.server),
            }
        }
        end_requester(cx, cancel.requester, reason);
        self.next_cancel(cx);
    }

    /// Cancels that waited have their turn.
    pub(crate) fn next_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        loop {
            let pool = &mut self.state;
            let size = cx.env.rules.config.pool_size(&pool.config, &pool.user);
            if !may_cancel(size, self.cancels.len()) {
                return;
            }
            let clients = &self.clients;
            // A client that is queued behind others must wait for its turn there.
            let due = pool.queue.cancels.iter().position(|waiting| {
                !clients
                    .get(waiting.target)
                    .is_some_and(|client| matches!(client.state, ClientState::QueuedBehind(_)))
            });
            let Some(waiting) = due.and_then(|at| pool.queue.cancels.remove(at)) else { return };
            self.cancel_target(cx, waiting.requester, waiting.target);
        }
    }

    /// The target has no server any more: cancels that waited for its statement have nothing to cancel.
    #[inline]
    pub(crate) fn end_cancels_for<D: Driver>(&mut self, cx: &mut Cx<'_, D>, target: ClientId) {
        if !self.state.queue.cancels.is_empty() {
            self.end_cancels_of(cx, target);
        }
    }

    fn end_cancels_of<D: Driver>(&mut self, cx: &mut Cx<'_, D>, target: ClientId) {
        let pool = &mut self.state;
        let mut idle = Vec::new();
        pool.queue.cancels.retain(|waiting| {
            let aimed = waiting.target == target;
            if aimed {
                idle.push(waiting.requester);
            }
            !aimed
        });
        for requester in idle {
            end_requester(cx, requester, "cancel request for idle client");
        }
    }

    /// The pool is about to go: these cancels would never be sent.
    pub(crate) fn end_waiting_cancels<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for cancel in std::mem::take(&mut self.state.queue.cancels) {
            end_requester(cx, cancel.requester, "database removed");
        }
    }

    /// A cancel connection that PostgreSQL did not close in time: the signal may still come, so the server is not used again.
    pub(crate) fn abandon_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: CancelId) {
        let Some(cancel) = self.cancels.get(id) else { return };
        if cancel.stage == Stage::Sent
            && let Some(server) = self.servers.get_mut(cancel.server)
        {
            server.retire = Some("cancel request did not end");
        }
        cx.log(Level::Warning, "cancel request did not end in time");
        self.end_cancel(cx, id, "failed cancel request");
    }
}

fn end_requester<D: Driver>(cx: &mut Cx<'_, D>, requester: Option<UnpooledId>, reason: &str) {
    if let Some(id) = requester {
        cx.env.want(Effect::EndRequester(id, reason.to_owned().into()));
    }
}

/// At most twice as many cancel connections as the pool has servers; 0 is no limit.
fn may_cancel(pool_size: u32, cancels: usize) -> bool {
    pool_size == 0 || cancels < pool_size.saturating_mul(2) as usize
}
