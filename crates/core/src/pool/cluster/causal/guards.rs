//! What a pool notes about the questions for positions: who is to be asked, who has answered, who is gone. It sends no question.

use crate::cluster::token::Position;
use crate::ids::ServerId;
use crate::pool::{Branch, Pool, PoolState};

/// Time until the next question after one that failed or got no answer.
pub(super) const FAILED_US: u64 = 5_000;
/// Time until a standby that was not far enough is asked again. It doubles with each miss, up to `MISSED_US_MAX`.
const MISSED_US_MIN: u64 = 500;
const MISSED_US_MAX: u64 = 50_000;

/// The question for the position of a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Guard {
    is_under_way: bool,
    /// Whether a client waits for the next answer.
    is_wanted: bool,
    /// Time before which the question is not sent again (monotonic, µs).
    pub(super) again_us: u64,
    /// Number of answers in a row after which at least one client still had to wait.
    misses: u32,
}

impl Guard {
    pub(super) fn is_due(&self) -> bool {
        self.is_wanted && !self.is_under_way
    }

    /// Notes that the question was sent.
    pub(super) fn send(&mut self) {
        (self.is_under_way, self.is_wanted) = (true, false);
    }

    /// Notes that the answer has come, or that none will.
    pub(super) fn end(&mut self) {
        self.is_under_way = false;
    }

    /// Notes that the clients that waited for the answer were placed again. Returns whether one of them still waits; the question is
    /// then due after a pause.
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

    /// Notes that a client waits for the positions of this standby and of all standbys that take reads.
    pub(super) fn want_all_replayed(&mut self, branch: Branch) {
        self.want_replayed(branch);
        let is_open = |standby: &crate::cluster::view::Standby| standby.share > 0;
        for standby in &mut self.standbys {
            standby.guard.is_wanted |= standby.standby.as_ref().is_some_and(is_open);
        }
    }

    /// Notes the primary's answer to the question for its position. `None`: the question failed and is sent again after a pause.
    pub(super) fn position_told(&mut self, now_us: u64, position: Option<Position>) {
        let Some(cluster) = self.cluster.as_deref_mut() else { return };
        if position.is_none() {
            cluster.asks_again_us = now_us + FAILED_US;
        }
        cluster.asks.end(position);
    }
}

impl Pool {
    /// Notes that a client that was at this standby waits for one of its servers again, so that the waiting clients are checked
    /// again.
    pub(crate) fn waits_again_at(&mut self, branch: Branch) {
        if let Some(standby) = self.state.standby_mut(branch) {
            standby.looks_again = true;
        }
    }

    /// Notes that a server was closed before it answered the question for its node's position. The question is sent again.
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
