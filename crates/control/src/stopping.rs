//! The end of the process: what it waits for, and which workers have finished. It does no I/O.

use std::time::{Duration, Instant};

use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Shutdown;

/// The action that a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// SIGHUP: read the files again.
    Reload,
    /// SIGUSR1: PAUSE everything.
    Pause,
    /// SIGUSR2: RESUME everything.
    Resume,
    /// SIGTERM, SIGINT, SIGQUIT.
    Shutdown(Shutdown),
    /// SIGTERM with `shutdown_drain_seconds`: stop being ready, and shut down after that time.
    Drain,
    /// No action in this situation.
    Ignore,
}

/// The signals that are handled. SIGPIPE is ignored by the language's runtime.
pub const SIGNALS: [i32; 6] = [
    nix::libc::SIGHUP,
    nix::libc::SIGINT,
    nix::libc::SIGTERM,
    nix::libc::SIGQUIT,
    nix::libc::SIGUSR1,
    nix::libc::SIGUSR2,
];

/// The stage of the process on its way to its end.
#[derive(Debug)]
pub enum Stopping {
    /// No signal or command asked for an end.
    No,
    /// The shutdown begins at a set time. Until then all clients are served and new ones are accepted.
    Draining {
        /// The time at which the shutdown begins.
        until: Instant,
    },
    /// The shutdown has begun, and some workers still have clients or servers that it waits for.
    Waiting {
        /// The kind of the shutdown, which says what it waits for.
        kind: Shutdown,
        /// One entry for each worker: `true` after it has reported that it is drained.
        drained: Vec<bool>,
    },
    /// The process may end now.
    Over {
        /// The kind of the shutdown.
        kind: Shutdown,
    },
}

impl Stopping {
    /// Returns the action that a signal asks for in this stage, and its log line. SIGUSR2 has no line here,
    /// because the workers log what it ends. `drain` is the setting `shutdown_drain_seconds`.
    #[must_use]
    pub fn understand(&self, signal: i32, drain: Duration) -> (Order, Option<&'static str>) {
        let stopping = !matches!(self, Stopping::No);
        let (order, words) = match signal {
            nix::libc::SIGHUP => (Order::Reload, "got SIGHUP, re-reading config"),
            nix::libc::SIGTERM if stopping => {
                (Order::Shutdown(Shutdown::Now), "got SIGTERM while shutting down, fast exit")
            }
            nix::libc::SIGTERM if !drain.is_zero() => (
                Order::Drain,
                "got SIGTERM, draining: not ready, accepting clients for shutdown_drain_seconds",
            ),
            nix::libc::SIGTERM => (
                Order::Shutdown(Shutdown::WaitForClients),
                "got SIGTERM, shutting down, waiting for all clients disconnect",
            ),
            nix::libc::SIGINT if stopping => {
                (Order::Shutdown(Shutdown::Now), "got SIGINT while shutting down, fast exit")
            }
            nix::libc::SIGINT => (
                Order::Shutdown(Shutdown::WaitForServers),
                "got SIGINT, shutting down, waiting for all servers connections to be released",
            ),
            nix::libc::SIGQUIT => (Order::Shutdown(Shutdown::Now), "got SIGQUIT, fast exit"),
            nix::libc::SIGUSR1 if stopping => (Order::Ignore, "got SIGUSR1 while shutting down, ignoring"),
            nix::libc::SIGUSR1 => (Order::Pause, "got SIGUSR1, pausing all activity"),
            nix::libc::SIGUSR2 if stopping => (Order::Ignore, "got SIGUSR2 while shutting down, ignoring"),
            nix::libc::SIGUSR2 => return (Order::Resume, None),
            _ => (Order::Ignore, "got a signal that means nothing here, ignoring"),
        };
        (order, Some(words))
    }

    /// Plans the shutdown for the end of `time`.
    pub fn drain(&mut self, now: Instant, time: Duration) {
        // A time that the clock cannot represent never comes: the process waits for another signal.
        if let Some(until) = now.checked_add(time) {
            *self = Stopping::Draining { until };
        }
    }

