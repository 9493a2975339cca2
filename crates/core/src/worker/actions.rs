//! The effects of commands and signals on this worker's pools: pause, resume, kill, reconnect, suspend, reload, shut down.

use std::sync::Arc;

use pgweir_settings::{Config, PoolMode};

use crate::context::{Activity, Cx, Env, duration_us};
use crate::driver::{CloseMode, Driver, Level, WorkerId};
use crate::errors::Fault;
use crate::ids::{ClientId, PoolId, UnpooledId};
use crate::mail::{Question, Rules, Shutdown};
use crate::pool::cache::QueryCache;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::{PoolState, ServerKind};
use crate::stats::trace::Sampler;
use crate::worker::Worker;
use crate::worker::console::command::{Command, Outcome, Until};
use crate::worker::login::inquiry::Obstacle;

impl Worker {
    /// Carries out a command here, and answers now or later, when the command is done.
    pub(crate) fn perform<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        ticket: u64,
        command: Command,
    ) {
        let outcome = match command {
            Command::Show(topic) => self.report(cx, topic),
            Command::ShowRoute { database, text } => self.route_rows(cx.env, &database, &text),
            Command::Pause(database) => {
                self.pause(cx, database.as_deref());
                return self.answer_when(cx, from, ticket, Until::Released(database));
            }
            Command::Suspend => {
                self.suspend(cx);
                let limit_us = duration_us(cx.env.rules.config.main.suspend_timeout);
                let deadline_us = cx.env.now.mono_us.saturating_add(limit_us);
                return self.answer_when(cx, from, ticket, Until::Flushed { deadline_us });
            }
            Command::WaitClose(database) => {
                return self.answer_when(cx, from, ticket, Until::Closed(database));
            }
            Command::Resume(database) => {
                self.resume(cx, database.as_deref());
                Outcome::Done
            }
            Command::Reconnect(database) => {
                self.reconnect(cx, database.as_deref(), "obsolete connection");
                Outcome::Done
            }
            Command::Kill(database) => {
                self.kill(cx, database.as_deref());
                Outcome::Done
            }
            Command::PurgeCache(database) => {
                self.purge_cache(cx, database.as_deref());
                Outcome::Done
            }
            Command::KillClient(serial) => self.kill_client(cx, serial),
            Command::SwitchNode { to, cluster, node } => self.switch_node(cx, to, &cluster, &node),
            Command::Recheck(cluster) => self.recheck(cx, &cluster),
            Command::Switchover { cluster, to, force } => {
                match self.begin_switchover(cx, &cluster, to.as_deref(), force) {
                    Ok(Some(number)) => {
                        return self.answer_when(cx, from, ticket, Until::Switched { cluster, number });
                    }
                    Ok(None) => Outcome::Done,
                    Err(why) => Outcome::Failed(why),
                }
            }
            Command::Disable(database) => {
                cx.env.shared.switch(&database, |switches| switches.disabled = true);
                Outcome::Done
            }
            Command::Enable(database) => {
                cx.env.shared.switch(&database, |switches| switches.disabled = false);
                Outcome::Done
            }
            Command::TakeOver
            | Command::TakeVip
            | Command::ShowParameter(_)
            | Command::Set { .. }
            | Command::Reload
            | Command::Shutdown(_) => Outcome::Done,
        };
        self.answer(cx, from, ticket, outcome);
    }

    fn pause<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: Option<&str>) {
        match database {
            None => cx.env.activity = Activity::Paused,
            Some(name) => {
                cx.env.shared.switch(name, |switches| switches.paused = true);
            }
        }
        for id in self.pool_ids_of(database) {
            self.in_pool(cx, id, |pool, cx| {
                if database.is_some() {
                    pool.state.set_paused(true);
                }
                for server in pool.idle_servers() {
                    pool.close_server(cx, server, "pause mode", CloseMode::Flush);
                }
            });
        }
    }

    fn resume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: Option<&str>) {
        let mut suspended = false;
        match database {
            Some(name) => {
                cx.env.shared.switch(name, |switches| switches.paused = false);
            }
            None => {
                suspended = cx.env.activity == Activity::Suspended;
                self.suspended_by = None;
                cx.env.activity = Activity::Active;
            }
        }
        for id in self.pool_ids_of(database) {
            self.in_pool(cx, id, |pool, _| {
                if database.is_some() {
                    pool.state.set_paused(false);
                }
                pool.notice();
            });
        }
        if suspended {
            self.unsuspend(cx);
        }
    }

    pub(crate) fn resume_by_signal<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let line = match cx.env.activity {
            Activity::Active => "got SIGUSR2, but not paused/suspended",
            Activity::Paused => "got SIGUSR2, continuing from PAUSE",
            Activity::Suspended => "got SIGUSR2, continuing from SUSPEND",
        };
        if cx.env.worker.0 == 0 {
            cx.log(Level::Log, line);
        }
        if cx.env.activity != Activity::Active {
            self.resume(cx, None);
        }
    }

    fn suspend<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        cx.env.activity = Activity::Suspended;
        let unpooled: Vec<UnpooledId> = self.unpooled.keys().collect();
        for id in unpooled {
            if self.unpooled[id].console().is_none() {
                self.pause_unpooled(cx, id);
            }
        }
        self.for_pools(cx, |pool, cx| {
            let clients: Vec<ClientId> = pool.clients.keys().collect();
            clients.into_iter().for_each(|id| pool.pause_client(cx, id));
        });
    }

    fn unsuspend<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let unpooled: Vec<UnpooledId> = self.unpooled.keys().collect();
        for id in unpooled {
            self.unpause_unpooled(cx, id);
        }
        self.for_pools(cx, |pool, cx| {
            let clients: Vec<ClientId> = pool.clients.keys().collect();
            clients.into_iter().for_each(|id| pool.client_unpause(cx, id));
        });
    }

    /// Marks servers to be closed at their next rest; free ones and those that log in go at once. The machine forgets what it
    /// knew of the servers' parameters.
    pub(crate) fn reconnect<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        database: Option<&str>,
        reason: &'static str,
    ) {
        for id in self.pool_ids_of(database) {
            self.in_pool(cx, id, |pool, cx| pool.recycle_pool(cx, reason));
        }
    }

    fn kill<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: Option<&str>) {
        if let Some(name) = database {
            cx.env.shared.switch(name, |switches| switches.paused = true);
        }
        for id in self.pool_ids_of(database) {
            let name = Arc::clone(&self.pools[id].state.database);
            cx.env.shared.switch(&name, |switches| switches.paused = true);
            self.empty_pool(cx, id);
        }
    }

    /// Disconnects a pool's clients and servers, and forgets the pool.
    fn empty_pool<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: PoolId) {
        self.in_pool(cx, id, |pool, cx| {
            let clients: Vec<ClientId> = pool.clients.keys().collect();
            for client in clients {
                pool.refuse_client(cx, client, &Fault::DatabaseRemoved);
            }
        });
        self.drop_pool(cx, id, "database removed");
    }

    fn kill_client<D: Driver>(&mut self, cx: &mut Cx<'_, D>, serial: u64) -> Outcome {
        let unpooled = self.unpooled.iter().find(|(_, client)| client.serial == serial).map(|(id, _)| id);
        if let Some(id) = unpooled {
            self.refuse_unpooled(cx, id, &Fault::ForcedDisconnect);
        }
        let pooled = self.pools.iter().find_map(|(pool, members)| {
            let (id, _) = members.clients.iter().find(|(_, client)| client.serial == serial)?;
            Some((pool, id))
        });
        if let Some((pool, id)) = pooled {
            self.in_pool(cx, pool, |pool, cx| pool.refuse_client(cx, id, &Fault::ForcedDisconnect));
        }
        Outcome::Sums(vec![("killed", u64::from(unpooled.is_some() || pooled.is_some()))])
    }

    /// Follows a new configuration: pools follow it, servers that were made by other rules are recycled, and clients of removed databases
    /// get an error.
    pub(crate) fn follow_rules<D: Driver>(&mut self, cx: &mut Cx<'_, D>, rules: Rules) {
        let old = std::mem::replace(&mut cx.env.rules, rules);
        let config = Arc::clone(&cx.env.rules.config);
        let tls_changed = old.server_tls_epoch != cx.env.rules.server_tls_epoch;
        let diff = old.config.diff(&config);
        cx.env.measured.sampler = Sampler::new(&config.main);
        // A shorter period begins at once.
        self.stats_us =
            self.stats_us.min(cx.env.now.mono_us + crate::worker::maintenance::stats_period_us(&config));
        cx.env.measured.stats.resize(crate::pool::show::measure::share_bytes(&config.main, &cx.env.shared));
        let is_removed = |name: &str| diff.removed.iter().any(|other| other == name);
        cx.env.shared.keep_switches(|name| config.database(name).is_some() && !is_removed(name));
        for id in self.pool_ids_of(None) {
            let name = Arc::clone(&self.pools[id].state.database);
            // A name that `*` stands for now, or did before, is another database than the one that has this entry.
            let is_named = |names: &[String]| names.iter().any(|other| **other == *name);
            let Some(database) = config.database(&name).filter(|_| !is_removed(&name)) else {
                self.empty_pool(cx, id);
                continue;
            };
            let recycled = is_among(&diff.recycled, &config, &name) || is_named(&diff.added);
            self.in_pool(cx, id, |pool, cx| {
                pool.state.config = Arc::new(database.into_owned());
                let before = pool.state.policy;
                pool.state.follow(&config);
                warn_of_lost_sessions(cx, &pool.state, before.mode);
                let notes_otherwise = before.session_notes() != pool.state.policy.session_notes();
                pool.state.join_cluster(cx.env);
                // PgBouncer's words for TLS, too.
                if recycled || tls_changed || notes_otherwise {
                    pool.recycle_pool(cx, "database configuration changed");
                }
                pool.place_again(cx);
            });
        }
        self.follow_cache(cx, &old.config);
        self.follow_clusters(cx);
        self.follow_databases(cx);
    }

    /// The query cache follows a new configuration.
    fn follow_cache<D: Driver>(&mut self, cx: &mut Cx<'_, D>, old: &Config) {
        let config = Arc::clone(&cx.env.rules.config);
        let new = QueryCache::of(&config, &cx.env.shared);
        let said = |config: &Config| {
            let main = &config.main;
            (main.query_cache, main.query_cache_ttl_ms, main.query_cache_max_answer, main.query_cache_bytes)
        };
        if old.cache != config.cache || said(old) != said(&config) {
            cx.env.measured.stats.forget_kept();
        }
        if let (Some(cache), Some(_)) = (cx.env.cache.as_deref_mut(), &new) {
            cache.follow(&config, &cx.env.shared);
        } else if cx.env.cache.is_some() || new.is_some() {
            cx.env.cache = new;
            cx.env.followed.forget_analyses();
            self.for_pools(cx, |pool, _| pool.begin_caching());
        }
    }

    /// CACHE PURGE.
    fn purge_cache<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: Option<&str>) {
        for id in self.pool_ids_of(database) {
            self.in_pool(cx, id, |pool, cx| pool.purge_known(cx.env));
        }
    }

    /// Goes on serving clients, because there is no successor left to hand over to.
    pub(crate) fn serve_on(&mut self, env: &mut Env) {
        if env.stopping == Some(Shutdown::HandOver) {
            env.stopping = Some(Shutdown::WaitForClients);
        }
    }

    /// Begins a shutdown, or makes it more urgent.
    pub(crate) fn begin_stopping<D: Driver>(&mut self, cx: &mut Cx<'_, D>, kind: Shutdown) {
        if cx.env.stopping.is_some_and(|present| urgency(present) >= urgency(kind)) {
            return;
        }
        if cx.env.stopping.is_none() {
            self.stopping_us = cx.env.now.mono_us;
        }
        cx.env.stopping = Some(kind);
        self.said_drained = false;
        // Unix sockets stay, for the console.
        if kind != Shutdown::Now {
            cx.driver.stop_listening();
        }
        if cx.env.activity == Activity::Suspended {
            // A suspended client is not read and cannot finish the work that the shutdown waits for.
            self.resume(cx, None);
        }
        if kind != Shutdown::WaitForServers {
            return;
        }
        self.for_pools(cx, |pool, cx| {
            let waits = |client: &Client| matches!(client.state, ClientState::AwaitingServer(_));
            let logging_in = pool.clients.iter().filter(|(_, client)| waits(client));
            let logging_in: Vec<ClientId> = logging_in.map(|(id, _)| id).collect();
            for id in logging_in {
                pool.refuse_client(cx, id, &Fault::ServerShuttingDown);
            }
        });
        self.for_pools(cx, |pool, cx| {
            pool.refuse_lookups(cx, Obstacle::ShuttingDown);
            // The servers that are there serve what clients asked for before this.
            pool.hand_out(cx);
        });
    }

    /// Reports to the control plane, once, that nothing is left for which the shutdown waits.
    pub(crate) fn check_stopping<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let done = match cx.env.stopping {
            None | Some(Shutdown::Now) => return,
            Some(Shutdown::WaitForServers) => {
                let waited_for = |kind| !matches!(kind, ServerKind::Login | ServerKind::Listening);
                let mut servers = self.pools.values().flat_map(|pool| pool.servers.values());
                !servers.any(|server| waited_for(server.state.kind()))
            }
            // Clients that the process before this one still serves come to the next one through here, and no other way.
            Some(Shutdown::HandOver) if self.awaits_arrivals => false,
            // Clients and servers on their way to a successor come back if that is lost.
            Some(Shutdown::WaitForClients | Shutdown::HandOver) if cx.driver.is_giving() => false,
            Some(Shutdown::WaitForClients | Shutdown::HandOver) => {
                self.unpooled.values().all(|client| client.console().is_some())
                    && self.pools.values().all(|pool| pool.clients.is_empty() && !pool.cancels_abandoned())
            }
        };
        if done && !self.said_drained {
            self.said_drained = true;
            cx.driver.ask(Question::Drained(cx.env.worker));
        }
    }
}

