//! Hosts whose addresses change: servers at an address that their host has left are given up as they come to rest.

use crate::context::Cx;
use crate::driver::{Driver, Endpoint};
use crate::ids::ServerId;
use crate::pool::Pool;
use std::net::SocketAddr;

/// Why such a server is closed.
const MOVED: &str = "host has another address";

impl Pool {
    /// Servers of a host that are not at one of these addresses are to be closed.
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
}
