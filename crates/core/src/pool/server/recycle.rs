//! Servers that are given up although they work: RECONNECT, a changed configuration, a host that has left their address, a dropped
//! role. Idle servers are closed at once, the others when they become idle.

use std::net::SocketAddr;

use crate::context::Cx;
use crate::driver::{CloseMode, Driver, Endpoint};
use crate::ids::ServerId;
use crate::pool::node::NodePool;
use crate::pool::session::content::IDENTITY;
use crate::pool::{Pool, ServerKind};

/// The reason for closing a server whose host has left its address.
const MOVED: &str = "host has another address";

impl Pool {
    /// Closes the servers of a host that are not at one of these addresses.
    pub(crate) fn leave_addresses<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        host: &str,
        addresses: &[SocketAddr],
    ) {
        let is_left = |remote: SocketAddr| !addresses.iter().any(|address| address.ip() == remote.ip());
        let left: Vec<ServerId> = self
            .servers
            .iter()
            .filter(
                |(_, server)| matches!(&server.at.endpoint, Endpoint::Tcp { host: name, .. } if **name == *host),
            )
            .filter(|(_, server)| server.at.remote.is_some_and(is_left))
            .map(|(id, _)| id)
            .collect();
        for id in left {
            self.recycle_server(cx, id, MOVED);
            self.notice();
        }
    }

    /// Closes the present servers when they next become idle, and forgets what is known of them and of failures.
    pub(crate) fn recycle_pool<D: Driver>(&mut self, cx: &mut Cx<'_, D>, reason: &'static str) {
        self.state.greeting = None;
        self.purge_known(cx.env);
        // New connections may begin with other settings, such as another isolation level.
        self.state.routines.doubt();
        self.state.nodes_mut().for_each(NodePool::forget_failures);
        let servers: Vec<ServerId> = self.servers.keys().collect();
        for server_id in servers {
            self.recycle_server(cx, server_id, reason);
        }
        self.notice();
    }

    /// Closes servers after roles were dropped. PostgreSQL keeps the role of a session by its number. If a new role gets the same name, a
    /// client that sets this role would get a server that still works as the old one. The roles that an open transaction has set are not
    /// known yet.
    pub(crate) fn roles_dropped<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let may_have_role = |&id: &ServerId| {
            let server = &self.servers[id];
            let linked = server.state.client().and_then(|client_id| self.linked_to(client_id, id));
            linked.is_some_and(|(link, _)| link.touched.is_some())
                || IDENTITY.iter().any(|name| server.session.get(name).is_some())
        };
        let servers: Vec<ServerId> = self.servers.keys().filter(may_have_role).collect();
        for id in servers {
            self.recycle_server(cx, id, "a role was dropped");
        }
    }

    /// Closes a server now, or when it becomes idle.
    pub(crate) fn recycle_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: &'static str,
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        match server.state.kind() {
            // A client that listens must learn of the move: otherwise it hears nothing from the server that it goes to now.
            ServerKind::Idle | ServerKind::Listening => self.close_server(cx, id, reason, CloseMode::Flush),
            ServerKind::Login if server.state.client().is_none() => {
                self.close_server(cx, id, reason, CloseMode::Now);
            }
            // A replication server would never be released.
            ServerKind::Active if server.is_replication() => self.lose_server(cx, id, reason.into()),
            _ => server.retire(reason),
        }
    }
}
