//! Server connections that pgweir has closed, and that count towards a shared limit until PostgreSQL has ended them.
//!
//! If several poolers share a limit, another pooler may open a connection as soon as this one says that it has one less. So a connection
//! counts until PostgreSQL has closed it, too: its process is no longer among those that PostgreSQL counts then. If the connection broke, or
//! PostgreSQL does not close it in time, it counts until `pg_stat_activity` shows that the process is gone.
//!
//! The worker has these connections, not their pools: a pool may be forgotten before PostgreSQL has ended its connections, and the
//! connections count all the same. Places are given back here and nowhere else.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::context::{Cx, Env, Role};
use crate::driver::{CloseMode, Closed, ConnId, Driver, Endpoint};
use crate::ids::PoolId;
use crate::limits::{UNASKED_CLOSING_US, UNCONFIRMED_LOGIN_US, UNSEEN_US};
use crate::mail::Scarce;
use crate::pool::server::state::{ConnectionState, Server, ServerState};
use crate::pool::{Branch, Pool, ServerKind};
use crate::shared::Counts;

/// The connections of a worker that are closed and still count.
#[derive(Default)]
pub(crate) struct ClosingServers(Vec<ClosingServer>);

/// A connection that pgweir has closed and that still counts.
pub(crate) struct ClosingServer {
    /// The connection while the driver waits for its end; `None` if its end cannot be seen any more, only in `pg_stat_activity`.
    conn: Option<ConnId>,
    /// The process id of the server; 0 if the connection was closed before the server told it.
    pid: u32,
    /// The pool whose servers are asked whether the process is gone; `None` after the pool was forgotten.
    pool: Option<PoolId>,
    /// The limits of the database at the connection's node, and of the user. The limit is in effect if the second value is `true`.
    of: [(Scarce, bool); 2],
    /// The counters of these limits.
    counts: [Arc<Counts>; 2],
    /// Whether the login was not over.
    is_login: bool,
    /// The time at which PostgreSQL was first asked and did not show the process (monotonic, µs); `None` if the last answer has it.
    unseen_us: Option<u64>,
    /// The PostgreSQL server that the connection was to.
    server: PlaceOfServer,
    /// The time at which the connection was closed or broke (monotonic, µs).
    since_us: u64,
}

/// The place of a PostgreSQL server: where it was looked for, and the address at which it was found; `None` for a unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlaceOfServer(Endpoint, Option<SocketAddr>);

impl PlaceOfServer {
    /// Returns the place of the PostgreSQL server that this connection is to.
    pub(crate) fn of(server: &Server) -> PlaceOfServer {
        PlaceOfServer(server.at.endpoint.clone(), server.at.remote)
    }
}

/// The processes that PostgreSQL has shown on a pool's connection, by the limits that they count towards.
pub(crate) struct Shown<'a> {
    /// The limit of the pool's database at the node that was asked, and the processes.
    pub(crate) by_database: (&'a Scarce, &'a [u32]),
    /// The limit of the pool's user, and the processes.
    pub(crate) by_user: (&'a Scarce, &'a [u32]),
    /// The PostgreSQL server that was asked.
    pub(crate) server: &'a PlaceOfServer,
    /// The time at which the server was asked (monotonic, µs).
    pub(crate) asked_us: u64,
}

impl ClosingServer {
    fn is_unconfirmed(&self) -> bool {
        self.conn.is_none()
    }

    /// Returns the processes among which that of this connection would be; `None` if they say nothing of it.
    fn shown_by<'a>(&self, shown: &Shown<'a>) -> Option<&'a [u32]> {
        let [(database, _), (user, _)] = &self.of;
        match (shown.by_database, shown.by_user) {
            ((of, pids), _) if of == database => Some(pids),
            // The user's connections to other databases may be to another server.
            (_, (of, pids)) if of == user && *shown.server == self.server => Some(pids),
            _ => None,
        }
    }

    /// Takes an answer of PostgreSQL. Returns whether the connection is gone. A process that ends disappears from `pg_stat_activity` a moment
    /// before PostgreSQL counts it off, so a later answer must lack it, too.
    fn is_gone(&mut self, shown: &Shown<'_>) -> bool {
        if !self.is_unconfirmed() || self.since_us >= shown.asked_us {
            return false;
        }
        match self.shown_by(shown) {
            None => false,
            // Without a process id only time tells: PostgreSQL ends a login that takes longer than authentication_timeout.
            Some(_) if self.pid == 0 => shown.asked_us.saturating_sub(self.since_us) >= UNCONFIRMED_LOGIN_US,
            Some(pids) if pids.contains(&self.pid) => {
                self.unseen_us = None;
                false
            }
            Some(_) => {
                let since_us = *self.unseen_us.get_or_insert(shown.asked_us);
                shown.asked_us.saturating_sub(since_us) >= UNSEEN_US
            }
        }
    }
}

impl ClosingServers {
    /// Adds a connection that was open until now, or that broke.
    fn add(&mut self, one: ClosingServer) {
        for counts in one.counts.iter().filter(|_| one.conn.is_some()) {
            // There is no limit, so this never fails.
            let _ = counts.closing.try_take(0);
        }
        self.0.push(one);
    }

    /// Takes out the connections that are gone.
    fn take(&mut self, is_gone: impl FnMut(&mut ClosingServer) -> bool) -> Vec<ClosingServer> {
        self.0.extract_if(.., is_gone).collect()
    }

