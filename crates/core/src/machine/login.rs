//! From the startup packet to the first ReadyForQuery: limits, the way to the pool's worker, and what a client is told when it
//! is in. `proof` holds how it proves itself in between.

use std::sync::Arc;

use pgweir_auth::Learned;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_notice};

use super::session::Known;
use super::{Step, Worker};
use crate::client::{Account, Client, ClientState};
use crate::client_handoff::{ClientHandoff, Counted, Login, Replication};
use crate::console::{self, Rights};
use crate::context::{Activity, Cx, Env, KeyOwner, Role};
use crate::driver::{CloseMode, ConnId, Driver, Peer};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId, UnpooledId};
use crate::mail::Shutdown;
use crate::pool::Pool;
use crate::server_greeting::ServerGreeting;
use crate::startup_checks::CheckedStartup;
use crate::unpooled::{Attempt, Proven, Record, Target, UnpooledState};

impl Worker {
    /// The startup packet is understood: counts the client and asks for its password.
    pub(crate) fn begin_login<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: Login,
    ) -> Step {
        let target = self.target(cx.env, &login);
        let mut counted = Counted::default();
        if target != Target::Console {
            if !cx.env.shared.clients.try_take_below(cx.env.rules.config.main.max_client_conn) {
                return self.refuse_unpooled(cx, id, &Fault::TooManyClients("max_client_conn"));
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
    fn is_house_user(&self, id: UnpooledId, login: &Login) -> bool {
        let same_user = self
            .unpooled
            .get(id)
            .is_some_and(|client| matches!(client.origin.peer, Peer::Unix { same_user: true, .. }));
        same_user && console::is_house_name(&login.user)
    }

    /// The client has proven its user; from now on it may be told which objects exist.
    pub(crate) fn proven<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, attempt: Attempt) -> Step {
        let Attempt { login, mut counted, target, record: _ } = attempt;
        if target == Target::Console {
            return match self.admit_to_console(cx.env, &login, &mut counted) {
                Ok(rights) => self.open_console(cx, id, &login, rights, counted),
                Err(fault) => self.refuse_login(cx, id, login, &counted, &fault),
            };
        }
        let since_us = self.unpooled.get(id).map_or(u64::MAX, |client| client.origin.since.mono_us);
        if let Err(fault) = self.admit(cx.env, &login, target, since_us, &mut counted) {
            return self.refuse_login(cx, id, login, &counted, &fault);
        }
        let to = cx.env.shared.owner(&login.database, &self.pool_user(cx.env, &login));
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::Proven(Box::new(Proven { login, counted, to }));
        }
        // It stays here until its bytes that were not looked at yet are in its inbox.
        Step::Used(0)
    }

    /// The bytes of a proven client that were not looked at yet are in its inbox now: it goes to its pool, with all that it has.
    pub(crate) fn go_to_pool<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        if !matches!(self.unpooled.get(id).map(|client| &client.state), Some(UnpooledState::Proven(_))) {
            return;
        }
        let Some(client) = self.unpooled.remove(id) else { return };
        let UnpooledState::Proven(proven) = client.state else { return };
        cx.env.clear_role(client.conn);
        let Proven { login, counted, to } = *proven;
        let (serial, origin, unread) = (client.serial, client.origin, client.inbox);
        let handoff = ClientHandoff { serial, origin, login, counted, unread };
        if to == cx.env.worker {
            self.join_pool_of(cx, client.conn, handoff, client.reads_paused);
        } else {
            cx.driver.hand_over(client.conn, to, Box::new(handoff));
        }
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

    /// The user that servers for this login are logged in as.
    fn pool_user(&self, env: &Env, login: &Login) -> Arc<str> {
        let forced = env.rules.config.database(&login.database).and_then(|db| db.user.clone());
        forced.map_or_else(|| Arc::clone(&login.user), Arc::from)
    }

    /// A client from another worker: it is proven, and counted.
    pub(crate) fn adopt<D: Driver>(&mut self, cx: &mut Cx<'_, D>, conn: ConnId, handoff: ClientHandoff) {
        // The pool may have gone and come back elsewhere while the client was on its way.
        let login = &handoff.login;
        let owner = cx.env.shared.owner(&login.database, &self.pool_user(cx.env, login));
        if owner == cx.env.worker {
            self.join_pool_of(cx, conn, handoff, false);
        } else {
            cx.driver.hand_over(conn, owner, Box::new(handoff));
        }
    }

    /// The client belongs to a pool of this worker from here on.
    fn join_pool_of<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        conn: ConnId,
        handoff: ClientHandoff,
        reads_paused: bool,
    ) {
        let login = &handoff.login;
        let user = self.pool_user(cx.env, login);
        let Some(pool) = self.pool_for(cx, &login.database, &user) else {
            cx.env.uncount(&handoff.counted);
            let fault = Fault::NoSuchDatabase(login.database.to_string());
            cx.env.counters.errors.note(fault.code().as_bytes());
            cx.env.scratch.clear();
            fault.encode(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
            return cx.driver.close(conn, CloseMode::Flush);
        };
        self.in_pool(cx, pool, |pool, cx| {
            if let Some(id) = pool.settle_in(cx, conn, handoff, reads_paused) {
                pool.client_resume(cx, id);
            }
        });
    }
}

