//! The looks at PostgreSQL's processes after poolers have ended: when they are due, and what they have shown.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pgweir_core::mail::Scarce;

use super::divide::PoolerId;
use super::unclaimed::Unclaimed;

/// The time after which the processes of PostgreSQL are asked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// The time after a pooler has ended in order before PostgreSQL is first asked.
const SETTLE: Duration = Duration::from_millis(400);

/// The looks at PostgreSQL's processes, by limit.
#[derive(Default)]
pub(super) struct Looks {
    /// The number of the last request.
    number: u64,
    of: BTreeMap<Scarce, Look>,
}

struct Look {
    /// The poolers that have ended.
    ended: BTreeSet<PoolerId>,
    unclaimed: Unclaimed,
    /// The time from which on PostgreSQL is asked.
    due: Instant,
}

impl Looks {
    /// Whether poolers with a share of this limit have ended.
    pub(super) fn is_watching(&self, of: &Scarce) -> bool {
        self.of.contains_key(of)
    }

    /// Returns the limits of which poolers with a share have ended.
    pub(super) fn limits(&self) -> Vec<Scarce> {
        self.of.keys().cloned().collect()
    }

    /// Notes the poolers with a share of this limit that have ended. After another one has ended, the first look waits for `late` at least.
    /// Returns whether a look is due.
    pub(super) fn follow(&mut self, of: &Scarce, ended: BTreeSet<PoolerId>, late: Duration) -> bool {
        if ended.is_empty() {
            self.of.remove(of);
            return false;
        }
        let now = Instant::now();
        let new = || Look { ended: BTreeSet::new(), unclaimed: Unclaimed::default(), due: now };
        let look = self.of.entry(of.clone()).or_insert_with(new);
        if !ended.is_subset(&look.ended) {
            look.unclaimed.begin(self.number + 1);
            look.due = now + SETTLE.max(late);
        }
        look.ended = ended;
        look.due <= now
    }

    /// Begins a look. Returns the number of its request.
    pub(super) fn begin(&mut self, of: &Scarce) -> u64 {
        if let Some(look) = self.of.get_mut(of) {
            look.due = Instant::now() + LOOK_AGAIN;
        }
        self.number += 1;
        self.number
    }

    /// Takes the answer to a request: the processes that PostgreSQL has. `living` are those of living poolers.
    pub(super) fn answered(&mut self, of: &Scarce, (number, pids): (u64, &[u32]), living: &BTreeSet<u32>) {
        if let Some(look) = self.of.get_mut(of) {
            look.unclaimed.look(number, pids, living);
        }
    }

    /// Returns the number of connections that the poolers that have ended have at most; `None` if that is not known yet. `living` are the
    /// processes of living poolers.
    pub(super) fn count(&mut self, of: &Scarce, living: &BTreeSet<u32>) -> Option<u32> {
        let look = self.of.get_mut(of)?;
        look.unclaimed.clear(living);
        look.unclaimed.count()
    }
}
