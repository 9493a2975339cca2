//! The first step for a client on a new server: the server is brought to the client's session before the client's statement, in the same
//! packet if possible (`replay.rs`).

use std::sync::Arc;

use pgweir_wire::backend::encode_parameter_status;

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, printable};
use crate::pool::relay::ledger::{Entry, Owner, Purpose};
use crate::pool::sequences::state as sequences;
use crate::pool::server::state::{Server, Syncing};
use crate::pool::session::content::{Listening, Prepared, Session};
use crate::pool::session::params::{Params, sync_statements};

impl Server {
    /// Whether the server listens to the channels of the session that it carries.
    fn listening(&self) -> Listening {
        if self.branch.is_primary() { Listening::Here } else { Listening::Nowhere }
    }
}

impl Pool {
    /// Whether the server carries the client's own session.
    pub(crate) fn has_session_of(&self, id: ClientId, server_id: ServerId) -> bool {
        let server = &self.servers[server_id];
        self.clients.get(id).map(|client| &client.account).is_none_or(|account| {
            Arc::ptr_eq(&server.params, &account.params) && Arc::ptr_eq(&server.session, &account.session)
        })
    }

    /// Brings the client's session to a server that carries another one. If `clears` is true, the values that were drawn from sequences are
    /// discarded, too. Returns the state in which the server answers, if pgweir must wait for the answer.
    pub(crate) fn sync_session<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        clears: bool,
    ) -> Option<Syncing> {
        let account = self.clients.get_mut(id).map(|client| &mut client.account)?;
        let (params, session) = (Arc::clone(&account.params), Arc::clone(&account.session));
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            // If a parameter is set here and reset by the client's statement in the same packet, no server reports it.
            let server = &self.servers[server_id];
            params.differences(&server.params).for_each(|position| link.changed.add(position));
        }
        let mut statements = self.sync_pieces(cx.env, server_id, &params, &session);
        if clears {
            statements.push(sequences::DISCARD.to_vec());
        }
        let server = &self.servers[server_id];
        let lacking: Vec<Prepared> = server.session.lacking(&session).cloned().collect();
        if statements.is_empty() && lacking.is_empty() {
            // They are the same, but for the channels of a client at a standby, which are the client's.
            let server = &mut self.servers[server_id];
            server.session = session;
            if let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) {
                account.params = Arc::clone(&server.params);
            }
            return None;
        }
        self.log_debug(cx, |worker, env| {
            // Only what servers report: settings of a client's own may hold secrets.
            let server = worker.servers.get(server_id)?;
            let sets = sync_statements(&env.tracked, &params, &server.params).concat();
            let text = String::from_utf8_lossy(&sets).into_owned();
            (!sets.is_empty()).then(|| format!("{} varcache_apply: {text}", worker.server_log_name(server)))
        });
        if lacking.is_empty() && self.replay(cx.env, id, server_id, &statements) {
            return None;
        }
        self.send_session_sync(cx, server_id, &params, &session, Purpose::SyncSession);
        if clears {
            self.send_hidden(cx, server_id, Purpose::SyncSession, sequences::DISCARD);
        }
        self.servers[server_id].session = session;
        let mut preparing = Vec::with_capacity(lacking.len());
        for Prepared { name, text, .. } in lacking {
            self.send_hidden(cx, server_id, Purpose::Prepare, &text);
            preparing.push(name);
        }
        Some(Syncing { preparing })
    }

    /// Notes that a statement of the client cannot be prepared any more (a table of it is gone). The client does not have the statement any
    /// longer, and learns so when it executes it.
    pub(crate) fn prepare_refused<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, text: &str) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let Some(syncing) = server.state.syncing() else { return };
        let owed = |entry: &&Entry| entry.owner == Owner::Hidden(Purpose::Prepare);
        let at = syncing.preparing.len().checked_sub(server.ledger.entries().filter(owed).count());
        let Some(name) = at.and_then(|at| syncing.preparing.get(at)) else { return };
        let mut session = (*server.session).clone();
        session.deallocate(name);
        let line = format!("prepared statement \"{}\" could not follow its client: {text}", printable(name));
        server.session = self.state.known.sessions.share(session);
        cx.log(Level::Debug, &line);
    }

    /// Returns the statements that bring a server to these parameters and this session, one for each change, in this order.
    fn sync_pieces(
        &self,
        env: &Env,
        server_id: ServerId,
        params: &Params,
        session: &Session,
    ) -> Vec<Vec<u8>> {
        let server = &self.servers[server_id];
        let mut statements = sync_statements(&env.tracked, params, &server.params);
        statements.extend(server.session.sync_statements(session, server.listening()));
        statements
    }

    /// Sends the statements that bring a server to these parameters and this session. Returns `false` if the server has them already.
    pub(crate) fn send_session_sync<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        params: &Params,
        session: &Session,
        purpose: Purpose,
    ) -> bool {
        let server = &self.servers[server_id];
        let mut text = sync_statements(&cx.env.tracked, params, &server.params).concat();
        let behind = server.session.sync_statements(session, server.listening()).concat();
        if text.is_empty() && behind.is_empty() {
            return false;
        }
        if !text.is_empty() && !behind.is_ascii() && self.encoding_differs(cx.env, params, server) {
            // The values are spelled in the client's encoding: it must be in effect before they are read.
            self.send_hidden(cx, server_id, purpose, &text);
            text.clear();
        }
        text.extend_from_slice(&behind);
        self.send_hidden(cx, server_id, purpose, &text);
        true
    }

    /// Prepares a free server for a statement of no client: without any client's settings and role, as when it was new.
    pub(crate) fn make_plain<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        let plain = self.new_session(server_id);
        let server = &self.servers[server_id];
        let params = Arc::clone(&server.params);
        if *server.session == plain {
            return;
        }
        self.send_session_sync(cx, server_id, &params, &plain, Purpose::SyncSession);
        self.servers[server_id].session = self.state.known.sessions.share(plain);
    }

    /// Returns the beginning of every client's session, except for statements that this server would have to prepare for it.
    pub(crate) fn new_session(&self, server_id: ServerId) -> Session {
        let server = &self.servers[server_id];
        let greeting = self.state.greeting.as_deref();
        let session = greeting.map(|greeting| (*greeting.session).clone()).unwrap_or_default();
        session.prepared_as_in(&server.session)
    }

    /// Takes over the parameters that the server reports as the client's. If the server spells a value in its own way, that spelling is the
    /// client's value from here on, and the client is told.
    pub(crate) fn adopt_params<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client_id: ClientId) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let account = &mut client.account;
        cx.env.scratch.clear();
        for position in account.params.differences(&server.params) {
            let name = cx.env.tracked.names().nth(position).unwrap_or_default();
            let value = server.params.get(position).unwrap_or_default();
            encode_parameter_status(&mut cx.env.scratch, name.as_bytes(), value);
        }
        if !cx.env.scratch.is_empty() {
            cx.driver.send(client.conn, &cx.env.scratch);
        }
        account.params = Arc::clone(&server.params);
    }

    fn encoding_differs(&self, env: &Env, params: &Params, server: &Server) -> bool {
        let position = env.tracked.position(b"client_encoding");
        position.is_some_and(|position| params.get(position) != server.params.get(position))
    }

    /// Notes that the server has the client's session now.
    pub(crate) fn session_synced<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) {
        let account = self.clients.get_mut(client_id).map(|client| &mut client.account);
        if let (Some(account), Some(server)) = (account, self.servers.get(id)) {
            account.session = Arc::clone(&server.session);
        }
        self.adopt_params(cx, id, client_id);
    }
}
