//! Ctrl-C as a flag that every wait looks at: what is running is stopped in order, by the guards that own it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::BenchError;

/// How often a wait looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Set once a signal asks the tool to end. Clones share the flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches SIGINT, SIGTERM and SIGHUP from now on: they set the flag and do nothing else.
    ///
    /// # Errors
    /// The system refused the signal handler.
    pub(crate) fn install() -> Result<Self, BenchError> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&interrupt.0))
                .map_err(BenchError::io("catching signals"))?;
        }
        Ok(interrupt)
    }

    /// Sets the flag, as a signal would.
    #[cfg(test)]
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether to end.
    #[must_use]
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// [`BenchError::Interrupted`] if a signal has come.
    ///
    /// # Errors
    /// Only that one.
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        if self.is_raised() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Sleeps, but not past a signal.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`] if a signal has come.
    pub(crate) fn sleep(&self, duration: Duration) -> Result<(), BenchError> {
        let until = Instant::now() + duration;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_interrupt_ends_a_long_sleep() {
        let interrupt = Interrupt::default();
        assert!(interrupt.sleep(Duration::ZERO).is_ok());
        interrupt.clone().raise();
        assert!(matches!(interrupt.sleep(Duration::from_secs(3600)), Err(BenchError::Interrupted)));
    }
}
