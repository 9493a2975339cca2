//! The arrival from the process that this one replaces (`-R`): the other half of `leaving.rs`. Clients and servers come from a process of
//! the same user, perhaps of another version, and were opened by settings that may have changed since.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use minicbor::bytes::ByteVec;
use pgweir_settings::PoolMode;
use pgweir_sql::Marks;
use pgweir_wire::backend::TxStatus;

use crate::client_handoff::{ClientHandoff, Counted, Login, Origin, Replication};
use crate::context::{Activity, Cx, Env, KeyOwner, Role};
use crate::driver::{CloseMode, ConnId, Driver, Endpoint, Level, Now};
use crate::ids::{ClientId, ServerId};
use crate::pool::cache::{ProbeWait, SEEING, WRITING};
use crate::pool::cancel_key::CancelKey;
use crate::pool::client::state::{
    Account, Client, ClientState, DeferredBegin, Link, Request, Unnamed, UnnamedOnServer,
};
use crate::pool::node::Turn;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::shape::{Shape, Told};
use crate::pool::prepared::statements::{ClientStatements, ServerCopy};
use crate::pool::relay::own_settings::major_version;
use crate::pool::relay::preamble::LinkPhase;
use crate::pool::sequences::state::{Drawing, Draws, Users};
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::state::{Server, ServerState, Serves};
use crate::pool::session::content::{Prepared, Session};
use crate::pool::session::params::Params;
use crate::pool::session::pins::{Sets, Touched};
use crate::pool::takeover::carried::{CarriedClient, CarriedPool, CarriedServer, CarriedShape, Pair};
use crate::pool::takeover::leaving::{
    learned, opened_by, replication, shared_name, unpack_peer, unpack_shape, unpack_term,
};
use crate::pool::{Branch, Pool, ServerKind};

