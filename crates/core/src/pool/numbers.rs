//! The numbers that a pool counts for SHOW, the metrics and the dashboard.

use std::sync::Arc;

use crate::pool::multiplex::pipelined::MultiplexStats;
use crate::stats::continuity::Continuity;
use crate::stats::times::Times;
use crate::stats::{Stats, Window};

/// The numbers that a pool counts for SHOW, the metrics and the dashboard.
pub(crate) struct Numbers {
    pub(crate) stats: Stats,
    /// The times of the pool's statements. `None` if the pool never had one.
    pub(crate) times: Option<Box<Times>>,
    /// The number of errors that the pool's clients were sent, by servers or by pgweir.
    pub(crate) errors: u64,
    pub(crate) continuity: Continuity,
    pub(crate) multiplexing: MultiplexStats,
    /// The number of statements when the times were last shown: they are shown again only when there are more.
    pub(crate) shown_queries: Option<u64>,
    /// The counters at the end of the last period, and the time of its end (monotonic, µs).
    snapshot: (Stats, u64),
    /// The times at the end of the last period. Periods without a change share one object.
    times_snapshot: Option<Arc<Times>>,
    times_earlier: Option<Arc<Times>>,
    /// The counters at the end of the period before the last, and the time of its end (monotonic, µs).
    earlier: (Stats, u64),
}

impl Numbers {
    /// Returns numbers that count from this time on (monotonic, µs).
    pub(crate) fn from(now_us: u64) -> Numbers {
        Numbers {
            stats: Stats::default(),
            times: None,
            errors: 0,
            continuity: Continuity::default(),
            multiplexing: MultiplexStats::default(),
            shown_queries: None,
            snapshot: (Stats::default(), now_us),
            times_snapshot: None,
            times_earlier: None,
            earlier: (Stats::default(), now_us),
        }
    }

    /// Ends a period and returns it.
    pub(crate) fn end_period(&mut self, now_us: u64) -> Window {
        let changed =
            self.snapshot.0.queries != self.stats.queries || self.snapshot.0.xacts != self.stats.xacts;
        let times = match &self.times {
            Some(times) if changed => Some(Arc::new((**times).clone())),
            _ => self.times_snapshot.clone(),
        };
        self.times_earlier = std::mem::replace(&mut self.times_snapshot, times);
        self.earlier = std::mem::replace(&mut self.snapshot, (self.stats, now_us));
        self.since(&self.earlier, now_us)
    }

    /// Returns the period for the averages of SHOW STATS: the last whole period, and the part of the present one that is over.
    pub(crate) fn window(&self, now_us: u64) -> Window {
        self.since(&self.earlier, now_us)
    }

    /// Returns the times of that period; `None` for a pool that never had a statement.
    pub(crate) fn recent_times(&self) -> Option<Times> {
        let times = self.times.as_deref()?;
        Some(self.times_earlier.as_deref().map_or_else(|| times.clone(), |earlier| times.since(earlier)))
    }

    fn since(&self, (stats, at_us): &(Stats, u64), now_us: u64) -> Window {
        Window { change: self.stats.since(stats), elapsed_us: now_us.saturating_sub(*at_us) }
    }
}
