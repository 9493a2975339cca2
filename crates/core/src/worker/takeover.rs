//! Online restart (`-R`), on the side of the worker: which pools hand over or take over. What they carry is in `pool/takeover`.

use crate::context::Cx;
use crate::driver::{CloseMode, ConnId, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, PoolId, ServerId};
use crate::mail::Shutdown;
use crate::pool::takeover::carried::Carried;
use crate::worker::Worker;

/// Whether a pool was told; sets of pools are small.
pub(crate) type ToldPools = std::collections::HashSet<PoolId>;

impl Worker {
    /// Hands over clients and servers at rest, while a successor is there.
    pub(crate) fn leave<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if cx.env.stopping != Some(Shutdown::HandOver) {
            return;
        }
        self.leave_us = None;
        let pools: Vec<PoolId> = self.pools.keys().collect();
        for id in pools {
            let is_new = self.told_pools.insert(id);
            self.in_pool(cx, id, |pool, cx| {
                if is_new {
                    pool.tell_pool(cx);
                }
                let clients: Vec<ClientId> = pool.clients.keys().collect();
                clients.into_iter().for_each(|id| pool.send_off(cx, id));
                let servers: Vec<ServerId> = pool.servers.keys().collect();
                servers.into_iter().for_each(|id| pool.send_off_unused(cx, id));
            });
        }
    }

    pub(crate) fn arrive<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        client_conn: Option<ConnId>,
        server_conn: Option<ConnId>,
        carried: Carried,
    ) {
        let Carried { database, pool_user, pool, client, server } = carried;
        let Some(pool_id) = self.pool_for(cx, &database.into(), &pool_user.into()) else {
            return self.turn_away(cx, client_conn, server_conn);
        };
        self.in_pool(cx, pool_id, |own, cx| {
            if let Some(pool) = pool {
                own.pool_arrives(cx.env, pool);
            }
            own.pair_arrives(cx, client_conn.zip(client), server_conn.zip(server));
        });
    }

    /// Closes a client and a server whose database is not configured any more.
    fn turn_away<D: Driver>(&mut self, cx: &mut Cx<'_, D>, client: Option<ConnId>, server: Option<ConnId>) {
        if let Some(conn) = client {
            cx.env.scratch.clear();
            Fault::DatabaseRemoved.encode(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
            cx.driver.close(conn, CloseMode::Flush);
        }
        if let Some(conn) = server {
            cx.driver.close(conn, CloseMode::Now);
        }
    }
}
