//! The places of server connections: a counter with a limit, of which this process may have only a part (`shared_limits`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mail::Scarce;

/// A counter of server connections, and the part of the limit that the poolers have agreed on for this process. Both are one number,
/// so that no connection is counted under a part that was lowered before.
#[derive(Default, Debug)]
pub struct Places(AtomicU64);

/// The number of bits of each half.
const HALF: u32 = 32;

fn unpack(packed: u64) -> (u32, u32) {
    ((packed >> HALF) as u32, packed as u32)
}

fn pack(part: u32, taken: u32) -> u64 {
    u64::from(part) << HALF | u64::from(taken)
}

impl Places {
    fn take_if(&self, may: impl Fn(u32, u32) -> bool) -> bool {
        let take = |packed: u64| {
            let (part, taken) = unpack(packed);
            may(part, taken).then(|| pack(part, taken.saturating_add(1)))
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }

    /// Takes one if fewer than `limit` are taken; 0 is no limit.
    #[must_use]
    pub fn try_take(&self, limit: u32) -> bool {
        self.take_if(|_, taken| limit == 0 || taken < limit)
    }

    /// Takes one if fewer than `limit`, and fewer than this process's part of the limit, are taken.
    #[must_use]
    pub fn try_take_part(&self, limit: u32) -> bool {
        self.take_if(|part, taken| taken < limit.min(part))
    }

    /// Counts one that exists already, whatever the limit is.
    pub fn take_anyway(&self) {
        self.take_if(|_, _| true);
    }

    /// Gives one back.
    pub fn give_back(&self) {
        let give = |packed: u64| {
            let (part, taken) = unpack(packed);
            Some(pack(part, taken.saturating_sub(1)))
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, give).unwrap_or_default();
        debug_assert!(unpack(before).1 > 0, "given back what was never taken");
    }

    /// The number that is taken.
    #[must_use]
    pub fn taken(&self) -> u32 {
        unpack(self.0.load(Ordering::Acquire)).1
    }

    /// Sets the part of the limit that this process may use. What is taken above it stays taken.
    pub fn set_part(&self, part: u32) {
        let set = |packed: u64| Some(pack(part, unpack(packed).1));
        // The closure never refuses.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, set);
    }
}

/// A line of SHOW LIMITS. The control plane decides about the parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitReport {
    /// The limit.
    pub of: Scarce,
    /// The number of connections that all poolers together may have.
    pub limit: u32,
    /// The part of this pooler.
    pub granted: u32,
    /// The number of connections of this pooler, including those that may still exist in PostgreSQL.
    pub held: u32,
    /// The number of connections that this pooler could use.
    pub demand: u32,
    /// The number of poolers that share the limit.
    pub poolers: u32,
    /// The number of connections that are kept back for poolers that have ended and whose connections may still exist.
    pub kept_back: u32,
    /// The pooler that leads; `None` if it is not known.
    pub leader: Option<Arc<str>>,
    /// The state of this pooler: `shared`, `joining`, `frozen` or `handed over` (docs/operate/console.md).
    pub state: &'static str,
    /// The reason for the state, or for connections that are kept back.
    pub reason: Option<String>,
}

/// The report of a worker about limits that are shared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitsSeen {
    /// The time at which the worker looked (monotonic, µs).
    pub at_us: u64,
    /// The limits of the worker's pools.
    pub limits: Vec<LimitSeen>,
}

/// The part of one limit that a worker's pools use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitSeen {
    /// The limit.
    pub of: Scarce,
    /// The number of connections in use, and of clients that wait for one.
    pub demand: u32,
    /// The number of connections that were given up and may still exist in PostgreSQL.
    pub unconfirmed: u32,
    /// The process ids of the servers that are logged in, and of those that were closed and may still exist.
    pub pids: Vec<u32>,
}

/// The server processes that `pg_stat_activity` shows, as far as they count towards one pool's limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendsSeen {
    /// The number of the control plane's request.
    pub number: u64,
    /// The limit on the pool's database, at the node that was asked.
    pub by_database: (Scarce, Vec<u32>),
    /// The limit on the pool's user.
    pub by_user: (Scarce, Vec<u32>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_bounds_what_is_taken_and_takes_nothing_away() {
        let places = Places::default();
        assert!(!places.try_take_part(40), "without a part there is no place");
        places.set_part(2);
        assert!(places.try_take_part(40) && places.try_take_part(40) && !places.try_take_part(40));
        places.set_part(5);
        assert!(!places.try_take_part(2), "the limit itself may be lower");
        places.set_part(1);
        assert_eq!(places.taken(), 2);
        places.give_back();
        assert!(!places.try_take_part(40));
        places.take_anyway();
        assert_eq!(places.taken(), 2);
        assert!(places.try_take(0), "0 is no limit");
    }
}
