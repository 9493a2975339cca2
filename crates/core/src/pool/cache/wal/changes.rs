//! Which answers have seen all changes of what they depend on: tables, or a row. The rules:
//!
//! 1. A statement's *basis* is the last stamp that was answered before the statement was sent.
//! 2. An answer is kept only if its basis shows every transaction that was received for its tables, or its row, and is not settled.
//! 3. A received transaction ends the answers of its tables, or of the rows that it has changed, and is unsettled, before the stream counts as read up
//!    to the transaction's end.
//! 4. A transaction is settled when a stamp shows it. Statements that were sent before that stamp was answered are not kept, if they read a
//!    table of the transaction.
//!
//! So each kept answer has seen every received transaction that concerns it: one that was received later has ended the answer (3); of those
//! received before, an unsettled one is in the basis (2), and a settled one is in a stamp that is not newer than the basis (4).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::limits::{UNSETTLED_KEYS_MAX, UNSETTLED_MAX, WATCHED_KEYS_MIN};
use crate::pool::cache::wal::reads::Subject;
use crate::pool::cache::wal::row_key::RowKey;
use crate::pool::cache::wal::stamp::Stamp;

/// The number of a stamp: a later stamp has a higher one, and shows at least as much.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(crate) struct StampNumber(pub(crate) u64);

/// The number of bytes that a key of an unsettled transaction counts for besides its values.
const KEY_OVERHEAD_BYTES: usize = 32;

/// The rows of a table that a received transaction has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Touched {
    /// Any row.
    All,
    /// The rows with these keys, before or after the change.
    Rows(Box<[RowKey]>),
}

impl Touched {
    /// Whether a row with this key may have changed.
    fn has(&self, key: &RowKey) -> bool {
        match self {
            Touched::All => true,
            Touched::Rows(keys) => keys.contains(key),
        }
    }

    /// Returns the keys.
    fn keys(&self) -> &[RowKey] {
        match self {
            Touched::All => &[],
            Touched::Rows(keys) => keys,
        }
    }
}

/// The last change of a row, for all answers that depend on the row: the value of [`Changes::received`] with the transaction; 0 if none was
/// received since the first of these answers was kept.
pub(crate) type RowChanged = Arc<AtomicU64>;

/// The changes that an answer had seen when it was kept.
pub(crate) struct Seen {
    /// The number of received transactions.
    since: u64,
    /// The last change of the row on which the answer depends; `None` if it depends on tables.
    row: Option<RowChanged>,
}

/// The changes of tables that were received.
#[derive(Default)]
pub(crate) struct Changes {
    /// The number of transactions that were received.
    received: u64,
    tables: HashMap<u32, Table>,
    /// The number of bytes that the keys of unsettled transactions take.
    key_bytes: usize,
}

/// The changes of one table.
#[derive(Default)]
struct Table {
    /// The value of [`Changes::received`] with the last transaction that has changed the table.
    changed: u64,
    /// The value of [`Changes::received`] with the last transaction that may have changed any row.
    all_changed: u64,
    /// The rows on which kept answers depend. Those without answers are removed when there are many.
    watched: HashMap<RowKey, Weak<AtomicU64>>,
    /// The number of `watched` at which those without answers are removed next.
    sweep_at: usize,
    /// The transactions that no stamp has shown yet, with the rows that they have changed.
    unsettled: Vec<(u64, Touched)>,
    /// If there were too many of them: the highest. A basis must be beyond it.
    unsettled_up_to: Option<u64>,
    /// The first stamp that shows all settled transactions. Statements with an older basis are not kept.
    settled_by: StampNumber,
}

impl Changes {
    /// Notes a transaction that was received. `last` is the last stamp, if there is one.
    pub(crate) fn receive(
        &mut self,
        xid: u64,
        touched: &[(u32, Touched)],
        last: Option<(StampNumber, &Stamp)>,
    ) {
        self.received += 1;
        for (table, rows) in touched {
            let table = self.tables.entry(*table).or_default();
            table.note_changed(self.received, rows);
            let before = table.key_bytes();
            match last {
                Some((number, stamp)) if stamp.shows(xid) => table.settled_by = number,
                _ => table.leave_unsettled(xid, rows.clone()),
            }
            self.key_bytes = self.key_bytes - before + table.key_bytes();
        }
    }

