//! The division of a limit among poolers: a function of the keys in etcd at one moment.
//!
//! A division has a share for each pooler. `grant` is the number of connections that the pooler may have from now on, and `reserved`
//! is the most that it may still have: its grant, the part that it has not given up yet, and the connections that exist. **The sum of
//! what is reserved never grows above the limit**: a grant is raised only by what is free. So the limit holds at each moment, whatever is
//! delayed or lost.

use std::collections::BTreeMap;

/// A pooler's name in etcd: one for each life of a process, and the same for a process that replaces another one by `-R`.
pub(super) type PoolerId = String;

/// A pooler's share of a limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Share {
    /// The number of connections that the pooler may have from now on.
    pub(super) grant: u32,
    /// The number of connections that the pooler may have at most until it says otherwise.
    pub(super) reserved: u32,
}

/// The shares of a limit.
pub(super) type Shares = BTreeMap<PoolerId, Share>;

/// The report of a living pooler about a limit.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Report {
    /// The limit in the pooler's configuration; 0 if it has none.
    pub(super) limit: u32,
    /// The part that the pooler uses: it opens no connection above this number before it has written a higher one.
    pub(super) part: u32,
    /// The number of connections of the pooler, including those that may still exist in PostgreSQL.
    pub(super) held: u32,
    /// The connections among these of which only `pg_stat_activity` can say that they are gone.
    pub(super) unconfirmed: u32,
    /// The number of connections that the pooler could use.
    pub(super) demand: u32,
    /// The process ids of the pooler's servers.
    pub(super) pids: Vec<u32>,
}

impl Report {
    /// The most connections that the pooler may have at present.
    pub(super) fn most(&self) -> u32 {
        self.part.max(self.held)
    }
}

/// Returns the limit that the living poolers share: the lowest of their configurations. `None` if none of them has it.
pub(super) fn limit(reports: &BTreeMap<&PoolerId, &Report>) -> Option<u32> {
    reports.values().map(|report| report.limit).filter(|limit| *limit > 0).min()
}

/// Returns the shares that follow from the present ones and from the reports of the living poolers. The shares of other poolers stay reserved.
pub(super) fn divide(shares: &Shares, reports: &BTreeMap<&PoolerId, &Report>) -> Shares {
    let Some(limit) = limit(reports) else { return shares.clone() };
    let absent = |id: &PoolerId| !reports.contains_key(id);
    let mut next: Shares =
        shares.iter().filter(|(id, _)| absent(id)).map(|(id, share)| (id.clone(), *share)).collect();
    next.retain(|_, share| share.reserved > 0);
    let kept_back: u32 = sum(next.values().map(|share| share.reserved));
    let unconfirmed = sum(reports.values().map(|report| report.unconfirmed));
    let pie = limit.saturating_sub(kept_back).saturating_sub(unconfirmed);
    let present: Vec<Present<'_>> = reports
        .iter()
        .map(|(id, report)| Present { id, report, grant: shares.get(*id).map_or(0, |share| share.grant) })
        .collect();
    // While connections of a pooler that has ended may exist, the one that is kept back otherwise is for a pooler that must look.
    let targets = targets(pie, kept_back == 0, &present);
    // Lower grants count at once, but what is reserved only falls when the pooler has followed.
    let mut grants: Vec<u32> =
        present.iter().zip(&targets).map(|(one, target)| one.grant.min(*target)).collect();
    // Until this division is written, the pooler may raise its part to the grant of the present one, which its report does not show yet.
    let most = |one: &Present<'_>, grant: u32| grant.max(one.grant).max(one.report.most());
    let reserved = sum(present.iter().zip(&grants).map(|(one, grant)| most(one, *grant)));
    let mut free = limit.saturating_sub(kept_back).saturating_sub(reserved);
    let mut order: Vec<usize> = (0..present.len()).collect();
    // The poorest comes first, so that a pooler with nothing is served before one that wants more.
    order.sort_by_key(|&at| (grants[at].saturating_sub(present[at].report.unconfirmed), at));
    // First one for each, then the rest.
    for step in [1, u32::MAX] {
        for &at in &order {
            let one = &present[at];
            let wanted = targets[at].min(one.report.unconfirmed.saturating_add(step));
            // Up to what is reserved for the pooler anyway a grant costs nothing.
            let affordable = most(one, grants[at]).saturating_add(free);
            let grant = wanted.min(affordable).max(grants[at]);
            free -= most(one, grant) - most(one, grants[at]);
            grants[at] = grant;
        }
    }
    next.extend(
        present
            .iter()
            .zip(grants)
            .map(|(one, grant)| (one.id.to_owned(), Share { grant, reserved: most(one, grant) })),
    );
    next
}

