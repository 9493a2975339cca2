//! The life of a cancel's connection to PostgreSQL, until the signal can hit no other statement.

use pgweir_wire::frontend::{encode_cancel, encode_ssl_request};

use super::Stage;
use super::queue::end_requester;
use crate::context::Cx;
use crate::driver::{CloseMode, Closed, Driver, Endpoint, Level, TlsRole};
use crate::ids::{CancelId, ServerId};
use crate::pool::Pool;
use crate::pool::server::asked::{AskedServer, ServerQuestion};
use crate::pool::server::state::ServerState;

impl Pool {
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
            let is_target = match server.state.served_client() {
                Some(client) => client == cancel.target,
                None => server.abandoned.as_ref().is_some_and(|abandoned| abandoned.client == cancel.target),
            };
            is_target && server.ledger.of_clients().next().is_some()
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
                ServerState::Asked(AskedServer { question: ServerQuestion::Reset, .. })
                    if server.cancels == 0 && server.is_at_rest() =>
                {
                    self.cleaned(cx, cancel.server);
                }
                _ => self.restores_behind_cancel(cx, cancel.server),
            }
        }
        end_requester(cx, cancel.requester, reason);
        self.next_cancel(cx);
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
            server.retire("cancel request did not end");
        }
        cx.log(Level::Warning, "cancel request did not end in time");
        self.end_cancel(cx, id, "failed cancel request");
    }

    /// Continues a server's restore after the last cancel request to it has ended.
    pub(crate) fn restores_behind_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        if self.servers.get(server_id).is_some_and(|server| server.resets) {
            self.restores(cx, server_id);
            self.resume_held(cx, server_id);
        }
    }
}
