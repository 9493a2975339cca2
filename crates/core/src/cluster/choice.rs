//! The choice of the standby for the next read. Values only.
//!
//! Standbys of the pooler's zone come first; among them, with `prefer_lower_lag`, those whose lag is not much greater than the least. Of
//! these the one with the least load for its share is next. Standbys that are equal take turns, each according to its share.

/// A standby that may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    /// The last connection to it failed.
    pub(crate) is_failing: bool,
    pub(crate) nearness: Nearness,
    /// The number of clients that the standby serves, or that wait for it.
    pub(crate) load: u32,
    /// The standby's share of the reads, in thousandths; a standby with share 0 is never chosen.
    pub(crate) share: u32,
    /// The standby's position in the turns; of equal standbys the one with the lowest is next. [`passed`] increases it.
    pub(crate) pass: u64,
}

/// The preference that counts before a standby's load; the first is best.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Nearness {
    Near,
    /// The standby is in the pooler's zone, but another standby lags much less (`prefer_lower_lag`).
    Late,
    /// The standby is in another zone than the pooler.
    Far,
    FarAndLate,
}

impl Nearness {
    pub(crate) fn of(is_far: bool, is_late: bool) -> Nearness {
        match (is_far, is_late) {
            (false, false) => Nearness::Near,
            (false, true) => Nearness::Late,
            (true, false) => Nearness::Far,
            (true, true) => Nearness::FarAndLate,
        }
    }
}

/// The step of a standby of share 1 (1000 thousandths) in the turns.
const STRIDE: u64 = 1 << 20;

impl Candidate {
    /// The value for a standby that gets no reads.
    pub(crate) const CLOSED: Candidate =
        Candidate { is_failing: false, nearness: Nearness::Near, load: 0, share: 0, pass: 0 };

    /// Returns the criteria that count before the load; a lower value is better.
    fn rank(&self) -> (bool, Nearness) {
        (self.is_failing, self.nearness)
    }

    fn comes_before(&self, other: &Candidate) -> bool {
        let key = |candidate: &Candidate| (candidate.rank(), candidate.pressure(), candidate.pass);
        key(self) < key(other)
    }

    /// Returns the load divided by the share, in thousandths.
    fn pressure(&self) -> u64 {
        u64::from(self.load) * 1_000_000 / u64::from(self.share.max(1))
    }
}

/// Returns the standby for the next read and its place in the sequence; `None` if no standby has a share.
pub(crate) fn next(candidates: impl IntoIterator<Item = Candidate>) -> Option<(usize, Candidate)> {
    let mut best: Option<(usize, Candidate)> = None;
    for (place, candidate) in candidates.into_iter().enumerate() {
        if candidate.share > 0 && best.is_none_or(|(_, best)| candidate.comes_before(&best)) {
            best = Some((place, candidate));
        }
    }
    best
}

/// Returns the new position in the turns of a standby that was chosen.
pub(crate) fn passed(candidate: &Candidate) -> u64 {
    candidate.pass.saturating_add(STRIDE * 1000 / u64::from(candidate.share.max(1)))
}

/// The load in thousandths by which a client's present standby may exceed 150 % of the best one's load before the client leaves it.
const HOME_SLACK: u64 = 2_000;

/// Whether a client stays at the standby that served it last: that standby is as near as the best one, and at most about 50 % more loaded.
pub(crate) fn stays(home: &Candidate, best: &Candidate) -> bool {
    home.share > 0
        && home.rank() <= best.rank()
        && home.pressure() <= best.pressure() + best.pressure() / 2 + HOME_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(candidates: &[Candidate]) -> Option<usize> {
        super::next(candidates.iter().copied()).map(|(place, _)| place)
    }

    fn candidate(load: u32, share: u32) -> Candidate {
        Candidate { is_failing: false, nearness: Nearness::Near, load, share, pass: 0 }
    }

    #[test]
    fn the_least_loaded_for_its_share_is_next() {
        assert_eq!(next(&[candidate(3, 1000), candidate(2, 1000)]), Some(1));
        assert_eq!(next(&[candidate(3, 2000), candidate(2, 1000)]), Some(0));
        assert_eq!(next(&[candidate(0, 0), candidate(9, 100)]), Some(1), "weight 0 gets nothing");
        assert_eq!(next(&[candidate(0, 0)]), None);
        let failing = Candidate { is_failing: true, ..candidate(0, 1000) };
        assert_eq!(next(&[failing, candidate(50, 1000)]), Some(1));
        assert_eq!(next(&[failing]), Some(0), "the only one is tried");
        let far = Candidate { nearness: Nearness::Far, ..candidate(0, 1000) };
        assert_eq!(next(&[far, candidate(50, 1000)]), Some(1), "the own zone comes first");
        assert_eq!(next(&[far, candidate(50, 0)]), Some(0));
        assert!(!stays(&far, &candidate(50, 1000)));
        let late = Candidate { nearness: Nearness::Late, ..candidate(0, 1000) };
        assert_eq!(next(&[late, candidate(50, 1000)]), Some(1), "less lag comes before load");
        assert_eq!(next(&[late, far]), Some(0), "and the zone before both");
        let both = Candidate { nearness: Nearness::of(true, true), ..candidate(0, 1000) };
        assert_eq!(next(&[both, Candidate { load: 50, ..far }]), Some(1));
        assert!(!stays(&late, &candidate(50, 1000)));
    }

    #[test]
    fn equals_take_turns_by_their_shares() {
        let mut both = [candidate(0, 2000), candidate(0, 1000)];
        let mut times = [0; 2];
        for _ in 0..300 {
            let place = next(&both).expect("both are open");
            times[place] += 1;
            both[place].pass = passed(&both[place]);
        }
        assert_eq!(times, [200, 100]);
    }

    #[test]
    fn a_home_is_left_for_much_less_load_only() {
        assert!(stays(&candidate(2, 1000), &candidate(0, 1000)));
        assert!(!stays(&candidate(3, 1000), &candidate(0, 1000)));
        assert!(stays(&candidate(17, 1000), &candidate(10, 1000)));
        assert!(!stays(&candidate(18, 1000), &candidate(10, 1000)));
        assert!(!stays(&candidate(0, 0), &candidate(10, 1000)));
    }

    proptest! {
        #[test]
        fn what_is_chosen_is_open_and_no_other_has_less_load_for_its_share(
            all in prop::collection::vec((any::<(bool, bool, bool)>(), 0u32..1000, 0u32..3000, 0u64..1000), 0..8)
        ) {
            let all: Vec<Candidate> = all
                .into_iter()
                .map(|((is_failing, is_far, is_late), load, share, pass)| Candidate { is_failing, nearness: Nearness::of(is_far, is_late), load, share, pass })
                .collect();
            match next(&all) {
                None => prop_assert!(all.iter().all(|candidate| candidate.share == 0)),
                Some(place) => {
                    let chosen = &all[place];
                    prop_assert!(chosen.share > 0);
                    for other in all.iter().filter(|other| other.share > 0 && other.rank() <= chosen.rank()) {
                        prop_assert!(chosen.pressure() <= other.pressure());
                    }
                }
            }
        }
    }
}