struct Present<'a> {
    id: &'a PoolerId,
    report: &'a Report,
    grant: u32,
}

impl Present<'_> {
    /// The connections of its grant that the pooler can use.
    fn usable(&self) -> u32 {
        self.grant.saturating_sub(self.report.unconfirmed)
    }
}

/// Returns the grant that each pooler is to have. The grants stay as they are while no pooler lacks anything that another one can give.
fn targets(pie: u32, keeps_one: bool, present: &[Present<'_>]) -> Vec<u32> {
    let count = u32::try_from(present.len()).unwrap_or(u32::MAX);
    // One is kept back for a pooler that starts, or that must look which connections are gone while all others are taken.
    let pie = if keeps_one && pie > count { pie - 1 } else { pie };
    let demands: Vec<u32> = present.iter().map(|one| one.report.demand).collect();
    let parts = split(pie, &demands);
    let is_short = |(one, part): (&Present<'_>, &u32)| {
        let usable = one.usable();
        *part > usable && (one.report.demand > usable || usable == 0)
    };
    let granted = sum(present.iter().map(Present::usable));
    let stays = granted <= pie && !present.iter().zip(&parts).any(is_short);
    let target = |(one, part): (&Present<'_>, &u32)| {
        if stays { one.grant } else { one.report.unconfirmed.saturating_add(*part) }
    };
    present.iter().zip(&parts).map(target).collect()
}

/// Splits a number by demand. Each part is at least one and at most the demand, as far as a fair part goes; the rest is spread evenly.
fn split(pie: u32, demands: &[u32]) -> Vec<u32> {
    let mut parts = vec![0; demands.len()];
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|&at| (demands[at], at));
    let mut left = pie;
    for (served, &at) in order.iter().enumerate() {
        let fair = left / u32::try_from(order.len() - served).unwrap_or(u32::MAX).max(1);
        parts[at] = demands[at].max(1).min(fair);
        left -= parts[at];
    }
    for (served, &at) in order.iter().rev().enumerate() {
        let more = left.div_ceil(u32::try_from(order.len() - served).unwrap_or(u32::MAX).max(1));
        parts[at] += more;
        left -= more;
    }
    parts
}

