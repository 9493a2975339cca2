//! When a pool's released servers are looked at (`session_audit_sample`), and which statements were found to
//! change a session unseen. Values only; `session_check.rs` looks.

use std::collections::VecDeque;

use pgweir_sql::{Marks, assignments, traits};

use crate::context::Env;
use crate::ids::PoolId;
use crate::limits::{LOOKS_ALERT, WATCHED_STATEMENTS_MAX};
use crate::pool::Pool;
use crate::pool::relay::exchange::group::Group;

/// The schedule of session checks: which of a pool's releases of servers are followed by one.
#[derive(Default)]
pub(crate) struct SessionChecks {
    /// The configured rate: about one release in `wanted` is followed by a check.
    wanted: u32,
    /// The rate in effect; 0: no release is checked.
    one_in: u32,
    /// Number of releases until the next check, that release included; 0: there is none.
    left: u32,
    /// Number of releases that are all checked from here on, because a difference was found whose statement is not known.
    alert: u32,
    /// The value of `left` before another feature asked for the next release; `None` if none asks.
    interrupted: Option<u32>,
}

impl SessionChecks {
    /// Follows the configuration. If it cannot be told what `connect_query` leaves in a session, no session
    /// is looked at.
    pub(crate) fn follow(&mut self, one_in: u32, connect_query: &str) {
        let text = connect_query.as_bytes();
        let told = traits(text).marks.without(Marks::SETTINGS.and(Marks::READS_LOCALLY)).is_empty()
            && assignments(text, |_| ()).is_ok();
        self.wanted = one_in;
        let one_in = if told || text.is_empty() { one_in } else { 0 };
        if one_in != self.one_in {
            *self = SessionChecks { wanted: self.wanted, one_in, left: one_in, alert: 0, interrupted: None };
        }
    }

    /// Whether the pool looks for statements that change a session unnoticed, by session checks or by the catalog.
    #[inline]
    pub(crate) fn are_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// Counts the release of a server and returns whether the server is to be checked. If so, [`SessionChecks::plan`] sets the next
    /// check.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        if self.left > 1 {
            self.left -= 1;
            return false;
        }
        self.left == 1
    }

    /// Has [`SessionChecks::is_due`] return `true` at the next releases, until [`SessionChecks::resume`]: another feature has a question for one
    /// of the pool's servers. So a release without such a question pays nothing for asking.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted.get_or_insert(self.left);
        self.left = 1;
    }

    /// Whether another feature has asked for the next releases.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.is_some()
    }

    /// Goes on with the checks, and counts the release that is under way as [`SessionChecks::is_due`] does.
    pub(crate) fn resume(&mut self) -> bool {
        if let Some(left) = self.interrupted.take() {
            self.left = left;
        }
        self.is_due()
    }

    /// Chance keeps the looks from falling on the same one of a workload's statements each time.
    pub(crate) fn plan(&mut self, random: u32) {
        if self.alert > 0 {
            self.alert -= 1;
        }
        let spread = u64::from(self.one_in).saturating_mul(2).saturating_sub(1).max(1);
        let chosen = 1 + (u64::from(random) % spread) as u32;
        self.left = if self.at_each() { self.left.min(1) } else { chosen };
    }

    /// Whether each release is followed by a check.
    #[inline]
    pub(crate) fn at_each(&self) -> bool {
        self.one_in == 1 || self.alert > 0
    }

    /// Has the next releases all checked, because a difference was found whose statement is not known.
    pub(crate) fn raise_alert(&mut self) {
        self.alert = LOOKS_ALERT;
        self.left = self.left.min(1);
        self.interrupted = self.interrupted.map(|left| left.min(1));
    }
}

/// The statements that were found to change sessions unseen: when one of them runs again, its server is asked
/// what its session holds, as if its words had told.
#[derive(Default)]
pub(crate) struct Watched {
    statements: VecDeque<(PoolId, u64)>,
}

impl Watched {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    pub(crate) fn contains(&self, pool: PoolId, fingerprint: u64) -> bool {
        self.statements.contains(&(pool, fingerprint))
    }

    /// Whether a watched statement belongs to this pool.
    pub(crate) fn concerns(&self, pool: PoolId) -> bool {
        self.statements.iter().any(|(concerned, _)| *concerned == pool)
    }

    pub(crate) fn insert(&mut self, pool: PoolId, fingerprint: u64) {
        if self.contains(pool, fingerprint) {
            return;
        }
        if self.statements.len() >= WATCHED_STATEMENTS_MAX {
            self.statements.pop_front();
        }
        self.statements.push_back((pool, fingerprint));
    }

    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.statements.retain(|(concerned, _)| *concerned != pool);
    }
}

impl Pool {
    /// Whether a statement of this pool is watched because it was found to change its session unnoticed.
    #[inline]
    pub(crate) fn is_watched(&self, env: &Env, fingerprint: u64) -> bool {
        !env.watched.is_empty() && env.watched.contains(self.id, fingerprint)
    }

    /// Whether a statement of the group may be watched. Of a group with several statements only the first is known, so such a group
    /// counts if the pool has any watched statement.
    pub(crate) fn is_group_watched(&self, env: &Env, group: &Group) -> bool {
        !env.watched.is_empty()
            && env.watched.concerns(self.id)
            && (!group.is_one_statement() || env.watched.contains(self.id, group.statement))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(one_in: u32, connect_query: &str) -> SessionChecks {
        let mut looks = SessionChecks::default();
        looks.follow(one_in, connect_query);
        looks
    }

    /// The number of releases that are looked at, of so many.
    fn taken(looks: &mut SessionChecks, releases: u32) -> u32 {
        let mut random = 0x2545_f491_u32;
        let mut due = 0;
        for _ in 0..releases {
            if looks.is_due() {
                due += 1;
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                looks.plan(random >> 8);
            }
        }
        due
    }

    #[test]
    fn about_one_in_so_many_is_looked_at() {
        assert_eq!(taken(&mut looks(0, ""), 1_000), 0);
        assert_eq!(taken(&mut looks(1, ""), 1_000), 1_000);
        let some = taken(&mut looks(100, ""), 100_000);
        assert!((800..1_200).contains(&some), "{some}");
    }

    #[test]
    fn an_alert_looks_at_each_for_a_while() {
        let mut looks = looks(1_000_000, "");
        looks.raise_alert();
        assert_eq!(taken(&mut looks, LOOKS_ALERT), LOOKS_ALERT);
        assert!(!looks.at_each());
    }

    #[test]
    fn where_a_connect_query_does_more_than_set_nothing_is_looked_at() {
        assert!(looks(1, "set Work_Mem = '1MB'; set a.b = 'c'").at_each());
        for unclear in ["select f(); load 'x'", "select set_config('a.b', 'c', false)", "do $$begin end$$"] {
            assert!(!self::looks(1, unclear).at_each(), "{unclear}");
        }
        assert!(self::looks(1, "select 1").at_each());
    }

    #[test]
    fn statements_are_watched_in_their_pool() {
        let mut pools = slotmap::SlotMap::<PoolId, ()>::with_key();
        let (one, other) = (pools.insert(()), pools.insert(()));
        let mut watched = Watched::default();
        watched.insert(one, 7);
        watched.insert(one, 7);
        assert!(watched.contains(one, 7) && watched.concerns(one));
        assert!(!watched.contains(other, 7) && !watched.concerns(other));
        watched.forget_pool(one);
        assert!(watched.is_empty());
    }
}
