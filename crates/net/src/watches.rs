//! The number of workers that may look for more instead of sleeping at the same time: the processors are there for PostgreSQL and for the
//! clients, too.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// For so many processors one worker may be awake; for fewer than two none.
const PROCESSORS_PER_WATCH: usize = 4;

/// The watches that no worker keeps now.
#[derive(Debug)]
pub(crate) struct Watches {
    free: AtomicUsize,
}

/// One worker's watch; it ends with this.
#[derive(Debug)]
pub(crate) struct Watch(Arc<Watches>);

impl Watches {
    /// As many as go with the processors that this process may use: those it is bound to, within its group's quota.
    pub(crate) fn for_this_machine() -> Watches {
        Watches::new(thread::available_parallelism().map_or(1, NonZeroUsize::get))
    }

    fn new(processors: usize) -> Watches {
        let most = if processors < 2 { 0 } else { processors.div_ceil(PROCESSORS_PER_WATCH) };
        Watches { free: AtomicUsize::new(most) }
    }

    /// `true` when another worker may be awake.
    pub(crate) fn is_free(&self) -> bool {
        self.free.load(Ordering::Relaxed) > 0
    }

    /// A watch, if one is free.
    pub(crate) fn take(watches: &Arc<Watches>) -> Option<Watch> {
        let fewer = |free: usize| free.checked_sub(1);
        watches.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).ok()?;
        Some(Watch(Arc::clone(watches)))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_processors_are_left_to_others() {
        let most = |processors| Watches::new(processors).free.into_inner();
        assert_eq!([1, 2, 4, 5, 8, 64].map(most), [0, 1, 1, 2, 2, 16]);
    }

    #[test]
    fn a_watch_that_ends_is_free_for_another_worker() {
        let watches = Arc::new(Watches::new(2));
        let first = Watches::take(&watches);
        assert!(first.is_some() && !watches.is_free() && Watches::take(&watches).is_none());
        drop(first);
        assert!(watches.is_free() && Watches::take(&watches).is_some());
    }
}
