//! The transactions that a switchover waits for: each worker counts its own and tells the worker that watches the cluster.

use std::sync::Arc;

use pgweir_settings::Config;

use crate::cluster::switchover::Act;
use crate::context::Cx;
use crate::driver::{Driver, WorkerId};
use crate::mail::{Mail, NodePlace, PromoteRequest, Question};
use crate::worker::Worker;
use crate::worker::clusters::Watched;

/// The last number of open transactions that this worker reported for a switchover that drains.
pub(super) struct Draining {
    pub(super) number: u64,
    pub(super) told: Option<u32>,
    /// The time at which open transactions are counted again (monotonic, µs).
    pub(super) due_us: u64,
}

/// The time between two counts of open transactions.
const COUNT_EVERY_US: u64 = 2_000;

impl Worker {
    /// Counts open transactions, and tells the worker that watches the cluster.
    pub(crate) fn count_drains<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
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

    /// Takes the number of transactions that are open at a worker. If no worker has any, the switchover goes on.
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
        match watched.cluster.switchover_drained(number, now_us) {
            Some(Act::AskPatroni { from, to }) => {
                cx.driver.ask(Question::Switchover { cluster: Arc::clone(cluster), number, from, to });
            }
            Some(Act::RunCommand { from, to }) => {
                if let Some(request) = promote_request(watched, &cx.env.rules.config, number, (from, to)) {
                    cx.driver.ask(Question::Promote(Box::new(request)));
                }
            }
            Some(Act::Wait) | None => {}
        }
        self.tell_views(cx);
        self.clusters.rearm(now_us);
    }
}

/// Returns the run of `promote_command` that makes a standby (the second name) the primary instead of the first; `None` if a reload has
/// just taken the setting away.
fn promote_request(
    watched: &Watched,
    config: &Config,
    number: u64,
    (from, to): (Arc<str>, Arc<str>),
) -> Option<PromoteRequest> {
    let cluster = Arc::clone(&watched.cluster.name);
    let options = config.clusters.get(&*cluster)?;
    let command = options.promote_command.clone()?;
    let place = |name: Arc<str>| match watched.cluster.node_named(&name) {
        Some(node) => NodePlace { name, host: Arc::clone(&node.host), port: node.port },
        None => NodePlace { name, host: "".into(), port: 0 },
    };
    let limit = options.promote_command_timeout;
    Some(PromoteRequest { cluster, number, to: place(to), from: place(from), command, limit })
}
