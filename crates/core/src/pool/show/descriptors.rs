//! SHOW FDS: a pool's sockets by their numbers.

use crate::context::Cx;
use crate::driver::{Driver, Peer};
use crate::pool::Pool;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::server::state::Server;
use crate::pool::session::params::Params;
use std::net::SocketAddr;

/// The values of a socket that every kind of socket has.
pub(crate) struct Line<'a> {
    pub(crate) descriptor: Option<i32>,
    pub(crate) task: &'static str,
    pub(crate) user: Option<&'a str>,
    pub(crate) database: Option<&'a str>,
    pub(crate) place: Option<SocketAddr>,
    pub(crate) port: u16,
    pub(crate) link: Option<i32>,
    pub(crate) params: Option<&'a Params>,
}

impl Pool {
    /// Returns a line for each client and server. Clients of the console are left out, as in PgBouncer.
    pub(crate) fn descriptor_lines<'a, D: Driver>(
        &'a self,
        cx: &'a Cx<'_, D>,
    ) -> impl Iterator<Item = Line<'a>> + 'a {
        let clients = self.clients.values().map(|client| self.client_line(cx, client));
        clients.chain(self.servers.values().map(|server| self.server_line(cx, server)))
    }

    fn client_line<'a, D: Driver>(&'a self, cx: &Cx<'_, D>, client: &'a Client) -> Line<'a> {
        let account = &client.account;
        let pool = &self.state;
        let (place, port) = match client.origin.peer {
            Peer::Tcp { remote, .. } => (Some(remote), remote.port()),
            Peer::Unix { port, .. } => (None, port),
        };
        let link = match &client.state {
            ClientState::Linked(link) => self.servers.get(link.server),
            _ => None,
        };
        Line {
            descriptor: cx.driver.descriptor(client.conn),
            task: "client",
            user: Some(&account.user),
            database: Some(&pool.database),
            place,
            port,
            link: link.and_then(|server| cx.driver.descriptor(server.conn)),
            params: Some(&account.params),
        }
    }

    fn server_line<'a, D: Driver>(&'a self, cx: &Cx<'_, D>, server: &'a Server) -> Line<'a> {
        let pool = &self.state;
        let client = server.state.client().and_then(|client| self.clients.get(client));
        Line {
            descriptor: cx.driver.descriptor(server.conn),
            task: "server",
            user: Some(&pool.user),
            database: Some(&pool.database),
            place: server.at.remote,
            port: pool.config.port,
            link: client.and_then(|client| cx.driver.descriptor(client.conn)),
            params: Some(&server.params),
        }
    }
}
