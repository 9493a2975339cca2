//! The rules for the virtual address: whether this pooler takes, keeps or drops it, by what it has seen. Values only.
//!
//! The address is no lock: two poolers that both have it for a moment send clients to the same primary. So a pooler that merely cannot ask
//! etcd keeps the address, and a pooler that would take it asks the pooler that had it before. It asks while the lease lasts, so that nothing waits
//! for the answer of a dead machine, and once more while it gets the lease.

/// The lease as this pooler knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lease {
    /// etcd has not answered, or its answer is older than `vip_ttl`.
    Unknown,
    /// No pooler has the lease.
    Free,
    /// The lease is this pooler's.
    Own,
    /// The lease is another pooler's.
    Other,
}

/// The pooler that had the address last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OldHolder {
    /// The old holder was not asked yet.
    NotAsked,
    /// The old holder answers that it has the address and serves clients.
    Serves,
    /// The old holder does not answer, or answers that it does not have the address; or no other pooler has had the address.
    Gone,
}

/// The address, as far as this pooler has taken it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holding {
    /// The address was not taken, or was dropped since.
    No,
    /// The address was taken with the lease, or by a process that this one has replaced.
    Taken,
    /// The address was taken or kept by force, and etcd has not given the lease since.
    Forced,
}

/// The purpose of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The address is taken, kept or dropped as the lease says.
    Usual,
    /// An administrator has this pooler take the address although etcd cannot be asked.
    Force,
    /// The process is about to end, or no longer uses this address.
    Leave,
}

/// The facts on which a step is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// The lease.
    pub(super) lease: Lease,
    /// The address, as far as this pooler has taken it.
    pub(super) holding: Holding,
    /// The purpose of the round.
    pub(super) purpose: Purpose,
    /// Whether the network interface has the address. The kernel removes it if it was not renewed in time.
    pub(super) is_set: bool,
    /// Whether the process may set the address, and knows its network interface.
    pub(super) is_able: bool,
    /// Whether another machine has announced the address since the last step.
    pub(super) other_announces: bool,
    /// The pooler that had the address last.
    pub(super) old_holder: OldHolder,
}

/// The next thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing, until something changes.
    Rest,
    /// Ask the pooler that had the address last whether it serves, and decide again.
    Ask,
    /// Try to get the lease, and decide again.
    Campaign,
    /// Set the address and announce it.
    Take,
    /// Keep the address; announce it if `announces`.
    Keep {
        /// `true`: this pooler has the lease or was forced to take the address, so that others may be told.
        announces: bool,
    },
    /// Remove the address, and decide again.
    Drop,
    /// Give the lease back.
    Revoke,
}

impl Seen {
    /// Returns the next step.
    pub(super) fn step(&self) -> Step {
        let may_hold = self.purpose != Purpose::Leave && self.is_able;
        if self.holding != Holding::No {
            return self.step_of_holder(may_hold);
        }
        match (self.lease, self.old_holder) {
            // The kernel still has the address of an earlier process, or of one that was stopped for some time.
            (Lease::Other, _) if self.is_set => Step::Drop,
            // It could not be reached for a moment while its lease ended.
            (Lease::Own, OldHolder::Serves) if may_hold => Step::Revoke,
            (Lease::Own, _) if may_hold => Step::Take,
            (Lease::Own, _) => Step::Revoke,
            (Lease::Free, _) if !may_hold => Step::Rest,
            (Lease::Unknown, _) if !may_hold || self.purpose != Purpose::Force => Step::Rest,
            (Lease::Unknown, OldHolder::Gone) => Step::Take,
            (Lease::Free | Lease::Unknown, OldHolder::NotAsked) => Step::Ask,
            (Lease::Free, OldHolder::Gone) => Step::Campaign,
            (Lease::Free | Lease::Unknown, OldHolder::Serves) | (Lease::Other, _) => Step::Rest,
        }
    }

    /// Whether the address is kept by force, from this round on or from an earlier one.
    fn is_forced(&self) -> bool {
        self.holding == Holding::Forced || self.purpose == Purpose::Force
    }

