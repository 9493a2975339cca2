//! Replication clients: each has a connection of its own, which counts as one of the pool's. Who finds no room waits, as others
//! wait for a server; the first of all who wait is next.

use std::sync::Arc;

use super::Machine;
use crate::driver::{CloseMode, Driver};
use crate::ids::{ClientId, PoolId};
use crate::pool::ServerKind;

impl Machine {
    /// A replication client that is proven needs its connection.
    pub(super) fn request_replication<D: Driver>(&mut self, d: &mut D, pool_id: PoolId, client: ClientId) {
        if let Some(fault) = self.known_failure(pool_id) {
            self.refuse_client(d, client, &fault);
            return;
        }
        self.pools[pool_id].replicating.push_back(client);
        self.notice(pool_id);
    }

    /// Opens connections for those whose turn it is, as long as there is room, or a free server that can go.
    pub(super) fn serve_replication<D: Driver>(&mut self, d: &mut D, pool_id: PoolId) {
        while let Some(client) = self.next_replicating(pool_id)
            && self.make_room(d, pool_id)
        {
            self.pools[pool_id].replicating.pop_front();
            self.dial_server(d, pool_id, Some(client));
        }
    }

    /// The replication client whose turn it is: nobody waits longer, and nothing keeps the pool from opening connections. What
    /// becomes free is not for others then.
    pub(super) fn next_replicating(&mut self, pool_id: PoolId) -> Option<ClientId> {
        let client = *self.pools[pool_id].replicating.front()?;
        let since_us = self.clients.get(client)?.account.as_ref()?.request_us;
        let first = self.first_waiting(pool_id);
        (first.is_none_or(|(_, first_us)| since_us <= first_us) && self.may_dial(pool_id)).then_some(client)
    }

    /// Takes a place for one more connection; a free server goes for it if need be.
    fn make_room<D: Driver>(&mut self, d: &mut D, pool_id: PoolId) -> bool {
        let config = Arc::clone(&self.rules.config);
        let pool = &self.pools[pool_id];
        let size = config.pool_size(&pool.config, &pool.user);
        if size > 0
            && pool.servers_total() >= size
            && let Some(&idle) = pool.idle.front()
        {
            self.close_server(d, idle, "evicted", CloseMode::Flush);
        }
        let full = size > 0 && self.pools[pool_id].servers_total() >= size;
        !full && self.take_place(d, pool_id, true)
    }

    /// Connections that are being opened for one client each, and will never be the pool's.
    pub(super) fn logins_for_replication(&self, pool_id: PoolId) -> u32 {
        let reserved = self.servers.values().filter(|server| {
            server.pool == pool_id && server.replication && server.state.kind() == ServerKind::Login
        });
        reserved.count() as u32
    }

    /// A replication client that is not linked yet leaves: its connection is not opened any further.
    pub(super) fn abandon_dial<D: Driver>(&mut self, d: &mut D, client: ClientId) {
        let concerned = self
            .servers
            .iter()
            .find(|(_, server)| server.replication && server.state.client() == Some(client));
        if let Some((id, server)) = concerned
            && !server.lost
        {
            self.close_server(d, id, "replication client was closed", CloseMode::Now);
        }
    }
}
