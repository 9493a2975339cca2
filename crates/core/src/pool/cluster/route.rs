//! The node that a client's next transaction runs on. This is the only place that decides it.
//!
//! Order of authority: a hint in a comment of the text that is asked first, what the session says (`SET pgweir.route`, or
//! `options=-c pgweir.route=...` at the start), the port that the client came in by (`standby_listen_port`), the first line of `[routes]`
//! that it matches, the user, the database, the cluster.

use std::sync::Arc;

use pgweir_settings::{Balance, CausalReads, Config, PoolMode, Route, RouteSubject};
use pgweir_sql::{Hint, Verb, hint};

use crate::client_handoff::Replication;
use crate::cluster::token::ReadAfter;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::client::state::{Account, Client, ClientState};
use crate::pool::cluster::reading::{FirstGroup, Reading};
use crate::pool::relay::exchange::first_text;
use crate::pool::relay::exchange::group::Group;
use crate::pool::session::content::Session;
use crate::pool::{Branch, Gate, Pool, PoolState};

/// The custom setting that selects a session's route.
pub(crate) const ROUTE_SETTING: &[u8] = b"pgweir.route";
/// The custom setting that names the position that a session must see at a standby.
const READ_AFTER_SETTING: &[u8] = b"pgweir.read_after";

/// The route of a client's transactions, and the rules for reads at standbys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Aim {
    pub(crate) route: Route,
    /// The node that is preferred while it is usable; `None` without a preference.
    pub(crate) node: Option<Arc<str>>,
    /// The source of the route.
    pub(crate) by: Authority,
    /// Whether the client stays at the standby that served it last.
    balance: Balance,
    /// The changes that the client must see at a standby.
    causal: CausalReads,
    /// How long the client waits for a standby that shows them (µs).
    wait_us: u64,
    /// The position that the client's session demands (`pgweir.read_after`).
    after: Option<ReadAfter>,
}

/// The demands of a hint in a statement's text.
#[derive(Clone, Copy, Default)]
struct Hinted {
    route: Option<Route>,
    after: Option<ReadAfter>,
}

/// The part of an aim that decides which standbys show what the client must see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wish {
    pub(super) route: Route,
    pub(super) causal: CausalReads,
    pub(super) wait_us: u64,
    /// Whether the client keeps its standby and sees nothing older than what that standby has shown.
    pub(super) keeps: bool,
}

impl Aim {
    /// Returns the route and the preferred node for a text with this hint. A hint takes precedence over both.
    fn hinted(&self, hinted: Option<Route>) -> (Route, Option<Arc<str>>) {
        hinted.map_or_else(|| (self.route, self.node.clone()), |route| (route, None))
    }

    /// Returns the wish for this route, which is the aim's or a hint's.
    fn wish(&self, route: Route) -> Wish {
        let Aim { causal, wait_us, balance, .. } = *self;
        Wish { route, causal, wait_us, keeps: balance == Balance::Session }
    }
}

/// The source of a client's route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Authority {
    /// `SET pgweir.route`, or the startup option.
    Session,
    /// The client connected to `standby_listen_port`.
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
    /// The client's application_name if `[routes]` is used; otherwise empty.
    application_name: Box<[u8]>,
    /// The route in the hint of the text that the client asks for at present.
    hinted: Option<Route>,
    /// The client's present request, with `route=auto`.
    pub(super) asked: Asked,
    /// The client's transaction that reads at a standby, with `route=auto`.
    pub(super) reading: Reading,
    /// The standby that the client was sent to last.
    home: Branch,
}

impl Account {
    /// Whether the client asks for something that a standby may run.
    pub(crate) fn asks_to_read(&self) -> bool {
        let asked = self.routing.as_deref().map(|routing| routing.asked);
        matches!(asked, Some(Asked::Read(_) | Asked::Transaction(_)))
    }

    /// Forgets the client's present request, so that only the primary may run it.
    pub(crate) fn forget_asked(&mut self) {
        if let Some(routing) = self.routing.as_deref_mut() {
            routing.asked = Asked::Other;
        }
    }
}

