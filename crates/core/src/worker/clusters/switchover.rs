//! A switchover as the workers see it: each counts the transactions that are open at its servers, and the worker that watches the cluster goes
//! on when there are none.

use crate::cluster::switchover::{Step, Switchover};
use crate::context::Cx;
use crate::driver::Driver;
use crate::worker::Worker;
use crate::worker::clusters::{Clusters, Watched};

impl Clusters {
    /// Returns the result of this switchover; `None` while it is under way.
    pub(crate) fn switched(&self, cluster: &str, number: u64) -> Option<Result<(), String>> {
        let Some(watched) = self.watched.get(cluster) else {
            return Some(Err(format!("cluster {cluster} is not in the configuration any more")));
        };
        let ended = watched.ended.as_ref().filter(|ended| ended.number == number);
        ended.map(|ended| ended.result.clone())
    }
}

/// The time for which SHOW CLUSTERS shows the reason why a switchover failed.
const ERROR_SHOWN_US: u64 = 3_600_000_000;

impl Watched {
    /// Returns the reason why the last switchover failed, for SHOW CLUSTERS.
    pub(crate) fn switchover_error(&self, now_us: u64) -> Option<String> {
        let is_shown =
            self.cluster.switchover().is_none() && now_us.saturating_sub(self.ended_us) < ERROR_SHOWN_US;
        self.ended.as_ref().filter(|_| is_shown)?.result.clone().err()
    }

    /// Returns the progress of a switchover, for SHOW CLUSTERS; `None` if none is under way.
    pub(crate) fn switchover_text(&self) -> Option<String> {
        let Switchover { to, step, .. } = self.cluster.switchover()?;
        let open: u32 = self.open.values().sum();
        Some(match step {
            Step::Drains { .. } => format!("to {to}: step 2, {open} open transactions may end"),
            Step::Cuts { .. } => format!("to {to}: step 2, {open} open transactions are cut"),
            Step::Patroni { .. } => format!("to {to}: step 3, Patroni switches over"),
            Step::Command { .. } => format!("to {to}: step 3, promote_command runs"),
            Step::Promotion { .. } => format!("to {to}: step 3, stop the primary and promote {to} now"),
        })
    }
}

impl Worker {
    /// Carries out SWITCHOVER. A result of `None` means that there is nothing to wait for: another worker watches the cluster, or a
    /// switchover was canceled.
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

    /// Takes the result of Patroni's switchover or of `promote_command`.
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
