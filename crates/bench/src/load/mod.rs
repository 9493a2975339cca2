//! A load generator of our own, for what pgbench cannot do: transactions that begin at a given rate whatever the server
//! does, thousands of idle connections, thinking clients, bursts, mixes, TLS.
//!
//! It speaks the protocol through the project's own wire crate and waits in epoll, a thread for each share of the clients.
//! It must never be what limits a measurement: it says how late it was itself.

mod connection;
mod mix;
mod outcome;
mod plan;
mod scan;
mod stand_in;
#[cfg(test)]
mod tests;
mod tls;
mod worker;

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use mix::Mix;
pub(crate) use outcome::{Latency, Outcome};
pub(crate) use plan::{Pace, Plan, Protocol};
pub(crate) use stand_in::StandIn;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use worker::{Shared, Worker};

/// How often progress is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Makes a load; `say` gets seconds since the load began and the current TPS, once a second. A signal ends the load
/// early; what was measured until then is the outcome, and the caller looks at the interrupt.
///
/// # Errors
/// No client was let in: the server's words.
pub(crate) fn run(
    plan: &Plan,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(f64, f64),
) -> Result<Outcome, BenchError> {
    let shares = plan.shares();
    let start = Barrier::new(shares.len() + 1);
    let (done, inside, stop) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(plan.duration.is_zero()));
    let shared = Shared { plan, interrupt, start: &start, done: &done, inside: &inside, stop: &stop };
    let mut workers = Vec::new();
    for (seed, share) in (1..).zip(&shares) {
        workers.push(Worker::new(&shared, *share, seed).map_err(BenchError::io("preparing the load"))?);
    }
    let mut total = Outcome::default();
    thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        start.wait();
        if plan.reconnect || inside.load(Ordering::SeqCst) > 0 {
            tell(plan.duration, &done, interrupt, say);
        }
        stop.store(true, Ordering::SeqCst);
        for thread in threads {
            total.add(&thread.join().expect("a thread of the load ended by itself"));
        }
    });
    let no_client_entered = !plan.reconnect && total.refused >= u64::from(plan.clients + plan.idle_clients);
    if no_client_entered && !interrupt.is_raised() {
        let reason = total.errors.keys().next().cloned().unwrap_or_default();
        return Err(BenchError::failed("no client was let in", &reason));
    }
    Ok(total)
}

fn tell(duration: Duration, done: &AtomicU64, interrupt: &Interrupt, say: &mut dyn FnMut(f64, f64)) {
    let begin = Instant::now();
    let (mut before, mut told) = (0, begin);
    while begin.elapsed() < duration {
        let left = duration.saturating_sub(begin.elapsed());
        if interrupt.sleep(TELL_EVERY.min(left)).is_err() {
            return;
        }
        let now = done.load(Ordering::Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 transactions")]
        say(begin.elapsed().as_secs_f64(), (now - before) as f64 / told.elapsed().as_secs_f64().max(1e-3));
        (before, told) = (now, Instant::now());
    }
}
