//! The databases whose changes are followed for the query cache (`follow=wal`). One worker reads a database's changes, and tells all workers what
//! it learns (`pool/cache/wal`). Nothing that was kept outlasts a gap in the stream: each beginning is told, and begins with nothing.

mod definitions;
mod questions;
mod spill;
mod subscription;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pgweir_settings::Config;
use slotmap::SlotMap;

use crate::cluster::view::View;
use crate::context::{Cx, Env, Follower, Role};
use crate::driver::Driver;
use crate::ids::{PoolId, ServerId, SubscriptionId};
use crate::mail::{FollowedNews, Mail};
use crate::pool::Pool;
use crate::pool::cache::wal::News;
use crate::pool::server::state::Serves;
use crate::worker::Worker;
use crate::worker::subscriptions::subscription::{Options, Subscription};

/// The databases that a worker follows.
pub(crate) struct Subscriptions {
    followed: SlotMap<SubscriptionId, Subscription>,
    /// The time at which an action is due next (monotonic, µs).
    pub(crate) due_us: u64,
    /// The configuration that was followed last.
    config: Option<Arc<Config>>,
    /// The number that was last given to what is kept from then on.
    last_number: u64,
    /// The number of the last probe that was sent, to any database.
    probes_sent: Arc<AtomicU64>,
}

impl Default for Subscriptions {
    fn default() -> Subscriptions {
        Subscriptions {
            followed: SlotMap::with_key(),
            due_us: u64::MAX,
            config: None,
            last_number: 0,
            probes_sent: Arc::default(),
        }
    }
}