impl Pool {
    /// A proven client: `None` if it was refused.
    pub(crate) fn settle_in<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        conn: ConnId,
        handoff: ClientHandoff,
        reads_paused: bool,
    ) -> Option<ClientId> {
        let ClientHandoff { serial, origin, login, counted, unread } = handoff;
        cx.env.shared.note_client(cx.env.worker, true);
        self.learn(&login);
        let (replication, minor) = (login.replication, login.minor);
        let pool = &self.state;
        // Most clients are the pool's user: one text serves all.
        let user = if login.user == pool.user { Arc::clone(&pool.user) } else { Arc::clone(&login.user) };
        let now_us = cx.env.now.mono_us;
        let pool_id = self.id;
        let id = self.clients.insert_with_key(|id| Client {
            conn,
            serial,
            state: ClientState::AwaitingServer(Box::new(login)),
            inbox: unread,
            skip: 0,
            reads_paused,
            origin: Box::new(origin),
            account: Account {
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
                cancel_key: cx.new_cancel_key(KeyOwner::Client(pool_id, id), minor, None),
                request_us: now_us,
                active_us: now_us,
                counted,
            },
        });
        cx.env.set_role(conn, Role::Client(self.id, id));
        if cx.env.activity == Activity::Suspended {
            self.pause_client(cx, id);
        }
        let pool = &mut self.state;
        pool.clients += 1;
        pool.stats.client_logins += 1;
        if replication != Replication::None {
            self.request_replication(cx, id);
            return self.clients.contains_key(id).then_some(id);
        }
        let greeting = self.state.greeting.clone().filter(|_| !self.gets_own_server());
        match greeting.as_ref().map(|greeting| (greeting, self.known_startup(cx.env, id, greeting))) {
            Some((greeting, Known::Plain)) => self.greet_client(cx, id, greeting, None, None),
            Some((greeting, Known::CheckedStartup(known))) => {
                self.greet_client(cx, id, greeting, Some(&known), None);
            }
            Some((_, Known::Unknown)) | None => {
                if let Some(fault) = self.known_failure(cx.env) {
                    self.refuse_client(cx, id, &fault);
                    return None;
                }
                self.state.awaiting.push(id);
                self.notice();
            }
        }
        Some(id)
    }

    /// The secret that the client proved itself with may serve to log in to servers, if the client is the pool's user.
    fn learn(&mut self, login: &Login) {
        let pool = &mut self.state;
        if login.user == pool.user && !matches!(login.learned, Learned::Nothing) {
            pool.learned = login.learned.clone();
        }
    }

    /// Servers cannot be opened at present, and there is none: a client that needs one is told at once.
    pub(crate) fn known_failure(&self, env: &Env) -> Option<Fault> {
        let pool = &self.state;
        let failure = pool.failure.as_ref()?;
        let retry_us = super::duration_us(env.rules.config.main.server_login_retry);
        let fresh = env.now.mono_us < failure.at_us.saturating_add(retry_us);
        // A server that starts up will be there in a moment: clients that come before the pool's first server wait for it.
        let passes = failure.code == Some(SqlState::CANNOT_CONNECT_NOW) && pool.greeting.is_none();
        (fresh && !passes && !self.has_usable_server()).then(|| Fault::ServerFailing(failure.text.clone()))
    }

    /// Everything a client must know, in one burst. If the client has its own server, it is told of that server's process.
    pub(crate) fn greet_client<D: Driver>(
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
        let account = &mut client.account;
        if !matches!(client.state, ClientState::AwaitingServer(_)) {
            return;
        }
        account.active_us = cx.env.now.mono_us;
        let out = &mut cx.env.scratch;
        out.clear();
        backend::encode_auth_ok(out);
        out.extend_from_slice(&greeting.fixed);
        out.extend_from_slice(checked.map_or(&[][..], |checked| &checked.reported));
        self.state.tell_params(out, &cx.env.tracked, &account.params);
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
}
