//! The node that a client's next transaction runs on. This is the only place that decides it.
//!
//! Order of authority: what the session says (`SET pgweir.route`, or `options=-c pgweir.route=...` at the start), the port that the
//! client came in by (`standby_listen_port`), the first line of `[routes]` that it matches, the user, the database, the cluster.

use std::sync::Arc;

use pgweir_settings::{Balance, CausalReads, Config, PoolMode, Route, RouteSubject};

use crate::client_handoff::Replication;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::session::content::Session;
use crate::pool::{Branch, Gate, Pool};

/// The custom setting by which a session says where it wants to go.
pub(crate) const ROUTE_SETTING: &[u8] = b"pgweir.route";

/// Where a client wants to go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Aim {
    pub(crate) route: Route,
    /// To this node first, while it is usable.
    pub(crate) node: Option<Arc<str>>,
    /// What says so.
    pub(crate) by: Authority,
    /// Whether it stays at the standby that served it last.
    balance: Balance,
    /// What it must see at a standby.
    causal: CausalReads,
    /// How long it waits for one that shows that (µs).
    wait_us: u64,
}

/// What an aim says of what its client must see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wish {
    pub(super) route: Route,
    pub(super) causal: CausalReads,
    pub(super) wait_us: u64,
    /// It keeps its standby, and sees nothing older than what that has shown.
    pub(super) keeps: bool,
}

impl Aim {
    fn wish(&self) -> Wish {
        let Aim { route, causal, wait_us, balance, .. } = *self;
        Wish { route, causal, wait_us, keeps: balance == Balance::Session }
    }
}

/// What says where a client's transactions run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Authority {
    /// `SET pgweir.route`, or the startup option.
    Session,
    /// It came in by `standby_listen_port`.
    Port,
    /// The line of `[routes]` with this name.
    Line(Arc<str>),
    /// `route` in this section of the file.
    Section(&'static str),
}

/// A client's aim, and what it was found from.
pub(crate) struct Routing {
    aim: Aim,
    session: Arc<Session>,
    config: Arc<Config>,
    /// With `[routes]`: the client's application_name.
    application_name: Box<[u8]>,
}

impl Routing {
    /// It is still found from the same.
    fn is_fresh(&self, env: &Env, client: &Client) -> bool {
        Arc::ptr_eq(&self.config, &env.rules.config)
            && Arc::ptr_eq(&self.session, &client.account.session)
            && (self.config.routes.is_empty() || *self.application_name == *application_name(env, client))
    }
}

impl std::fmt::Display for Aim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.node {
            Some(node) => write!(f, "node {node}"),
            None => self.route.fmt(f),
        }
    }
}

impl std::fmt::Display for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Authority::Session => f.write_str("session"),
            Authority::Port => f.write_str("standby_listen_port"),
            Authority::Line(name) => write!(f, "routes {name}"),
            Authority::Section(section) => f.write_str(section),
        }
    }
}

