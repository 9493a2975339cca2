//! The lag of standbys, in bytes and in time. Values only.
//!
//! The lag in time is measured by one clock, pgweir's own: it is the age of the oldest position of the primary that the standby has not
//! replayed. So an idle primary causes no lag, and no server's clock counts. With `lag_query` or `lag_command` the lag in time is the
//! result of that query or command.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cluster::answer::Lsn;
use crate::limits::POSITIONS_MAX;

/// Bytes of a page of the write-ahead log, if PostgreSQL was not compiled with another size.
const PAGE_BYTES: u64 = 8192;

/// The positions of the primary, and the time at which each was seen.
#[derive(Default)]
pub(crate) struct Positions {
    /// The positions in ascending order, each with the time at which it was seen (monotonic, µs).
    seen: VecDeque<(Lsn, u64)>,
}

/// The lag of a standby.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lag {
    pub(crate) bytes: u64,
    /// The lag in time (µs); `None` if `lag_query` or `lag_command` should have returned it and did not.
    pub(crate) us: Option<u64>,
}

/// A lag in time (µs) as `lag_query` or `lag_command` returned it, or the error of that.
pub(crate) type ToldLag = Result<u64, String>;

/// The limits of a standby's lag.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LagLimits {
    /// The lag in time is the result of `lag_query` or `lag_command`, and is not measured here.
    pub(crate) is_told: bool,
    /// The limit of the lag in time (µs); 0 means no limit.
    pub(crate) us: u64,
    /// The limit of the lag in bytes; 0 means no limit.
    pub(crate) bytes: u64,
}

impl Positions {
    /// Notes the position that the primary reported at this time.
    pub(crate) fn note(&mut self, position: Lsn, now_us: u64) {
        let position = position.at_end_of_record(PAGE_BYTES);
        if self.seen.back().is_some_and(|(newest, _)| *newest >= position) {
            return;
        }
        if self.seen.len() == POSITIONS_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back((position, now_us));
    }

    /// Forgets all positions because there is another primary, or another run of it: a position that it has not written will never be
    /// replayed.
    pub(crate) fn forget(&mut self) {
        self.seen.clear();
    }

    /// Returns the lag of a standby that has replayed up to `replayed`; `None` if no position of the primary is known.
    pub(crate) fn lag(&self, replayed: Lsn, now_us: u64) -> Option<Lag> {
        let (newest, _) = self.seen.back()?;
        let first = self.seen.iter().find(|(position, _)| *position > replayed);
        let us = first.map_or(0, |(_, seen_us)| now_us.saturating_sub(*seen_us));
        Some(Lag { bytes: newest.0.saturating_sub(replayed.0), us: Some(us) })
    }
}

impl LagLimits {
    /// Whether a standby with this lag gets no reads. With `was_over` the limits are half as high: a standby that was over a limit gets
    /// reads again at half of it. A lag in time that is not known is over any limit.
    pub(crate) fn exceeds(&self, lag: Lag, was_over: bool) -> bool {
        let over = |is: u64, limit: u64| limit > 0 && is > if was_over { limit / 2 } else { limit };
        lag.us.map_or(self.us > 0, |us| over(us, self.us)) || over(lag.bytes, self.bytes)
    }
}

impl Lag {
    /// Whether this lag exceeds the lag `least` by more than a quarter of a limit.
    pub(crate) fn is_late_beside(self, least: Lag, limits: LagLimits) -> bool {
        let late = |is: u64, least: u64, limit: u64| limit > 0 && is.saturating_sub(least) > limit / 4;
        let in_time = match (self.us, least.us) {
            (Some(own), Some(least)) => late(own, least, limits.us),
            (None, Some(_)) => limits.us > 0,
            (_, None) => false,
        };
        in_time || late(self.bytes, least.bytes, limits.bytes)
    }

    /// Returns the lesser lag in bytes and the lesser lag in time of the two.
    pub(crate) fn least(self, other: Lag) -> Lag {
        let us = self.us.into_iter().chain(other.us).min();
        Lag { bytes: self.bytes.min(other.bytes), us }
    }
}

