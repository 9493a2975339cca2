//! Samples all workers a few times per second and before each scrape, and keeps the model up to date.

use std::rc::Rc;
use std::time::Instant;

use pgweir_core::limits::POOLS_SHOWN_MAX;
use pgweir_core::snapshot::{PoolSnapshot, Snapshot, SnapshotRequest, WorkerSnapshot};
use tokio::time::{MissedTickBehavior, interval};

use super::WebState;
use super::limits::{LOOKS_PER_STEP, POOLS_LOOKED_AT_OFTEN_MAX, STEP};
use super::process::Process;
use super::worker_rpc::Late;

/// Samples until the process ends.
pub(super) async fn run(web: Rc<WebState>) {
    let mut clock = interval(STEP / LOOKS_PER_STEP);
    clock.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for look in (0..LOOKS_PER_STEP).cycle() {
        clock.tick().await;
        let ends_step = look == 0;
        if !ends_step {
            let few = web.model.borrow().pools().count() <= POOLS_LOOKED_AT_OFTEN_MAX;
            if few {
                // A sample that fails is missing in an average.
                let _ = web.refresh_workers().await;
            }
            continue;
        }
        let answered = web.refresh().await.is_ok();
        if answered {
            web.model.borrow_mut().end_second();
        }
        // A change that is missed here is found by the next sample.
        let _ = web.look_at_clusters().await;
        web.sampled.send_modify(|number| *number += 1);
    }
}

impl WebState {
    /// Updates the model. All requests that arrive while a sample is being taken share the next one.
    pub(super) async fn refresh(&self) -> Result<(), Late> {
        self.look(Process::read).await
    }

    /// Updates the model except for the system's numbers, which may take milliseconds to read.
    async fn refresh_workers(&self) -> Result<(), Late> {
        let known = self.model.borrow().process;
        self.look(move || known).await
    }

    async fn look(&self, process: impl FnOnce() -> Process) -> Result<(), Late> {
        let asked = Instant::now();
        let _turn = self.sampling.lock().await;
        // While this request waited for its turn, another one took a sample that is new enough.
        if self.model.borrow().sampled_at().is_some_and(|at| at >= asked) {
            return Ok(());
        }
        let began = Instant::now();
        let (mut workers, mut pools) = (Vec::new(), Vec::new());
        for worker in self.worker_rpc.workers() {
            let (seen, its_pools) = self.look_at_pools(worker).await?;
            workers.push(seen);
            pools.extend(its_pools);
        }
        self.model.borrow_mut().take(began, workers, pools, self.worker_rpc.loads(), process());
        Ok(())
    }

    async fn look_at_pools(
        &self,
        worker: pgweir_core::driver::WorkerId,
    ) -> Result<(WorkerSnapshot, Vec<PoolSnapshot>), Late> {
        let (mut about, mut all) = (None, Vec::new());
        loop {
            let look = SnapshotRequest::Pools { skip: all.len(), limit: POOLS_SHOWN_MAX };
            let Snapshot::Pools { worker, pools, more } = self.worker_rpc.look(worker, look).await? else {
                return Err(Late);
            };
            about = about.or(worker);
            all.extend(pools);
            if !more {
                return about.map(|about| (*about, all)).ok_or(Late);
            }
        }
    }
}
