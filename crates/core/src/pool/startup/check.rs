//! The check of a client's startup parameters on a server, before the client is let in. If PostgreSQL refuses one, the login is refused in
//! PostgreSQL's words; the client is told each value as PostgreSQL spells it. The outcome is remembered: only the first of many similar
//! clients needs a server.

use std::sync::Arc;

use crate::client_handoff::Replication;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::ClientState;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::{Replies, ServerQuestion, StartupCheck};
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::pool::startup::checked::{Asked, CheckedStartup, is_plain_name};
use crate::pool::{Branch, Pool};

use crate::pool::session::audit::values_of;

/// The knowledge about the startup parameters of a client.
pub(crate) enum Known {
    /// The client asks for no parameters that servers do not have.
    Plain,
    /// The client asks for parameters that a server was asked before.
    CheckedStartup(Arc<CheckedStartup>),
    /// The parameters are not known: a server must be asked.
    Unknown,
}

impl Pool {
    /// Returns what is known about the startup parameters of a client.
    pub(crate) fn known_startup(&self, env: &Env, id: ClientId, greeting: &ServerGreeting) -> Known {
        let Some(client) = self.clients.get(id) else { return Known::Plain };
        let ClientState::AwaitingServer(login) = &client.state else {
            return Known::Plain;
        };
        let pool = &self.state;
        if login.replication != Replication::None || !pool.policy.tries_startup() {
            return Known::Plain;
        }
        let asked = Asked::new(&env.tracked, &login.params, &login.session);
        if asked.is_nothing(&env.tracked, &greeting.params) {
            return Known::Plain;
        }
        pool.known.startup_checks.get(&asked).map_or(Known::Unknown, Known::CheckedStartup)
    }

    /// Moves parameters of a startup packet that the settings say are tracked, but that servers do not report, to the client's session. If
    /// sessions are not kept, the login must be refused: PostgreSQL would never be told of them.
    pub(crate) fn sort_startup(
        &mut self,
        env: &Env,
        id: ClientId,
        greeting: &ServerGreeting,
    ) -> Result<(), Fault> {
        let keeps = self.state.policy.tries_startup();
        let Some(client) = self.clients.get_mut(id) else { return Ok(()) };
        let ClientState::AwaitingServer(login) = &mut client.state else { return Ok(()) };
        for (position, name) in env.tracked.names().enumerate() {
            if greeting.params.get(position).is_some() {
                continue;
            }
            let Some(value) = login.params.get(position).map(Box::<[u8]>::from) else { continue };
            if !keeps {
                return Err(Fault::UnsupportedParameter(name.to_owned()));
            }
            login.params.unset(position);
            login.session.set(name.as_bytes(), &value);
        }
        Ok(())
    }

