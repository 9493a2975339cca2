//! The machine under the simulator: a hundred fresh seeds, every seed that ever failed, and proof that the runs are
//! repeatable and see something. (`make sim` runs thousands.)

use std::collections::BTreeMap;

use pgweir_core::Machine;
use pgweir_testkit::sim::check::reach::{
    IN_A_HUNDRED, IN_A_THOUSAND_SESSIONS, IN_CLUSTERS, IN_FIFTY_FAULTS, WITH_A_CACHE, missing,
};
use pgweir_testkit::sim::model::nodes::OLD_READ;
use pgweir_testkit::sim::plan::{Plan, Theme};
use pgweir_testkit::sim::report::{describe, run_and_trace, run_plan, run_seed};
use pgweir_testkit::sim::subject::Subject;
use pgweir_testkit::sim::trace::Trace;

/// Kept seeds, each with the reason why it is kept.
const KEPT: &str = include_str!("../regressions.txt");

/// How a seed becomes a plan.
type Plans = fn(u64) -> Plan;

const WORLDS: Plans = |seed| Plan::new(seed, &Machine::profile());
const CLUSTERS: Plans = |seed| Plan::cluster(seed, &Machine::profile());
const CACHES: Plans = |seed| Plan::cached(seed, &Machine::profile());

fn kept_seeds() -> Vec<(Plans, u64)> {
    let lines = KEPT.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let kinds: [(&str, Plans); 3] = [("cluster ", CLUSTERS), ("cache ", CACHES), ("", WORLDS)];
            let find = |&(kind, plans): &(&str, Plans)| Some((plans, line.strip_prefix(kind)?));
            let (plans, line) = kinds.iter().find_map(find).expect("every line begins with the empty text");
            let (seed, why) = line.split_once(' ').expect("a seed and the reason why it is kept");
            assert!(!why.trim().is_empty(), "seed {seed} says why it is kept");
            (plans, seed.parse().expect("a line begins with a seed"))
        })
        .collect()
}

fn run(plans: Plans, seed: u64) -> BTreeMap<&'static str, u64> {
    let outcome = run_and_trace::<Machine>(|| plans(seed));
    assert!(outcome.violation.is_none(), "\n{}", describe(&outcome));
    outcome.counters
}

fn run_all(seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        for (what, times) in run(WORLDS, seed) {
            *seen.entry(what).or_default() += times;
        }
    }
    seen
}

#[test]
fn a_hundred_seeds_hold_every_invariant_and_see_everything() {
    let missing = missing(&run_all(1..=100), &IN_A_HUNDRED);
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn multiplexed_clients_meet_every_fault() {
    let with_faults = (1..).filter(|&seed| Plan::new(seed, &Machine::profile()).theme == Theme::Faults);
    let missing = missing(&run_all(with_faults.take(50)), &IN_FIFTY_FAULTS);
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_thousand_clients_that_change_their_state_at_random_find_their_own_session() {
    let plan = Plan::thousand_sessions(2, &Machine::profile());
    assert_eq!(plan.clients.len(), 1000);
    let outcome = run_plan::<Machine>(plan, &Trace::off());
    assert!(outcome.violation.is_none(), "\n{}", describe(&outcome));
    let missing = missing(&outcome.counters, &IN_A_THOUSAND_SESSIONS);
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn clients_follow_the_primary_of_a_cluster_through_everything() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=200 {
        run(CLUSTERS, seed).into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    let missing = missing(&seen, &IN_CLUSTERS);
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_hundred_worlds_with_a_query_cache_hold_every_invariant() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=100 {
        run(CACHES, seed).into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
    }
    let missing = missing(&seen, &WITH_A_CACHE);
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

/// What the check is for, by which it is proven that it sees anything.
#[test]
fn old_reads_are_seen_where_nothing_keeps_clients_from_them() {
    let mut seen: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 1..=200 {
        let mut plan = Plan::cluster(seed, &Machine::profile());
        let cluster = plan.cluster.as_mut().expect("a world with a cluster");
        (cluster.causal_reads, cluster.is_checked) = ("off", true);
        let Some(violation) = run_plan::<Machine>(plan, &Trace::off()).violation else { continue };
        assert_eq!(violation.check, OLD_READ, "seed {seed}: {}", violation.text);
        let what = if violation.text.contains("its client had seen") { "back in time" } else { "own change" };
        *seen.entry(what).or_default() += 1;
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[test]
fn seeds_that_failed_once_hold() {
    for (plans, seed) in kept_seeds() {
        run(plans, seed);
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 200..215 {
        let (first, again) =
            (run_seed::<Machine>(seed, &Trace::off()), run_seed::<Machine>(seed, &Trace::off()));
        assert_eq!((first.digest, first.counters), (again.digest, again.counters), "seed {seed}");
    }
    let digest = |seed| run_seed::<Machine>(seed, &Trace::off()).digest;
    assert_ne!(digest(200), digest(201));
}
