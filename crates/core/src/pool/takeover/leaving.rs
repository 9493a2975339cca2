//! The handover to the process that replaces this one (`-R`): clients with no statement under way, servers that owe
//! nothing, pairs of both inside a transaction or a session. A busy client or server leaves when it becomes idle; a client
//! that cannot travel (a TLS session lives in this process) stays and is served here until it ends.

use std::sync::Arc;

use minicbor::bytes::ByteVec;
use pgweir_auth::{Learned, PlainPassword, ScramKeys, Secret};
use pgweir_settings::{Database, PoolMode};

use crate::client_handoff::{Login, Origin, Replication};
use crate::cluster::{Run, Term};
use crate::context::{Cx, Effect, Env};
use crate::driver::{CloseMode, Driver, Endpoint, Peer};
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{
    Account, Client, ClientState, First, Link, OwnNames, UnnamedOnServer, Waiting, Waits,
};
use crate::pool::prepared::shape::{Columns, Shape};
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::Server;
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::pool::session::pins::Told;
use crate::pool::session::restore::has_to_restore;
use crate::pool::takeover::carried::{
    Carried, CarriedClient, CarriedPeer, CarriedPool, CarriedSecret, CarriedServer, CarriedShape,
    CarriedTerm, Pair,
};
use crate::pool::{Pool, PoolState, ServerKind};

/// The time after a turn at which the worker looks again whether the queued bytes have left (µs).
const LOOK_AGAIN_US: u64 = 2_000;

impl Pool {
    pub(crate) fn tell_pool<D: Driver>(&self, cx: &mut Cx<'_, D>) {
        let pool = &self.state;
        let greeting = pool.greeting.as_deref();
        let carried = CarriedPool {
            fixed: greeting.map(|greeting| greeting.fixed.clone()).unwrap_or_default().into(),
            params: greeting.map(|greeting| self.pairs(cx.env, &greeting.params)).unwrap_or_default(),
            learned: secret(&pool.known.learned),
            session: greeting.map(|greeting| settings(&greeting.session)),
            prepared: greeting.map(|greeting| prepared(&greeting.session)),
            opened_by: Some(opened_by(pool)),
        };
        cx.driver.give_away(None, None, self.carried(Some(carried), None, None));
    }

    fn carried(
        &self,
        pool: Option<CarriedPool>,
        client: Option<CarriedClient>,
        server: Option<CarriedServer>,
    ) -> Box<Carried> {
        let own = &self.state;
        let (database, pool_user) = (own.database.to_string(), own.user.to_string());
        Box::new(Carried { database, pool_user, pool, client, server })
    }