/// The request of a client, as far as the choice of the node depends on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Asking<'a> {
    /// The BEGIN that was answered already.
    pub(crate) begin: Option<&'a [u8]>,
    /// The bytes that the client sent.
    pub(crate) bytes: &'a [u8],
    /// The group at the front of the bytes, if no further group is needed to answer it.
    pub(crate) group: Option<&'a Group>,
}

/// The kind of request of a client with `route=auto`.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// Anything that is not known to be allowed at a standby.
    Other,
    /// A group that certainly only reads, and to which a standby gives the same answer as the primary.
    Read(Group),
    /// A transaction that begins with this group.
    Transaction(FirstGroup),
    /// A change outside of a transaction, which runs in a block (`change.rs`).
    Change,
}

impl Routing {
    /// Whether the configuration, the session and the application_name are still those that the route was found from.
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

/// Returns the client's session; during the login the one that the startup packet asks for.
fn session_of(client: &Client) -> &Session {
    match &client.state {
        ClientState::AwaitingServer(login) => &login.session,
        _ => &client.account.session,
    }
}

impl Pool {
    /// The branch for the login, or the request, of a client that has none yet. A pool without a cluster has one branch.
    #[inline]
    pub(crate) fn branch_of_request(&mut self, env: &mut Env, id: ClientId, asking: Asking<'_>) -> Branch {
        if self.state.cluster.is_none() {
            if !self.state.standbys.is_empty() {
                self.leave_standby(id);
            }
            return Branch::PRIMARY;
        }
        self.choose_branch(env, id, asking)
    }

    /// Takes a client from the standby that served it last, because its database no longer has a cluster.
    #[cold]
    fn leave_standby(&mut self, id: ClientId) {
        if let Some(client) = self.clients.get_mut(id) {
            client.account.branch = Branch::PRIMARY;
            client.account.routing = None;
        }
    }

    #[inline(never)]
    fn choose_branch(&mut self, env: &mut Env, id: ClientId, asking: Asking<'_>) -> Branch {
        let Some(client) = self.clients.get_mut(id) else { return Branch::PRIMARY };
        let is_first = client.account.routing.is_none();
        let aim = self.state.aim_of(env, client);
        let Hinted { route: hinted, after } = self.state.hint_of(env, client, asking);
        let (route, node) = aim.hinted(hinted);
        let wish = aim.wish(route);
        let after = after.or(aim.after);
        let asked = if route == Route::Auto { self.asked_for(env, id, asking) } else { Asked::Other };
        let Some(client) = self.clients.get_mut(id) else { return Branch::PRIMARY };
        debug_assert!(!matches!(client.state, ClientState::Waiting(_)), "it is counted where it waits");
        let pool = &mut self.state;
        let account = &mut client.account;
        let mut home = account.branch;
        if let Some(routing) = account.routing.as_deref_mut() {
            (routing.hinted, routing.asked) = (hinted, asked);
            if route == Route::Auto || hinted.is_some() {
                home = routing.home;
            }
        }
        if !wish.keeps && pool.policy.mode != PoolMode::Session {
            home = Branch::NO_STANDBY;
        }
        let is_replication = account.replication != Replication::None;
        let counts = !is_replication && !matches!(client.state, ClientState::AwaitingServer(_));
        if counts {
            pool.note_served(env, account, wish, is_first);
            pool.note_read_after(account, after);
        }
        let at_node = node.and_then(|node| pool.usable_branch(env, &node));
        let mut branch = match at_node {
            _ if is_replication => Branch::PRIMARY,
            Some(branch) => branch,
            None => pool.branch_by(env, (route, asked), home),
        };
        if counts {
            if at_node.is_none() && branch.is_primary() {
                pool.count_sent_to_primary(route, asked);
            }
            branch = pool.place_where_shown(env, client, (wish, branch), env.now.mono_us);
        }
        client.account.branch = branch;
        if branch.is_standby()
            && let Some(routing) = client.account.routing.as_deref_mut()
        {
            routing.home = branch;
        }
        branch
    }
}

impl PoolState {
    /// Chooses the node again for a client that waits. The client stays at `home` if no other node is much better. Returns the node if it is
    /// another one than before.
    pub(super) fn choose_again(&mut self, env: &Env, client: &mut Client, home: Branch) -> Option<Branch> {
        let from = client.account.branch;
        let waits = matches!(client.state, ClientState::Waiting(_) | ClientState::AwaitingServer(_));
        // Only the primary can say what became of a transaction.
        if !waits || client.is_at_commit() || client.account.replication != Replication::None {
            return None;
        }
        let aim = self.aim_of(env, client);
        let routing = client.account.routing.as_deref();
        let (hinted, asked) = routing.map_or((None, Asked::Other), |own| (own.hinted, own.asked));
        let (route, node) = aim.hinted(hinted);
        let wish = aim.wish(route);
        // Those that wait for a node's answer wait at no node.
        let home = match routing {
            Some(own) if home == Branch::ASKING && wish.keeps => own.home,
            _ => home,
        };
        let at_node = node.and_then(|node| self.usable_branch(env, &node));
        let mut to = at_node.unwrap_or_else(|| self.branch_by(env, (route, asked), home));
        let falls_back = at_node.is_none() && to.is_primary();
        let since_us = client.waits_since_us();
        if let Some(since_us) = since_us {
            to = self.place_where_shown(env, client, (wish, to), since_us);
        }
        if to == from {
            return None;
        }
        if since_us.is_some() && falls_back {
            self.count_sent_to_primary(route, asked);
        }
        if let Some(routing) = client.account.routing.as_deref_mut().filter(|_| to.is_standby()) {
            routing.home = to;
        }
        Some(to)
    }

