//! Signals that ask a command to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Whether the user wants this process to end.
#[derive(Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on a signal does not end the process, but is seen here, so that what was begun can be undone.
    pub(super) fn catch() -> Interrupt {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Without it the process ends as usual, and the next call cleans up.
            let _ = signal_hook::flag::register(signal, Arc::clone(&interrupt.0));
        }
        interrupt
    }

    /// Returns `true` if a signal has come since the last call.
    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }

    /// # Errors
    /// A signal has come.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.0.load(Ordering::Relaxed) { Err("interrupted".to_owned()) } else { Ok(()) }
    }

    /// The same as a signal, for tests.
    #[cfg(test)]
    pub(super) fn come(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
