//! The node that a client's next transaction runs on. This is the only place that decides it.
//!
//! Order of authority: what the session says (`SET pgweir.route`, or `options=-c pgweir.route=...` at the start), the user, the
//! database, the cluster.

use std::sync::Arc;

use pgweir_settings::{Config, PoolMode, Route};

use crate::client_handoff::Replication;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::session::content::Session;
use crate::pool::{Branch, Gate, Pool};

/// The custom setting by which a session says where it wants to go.
pub(crate) const ROUTE_SETTING: &[u8] = b"pgweir.route";

/// A client's route, and what it was found from.
pub(crate) struct Routing {
    route: Route,
    session: Arc<Session>,
    config: Arc<Config>,
}

impl Routing {
    /// It is still found from the same.
    fn is_fresh(&self, env: &Env, client: &Client) -> bool {
        Arc::ptr_eq(&self.config, &env.rules.config) && Arc::ptr_eq(&self.session, &client.account.session)
    }
}

impl Pool {
    /// The branch for the login, or the request, of a client that has none yet. A pool without a cluster has one branch.
    #[inline]
    pub(crate) fn branch_of_request(&mut self, env: &Env, id: ClientId) -> Branch {
        if self.state.cluster.is_none() {
            return Branch::PRIMARY;
        }
        self.choose_branch(env, id)
    }

    #[cold]
    fn choose_branch(&mut self, env: &Env, id: ClientId) -> Branch {
        let route = self.route_of(env, id);
        let Some(client) = self.clients.get(id) else { return Branch::PRIMARY };
        debug_assert!(!matches!(client.state, ClientState::Waiting(_)), "it is counted where it waits");
        let (home, is_replication) = (client.account.branch, client.account.replication != Replication::None);
        let counts = !is_replication && !matches!(client.state, ClientState::AwaitingServer(_));
        let branch = if is_replication { Branch::PRIMARY } else { self.branch_by(env, route, home) };
        if counts && branch.is_primary() {
            self.state.count_at_primary(route);
        }
        if let Some(client) = self.clients.get_mut(id) {
            client.account.branch = branch;
        }
        branch
    }

    fn branch_by(&mut self, env: &Env, route: Route, home: Branch) -> Branch {
        if self.state.cluster.is_none() {
            return Branch::PRIMARY;
        }
        // In session pooling a client has one server; it does not leave it for a lesser load.
        let stays = self.state.policy.mode == PoolMode::Session;
        match route {
            Route::Primary => Branch::PRIMARY,
            Route::Standby => self.state.next_standby(env, home, stays).unwrap_or(Branch::NO_STANDBY),
            Route::PreferStandby => self.state.next_standby(env, home, stays).unwrap_or(Branch::PRIMARY),
            Route::Any if stays && home.is_primary() && self.state.gate == Gate::Open => home,
            Route::Any => match self.state.next_standby(env, home, stays) {
                Some(standby) if !self.state.is_primary_freer(standby) => standby,
                _ => Branch::PRIMARY,
            },
        }
    }

    /// What its session, its user, its database or its cluster says.
    fn route_of(&mut self, env: &Env, id: ClientId) -> Route {
        let Some(client) = self.clients.get_mut(id) else { return Route::Primary };
        if let Some(routing) = client.account.routing.as_deref().filter(|known| known.is_fresh(env, client)) {
            return routing.route;
        }
        let session = match &client.state {
            ClientState::AwaitingServer(login) => &login.session,
            _ => &*client.account.session,
        };
        let said = session.get(ROUTE_SETTING).and_then(|value| std::str::from_utf8(value).ok());
        let config = &env.rules.config;
        let route = said.and_then(Route::of_word);
        let route = route.unwrap_or_else(|| config.route(&self.state.config, &client.account.user));
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            let (session, config) = (Arc::clone(&client.account.session), Arc::clone(config));
            client.account.routing = Some(Box::new(Routing { route, session, config }));
        }
        route
    }

    /// A client that waits is asked again which node it waits for; `home` is where it stays if nothing is much better.
    pub(super) fn place_client(&mut self, env: &Env, id: ClientId, home: Branch) {
        let Some(client) = self.clients.get(id) else { return };
        let from = client.account.branch;
        let waits = matches!(client.state, ClientState::Waiting(_) | ClientState::AwaitingServer(_));
        if !waits || client.account.replication != Replication::None {
            return;
        }
        let route = self.route_of(env, id);
        let to = self.branch_by(env, route, home);
        if to != from {
            let reads =
                self.clients.get(id).is_some_and(|client| matches!(client.state, ClientState::Waiting(_)));
            if reads && to.is_primary() {
                self.state.count_at_primary(route);
            }
            self.give_up_kept(id);
            self.move_waiting(id, to);
        }
    }
}