    /// `home` is the branch that a client leaves only for a much better one; `asked` is what it asks for with `route=auto`.
    fn branch_by(&mut self, env: &Env, (route, asked): (Route, Asked), home: Branch) -> Branch {
        if self.cluster.is_none() {
            return Branch::PRIMARY;
        }
        // In session pooling a client has one server; it does not leave it for a lesser load.
        let stays = self.policy.mode == PoolMode::Session;
        match route {
            Route::Primary => Branch::PRIMARY,
            Route::Standby => self.next_standby(env, home, stays).unwrap_or(Branch::NO_STANDBY),
            Route::PreferStandby => self.next_standby(env, home, stays).unwrap_or(Branch::PRIMARY),
            Route::Any if stays && home.is_primary() && self.gate == Gate::Open => home,
            Route::Any => match self.next_standby(env, home, stays) {
                Some(standby) if !self.is_primary_freer(standby) => standby,
                _ => Branch::PRIMARY,
            },
            Route::Auto => self.branch_of_read(env, asked, home).unwrap_or(Branch::PRIMARY),
        }
    }

    /// Returns the standby for a client with `route=auto`. `None` if only the primary may run the request, or no standby takes reads.
    fn branch_of_read(&mut self, env: &Env, asked: Asked, home: Branch) -> Option<Branch> {
        let (Asked::Read(_) | Asked::Transaction(_)) = asked else { return None };
        let branch = self.next_standby(env, home, false)?;
        Some(branch).filter(|branch| !self.rests(*branch, env.now.mono_us))
    }

    /// Counts a request that goes to the primary although the client's route may lead to standbys.
    fn count_sent_to_primary(&mut self, route: Route, asked: Asked) {
        match (route, asked) {
            // It falls back, as with `prefer-standby`.
            (Route::Auto, Asked::Read(_) | Asked::Transaction(_)) => {
                self.count_at_primary(Route::PreferStandby);
            }
            (Route::Auto | Route::Primary, _) => {}
            _ => self.count_at_primary(route),
        }
    }