    /// Hands over a client, if nothing is under way for it.
    pub(crate) fn send_off<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        if client.origin.tls.is_some() || client.departed {
            return;
        }
        if cx.driver.backlog(client.conn) > 0 {
            // The driver writes when the turn has ended.
            return cx.env.want(Effect::LeaveAt(cx.env.now.mono_us + LOOK_AGAIN_US));
        }
        let account = &client.account;
        if account.statements.as_ref().is_some_and(|statements| statements.is_closing()) {
            return;
        }
        let server = match &client.state {
            // The next primary is asked here what became of its transaction.
            ClientState::Waiting(Waiting { first: First::Outcome(_), .. }) => return,
            ClientState::Idle | ClientState::DeferredBegin(_) | ClientState::Waiting(_) => None,
            // Its server is being opened for it alone.
            ClientState::AwaitingServer(login) if login.replication != Replication::None => return,
            ClientState::AwaitingServer(_) => None,
            ClientState::Linked(link) if self.may_travel(cx, id, link) => Some(link.server),
            _ => return,
        };
        let carried_server =
            server.and_then(|server| Some(self.pack_server(cx.env, self.servers.get(server)?)));
        let Some(carried_client) = self.pack_client(cx.env, client) else { return };
        let carried = self.carried(None, Some(carried_client), carried_server);
        let client_conn = client.conn;
        let server_conn = server.and_then(|server| self.servers.get(server)).map(|server| server.conn);
        cx.driver.give_away(Some(client_conn), server_conn, carried);
        self.forget_client(cx.env, id);
        if let Some(server) = server {
            self.forget_server(cx, server);
        }
    }

    /// Whether a linked pair can leave: no message is half passed on, nothing is owed, no cancel is on its way.
    fn may_travel<D: Driver>(&self, cx: &Cx<'_, D>, id: ClientId, link: &Link) -> bool {
        let Some(server) = self.servers.get(link.server) else { return false };
        link.streaming == 0
            && link.waits == Waits::default()
            && !holds_later(link, server)
            // The successor would need to know that it stays within reads.
            && !self.reads_at_standby(id, link.server)
            // The successor would need to know the reason that keeps a server.
            && link.pin.is_none()
            && link.touched.as_ref().is_none_or(|touched| touched.told != Told::Unknown)
            && link.own_names == OwnNames::Hidden
            && !link.ready_due
            && !has_to_restore(link)
            && link.group.is_none()
            && matches!(link.phase, LinkPhase::Exchange(Preamble::None | Preamble::Begin(_)))
            && server.state.served_client() == Some(id)
            // The successor would take the rest of an open group, which PostgreSQL may ignore up to its Sync, for the beginning of one.
            && server.ledger.is_at_rest()
            && self.is_portable(cx, server)
    }

    fn is_portable<D: Driver>(&self, cx: &Cx<'_, D>, server: &Server) -> bool {
        server.incoming.streaming.is_none()
            && server.incoming.inbox.is_empty()
            && server.pipelined.is_alone()
            // The successor would take a statement that has changed for the one that clients were told of.
            && !server.statements.has_outdated()
            && server.cancels == 0
            && !server.is_lost()
            && server.at.tls.is_empty()
            // The successor would take it for a server of a standby.
            && !server.at.is_promoted
            && cx.driver.backlog(server.conn) == 0
    }

    /// Hands over a free server, unless clients that stay may need it. A server that cannot travel is closed.
    pub(crate) fn send_off_unused<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let pool = &self.state;
        let waiting = self.clients.len() > pool.count.linked as usize;
        if waiting || !self.cancels.is_empty() || !pool.queue.lookups.is_empty() {
            return;
        }
        match server.state.kind() {
            ServerKind::Idle
                if self.reason_to_close(cx.env, id).is_none()
                    && server.opened.is_plain()
                    && server.session.channels().is_empty()
                    && self.is_portable(cx, server) =>
            {
                let carried = self.carried(None, None, Some(self.pack_server(cx.env, server)));
                cx.driver.give_away(None, Some(server.conn), carried);
                self.forget_server(cx, id);
            }
            ServerKind::Idle => self.close_server(cx, id, "server shutting down", CloseMode::Flush),
            ServerKind::Login if !server.is_replication() => {
                self.close_server(cx, id, "server shutting down", CloseMode::Now);
            }
            _ => {}
        }
    }

    /// Returns the client in the form that travels; `None` if it cannot leave in its present state. Every new field of a client must be
    /// named here, so that it is either carried or a reason to stay.
    fn pack_client(&self, env: &Env, client: &Client) -> Option<CarriedClient> {
        let Client { conn: _, serial: _, state, inbox, skip, reads_paused: _, departed: _, origin, account } =
            client;
        let Origin { peer, tls: _, since } = &**origin;
        let Account {
            user,
            replication,
            params,
            statements,
            unnamed,
            cancel_key,
            session,
            startup,
            // The servers that it could tell apart by this do not travel.
            own: _,
            // The successor reads its prepared statements as no other client's.
            parse_context: _,
            // The successor has no answers of this process.
            wrote_us: _,
            redefined_us: _,
            seen_probe: _,
            probe_wait: _,
            reader: _,
            // A server that has travelled is not known to be used by this client alone.
            draws: _,
            listener,
            request: _,
            active_us: _,
            _counted: _,
            refused_servers: _,
            // The successor asks again where it goes.
            branch: _,
            must_see: _,
            routing: _,
        } = account;
        if listener.as_deref().is_some_and(|listener| !listener.is_idle()) {
            // Another connection would need to listen to its channels without a gap.
            return None;
        }
        let mut carried = CarriedClient {
            peer: pack_peer(peer),
            age_us: env.now.mono_us.saturating_sub(since.mono_us),
            user: user.to_string(),
            unread: inbox.clone().into(),
            params: self.pairs(env, params),
            minor: cancel_key.minor(),
            replication: replication.text().to_owned(),
            options: None,
            cancel_key: Some(cancel_key.bytes().into()),
            statements: Vec::new(),
            skip: *skip as u64,
            learned: None,
            session: settings(session),
            startup: startup.as_ref().map(|startup| settings(startup)),
            prepared: Some(prepared(session)),
            unnamed: unnamed.as_ref().map(|unnamed| (bytes(&unnamed.query), bytes(&unnamed.types))),
            touched: match state {
                ClientState::Linked(Link { touched: Some(touched), .. }) => {
                    Some(touched.names.iter().map(|name| bytes(name)).collect())
                }
                _ => None,
            },
            begun: deferred_begin(state).map(bytes),
            owns_unnamed: Some(owns_unnamed(state)),
            shapes: None,
            told: None,
            as_session: matches!(state, ClientState::Linked(link) if link.made_in == PoolMode::Session),
        };
        if let ClientState::AwaitingServer(login) = state {
            let Login { database: _, user: _, params, minor, replication: _, options, learned, session } =
                &**login;
            carried.session = settings(session);
            carried.params = self.pairs(env, params);
            carried.minor = *minor;
            carried.options = options.as_ref().map(|options| options.to_vec().into());
            carried.learned = secret(learned);
            carried.cancel_key = None;
        }
        for (name, id) in statements.iter().flat_map(|statements| statements.iter()) {
            let statement = env.statements.get(id)?;
            let (query, types) = (bytes(&statement.query), bytes(&statement.types));
            carried.statements.push((bytes(name), statement.serial(), query, types));
            if let Some(shape) = statement.shape() {
                let shapes = carried.shapes.get_or_insert_default();
                shapes.push((statement.serial(), pack_shape(shape)));
            }
        }
        let told = statements.iter().flat_map(|statements| statements.told_otherwise());
        carried.told = Some(told.map(|(name, shape)| (bytes(name), pack_shape(shape))).collect());
        Some(carried)
    }

    /// Returns the server in the form that travels. The server owes nothing: fields that follow from that are not carried.
    fn pack_server(&self, env: &Env, server: &Server) -> CarriedServer {
        let (host, port) = match &server.at.endpoint {
            Endpoint::Tcp { host, port } => (host.to_string(), *port),
            Endpoint::Unix { path } => (path.to_string(), 0),
        };
        let ago_us = |since_us: u64| env.now.mono_us.saturating_sub(since_us);
        let known = |id| {
            let statement = env.statements.get(id)?;
            Some((statement.serial(), bytes(&statement.query), bytes(&statement.types)))
        };
        let shape = |id| {
            let statement = env.statements.get(id)?;
            Some((statement.serial(), pack_shape(statement.shape()?)))
        };
        CarriedServer {
            host,
            port,
            local: server.at.local.clone(),
            pid: server.at.pid,
            key: bytes(&server.at.key),
            params: self.pairs(env, &server.params),
            statements: server.statements.iter().filter_map(known).collect(),
            age_us: ago_us(server.at.since.mono_us),
            unused_us: ago_us(server.active_us),
            tx: server.tx.as_byte(),
            xact_us: if server.work.xact_us == 0 { 0 } else { ago_us(server.work.xact_us).max(1) },
            used: server.work.used,
            // The values that its RESET goes back to are no other client's.
            retire: server.retiring.is_some() || !server.opened.is_plain(),
            session: settings(&server.session),
            prepared: Some(prepared(&server.session)),
            opened_by: opened_by(&self.state),
            term: server.at.term.as_ref().map(pack_term),
            at_standby: (!server.branch.is_primary()).then_some(true),
            shapes: Some(server.statements.iter().filter_map(shape).collect()),
        }
    }

    fn pairs(&self, env: &Env, params: &Params) -> Vec<Pair> {
        let value = |(position, name): (usize, &str)| Some((name.to_owned(), bytes(params.get(position)?)));
        env.tracked.names().enumerate().filter_map(value).collect()
    }

    /// Forgets a client that is another process's now.
    fn forget_client(&mut self, env: &mut Env, id: ClientId) {
        let Some(mut client) = self.clients.remove(id) else { return };
        env.clear_role(client.conn);
        env.buffers.give_back(std::mem::take(&mut client.inbox));
        self.leave_pool(env, id, client.account, &client.state);
    }

    /// Forgets a server that is another process's now.
    fn forget_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.set_unlisted(id);
        let Some(mut server) = self.servers.remove(id) else { return };
        cx.env.clear_role(server.conn);
        for statement in server.statements.drain() {
            cx.env.statements.give_back(statement);
        }
        self.give_back_server(cx, server.branch);
    }
}

