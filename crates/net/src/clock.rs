//! The clock of the data plane. No other code in it reads a clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pgweir_core::driver::Now;

/// An offset of the monotonic time, so that 0 can mean "never".
const MONO_OFFSET_US: u64 = 1_000_000;

/// A clock whose monotonic time starts at its creation. Copies agree, so all workers share one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn mono_us(&self) -> u64 {
        let us = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX - MONO_OFFSET_US);
        us.saturating_add(MONO_OFFSET_US)
    }

    pub(crate) fn now(&self) -> Now {
        // A wall clock before 1970 counts as 1970.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now { mono_us: self.mono_us(), wall_us: u64::try_from(wall.as_micros()).unwrap_or(u64::MAX) }
    }
}
