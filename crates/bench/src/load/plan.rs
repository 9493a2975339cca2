//! What a load is to be.

use std::time::Duration;

use super::mix::Mix;
use pgweir_client::Login;

/// How statements are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// One Query message.
    Simple,
    /// Parse, Bind, Describe, Execute, Sync each time.
    Extended,
    /// Parse once in a connection, then Bind, Describe, Execute, Sync.
    Prepared,
}

impl Protocol {
    /// By its name in pgbench.
    #[must_use]
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        match name {
            "simple" => Some(Self::Simple),
            "extended" => Some(Self::Extended),
            "prepared" => Some(Self::Prepared),
            _ => None,
        }
    }
}

/// When transactions begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// Each client begins its next one when its last is done and it has thought for so long (on average; the time varies as
    /// people's does). The load sinks when the server is slow.
    Closed {
        /// Mean time between an answer and the next transaction.
        think: Duration,
    },
    /// So many a second begin whatever the server does, in groups of `burst`, at times that do not depend on each other.
    /// Latency counts from the time when a transaction was to begin, also when no client was free: the wait for
    /// a slow server is not forgotten.
    Open {
        /// Transactions a second.
        rate: f64,
        /// The number of transactions that begin at the same moment.
        burst: u32,
    },
}

/// A load.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Where to and as whom.
    pub(crate) login: Login,
    /// Whether connections are encrypted (certificates are not checked, as with sslmode=require).
    pub(crate) tls: bool,
    /// What is sent.
    pub(crate) mix: Mix,
    /// How it is sent.
    pub(crate) protocol: Protocol,
    /// Connections that work.
    pub(crate) clients: u32,
    /// Further connections that log in and do nothing.
    pub(crate) idle_clients: u32,
    /// When.
    pub(crate) pace: Pace,
    /// A new connection for each transaction.
    pub(crate) reconnect: bool,
    /// Threads; each has its share of the clients and of the rate.
    pub(crate) threads: u32,
    /// How long transactions are begun.
    pub(crate) duration: Duration,
}

/// A thread's share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) clients: u32,
    pub(super) idle_clients: u32,
    pub(super) pace: Pace,
}

impl Plan {
    /// The shares of all threads; none is without clients.
    pub(super) fn shares(&self) -> Vec<Share> {
        let threads = self.threads.clamp(1, self.clients.max(1));
        let part = |whole: u32, thread: u32| whole / threads + u32::from(thread < whole % threads);
        let share = |thread: u32| {
            let clients = part(self.clients, thread);
            let pace = match self.pace {
                Pace::Closed { think } => Pace::Closed { think },
                Pace::Open { rate, burst } => {
                    Pace::Open { rate: rate * f64::from(clients) / f64::from(self.clients.max(1)), burst }
                }
            };
            Share { clients, idle_clients: part(self.idle_clients, thread), pace }
        };
        (0..threads).map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgweir_client::Address;

    #[test]
    fn shares_add_up() {
        let plan = Plan {
            login: Login::trusted(Address::Loopback(1), "u", "d", "a"),
            tls: false,
            mix: Mix::single("SELECT 1").expect("good"),
            protocol: Protocol::Simple,
            clients: 11,
            idle_clients: 7,
            pace: Pace::Open { rate: 110.0, burst: 1 },
            reconnect: false,
            threads: 4,
            duration: Duration::from_secs(1),
        };
        let shares = plan.shares();
        assert_eq!(shares.iter().map(|share| share.clients).collect::<Vec<_>>(), [3, 3, 3, 2]);
        assert_eq!(shares.iter().map(|share| share.idle_clients).sum::<u32>(), 7);
        let rate: f64 = shares
            .iter()
            .map(|share| match share.pace {
                Pace::Open { rate, .. } => rate,
                Pace::Closed { .. } => 0.0,
            })
            .sum();
        assert!((rate - 110.0).abs() < 1e-9);
        assert_eq!(Plan { threads: 50, ..plan }.shares().len(), 11);
    }
}
