//! How the process comes to its end: what is waited for, and which workers are through with it. No I/O.

use std::time::{Duration, Instant};

use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Shutdown;

/// What a signal asks for.
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
    /// SIGTERM with `shutdown_drain_seconds`.
    Drain,
    /// Nothing, in this situation.
    Ignore,
}

/// The signals that mean something to us; SIGPIPE is ignored by the language's runtime.
pub const SIGNALS: [i32; 6] = [
    nix::libc::SIGHUP,
    nix::libc::SIGINT,
    nix::libc::SIGTERM,
    nix::libc::SIGQUIT,
    nix::libc::SIGUSR1,
    nix::libc::SIGUSR2,
];

/// Where the process stands on its way out.
#[derive(Debug)]
pub enum Stopping {
    /// No signal or command asked for an end.
    No,
    /// An end was asked for, and begins at this time; until then all clients are served and new ones come in.
    Draining {
        /// When the shutdown begins.
        until: Instant,
    },
    /// An end was asked for; some workers still have what it waits for.
    Waiting {
        /// What is waited for.
        kind: Shutdown,
        /// One place for each worker: `true` once it has reported.
        drained: Vec<bool>,
    },
    /// The process may end now.
    Over {
        /// What was waited for.
        kind: Shutdown,
    },
}

impl Stopping {
    /// What a signal means now, and the log line it gets; what SIGUSR2 ends, the workers know and say. `drain` is the setting
    /// `shutdown_drain_seconds`.
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

    /// The shutdown begins after this time.
    pub fn drain(&mut self, now: Instant, time: Duration) {
        // Later than the clock can say is not before another signal.
        if let Some(until) = now.checked_add(time) {
            *self = Stopping::Draining { until };
        }
    }

    /// How long it is until the shutdown begins; `None` if no time is set for that.
    #[must_use]
    pub fn rest_of_drain(&self, now: Instant) -> Option<Duration> {
        match self {
            Stopping::Draining { until } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }

    /// An end was asked for; a later wish replaces an earlier one.
    pub fn begin(&mut self, kind: Shutdown, workers: u16) {
        *self = match kind {
            Shutdown::Now => Stopping::Over { kind },
            Shutdown::WaitForServers | Shutdown::WaitForClients | Shutdown::HandOver => {
                Stopping::Waiting { kind, drained: vec![false; usize::from(workers)] }
            }
        };
    }

    /// A worker has nothing left that is waited for.
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

    /// The last log line, once the process may end; `Some("")` where none is due.
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