/// Returns the settings that a pool's servers are opened and used with, as text.
pub(crate) fn opened_by(pool: &PoolState) -> String {
    let Database { dbname, hosts, port, user, connect_query, .. } = &*pool.config;
    format!("{dbname:?} {hosts:?} {port} {user:?} {connect_query:?} {:?}", pool.policy.session_notes())
}

fn pack_term(term: &Term) -> CarriedTerm {
    let Term { node, run } = term;
    CarriedTerm {
        node: node.to_string(),
        system_identifier: run.system_identifier,
        timeline: run.timeline,
        started_us: run.started_us,
    }
}

pub(crate) fn unpack_term(term: CarriedTerm) -> Term {
    let CarriedTerm { node, system_identifier, timeline, started_us } = term;
    Term { node: node.into(), run: Run { system_identifier, timeline, started_us } }
}

/// Returns the BEGIN that was answered and not sent, if there is one.
fn deferred_begin(state: &ClientState) -> Option<&[u8]> {
    match state {
        ClientState::DeferredBegin(deferred) => Some(&deferred.text),
        ClientState::Waiting(Waiting { first: First::Begin(text), .. }) => Some(text),
        ClientState::Linked(Link { phase: LinkPhase::Exchange(Preamble::Begin(text)), .. }) => Some(text),
        _ => None,
    }
}

