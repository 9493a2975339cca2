//! Statements of pgweir's own, whose answers no client sees.

use pgweir_wire::frontend::{self, Target};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::pool::Pool;
use crate::pool::relay::exchange::block::NO_PARAMETERS;
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};

/// The messages of [`encode_aside`].
pub(crate) const ASIDE: [Kind; 6] =
    [Kind::Close, Kind::Parse, Kind::Bind, Kind::Execute, Kind::Close, Kind::Close];

impl Pool {
    /// Sends a statement of pgweir's own. No client sees its answer.
    pub(crate) fn send_hidden<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        purpose: Purpose,
        text: &[u8],
    ) {
        let server = &mut self.servers[server_id];
        cx.env.scratch.clear();
        pgweir_wire::frontend::encode_query(&mut cx.env.scratch, text);
        server.ledger.push(Entry::new(Owner::Hidden(purpose), Kind::Query));
        cx.driver.send(server.conn, &cx.env.scratch);
    }

    /// Sends a Sync of pgweir's own, after messages that PostgreSQL ignores up to the next Sync.
    pub(crate) fn send_sync<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId, purpose: Purpose) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        server.ledger.push(Entry::new(Owner::Hidden(purpose), Kind::Sync));
        cx.env.scratch.clear();
        frontend::encode_sync(&mut cx.env.scratch);
        cx.driver.send(server.conn, &cx.env.scratch);
    }

    /// Sends hidden statements without touching the client's unnamed statement and portal.
    pub(crate) fn send_hidden_aside<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        purpose: Purpose,
        statements: &[Vec<u8>],
    ) {
        self.send_aside(cx, server_id, (purpose, Owner::Hidden(purpose)), statements);
    }

    /// Sends statements without touching the client's unnamed statement and portal. The answers are hidden, but the ReadyForQuery after
    /// them goes to the owner `ready`.
    pub(crate) fn send_aside<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        (purpose, ready): (Purpose, Owner),
        statements: &[Vec<u8>],
    ) {
        let server = &mut self.servers[server_id];
        cx.env.scratch.clear();
        for text in statements {
            encode_aside(&mut cx.env.scratch, text);
            for kind in ASIDE {
                server.ledger.push(Entry::new(Owner::Hidden(purpose), kind));
            }
        }
        frontend::encode_sync(&mut cx.env.scratch);
        server.ledger.push(Entry::new(ready, Kind::Sync));
        cx.driver.send(server.conn, &cx.env.scratch);
    }
}

/// Name of a statement and portal that are there for a moment.
const NAME: &[u8] = b"PGWEIR_ASIDE";

/// Encodes a statement in the extended protocol, without a Sync, that uses no unnamed statement and no unnamed portal.
pub(crate) fn encode_aside(out: &mut Vec<u8>, text: &[u8]) {
    // If an earlier one failed, PostgreSQL has skipped its Close, and the statement is still there.
    frontend::encode_close(out, Target::Statement, NAME);
    frontend::encode_parse(out, NAME, text, &[]);
    frontend::encode_bind_head(out, NAME, NAME, NO_PARAMETERS.len());
    out.extend_from_slice(&NO_PARAMETERS);
    frontend::encode_execute(out, NAME, 0);
    frontend::encode_close(out, Target::Portal, NAME);
    frontend::encode_close(out, Target::Statement, NAME);
}