    /// Returns the hint of the text that runs first. In session pooling a client keeps one server, and hints
    /// have no effect.
    fn hint_of(&self, env: &Env, client: &Client, asking: Asking<'_>) -> Hinted {
        if self.policy.keeps_server() {
            return Hinted::default();
        }
        let by = |route| Hinted { route: Some(route), after: None };
        let account = &client.account;
        let text = || first_text(asking.bytes, |name| account.text_of(&env.statements, name));
        if !account.session.channels().is_empty() && text().is_some_and(ends_listening) {
            // The client listens through the primary: a standby would say that it has ended that, and do nothing.
            return by(Route::Primary);
        }
        let hinted = asking.begin.and_then(hint);
        match hinted.or_else(|| hint(text()?)) {
            Some(Hint::Primary) => by(Route::Primary),
            Some(Hint::Standby) => by(Route::Standby),
            Some(Hint::After(position)) => Hinted { route: None, after: ReadAfter::parse(position) },
            None => Hinted::default(),
        }
    }

    /// Returns the group if it may run on a standby (`route=auto`). Returns `None` as long as pgweir does not know what the names in
    /// texts refer to on a standby.
    pub(super) fn certain_read(&mut self, env: &Env, group: Option<&Group>) -> Option<Group> {
        let knows_names = self.knows_names(env);
        let is_read = |group: &&Group| group.reads_anywhere() && !self.reach.is_barred(group.statement);
        group.filter(|_| knows_names).filter(is_read).copied()
    }

    /// Whether pgweir knows what the names in texts refer to on a standby. If not, the next free server is asked.
    pub(super) fn knows_names(&mut self, env: &Env) -> bool {
        if !std::mem::replace(&mut self.balances, true) {
            self.routines.doubt();
        }
        self.routines.are_current(env.shared.routines())
            // A client that sets something would keep the standby's server.
            && !self.routines.has_new_composers()
            && self.balances_reads()
            && self.reach.knows_standbys()
    }

    /// Returns the client's aim as its session, `[routes]`, its user, its database or its cluster sets it. The aim is kept until one
    /// of these changes.
    pub(super) fn aim_of(&self, env: &Env, client: &mut Client) -> Aim {
        if let Some(routing) = client.account.routing.as_deref()
            && routing.is_fresh(env, client)
        {
            return routing.aim.clone();
        }
        self.find_aim_again(env, client)
    }

    #[cold]
    fn find_aim_again(&self, env: &Env, client: &mut Client) -> Aim {
        let aim = self.find_aim(env, client);
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            let config = Arc::clone(&env.rules.config);
            let application_name = match config.routes.is_empty() {
                true => Box::default(),
                false => application_name(env, client).into(),
            };
            client.account.routing = Some(Box::new(Routing {
                aim: aim.clone(),
                session: Arc::clone(&client.account.session),
                config,
                application_name,
                hinted: None,
                asked: Asked::Other,
                reading: Reading::default(),
                home: Branch::PRIMARY,
            }));
        }
        aim
    }

    /// The same, looked up now.
    pub(crate) fn find_aim(&self, env: &Env, client: &Client) -> Aim {
        let config = &env.rules.config;
        let (route, node, by) = self.find_route(env, client);
        let (database, user) = (&self.config, &client.account.user);
        let balance = config.balance(database, user);
        let causal = config.causal_reads(database, user);
        let wait_us = u64::from(config.causal_wait_ms(database, user)) * 1000;
        let after = session_of(client).get(READ_AFTER_SETTING).and_then(ReadAfter::parse);
        Aim { route, node, by, balance, causal, wait_us, after }
    }

    fn find_route(&self, env: &Env, client: &Client) -> (Route, Option<Arc<str>>, Authority) {
        let session = session_of(client);
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
            database: &self.database,
            user,
            application_name: application_name(env, client),
            number: client.account.cancel_key.number(),
        };
        if let Some(line) = config.route_line(subject) {
            let (route, node) = (line.route.unwrap_or(Route::PreferStandby), line.node.as_deref());
            return (route, node.map(Arc::from), Authority::Line(line.name.as_str().into()));
        }
        let (route, section) = config.route_and_section(&self.config, user);
        (route, None, Authority::Section(section))
    }
}

/// Whether the text is UNLISTEN, or DISCARD, which ends listening as well.
fn ends_listening(text: &[u8]) -> bool {
    matches!(pgweir_sql::traits(text).verb, Verb::Unlisten | Verb::Discard)
}
