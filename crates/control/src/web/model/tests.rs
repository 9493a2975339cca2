use std::time::Duration;

use pgweir_core::snapshot::FollowedNumbers;
use pgweir_core::stats::errors::ErrorCounts;
use pgweir_settings::PoolMode;

use super::*;

pub(in crate::web) fn pool(database: &str, user: &str, queries: u64, times: Option<Times>) -> PoolSnapshot {
    PoolSnapshot {
        database: database.into(),
        user: user.into(),
        mode: PoolMode::Transaction,
        paused: false,
        size: 20,
        clients: ClientNumbers { linked: 1, idle: 2, ..ClientNumbers::default() },
        servers: ServerNumbers { active: 1, ..ServerNumbers::default() },
        multiplexing: MultiplexNumbers::default(),
        cache: CacheNumbers::default(),
        continuity: pgweir_core::stats::continuity::Continuity::default(),
        wait_oldest_us: 7,
        stats: Stats { queries, xacts: queries, ..Stats::default() },
        errors: 0,
        times: times.map(Box::new),
        failure: None,
    }
}

fn worker() -> WorkerSnapshot {
    let mut errors = ErrorCounts::default();
    errors.add(*b"23", 2);
    WorkerSnapshot {
        counters: Counters { errors, ..Counters::default() },
        consoles: 1,
        logging_in: 0,
        paused: false,
        suspended: false,
        stopping: None,
        prepared_statements: 0,
        followed: FollowedNumbers::default(),
    }
}

fn took(us: u64, count: usize) -> Times {
    let mut times = Times::default();
    for _ in 0..count {
        times.total.record(us);
        times.server.record(us);
    }
    times
}

/// The place of a column in a step's values.
fn column(name: &str) -> usize {
    COLUMNS.iter().position(|known| *known == name).expect("a column of this name")
}

/// A model that gets a sample each second.
pub(in crate::web) struct Film {
    pub(in crate::web) model: Model,
    at: Instant,
}

impl Film {
    pub(in crate::web) fn show(&mut self, pools: Vec<PoolSnapshot>) {
        self.at += Duration::from_secs(1);
        self.look(pools);
        self.model.end_second();
    }

    /// Takes a sample within a second.
    fn look(&mut self, pools: Vec<PoolSnapshot>) {
        let loads = vec![Load { connections: 3, ..Load::default() }];
        self.model.take(self.at, vec![worker()], pools, loads, Process::default());
    }
}

pub(in crate::web) fn film() -> Film {
    Film { model: Model::new(), at: Instant::now() }
}

#[test]
fn rates_and_percentiles_come_from_what_was_added() {
    let mut film = film();
    film.show(vec![pool("shop", "ann", 100, Some(took(50, 100)))]);
    film.show(vec![pool(
        "shop",
        "ann",
        160,
        Some({
            let mut times = took(50, 100);
            times.add(&took(1_000, 60));
            times
        }),
    )]);
    let model = &film.model;
    assert!((model.whole().rates().queries - 60.0).abs() < 0.01);
    let (series, clock) = model.series(Some("shop"), Some("ann")).expect("kept");
    let (step_s, steps) = series.since(clock, 300, 0.0);
    let steps: Vec<_> =
        steps.map(|(_, values)| (values[column("queries")], values[column("total_p50_us")])).collect();
    assert_eq!((step_s, steps.len()), (1, 2));
    assert!((steps[1].0 - 60.0).abs() < 0.01 && (steps[1].1 - 992.0).abs() < 1.0, "{steps:?}");
    assert_eq!(model.counters().errors.total(), 2);
}

#[test]
fn times_that_were_not_sent_again_stay() {
    let mut film = film();
    film.show(vec![pool("shop", "ann", 100, Some(took(50, 100)))]);
    film.show(vec![pool("shop", "ann", 100, None)]);
    let state = film.model.pools().next().expect("one");
    assert_eq!(state.snapshot.times.as_ref().map(|times| times.total.count()), Some(100));
    assert_eq!(state.track.recent().map(|half| half.total.count()).sum::<u64>(), 100, "counted once");
    film.show(vec![pool("shop", "ann", 3, Some(took(50, 3)))]);
    assert_eq!(
        film.model.pools().next().map(|pool| pool.track.recent().map(|half| half.total.count()).sum::<u64>()),
        Some(103),
        "the counts begin again"
    );
}