    /// Returns the number of bytes that the keys of unsettled transactions take. They count in the bound of the cache.
    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Takes a new stamp: transactions that it shows are settled.
    pub(crate) fn settle(&mut self, number: StampNumber, stamp: &Stamp) {
        self.tables.values_mut().for_each(|table| table.settle(number, stamp));
        self.key_bytes = self.tables.values().map(Table::key_bytes).sum();
    }

    /// Returns what an answer with this basis has seen if it may be kept, which depends on this subject. The caller keeps it with the answer.
    pub(crate) fn admit(&mut self, subject: &Subject, basis: (StampNumber, &Stamp)) -> Option<Seen> {
        let (tables, key) = match subject {
            Subject::Tables(tables) => (&**tables, None),
            Subject::Row(table, key) => (std::slice::from_ref(table), Some(key)),
        };
        let is_seen = |table: &u32| self.tables.get(table).is_none_or(|table| table.is_seen_by(basis, key));
        if !tables.iter().all(is_seen) {
            return None;
        }
        let row = match subject {
            Subject::Tables(_) => None,
            Subject::Row(table, key) => Some(self.tables.entry(*table).or_default().watch(key)),
        };
        Some(Seen { since: self.received, row })
    }

    /// Whether the subject of an answer did not change since the answer was kept. `seen` is what [`Changes::admit`] has returned.
    pub(crate) fn is_unchanged(&self, subject: &Subject, seen: &Seen) -> bool {
        match (subject, &seen.row) {
            (Subject::Tables(tables), _) => tables
                .iter()
                .all(|table| self.tables.get(table).is_none_or(|table| table.changed <= seen.since)),
            (Subject::Row(table, _), Some(changed)) => {
                let all_changed = self.tables.get(table).map_or(0, |table| table.all_changed);
                all_changed.max(changed.load(Ordering::Relaxed)) <= seen.since
            }
            (Subject::Row(..), None) => false,
        }
    }
}

impl Table {
    fn note_changed(&mut self, received: u64, rows: &Touched) {
        self.changed = received;
        match rows {
            Touched::All => self.all_changed = received,
            Touched::Rows(keys) => {
                let watched = keys.iter().filter_map(|key| self.watched.get(key)?.upgrade());
                watched.for_each(|changed| changed.store(received, Ordering::Relaxed));
            }
        }
    }

    /// Returns where the last change of the row with this key is noted from now on.
    fn watch(&mut self, key: &RowKey) -> RowChanged {
        if let Some(known) = self.watched.get(key).and_then(Weak::upgrade) {
            return known;
        }
        if self.watched.len() >= self.sweep_at.max(WATCHED_KEYS_MIN) {
            self.watched.retain(|_, changed| changed.strong_count() > 0);
            self.sweep_at = self.watched.len() * 2;
        }
        let changed = RowChanged::default();
        self.watched.insert(Arc::clone(key), Arc::downgrade(&changed));
        changed
    }

    fn key_bytes(&self) -> usize {
        let keys = self.unsettled.iter().flat_map(|(_, rows)| rows.keys());
        keys.map(|key| key.len() + KEY_OVERHEAD_BYTES).sum()
    }

    fn leave_unsettled(&mut self, xid: u64, rows: Touched) {
        if self.unsettled.len() < UNSETTLED_MAX {
            let keys: usize = self.unsettled.iter().map(|(_, rows)| rows.keys().len()).sum();
            let has_room = keys + rows.keys().len() <= UNSETTLED_KEYS_MAX;
            return self.unsettled.push((xid, if has_room { rows } else { Touched::All }));
        }
        let all = self.unsettled.drain(..).map(|(xid, _)| xid).chain([xid]).chain(self.unsettled_up_to);
        self.unsettled_up_to = all.max();
    }

    fn settle(&mut self, number: StampNumber, stamp: &Stamp) {
        let before = self.unsettled.len();
        self.unsettled.retain(|(xid, _)| !stamp.shows(*xid));
        let is_over = self.unsettled_up_to.is_some_and(|xid| stamp.is_beyond(xid));
        if is_over {
            self.unsettled_up_to = None;
        }
        if is_over || self.unsettled.len() < before {
            self.settled_by = number;
        }
    }

