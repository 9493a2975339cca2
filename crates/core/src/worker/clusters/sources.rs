//! What the sources of clusters say: the control plane asks them, and the worker that watches a cluster takes their word.

use crate::cluster::source::SourceReport;
use crate::context::Cx;
use crate::driver::Driver;
use crate::worker::Worker;

impl Worker {
    /// Takes the result of an inquiry to a source. The control plane sends it to all workers; only the one that watches the cluster uses
    /// it.
    pub(crate) fn take_source<D: Driver>(&mut self, cx: &mut Cx<'_, D>, report: &SourceReport) {
        let Some(watched) = self.clusters.watched.get_mut(&report.cluster) else { return };
        let had = watched.cluster.serving().map(|node| node.id);
        if watched.cluster.take_source(report, cx.env.now.mono_us).is_some() {
            watched.follow(cx.env);
            self.follow_nodes(cx);
        }
        let Some(watched) = self.clusters.watched.get(&report.cluster) else { return };
        let has = watched.cluster.serving().map(|node| node.id);
        self.tell_views(cx);
        if had != has {
            // Another node may be the primary.
            self.hurry_checks(cx.env, &report.cluster, false);
        }
        self.clusters.rearm(cx.env.now.mono_us);
    }
}