    /// Returns the time until the planned shutdown; `None` if none is planned.
    #[must_use]
    pub fn rest_of_drain(&self, now: Instant) -> Option<Duration> {
        match self {
            Stopping::Draining { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }

    /// Begins a shutdown. It replaces one that was requested earlier.
    pub fn begin(&mut self, kind: Shutdown, workers: u16) {
        *self = match kind {
            Shutdown::Now => Stopping::Over { kind },
            Shutdown::WaitForServers | Shutdown::WaitForClients | Shutdown::HandOver => {
                Stopping::Waiting { kind, drained: vec![false; usize::from(workers)] }
            }
        };
    }

    /// Notes that a worker has nothing left that the shutdown waits for.
    pub fn drained(&mut self, worker: WorkerId) {
        if let Stopping::Waiting { kind, drained } = self {
            if let Some(place) = drained.get_mut(usize::from(worker.0)) {
                *place = true;
            }
            if drained.iter().all(|&done| done) {
                *self = Stopping::Over { kind: *kind };
            }
        }
    }

    /// Returns the last log line when the process may end; `Some("")` if it ends without one.
    #[must_use]
    pub fn last_words(&self) -> Option<&'static str> {
        let Stopping::Over { kind } = self else { return None };
        Some(match kind {
            Shutdown::Now => "",
            Shutdown::WaitForServers => "server connections dropped, exiting",
            Shutdown::WaitForClients => "client connections dropped, exiting",
            Shutdown::HandOver => "everything was handed over, exiting",
        })
    }
}

#[cfg(test)]
mod tests {
    use nix::libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

    use super::*;

    #[test]
    fn the_second_wish_to_stop_is_obeyed_at_once() {
        for (signal, first) in [
            (SIGTERM, Shutdown::WaitForClients),
            (SIGINT, Shutdown::WaitForServers),
            (SIGQUIT, Shutdown::Now),
        ] {
            let mut stopping = Stopping::No;
            assert_eq!(stopping.understand(signal, Duration::ZERO).0, Order::Shutdown(first));
            stopping.begin(Shutdown::WaitForClients, 1);
            assert_eq!(stopping.understand(signal, Duration::ZERO).0, Order::Shutdown(Shutdown::Now));
        }
    }

    #[test]
    fn pause_and_resume_only_while_running_reload_always() {
        let mut stopping = Stopping::No;
        assert_eq!(
            SIGNALS.map(|signal| stopping.understand(signal, Duration::ZERO).0 == Order::Ignore),
            [false; 6]
        );
        stopping.begin(Shutdown::WaitForServers, 1);
        let orders = [SIGHUP, SIGUSR1, SIGUSR2].map(|signal| stopping.understand(signal, Duration::ZERO).0);
        assert_eq!(orders, [Order::Reload, Order::Ignore, Order::Ignore]);
    }

    #[test]
    fn over_when_every_worker_has_reported_for_the_latest_wish() {
        let mut stopping = Stopping::No;
        stopping.drained(WorkerId(0));
        assert_eq!(stopping.last_words(), None, "no command asked for an end");
        stopping.begin(Shutdown::WaitForClients, 2);
        stopping.drained(WorkerId(1));
        stopping.drained(WorkerId(1));
        assert_eq!(stopping.last_words(), None, "one of two, twice");
        stopping.begin(Shutdown::WaitForServers, 2);
        stopping.drained(WorkerId(0));
        stopping.drained(WorkerId(7));
        assert_eq!(stopping.last_words(), None, "what was reported before the second wish does not count");
        stopping.drained(WorkerId(1));
        assert_eq!(stopping.last_words(), Some("server connections dropped, exiting"));
    }

    #[test]
    fn now_waits_for_no_worker() {
        let mut stopping = Stopping::No;
        stopping.begin(Shutdown::Now, 4);
        assert_eq!(stopping.last_words(), Some(""));
    }

    #[test]
    fn a_drain_ends_by_time_or_by_another_wish() {
        let (now, time) = (Instant::now(), Duration::from_secs(5));
        let mut stopping = Stopping::No;
        assert_eq!(stopping.rest_of_drain(now), None);
        assert_eq!(stopping.understand(SIGTERM, time).0, Order::Drain);
        stopping.drain(now, time);
        assert_eq!(stopping.rest_of_drain(now + Duration::from_secs(2)), Some(Duration::from_secs(3)));
        assert_eq!(stopping.rest_of_drain(now + Duration::from_secs(7)), Some(Duration::ZERO));
        assert_eq!(
            stopping.understand(SIGTERM, time).0,
            Order::Shutdown(Shutdown::Now),
            "the second ends it"
        );
        stopping.begin(Shutdown::WaitForServers, 1);
        assert_eq!((stopping.rest_of_drain(now), stopping.last_words()), (None, None));
    }
}