impl Worker {
    /// Follows the configuration: begins and ends subscriptions.
    pub(crate) fn follow_databases<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = Arc::clone(&cx.env.rules.config);
        if self.subscriptions.config.as_ref().is_some_and(|known| Arc::ptr_eq(known, &config)) {
            return;
        }
        self.subscriptions.config = Some(Arc::clone(&config));
        let wanted = |name: &str| Options::of(&config, name);
        let has_changed =
            |known: &Subscription| wanted(&known.database).is_none_or(|options| !known.has_options(&options));
        let gone: Vec<SubscriptionId> = self
            .subscriptions
            .followed
            .iter()
            .filter(|(_, known)| has_changed(known))
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            if let Some(mut known) = self.subscriptions.followed.remove(id) {
                known.end(cx, "the configuration has changed");
                self.tell_followed(cx, &known.database, std::mem::take(&mut known.news));
            }
        }
        for name in config.databases.keys() {
            let Some(options) = wanted(name) else { continue };
            let is_ours = cx.env.shared.follower(name) == cx.env.worker;
            if !is_ours || self.subscriptions.followed.values().any(|known| *known.database == **name) {
                continue;
            }
            let known = Subscription::new(
                cx.env,
                name.as_str().into(),
                options,
                Arc::clone(&self.subscriptions.probes_sent),
            );
            self.subscriptions.followed.insert(known);
        }
        self.rearm_subscriptions(cx.env);
        self.check_subscriptions(cx);
    }

    /// Carries out the actions that are due.
    pub(crate) fn check_subscriptions<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let now_us = cx.env.now.mono_us;
        if self.subscriptions.due_us > now_us {
            // The worker was woken for something else, and has forgotten this time.
            return self.rearm_subscriptions(cx.env);
        }
        let due = self.subscriptions.followed.iter().filter(|(_, known)| known.due_us <= now_us);
        let due: Vec<SubscriptionId> = due.map(|(id, _)| id).collect();
        due.into_iter().for_each(|id| self.act_on_subscription(cx, id));
    }

    /// Lets one of a subscription's connections act, and then the subscription.
    pub(crate) fn in_subscription<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: SubscriptionId,
        which: Follower,
        act: impl FnOnce(&mut Pool, &mut Cx<'_, D>, ServerId),
    ) {
        let Some(known) = self.subscriptions.followed.get_mut(id) else { return };
        let serves = match which {
            Follower::Stream => Serves::Stream,
            Follower::Monitor => Serves::Monitor,
        };
        let pool = known.pool_mut(serves);
        let Some(server) = pool.servers.keys().next() else { return };
        act(pool, cx, server);
        self.act_on_subscription(cx, id);
    }

    /// Follows a view of a cluster: its databases are followed at the primary that the view names.
    pub(crate) fn follow_primary<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &View) {
        let concerned = self.subscriptions.followed.iter().filter(|(_, known)| known.has_other_primary(view));
        let concerned: Vec<SubscriptionId> = concerned.map(|(id, _)| id).collect();
        for id in concerned {
            if let Some(known) = self.subscriptions.followed.get_mut(id) {
                known.follow_view(cx, view);
                self.act_on_subscription(cx, id);
            }
        }
    }

    fn act_on_subscription<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: SubscriptionId) {
        let Subscriptions { followed, last_number, .. } = &mut self.subscriptions;
        let Some(known) = followed.get_mut(id) else { return };
        known.act(cx, last_number);
        for (conn, serves) in std::mem::take(&mut known.opened) {
            let which = if serves == Serves::Stream { Follower::Stream } else { Follower::Monitor };
            cx.env.set_role(conn, Role::Follower(id, which));
        }
        let (database, news) = (Arc::clone(&known.database), std::mem::take(&mut known.news));
        self.tell_followed(cx, &database, news);
        self.rearm_subscriptions(cx.env);
    }

    fn rearm_subscriptions(&mut self, env: &mut Env) {
        let due = self.subscriptions.followed.values().map(|known| known.due_us);
        self.subscriptions.due_us = due.min().unwrap_or(u64::MAX);
        if self.subscriptions.due_us != u64::MAX {
            env.wake_at(self.subscriptions.due_us);
        }
    }

    /// Tells all workers, this one included, the news of a database.
    fn tell_followed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: &Arc<str>, news: Vec<News>) {
        if news.is_empty() {
            return;
        }
        let news: Arc<[News]> = news.into();
        for worker in self.other_workers(cx.env) {
            let told = FollowedNews { database: Arc::clone(database), news: Arc::clone(&news) };
            cx.driver.mail(worker, Mail::Followed(told));
        }
        self.take_followed(cx, database, &news);
    }

    /// Takes news of a database that a worker follows.
    pub(crate) fn take_followed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        database: &Arc<str>,
        news: &[News],
    ) {
        let now_us = cx.env.now.mono_us;
        news.iter().for_each(|news| cx.env.followed.take(database, news, now_us));
        if let Some(cache) = cx.env.cache.as_deref_mut() {
            cache.store.set_other_bytes(cx.env.followed.key_bytes());
        }
        if news.iter().any(|news| matches!(news, News::Settings)) {
            for id in self.pool_ids_of(Some(database)) {
                self.in_pool(cx, id, |pool, cx| pool.leave_old_settings(cx));
            }
        }
        let decides = |news: &News| !matches!(news, News::Stamp(..) | News::Changed(..));
        if news.iter().any(decides) {
            self.resume_awaiting(cx, Some(database));
            self.judge_suspects(cx, database);
        }
    }

    /// Looks again at the kept answers of a database that differ from a server's.
    fn judge_suspects<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: &str) {
        let pools = self.pools_of(Some(database));
        let suspected = pools.filter(|(_, pool)| !pool.state.cache.suspects.is_empty());
        let suspected: Vec<PoolId> = suspected.map(|(id, _)| id).collect();
        for id in suspected {
            self.in_pool(cx, id, |pool, cx| pool.judge_suspects(cx));
        }
    }

    /// Looks again at the statements of clients that wait for a probe: of a database's pools, or of all.
    pub(crate) fn resume_awaiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: Option<&str>) {
        let waiting = self.pools_of(database).filter(|(_, pool)| !pool.state.cache.await_probe.is_empty());
        let waiting: Vec<PoolId> = waiting.map(|(id, _)| id).collect();
        for id in waiting {
            self.in_pool(cx, id, |pool, cx| {
                pool.end_probe_waits();
                pool.resume_released(cx);
            });
        }
    }

    /// A worker's server of a database is another PostgreSQL server than the one that is followed: the address has another server now.
    pub(crate) fn other_node<D: Driver>(&mut self, cx: &mut Cx<'_, D>, database: &Arc<str>) {
        let follower = cx.env.shared.follower(database);
        if follower != cx.env.worker {
            return cx.driver.mail(follower, Mail::OtherNode(Arc::clone(database)));
        }
        let known = self.subscriptions.followed.values_mut().find(|known| known.database == *database);
        if let Some(known) = known {
            known.leave(cx, "servers of the database are different PostgreSQL servers");
            let news = std::mem::take(&mut known.news);
            self.tell_followed(cx, database, news);
            self.rearm_subscriptions(cx.env);
        }
    }

    /// Clients of a worker ask for answers of a database: the worker that follows it asks for a probe.
    pub(crate) fn want_probe<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        database: &Arc<str>,
        is_awaited: bool,
    ) {
        let follower = cx.env.shared.follower(database);
        if follower != cx.env.worker {
            return cx.driver.mail(follower, Mail::WantProbe { database: Arc::clone(database), is_awaited });
        }
        let known = self.subscriptions.followed.iter_mut().find(|(_, known)| known.database == *database);
        if let Some((id, known)) = known {
            known.want_probe(is_awaited);
            self.act_on_subscription(cx, id);
        }
    }
}
