//! What a client asks for in its startup packet is tried on a server before the client is let in: what PostgreSQL refuses is
//! refused at login, in PostgreSQL's words, and the client is told each value as PostgreSQL spells it. The outcome is
//! remembered: only the first of many like clients needs a server.

use std::sync::Arc;

use crate::client::ClientState;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, PoolId, ServerId};
use crate::introductions::{Asked, Introduced, is_plain_name};
use crate::ledger::Purpose;
use crate::luggage::Replication;
use crate::machine::Machine;
use crate::params::Params;
use crate::server::{Introducing, Replies, ServerState};
use crate::session::Session;
use crate::welcome::Welcome;

use super::audit::values_of;

/// Whether a client can be let in.
pub(in crate::machine) enum Known {
    /// It asks for nothing that servers do not have.
    Plain,
    /// It asks for what a server was asked before.
    Introduced(Arc<Introduced>),
    /// A server has to be asked.
    Unknown,
}

impl Machine {
    /// See [`Known`].
    pub(in crate::machine) fn known_startup(&self, id: ClientId, welcome: &Welcome) -> Known {
        let Some(client) = self.clients.get(id) else { return Known::Plain };
        let (ClientState::Welcoming(login), Some(account)) = (&client.state, &client.account) else {
            return Known::Plain;
        };
        let pool = &self.pools[account.pool];
        if login.replication != Replication::None || !pool.tries_startup {
            return Known::Plain;
        }
        let asked = Asked::new(&self.tracked, &login.params, &login.session);
        if asked.is_nothing(&self.tracked, &welcome.params) {
            return Known::Plain;
        }
        pool.introductions.get(&asked).map_or(Known::Unknown, Known::Introduced)
    }

    /// Tries the startup parameters of a client on a free server.
    pub(in crate::machine) fn introduce<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get(id) else { return };
        let ClientState::Welcoming(login) = &client.state else { return };
        let Some(welcome) = self.pools[self.servers[server_id].pool].welcome.clone() else { return };
        let params = login.params.or(&welcome.params);
        let names: Vec<Box<[u8]>> = login.session.settings().map(|setting| setting.name.clone()).collect();
        let session = self.new_session(server_id).with(&login.session);
        let text = (!names.is_empty()).then(|| values_of(&names));
        let introducing = Introducing { client: id, names, answer: Replies::default(), reported: Vec::new() };
        self.set_server_state(server_id, ServerState::Introducing(Box::new(introducing)));
        self.servers[server_id].active_us = self.now.mono_us;
        let sent = self.send_settle(d, server_id, &params, &session, Purpose::Introduce);
        if let Some(text) = &text {
            self.send_hidden(d, server_id, Purpose::Introduce, text);
        }
        if !sent && text.is_none() {
            self.introduced(d, server_id);
        }
    }

    /// The server has said what it makes of the startup parameters.
    pub(in crate::machine) fn introduced<D: Driver>(&mut self, d: &mut D, server_id: ServerId) {
        if !self.servers.contains_key(server_id) {
            return;
        }
        let new = self.new_session(server_id);
        let server = &mut self.servers[server_id];
        let pool_id = server.pool;
        let ServerState::Introducing(introducing) = &mut server.state else { return };
        let client_id = introducing.client;
        let answer = std::mem::take(&mut introducing.answer);
        let names = std::mem::take(&mut introducing.names);
        let reported = std::mem::take(&mut introducing.reported);
        if let Some((code, text)) = answer.failed {
            self.clear_session(d, server_id, None);
            self.pools[pool_id].welcoming.retain(|&other| other != client_id);
            self.refuse_client(d, client_id, &Fault::of_startup(code, text));
            return;
        }
        let mut session = Session::default();
        for (name, value) in names.iter().zip(answer.rows.last().into_iter().flatten()) {
            if let Some(value) = value {
                session.set(name, value);
            }
        }
        let pool = &mut self.pools[pool_id];
        server.session = pool.sessions.share(new.with(&session));
        let introduced = Arc::new(Introduced {
            params: Arc::clone(&server.params),
            session: pool.sessions.share(session),
            reported,
        });
        if let Some(client) = self.clients.get(client_id)
            && let ClientState::Welcoming(login) = &client.state
        {
            let asked = Asked::new(&self.tracked, &login.params, &login.session);
            pool.introductions.insert(asked, introduced);
        }
        self.free_server(d, server_id);
        self.notice(pool_id);
    }

    /// Clients whose startup parameters are to be tried get a server each, while there are free ones.
    pub(in crate::machine) fn introduce_waiting<D: Driver>(&mut self, d: &mut D, pool_id: PoolId) {
        let waiting = self.pools[pool_id].welcoming.clone();
        for client in waiting {
            let trying = self.servers.values().any(|server| {
                matches!(&server.state, ServerState::Introducing(introducing) if introducing.client == client)
            });
            if trying || self.awaits_own_server(client) {
                continue;
            }
            let Some(server) = self.take_idle(d, pool_id, None) else { return };
            self.introduce(d, client, server);
        }
    }

    /// What the client has from here on, and where its RESET goes back to: the outcome of an introduction, or (`None`) of its
    /// wishes as they are.
    pub(in crate::machine) fn begin_session(
        &mut self,
        id: ClientId,
        welcome: &Welcome,
        introduced: Option<&Introduced>,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(account) = &mut client.account else { return };
        let ClientState::Welcoming(login) = &client.state else { return };
        let pool = &mut self.pools[account.pool];
        let mut params: Params = login.params.or(&welcome.params);
        account.session = Arc::clone(&welcome.session);
        if let Some(introduced) = introduced {
            params = (*introduced.params).clone();
            if let Some(position) = self.tracked.position(b"application_name") {
                // That of the client that was tried, not of all who ask for the rest of it.
                let own = login.params.get(position).or(welcome.params.get(position)).unwrap_or_default();
                if is_plain_name(own) {
                    params.set(position, own);
                }
            }
            account.session = match welcome.session.is_plain() {
                true => Arc::clone(&introduced.session),
                false => pool.sessions.share((*welcome.session).clone().with(&introduced.session)),
            };
        }
        account.params = pool.share(params);
        self.recall_asker(id);
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(account) = &mut client.account else { return };
        let ClientState::Welcoming(login) = &client.state else { return };
        let pool = &mut self.pools[account.pool];
        if !pool.tries_startup {
            return;
        }
        // RESET goes back behind what connect_query has set, reported parameters included.
        let all = pool.connect_query().is_some();
        let mut startup = introduced.map(|introduced| (*introduced.session).clone()).unwrap_or_default();
        for (position, name) in self.tracked.names().enumerate() {
            let (own, plain) = (account.params.get(position), welcome.params.get(position));
            if login.params.get(position).is_some() && (all || own != plain) {
                startup.set(name.as_bytes(), own.unwrap_or_default());
            }
        }
        account.startup = (!startup.is_plain()).then(|| pool.sessions.share(startup));
    }
}