/// Returns the urgency of a shutdown: one that has begun gives way only to a more urgent one.
fn urgency(kind: Shutdown) -> u8 {
    match kind {
        Shutdown::WaitForClients => 0,
        Shutdown::HandOver => 1,
        Shutdown::WaitForServers => 2,
        Shutdown::Now => 3,
    }
}

/// Whether the list of a reload's differences names this database, or the fallback from which it was made.
fn is_among(names: &[String], config: &Config, database: &str) -> bool {
    let listed = config.databases.contains_key(database);
    names.iter().any(|name| name == database || (!listed && name == pgweir_settings::FALLBACK_DATABASE))
}

/// Warns of clients that lose what their sessions hold: in session pooling pgweir does not follow that, so it cannot move with them.
fn warn_of_lost_sessions<D: Driver>(cx: &mut Cx<'_, D>, pool: &PoolState, before: PoolMode) {
    let (clients, mode) = (pool.count.linked, pool.policy.mode);
    if before != PoolMode::Session || mode == PoolMode::Session || clients == 0 {
        return;
    }
    let line = format!(
        "database \"{}\", user \"{}\": pool_mode is no longer session, and {clients} connected clients lose what their sessions \
         hold (settings, prepared statements, temporary tables, channels, locks) with their next transaction",
        pool.database, pool.user
    );
    cx.log(Level::Warning, &line);
}