/// Reads a number of seconds and returns it in µs; `None` if it is not a valid lag. The bytes come from a server: anything may be in them.
pub(crate) fn read_seconds(text: &[u8]) -> Option<u64> {
    let seconds: f64 = std::str::from_utf8(text).ok()?.trim().parse().ok()?;
    // Refused are negative numbers, NaN, and what is longer than 500 thousand million years.
    let lag = Duration::try_from_secs_f64(seconds).ok()?;
    u64::try_from(lag.as_micros()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions(seen: &[(u64, u64)]) -> Positions {
        let mut positions = Positions::default();
        seen.iter().for_each(|(position, us)| positions.note(Lsn(*position), *us));
        positions
    }

    #[test]
    fn lag_is_the_age_of_the_oldest_position_that_is_not_replayed() {
        let seen = positions(&[(1000, 10), (2000, 20), (2000, 30), (3000, 40)]);
        assert_eq!(seen.lag(Lsn(3000), 100), Some(Lag { bytes: 0, us: Some(0) }));
        assert_eq!(seen.lag(Lsn(3500), 100), Some(Lag { bytes: 0, us: Some(0) }), "it was asked later");
        assert_eq!(seen.lag(Lsn(2000), 100), Some(Lag { bytes: 1000, us: Some(60) }));
        assert_eq!(seen.lag(Lsn(1999), 100), Some(Lag { bytes: 1001, us: Some(80) }));
        assert_eq!(seen.lag(Lsn(0), 100), Some(Lag { bytes: 3000, us: Some(90) }));
        assert_eq!(Positions::default().lag(Lsn(0), 100), None);
    }

    #[test]
    fn an_idle_primary_at_the_start_of_a_page_is_no_lag() {
        let seen = positions(&[(0x0400_0028, 10)]);
        assert_eq!(seen.lag(Lsn(0x0400_0000), 1000), Some(Lag { bytes: 0, us: Some(0) }));
        let seen = positions(&[(0x0400_2018, 10)]);
        assert_eq!(seen.lag(Lsn(0x0400_2000), 1000), Some(Lag { bytes: 0, us: Some(0) }));
    }

    #[test]
    fn a_standby_over_the_limit_is_back_at_half_of_it() {
        let limits = LagLimits { us: 100, ..LagLimits::default() };
        let lag = |us| Lag { bytes: 1 << 40, us: Some(us) };
        assert!(!limits.exceeds(lag(100), false) && limits.exceeds(lag(101), false));
        assert!(limits.exceeds(lag(51), true) && !limits.exceeds(lag(50), true));
        let limits = LagLimits { bytes: 100, ..LagLimits::default() };
        let lag = |bytes| Lag { bytes, us: Some(u64::MAX) };
        assert!(!limits.exceeds(lag(100), false) && limits.exceeds(lag(101), false));
        assert!(limits.exceeds(lag(51), true) && !limits.exceeds(lag(50), true));
        let lag = |us| Lag { bytes: 1 << 40, us: Some(us) };
        assert!(!LagLimits::default().exceeds(lag(u64::MAX), false), "0 is no limit");
    }

    #[test]
    fn a_standby_is_late_by_a_quarter_of_a_limit() {
        let lag = |us, bytes| Lag { us: Some(us), bytes };
        let limits = LagLimits { us: 100, ..LagLimits::default() };
        assert!(!lag(30, 1 << 40).is_late_beside(lag(5, 0), limits));
        assert!(lag(31, 0).is_late_beside(lag(5, 0), limits));
        assert!(!lag(0, 0).is_late_beside(lag(5, 0), limits));
        let limits = LagLimits { bytes: 100, ..LagLimits::default() };
        assert!(
            lag(0, 26).is_late_beside(lag(0, 0), limits) && !lag(0, 25).is_late_beside(lag(0, 0), limits)
        );
    }

    #[test]
    fn a_lag_that_is_not_known_is_over_each_limit_in_time() {
        let unknown = Lag { bytes: 0, us: None };
        let limits = LagLimits { us: 100, ..LagLimits::default() };
        assert!(limits.exceeds(unknown, false) && limits.exceeds(unknown, true));
        assert!(!LagLimits { bytes: 100, ..LagLimits::default() }.exceeds(unknown, false));
        let known = Lag { bytes: 0, us: Some(7) };
        assert_eq!((unknown.least(known), known.least(unknown)), (known, known));
        assert!(unknown.is_late_beside(known, limits) && !known.is_late_beside(unknown, limits));
        assert!(!unknown.is_late_beside(known, LagLimits { bytes: 100, ..LagLimits::default() }));
    }

    #[test]
    fn a_number_of_seconds_is_read() {
        for (text, us) in
            [("0", 0), ("1.5", 1_500_000), ("1e-06", 1), (" 2\n", 2_000_000), ("-0", 0), ("1e-9", 0)]
        {
            assert_eq!(read_seconds(text.as_bytes()), Some(us), "{text}");
        }
        for text in ["", "-0.001", "NaN", "Infinity", "1e300", "1e19", "00:00:01", "1,5", "one", "1 s"] {
            assert_eq!(read_seconds(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read_seconds(b"1\xff"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(text in prop::collection::vec(any::<u8>(), 0..20), number in any::<f64>()) {
            let _ = read_seconds(&text);
            let _ = read_seconds(number.to_string().as_bytes());
        }

        #[test]
        fn more_replayed_is_never_more_lag(
            steps in prop::collection::vec((0u64..10_000, 0u64..1000), 0..400),
            replayed in 0u64..2_000_000,
            more in 0u64..10_000
        ) {
            let (mut position, mut now_us) = (0, 0);
            let mut seen = Positions::default();
            for (bytes, us) in steps {
                (position, now_us) = (position + bytes, now_us + us);
                seen.note(Lsn(position), now_us);
            }
            prop_assert!(seen.seen.len() <= POSITIONS_MAX);
            if let (Some(less), Some(own)) = (seen.lag(Lsn(replayed + more), now_us), seen.lag(Lsn(replayed), now_us)) {
                prop_assert!(less.us <= own.us && less.bytes <= own.bytes);
            }
        }
    }
}
