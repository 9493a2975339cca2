//! The server processes that may belong to a pooler that has ended: those that PostgreSQL shows and no living pooler has.
//!
//! PostgreSQL does not say which pooler a process belongs to. But a pooler that has ended, or is cut off from etcd, opens no connection any
//! more when its lease is over. So its processes are among those that the first look after that shows, and a process that no living
//! pooler knows is taken for one of them until it is gone, even if it is a stranger's.

use std::collections::{BTreeMap, BTreeSet};

/// The processes that may be those of ended poolers, for one limit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Unclaimed {
    /// The processes; `None` before the first look.
    pids: Option<BTreeSet<u32>>,
    /// The processes that the last look did not show, each with the request that first lacked it. A process that ends disappears from
    /// `pg_stat_activity` a moment before PostgreSQL counts it off, so the answer to a later request must lack it, too.
    unseen: BTreeMap<u32, u64>,
    /// The request of the control plane from which on an answer counts.
    since: u64,
}

impl Unclaimed {
    /// Begins again: another pooler has ended, so that answers to requests before this number say nothing of it.
    pub(super) fn begin(&mut self, number: u64) {
        *self = Unclaimed { since: number, ..Unclaimed::default() };
    }

    /// Takes an answer: the processes that PostgreSQL has. `living` are those of living poolers.
    pub(super) fn look(&mut self, number: u64, shown: &[u32], living: &BTreeSet<u32>) {
        if number < self.since {
            return;
        }
        let unknown: BTreeSet<u32> = shown.iter().filter(|pid| !living.contains(pid)).copied().collect();
        let Some(pids) = &mut self.pids else {
            self.pids = Some(unknown);
            return;
        };
        self.unseen.retain(|pid, _| !unknown.contains(pid));
        for pid in pids.difference(&unknown) {
            self.unseen.entry(*pid).or_insert(number);
        }
        let is_gone = |pid: &u32| self.unseen.get(pid).is_some_and(|first| *first < number);
        pids.retain(|pid| !living.contains(pid) && !is_gone(pid));
    }

    /// Notes the processes of living poolers, which belong to no pooler that has ended.
    pub(super) fn clear(&mut self, living: &BTreeSet<u32>) {
        if let Some(pids) = &mut self.pids {
            pids.retain(|pid| !living.contains(pid));
        }
    }

    /// The number of connections that ended poolers have at most; `None` if that is not known yet.
    pub(super) fn count(&self) -> Option<u32> {
        self.pids.as_ref().map(|pids| u32::try_from(pids.len()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pids: &[u32]) -> BTreeSet<u32> {
        pids.iter().copied().collect()
    }

    #[test]
    fn suspects_only_become_fewer() {
        let mut unclaimed = Unclaimed::default();
        unclaimed.begin(5);
        assert_eq!(unclaimed.count(), None);
        unclaimed.look(4, &[], &set(&[]));
        assert_eq!(unclaimed.count(), None, "the answer is older than the end of the pooler");
        unclaimed.look(5, &[1, 2, 3, 9], &set(&[9]));
        assert_eq!(unclaimed.count(), Some(3));
        unclaimed.look(6, &[2, 3, 7, 8], &set(&[9]));
        assert_eq!(unclaimed.count(), Some(3), "PostgreSQL may count 1 for a moment");
        unclaimed.look(6, &[2, 3, 7, 8], &set(&[9]));
        assert_eq!(unclaimed.count(), Some(3), "this is another pool's answer to the same request");
        unclaimed.look(7, &[2, 3, 7, 8], &set(&[9]));
        assert_eq!(unclaimed.count(), Some(2), "7 and 8 came after the pooler had ended");
        unclaimed.clear(&set(&[3]));
        assert_eq!(unclaimed.count(), Some(1), "3 was a living pooler's that had not told it yet");
        unclaimed.look(8, &[7, 8], &set(&[]));
        unclaimed.look(9, &[2, 7, 8], &set(&[]));
        unclaimed.look(10, &[7, 8], &set(&[]));
        assert_eq!(unclaimed.count(), Some(1), "the looks that lack it are not in a row");
        unclaimed.look(11, &[7, 8], &set(&[]));
        assert_eq!(unclaimed.count(), Some(0));
    }
}
