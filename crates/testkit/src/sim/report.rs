//! Running seeds, and telling what came of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::plan::Plan;
use super::subject::Subject;
use super::trace::Trace;
use super::world::World;
use crate::sim::check::checks::Violation;

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed of the run.
    pub seed: u64,
    /// The plan, in one line.
    pub summary: String,
    /// The command that runs it again.
    pub repeat: String,
    /// The broken invariant, if any.
    pub violation: Option<Violation>,
    /// The number of times that each event happened.
    pub counters: BTreeMap<&'static str, u64>,
    /// Hash of all events; the same for every run of the seed.
    pub digest: u64,
    /// The number of events.
    pub events: u64,
    /// The last lines of the trace, where one was kept.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run_seed<E: Subject>(seed: u64, trace: &Trace) -> Outcome {
    run_plan::<E>(Plan::new(seed, &E::profile()), trace)
}

/// Runs one plan. A panic of the engine is a violation like any other.
#[must_use]
pub fn run_plan<E: Subject>(plan: Plan, trace: &Trace) -> Outcome {
    let (seed, summary, repeat) = (plan.seed, plan.summary(), plan.repeat());
    let kept = trace.clone();
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::<E>::new(plan, kept);
        let events = world.run();
        (world.cx.checks.violation().cloned(), world.cx.checks.counters().clone(), world.cx.digest(), events)
    }));
    let (violation, counters, digest, events) = run.unwrap_or_else(|payload| {
        let violation = Violation { check: "the machine never panics", text: panic_text(payload.as_ref()) };
        (Some(violation), BTreeMap::new(), 0, 0)
    });
    Outcome { seed, summary, repeat, violation, counters, digest, events, trace: trace.tail() }
}

fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Lines of trace that a failure shows.
const TRACE_LINES: usize = 120;

/// Runs the plan of a seed; if it fails, runs it again with a trace.
#[must_use]
pub fn run_and_trace<E: Subject>(plan: impl Fn() -> Plan) -> Outcome {
    let outcome = run_plan::<E>(plan(), &Trace::off());
    if outcome.violation.is_none() {
        return outcome;
    }
    let again = run_plan::<E>(plan(), &Trace::keep(TRACE_LINES, false));
    if again.violation == outcome.violation {
        return again;
    }
    let text = format!("the second run differs: first {:?}, then {:?}", outcome.violation, again.violation);
    Outcome { violation: Some(Violation { check: "a seed repeats its run", text }), ..again }
}

/// A failure as a person wants to read it.
#[must_use]
pub fn describe(outcome: &Outcome) -> String {
    let mut text = String::new();
    for line in &outcome.trace {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&format!("seed {}: {}\n", outcome.seed, outcome.summary));
    if let Some(violation) = &outcome.violation {
        text.push_str(&format!("violated: {}\n  {}\n", violation.check, violation.text));
        text.push_str(&format!("to repeat: {}\n", outcome.repeat));
    }
    text
}
