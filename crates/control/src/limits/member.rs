//! The decisions of a pooler that has read the keys in etcd: the parts that it uses, and the values that it writes. There is no I/O here.
//!
//! **A pooler lowers its part before it says so, and says so before it raises it.** Its report is written only if the division is still the
//! one that it has read, and its own key what it wrote last: no report that comes late replaces a newer one.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_core::mail::Scarce;

use super::divide::{PoolerId, Report, Share, Shares, divide};
use super::documents::{Division, Document};

/// The keys in etcd at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Snapshot {
    pub(super) division: Division,
    /// The revision at which the division was last written; 0 if there is none.
    pub(super) division_at: u64,
    /// The reports of living poolers, each with the revision at which it was written.
    pub(super) members: BTreeMap<PoolerId, (Document, u64)>,
    /// The pooler that leads.
    pub(super) leader: Option<PoolerId>,
    /// The names of poolers whose former process has not ended yet.
    pub(super) handed_over: BTreeSet<PoolerId>,
}

impl Snapshot {
    /// Returns this pooler's grant.
    pub(super) fn grant(&self, of: &Scarce, id: &PoolerId) -> u32 {
        self.division.get(of).and_then(|shares| shares.get(id)).map_or(0, |share| share.grant)
    }

    /// Returns the reports about a limit.
    pub(super) fn reports(&self, of: &Scarce) -> BTreeMap<&PoolerId, &Report> {
        self.members.iter().filter_map(|(id, (document, _))| Some((id, document.limits.get(of)?))).collect()
    }

    /// Returns all limits of the division and of the reports.
    pub(super) fn limits(&self) -> BTreeSet<Scarce> {
        let reported = self.members.values().flat_map(|(document, _)| document.limits.keys());
        self.division.keys().chain(reported).cloned().collect()
    }

    /// Returns the process ids of the living poolers' servers.
    pub(super) fn pids(&self, of: &Scarce) -> BTreeSet<u32> {
        self.reports(of).values().flat_map(|report| report.pids.iter().copied()).collect()
    }

    /// Returns the poolers that have a share and are not alive.
    pub(super) fn ended(&self, of: &Scarce) -> BTreeSet<PoolerId> {
        let shares = self.division.get(of).into_iter().flatten();
        let ended = shares.filter(|(id, share)| share.reserved > 0 && !self.members.contains_key(*id));
        ended.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the division that the leader writes: each limit divided by the present demands.
    pub(super) fn divided(&self) -> Division {
        let none = Shares::new();
        let divided = self.limits().into_iter().map(|of| {
            let shares = divide(self.division.get(&of).unwrap_or(&none), &self.reports(&of));
            (of, shares)
        });
        divided.filter(|(_, shares)| !shares.is_empty()).collect()
    }

    /// Returns the division in which the poolers that have ended have no more than `seen` connections together.
    pub(super) fn settled(&self, of: &Scarce, seen: u32) -> Division {
        let (mut division, ended) = (self.division.clone(), self.ended(of));
        let mut left = seen;
        for (_, share) in division.get_mut(of).into_iter().flatten().filter(|(id, _)| ended.contains(*id)) {
            // A pooler that comes back must not use a grant of which a part is given out. Until this division is written it may: so the grant stays
            // reserved, and a later division gives it out.
            *share = Share { grant: 0, reserved: share.reserved.min(left.max(share.grant)) };
            left = left.saturating_sub(share.reserved);
        }
        division
    }

    /// Returns the division in which a pooler that ends has only the connections that it still has, of all limits. A limit under which a login
    /// has not ended keeps its share: PostgreSQL may count the connection and not show it, so the other poolers must wait until the login
    /// is over, as for a pooler that was killed.
    pub(super) fn without(&self, id: &PoolerId, left: &BTreeMap<Scarce, Left>) -> Division {
        let mut division = self.division.clone();
        for (of, shares) in &mut division {
            let Some(left) = left.get(of).filter(|left| left.logins == 0) else { continue };
            if let Some(share) = shares.get_mut(id) {
                *share = Share { grant: 0, reserved: share.reserved.min(left.held) };
            }
        }
        division
    }
}

/// The connections of a pooler that ends, of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    /// The number of connections that the pooler has.
    pub(super) held: u32,
    /// The number of those whose login is not over.
    pub(super) logins: u32,
}

