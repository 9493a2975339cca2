//! A server that cannot be used any more, and its client: it gets another server, outlives the loss, or is told why its session ends.

use std::borrow::Cow;

use pgweir_settings::PoolMode;

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Closed, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::{STILLBORN_MAX, STILLBORN_US};
use crate::pool::Pool;
use crate::pool::client::leaving::Farewell;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::{ConnectionState, Ending, ServerState};

impl Pool {
    /// Gives up a server that cannot be used any more. Its client learns why.
    pub(crate) fn lose_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: Cow<'static, str>,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        if server.state.at_login().is_some() {
            // The next one would end in the same way, at once: that waits for `server_login_retry`.
            return self.login_failed(cx, id, "connect_query failed", &reason);
        }
        let prepares = server.state.syncing().is_some();
        if prepares && self.gets_another_server(cx, id) {
            // Nothing of its client's request was sent.
            return self.close_server(cx, id, &reason, CloseMode::Now);
        }
        if let Some(client) = self.servers.get(id).and_then(|server| server.state.client())
            && self.goes_to_primary(cx, client, id)
        {
            return self.close_server(cx, id, &reason, CloseMode::Now);
        }
        let Some(server) = self.servers.get(id) else { return };
        let (client, said_fatal) = (server.state.client(), server.has_said_fatal());
        let unseen_bytes = server.incoming.inbox.len();
        if let Some(client_id) = client.filter(|&client| self.outlives_server(cx, client, id, unseen_bytes)) {
            self.log_debug(cx, |pool, _| {
                let client = pool.clients.get(client_id)?;
                Some(format!("{} goes on without its server: {reason}", pool.client_log_name(client)))
            });
        } else if let Some(client_id) = client.filter(|&client| self.clients.contains_key(client)) {
            let fault = match self.lost_with_server(client_id) {
                Some(lost) => Fault::PinnedServerLost(reason.clone(), lost),
                None => Fault::ServerLost(reason.clone()),
            };
            let fault = self.lost_with_primary(client_id, id).unwrap_or(fault);
            // Told before the server is removed: only then is it known whether a message is half passed on.
            self.servers[id].ending = Ending::Lost;
            if said_fatal {
                self.remove_client(cx, client_id, &reason, (CloseMode::Flush, Farewell::Refused));
            } else {
                self.refuse_client(cx, client_id, &fault);
            }
        } else {
            self.note_stillborn(cx.env, id);
        }
        self.close_server(cx, id, &reason, CloseMode::Now);
    }

    /// Handles the end of the connection to a server.
    pub(crate) fn server_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, why: &Closed) {
        if let Some(server) = self.servers.get_mut(id) {
            server.connection = match why {
                Closed::Eof | Closed::DialFailed(_) | Closed::NameNotResolved(_) => {
                    ConnectionState::ClosedByServer
                }
                Closed::Broken(_) | Closed::Tls(_) => ConnectionState::Broken,
            };
        }
        if self.abandoned_is_over(cx, id) {
            // PostgreSQL has read the Terminate that followed the client's last message.
            return;
        }
        let Some(server) = self.servers.get(id) else { return };
        match server.state {
            ServerState::Dialing(_) | ServerState::SecuringTls(_) | ServerState::LoggingIn(_) => {
                let (reason, text) = match why {
                    Closed::NameNotResolved(text) => ("server DNS lookup failed", text.as_str()),
                    Closed::DialFailed(text) => ("connect failed", text.as_str()),
                    Closed::Tls(text) => ("TLS handshake error", text.as_str()),
                    Closed::Broken(text) => ("server conn crashed?", text.as_str()),
                    Closed::Eof => ("server conn crashed?", "the server closed the connection during login"),
                };
                self.login_failed(cx, id, reason, text);
            }
            _ => {
                let branch = server.branch;
                self.suspect_node(cx.env, branch, false);
                self.lose_server(cx, id, "server conn crashed?".into());
            }
        }
    }

    /// Ends a session whose server is to be replaced (`server_fast_close`). The caller has seen the end of the session's transaction.
    pub(crate) fn close_fast<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client_id: ClientId) {
        let (Some(server), Some(client)) = (self.servers.get(id), self.clients.get(client_id)) else {
            return;
        };
        if server.retiring.is_some()
            && !server.has_said_fatal()
            && cx.env.rules.config.main.server_fast_close
            && client.replication() == Replication::None
        {
            // For any reason, as PgBouncer does it.
            self.refuse_client(cx, client_id, &Fault::ServerLost("database configuration changed".into()));
        }
    }

    /// Ends sessions that were between two transactions when their server was marked to be replaced (`server_fast_close`).
    pub(crate) fn close_idle_sessions_fast<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if !cx.env.rules.config.main.server_fast_close {
            return;
        }
        let rests = |client: &Client| match &client.state {
            ClientState::Linked(link) => {
                link.streaming == 0
                    && !matches!(link.phase, LinkPhase::Exchange(Preamble::Begin(_)))
                    && client.inbox.is_empty()
            }
            _ => false,
        };
        let marked: Vec<(ServerId, ClientId)> = self
            .servers
            .iter()
            .filter(|(_, server)| server.retiring.is_some() && server.is_at_rest())
            .filter_map(|(id, server)| Some((id, server.state.served_client()?)))
            .filter(|(_, client_id)| {
                let client = self.clients.get(*client_id);
                client.is_some_and(|client| self.client_mode(client) == PoolMode::Session && rests(client))
            })
            .collect();
        for (id, client_id) in marked {
            self.close_fast(cx, id, client_id);
        }
    }

    /// Notes that a server ended before it served any client. If several do so right after their login, the next one would end in the same
    /// way, at once: it waits for `server_login_retry`, as after a failed login.
    pub(crate) fn note_stillborn(&mut self, env: &Env, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let age_us = env.now.mono_us.saturating_sub(server.active_us);
        if server.work.used || age_us >= STILLBORN_US {
            return;
        }
        let branch = server.branch;
        let retry_us = self.state.retry_us(env, branch);
        let node = self.state.node_at_mut(branch);
        node.stillborn = node.stillborn.saturating_add(1);
        if node.stillborn >= STILLBORN_MAX {
            node.dial_after_us = env.now.mono_us.saturating_add(retry_us);
        }
    }
}
