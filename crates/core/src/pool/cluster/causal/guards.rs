//! What a pool notes about the questions for positions: who is to be asked, who has answered, who is gone. It sends no question.

use crate::cluster::token::Position;
use crate::ids::ServerId;
use crate::pool::{Branch, Pool, PoolState};

/// After an error, or a lost answer, the next question is sent so much later.
pub(super) const FAILED_US: u64 = 5_000;
/// A standby that was not far enough is asked again so soon, then after twice as long, and so on up to the other limit.
const MISSED_US_MIN: u64 = 500;
const MISSED_US_MAX: u64 = 50_000;

/// A node's question.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Guard {
    is_under_way: bool,
    /// A client waits for the next answer.
    is_wanted: bool,
    /// Not to be asked before (monotonic, µs).
    pub(super) again_us: u64,
    /// So many answers in a row were not enough for all that waited.
    misses: u32,
}

impl Guard {
    pub(super) fn is_due(&self) -> bool {
        self.is_wanted && !self.is_under_way
    }

    /// It is sent.
    pub(super) fn send(&mut self) {
        (self.is_under_way, self.is_wanted) = (true, false);
    }

    /// It is answered.
    pub(super) fn end(&mut self) {
        self.is_under_way = false;
    }

    /// It was answered, and the clients that waited for that were asked again where to. Returns whether one of them waits on.
    pub(super) fn answered(&mut self, now_us: u64) -> bool {
        if !self.is_wanted {
            self.misses = 0;
            return false;
        }
        let pause_us = (MISSED_US_MIN << self.misses.min(16)).min(MISSED_US_MAX);
        self.again_us = self.again_us.max(now_us + pause_us);
        self.misses = self.misses.saturating_add(1);
        true
    }
}

impl PoolState {
    /// A client waits for the primary's position.
    pub(super) fn want_position(&mut self) {
        if let Some(cluster) = self.cluster.as_deref_mut() {
            cluster.asks.is_wanted = true;
        }
    }

    /// A client waits for how far a standby has come.
    pub(super) fn want_replayed(&mut self, branch: Branch) {
        if let Some(standby) = self.standby_mut(branch) {
            standby.guard.is_wanted = true;
        }
    }

    /// The same of this one, and of all that take reads.
    pub(super) fn want_all_replayed(&mut self, branch: Branch) {
        self.want_replayed(branch);
        let is_open = |standby: &crate::cluster::view::Standby| standby.share > 0;
        for standby in &mut self.standbys {
            standby.guard.is_wanted |= standby.standby.as_ref().is_some_and(is_open);
        }
    }

    /// The primary was asked for its position; `None`: it gave none.
    pub(super) fn position_told(&mut self, now_us: u64, position: Option<Position>) {
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        if position.is_none() {
            cluster.asks_again_us = now_us + FAILED_US;
        }
        cluster.asks.end(position);
    }
}

impl Pool {
    /// A client that was at a standby waits for a server of it again.
    pub(crate) fn waits_again_at(&mut self, branch: Branch) {
        if let Some(standby) = self.state.standby_mut(branch) {
            standby.looks_again = true;
        }
    }

    /// A server is closed that was asked where it is.
    pub(crate) fn location_lost(&mut self, now_us: u64, branch: Branch) {
        if branch.is_primary() {
            self.state.position_told(now_us, None);
            self.state.want_position();
        } else if let Some(standby) = self.state.standby_mut(branch) {
            let guard = &mut standby.guard;
            (guard.is_under_way, guard.is_wanted, guard.again_us) = (false, true, now_us + FAILED_US);
        }
        self.notice();
    }

    /// A server of a standby is logged in.
    pub(crate) fn standby_logged_in(&mut self, now_us: u64, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some(standby) = self.state.standby_mut(server.branch) {
            server.at.logged_in_us = standby.replayed.logged_in(now_us);
            standby.looks_again = true;
        }
    }
}