fn sum(numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(part: u32, held: u32, demand: u32) -> Report {
        Report { limit: 40, part, held, demand, ..Report::default() }
    }

    fn divided(shares: &[(&str, u32, u32)], reports: &[(&str, Report)]) -> Vec<(u32, u32)> {
        let shares =
            shares.iter().map(|&(id, grant, reserved)| (id.to_owned(), Share { grant, reserved })).collect();
        let ids: Vec<PoolerId> = reports.iter().map(|(id, _)| (*id).to_owned()).collect();
        let reports = ids.iter().zip(reports).map(|(id, (_, report))| (id, report)).collect();
        divide(&shares, &reports).values().map(|share| (share.grant, share.reserved)).collect()
    }

    #[test]
    fn a_lone_pooler_leaves_one_for_the_next() {
        assert_eq!(divided(&[], &[("a", report(0, 0, 100))]), [(39, 39)]);
        assert_eq!(
            divided(&[("a", 39, 39)], &[("a", report(39, 39, 100)), ("b", report(0, 0, 5))]),
            [(34, 39), (1, 1)],
            "the newcomer has it at once, and the rest when the other has given it up"
        );
        assert_eq!(
            divided(&[("a", 34, 39), ("b", 1, 1)], &[("a", report(34, 34, 100)), ("b", report(1, 1, 5))]),
            [(34, 34), (5, 5)]
        );
    }

    #[test]
    fn a_grant_that_is_taken_back_before_it_was_used_is_not_given_on_at_once() {
        let reports =
            |part| [("a", report(19, 19, 19)), ("b", report(part, part, 9)), ("c", report(1, 1, 40))];
        let first = divided(&[("a", 19, 19), ("b", 20, 20), ("c", 1, 1)], &reports(1));
        assert_eq!(first[1], (9, 20), "b may be about to use all of its 20");
        assert_eq!(first[2], (1, 1));
        let then = divided(&[("a", 19, 19), ("b", 9, 20), ("c", 1, 1)], &reports(9));
        assert_eq!(then[1], (9, 9));
        assert_eq!(then[2], (12, 12));
    }

    #[test]
    fn those_that_demand_the_same_get_the_same() {
        let reports = [("a", report(0, 0, 200)), ("b", report(0, 0, 200)), ("c", report(0, 0, 200))];
        assert_eq!(divided(&[], &reports), [(13, 13), (13, 13), (13, 13)]);
    }

    #[test]
    fn what_is_not_demanded_is_spread_and_nothing_moves_without_need() {
        let idle = [("a", report(0, 0, 0)), ("b", report(0, 0, 9))];
        assert_eq!(divided(&[], &idle), [(15, 15), (24, 24)]);
        let changed = [("a", report(15, 0, 9)), ("b", report(24, 0, 0))];
        assert_eq!(divided(&[("a", 15, 15), ("b", 24, 24)], &changed), [(15, 15), (24, 24)]);
    }

    #[test]
    fn an_ended_pooler_keeps_its_share_until_it_is_seen_gone() {
        let shares = [("a", 20, 20), ("gone", 0, 15)];
        assert_eq!(divided(&shares, &[("a", report(20, 20, 100))]), [(25, 25), (0, 15)]);
        let shares = [("a", 25, 25), ("gone", 0, 0)];
        assert_eq!(divided(&shares, &[("a", report(25, 25, 100))]), [(39, 39)]);
    }

    #[test]
    fn a_pooler_whose_connections_are_all_in_doubt_gets_one_to_look() {
        let blind = Report { unconfirmed: 39, ..report(39, 39, 10) };
        assert_eq!(divided(&[("a", 39, 39)], &[("a", blind)]), [(40, 40)]);
    }

    #[test]
    fn a_lower_limit_is_followed_before_anything_grows() {
        let low = |part, held, demand| Report { limit: 10, ..report(part, held, demand) };
        let reports = [("a", low(30, 30, 50)), ("b", low(9, 9, 50))];
        assert_eq!(divided(&[("a", 30, 30), ("b", 9, 9)], &reports), [(4, 30), (5, 9)]);
    }

    prop_compose! {
        fn any_world()(
            limit in 1..60u32,
            poolers in prop::collection::vec((0..60u32, 0..60u32, 0..60u32, 0..80u32, 0..20u32, any::<bool>()), 1..6),
        ) -> (u32, Vec<(u32, u32, u32, u32, u32, bool)>) {
            (limit, poolers)
        }
    }

    proptest! {
        #[test]
        fn what_is_reserved_never_grows_above_the_limit((limit, poolers) in any_world()) {
            let ids: Vec<PoolerId> = (0..poolers.len()).map(|number| format!("p{number}")).collect();
            let mut shares = Shares::new();
            let mut living = BTreeMap::new();
            for (id, &(grant, part, held, demand, unconfirmed, is_alive)) in ids.iter().zip(&poolers) {
                let report = Report { limit, part, held, demand, unconfirmed: unconfirmed.min(held), pids: Vec::new() };
                shares.insert(id.clone(), Share { grant, reserved: grant.max(report.most()) });
                if is_alive {
                    living.insert(id, report);
                }
            }
            let reports: BTreeMap<&PoolerId, &Report> = living.iter().map(|(id, report)| (*id, report)).collect();
            let before = sum(shares.values().map(|share| share.reserved));
            let next = divide(&shares, &reports);
            let after = sum(next.values().map(|share| share.reserved));
            if reports.is_empty() {
                prop_assert_eq!(&next, &shares);
            } else {
                prop_assert!(after <= limit.max(before));
            }
            for (id, share) in &next {
                match reports.get(id) {
                    Some(report) => prop_assert!(share.reserved >= share.grant.max(report.most())),
                    None => prop_assert_eq!(Some(share), shares.get(id)),
                }
            }
        }

        #[test]
        fn poolers_that_follow_soon_rest_with_all_of_the_limit_given_out((limit, poolers) in any_world()) {
            let ids: Vec<PoolerId> = (0..poolers.len()).map(|number| format!("p{number}")).collect();
            let mut reports: Vec<Report> = poolers.iter()
                .map(|&(_, _, held, demand, ..)| Report { limit, held, demand, ..Report::default() })
                .collect();
            let mut shares = Shares::new();
            for _ in 0..6 {
                let seen = ids.iter().zip(&reports).collect();
                shares = divide(&shares, &seen);
                for (id, report) in ids.iter().zip(&mut reports) {
                    report.part = shares[id].grant;
                    report.held = report.held.min(report.part);
                }
            }
            let seen = ids.iter().zip(&reports).collect();
            prop_assert_eq!(&divide(&shares, &seen), &shares, "nothing flaps");
            let given = sum(shares.values().map(|share| share.grant));
            let count = u32::try_from(ids.len()).expect("few");
            let most = if limit > count { limit - 1 } else { limit };
            prop_assert!(given <= most);
            let wanted = sum(reports.iter().map(|report| report.demand.max(1)));
            prop_assert!(given >= wanted.min(most), "{} of {} given", given, most);
            let starves = |report: &Report| report.part == 0;
            prop_assert!(limit < count || !reports.iter().any(starves));
        }
    }
}
