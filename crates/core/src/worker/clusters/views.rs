//! What each worker knows of a cluster: the worker that watches it tells the others, and the pools follow. A view counts in all workers from
//! the moment at which it is told (`Shared::tell_view`); the mail only wakes the others.

use std::sync::Arc;

use crate::cluster::switchover::Drain;
use crate::cluster::view::View;
use crate::context::Cx;
use crate::driver::Driver;
use crate::mail::{Mail, Question};
use crate::worker::Worker;
use crate::worker::clusters::drain::Draining;

impl Worker {
    /// Tells all workers what has changed.
    pub(crate) fn tell_views<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let mut changed = Vec::new();
        for watched in self.clusters.watched.values_mut() {
            for remark in watched.cluster.take_remarks() {
                cx.log(remark.level, &remark.text);
            }
            if let Some(ended) = watched.cluster.take_ended() {
                (watched.ended, watched.ended_us) = (Some(ended), cx.env.now.mono_us);
            }
            let hurries = watched.cluster.source().is_some() && watched.cluster.hurries();
            if hurries != watched.source_hurries {
                watched.source_hurries = hurries;
                let cluster = Arc::clone(&watched.cluster.name);
                cx.driver.ask(Question::HurrySource { cluster, hurries });
            }
            let view = watched.cluster.view();
            if watched.told.as_deref() != Some(&view) {
                let view = Arc::new(view);
                watched.told = Some(Arc::clone(&view));
                changed.push(view);
            }
        }
        if changed.is_empty() {
            return;
        }
        changed.iter().for_each(|view| cx.env.shared.tell_view(view));
        for worker in self.other_workers(cx.env) {
            cx.driver.mail(worker, Mail::Views);
        }
        self.take_views(cx);
    }

    /// Takes the views of clusters that were told; the pools follow those that are new here.
    #[cold]
    pub(crate) fn take_views<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        // First the number: a view that is told in between is taken twice, and not left out.
        cx.env.clusters.views_taken = cx.env.shared.views_told();
        for view in cx.env.shared.views() {
            let known = cx.env.clusters.views.get(&view.cluster);
            let is_new = known.is_none_or(|known| !Arc::ptr_eq(known, &view));
            // A worker may not have heard yet that a cluster is there, or is gone.
            if is_new && cx.env.rules.config.clusters.contains_key(&*view.cluster) {
                self.take_view(cx, &view);
            }
        }
    }

    /// Takes a changed view of a cluster; the cluster's pools follow it.
    fn take_view<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &Arc<View>) {
        cx.env.clusters.views.insert(Arc::clone(&view.cluster), Arc::clone(view));
        self.for_pools(cx, |pool, cx| pool.follow_view(cx, view));
        self.follow_primary(cx, view);
        self.follow_drain(cx, view);
        self.check_commands(cx);
    }

    /// The view says whether open transactions are waited for.
    pub(crate) fn follow_drain<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &Arc<View>) {
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
}
