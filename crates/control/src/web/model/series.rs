//! The last hour in steps: of one second for the last minutes, of ten seconds for the rest. The size is fixed
//! once it is full.

use std::collections::VecDeque;

use pgweir_core::snapshot::PoolSnapshot;
use pgweir_core::stats::histogram::Histogram;
use pgweir_core::stats::times::Times;

use super::super::limits::{COARSE_STEPS, FINE_STEPS, LATELY_WEIGHT, WINDOW_HALF_S};
use super::Rates;

/// The length of a coarse step in seconds.
pub(in super::super) const COARSE_S: usize = 10;

/// The columns, with their names in the API.
pub(in super::super) const COLUMNS: [&str; 27] = [
    "clients_active",
    "clients_waiting",
    "clients_idle",
    "servers_active",
    "servers_idle",
    "servers_login",
    "transactions",
    "queries",
    "received_bytes",
    "sent_bytes",
    "errors",
    "logins",
    "cache_hits",
    "cache_coalesced",
    "cache_misses",
    "cache_aged",
    "cache_age_us",
    "cache_saved_us",
    "cache_bytes",
    "wait_oldest_us",
    "total_p50_us",
    "total_p95_us",
    "total_p99_us",
    "wait_p95_us",
    "wait_mean_us",
    "server_mean_us",
    "client_mean_us",
];

/// The number of columns at the start that are numbers of clients and servers.
const GAUGES: usize = 6;
/// The number of columns, including `GAUGES`, of which a coarse step has the average; those after `GAUGES`
/// are rates. Then follow the longest wait, and the columns computed from times.
const AVERAGES: usize = 19;
const LONGEST: usize = 19;
const TIMES: usize = 20;

/// The values of one step; NaN means that nothing was measured. Single precision is enough for a chart.
pub(in super::super) type Values = [f32; COLUMNS.len()];

/// Numbers of clients and servers: sums over the samples of a second, then their averages.
#[derive(Clone, Copy, Default)]
pub(super) struct Gauges {
    numbers: [f64; GAUGES],
    /// The longest wait that any sample saw.
    wait_oldest_us: u64,
}

impl Gauges {
    /// Adds a sample of a pool.
    pub(super) fn note(&mut self, pool: &PoolSnapshot) {
        let (clients, servers) = (&pool.clients, &pool.servers);
        let seen = [
            clients.linked,
            clients.waiting,
            clients.idle,
            servers.active,
            servers.idle + servers.used,
            servers.login,
        ];
        for (sum, number) in self.numbers.iter_mut().zip(seen) {
            *sum += f64::from(number);
        }
        self.wait_oldest_us = self.wait_oldest_us.max(pool.wait_oldest_us);
    }

    /// Returns averages over this number of samples. A pool that did not exist in some of them counts as
    /// empty there.
    pub(super) fn averaged(self, looks: u32) -> Gauges {
        Gauges { numbers: self.numbers.map(|sum| sum / f64::from(looks.max(1))), ..self }
    }

    /// Adds another pool's averages.
    pub(super) fn add(&mut self, other: &Gauges) {
        for (sum, number) in self.numbers.iter_mut().zip(other.numbers) {
            *sum += number;
        }
        self.wait_oldest_us = self.wait_oldest_us.max(other.wait_oldest_us);
    }
}

/// Averages over about the last ten seconds, in which a burst of some milliseconds is hardly visible.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in super::super) struct Lately {
    pub(in super::super) clients_active: f64,
    pub(in super::super) clients_waiting: f64,
    pub(in super::super) servers_active: f64,
}

impl Lately {
    /// Takes the averages of another second. Those of the first second are used as they are.
    pub(super) fn note(known: Option<Lately>, gauges: &Gauges) -> Lately {
        let [clients_active, clients_waiting, _, servers_active, _, _] = gauges.numbers;
        let now = Lately { clients_active, clients_waiting, servers_active };
        let mixed = |before: f64, now: f64| before + LATELY_WEIGHT * (now - before);
        known.map_or(now, |before| Lately {
            clients_active: mixed(before.clients_active, now.clients_active),
            clients_waiting: mixed(before.clients_waiting, now.clients_waiting),
            servers_active: mixed(before.servers_active, now.servers_active),
        })
    }

    /// Adds another pool's averages.
    pub(in super::super) fn add(&mut self, other: Lately) {
        self.clients_active += other.clients_active;
        self.clients_waiting += other.clients_waiting;
        self.servers_active += other.servers_active;
    }
}

/// The columns that are not computed from times.
pub(super) struct Row([f32; TIMES]);

impl Row {
    pub(super) fn of(gauges: &Gauges, rates: &Rates) -> Row {
        let [clients_active, clients_waiting, clients_idle, servers_active, servers_idle, servers_login] =
            gauges.numbers.map(|number| number as f32);
        Row([
            clients_active,
            clients_waiting,
            clients_idle,
            servers_active,
            servers_idle,
            servers_login,
            rates.transactions as f32,
            rates.queries as f32,
            rates.received_bytes as f32,
            rates.sent_bytes as f32,
            rates.errors as f32,
            rates.logins as f32,
            rates.cache.hits as f32,
            rates.cache.coalesced as f32,
            rates.cache.misses as f32,
            rates.cache.aged as f32,
            rates.cache.age_us as f32,
            rates.cache.saved_us as f32,
            rates.cache.bytes as f32,
            gauges.wait_oldest_us as f32,
        ])
    }
}

