//! Decides whether a worker lets other threads run first (Linux: SCHED_BATCH, see sched(7)).
//!
//! If clients, the pooler and PostgreSQL share busy processors, a worker that is woken by each arriving byte
//! interrupts the very threads that were about to send more. A worker in batch mode is woken as well, but
//! interrupts no thread: it finds more to do in each of its turns, with fewer system calls and fewer
//! switches. With few clients there is nothing to collect, and each statement would only be answered later.

use super::Window;

/// The share of time that a worker with at least [`CLIENTS_MIN`] clients must work for batch mode to begin.
const BUSY_PERCENT: u64 = 25;
/// The share of time below which batch mode ends. (With fewer, larger turns the same load takes less of its
/// time.)
const IDLE_PERCENT: u64 = 8;
/// The number of clients that must have sent something in a window for batch mode to begin.
const CLIENTS_MIN: u32 = 16;

/// The scheduling policy of a worker's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// SCHED_OTHER, the policy of every thread: a worker that is woken may interrupt other threads.
    Other,
    /// SCHED_BATCH: a worker that is woken waits until the running threads have had their time.
    Batch,
}

/// Returns the policy after a window.
pub(super) fn next(policy: Policy, window: &Window) -> Policy {
    let (clients_min, busy_percent) = match policy {
        Policy::Other => (CLIENTS_MIN, BUSY_PERCENT),
        // The lower limits keep a load near the threshold from changing the policy with each window.
        Policy::Batch => (CLIENTS_MIN / 2, IDLE_PERCENT),
    };
    match window.clients >= clients_min && window.is_busier_than(busy_percent) {
        true => Policy::Batch,
        false => Policy::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(clients: u32, busy_us: u64) -> Window {
        Window { us: 1_000, busy_us, turns: 10, polled_us: 0, found_us: 0, clients }
    }

    #[test]
    fn many_clients_of_a_busy_worker_begin_it() {
        assert_eq!(next(Policy::Other, &window(CLIENTS_MIN, 250)), Policy::Batch);
        assert_eq!(next(Policy::Other, &window(CLIENTS_MIN - 1, 1_000)), Policy::Other);
        assert_eq!(next(Policy::Other, &window(1_000, 249)), Policy::Other);
    }

    #[test]
    fn it_ends_when_there_is_much_less_to_do() {
        assert_eq!(next(Policy::Batch, &window(CLIENTS_MIN / 2, 80)), Policy::Batch);
        assert_eq!(next(Policy::Batch, &window(CLIENTS_MIN / 2 - 1, 1_000)), Policy::Other);
        assert_eq!(next(Policy::Batch, &window(1_000, 79)), Policy::Other);
    }
}
