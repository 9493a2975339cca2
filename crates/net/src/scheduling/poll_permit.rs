//! Limits the number of workers that poll at the same time, because PostgreSQL and the clients need
//! processors, too.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The number of processors for which one worker may poll. With fewer than two processors none may.
const PROCESSORS_PER_PERMIT: usize = 4;

/// The permits that no worker holds at the moment.
#[derive(Debug)]
pub(crate) struct PollPermits {
    free: AtomicUsize,
}

/// One worker's permission to poll. Dropping it returns the permit.
#[derive(Debug)]
pub(crate) struct PollPermit(Arc<PollPermits>);

impl PollPermits {
    /// Returns the permits for the processors that this process may use: those it is bound to, within its
    /// group's quota.
    pub(crate) fn for_this_machine() -> PollPermits {
        PollPermits::new(thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }

    fn new(processors: usize) -> PollPermits {
        let most = if processors < 2 { 0 } else { processors.div_ceil(PROCESSORS_PER_PERMIT) };
        PollPermits { free: AtomicUsize::new(most) }
    }

    /// Takes a permit, if one is free.
    pub(crate) fn take(permits: &Arc<PollPermits>) -> Option<PollPermit> {
        let fewer = |free: usize| free.checked_sub(1);
        permits.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).ok()?;
        Some(PollPermit(Arc::clone(permits)))
    }
}

impl Drop for PollPermit {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_processors_are_left_to_others() {
        let most = |processors| PollPermits::new(processors).free.into_inner();
        assert_eq!([1, 2, 4, 5, 8, 64].map(most), [0, 1, 1, 2, 2, 16]);
    }

    #[test]
    fn a_permit_that_is_dropped_is_free_for_another_worker() {
        let permits = Arc::new(PollPermits::new(2));
        let first = PollPermits::take(&permits);
        assert!(first.is_some() && PollPermits::take(&permits).is_none());
        drop(first);
        assert!(PollPermits::take(&permits).is_some());
    }
}