/// Otherwise the page would show two medians for a database that has one pool.
#[test]
fn windows_move_on_at_the_same_time() {
    let mut film = film();
    let count = |track: &Track| track.recent().map(|half| half.total.count()).sum::<u64>();
    let mut seen = Vec::new();
    for second in 1..=12 {
        // Until then the pool is known, but no times of it: its track is older than the database's.
        let times = (second > 3).then(|| took(50, 10 * second));
        film.show(vec![pool("shop", "ann", 10 * second as u64, times)]);
        let model = &film.model;
        let of_pool = model.pools().map(|pool| count(&pool.track)).next();
        let of_database = model.databases().map(|(_, track)| count(track)).next();
        assert_eq!((of_pool, of_database), (Some(count(model.whole())), Some(count(model.whole()))));
        seen.push(count(model.whole()));
    }
    assert_eq!(seen, [0, 0, 0, 40, 50, 60, 70, 80, 90, 50, 60, 70]);
}

#[test]
fn numbers_of_clients_are_averages_over_the_looks() {
    let mut film = film();
    let crowd = |linked: u32, waiting: u32| {
        let mut seen = pool("shop", "ann", 1, None);
        seen.clients = ClientNumbers { linked, waiting, ..ClientNumbers::default() };
        seen.wait_oldest_us = u64::from(waiting);
        seen
    };
    for second in 0..10 {
        film.look(vec![crowd(1, 0)]);
        film.look(vec![crowd(3, 8)]);
        film.look(vec![crowd(2, 4), pool("late", "bob", 1, None)]);
        film.show(vec![crowd(2, second)]);
    }
    let first = |window_s: usize, database: Option<&str>| {
        let (series, clock) = film.model.series(database, None).expect("kept");
        let (_, mut steps) = series.since(clock, window_s, 0.0);
        steps
            .next()
            .map(|(_, values)| (values[0], values[1], values[column("wait_oldest_us")]))
            .expect("a step")
    };
    assert_eq!(first(300, Some("shop")), (2.0, 3.0, 8.0));
    let lately = film.model.pools().next().and_then(|pool| pool.lately).expect("the pool was seen");
    assert_eq!(lately.servers_active, 1.0);
    assert!(
        (3.0..4.125).contains(&lately.clients_waiting),
        "{lately:?} of a number that grows from 3 to 5.25"
    );
    assert_eq!(first(300, None).0, 2.0, "a pool that has gone counts no more");
    assert_eq!(first(3600, Some("shop")), (2.0, 4.125, 9.0), "of a step of ten seconds, too");
}

#[test]
fn series_line_up_also_when_a_pool_comes_late_or_leaves() {
    let mut film = film();
    for second in 1..=25 {
        let mut pools = vec![pool("shop", "ann", second, Some(took(10, second as usize)))];
        if second > 12 {
            pools.push(pool("late", "bob", second, None));
        }
        film.show(pools);
    }
    for (window_s, expected) in [(300, (25, 13)), (3600, (2, 1))] {
        let (series, clock) = film.model.series(Some("late"), None).expect("kept");
        let steps: Vec<bool> =
            series.since(clock, window_s, 0.0).1.map(|(_, values)| !values[0].is_nan()).collect();
        assert_eq!((steps.len(), steps.iter().filter(|seen| **seen).count()), expected);
        assert_eq!(steps.last(), Some(&true));
    }
    film.show(vec![pool("shop", "ann", 26, None)]);
    assert!(film.model.series(Some("late"), None).is_none(), "gone with its pool");
}

#[test]
fn series_end_at_their_bound() {
    let mut film = film();
    for second in 1..=(super::super::limits::FINE_STEPS as u64 + 20) {
        film.show(vec![pool("shop", "ann", second, None)]);
    }
    let (series, clock) = film.model.series(None, None).expect("always");
    assert_eq!(series.since(clock, 300, 0.0).1.count(), 300);
    assert_eq!(series.since(clock, 10, 0.0).1.count(), 10);
    assert_eq!(series.since(clock, 300, f64::INFINITY).1.count(), 0);
}