    fn step_of_holder(&self, may_hold: bool) -> Step {
        // A pooler that leaves removes the address before it gives the lease back: the next holder asks it first.
        if !may_hold {
            return Step::Drop;
        }
        match self.lease {
            // etcd may have been down while the pooler with the lease died. Its lease then lasts for a while after etcd is back.
            Lease::Other if self.holding == Holding::Forced && !self.other_announces && self.is_set => {
                match self.old_holder {
                    OldHolder::NotAsked => Step::Ask,
                    OldHolder::Serves => Step::Drop,
                    OldHolder::Gone => Step::Keep { announces: true },
                }
            }
            Lease::Other => Step::Drop,
            // The pooler that announces the address has taken it with the lease. This one cannot prove that it has it.
            Lease::Unknown | Lease::Free if self.other_announces || !self.is_set => Step::Drop,
            Lease::Unknown => Step::Keep { announces: self.is_forced() },
            Lease::Free => Step::Campaign,
            Lease::Own if !self.is_set => Step::Take,
            Lease::Own => Step::Keep { announces: true },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASES: [Lease; 4] = [Lease::Unknown, Lease::Free, Lease::Own, Lease::Other];
    const OLD: [OldHolder; 3] = [OldHolder::NotAsked, OldHolder::Serves, OldHolder::Gone];

    const HOLDINGS: [Holding; 3] = [Holding::No, Holding::Taken, Holding::Forced];
    const PURPOSES: [Purpose; 3] = [Purpose::Usual, Purpose::Force, Purpose::Leave];

    /// Returns all 864 combinations of facts.
    fn all() -> Vec<Seen> {
        let mut all = Vec::new();
        for (lease, old_holder) in LEASES.into_iter().flat_map(|lease| OLD.map(|old| (lease, old))) {
            for (holding, purpose) in HOLDINGS.into_iter().flat_map(|held| PURPOSES.map(|own| (held, own))) {
                for bits in 0..8 {
                    all.push(Seen {
                        lease,
                        old_holder,
                        holding,
                        purpose,
                        is_set: bits & 1 != 0,
                        is_able: bits & 2 != 0,
                        other_announces: bits & 4 != 0,
                    });
                }
            }
        }
        all
    }

    /// Checks a rule in all cases that it is about.
    fn always(about: impl Fn(&Seen) -> bool, step: impl Fn(&Seen) -> Step) {
        let cases: Vec<Seen> = all().into_iter().filter(about).collect();
        assert!(!cases.is_empty(), "the rule is about nothing");
        for seen in cases {
            assert_eq!(seen.step(), step(&seen), "{seen:?}");
        }
    }

    fn holds(seen: &Seen) -> bool {
        seen.holding != Holding::No
    }

    fn leaves(seen: &Seen) -> bool {
        seen.purpose == Purpose::Leave
    }

    fn serves(seen: &Seen) -> bool {
        holds(seen) && seen.is_set && seen.is_able && !leaves(seen)
    }

    #[test]
    fn a_holder_that_merely_loses_etcd_keeps_the_address() {
        let about = |seen: &Seen| serves(seen) && seen.lease == Lease::Unknown && !seen.other_announces;
        always(about, |seen| Step::Keep { announces: seen.is_forced() });
    }

    #[test]
    fn only_force_takes_the_address_while_etcd_cannot_be_asked() {
        let about = |seen: &Seen| {
            !holds(seen) && seen.lease == Lease::Unknown && seen.is_able && seen.purpose == Purpose::Force
        };
        always(about, |seen| match seen.old_holder {
            OldHolder::NotAsked => Step::Ask,
            OldHolder::Serves => Step::Rest,
            OldHolder::Gone => Step::Take,
        });
        let about =
            |seen: &Seen| !holds(seen) && seen.lease == Lease::Unknown && seen.purpose != Purpose::Force;
        always(about, |_| Step::Rest);
    }

    #[test]
    fn a_holder_that_reads_of_another_lease_drops_the_address_at_once() {
        let about = |seen: &Seen| holds(seen) && seen.lease == Lease::Other;
        always(|seen| about(seen) && seen.holding != Holding::Forced, |_| Step::Drop);
        always(|seen| about(seen) && (seen.other_announces || !seen.is_set), |_| Step::Drop);
    }

    #[test]
    fn an_address_taken_by_force_is_given_up_to_a_lease_whose_pooler_serves() {
        let about = |seen: &Seen| {
            serves(seen)
                && seen.holding == Holding::Forced
                && seen.lease == Lease::Other
                && !seen.other_announces
        };
        always(about, |seen| match seen.old_holder {
            OldHolder::NotAsked => Step::Ask,
            OldHolder::Serves => Step::Drop,
            OldHolder::Gone => Step::Keep { announces: true },
        });
    }

    #[test]
    fn a_holder_without_the_lease_yields_to_an_announcement_and_one_with_the_lease_does_not() {
        let about = |seen: &Seen| serves(seen) && seen.other_announces;
        always(|seen| about(seen) && seen.lease != Lease::Own, |_| Step::Drop);
        always(|seen| about(seen) && seen.lease == Lease::Own, |_| Step::Keep { announces: true });
    }

    #[test]
    fn an_address_that_the_kernel_removed_is_set_again_with_the_lease_only() {
        let about = |seen: &Seen| serves(&Seen { is_set: true, ..*seen }) && !seen.is_set;
        always(|seen| about(seen) && seen.lease == Lease::Own, |_| Step::Take);
        always(|seen| about(seen) && seen.lease != Lease::Own, |_| Step::Drop);
    }

    #[test]
    fn the_old_holder_is_asked_before_the_lease_is_sought() {
        let about = |seen: &Seen| !holds(seen) && seen.lease == Lease::Free && seen.is_able && !leaves(seen);
        always(about, |seen| match seen.old_holder {
            OldHolder::NotAsked => Step::Ask,
            OldHolder::Serves => Step::Rest,
            OldHolder::Gone => Step::Campaign,
        });
        // A holder whose lease has ended has no other pooler to ask.
        let about = |seen: &Seen| serves(seen) && seen.lease == Lease::Free && !seen.other_announces;
        always(about, |_| Step::Campaign);
    }

    #[test]
    fn the_lease_is_given_back_if_the_old_holder_answers_after_all() {
        let about = |seen: &Seen| !holds(seen) && seen.lease == Lease::Own && seen.is_able && !leaves(seen);
        always(about, |seen| match seen.old_holder {
            OldHolder::Serves => Step::Revoke,
            OldHolder::NotAsked | OldHolder::Gone => Step::Take,
        });
    }

    #[test]
    fn nothing_is_taken_without_the_lease() {
        for seen in all() {
            let may_take =
                seen.lease == Lease::Own || seen.lease == Lease::Unknown && seen.purpose == Purpose::Force;
            assert!(seen.step() != Step::Take || may_take, "{seen:?}");
            assert!(seen.step() != Step::Campaign || seen.lease == Lease::Free, "{seen:?}");
            assert!(seen.step() != Step::Revoke || seen.lease == Lease::Own, "{seen:?}");
        }
    }

    #[test]
    fn a_pooler_that_leaves_or_may_not_set_addresses_removes_and_then_revokes() {
        let about = |seen: &Seen| leaves(seen) || !seen.is_able;
        always(|seen| about(seen) && holds(seen), |_| Step::Drop);
        always(|seen| about(seen) && !holds(seen) && seen.lease == Lease::Own, |_| Step::Revoke);
        always(
            |seen| about(seen) && !holds(seen) && matches!(seen.lease, Lease::Free | Lease::Unknown),
            |_| Step::Rest,
        );
    }

    #[test]
    fn an_address_of_an_earlier_process_is_removed_if_another_pooler_has_the_lease() {
        always(|seen| !holds(seen) && seen.is_set && seen.lease == Lease::Other, |_| Step::Drop);
        always(|seen| !holds(seen) && !seen.is_set && seen.lease == Lease::Other, |_| Step::Rest);
    }
}
