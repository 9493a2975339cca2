//! The worker's pools by name, and the requests between pools that share a limit.

use std::sync::Arc;

use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver, Level, WorkerId};
use crate::ids::PoolId;
use crate::mail::{Mail, Question, Scarce};
use crate::pool::choose::parts::add_closing_seen;
use crate::pool::{Pool, PoolState};
use crate::shared::places::LimitsSeen;
use crate::stats::rare_path::RarePath;
use crate::worker::Worker;

impl Worker {
    /// Returns the pool of a database and a server user, which is created if there is none; `None` if there is no such database.
    pub(crate) fn pool_for<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        database: &Arc<str>,
        user: &Arc<str>,
    ) -> Option<PoolId> {
        let key = (Arc::clone(database), Arc::clone(user));
        if let Some(&id) = self.pool_names.get(&key) {
            return Some(id);
        }
        let config = Arc::new(cx.env.rules.config.database(database)?.into_owned());
        if !cx.env.rules.config.databases.contains_key(&**database) {
            cx.log(Level::Log, &format!("registered new auto-database: {database}"));
        }
        let counts = (cx.env.shared.database(database), cx.env.shared.user(user));
        let (database, user) = (Arc::clone(database), Arc::clone(user));
        let mut state = PoolState::new(database, user, config, counts, cx.env.now.mono_us);
        state.follow(&cx.env.rules.config);
        state.join_cluster(cx.env);
        state.set_paused(cx.env.shared.switches(&state.database).paused);
        let id = self.pools.insert_with_key(|id| Pool::new(id, state));
        self.pool_names.insert(key, id);
        Some(id)
    }

    /// Marks every pool with waiting clients to be looked at when the tick ends.
    pub(crate) fn notice_starving<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.for_pools(cx, |pool, _| {
            if pool.state.is_starving() {
                pool.notice();
            }
        });
    }

    /// Closes the free server of this database, or user, that idled longest: a pool waits for its place. If this worker has
    /// none, it asks the other workers, one after the other.
    pub(crate) fn evict<D: Driver>(&mut self, cx: &mut Cx<'_, D>, of: Scarce) {
        if self.evict_here(cx, &of) {
            return self.notice_starving(cx);
        }
        if cx.env.shared.workers() > 1 && !self.asked_to_evict.contains(&of) {
            self.asked_to_evict.push(of.clone());
            self.pass_on(cx, Mail::Evict { from: cx.env.worker, of, done: false });
        }
    }

    /// Takes a request to close a free server: another worker's pool needs a place, or a request of this worker came back. A worker that
    /// has a server to close answers; a worker that has none asks the next.
    pub(crate) fn asked_to_evict<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        of: Scarce,
        done: bool,
    ) {
        if from == cx.env.worker {
            self.asked_to_evict.retain(|asked| *asked != of);
            if done {
                self.notice_starving(cx);
            }
            return;
        }
        if self.evict_here(cx, &of) {
            return cx.driver.mail(from, Mail::Evict { from, of, done: true });
        }
        if !self.starving_workers.contains(&from) {
            self.starving_workers.push(from);
        }
        self.pass_on(cx, Mail::Evict { from, of, done: false });
    }

    fn pass_on<D: Driver>(&self, cx: &mut Cx<'_, D>, mail: Mail) {
        cx.driver.mail(WorkerId((cx.env.worker.0 + 1) % cx.env.shared.workers()), mail);
    }

    fn evict_here<D: Driver>(&mut self, cx: &mut Cx<'_, D>, of: &Scarce) -> bool {
        let longest = self.pools.iter().filter_map(|(id, pool)| {
            let (active_us, server) = pool.idle_longest(of)?;
            Some((active_us, id, server))
        });
        let Some((_, pool, server)) = longest.min_by_key(|(active_us, ..)| *active_us) else { return false };
        cx.driver.reached(RarePath::ServerEvicted);
        self.in_pool(cx, pool, |pool, cx| pool.close_server(cx, server, "evicted", CloseMode::Flush));
        true
    }

    /// Follows this process's parts of shared limits, which have changed.
    pub(crate) fn follow_parts<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        self.for_pools(cx, |pool, cx| pool.close_above_part(cx));
        self.notice_starving(cx);
    }

    /// Has the pools that count towards this limit ask PostgreSQL for its processes.
    pub(crate) fn look_at_backends<D: Driver>(&mut self, cx: &mut Cx<'_, D>, number: u64, of: &Scarce) {
        self.for_pools(cx, |pool, cx| {
            for branch in pool.state.branches() {
                let counts = match of {
                    Scarce::User(user) => *user == pool.state.user && branch.is_primary(),
                    Scarce::Database(_) | Scarce::Standby(..) => pool.state.scarce_at(branch) == *of,
                };
                if counts {
                    pool.state.node_at_mut(branch).backends.want(number);
                }
            }
            pool.look_if_due(cx);
        });
    }

    /// Tells the control plane how this worker's pools use limits that several poolers share.
    pub(crate) fn tell_limits_seen<D: Driver>(&self, cx: &mut Cx<'_, D>) {
        if !cx.env.shares_limits() {
            return;
        }
        let mut limits = Vec::new();
        self.pools.values().for_each(|pool| pool.add_limits_seen(cx.env, &mut limits));
        add_closing_seen(cx.env, &mut limits);
        cx.driver.ask(Question::Limits(LimitsSeen { at_us: cx.env.now.mono_us, limits }));
    }

    /// The workers but this one.
    pub(crate) fn other_workers(&self, env: &Env) -> impl Iterator<Item = WorkerId> + use<> {
        let own = env.worker;
        (0..env.shared.workers()).map(WorkerId).filter(move |&worker| worker != own)
    }

    /// Lets a pool act, and notes whether it has work left for the end of the tick. Its requests to other pools are carried out then, too.
    /// Returns `None` if there is no such pool.
    #[inline]
    pub(crate) fn in_pool<D: Driver, R>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: PoolId,
        act: impl FnOnce(&mut Pool, &mut Cx<'_, D>) -> R,
    ) -> Option<R> {
        let pool = self.pools.get_mut(id)?;
        let result = act(pool, cx);
        if pool.has_work() {
            if pool.state.due.lost_listener.is_some() {
                pool.notify_listener_lost(cx);
            }
            if !std::mem::replace(&mut pool.state.due.listed, true) {
                self.noticed.push(id);
            }
        }
        if !pool.state.due.notified.is_empty() && !self.notified.contains(&id) {
            self.notified.push(id);
        }
        Some(result)
    }

    /// Lets every pool act.
    pub(crate) fn for_pools<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        mut act: impl FnMut(&mut Pool, &mut Cx<'_, D>),
    ) {
        let pools: Vec<PoolId> = self.pools.keys().collect();
        for id in pools {
            self.in_pool(cx, id, &mut act);
        }
    }

    pub(crate) fn pools_of<'a>(
        &'a self,
        database: Option<&'a str>,
    ) -> impl Iterator<Item = (PoolId, &'a Pool)> + 'a {
        self.pools.iter().filter(move |(_, pool)| database.is_none_or(|name| *pool.state.database == *name))
    }

    pub(crate) fn pool_ids_of(&self, database: Option<&str>) -> Vec<PoolId> {
        self.pools_of(database).map(|(id, _)| id).collect()
    }
}
