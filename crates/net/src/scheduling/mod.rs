//! Scheduling of a worker by two fixed rules: whether it polls for more before it sleeps ([`busy_poll`]), and
//! whether it lets other threads run first ([`batch`]).
//!
//! Both rules look at windows of [`WINDOW_US`] and need no history. They exclude each other: the one is for
//! few clients, the other for many.
//!
//! This folder only calculates; it must never call the system.

pub(crate) use batch::Policy;
use busy_poll::BusyPoll;
pub(crate) use poll_permit::{PollPermit, PollPermits};

mod batch;
mod busy_poll;
mod poll_permit;

/// The length of the windows, in microseconds.
const WINDOW_US: u64 = 30_000;

/// A worker's counters since its start.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Work {
    /// Time spent in turns.
    pub(crate) busy_us: u64,
    /// Turns of the loop.
    pub(crate) turns: u64,
    /// Time spent polling.
    pub(crate) polled_us: u64,
    /// The part of `polled_us` in polls that found work in time.
    pub(crate) found_us: u64,
}

/// A worker's activity in one window.
#[derive(Clone, Copy, Debug)]
struct Window {
    us: u64,
    busy_us: u64,
    turns: u64,
    polled_us: u64,
    found_us: u64,
    /// The number of clients that sent something.
    clients: u32,
}

impl Window {
    fn is_busier_than(&self, percent: u64) -> bool {
        self.busy_us * 100 >= self.us * percent
    }
}

/// The scheduling of one worker; see the module's head.
#[derive(Debug)]
pub(crate) struct Scheduling {
    may_batch: bool,
    policy: Policy,
    busy_poll: Option<BusyPoll>,
    since_us: u64,
    before: Work,
}

impl Scheduling {
    /// Creates the scheduling of a worker. `may_batch`: it may let other threads run first. `busy_poll_us`:
    /// the time that it may poll before it sleeps; 0 means that it never polls.
    pub(crate) fn new(may_batch: bool, busy_poll_us: u64) -> Scheduling {
        Scheduling {
            may_batch,
            policy: Policy::Other,
            busy_poll: (busy_poll_us > 0).then(|| BusyPoll::new(busy_poll_us)),
            since_us: 0,
            before: Work::default(),
        }
    }

    /// Returns the policy of the worker's thread.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns whether the worker polls before it sleeps.
    pub(crate) fn polls(&self) -> bool {
        self.busy_poll.as_ref().is_some_and(BusyPoll::is_on)
    }

    /// Returns whether the caller has to call [`window_ends`](Scheduling::window_ends) at the end of this
    /// turn.
    #[inline]
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.since_us + WINDOW_US
    }

    /// Decides for the next window. `clients` is the number of clients that sent something in this one.
    /// Returns the thread's policy if it changes.
    pub(crate) fn window_ends(&mut self, now_us: u64, work: Work, clients: u32) -> Option<Policy> {
        let before = std::mem::replace(&mut self.before, work);
        let window = Window {
            us: now_us - std::mem::replace(&mut self.since_us, now_us),
            busy_us: work.busy_us - before.busy_us,
            turns: work.turns - before.turns,
            polled_us: work.polled_us - before.polled_us,
            found_us: work.found_us - before.found_us,
            clients,
        };
        if let Some(busy_poll) = &mut self.busy_poll {
            busy_poll.window_ends(now_us, &window);
        }
        let policy = if self.may_batch { batch::next(self.policy, &window) } else { Policy::Other };
        (std::mem::replace(&mut self.policy, policy) != policy).then_some(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a second of equal windows: the number in which the worker polled, and the number in
    /// which it was in batch mode.
    fn second_of(scheduling: &mut Scheduling, clients: u32, busy_us: u64, turns: u64) -> (u32, u32) {
        let (mut work, mut now_us) = (scheduling.before, scheduling.since_us);
        let (mut polled, mut batched) = (0, 0);
        for _ in 0..1_000_000 / WINDOW_US {
            now_us += WINDOW_US;
            work.busy_us += busy_us;
            work.turns += turns;
            polled += u32::from(scheduling.polls());
            batched += u32::from(scheduling.policy() == Policy::Batch);
            let polled_us = if scheduling.polls() { WINDOW_US - busy_us } else { 0 };
            work.polled_us += polled_us;
            work.found_us += polled_us;
            assert!(scheduling.is_due(now_us));
            scheduling.window_ends(now_us, work, clients);
            assert!(!scheduling.is_due(now_us + WINDOW_US - 1));
        }
        (polled, batched)
    }

    const BUSY_POLL_US: u64 = 150;
    const WINDOWS: u32 = 33;

    #[test]
    fn few_clients_make_a_worker_poll_and_many_make_it_wait() {
        let mut scheduling = Scheduling::new(true, BUSY_POLL_US);
        assert_eq!(second_of(&mut scheduling, 1, 5_000, 600), (WINDOWS - 1, 0));
        assert_eq!(second_of(&mut scheduling, 200, 15_000, 600), (1, WINDOWS - 1));
        assert_eq!(second_of(&mut scheduling, 0, 0, 1), (0, 1));
    }

    #[test]
    fn neither_is_done_against_the_settings() {
        let mut scheduling = Scheduling::new(false, 0);
        assert_eq!(second_of(&mut scheduling, 1, 5_000, 600), (0, 0));
        assert_eq!(second_of(&mut scheduling, 200, 15_000, 600), (0, 0));
    }
}
