//! A switchover as the workers see it: each counts the transactions that are open at its servers, and the worker that watches the cluster goes
//! on when there are none.

use std::sync::Arc;

use crate::cluster::switchover::{Act, Drain, Step, Switchover};
use crate::cluster::view::View;
use crate::context::Cx;
use crate::driver::{Driver, WorkerId};
use crate::mail::{Mail, Question};
use crate::worker::Worker;
use crate::worker::clusters::{Clusters, Watched};

/// Open transactions are counted so often.
const COUNT_EVERY_US: u64 = 2_000;

/// What a worker has said of the transactions that are open at it.
pub(crate) struct Draining {
    number: u64,
    told: Option<u32>,
    /// When they are counted again (monotonic, µs).
    pub(crate) due_us: u64,
}

impl Clusters {
    /// How this switchover ended, if it has.
    pub(crate) fn switched(&self, cluster: &str, number: u64) -> Option<Result<(), String>> {
        let Some(watched) = self.watched.get(cluster) else {
            return Some(Err(format!("cluster {cluster} is not in the configuration any more")));
        };
        let ended = watched.ended.as_ref().filter(|ended| ended.number == number);
        ended.map(|ended| ended.result.clone())
    }
}

impl Watched {
    /// What a switchover is at, for SHOW.
    pub(crate) fn switchover_text(&self) -> Option<String> {
        let Switchover { to, step, .. } = self.cluster.switchover()?;
        let open: u32 = self.open.values().sum();
        Some(match step {
            Step::Drains { .. } => format!("to {to}: step 2, {open} open transactions may end"),
            Step::Cuts { .. } => format!("to {to}: step 2, {open} open transactions are cut"),
            Step::Patroni { .. } => format!("to {to}: step 3, Patroni switches over"),
            Step::Promotion { .. } => format!("to {to}: step 3, stop the primary and promote {to} now"),
        })
    }
}

impl Worker {
    /// SWITCHOVER. `None` as the result: nothing is to be waited for here.
    pub(crate) fn begin_switchover<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        name: &str,
        to: Option<&str>,
        force: bool,
    ) -> Result<Option<u64>, String> {
        let Some(watched) = self.clusters.watched.get_mut(name) else { return Ok(None) };
        let now_us = cx.env.now.mono_us;
        let number = match to {
            None => watched.cluster.cancel_switchover(now_us).map(|()| None),
            Some(to) => {
                watched.open.clear();
                watched.cluster.begin_switchover(to, force, now_us).map(Some)
            }
        }?;
        self.tell_views(cx);
        self.clusters.rearm(now_us);
        self.hurry_checks(cx.env, name, false);
        Ok(number)
    }

    /// The view says whether open transactions are waited for.
    pub(super) fn follow_drain<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &Arc<View>) {
        let Some(Drain { number, cuts }) = view.drain else {
            self.clusters.drains.remove(&view.cluster);
            return;
        };
        let draining = self.clusters.drains.entry(Arc::clone(&view.cluster));
        let draining = draining.or_insert(Draining { number, told: None, due_us: 0 });
        if draining.number != number {
            *draining = Draining { number, told: None, due_us: 0 };
        }
        if cuts {
            self.for_pools(cx, |pool, cx| pool.cut_open(cx, &view.cluster));
        }
        // In this turn: what was taken in before the view is counted after it.
        self.clusters.due_us = 0;
    }

    /// Counts open transactions, and tells the worker that watches the cluster.
    pub(super) fn count_drains<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let now_us = cx.env.now.mono_us;
        let due = self.clusters.drains.iter().filter(|(_, draining)| draining.due_us <= now_us);
        let due: Vec<Arc<str>> = due.map(|(cluster, _)| Arc::clone(cluster)).collect();
        for cluster in due {
            let open: u32 = self.pools.values().map(|pool| pool.open_transactions(&cluster)).sum();
            let Some(draining) = self.clusters.drains.get_mut(&cluster) else { continue };
            draining.due_us = now_us.saturating_add(COUNT_EVERY_US);
            if draining.told == Some(open) {
                continue;
            }
            draining.told = Some(open);
            let (number, from) = (draining.number, cx.env.worker);
            let watcher = cx.env.shared.watcher(&cluster);
            if watcher == from {
                self.count_open(cx, &cluster, number, from, open);
            } else {
                cx.driver.mail(watcher, Mail::OpenTransactions { cluster, number, from, open });
            }
        }
    }

    /// So many transactions are open at a worker. When none is anywhere, the switchover goes on.
    pub(crate) fn count_open<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        cluster: &Arc<str>,
        number: u64,
        from: WorkerId,
        open: u32,
    ) {
        let now_us = cx.env.now.mono_us;
        let Some(watched) = self.clusters.watched.get_mut(cluster) else { return };
        if watched.cluster.switchover().is_none_or(|switchover| switchover.number != number) {
            return;
        }
        watched.open.insert(from, open);
        let all = watched.open.len() >= usize::from(cx.env.shared.workers());
        if !all || watched.open.values().any(|open| *open > 0) {
            return;
        }
        if let Some(Act::AskPatroni { from, to }) = watched.cluster.switchover_drained(number, now_us) {
            cx.driver.ask(Question::Switchover { cluster: Arc::clone(cluster), number, from, to });
        }
        self.tell_views(cx);
        self.clusters.rearm(now_us);
    }

    /// Patroni has answered.
    pub(crate) fn switched<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        cluster: &str,
        number: u64,
        result: &Result<(), String>,
    ) {
        let now_us = cx.env.now.mono_us;
        let Some(watched) = self.clusters.watched.get_mut(cluster) else { return };
        watched.cluster.switchover_answered(number, result, now_us);
        self.tell_views(cx);
        self.clusters.rearm(now_us);
        self.hurry_checks(cx.env, cluster, false);
    }
}
