//! The login of a client that needs a server of its own: one that was opened with its startup parameters tells it what it begins with.

use std::sync::Arc;

use pgweir_wire::error::SqlState;

use crate::context::Cx;
use crate::driver::{CloseMode, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::choose::own_server::Fitness;
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::login_failed::LOGIN_FAILED;
use crate::pool::server::state::ServerState;
use crate::pool::session::params::Params;
use crate::pool::startup::checked::CheckedStartup;
use crate::pool::{Branch, Pool};

impl Pool {
    /// Clients that log in are told of a server each, as far as there are servers or there is room for more.
    pub(crate) fn greet_with_own_servers<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        greeting: &Arc<ServerGreeting>,
    ) {
        if !self.state.gets_own_server() {
            return;
        }
        for id in self.state.node_at(branch).awaiting.clone() {
            self.note_opening(cx.env, id, greeting);
            if self.kept_is_coming(id) {
                continue;
            }
            if let Some(server) = self.find_own(cx, branch, id) {
                self.state.node_at_mut(branch).awaiting.retain(|&other| other != id);
                self.greet_on_server(cx, id, server, greeting);
            }
        }
    }

    /// Lets a client in that has a server.
    pub(crate) fn greet_on_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        greeting: &ServerGreeting,
    ) {
        let server = &self.servers[server_id];
        let pool = &mut self.state;
        let checked = server.opened.asked.as_ref().map(|asked| {
            pool.known.startup_checks.get(asked).unwrap_or_else(|| {
                let params = match pool.connect_query() {
                    // The server's values may differ from those that it was opened with.
                    Some(_) => pool.known.share_params(asked.params_of(&Params::default(), &server.params)),
                    None => Arc::clone(&server.params),
                };
                Arc::new(CheckedStartup {
                    params,
                    session: pool.known.sessions.share(asked.session().clone()),
                    reported: Vec::new(),
                })
            })
        });
        self.greet_client(cx, id, greeting, checked.as_deref(), Some(server_id));
        self.client_resume(cx, id);
    }

    /// A free server for a client that logs in. If there is none, the client gets the next server that becomes free, or one is
    /// opened if there is room.
    pub(crate) fn find_own<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        id: ClientId,
    ) -> Option<ServerId> {
        let free = |found: &(Fitness, ServerId)| matches!(found.0, Fitness::Own | Fitness::Like);
        let none_waits = self.state.node_at(branch).waiting == 0;
        if let Some((_, server)) = self.best_idle(cx.env, branch, Some(id), false).filter(free)
            && (none_waits || self.kept(id) == Some(server))
            && self.reason_to_close(cx.env, server).is_none()
        {
            self.keep(id, server);
            return Some(server);
        }
        if none_waits
            && !self.is_full(cx.env, branch)
            && let Some(server) = self.soon_free(cx.env, branch, id)
        {
            self.keep(id, server);
            return None;
        }
        if self.opens_as_many_as_it_may(cx.env, branch) || !self.may_dial(cx.env, branch) {
            return None;
        }
        if self.is_full(cx.env, branch)
            && none_waits
            && let Some((_, other)) = self.best_idle(cx.env, branch, Some(id), false)
        {
            self.close_server(
                cx,
                other,
                "makes room for one with other startup parameters",
                CloseMode::Flush,
            );
        }
        if !self.is_full(cx.env, branch) && self.take_place(cx, branch, true) {
            let server = self.dial_server(cx, branch, None);
            self.keep(id, server);
        }
        None
    }

    /// PostgreSQL refused a login because of the client's parameters: only this client is concerned.
    pub(crate) fn refuse_opening<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        code: SqlState,
        message: &str,
    ) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let proven = matches!(&server.state, ServerState::LoggingIn(login) if login.proven);
        let about_parameters =
            [&b"22"[..], b"42", b"0A", b"55"].iter().any(|class| code.as_bytes().starts_with(class));
        if !proven || !about_parameters || server.opened.asked.is_none() {
            return false;
        }
        let client = server.kept_for.filter(|&client| self.kept(client) == Some(id));
        self.close_server(cx, id, LOGIN_FAILED, CloseMode::Now);
        if let Some(client) = client {
            self.refuse_client(cx, client, &Fault::of_startup(code, message.to_owned()));
        }
        true
    }
}
