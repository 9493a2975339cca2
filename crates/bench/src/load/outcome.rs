//! What a load measured.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// Latencies above this are counted as this: ten minutes, in microseconds.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Kinds of errors that are told apart.
const ERRORS_MAX: usize = 20;

/// Latencies in microseconds, to three digits.
#[derive(Clone, Debug)]
pub(crate) struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("bounds and digits are in range"))
    }
}

impl Latency {
    /// Counts one.
    pub(crate) fn record_us(&mut self, us: u64) {
        self.0.saturating_record(us.clamp(1, LATENCY_MAX_US));
    }

    /// The latency that this share (0 to 1) did not exceed, milliseconds; `None` without any.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "at most ten minutes in microseconds")]
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64 / 1000.0)
    }

    /// The mean, milliseconds; `None` without any.
    #[must_use]
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1000.0)
    }

    /// The number of values that were counted.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the same bounds");
    }
}

/// What a load, or a thread of it, measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// How long it ran.
    pub(crate) elapsed: Duration,
    /// Transactions that succeeded.
    pub(crate) done: u64,
    /// Transactions that met an error or lost their connection.
    pub(crate) failed: u64,
    /// Transactions that had begun, or (open loop) were to begin, and were not answered at the end. Their latency until
    /// then is counted: it is at least that.
    pub(crate) unfinished: u64,
    /// Clients that were not let in at the beginning.
    pub(crate) refused: u64,
    /// Of those that succeeded (and of the unfinished), from when each was to begin.
    pub(crate) latency: Latency,
    /// The same for each kind of transaction of the mix.
    pub(crate) by_script: Vec<Latency>,
    /// From dialing to being let in.
    pub(crate) connecting: Latency,
    /// How much later than planned the generator itself began transactions though a client was free (open loop).
    pub(crate) lateness: Latency,
    /// What went wrong, and how often.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Outcome {
    pub(super) fn new(scripts: usize) -> Self {
        Self { by_script: vec![Latency::default(); scripts], ..Self::default() }
    }

    /// Transactions a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
    pub(crate) fn tps(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub(super) fn error(&mut self, text: &str) {
        if self.errors.len() < ERRORS_MAX || self.errors.contains_key(text) {
            *self.errors.entry(text.to_owned()).or_default() += 1;
        } else {
            *self.errors.entry("others".to_owned()).or_default() += 1;
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.elapsed = self.elapsed.max(other.elapsed);
        self.done += other.done;
        self.failed += other.failed;
        self.unfinished += other.unfinished;
        self.refused += other.refused;
        self.latency.add(&other.latency);
        self.by_script.resize_with(self.by_script.len().max(other.by_script.len()), Latency::default);
        for (ours, theirs) in self.by_script.iter_mut().zip(&other.by_script) {
            ours.add(theirs);
        }
        self.connecting.add(&other.connecting);
        self.lateness.add(&other.lateness);
        for (text, count) in &other.errors {
            *self.errors.entry(text.clone()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_add_up() {
        let mut first = Outcome::new(2);
        first.latency.record_us(1000);
        first.by_script[1].record_us(1000);
        (first.done, first.elapsed) = (1, Duration::from_secs(1));
        first.error("x");
        let mut all = Outcome::default();
        all.add(&first);
        all.add(&first);
        assert_eq!((all.done, all.latency.count(), all.by_script[1].count()), (2, 2, 2));
        assert_eq!(all.errors["x"], 2);
        assert!((all.tps() - 2.0).abs() < 1e-9);
        assert!((all.latency.quantile_ms(0.5).expect("two") - 1.0).abs() < 0.01);
    }

    #[test]
    fn kinds_of_errors_are_bounded() {
        let mut outcome = Outcome::new(1);
        for number in 0..100 {
            outcome.error(&number.to_string());
        }
        assert_eq!(outcome.errors.len(), ERRORS_MAX + 1);
        assert_eq!(outcome.errors.values().sum::<u64>(), 100);
    }
}