/// The steps that end with a second.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    /// `true` if a step of ten seconds ends.
    coarse: bool,
    /// `true` if half a window of percentiles ends. That is at the same time for all tracks, so a database
    /// with one pool has that pool's percentiles.
    pub(super) half: bool,
}

/// The ends of the steps, which all series share.
pub(in super::super) struct Clock {
    fine: VecDeque<f64>,
    coarse: VecDeque<f64>,
    seconds: usize,
}

impl Clock {
    pub(super) fn new() -> Clock {
        Clock {
            fine: VecDeque::with_capacity(FINE_STEPS),
            coarse: VecDeque::with_capacity(COARSE_STEPS),
            seconds: 0,
        }
    }

    pub(super) fn tick(&mut self, now_s: f64) -> Step {
        self.seconds += 1;
        let coarse = self.seconds.is_multiple_of(COARSE_S);
        push(&mut self.fine, now_s, FINE_STEPS);
        if coarse {
            push(&mut self.coarse, now_s, COARSE_STEPS);
        }
        Step { coarse, half: self.seconds.is_multiple_of(WINDOW_HALF_S) }
    }
}

/// The steps of one track.
#[derive(Default)]
pub(in super::super) struct Series {
    fine: VecDeque<Values>,
    coarse: VecDeque<Values>,
    /// The sums of the coarse step that is being filled.
    sums: [f32; AVERAGES],
    longest: f32,
    times: Times,
}

impl Series {
    /// Creates a series with as many empty steps as the clock has had: a series is as long as the clock, up
    /// to the step that ends now.
    pub(super) fn beginning(clock: &Clock) -> Series {
        let empty = [f32::NAN; COLUMNS.len()];
        let before = |steps: usize, pending: usize| vec![empty; steps.saturating_sub(pending)].into();
        // The clock has been advanced to the present second already.
        let coarse_pending = usize::from(clock.seconds.is_multiple_of(COARSE_S));
        Series {
            fine: before(clock.fine.len(), 1),
            coarse: before(clock.coarse.len(), coarse_pending),
            ..Series::default()
        }
    }

    pub(super) fn push(&mut self, row: Row, second: Option<&Times>, step: Step) {
        push(&mut self.fine, with_times(row.0, second), FINE_STEPS);
        for (sum, value) in self.sums.iter_mut().zip(&row.0) {
            *sum += value;
        }
        self.longest = self.longest.max(row.0[LONGEST]);
        if let Some(second) = second {
            self.times.add(second);
        }
        if step.coarse {
            let mut values = row.0;
            for (value, sum) in values.iter_mut().zip(std::mem::take(&mut self.sums)) {
                *value = sum / COARSE_S as f32;
            }
            values[LONGEST] = std::mem::take(&mut self.longest);
            push(&mut self.coarse, with_times(values, Some(&std::mem::take(&mut self.times))), COARSE_STEPS);
        }
    }

    /// Returns the steps that end after `after_s`, at most those of the last `window_s` seconds: the length
    /// of a step in seconds, and each step with its end.
    pub(in super::super) fn since<'a>(
        &'a self,
        clock: &'a Clock,
        window_s: usize,
        after_s: f64,
    ) -> (usize, impl Iterator<Item = (f64, &'a Values)>) {
        let (step_s, ends, steps) = if window_s <= FINE_STEPS {
            (1, &clock.fine, &self.fine)
        } else {
            (COARSE_S, &clock.coarse, &self.coarse)
        };
        let skip = steps.len().saturating_sub(window_s.div_ceil(step_s));
        let found = ends.iter().copied().zip(steps).skip(skip).filter(move |(end_s, _)| *end_s > after_s);
        (step_s, found)
    }
}

fn with_times(row: [f32; TIMES], times: Option<&Times>) -> Values {
    let mut values = [f32::NAN; COLUMNS.len()];
    values[..TIMES].copy_from_slice(&row);
    let Some(times) = times else { return values };
    let wait = times.wait();
    let quantile = |share: f64| times.total.quantile_us(share);
    let mean = |part: &Histogram| part.mean_us();
    let from_times = [
        quantile(0.5),
        quantile(0.95),
        quantile(0.99),
        wait.quantile_us(0.95),
        mean(&wait),
        mean(&times.server),
        mean(&times.client()),
    ];
    for (value, found) in values[TIMES..].iter_mut().zip(from_times) {
        *value = found.map_or(f32::NAN, |found| found as f32);
    }
    values
}

fn push<T>(steps: &mut VecDeque<T>, step: T, max: usize) {
    if steps.len() == max {
        steps.pop_front();
    }
    steps.push_back(step);
}
