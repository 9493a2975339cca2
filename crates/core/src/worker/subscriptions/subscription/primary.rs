//! The changes of a database with a cluster are those of its primary. When another node is the primary, or the same node after a restart, all
//! that was kept is dropped, and the new primary is followed from the start.

use pgweir_settings::Database;

use super::{Phase, RETRY_US_MIN, Subscription, pool};
use crate::cluster::view::{Target, View};
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::pool::cache::wal::News;

impl Subscription {
    /// Prepares the two connections for the present primary. Returns `false` if there is none: the next view is waited for.
    pub(super) fn aim_at_primary(&mut self, env: &Env) -> bool {
        let Some(cluster) = self.options.database.cluster.as_deref() else { return true };
        let Some(target) = env.clusters.views.get(cluster).and_then(|view| view.primary.clone()) else {
            let reason = format!("cluster \"{cluster}\" has no primary");
            self.news.push(News::Ended("off", reason.into()));
            self.due_us = u64::MAX;
            return false;
        };
        let database = at(&target, &self.options.database);
        (self.stream, self.monitor) = (pool(env, &database), pool(env, &database));
        self.primary = Some(target);
        true
    }

    /// Whether the database is one of this cluster, and the connections were opened to another primary than that of the view.
    pub(in crate::worker::subscriptions) fn has_other_primary(&self, view: &View) -> bool {
        self.options.database.cluster.as_deref() == Some(&*view.cluster) && self.primary != view.primary
    }

    /// Leaves the earlier primary. That of the view is followed at the next action.
    pub(in crate::worker::subscriptions) fn follow_view<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        view: &View,
    ) {
        let reason = match view.primary {
            Some(_) => format!("the primary of cluster \"{}\" has changed", view.cluster),
            None => format!("cluster \"{}\" has no primary", view.cluster),
        };
        self.leave(cx, &reason);
        self.primary = None;
        // What failed at the earlier primary says nothing of this one.
        self.retry_us = RETRY_US_MIN;
        if matches!(self.phase, Phase::Off) {
            self.due_us = cx.env.now.mono_us;
        }
    }
}

/// Returns the database's line for this node alone.
fn at(target: &Target, database: &Database) -> Database {
    Database {
        hosts: vec![target.host.to_string()],
        port: target.port,
        cluster: None,
        route: None,
        ..database.clone()
    }
}
