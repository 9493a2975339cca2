//! From the startup packet to the first ReadyForQuery: limits, the way to the pool's worker, and what a client is told when it
//! is in. `proof` holds how it proves itself in between.

use std::sync::Arc;

use pgweir_wire::backend::encode_auth_ok;

use crate::client_handoff::{ClientHandoff, Counted, Login};
use crate::context::{Cx, Env};
use crate::driver::{CloseMode, ConnId, Driver, Peer};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::mail::Shutdown;
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::console::{self, Rights};
use crate::worker::unpooled::{LoginAttempt, Proven, Record, Target, UnpooledState};

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
            counted.total = Some(Arc::clone(&cx.env.shared.clients));
        }
        if target == Target::Console && self.is_house_user(id, &login) {
            self.log_of_login(cx, id, &login, "pgbouncer access from unix socket");
            self.log_attempt(cx, id, &login);
            let database = cx.env.shared.database(console::DATABASE);
            counted.database = database.clients.try_take(0).then_some(database);
            return self.open_console(cx, id, &login, Rights::Admin, counted);
        }
        self.log_attempt(cx, id, &login);
        self.begin_proof(cx, id, LoginAttempt { login, counted, target, record: Record::NotAsked })
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

    /// Whether the client is a process of our own operating system user, over the unix socket, as `pgbouncer`: it may enter the console
    /// without a password.
    fn is_house_user(&self, id: UnpooledId, login: &Login) -> bool {
        let same_user = self
            .unpooled
            .get(id)
            .is_some_and(|client| matches!(client.origin.peer, Peer::Unix { same_user: true, .. }));
        same_user && console::is_house_name(&login.user)
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

    pub(super) fn admit(
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
    pub(super) fn admit_to_console(
        &self,
        env: &Env,
        login: &Login,
        counted: &mut Counted,
    ) -> Result<Rights, Fault> {
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
    pub(super) fn pool_user(&self, env: &Env, login: &Login) -> Arc<str> {
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
            let fault = Fault::NoSuchDatabase(login.database.to_string());
            cx.env.counters.errors.note(fault.code().as_bytes());
            cx.env.scratch.clear();
            encode_auth_ok(&mut cx.env.scratch);
            fault.encode(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
            return cx.driver.close(conn, CloseMode::Flush);
        };
        self.in_pool(cx, pool, |pool, cx| {
            if let Some(id) = pool.join_pool(cx, conn, handoff, reads_paused) {
                pool.client_resume(cx, id);
            }
        });
    }
}
