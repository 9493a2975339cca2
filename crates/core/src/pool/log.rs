//! Names in log lines, and lines for decisions that are made with every transaction.

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{Client, log_name};
use crate::pool::server::state::Server;

impl Pool {
    /// Logs a decision that is made with every transaction, if `verbose` is set.
    #[inline]
    pub(crate) fn log_debug<D: Driver>(
        &self,
        cx: &mut Cx<'_, D>,
        line: impl FnOnce(&Pool, &Env) -> Option<String>,
    ) {
        if cx.env.rules.config.main.verbose > 0 {
            self.log_decision(cx, line);
        }
    }

    /// Returns the names of a client and a server for log lines.
    pub(crate) fn log_names(&self, client: ClientId, server: ServerId) -> Option<(String, String)> {
        let (client, server) = (self.clients.get(client)?, self.servers.get(server)?);
        Some((self.client_log_name(client), self.server_log_name(server)))
    }

    #[cold]
    #[inline(never)]
    fn log_decision<D: Driver>(&self, cx: &mut Cx<'_, D>, line: impl FnOnce(&Pool, &Env) -> Option<String>) {
        if let Some(line) = line(self, cx.env) {
            cx.log(Level::Debug, &line);
        }
    }

    /// Returns `C-0x12: database/user@host:port`, with which log lines about a client begin.
    pub(crate) fn client_log_name(&self, client: &Client) -> String {
        let user = &client.account.user;
        log_name(client.serial, &self.state.database, user, &client.origin.peer)
    }

    /// Returns `S-0x12: database/user@host:port`, with which log lines about a server begin.
    pub(crate) fn server_log_name(&self, server: &Server) -> String {
        let pool = &self.state;
        format!("S-{:#x}: {}/{}@{}", server.at.serial, pool.database, pool.user, server.address())
    }
}
