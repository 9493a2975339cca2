//! Which answers have seen all changes of their tables. The rules:
//!
//! 1. A statement's *basis* is the last stamp that was answered before the statement was sent.
//! 2. An answer is kept only if its basis shows every transaction that was received for one of its tables and is not settled.
//! 3. A received transaction ends the answers of its tables, and is unsettled, before the stream counts as read up to the transaction's end.
//! 4. A transaction is settled when a stamp shows it. Statements that were sent before that stamp was answered are not kept, if they read a
//!    table of the transaction.
//!
//! So each kept answer has seen every received transaction that concerns it: one that was received later has ended the answer (3); of those
//! received before, an unsettled one is in the basis (2), and a settled one is in a stamp that is not newer than the basis (4).

use std::collections::HashMap;

use crate::limits::UNSETTLED_MAX;
use crate::pool::cache::wal::stamp::Stamp;

/// The number of a stamp: a later stamp has a higher one, and shows at least as much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct StampNumber(pub(crate) u64);

/// The changes of tables that were received.
#[derive(Default)]
pub(crate) struct Changes {
    /// The number of transactions that were received.
    received: u64,
    tables: HashMap<u32, Table>,
}

/// The changes of one table.
#[derive(Default)]
struct Table {
    /// The value of [`Changes::received`] with the last transaction that has changed the table.
    changed: u64,
    /// The transactions that no stamp has shown yet.
    unsettled: Vec<u64>,
    /// If there were too many of them: the highest. A basis must be beyond it.
    unsettled_up_to: Option<u64>,
    /// The first stamp that shows all settled transactions. Statements with an older basis are not kept.
    settled_by: StampNumber,
}

impl Changes {
    /// Notes a transaction that was received. `last` is the last stamp, if there is one.
    pub(crate) fn receive(&mut self, xid: u64, tables: &[u32], last: Option<(StampNumber, &Stamp)>) {
        self.received += 1;
        for table in tables {
            let table = self.tables.entry(*table).or_default();
            table.changed = self.received;
            match last {
                Some((number, stamp)) if stamp.shows(xid) => table.settled_by = number,
                _ => table.leave_unsettled(xid),
            }
        }
    }

    /// Takes a new stamp: transactions that it shows are settled.
    pub(crate) fn settle(&mut self, number: StampNumber, stamp: &Stamp) {
        self.tables.values_mut().for_each(|table| table.settle(number, stamp));
    }

    /// Returns the number of the last received transaction if an answer with this basis may be kept, which depends on these tables. The
    /// caller keeps the number with the answer.
    pub(crate) fn admit(&self, tables: &[u32], basis: (StampNumber, &Stamp)) -> Option<u64> {
        let is_seen = |table: &u32| self.tables.get(table).is_none_or(|table| table.is_seen_by(basis));
        tables.iter().all(is_seen).then_some(self.received)
    }

    /// Whether none of the tables was changed since the answer was kept. `since` is what [`Changes::admit`] has returned.
    pub(crate) fn are_unchanged(&self, tables: &[u32], since: u64) -> bool {
        tables.iter().all(|table| self.tables.get(table).is_none_or(|table| table.changed <= since))
    }
}

impl Table {
    fn leave_unsettled(&mut self, xid: u64) {
        if self.unsettled.len() < UNSETTLED_MAX {
            return self.unsettled.push(xid);
        }
        let all = self.unsettled.drain(..).chain([xid]).chain(self.unsettled_up_to);
        self.unsettled_up_to = all.max();
    }

    fn settle(&mut self, number: StampNumber, stamp: &Stamp) {
        let before = self.unsettled.len();
        self.unsettled.retain(|xid| !stamp.shows(*xid));
        let is_over = self.unsettled_up_to.is_some_and(|xid| stamp.is_beyond(xid));
        if is_over {
            self.unsettled_up_to = None;
        }
        if is_over || self.unsettled.len() < before {
            self.settled_by = number;
        }
    }

    fn is_seen_by(&self, (number, stamp): (StampNumber, &Stamp)) -> bool {
        number >= self.settled_by
            && self.unsettled.iter().all(|xid| stamp.shows(*xid))
            && self.unsettled_up_to.is_none_or(|xid| stamp.is_beyond(xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> Stamp {
        Stamp::parse(text.as_bytes()).expect("it is a snapshot")
    }

    const ONE: StampNumber = StampNumber(1);
    const TWO: StampNumber = StampNumber(2);

    #[test]
    fn an_answer_is_kept_until_its_table_changes() {
        let mut changes = Changes::default();
        let basis = stamp("10:10:");
        let since = changes.admit(&[1, 2], (ONE, &basis)).expect("nothing has changed");
        changes.receive(11, &[3], Some((ONE, &basis)));
        assert!(changes.are_unchanged(&[1, 2], since));
        changes.receive(12, &[2], Some((ONE, &basis)));
        assert!(!changes.are_unchanged(&[1, 2], since) && changes.are_unchanged(&[1], since));
    }

    #[test]
    fn an_answer_that_has_not_seen_a_received_transaction_is_not_kept() {
        let mut changes = Changes::default();
        let old = stamp("10:12:10");
        changes.receive(10, &[1], Some((ONE, &old)));
        assert_eq!(changes.admit(&[1], (ONE, &old)), None, "it was running");
        assert!(changes.admit(&[2], (ONE, &old)).is_some(), "another table");
        let new = stamp("12:12:");
        assert!(
            changes.admit(&[1], (TWO, &new)).is_some(),
            "its basis shows the transaction, which is not settled yet"
        );
    }

    #[test]
    fn a_statement_that_was_sent_before_the_settling_stamp_is_not_kept() {
        let mut changes = Changes::default();
        let (old, new) = (stamp("10:12:10"), stamp("12:12:"));
        changes.receive(10, &[1], Some((ONE, &old)));
        changes.settle(TWO, &new);
        assert_eq!(changes.admit(&[1], (ONE, &old)), None);
        assert!(changes.admit(&[1], (TWO, &new)).is_some());
    }

    #[test]
    fn a_transaction_that_the_last_stamp_shows_is_settled_by_it() {
        let mut changes = Changes::default();
        let (old, new) = (stamp("10:12:10"), stamp("12:12:"));
        changes.receive(10, &[1], Some((TWO, &new)));
        assert_eq!(changes.admit(&[1], (ONE, &old)), None);
        assert!(changes.admit(&[1], (TWO, &new)).is_some());
    }

    #[test]
    fn many_transactions_are_one_bound() {
        let mut changes = Changes::default();
        let old = stamp("10:10:");
        let many = UNSETTLED_MAX as u64 + 3;
        (0..many).for_each(|at| changes.receive(10 + at, &[1], Some((ONE, &old))));
        let last = 10 + many - 1;
        let almost = stamp(&format!("{last}:{}:{last}", last + 1));
        changes.settle(TWO, &almost);
        assert_eq!(changes.admit(&[1], (TWO, &almost)), None);
        let beyond = stamp(&format!("{}:{}:", last + 1, last + 1));
        changes.settle(StampNumber(3), &beyond);
        assert!(changes.admit(&[1], (StampNumber(3), &beyond)).is_some());
        assert_eq!(changes.admit(&[1], (TWO, &almost)), None);
    }
}
