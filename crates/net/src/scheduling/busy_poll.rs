//! Decides whether a worker polls for more for a moment before it sleeps.
//!
//! To put a thread to sleep and to wake it takes longer than many a statement, and with few clients it
//! happens at each message. A worker that polls answers much sooner, but takes a processor's time. So it
//! polls only for few clients ([`CLIENTS_MAX`]) whose messages come soon, and only while polling finds them
//! in time. If other threads want the processor, they get it first; a poll then takes longer than it may, and
//! the worker sleeps like every other thread.

use super::Window;

/// The most clients in a window for which a worker polls. With more, a worker that sleeps finds work of
/// several clients when it wakes.
const CLIENTS_MAX: u32 = 8;
/// The share of time from which a worker works so much that it hardly sleeps, so polling gains nothing.
const FULL_PERCENT: u64 = 80;
/// The share of polling time in polls that found work, below which polling ends.
const FINDS_PERCENT: u64 = 75;
/// The pause after polling that did not find enough, in microseconds.
const PAUSE_US: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The worker does not poll until this time, in microseconds.
    Off {
        until_us: u64,
    },
    On,
}

/// The state of one worker's polling; see the module's head.
#[derive(Debug)]
pub(super) struct BusyPoll {
    phase: Phase,
    busy_poll_us: u64,
}

impl BusyPoll {
    /// Creates the state of a worker that may poll for `busy_poll_us` before it sleeps.
    pub(super) fn new(busy_poll_us: u64) -> BusyPoll {
        BusyPoll { phase: Phase::Off { until_us: 0 }, busy_poll_us }
    }

    pub(super) fn is_on(&self) -> bool {
        self.phase == Phase::On
    }

    pub(super) fn window_ends(&mut self, now_us: u64, window: &Window) {
        let few = (1..=CLIENTS_MAX).contains(&window.clients);
        self.phase = match self.phase {
            Phase::On if !few => Phase::Off { until_us: now_us },
            Phase::On if window.found_us * 100 < window.polled_us * FINDS_PERCENT => {
                Phase::Off { until_us: now_us + PAUSE_US }
            }
            Phase::Off { until_us } if now_us >= until_us && few && self.would_find(window) => Phase::On,
            phase => phase,
        };
    }

    /// Returns whether the work that ends a sleep comes, on average, while the worker would still poll.
    fn would_find(&self, window: &Window) -> bool {
        let slept_us = window.us.saturating_sub(window.busy_us);
        !window.is_busier_than(FULL_PERCENT) && slept_us <= window.turns.saturating_mul(self.busy_poll_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY_POLL_US: u64 = 150;

    /// One client's window in which so many percent of the polling found work in time.
    fn window(found_percent: u64) -> Window {
        let (polled_us, found_us) = (8_000, 80 * found_percent);
        Window { us: 10_000, busy_us: 2_000, turns: 100, polled_us, found_us, clients: 1 }
    }

    fn after(window: Window) -> BusyPoll {
        let mut busy_poll = BusyPoll::new(BUSY_POLL_US);
        busy_poll.window_ends(0, &window);
        busy_poll
    }

    #[test]
    fn it_begins_with_messages_that_come_soon() {
        assert!(after(window(0)).is_on());
        assert!(!after(Window { turns: 20, ..window(0) }).is_on(), "they come later than polling lasts");
        assert!(!after(Window { busy_us: 8_000, ..window(0) }).is_on(), "the worker hardly sleeps");
    }

    #[test]
    fn it_is_for_few_clients() {
        assert!(after(Window { clients: CLIENTS_MAX, ..window(0) }).is_on());
        for clients in [0, CLIENTS_MAX + 1] {
            let other = Window { clients, ..window(100) };
            assert!(!after(other).is_on());
            let mut busy_poll = after(window(0));
            busy_poll.window_ends(1, &other);
            assert!(!busy_poll.is_on());
            busy_poll.window_ends(2, &window(0));
            assert!(busy_poll.is_on(), "it begins again with the next window of few clients");
        }
    }

    #[test]
    fn it_pauses_if_it_does_not_find_work_in_time() {
        let mut busy_poll = after(window(0));
        busy_poll.window_ends(1, &window(FINDS_PERCENT));
        assert!(busy_poll.is_on());
        busy_poll.window_ends(2, &window(FINDS_PERCENT - 1));
        assert!(!busy_poll.is_on());
        busy_poll.window_ends(1 + PAUSE_US, &window(0));
        assert!(!busy_poll.is_on());
        busy_poll.window_ends(2 + PAUSE_US, &window(0));
        assert!(busy_poll.is_on());
    }
}