fn bytes(bytes: &[u8]) -> ByteVec {
    bytes.to_vec().into()
}

fn prepared(session: &Session) -> Vec<(ByteVec, ByteVec)> {
    session.prepared().map(|prepared| (bytes(&prepared.name), bytes(&prepared.text))).collect()
}

fn settings(session: &Session) -> Vec<(ByteVec, ByteVec)> {
    session.settings().map(|setting| (bytes(&setting.name), bytes(&setting.value))).collect()
}

fn pack_peer(peer: &Peer) -> CarriedPeer {
    match peer {
        Peer::Tcp { remote, local } => CarriedPeer::Tcp(remote.to_string(), local.to_string()),
        Peer::Unix { pid, uid, same_user, port } => CarriedPeer::Unix(*pid, *uid, *same_user, *port),
    }
}

fn secret(learned: &Learned) -> Option<CarriedSecret> {
    match learned {
        Learned::Nothing => None,
        Learned::Password(password) => Some(CarriedSecret::Password(bytes(password.as_bytes()))),
        Learned::Secret(Secret::Plain(password)) => Some(CarriedSecret::Password(bytes(password.as_bytes()))),
        Learned::Secret(Secret::Md5(hash)) => Some(CarriedSecret::Hash(hash.format())),
        Learned::Secret(Secret::Scram(secret)) => Some(CarriedSecret::Hash(secret.format())),
        Learned::ScramKeys(keys) => Some(CarriedSecret::ScramKeys(
            bytes(keys.client_key()),
            bytes(keys.server_key()),
            bytes(keys.salt()),
            keys.iterations(),
        )),
    }
}

/// Returns the learned secret from the form that travels.
pub(crate) fn learned(secret: Option<CarriedSecret>) -> Learned {
    match secret {
        None => Learned::Nothing,
        Some(CarriedSecret::Password(password)) => Learned::Password(PlainPassword::new(Vec::from(password))),
        Some(CarriedSecret::Hash(hash)) => Learned::Secret(Secret::parse(&hash)),
        Some(CarriedSecret::ScramKeys(client, server, salt, iterations)) => {
            match (client.as_slice().try_into(), server.as_slice().try_into()) {
                (Ok(client), Ok(server)) => {
                    Learned::ScramKeys(ScramKeys::new(client, server, &salt, iterations))
                }
                _ => Learned::Nothing,
            }
        }
    }
}

/// Returns the peer of an [`Origin`] from the form that travels.
pub(crate) fn unpack_peer(peer: CarriedPeer) -> Option<Peer> {
    Some(match peer {
        CarriedPeer::Tcp(remote, local) => {
            Peer::Tcp { remote: remote.parse().ok()?, local: local.parse().ok()? }
        }
        CarriedPeer::Unix(pid, uid, same_user, port) => Peer::Unix { pid, uid, same_user, port },
    })
}

/// Returns the kind of replication from `SHOW`'s word for it.
pub(crate) fn replication(text: &str) -> Replication {
    match text {
        "physical" => Replication::Physical,
        "logical" => Replication::Logical,
        _ => Replication::None,
    }
}

/// Returns a shared copy of a name if it is the pool's own.
pub(crate) fn shared_name(name: String, own: &Arc<str>) -> Arc<str> {
    if *name == **own { Arc::clone(own) } else { name.into() }
}

fn pack_shape(shape: &Shape) -> CarriedShape {
    let columns = shape.columns.as_ref().map(|columns| bytes(columns.as_bytes()));
    CarriedShape { params: bytes(&shape.params), columns }
}

/// Returns the shape from the form that travels; `None` if this process does not know its form.
pub(crate) fn unpack_shape(shape: &CarriedShape) -> Option<Shape> {
    let columns = match &shape.columns {
        Some(columns) => Some(Columns::from_bytes(columns)?),
        None => None,
    };
    Some(Shape { params: shape.params.to_vec().into(), columns })
}

/// Whether the server's unnamed statement is the client's own. The server owes nothing, so no message can be skipped any more.
fn owns_unnamed(state: &ClientState) -> bool {
    matches!(state, ClientState::Linked(link) if link.unnamed != UnnamedOnServer::NotOwn)
}