impl Pool {
    pub(crate) fn pair_arrives<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        client: Option<(ConnId, CarriedClient)>,
        server: Option<(ConnId, CarriedServer)>,
    ) {
        let server = server.map(|(conn, server)| self.server_arrives(cx.env, conn, server));
        if let Some(server) = server.and_then(|id| self.servers.get_mut(id)) {
            server.at.remote = cx.driver.remote(server.conn);
        }
        match client {
            Some((conn, client)) => self.client_arrives(cx, conn, client, server),
            None => server.into_iter().for_each(|id| self.free_carried(cx, id)),
        }
        // The primary may be another one by now.
        server.into_iter().for_each(|id| self.fence_server(cx, id));
        self.notice();
    }

    /// Frees a server that came without a client. The time for which it has been unused still counts.
    fn free_carried<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let active_us = self.servers.get(id).map_or(0, |server| server.active_us);
        self.free_server(cx, id);
        if let Some(server) = self.servers.get_mut(id) {
            server.active_us = active_us;
        }
    }

    pub(crate) fn pool_arrives(&mut self, env: &mut Env, carried: CarriedPool) {
        let CarriedPool { fixed, params, learned: secret, session, prepared, opened_by: settings } = carried;
        let params = self.params_of(env, &params);
        let session = self.session_of(env, &session.unwrap_or_default(), prepared.as_deref());
        let pool = &mut self.state;
        let is_same = settings.is_none_or(|settings| settings == opened_by(pool));
        if pool.greeting.is_none() && !fixed.is_empty() && is_same {
            let params = pool.known.share_params(params);
            let greeting = ServerGreeting { fixed: fixed.into(), params, session, in_doubt: false };
            pool.greeting_with(Arc::new(greeting));
        }
        if secret.is_some() {
            pool.known.learned = learned(secret);
        }
    }

    /// Adds a server in the state in which it is free to be given to a client, but to no list of free servers yet.
    fn server_arrives(&mut self, env: &mut Env, conn: ConnId, carried: CarriedServer) -> ServerId {
        let CarriedServer {
            host,
            port,
            local,
            pid,
            key,
            params,
            statements,
            age_us,
            unused_us,
            tx,
            xact_us,
            used,
            retire,
            opened_by: settings,
            session,
            prepared,
            term,
            at_standby,
            shapes,
        } = carried;
        let endpoint = match port {
            0 => Endpoint::Unix { path: host.into() },
            port => Endpoint::Tcp { host: host.into(), port },
        };
        let params = self.params_of(env, &params);
        let all_known = env.tracked.names().enumerate().all(|(position, _)| params.get(position).is_some());
        let params = self.state.known.share_params(params);
        let state = ServerState::serving(ClientId::default());
        let term = term.map(unpack_term);
        let branch = match &term {
            Some(term) if at_standby == Some(true) => self.state.branch_of(env, &term.node),
            _ => Branch::PRIMARY,
        };
        let greeting = self.state.greeting.as_deref();
        let version = greeting.and_then(|greeting| greeting.told(b"server_version")).map_or(0, major_version);
        let mut server = self.new_server(env, branch, (conn, endpoint), state);
        server.at.term = term;
        server.at.local = local;
        server.at.version = version;
        (server.at.pid, server.at.key) = (pid, Vec::from(key).into());
        (server.params, server.work.used) = (params, used);
        server.users = Users::Several(ClientId::default());
        server.session = self.session_of(env, &session, prepared.as_deref());
        server.tx = TxStatus::from_byte(tx).unwrap_or(TxStatus::Failed);
        server.at.since = self.ago(env, age_us);
        server.active_us = self.ago(env, unused_us).mono_us;
        server.work.xact_us = if xact_us == 0 { 0 } else { self.ago(env, xact_us).mono_us };
        if retire || settings != opened_by(&self.state) {
            server.retire("database configuration changed");
        } else if !all_known {
            server.retire("obsolete connection");
        }
        let shapes = by_number(shapes.as_deref());
        for (serial, query, types) in statements {
            let statement = {
                let shape = shapes.get(&serial).cloned();
                env.statements.adopt_on_server(&query, &types, serial, (shape, self.id))
            };
            // A predecessor of an earlier version does not know its shape.
            let is_known = env.statements.get(statement).is_some_and(|known| known.shape().is_some());
            let copy = if is_known { ServerCopy::Confirmed } else { ServerCopy::Outdated };
            server.statements.insert(statement, copy);
        }
        self.enlist(env, conn, server)
    }

    fn enlist(&mut self, env: &mut Env, conn: ConnId, server: Server) -> ServerId {
        let id = self.servers.insert(server);
        env.set_role(conn, Role::Server(self.id, id));
        let pool = &mut self.state;
        let branch = self.servers[id].branch;
        pool.node_at_mut(branch).list(id, None, Some(ServerKind::Active));
        // It exists, even if the limits are lower now.
        for counts in pool.counts_of(branch) {
            counts.servers.take_anyway();
            counts.arrived.fetch_add(1, Ordering::AcqRel);
        }
        self.standby_logged_in(env.now.mono_us, id);
        id
    }

    fn client_arrives<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        conn: ConnId,
        carried: CarriedClient,
        server: Option<ServerId>,
    ) {
        let Some(peer) = unpack_peer(carried.peer.clone()) else {
            cx.log(Level::Error, "a client was handed over without an address, closing it");
            cx.driver.close(conn, CloseMode::Now);
            return self.draining(cx, server);
        };
        let origin = Origin { peer, tls: None, since: self.ago(cx.env, carried.age_us) };
        let counted = self.count_anyway(cx.env, &carried.user);
        let id = match carried.cancel_key.as_deref().and_then(|bytes| CancelKey::from_bytes(bytes)) {
            Some(key) => Some(self.join_again(cx, (conn, origin), (key, counted), carried, server)),
            None => {
                self.draining(cx, server);
                let serial = cx.env.shared.next_serial();
                let (unread, skip) = (carried.unread.to_vec(), carried.skip);
                let login = self.login_again(cx.env, carried);
                let id =
                    self.join_pool(cx, conn, ClientHandoff { serial, origin, login, counted, unread }, false);
                if let Some(client) = id.and_then(|id| self.clients.get_mut(id)) {
                    client.skip = usize::try_from(skip).unwrap_or(usize::MAX);
                }
                id
            }
        };
        id.into_iter().for_each(|id| self.client_resume(cx, id));
    }

    /// Closes a server whose client did not come with it.
    fn draining<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server: Option<ServerId>) {
        if let Some(id) = server {
            self.close_server(cx, id, "client disconnect while server was not ready", CloseMode::Now);
        }
    }

    /// Counts a client that is here already, even if the limits are lower now.
    fn count_anyway(&self, env: &Env, user: &str) -> Counted {
        let database = Arc::clone(&self.state.shared.database);
        let user = env.shared.user(user);
        let total = env.shared.clients.try_take(0).then(|| Arc::clone(&env.shared.clients));
        let _ = database.clients.try_take(0);
        let _ = user.clients.try_take(0);
        Counted { total, database: Some(database), user: Some(user) }
    }

    /// Adds a client that was told everything: it is idle, or has its server.
    fn join_again<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        (conn, origin): (ConnId, Origin),
        (key, counted): (CancelKey, Counted),
        carried: CarriedClient,
        server: Option<ServerId>,
    ) -> ClientId {
        cx.env.shared.note_client(cx.env.worker, true);
        let statements = self.carried_statements(cx.env, &carried);
        let params = self.params_of(cx.env, &carried.params);
        let params = self.state.known.share_params(params);
        let session = self.session_of(cx.env, &carried.session, carried.prepared.as_deref());
        let startup = carried.startup.as_ref().map(|settings| self.session_of(cx.env, settings, None));
        let now_us = cx.env.now.mono_us;
        let pool_id = self.id;
        let replication = replication(&carried.replication);
        let is_replication = replication != Replication::None;
        let made_in =
            if carried.as_session || is_replication { PoolMode::Session } else { PoolMode::Transaction };
        let deferred = carried.begun.map(Vec::from);
        let state = match (server, deferred) {
            (Some(server), deferred) => ClientState::Linked(Link {
                phase: LinkPhase::behind(deferred),
                unnamed: if carried.owns_unnamed == Some(true) || is_replication {
                    UnnamedOnServer::Own
                } else {
                    UnnamedOnServer::NotOwn
                },
                touched: carried.touched.map(touched),
                // Perhaps, in the transaction that is open.
                drawing: Drawing::Drew,
                ..Link::new(server, made_in)
            }),
            (None, Some(text)) => ClientState::DeferredBegin(DeferredBegin { text, since_us: now_us }),
            (None, None) => ClientState::Idle,
        };
        let branch = server.and_then(|server| self.servers.get(server)).map(|server| server.branch);
        let branch = branch.unwrap_or_default();
        let account = Account {
            user: shared_name(carried.user, &self.state.user),
            replication,
            params,
            statements,
            unnamed: carried.unnamed.map(unnamed),
            session,
            startup,
            own: None,
            parse_context: None,
            // What it last sent to the process before this one may not be answered yet.
            wrote_us: WRITING,
            redefined_us: WRITING,
            seen_probe: SEEING,
            probe_wait: ProbeWait::No,
            reader: None,
            draws: Draws::default(),
            listener: None,
            cancel_key: key,
            request: Request { since_us: now_us, ..Request::default() },
            active_us: now_us,
            _counted: counted,
            refused_servers: 0,
            branch,
            routing: None,
            must_see: self.state.must_see_taken_over(branch, now_us),
        };
        let id = self.clients.insert(Client {
            conn,
            serial: cx.env.shared.next_serial(),
            state,
            inbox: Vec::from(carried.unread),
            skip: usize::try_from(carried.skip).unwrap_or(usize::MAX),
            reads_paused: false,
            departed: false,
            origin: Box::new(origin),
            account,
        });
        self.state.count_state(branch, &self.clients[id].state, Turn::Enters);
        let owner = KeyOwner::Client(pool_id, id);
        let account = &mut self.clients[id].account;
        match cx.env.cancel_keys.entry(account.cancel_key.head()) {
            // Two processes may have chosen the same key; then one of the clients cannot cancel.
            Entry::Occupied(_) => account.cancel_key = cx.new_cancel_key(owner, carried.minor, None),
            Entry::Vacant(place) => {
                place.insert(owner);
            }
        }
        cx.env.set_role(conn, Role::Client(pool_id, id));
        if cx.env.activity == Activity::Suspended {
            self.pause_client(cx, id);
        }
        if let Some(server) = server {
            self.set_server_state(server, ServerState::serving(id));
            if is_replication {
                self.servers[server].serves = Serves::ReplicationClient;
            }
        }
        id
    }

    fn carried_statements(
        &mut self,
        env: &mut Env,
        carried: &CarriedClient,
    ) -> Option<Box<ClientStatements>> {
        if carried.statements.is_empty() {
            return None;
        }
        let mut statements = ClientStatements::default();
        let shapes = by_number(carried.shapes.as_deref());
        for (name, serial, query, types) in &carried.statements {
            let shape = shapes.get(serial).cloned();
            let statement = env.statements.adopt(query, types, *serial, (shape, self.id));
            statements.insert(name, statement, Told::AsStatement, query.len() + types.len());
        }
        for (name, shape) in carried.told.iter().flatten() {
            if let (Some(ticket), Some(shape)) = (statements.ticket(name), unpack_shape(shape)) {
                statements.tell(ticket, Told::Shape(Arc::new(shape)));
            }
        }
        Some(Box::new(statements))
    }

    fn login_again(&self, env: &Env, carried: CarriedClient) -> Login {
        let pool = &self.state;
        Login {
            database: Arc::clone(&pool.database),
            params: self.params_of(env, &carried.params),
            minor: carried.minor,
            replication: replication(&carried.replication),
            options: carried.options.map(|options| Vec::from(options).into()),
            learned: learned(carried.learned),
            session: session(&carried.session, None),
            user: shared_name(carried.user, &pool.user),
        }
    }

    fn session_of(
        &mut self,
        env: &mut Env,
        settings: &[(ByteVec, ByteVec)],
        prepared: Option<&[(ByteVec, ByteVec)]>,
    ) -> Arc<Session> {
        let pool = &mut self.state;
        let mut session = session(settings, prepared);
        // Under which settings it was prepared is not carried.
        session.reread(|_| env.parse_contexts.alone());
        pool.known.sessions.share(session)
    }

    fn params_of(&self, env: &Env, pairs: &[Pair]) -> Params {
        let mut params = Params::unknown(&env.tracked);
        for (name, value) in pairs {
            if let Some(position) = env.tracked.position(name.as_bytes()) {
                params.set(position, value);
            }
        }
        params
    }

    fn ago(&self, env: &Env, us: u64) -> Now {
        let Now { mono_us, wall_us } = env.now;
        // 0 is "never".
        Now { mono_us: mono_us.saturating_sub(us).max(1), wall_us: wall_us.saturating_sub(us) }
    }
}