/// The parts that this process uses.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Parts(BTreeMap<Scarce, u32>);

impl Parts {
    /// Returns the part of a limit that the process uses.
    pub(super) fn of(&self, of: &Scarce) -> u32 {
        self.0.get(of).copied().unwrap_or(0)
    }

    /// Forgets all parts: the lease is over.
    pub(super) fn lose(&mut self) {
        self.0.clear();
    }

    /// Lowers the parts that are above their grants. They count from now on.
    pub(super) fn lower(&mut self, snapshot: &Snapshot, id: &PoolerId) {
        self.0.iter_mut().for_each(|(of, part)| *part = (*part).min(snapshot.grant(of, id)));
    }

    /// Takes the parts of a report that was written. Returns whether one is higher than before.
    pub(super) fn raise(&mut self, written: &Document) -> bool {
        let mut is_higher = false;
        for (of, report) in &written.limits {
            is_higher |= report.part > self.of(of);
            self.0.insert(of.clone(), report.part);
        }
        is_higher
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of() -> Scarce {
        Scarce::Database("app".into())
    }

    fn snapshot(shares: &[(&str, u32, u32)], living: &[&str]) -> Snapshot {
        let share = |&(id, grant, reserved): &(&str, u32, u32)| (id.to_owned(), Share { grant, reserved });
        let member = |id: &&str| ((*id).to_owned(), (Document::default(), 1));
        Snapshot {
            division: [(of(), shares.iter().map(share).collect())].into(),
            members: living.iter().map(member).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_part_is_lowered_at_once_and_raised_when_it_is_written() {
        let (mut parts, id) = (Parts::default(), "a".to_owned());
        let raised = |part| Document {
            limits: [(of(), Report { part, ..Report::default() })].into(),
            ..Document::default()
        };
        parts.lower(&snapshot(&[("a", 9, 9)], &["a"]), &id);
        assert_eq!(parts.of(&of()), 0, "the report does not say it yet");
        assert!(parts.raise(&raised(9)));
        parts.lower(&snapshot(&[("a", 4, 9)], &["a"]), &id);
        assert_eq!(parts.of(&of()), 4);
        assert!(!parts.raise(&raised(4)));
        parts.lower(&snapshot(&[], &["a"]), &id);
        assert_eq!(parts.of(&of()), 0, "a share that is gone is a share of nothing");
    }

    #[test]
    fn poolers_that_have_ended_share_what_is_seen() {
        let seen = snapshot(&[("a", 10, 10), ("b", 6, 8), ("c", 5, 5)], &["a"]);
        assert_eq!(seen.ended(&of()), ["b".to_owned(), "c".to_owned()].into());
        let settled =
            |seen: &Snapshot, count| Snapshot { division: seen.settled(&of(), count), ..seen.clone() };
        let shares = |seen: &Snapshot| {
            let shares = seen.division[&of()].values();
            shares.map(|share| (share.grant, share.reserved)).collect::<Vec<_>>()
        };
        let first = settled(&seen, 10);
        assert_eq!(shares(&first), [(10, 10), (0, 8), (0, 5)], "one of them may come back at this moment");
        assert_eq!(shares(&settled(&first, 10)), [(10, 10), (0, 8), (0, 2)]);
        let first = settled(&seen, 0);
        assert_eq!(shares(&first), [(10, 10), (0, 6), (0, 5)]);
        assert_eq!(shares(&settled(&first, 0)), [(10, 10), (0, 0), (0, 0)]);
        let left = |logins| seen.without(&"a".to_owned(), &[(of(), Left { held: 3, logins })].into());
        assert_eq!(left(0)[&of()]["a"], Share { grant: 0, reserved: 3 });
        assert_eq!(
            left(1)[&of()]["a"],
            Share { grant: 10, reserved: 10 },
            "one may come that is not seen yet"
        );
    }
}
