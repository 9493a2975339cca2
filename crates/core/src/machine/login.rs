//! From the startup packet to the first ReadyForQuery: limits, the way to the pool's worker, and what a client is told when it
//! is in. `proof` holds how it proves itself in between.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use pgweir_auth::Learned;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_notice};

use super::session::Known;
use super::{Activity, Step, Worker};
use crate::cancel_key::CancelKey;
use crate::client::{Account, Attempt, Client, ClientState, Greeting, HandingOver, Record, Target};
use crate::client_handoff::{ClientHandoff, Counted, Login, Replication};
use crate::console::{self, Rights};
use crate::context::{Cx, Env};
use crate::driver::{ConnId, Driver, Peer};
use crate::errors::Fault;
use crate::ids::{ClientId, PoolId, ServerId};
use crate::mail::Shutdown;
use crate::server_greeting::ServerGreeting;
use crate::startup_checks::CheckedStartup;

impl Worker {
    /// The startup packet is understood: counts the client and asks for its password.
    pub(super) fn begin_login<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, login: Login) -> Step {
        let target = self.target(cx.env, &login);
        let mut counted = Counted::default();
        if target != Target::Console {
            if !cx.env.shared.clients.try_take_below(cx.env.rules.config.main.max_client_conn) {
                return self.refuse_client(cx, id, &Fault::TooManyClients("max_client_conn"));
            }
            counted.total = true;
        }
        if target == Target::Console && self.is_house_user(id, &login) {
            self.log_of_login(cx, id, &login, "pgbouncer access from unix socket");
            self.log_attempt(cx, id, &login);
            let database = cx.env.shared.database(console::DATABASE);
            counted.database = database.clients.try_take(0).then_some(database);
            return self.open_console(cx, id, &login, Rights::Admin, counted);
        }
        self.log_attempt(cx, id, &login);
        self.begin_proof(cx, id, Attempt { login, counted, target, record: Record::NotAsked })
    }

    fn target(&self, env: &Env, login: &Login) -> Target {
        if console::is_database(&env.rules.config, &login.database) {
            Target::Console
        } else if env.rules.config.database(&login.database).is_some() {
            Target::Database
        } else {
            Target::Nowhere
        }
    }

    /// Our own operating system user, over the unix socket, as `pgbouncer`: may enter the console without a password.
    fn is_house_user(&self, id: ClientId, login: &Login) -> bool {
        let same_user = self
            .clients
            .get(id)
            .is_some_and(|client| matches!(client.origin.peer, Peer::Unix { same_user: true, .. }));
        same_user && console::is_house_name(&login.user)
    }

    /// The client has proven its user; from now on it may be told which objects exist.
    pub(super) fn proven<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, attempt: Attempt) -> Step {
        let Attempt { login, mut counted, target, record: _ } = attempt;
        if target == Target::Console {
            return match self.admit_to_console(cx.env, &login, &mut counted) {
                Ok(rights) => self.open_console(cx, id, &login, rights, counted),
                Err(fault) => self.refuse_login(cx, id, login, &counted, &fault),
            };
        }
        let since_us = self.clients.get(id).map_or(u64::MAX, |client| client.origin.since.mono_us);
        if let Err(fault) = self.admit(cx.env, &login, target, since_us, &mut counted) {
            return self.refuse_login(cx, id, login, &counted, &fault);
        }
        let pool_user = self.pool_user(cx.env, &login);
        let owner = cx.env.shared.owner(&login.database, &pool_user);
        if owner == cx.env.worker {
            return self.settle_in(cx, id, login, counted);
        }
        if let Some(client) = self.clients.get_mut(id) {
            client.state = ClientState::HandingOver(Box::new(HandingOver { login, counted, to: owner }));
        }
        Step::Used(0)
    }

    /// The client's bytes that were not looked at yet are in its inbox now: it can go, with all its handoff.
    pub(super) fn hand_over_if_due<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        if !matches!(self.clients.get(id).map(|client| &client.state), Some(ClientState::HandingOver(_))) {
            return;
        }
        let Some(mut client) = self.clients.remove(id) else { return };
        let ClientState::HandingOver(hand_over) = client.state else { return };
        let HandingOver { login, counted, to } = *hand_over;
        cx.env.clear_role(client.conn);
        let handoff = ClientHandoff {
            serial: client.serial,
            origin: *client.origin,
            login,
            counted,
            unread: std::mem::take(&mut client.inbox),
        };
        cx.driver.hand_over(client.conn, to, Box::new(handoff));
    }

    fn admit(
        &self,
        env: &Env,
        login: &Login,
        target: Target,
        since_us: u64,
        counted: &mut Counted,
    ) -> Result<(), Fault> {
        if target == Target::Nowhere {
            return Err(Fault::NoSuchDatabase(login.database.to_string()));
        }
        if env.shared.switches(&login.database).disabled {
            return Err(Fault::DatabaseDisabled(login.database.to_string()));
        }
        // A client that came in before listening ended is one of those that are waited for.
        let is_waited_for = env.stopping == Some(Shutdown::HandOver)
            || env.stopping == Some(Shutdown::WaitForClients) && since_us <= self.stopping_us;
        if env.stopping.is_some() && !is_waited_for {
            return Err(Fault::ShuttingDown);
        }
        let config = &env.rules.config;
        let Some(database) = config.database(&login.database) else {
            return Err(Fault::NoSuchDatabase(login.database.to_string()));
        };
        let limits =
            (config.max_db_client_connections(&database), config.max_user_client_connections(&login.user));
        self.count_client(env, &login.database, &login.user, limits, counted)
    }

    /// The console counts as a separate database. No limit keeps an admin from it.
    fn admit_to_console(&self, env: &Env, login: &Login, counted: &mut Counted) -> Result<Rights, Fault> {
        let config = &env.rules.config;
        let rights = console::rights(&config.main, &login.user).ok_or(Fault::NotAllowedOnConsole)?;
        let limits = match rights {
            Rights::Admin => (0, 0),
            Rights::Stats => {
                (config.main.max_db_client_connections, config.max_user_client_connections(&login.user))
            }
        };
        self.count_client(env, console::DATABASE, &login.user, limits, counted)?;
        Ok(rights)
    }

    /// Counts a client towards the limits of its database and of its user, in this order; 0 is no limit.
    fn count_client(
        &self,
        env: &Env,
        database: &str,
        user: &str,
        (database_max, user_max): (u32, u32),
        counted: &mut Counted,
    ) -> Result<(), Fault> {
        let counts = env.shared.database(database);
        if !counts.clients.try_take(database_max) {
            return Err(Fault::TooManyClients("max_db_client_connections"));
        }
        counted.database = Some(counts);
        let counts = env.shared.user(user);
        if !counts.clients.try_take(user_max) {
            return Err(Fault::TooManyClients("max_user_client_connections"));
        }
        counted.user = Some(counts);
        Ok(())
    }

    /// Gives back the places that a client was counted for.
    pub(super) fn uncount(&self, env: &Env, counted: &Counted) {
        if counted.total {
            env.shared.clients.give_back();
        }
        if let Some(counts) = &counted.database {
            counts.clients.give_back();
        }
        if let Some(counts) = &counted.user {
            counts.clients.give_back();
        }
    }

    /// The user that servers for this login are logged in as.
    fn pool_user(&self, env: &Env, login: &Login) -> Arc<str> {
        let forced = env.rules.config.database(&login.database).and_then(|db| db.user.clone());
        forced.map_or_else(|| Arc::clone(&login.user), Arc::from)
    }

    /// A client from another worker: it is proven, and counted.
    pub(super) fn adopt<D: Driver>(&mut self, cx: &mut Cx<'_, D>, conn: ConnId, handoff: ClientHandoff) {
        let ClientHandoff { serial, origin, login, counted, unread } = handoff;
        let id = self.clients.insert(Client {
            conn,
            serial,
            state: ClientState::Greeting(Greeting::default()),
            inbox: unread,
            skip: 0,
            reads_paused: false,
            origin: Box::new(origin),
            account: None,
        });
        cx.env.set_role(conn, super::Role::Client(id));
        if cx.env.activity == Activity::Suspended {
            self.pause_client(cx, id);
        }
        // The pool may have gone and come back elsewhere while the client was on its way.
        let owner = cx.env.shared.owner(&login.database, &self.pool_user(cx.env, &login));
        if owner != cx.env.worker {
            if let Some(client) = self.clients.get_mut(id) {
                client.state = ClientState::HandingOver(Box::new(HandingOver { login, counted, to: owner }));
            }
            return self.hand_over_if_due(cx, id);
        }
        if self.settle_in(cx, id, login, counted) != Step::Gone {
            self.client_resume(cx, id);
        }
    }

    /// The client belongs to a pool of this worker from here on.
    pub(super) fn settle_in<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        login: Login,
        counted: Counted,
    ) -> Step {
        let user = self.pool_user(cx.env, &login);
        let Some(pool_id) = self.pool_for(cx, &login.database, &user) else {
            self.uncount(cx.env, &counted);
            let database = login.database.to_string();
            return self.refuse_client(cx, id, &Fault::NoSuchDatabase(database));
        };
        cx.env.shared.note_client(cx.env.worker, true);
        let key = self.new_cancel_key(cx, id, login.minor, None);
        self.learn(pool_id, &login);
        let replication = login.replication;
        let pool = &self.pools[pool_id];
        // Most clients are the pool's user: one text serves all.
        let user = if login.user == pool.user { Arc::clone(&pool.user) } else { Arc::clone(&login.user) };
        let now_us = cx.env.now.mono_us;
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        client.state = ClientState::AwaitingServer(Box::new(login));
        client.account = Some(Box::new(Account {
            pool: pool_id,
            user,
            replication,
            params: Arc::default(),
            session: Arc::default(),
            startup: None,
            own: None,
            listener: None,
            statements: None,
            unnamed: None,
            refused_servers: 0,
            reading: None,
            draws: crate::sequences::Draws::default(),
            cancel_key: key,
            request_us: now_us,
            active_us: now_us,
            counted,
        }));
        let pool = &mut self.pools[pool_id];
        pool.clients += 1;
        pool.stats.client_logins += 1;
        if replication != Replication::None {
            self.request_replication(cx, pool_id, id);
            return Step::Used(0);
        }
        let gets_own = self.gets_own_server(pool_id);
        let known = self.pools[pool_id].greeting.clone();
        let greeting = known.filter(|_| !gets_own);
        match greeting.as_ref().map(|greeting| (greeting, self.known_startup(cx.env, id, greeting))) {
            Some((greeting, Known::Plain)) => self.greet_client(cx, id, greeting, None, None),
            Some((greeting, Known::CheckedStartup(known))) => {
                self.greet_client(cx, id, greeting, Some(&known), None);
            }
            Some((_, Known::Unknown)) | None => {
                if let Some(fault) = self.known_failure(cx.env, pool_id) {
                    return self.refuse_client(cx, id, &fault);
                }
                self.pools[pool_id].awaiting.push(id);
                self.notice(pool_id);
            }
        }
        Step::Used(0)
    }

    /// The secret that the client proved itself with may serve to log in to servers, if the client is the pool's user.
    fn learn(&mut self, pool_id: PoolId, login: &Login) {
        let pool = &mut self.pools[pool_id];
        if login.user == pool.user && !matches!(login.learned, Learned::Nothing) {
            pool.learned = login.learned.clone();
        }
    }

    /// Servers cannot be opened at present, and there is none: a client that needs one is told at once.
    pub(super) fn known_failure(&self, env: &Env, pool_id: PoolId) -> Option<Fault> {
        let pool = &self.pools[pool_id];
        let failure = pool.failure.as_ref()?;
        let retry_us = super::duration_us(env.rules.config.main.server_login_retry);
        let fresh = env.now.mono_us < failure.at_us.saturating_add(retry_us);
        // A server that starts up will be there in a moment: clients that come before the pool's first server wait for it.
        let passes = failure.code == Some(SqlState::CANNOT_CONNECT_NOW) && pool.greeting.is_none();
        (fresh && !passes && !self.has_usable_server(pool_id))
            .then(|| Fault::ServerFailing(failure.text.clone()))
    }

    /// Everything a client must know, in one burst. If the client has its own server, it is told of that server's process.
    pub(super) fn greet_client<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        greeting: &ServerGreeting,
        checked: Option<&CheckedStartup>,
        server: Option<ServerId>,
    ) {
        self.begin_session(cx.env, id, greeting, checked);
        let notices = server.map(|server| self.show_process(cx, id, server)).unwrap_or_default();
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(account) = &mut client.account else { return };
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            return;
        }
        account.active_us = cx.env.now.mono_us;
        let out = &mut cx.env.scratch;
        out.clear();
        backend::encode_auth_ok(out);
        out.extend_from_slice(&greeting.fixed);
        out.extend_from_slice(checked.map_or(&[][..], |checked| &checked.reported));
        if let Some(pool) = self.pools.get_mut(account.pool) {
            pool.tell_params(out, &cx.env.tracked, &account.params);
        }
        let key = &account.cancel_key;
        backend::encode_backend_key_data(out, key.pid(), &key.secret());
        out.extend_from_slice(&notices);
        let notice = &cx.env.rules.config.main.login_notify_message;
        if !notice.is_empty() {
            encode_notice(out, &Report::notice(SqlState::SUCCESSFUL_COMPLETION, notice));
        }
        backend::encode_ready(out, TxStatus::Idle);
        client.state = ClientState::Idle;
        cx.env.counters.login.record(cx.env.now.mono_us.saturating_sub(client.origin.since.mono_us));
        cx.driver.send(client.conn, &cx.env.scratch);
    }

    /// A key that no other client of this worker has, entered for this one; with the process id of a server, if it is to be
    /// that.
    pub(super) fn new_cancel_key<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        minor: u16,
        pid: Option<u32>,
    ) -> CancelKey {
        loop {
            let peer_id = cx.env.rules.config.main.peer_id;
            let mut key = CancelKey::new(minor, peer_id, |bytes| cx.driver.random(bytes));
            if let Some(pid) = pid {
                key = key.with_pid(pid);
            }
            if let Entry::Vacant(place) = cx.env.cancel_keys.entry(key.head()) {
                place.insert(id);
                return key;
            }
        }
    }
}