    /// Tries the startup parameters of a client on a free server.
    pub(crate) fn check_startup<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get(id) else { return };
        let ClientState::AwaitingServer(login) = &client.state else { return };
        let Some(greeting) = self.state.greeting.clone() else { return };
        let params = login.params.or(&greeting.params);
        let names: Vec<Box<[u8]>> = login.session.settings().map(|setting| setting.name.clone()).collect();
        let session = self.new_session(server_id).with(&login.session);
        let text = (!names.is_empty()).then(|| values_of(&names));
        let asked = names.clone();
        let check = StartupCheck { client: id, names, reported: Vec::new() };
        self.begin_question(cx, server_id, ServerQuestion::Startup(Box::new(check)));
        let sent = self.send_session_sync(cx, server_id, &params, &session, Purpose::Question);
        if let Some(text) = &text {
            let text = own_settings::question(self.servers[server_id].at.version, Asks::Values(&asked), text);
            self.send_question(cx, server_id, &text);
        }
        if !sent && text.is_none() {
            // The server has all of it already.
            let check = StartupCheck { client: id, names: Vec::new(), reported: Vec::new() };
            self.checked(cx, server_id, check, Replies::default());
        }
    }

    /// Handles a server's outcome of the startup parameters.
    pub(crate) fn checked<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        StartupCheck { client: client_id, names, reported }: StartupCheck,
        answer: Replies,
    ) {
        if let Some((code, text)) = answer.failed {
            self.clear_session(cx, server_id, None);
            self.state.forget_at_login(client_id);
            self.refuse_client(cx, client_id, &Fault::of_startup(code, text));
            return;
        }
        let new = self.new_session(server_id);
        let mut session = Session::default();
        for (name, value) in names.iter().zip(answer.rows.last().into_iter().flatten()) {
            if let Some(value) = value {
                session.set(name, value);
            }
        }
        let (server, pool) = (&mut self.servers[server_id], &mut self.state);
        server.session = pool.known.sessions.share(new.with(&session));
        let checked = Arc::new(CheckedStartup {
            params: Arc::clone(&server.params),
            session: pool.known.sessions.share(session),
            reported,
        });
        if let Some(client) = self.clients.get(client_id)
            && let ClientState::AwaitingServer(login) = &client.state
        {
            let asked = Asked::new(&cx.env.tracked, &login.params, &login.session);
            pool.known.startup_checks.insert(asked, checked);
        }
        self.free_server(cx, server_id);
        self.notice();
    }

    /// Gives a free server to each client whose startup parameters must be tried, while there are free servers.
    pub(crate) fn check_waiting_startups<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        let waiting = self.state.node_at(branch).awaiting.clone();
        for client in waiting {
            let trying = self.servers.values().any(|server| {
                matches!(server.state.question(), Some(ServerQuestion::Startup(check)) if check.client == client)
            });
            if trying || self.awaits_own_server(cx.env, branch, client) {
                continue;
            }
            let Some(server) = self.choose_free(cx, branch, None) else {
                return;
            };
            self.check_startup(cx, client, server);
        }
    }

    /// Begins the client's session, with the values that its RESET goes back to: the outcome of a check of startup parameters, or (`None`)
    /// the client's wishes as they are.
    pub(crate) fn begin_session(
        &mut self,
        env: &Env,
        id: ClientId,
        greeting: &ServerGreeting,
        checked: Option<&CheckedStartup>,
    ) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let account = &mut client.account;
        let ClientState::AwaitingServer(login) = &client.state else { return };
        let pool = &mut self.state;
        let mut params: Params = login.params.or(&greeting.params);
        account.session = Arc::clone(&greeting.session);
        if let Some(checked) = checked {
            params = (*checked.params).clone();
            if let Some(position) = env.tracked.position(b"application_name") {
                // The value of the client that was tried, not of all clients that ask for the rest of it.
                let own = login.params.get(position).or(greeting.params.get(position)).unwrap_or_default();
                if is_plain_name(own) {
                    params.set(position, own);
                }
            }
            account.session = match greeting.session.is_plain() {
                true => Arc::clone(&checked.session),
                false => pool.known.sessions.share((*greeting.session).clone().with(&checked.session)),
            };
        }
        account.params = pool.known.share_params(params);
        self.recall_currval_client(env, id);
        let Some(client) = self.clients.get_mut(id) else { return };
        let account = &mut client.account;
        let ClientState::AwaitingServer(login) = &client.state else { return };
        let pool = &mut self.state;
        if !pool.policy.tries_startup() {
            return;
        }
        // RESET goes back to the values before connect_query, reported parameters included.
        let all = pool.connect_query().is_some();
        let mut startup = checked.map(|checked| (*checked.session).clone()).unwrap_or_default();
        for (position, name) in env.tracked.names().enumerate() {
            let (own, plain) = (account.params.get(position), greeting.params.get(position));
            if login.params.get(position).is_some() && (all || own != plain) {
                startup.set(name.as_bytes(), own.unwrap_or_default());
            }
        }
        account.startup = (!startup.is_plain()).then(|| pool.known.sessions.share(startup));
    }
}