fn session(settings: &[(ByteVec, ByteVec)], prepared: Option<&[(ByteVec, ByteVec)]>) -> Session {
    let mut session = Session::default();
    for (name, value) in settings {
        session.set(name, value);
    }
    let prepared = prepared.into_iter().flatten();
    prepared
        .filter_map(|(name, text)| Prepared::movable(name, text, ParseContext::UNDETERMINED))
        .for_each(|known| session.prepare(known));
    session
}

/// Returns the unnamed statement that was carried.
fn unnamed((query, types): (ByteVec, ByteVec)) -> Box<Unnamed> {
    Box::new(Unnamed { query: Vec::from(query).into(), types: Vec::from(types).into() })
}

/// Returns the possible effects of a transaction on its session. The predecessor did not carry what exactly the transaction did: it may
/// have done anything.
fn touched(names: Vec<ByteVec>) -> Box<Touched> {
    let names = names.into_iter().map(|name| Vec::from(name).into()).collect();
    let marks = Marks::ROUTINES;
    Box::new(Touched { marks, names, more: true, sets: Sets::Unsure, ..Touched::default() })
}

/// Returns the shapes that were carried along, by the number of their statement.
fn by_number(shapes: Option<&[(u64, CarriedShape)]>) -> HashMap<u64, Shape> {
    let known = shapes.into_iter().flatten();
    known.filter_map(|(serial, shape)| Some((*serial, unpack_shape(shape)?))).collect()
}
