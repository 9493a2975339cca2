//! What happens to the followed database without the pooler: programs that change tables and definitions, and an operator of the server who ends
//! connections, uses up the slots and restarts the server.

use crate::sim::check::followed::{BOARD, JOURNAL, LEDGER};
use crate::sim::model::followed::{Redefinition, Wal, WalEvent, What};
use crate::sim::plan::FollowPlan;
use crate::sim::rng::Rng;

/// Something that happens to processes of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// Nothing.
    None,
    /// One of the two connections that follow is ended.
    EndFollower,
    /// The server is restarted.
    Restart,
}

/// The transactions of others, and the state of the server's settings.
#[derive(Debug)]
pub struct Outside {
    open: Vec<u64>,
    /// The time until which wal_level is not logical, and until which no slot is free.
    not_logical_until_us: u64,
    no_slot_until_us: u64,
    /// The world is at its end: nothing new begins.
    is_over: bool,
}

impl Outside {
    pub(super) fn new(options: &FollowPlan, is_late: bool) -> Self {
        let not_logical_until_us = if is_late && options.has_faults { u64::MAX } else { 0 };
        Outside { open: Vec::new(), not_logical_until_us, no_slot_until_us: 0, is_over: false }
    }

    pub(super) fn is_logical(&self, now_us: u64) -> bool {
        now_us >= self.not_logical_until_us
    }

    pub(super) fn refuses_slots(&self, now_us: u64) -> bool {
        now_us < self.no_slot_until_us
    }
}

impl Wal {
    /// The clients are gone: what is open ends, and nothing more happens.
    pub fn ends(&mut self, rng: &mut Rng) {
        self.outside.is_over = true;
        (self.outside.not_logical_until_us, self.outside.no_slot_until_us) = (0, 0);
        for xid in std::mem::take(&mut self.outside.open) {
            self.commit(rng, xid);
        }
    }

    /// Returns whether nothing goes wrong any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.outside.is_over
    }

    /// Programs that do not go through the pooler change something.
    pub fn happens(&mut self, rng: &mut Rng) {
        if self.outside.is_over {
            return;
        }
        let in_us = 1 + rng.skewed(self.options.quiet_us_max);
        self.due.push((in_us, WalEvent::Outside));
        if self.is_down {
            return;
        }
        match rng.below(100) {
            0..35 => self.others_begin(rng),
            35..55 => self.others_go_on(rng),
            55..80 => self.others_end(rng, true),
            80..85 => self.others_end(rng, false),
            _ => {
                // A record that changes no followed table.
                let end = self.append(rng, What::Other);
                let in_us = 1 + rng.skewed(200_000);
                self.due.push((in_us, WalEvent::Flushed(end)));
            }
        }
    }

    /// Definitions or settings change, or a fault happens.
    pub fn changes(&mut self, rng: &mut Rng, now_us: u64) -> Blow {
        if self.outside.is_over {
            return Blow::None;
        }
        let in_us = rng.between(20_000, 2_000_000);
        self.due.push((in_us, WalEvent::Changes));
        if self.is_down {
            return Blow::None;
        }
        match rng.below(if self.options.has_faults { 10 } else { 5 }) {
            0 | 1 => self.redefine(rng, Redefinition::Swap),
            2 | 3 => self.redefine(rng, Redefinition::Publish(!self.publishes_ledger)),
            4 => self.settings += 1,
            5 | 6 => return Blow::EndFollower,
            7 => self.outside.no_slot_until_us = now_us + rng.skewed(3_000_000),
            8 => return Blow::Restart,
            _ => self.outside.not_logical_until_us = now_us,
        }
        Blow::None
    }

    fn others_begin(&mut self, rng: &mut Rng) {
        if self.outside.open.len() >= 6 {
            return;
        }
        let xid = self.begin();
        self.outside.open.push(xid);
        self.others_write(rng, xid);
        if rng.percent(60) {
            self.outside.open.retain(|open| *open != xid);
            self.commit(rng, xid);
        }
    }

    fn others_go_on(&mut self, rng: &mut Rng) {
        if !self.outside.open.is_empty() {
            let xid = *rng.pick(&self.outside.open);
            self.others_write(rng, xid);
        }
    }

    fn others_write(&mut self, rng: &mut Rng, xid: u64) {
        // A part that can be rolled back alone has a number of its own.
        let part = if rng.percent(30) { self.begin_part() } else { xid };
        let rows = if rng.percent(20) { rng.between(5, 20) } else { rng.between(1, 3) };
        for _ in 0..rows {
            let table = *rng.pick(&[BOARD, BOARD, LEDGER, LEDGER, JOURNAL]);
            self.write_row(rng, xid, part, table);
        }
        if part != xid && rng.percent(40) {
            self.roll_back_part(rng, xid, part);
        }
    }

    /// Returns a number for a part of a transaction, which no snapshot tells.
    fn begin_part(&mut self) -> u64 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    fn others_end(&mut self, rng: &mut Rng, is_kept: bool) {
        if self.outside.open.is_empty() {
            return;
        }
        let at = rng.index(self.outside.open.len());
        let xid = self.outside.open.remove(at);
        match is_kept {
            true => self.commit(rng, xid),
            false => self.roll_back(rng, xid),
        }
    }

    /// Definitions are changed, by a transaction that takes its time.
    fn redefine(&mut self, rng: &mut Rng, what: Redefinition) {
        // Two at a time would wait for each other.
        if self.running.values().any(|open| open.redefines.is_some()) {
            return;
        }
        let xid = self.begin();
        self.append(rng, What::Other);
        if let Some(transaction) = self.running.get_mut(&xid) {
            transaction.redefines = Some(what);
        }
        self.outside.open.push(xid);
    }

    /// The server goes down: the transactions of others are gone.
    pub(in crate::sim) fn others_lose(&mut self) {
        self.outside.open.clear();
    }
}
