//! A subject that is followed over time: a pool, a database, the process.

use std::borrow::Cow;

use pgweir_core::snapshot::CacheNumbers;
use pgweir_core::stats::Stats;
use pgweir_core::stats::times::Times;

use super::Sum;
use super::series::{Clock, Gauges, Row, Series, Step};

/// The history of one subject; see the module's head.
pub(in super::super) struct Track {
    rates: Rates,
    /// The counters at the end of the last second; `None` before the first.
    before: Option<(Stats, CacheNumbers, u64)>,
    /// The times of statements that ended within this second.
    second: Option<Box<Times>>,
    window: Window,
    series: Option<Box<Series>>,
}

/// Rates per second, over the last second.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Rates {
    pub(in super::super) transactions: f64,
    pub(in super::super) queries: f64,
    pub(in super::super) received_bytes: f64,
    pub(in super::super) sent_bytes: f64,
    pub(in super::super) errors: f64,
    pub(in super::super) logins: f64,
    pub(in super::super) cache: CacheRates,
}

/// Rates of the query cache per second, over the last second.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct CacheRates {
    pub(in super::super) hits: f64,
    pub(in super::super) coalesced: f64,
    pub(in super::super) misses: f64,
    /// Given answers whose age counts, and the sum of their ages.
    pub(in super::super) aged: f64,
    pub(in super::super) age_us: f64,
    pub(in super::super) saved_us: f64,
    /// The memory that answers take: a number, not a rate.
    pub(in super::super) bytes: f64,
}

impl CacheRates {
    fn of(before: &CacheNumbers, now: &CacheNumbers, per_s: impl Fn(u64) -> f64) -> CacheRates {
        let rate = |count: fn(&CacheNumbers) -> u64| per_s(count(now).saturating_sub(count(before)));
        CacheRates {
            hits: rate(|cache| cache.hits),
            coalesced: rate(|cache| cache.coalesced),
            misses: rate(|cache| cache.misses),
            aged: rate(|cache| cache.aged),
            age_us: rate(|cache| cache.age_us),
            saved_us: rate(|cache| cache.saved_us),
            bytes: now.bytes as f64,
        }
    }

    fn add(&mut self, other: &CacheRates) {
        self.hits += other.hits;
        self.coalesced += other.coalesced;
        self.misses += other.misses;
        self.aged += other.aged;
        self.age_us += other.age_us;
        self.saved_us += other.saved_us;
        self.bytes += other.bytes;
    }
}

impl Rates {
    /// Adds another subject's rates.
    pub(in super::super) fn add(&mut self, other: &Rates) {
        self.transactions += other.transactions;
        self.queries += other.queries;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.errors += other.errors;
        self.logins += other.logins;
        self.cache.add(&other.cache);
    }
}

/// The times of the last seconds in two halves: the one that is being filled, and the one before it.
#[derive(Default)]
struct Window {
    filling: Option<Box<Times>>,
    full: Option<Box<Times>>,
}

impl Track {
    pub(super) fn new(series: bool) -> Track {
        Track {
            rates: Rates::default(),
            before: None,
            second: None,
            window: Window::default(),
            series: series.then(Box::default),
        }
    }

    pub(super) fn add_times(&mut self, added: &Times) {
        self.second.get_or_insert_default().add(added);
        self.window.filling.get_or_insert_default().add(added);
    }

    pub(super) fn has_series(&self) -> bool {
        self.series.is_some()
    }

    /// Begins a series. The time before it is empty.
    pub(super) fn keep_series(&mut self, clock: &Clock) {
        self.series = Some(Box::new(Series::beginning(clock)));
    }

    pub(super) fn series(&self) -> Option<&Series> {
        self.series.as_deref()
    }

    pub(super) fn end_second(&mut self, sum: &Sum, gauges: &Gauges, elapsed_s: f64, step: Step) {
        let (stats, cache, errors) =
            self.before.replace((sum.stats, sum.cache, sum.errors)).unwrap_or_default();
        let change = sum.stats.since(&stats);
        let per_s = |count: u64| if elapsed_s > 0.0 { count as f64 / elapsed_s } else { 0.0 };
        self.rates = Rates {
            transactions: per_s(change.xacts),
            queries: per_s(change.queries),
            received_bytes: per_s(change.received_bytes),
            sent_bytes: per_s(change.sent_bytes),
            errors: per_s(sum.errors.saturating_sub(errors)),
            logins: per_s(change.client_logins),
            cache: CacheRates::of(&cache, &sum.cache, per_s),
        };
        if let Some(series) = &mut self.series {
            series.push(Row::of(gauges, &self.rates), self.second.as_deref(), step);
        }
        self.second = None;
        if step.half {
            self.window.full = self.window.filling.take();
        }
    }

    pub(in super::super) fn rates(&self) -> Rates {
        self.rates
    }

    /// Returns the times of about the last ten seconds, in parts; see [`together`].
    pub(in super::super) fn recent(&self) -> impl Iterator<Item = &Times> {
        [self.window.full.as_deref(), self.window.filling.as_deref()].into_iter().flatten()
    }
}

/// Returns the sum of all these times. A single one is not copied, because they are large, and most pools are
/// idle.
pub(in super::super) fn together<'a>(times: impl IntoIterator<Item = &'a Times>) -> Option<Cow<'a, Times>> {
    let mut times = times.into_iter();
    let mut all = Cow::Borrowed(times.next()?);
    times.for_each(|its| all.to_mut().add(its));
    Some(all)
}
