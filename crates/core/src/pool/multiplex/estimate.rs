//! How long statements take and how much they answer, by fingerprint.
//!
//! What this file is for: to remember, in a bounded number of bytes, what was measured. A statement that is not here has
//! not been seen (or was forgotten), and nothing may be assumed of it. It must never be asked for anything but estimates.

use crate::limits::ESTIMATES_MAX;

/// The estimated time and size of a statement's execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Estimate {
    /// Time that the statement is at the head of a server's queue (µs).
    pub(crate) us: u64,
    /// Number of bytes of the statement's answer.
    pub(crate) bytes: u64,
}

/// Times and sizes are kept in sixteenths, so that small changes count.
const FRACTION: u64 = 16;
/// Weight of a new sample: an eighth, and more for the first ones.
const WEIGHT: u64 = 8;
/// Greatest multiple of `long_us` that a single execution counts for.
const LONG_COUNTS: u64 = 5;

#[derive(Clone, Copy, Default)]
struct Place {
    key: u64,
    us: u32,
    bytes: u32,
    /// Number of samples, up to a small limit. Statements that were used more often stay longer.
    seen: u8,
    /// Whether the statement has done what it was certain not to do. It is then never trusted again.
    barred: bool,
}

/// The table. Two places for each key; if both are taken, the one that is used less is given up.
#[derive(Default)]
pub(crate) struct Estimates {
    /// Empty until something is measured.
    places: Vec<Place>,
}

impl Estimates {
    /// Returns the estimate for a statement; `None` if it was not seen, was forgotten, or is barred.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<Estimate> {
        let place = self.places.get(self.find(key)?).filter(|place| !place.barred)?;
        Some(Estimate { us: u64::from(place.us) / FRACTION, bytes: u64::from(place.bytes) / FRACTION })
    }

    /// Adds a sample: the time and the answer's bytes of one execution. Times count up to a few times `long_us`. A single execution
    /// that waited for a lock, or had no processor, says little about the next one; two in a row say more.
    pub(crate) fn note(&mut self, key: u64, us: u64, bytes: u64, long_us: u64) {
        let at = self.find_or_make(key);
        let place = &mut self.places[at];
        let weight = (u64::from(place.seen) + 1).min(WEIGHT);
        let moved = |from: u32, sample: u64| {
            let (from, sample) = (u64::from(from), sample.saturating_mul(FRACTION));
            let to = if sample >= from {
                from + (sample - from) / weight
            } else {
                from - (from - sample) / weight
            };
            u32::try_from(to).unwrap_or(u32::MAX)
        };
        place.bytes = moved(place.bytes, bytes);
        place.us = moved(place.us, us.min(long_us.saturating_mul(LONG_COUNTS)));
        place.seen = place.seen.saturating_add(1);
    }

    /// Bars a statement: it is never trusted again.
    pub(crate) fn bar(&mut self, key: u64) {
        let at = self.find_or_make(key);
        self.places[at].barred = true;
        self.places[at].seen = u8::MAX;
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        let at = place_of(key);
        [at, at ^ 1]
            .into_iter()
            .find(|&at| self.places.get(at).is_some_and(|place| place.seen > 0 && place.key == key))
    }

    #[inline]
    fn find_or_make(&mut self, key: u64) -> usize {
        if self.places.is_empty() {
            self.places.resize(ESTIMATES_MAX, Place::default());
        }
        if let Some(at) = self.find(key) {
            return at;
        }
        let at = place_of(key);
        let rarer = if self.places[at ^ 1].seen < self.places[at].seen { at ^ 1 } else { at };
        // The other statement loses half its count, so that one that was common once does not stay forever.
        let other = &mut self.places[rarer ^ 1];
        if !other.barred {
            other.seen = (other.seen / 2).max(other.seen.min(1));
        }
        self.places[rarer] = Place { key, ..Place::default() };
        rarer
    }
}

fn place_of(key: u64) -> usize {
    ((key >> 32) ^ key) as usize % ESTIMATES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_followed_and_long_ones_count_soon() {
        let mut estimates = Estimates::default();
        assert_eq!(estimates.get(7), None);
        for _ in 0..50 {
            // Several answers in one read: the first seems to have taken all the time.
            estimates.note(7, 400, 0, 5_000);
            (0..3).for_each(|_| estimates.note(7, 0, 800, 5_000));
        }
        let known = estimates.get(7).expect("it was seen");
        assert!((70..=130).contains(&known.us), "{known:?}");
        assert!((450..=750).contains(&known.bytes), "{known:?}");
        estimates.note(7, 30_000_000, 0, 5_000);
        assert!(estimates.get(7).is_some_and(|known| known.us < 5_000), "one is none");
        estimates.note(7, 30_000, 0, 5_000);
        assert!(estimates.get(7).is_some_and(|known| known.us > 5_000), "two are more");
        (0..50).for_each(|_| estimates.note(7, 100, 0, 5_000));
        assert!(estimates.get(7).is_some_and(|known| known.us < 300));
    }

    #[test]
    fn it_is_bounded_and_what_is_common_stays() {
        let mut estimates = Estimates::default();
        for other in 0..ESTIMATES_MAX as u64 * 10 {
            (0..5).for_each(|_| estimates.note(1 << 60, 10, 10, 5_000));
            estimates.note(other.wrapping_mul(0x9e37_79b9_7f4a_7c15), 10, 10, 5_000);
        }
        assert!(estimates.get(1 << 60).is_some());
        assert_eq!(estimates.places.len(), ESTIMATES_MAX);
    }

    #[test]
    fn what_is_barred_stays_so() {
        let mut estimates = Estimates::default();
        estimates.bar(5);
        (0..1000).for_each(|_| estimates.note(5, 10, 10, 5_000));
        (0..10).for_each(|other| estimates.note(5 + ESTIMATES_MAX as u64 * other, 10, 10, 5_000));
        assert_eq!(estimates.get(5), None);
    }
}
