//! Distributions of durations: counts in buckets that grow wider with the value, so that a quantile is exact to about six per cent whatever
//! its size. The size is fixed; recording is an index and an addition.

/// Values below this have a bucket each.
const EXACT: u64 = 8;
/// The number of buckets of equal width into which each doubling above [`EXACT`] is divided.
const STEPS: u64 = 8;
const STEPS_LOG2: u32 = 3;
/// The exponent of the highest doubling that has its own buckets: up to 2^31 µs, 36 minutes.
const TOP_LOG2: u32 = 30;

/// The number of buckets; the last one also counts all longer durations.
const BUCKETS: usize = (EXACT + STEPS * (TOP_LOG2 - STEPS_LOG2 + 1) as u64) as usize;

/// Counts of durations in microseconds, by size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum_us: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS], sum_us: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    #[inline]
    pub fn record(&mut self, us: u64) {
        self.counts[bucket(us)] += 1;
        self.sum_us = self.sum_us.wrapping_add(us);
    }

    /// Counts this number of durations of zero, which are not worth a call each.
    pub fn record_zeros(&mut self, count: u64) {
        self.counts[0] += count;
    }

    /// The number of durations that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all durations, in microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// Whether no duration was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Returns the average, in microseconds; `None` if no duration was counted.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum_us as f64 / count as f64)
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Histogram) {
        for (own, their) in self.counts.iter_mut().zip(&other.counts) {
            *own += their;
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// Returns the durations that were counted since `earlier`, a former state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut change = self.clone();
        for (own, before) in change.counts.iter_mut().zip(&earlier.counts) {
            *own = own.saturating_sub(*before);
        }
        change.sum_us = self.sum_us.wrapping_sub(earlier.sum_us);
        change
    }

    /// Returns the value below which this share (0 to 1) of all durations lies, in microseconds: the middle of the bucket it falls into.
    /// `None` if no duration was counted.
    #[must_use]
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        self.quantiles_us([share]).map(|[quantile]| quantile)
    }

    /// Returns the quantiles for several shares, in ascending order.
    #[must_use]
    pub fn quantiles_us<const N: usize>(&self, shares: [f64; N]) -> Option<[f64; N]> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let (mut seen, mut next) = (0, 0);
        Some(shares.map(|share| {
            let rank = ((share * count as f64).ceil() as u64).clamp(1, count);
            while seen < rank {
                seen += self.counts[next];
                next += 1;
            }
            // The first rank is one: a bucket was looked at.
            let (low, high) = bounds(next - 1);
            if high - low <= 1 { low as f64 } else { (low + high) as f64 / 2.0 }
        }))
    }

    /// Returns the end of the highest bucket that is not empty, in microseconds; `None` if no duration was counted.
    #[must_use]
    pub fn max_us(&self) -> Option<u64> {
        let top = self.counts.iter().rposition(|&count| count > 0)?;
        let (low, high) = bounds(top);
        Some(if high - low <= 1 { low } else { high })
    }

    /// Returns, for each of these limits in microseconds, in ascending order, the number of shorter durations; exact if a bucket begins at
    /// the limit.
    #[must_use]
    pub fn counts_below<const N: usize>(&self, us: &[u64; N]) -> [u64; N] {
        let (mut count, mut next) = (0, 0);
        us.map(|us| {
            let end = if us >= bounds(BUCKETS - 1).1 { BUCKETS } else { bucket(us) }.max(next);
            count += self.counts[next..end].iter().sum::<u64>();
            next = end;
            count
        })
    }
}

/// A histogram with the same buckets in half the space, for objects of which there are many. A count ends at four thousand million.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slim {
    counts: [u32; BUCKETS],
}

impl Slim {
    pub(crate) const EMPTY: Slim = Slim { counts: [0; BUCKETS] };

    /// Counts one duration.
    #[inline]
    pub(crate) fn record(&mut self, us: u64) {
        let place = &mut self.counts[bucket(us)];
        *place = place.saturating_add(1);
    }

    /// Returns a [`Histogram`] with these counts and this sum.
    pub(crate) fn widen(&self, sum_us: u64) -> Histogram {
        Histogram { counts: self.counts.map(u64::from), sum_us }
    }
}

/// The bucket of a value.
#[inline]
fn bucket(us: u64) -> usize {
    if us < EXACT {
        return us as usize;
    }
    let doubling = 63 - us.leading_zeros();
    if doubling > TOP_LOG2 {
        return BUCKETS - 1;
    }
    let step = (us >> (doubling - STEPS_LOG2)) & (STEPS - 1);
    (EXACT + u64::from(doubling - STEPS_LOG2) * STEPS + step) as usize
}

/// The beginning of a bucket, and that of the next one, in microseconds.
#[must_use]
fn bounds(bucket: usize) -> (u64, u64) {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return (bucket, bucket + 1);
    }
    let (doubling, step) = ((bucket - EXACT) / STEPS, (bucket - EXACT) % STEPS);
    let width = 1 << doubling;
    let low = (STEPS + step) * width;
    (low, low + width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_join_without_gap_and_take_their_own_bounds() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let (low, high) = bounds(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!((bucket(low), bucket(high - 1)), (index, index));
            next = high;
        }
        assert_eq!(next, 1 << 31);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_exact_to_a_bucket() {
        let mut all = Histogram::default();
        for us in 1..=10_000 {
            all.record(us);
        }
        for (share, exact) in [(0.5, 5_000.0), (0.95, 9_500.0), (0.99, 9_900.0)] {
            let found = all.quantile_us(share).expect("not empty");
            assert!((found - exact).abs() / exact < 0.07, "{share}: {found}");
        }
        let together = all.quantiles_us([0.5, 0.5, 0.95, 1.0]).expect("not empty");
        assert_eq!(together.map(Some), [0.5, 0.5, 0.95, 1.0].map(|share| all.quantile_us(share)));
        assert_eq!(all.mean_us(), Some(5000.5));
        assert_eq!((all.count(), all.sum_us()), (10_000, 50_005_000));
        assert_eq!(all.counts_below(&[0, 8, 8, 1 << 13, 1 << 31, u64::MAX]), [0, 7, 7, 8191, 10_000, 10_000]);
        assert_eq!(Histogram::default().quantile_us(0.5), None);
    }

    #[test]
    fn a_window_is_the_difference() {
        let mut all = Histogram::default();
        all.record(5);
        let before = all.clone();
        all.record(1_000_000);
        all.record_zeros(2);
        let change = all.since(&before);
        assert_eq!((change.count(), change.sum_us(), change.quantile_us(0.5)), (3, 1_000_000, Some(0.0)));
        assert_eq!(change.max_us(), Some(1_048_576));
        let mut sum = before.clone();
        sum.add(&change);
        assert_eq!(sum, all);
    }

    proptest::proptest! {
        #[test]
        fn a_value_lies_within_its_bucket(us in 0..1_u64 << 31) {
            let (low, high) = bounds(bucket(us));
            proptest::prop_assert!(low <= us && us < high);
            proptest::prop_assert!((high - low) as f64 <= (low as f64 / 8.0).max(1.0));
        }
    }
}