    /// Whether a pool's servers must be asked which processes PostgreSQL has: because of the pool's own connections at this node,
    /// or of connections whose pool was forgotten and which the answer tells of.
    pub(crate) fn are_in_doubt(&self, pool: &Pool, branch: Branch) -> bool {
        let unconfirmed = self.0.iter().filter(|one| one.is_unconfirmed());
        let by_database = |one: &ClosingServer| one.of[0].0 == pool.state.scarce_at(branch);
        let by_user = |one: &ClosingServer| {
            let is_same =
                |server: &Server| server.branch == branch && PlaceOfServer::of(server) == one.server;
            matches!(&one.of[1].0, Scarce::User(user) if *user == pool.state.user)
                && pool.servers.values().any(is_same)
        };
        unconfirmed.into_iter().any(|one| match one.pool {
            Some(owner) => owner == pool.id && by_database(one),
            None => by_database(one) || by_user(one),
        })
    }

    /// Whether the end of a connection of this pool can only be seen in `pg_stat_activity`.
    pub(crate) fn has_unconfirmed(&self, pool: PoolId) -> bool {
        self.0.iter().any(|one| one.is_unconfirmed() && one.pool == Some(pool))
    }

    /// Notes that a pool was forgotten.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.0.iter_mut().filter(|one| one.pool == Some(pool)).for_each(|one| one.pool = None);
    }

    /// Calls `add` for each connection and each limit in effect that it counts towards, with the process id (0: unknown), and `true` if
    /// only `pg_stat_activity` can show its end.
    pub(crate) fn for_each_limit(&self, mut add: impl FnMut(&Scarce, u32, bool)) {
        for one in &self.0 {
            let in_effect = one.of.iter().filter(|(_, is_limited)| *is_limited);
            in_effect.for_each(|(of, _)| add(of, one.pid, one.is_unconfirmed()));
        }
    }
}

impl Env {
    /// Handles the end of a connection that pgweir has closed. Returns the pool that may use its place.
    pub(crate) fn closing_ended(&mut self, conn: ConnId, why: &Closed) -> Option<PoolId> {
        self.clear_role(conn);
        let place = self.closing.0.iter().position(|one| one.conn == Some(conn))?;
        let one = &mut self.closing.0[place];
        one.conn = None;
        one.counts.iter().for_each(|counts| counts.closing.give_back());
        if *why != Closed::Eof {
            return None;
        }
        let gone = self.closing.0.swap_remove(place);
        self.give_back_closed(std::slice::from_ref(&gone));
        gone.pool
    }

    /// Gives back the places of connections whose processes PostgreSQL has not shown.
    pub(crate) fn settle_closing(&mut self, shown: &Shown<'_>) {
        let gone = self.closing.take(|one| one.is_gone(shown));
        self.give_back_closed(&gone);
    }

    /// Gives back the places of connections which PostgreSQL can no longer be asked about: no database of the configuration leads to them,
    /// and the time is over after which a server notices that its client is gone.
    pub(crate) fn give_up_unasked(&mut self) {
        let now_us = self.now.mono_us;
        let is_over = |one: &mut ClosingServer| now_us.saturating_sub(one.since_us) >= UNASKED_CLOSING_US;
        let gone = self.closing.take(|one| one.is_unconfirmed() && one.pool.is_none() && is_over(one));
        self.give_back_closed(&gone);
    }

    fn give_back_closed(&mut self, gone: &[ClosingServer]) {
        for one in gone {
            one.counts.iter().filter(|_| one.is_login).for_each(|counts| counts.logins.give_back());
            self.give_back_places([&one.counts[0], &one.counts[1]], true);
        }
    }
}

impl Pool {
    /// Whether this server still counts towards a shared limit after pgweir has closed it. PostgreSQL counts a connection from the end of its login, which may
    /// begin with the startup packet.
    pub(crate) fn counts_until_closed(&self, env: &Env, server: &Server) -> bool {
        env.shares_limits()
            && self.state.policy.is_limited
            && server.is_for_clients()
            && server.connection != ConnectionState::ClosedByServer
            && !matches!(server.state, ServerState::Dialing(_) | ServerState::SecuringTls(_))
    }

    /// Closes the connection of a server that is not in the pool any more, and counts it until its end.
    pub(crate) fn close_and_count<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server: &Server,
        mode: CloseMode,
    ) {
        let is_open = server.connection == ConnectionState::Open;
        if is_open {
            cx.env.set_role(server.conn, Role::ClosingServer);
            cx.driver.close(server.conn, CloseMode::Confirm { flushes: mode == CloseMode::Flush });
        }
        let (pool, config) = (&self.state, &cx.env.rules.config);
        let of_database = (pool.scarce_at(server.branch), config.max_db_connections(&pool.config) > 0);
        let of_user = (Scarce::User(Arc::clone(&pool.user)), config.max_user_connections(&pool.user) > 0);
        cx.env.closing.add(ClosingServer {
            conn: is_open.then_some(server.conn),
            pid: server.at.pid,
            pool: Some(self.id),
            of: [of_database, of_user],
            counts: pool.counts_of(server.branch).map(Arc::clone),
            is_login: server.state.kind() == ServerKind::Login,
            unseen_us: None,
            server: PlaceOfServer::of(server),
            since_us: cx.env.now.mono_us,
        });
    }
}