/// The client's application_name; at its login the one that it asks for.
fn application_name<'a>(env: &Env, client: &'a Client) -> &'a [u8] {
    let params = match &client.state {
        ClientState::AwaitingServer(login) => &login.params,
        _ => &*client.account.params,
    };
    env.application_name(params).unwrap_or_default()
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
        let Some(aim) = self.aim_of(env, id) else { return Branch::PRIMARY };
        let (wish, route) = (aim.wish(), aim.route);
        let Some(client) = self.clients.get(id) else { return Branch::PRIMARY };
        debug_assert!(!matches!(client.state, ClientState::Waiting(_)), "it is counted where it waits");
        let is_replication = client.account.replication != Replication::None;
        let keeps = wish.keeps || self.state.policy.mode == PoolMode::Session;
        let home = if keeps { client.account.branch } else { Branch::NO_STANDBY };
        let reads = !is_replication && !matches!(client.state, ClientState::AwaitingServer(_));
        if reads {
            self.note_served(id, wish);
        }
        let at_node = aim.node.and_then(|node| self.state.usable_branch(env, &node));
        let branch = match at_node {
            _ if is_replication => Branch::PRIMARY,
            Some(branch) => branch,
            None => self.branch_by(env, route, home),
        };
        if reads && at_node.is_none() && branch.is_primary() {
            self.state.count_at_primary(route);
        }
        let branch = match reads {
            true => self.place_in_sight(env, id, (wish, branch), env.now.mono_us),
            false => branch,
        };
        if let Some(client) = self.clients.get_mut(id) {
            client.account.branch = branch;
        }
        branch
    }

    /// `home` is the branch that it leaves only for a much better one.
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

    /// What its session, `[routes]`, its user, its database or its cluster says.
    fn aim_of(&mut self, env: &Env, id: ClientId) -> Option<Aim> {
        let client = self.clients.get(id)?;
        if let Some(routing) = client.account.routing.as_deref().filter(|known| known.is_fresh(env, client)) {
            return Some(routing.aim.clone());
        }
        let aim = self.find_aim(env, client);
        let client = self.clients.get_mut(id)?;
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            let config = Arc::clone(&env.rules.config);
            let application_name = match config.routes.is_empty() {
                true => Box::default(),
                false => application_name(env, client).into(),
            };
            let (aim, session) = (aim.clone(), Arc::clone(&client.account.session));
            client.account.routing = Some(Box::new(Routing { aim, session, config, application_name }));
        }
        Some(aim)
    }

    /// The same, looked up now.
    pub(crate) fn find_aim(&self, env: &Env, client: &Client) -> Aim {
        let config = &env.rules.config;
        let (route, node, by) = self.find_route(env, client);
        let (database, user) = (&self.state.config, &client.account.user);
        let balance = config.balance(database, user);
        let causal = config.causal_reads(database, user);
        let wait_us = u64::from(config.causal_wait_ms(database, user)) * 1000;
        Aim { route, node, by, balance, causal, wait_us }
    }

    fn find_route(&self, env: &Env, client: &Client) -> (Route, Option<Arc<str>>, Authority) {
        let session = match &client.state {
            ClientState::AwaitingServer(login) => &login.session,
            _ => &*client.account.session,
        };
        let config = &env.rules.config;
        let said = session.get(ROUTE_SETTING).and_then(|value| std::str::from_utf8(value).ok());
        if let Some(route) = said.and_then(Route::of_word) {
            return (route, None, Authority::Session);
        }
        let standby_port = config.main.standby_listen_port;
        if standby_port > 0 && client.origin.peer.port() == standby_port {
            return (Route::Standby, None, Authority::Port);
        }
        let user = &client.account.user;
        let subject = RouteSubject {
            database: &self.state.database,
            user,
            application_name: application_name(env, client),
            number: client.account.cancel_key.number(),
        };
        if let Some(line) = config.route_line(subject) {
            let (route, node) = (line.route.unwrap_or(Route::PreferStandby), line.node.as_deref());
            return (route, node.map(Arc::from), Authority::Line(line.name.as_str().into()));
        }
        let (route, section) = config.route_and_section(&self.state.config, user);
        (route, None, Authority::Section(section))
    }

    /// A client that waits is asked again which node it waits for; `home` is where it stays if nothing is much better.
    pub(super) fn place_client(&mut self, env: &Env, id: ClientId, home: Branch) {
        let Some(client) = self.clients.get(id) else { return };
        let from = client.account.branch;
        let waits = matches!(client.state, ClientState::Waiting(_) | ClientState::AwaitingServer(_));
        if !waits || client.account.replication != Replication::None {
            return;
        }
        let Some(aim) = self.aim_of(env, id) else { return };
        let (wish, route) = (aim.wish(), aim.route);
        let home = if home == Branch::ASKING { self.home_of(id) } else { home };
        let at_node = aim.node.and_then(|node| self.state.usable_branch(env, &node));
        let mut to = at_node.unwrap_or_else(|| self.branch_by(env, route, home));
        let is_for_primary = to.is_primary();
        if let Some(since_us) = self.waits_since_us(id) {
            to = self.place_in_sight(env, id, (wish, to), since_us);
        }
        if to != from {
            let reads =
                self.clients.get(id).is_some_and(|client| matches!(client.state, ClientState::Waiting(_)));
            if reads && at_node.is_none() && is_for_primary {
                self.state.count_at_primary(route);
            }
            self.give_up_kept(id);
            self.move_waiting(id, to);
        }
    }
}