    /// Whether an answer with this basis has seen all changes: of the row with this key, or of the table.
    fn is_seen_by(&self, (number, stamp): (StampNumber, &Stamp), key: Option<&RowKey>) -> bool {
        let concerns = |rows: &Touched| key.is_none_or(|key| rows.has(key));
        number >= self.settled_by
            && self.unsettled.iter().all(|(xid, rows)| stamp.shows(*xid) || !concerns(rows))
            && self.unsettled_up_to.is_none_or(|xid| stamp.is_beyond(xid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(text: &str) -> Stamp {
        Stamp::parse(text.as_bytes()).expect("it is a snapshot")
    }

    fn tables(tables: &[u32]) -> Subject {
        Subject::Tables(tables.into())
    }

    fn row(table: u32, key: &[u8]) -> Subject {
        Subject::Row(table, key.into())
    }

    fn touched(table: u32, keys: &[&[u8]]) -> Vec<(u32, Touched)> {
        vec![(table, Touched::Rows(keys.iter().map(|key| RowKey::from(*key)).collect()))]
    }

    fn all(table: u32) -> Vec<(u32, Touched)> {
        vec![(table, Touched::All)]
    }

    const ONE: StampNumber = StampNumber(1);
    const TWO: StampNumber = StampNumber(2);

    #[test]
    fn an_answer_is_kept_until_its_table_changes() {
        let mut changes = Changes::default();
        let basis = stamp("10:10:");
        let since = changes.admit(&tables(&[1, 2]), (ONE, &basis)).expect("nothing has changed");
        changes.receive(11, &all(3), Some((ONE, &basis)));
        assert!(changes.is_unchanged(&tables(&[1, 2]), &since));
        changes.receive(12, &all(2), Some((ONE, &basis)));
        assert!(
            !changes.is_unchanged(&tables(&[1, 2]), &since) && changes.is_unchanged(&tables(&[1]), &since)
        );
    }

    #[test]
    fn an_answer_that_has_not_seen_a_received_transaction_is_not_kept() {
        let mut changes = Changes::default();
        let old = stamp("10:12:10");
        changes.receive(10, &all(1), Some((ONE, &old)));
        assert!(changes.admit(&tables(&[1]), (ONE, &old)).is_none(), "it was running");
        assert!(changes.admit(&tables(&[2]), (ONE, &old)).is_some(), "another table");
        let new = stamp("12:12:");
        assert!(
            changes.admit(&tables(&[1]), (TWO, &new)).is_some(),
            "its basis shows the transaction, which is not settled yet"
        );
    }

    #[test]
    fn a_statement_that_was_sent_before_the_settling_stamp_is_not_kept() {
        let mut changes = Changes::default();
        let (old, new) = (stamp("10:12:10"), stamp("12:12:"));
        changes.receive(10, &all(1), Some((ONE, &old)));
        changes.settle(TWO, &new);
        assert!(changes.admit(&tables(&[1]), (ONE, &old)).is_none());
        assert!(changes.admit(&tables(&[1]), (TWO, &new)).is_some());
    }

    #[test]
    fn a_transaction_that_the_last_stamp_shows_is_settled_by_it() {
        let mut changes = Changes::default();
        let (old, new) = (stamp("10:12:10"), stamp("12:12:"));
        changes.receive(10, &all(1), Some((TWO, &new)));
        assert!(changes.admit(&tables(&[1]), (ONE, &old)).is_none());
        assert!(changes.admit(&tables(&[1]), (TWO, &new)).is_some());
    }

    #[test]
    fn many_transactions_are_one_bound() {
        let mut changes = Changes::default();
        let old = stamp("10:10:");
        let many = UNSETTLED_MAX as u64 + 3;
        (0..many).for_each(|at| changes.receive(10 + at, &all(1), Some((ONE, &old))));
        let last = 10 + many - 1;
        let almost = stamp(&format!("{last}:{}:{last}", last + 1));
        changes.settle(TWO, &almost);
        assert!(changes.admit(&tables(&[1]), (TWO, &almost)).is_none());
        let beyond = stamp(&format!("{}:{}:", last + 1, last + 1));
        changes.settle(StampNumber(3), &beyond);
        assert!(changes.admit(&tables(&[1]), (StampNumber(3), &beyond)).is_some());
        assert!(changes.admit(&tables(&[1]), (TWO, &almost)).is_none());
    }

    #[test]
    fn an_answer_by_key_is_kept_until_its_row_changes() {
        let mut changes = Changes::default();
        let basis = stamp("10:10:");
        let of_row = changes.admit(&row(1, b"a"), (ONE, &basis)).expect("nothing has changed");
        let of_table = changes.admit(&tables(&[1]), (ONE, &basis)).expect("nothing has changed");
        changes.receive(11, &touched(1, &[b"b", b"c"]), Some((ONE, &basis)));
        assert!(changes.is_unchanged(&row(1, b"a"), &of_row), "other rows");
        assert!(!changes.is_unchanged(&tables(&[1]), &of_table));
        assert!(changes.admit(&row(1, b"d"), (ONE, &basis)).is_some(), "another row");
        assert!(changes.admit(&row(1, b"b"), (ONE, &basis)).is_none(), "its change may not be visible");
        changes.receive(12, &touched(1, &[b"x", b"a"]), Some((ONE, &basis)));
        assert!(!changes.is_unchanged(&row(1, b"a"), &of_row));
        let seen = changes.admit(&row(1, b"d"), (ONE, &basis)).expect("another row");
        changes.receive(13, &all(1), Some((ONE, &basis)));
        assert!(!changes.is_unchanged(&row(1, b"d"), &seen), "any row may have changed");
    }

    #[test]
    fn answers_of_the_same_row_end_together_and_later_ones_stay() {
        let mut changes = Changes::default();
        let (old, new) = (stamp("10:10:"), stamp("12:12:"));
        let first = changes.admit(&row(1, b"a"), (ONE, &old)).expect("nothing has changed");
        let second = changes.admit(&row(1, b"a"), (ONE, &old)).expect("nothing has changed");
        changes.receive(11, &touched(1, &[b"a"]), Some((ONE, &old)));
        changes.settle(TWO, &new);
        let third = changes.admit(&row(1, b"a"), (TWO, &new)).expect("it has seen the change");
        for (seen, expected) in [(&first, false), (&second, false), (&third, true)] {
            assert_eq!(changes.is_unchanged(&row(1, b"a"), seen), expected);
        }
    }

    #[test]
    fn a_transaction_without_room_for_its_keys_concerns_all_rows() {
        let mut changes = Changes::default();
        let basis = stamp("10:10:");
        let keys: Vec<[u8; 1]> = (0..UNSETTLED_KEYS_MAX as u8).map(|key| [key]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        changes.receive(11, &touched(1, &keys), Some((ONE, &basis)));
        assert!(changes.admit(&row(1, b"none of them"), (ONE, &basis)).is_some());
        changes.receive(12, &touched(1, &[b"one more"]), Some((ONE, &basis)));
        assert!(changes.admit(&row(1, b"none of them"), (ONE, &basis)).is_none());
        assert_eq!(changes.key_bytes(), UNSETTLED_KEYS_MAX * (1 + KEY_OVERHEAD_BYTES));
        changes.settle(TWO, &stamp("12:13:12"));
        assert_eq!(changes.key_bytes(), 0);
    }

    #[test]
    fn rows_without_answers_are_forgotten() {
        let mut changes = Changes::default();
        let basis = stamp("10:10:");
        let kept = changes.admit(&row(1, b"kept"), (ONE, &basis)).expect("nothing has changed");
        for number in 0..10_000u32 {
            changes.admit(&row(1, &number.to_be_bytes()), (ONE, &basis)).expect("nothing has changed");
        }
        assert!(changes.tables[&1].watched.len() <= WATCHED_KEYS_MIN);
        changes.receive(11, &touched(1, &[b"kept"]), Some((ONE, &basis)));
        assert!(!changes.is_unchanged(&row(1, b"kept"), &kept));
    }
}
