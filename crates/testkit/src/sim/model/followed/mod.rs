//! The write-ahead log of a model PostgreSQL whose changes are followed, and the transactions in it: which of them have changed which tables,
//! which are visible, and up to which position the log is on disk. Only worlds with `follow=wal` have it.
//!
//! A commit has three steps, as in PostgreSQL: its record is written, the log is flushed up to it, the transaction becomes visible. Each has its
//! own delay, of seconds at times. The stream may send a transaction before it is visible.

pub mod asked;
pub mod follower;
pub mod outside;
pub mod sender;

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::check::followed::{BOARD, DEFINITIONS, FollowedCheck, JOURNAL, LEDGER};
use crate::sim::model::followed::outside::Outside;
use crate::sim::model::followed::sender::Sender;
use crate::sim::model::nodes::xids::Change;
use crate::sim::network::proto::Message;
use crate::sim::plan::FollowPlan;
use crate::sim::rng::Rng;

/// `query_cache_user`.
pub const FOLLOWER: &str = "follower";

/// Bytes of a page of the log, and of the header that each begins with.
const PAGE_BYTES: u64 = 8192;
const PAGE_HEADER_BYTES: u64 = 24;
/// The position of a new server.
const FIRST_LSN: u64 = 0x0300_0060;

/// An event of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WalEvent {
    /// The log is on disk up to this position.
    Flushed(u64),
    /// A transaction becomes visible.
    Visible(u64),
    /// A process that sends the stream, or waits for transactions, goes on.
    Wake(usize),
    /// A process sends the stream again after it has stalled.
    Resume(usize),
    /// Programs that do not go through the pooler do something.
    Outside,
    /// Definitions or settings change, or a fault happens.
    Changes,
    /// The server is up again.
    Up,
}

/// The content of a record of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// A row was changed, by this transaction, or by a part of it that can be rolled back alone. `is_published`: the publication had the table.
    Row { xid: u64, part: u64, table: usize, is_published: bool },
    /// A transaction is committed.
    Commit { xid: u64 },
    /// A transaction, or a part of it, is rolled back.
    Abort { xid: u64, part: u64 },
    /// Something that no stream tells.
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    what: What,
    end: u64,
}

/// A transaction that has a number, until it is visible or rolled back.
#[derive(Debug, Default)]
struct Transaction {
    /// The rows that it has changed: the part of it that can be rolled back alone, and the table.
    rows: Vec<(u64, usize)>,
    changes: Vec<Change>,
    /// The change of definitions that it makes.
    redefines: Option<Redefinition>,
    /// Its commit is written.
    is_ended: bool,
}

/// A change of definitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Redefinition {
    /// The name `swap` means the other table.
    Swap,
    /// The publication has the second table, or has it no more.
    Publish(bool),
}

/// A slot that is being made: it waits for transactions, twice.
#[derive(Debug)]
struct Slot {
    /// The transactions that must end first.
    awaited: BTreeSet<u64>,
    /// The place in the log from which on all changes are known; `None` while the first transactions are waited for.
    known_from: Option<usize>,
}

/// The write-ahead log of the model, with its transactions, slots and senders.
pub struct Wal {
    options: FollowPlan,
    next_xid: u64,
    /// The highest transaction that is over.
    latest_completed: u64,
    running: BTreeMap<u64, Transaction>,
    /// The transactions of processes.
    of_process: BTreeMap<usize, u64>,
    log: Vec<Record>,
    end: u64,
    flushed: u64,
    slots: BTreeMap<usize, Slot>,
    senders: BTreeMap<usize, Sender>,
    /// The publication has the second table, for rows that are written now.
    publishes_ledger: bool,
    /// Values that change with the publication, and with the settings of the server.
    publication: u64,
    settings: u64,
    /// The start of the server (µs).
    started_us: u64,
    is_down: bool,
    outside: Outside,
    /// The pooler follows the changes, as far as it has said.
    is_followed: bool,
    /// The events that are to be put into the calendar, in so many microseconds.
    pub(in crate::sim) due: Vec<(u64, WalEvent)>,
    /// The check of what clients are given.
    pub check: FollowedCheck,
}

/// Returns the tables that the change with this number is about.
fn tables_of(number: u32) -> &'static [usize] {
    match number % 5 {
        0 | 1 => &[BOARD],
        2 => &[LEDGER],
        3 => &[BOARD, LEDGER],
        _ => &[JOURNAL],
    }
}

impl Wal {
    /// The log of a plan's server.
    #[must_use]
    pub fn new(options: FollowPlan, seed: u64, now_us: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x3a_1b_07);
        // Not far from where 32 bits are too few.
        let next_xid = *rng.pick(&[731, (1 << 32) - 20, (7 << 32) - 5]);
        Wal {
            options,
            next_xid,
            latest_completed: next_xid - 1,
            running: BTreeMap::new(),
            of_process: BTreeMap::new(),
            log: Vec::new(),
            end: FIRST_LSN,
            flushed: FIRST_LSN,
            slots: BTreeMap::new(),
            senders: BTreeMap::new(),
            publishes_ledger: true,
            publication: 1,
            settings: 1,
            started_us: now_us,
            is_down: false,
            outside: Outside::new(&options, rng.percent(15)),
            is_followed: false,
            due: vec![(1, WalEvent::Outside), (20_000 + rng.below(2_000_000), WalEvent::Changes)],
            check: FollowedCheck::new(options.max_age_ms * 1000),
        }
    }

    /// Returns whether no connection can be opened.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// The server is up again.
    pub fn comes_up(&mut self) {
        self.is_down = false;
    }

    /// Returns whether the pooler follows the changes, as far as it has said.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// The pooler writes a line of its log.
    pub fn hear(&mut self, line: &str) {
        if line.contains("are followed, ") {
            self.is_followed = true;
        } else if line.contains("are not followed: ") {
            // A network that is too slow for the questions is no fault of the pooler.
            self.is_followed = line.contains("more than a hundredth of query_cache_ddl_ms");
        }
    }

    /// A process has changed something.
    pub fn write(&mut self, rng: &mut Rng, process: usize, change: Change) {
        let xid = match self.of_process.get(&process) {
            Some(xid) => *xid,
            None => {
                let xid = self.begin();
                self.of_process.insert(process, xid);
                xid
            }
        };
        for table in tables_of(change.1) {
            self.write_row(rng, xid, xid, *table);
        }
        if let Some(transaction) = self.running.get_mut(&xid) {
            transaction.changes.push(change);
        }
    }

    /// The transaction of a process ends, if it has changed something.
    pub fn end(&mut self, rng: &mut Rng, process: usize, is_kept: bool) {
        let Some(xid) = self.of_process.get(&process).copied() else { return };
        match is_kept {
            true => self.commit(rng, xid),
            false => self.roll_back(rng, xid),
        }
    }

    /// A process is gone: its open transaction is rolled back.
    pub fn gone(&mut self, rng: &mut Rng, process: usize) {
        self.slots.remove(&process);
        self.senders.remove(&process);
        if !self.is_committing(process) {
            self.end(rng, process, false);
        }
    }

    /// Returns whether a process waits until its transaction is visible.
    #[must_use]
    pub fn is_committing(&self, process: usize) -> bool {
        let xid = self.of_process.get(&process);
        xid.and_then(|xid| self.running.get(xid)).is_some_and(|transaction| transaction.is_ended)
    }

    /// The log is on disk up to this position.
    pub fn flushed(&mut self, rng: &mut Rng, position: u64) {
        if position > self.flushed {
            self.flushed = position;
            let delay_us = rng.skewed(1_000);
            let stalls = rng.percent(3);
            for (process, sender) in self.senders.iter_mut().filter(|(_, sender)| !sender.is_stalled) {
                if stalls {
                    sender.is_stalled = true;
                    self.due.push((1 + rng.below(self.options.lag_us_max), WalEvent::Resume(*process)));
                } else {
                    self.due.push((1 + delay_us, WalEvent::Wake(*process)));
                }
            }
        }
    }

    /// A transaction becomes visible. Returns its process.
    pub fn becomes_visible(&mut self, xid: u64, now_us: u64) -> Option<usize> {
        let transaction = self.running.get(&xid)?;
        let tables: BTreeSet<usize> = transaction.rows.iter().map(|(_, table)| *table).collect();
        let mut tables: Vec<usize> = tables.into_iter().collect();
        let (changes, redefines) = (transaction.changes.clone(), transaction.redefines);
        let excused_until_us = now_us + self.options.window_us();
        match redefines {
            Some(Redefinition::Swap) => {
                tables.push(DEFINITIONS);
                self.check.excuse(DEFINITIONS, excused_until_us);
            }
            Some(Redefinition::Publish(_)) => {
                self.publication += 1;
                self.check.excuse(LEDGER, excused_until_us);
            }
            None => {}
        }
        self.check.becomes_visible(&tables, &changes, now_us);
        self.complete(xid);
        let process = self.of_process.iter().find(|(_, own)| **own == xid).map(|(process, _)| *process)?;
        self.of_process.remove(&process);
        Some(process)
    }

    fn begin(&mut self) -> u64 {
        let xid = self.next_xid;
        self.next_xid += 1;
        self.running.insert(xid, Transaction::default());
        xid
    }

    fn write_row(&mut self, rng: &mut Rng, xid: u64, part: u64, table: usize) {
        let is_published = match table {
            BOARD => true,
            LEDGER => self.publishes_ledger,
            _ => false,
        };
        self.append(rng, What::Row { xid, part, table, is_published });
        if let Some(transaction) = self.running.get_mut(&xid) {
            transaction.rows.push((part, table));
        }
    }

    fn append(&mut self, rng: &mut Rng, what: What) -> u64 {
        self.end += rng.between(30, 600);
        if rng.percent(20) {
            // The record ends with its page.
            self.end = self.end.next_multiple_of(PAGE_BYTES);
        }
        self.log.push(Record { what, end: self.end });
        self.end
    }

    /// Writes the record of a commit, and has the next steps happen.
    fn commit(&mut self, rng: &mut Rng, xid: u64) {
        let end = self.append(rng, What::Commit { xid });
        let Some(transaction) = self.running.get_mut(&xid) else { return };
        transaction.is_ended = true;
        if let Some(Redefinition::Publish(publishes)) = transaction.redefines {
            // Rows that are written from here on are judged by it, though it may be a while until others see it.
            self.publishes_ledger = publishes;
            self.check.excuse(LEDGER, u64::MAX);
        }
        let (flushed_us, visible_us) = match rng.below(30) {
            // An asynchronous commit.
            0..3 => (rng.skewed(300_000), rng.skewed(50)),
            // A synchronous standby that is slow to answer.
            3 => {
                let flushed_us = rng.skewed(300);
                (flushed_us, flushed_us + rng.skewed(2_000_000))
            }
            4..8 => {
                let flushed_us = rng.skewed(10_000);
                (flushed_us, flushed_us + rng.skewed(20_000))
            }
            _ => {
                let flushed_us = rng.skewed(300);
                (flushed_us, flushed_us + rng.skewed(300))
            }
        };
        self.due.push((1 + flushed_us, WalEvent::Flushed(end)));
        self.due.push((1 + visible_us, WalEvent::Visible(xid)));
    }

    fn roll_back(&mut self, rng: &mut Rng, xid: u64) {
        self.append(rng, What::Abort { xid, part: xid });
        self.complete(xid);
        self.of_process.retain(|_, own| *own != xid);
    }

    /// A part of a transaction is rolled back.
    fn roll_back_part(&mut self, rng: &mut Rng, xid: u64, part: u64) {
        self.append(rng, What::Abort { xid, part });
        if let Some(transaction) = self.running.get_mut(&xid) {
            transaction.rows.retain(|(of, _)| *of != part);
        }
    }

    /// A transaction is over.
    fn complete(&mut self, xid: u64) {
        self.running.remove(&xid);
        self.latest_completed = self.latest_completed.max(xid);
        for (process, slot) in &mut self.slots {
            slot.awaited.remove(&xid);
            if slot.awaited.is_empty() {
                self.due.push((1, WalEvent::Wake(*process)));
            }
        }
    }

    /// Returns the visible transactions, as `pg_current_snapshot` tells them.
    fn snapshot(&self) -> String {
        let xmax = self.latest_completed + 1;
        // Those from there on are not visible either, and not told.
        let running: Vec<u64> = self.running.keys().copied().take_while(|xid| *xid < xmax).collect();
        let xmin = running.first().copied().unwrap_or(xmax);
        let list: Vec<String> = running.iter().map(u64::to_string).collect();
        format!("{xmin}:{xmax}:{}", list.join(","))
    }

    /// Returns the position at which the next record begins.
    fn inserts_at(&self) -> u64 {
        if self.end.is_multiple_of(PAGE_BYTES) { self.end + PAGE_HEADER_BYTES } else { self.end }
    }

    /// A process that sends the stream has something to do.
    pub fn wakes(&mut self, process: usize) {
        if let Some(sender) = self.senders.get_mut(&process) {
            sender.is_due = !sender.is_stalled;
        }
    }

    /// A process sends the stream again.
    pub fn resumes(&mut self, process: usize) {
        if let Some(sender) = self.senders.get_mut(&process) {
            (sender.is_stalled, sender.is_due) = (false, true);
        }
    }

    /// The receiver of a stream says something.
    fn hear_receiver(&mut self, process: usize, body: &[u8]) {
        if let Some(sender) = self.senders.get_mut(&process) {
            sender.hear(body);
        }
    }

    /// Returns what a process sends of the stream now.
    fn send(&mut self, rng: &mut Rng, process: usize) -> Vec<Message> {
        let Some(sender) = self.senders.get_mut(&process).filter(|sender| sender.is_due) else {
            return Vec::new();
        };
        let messages = sender.send(rng, &self.log, self.flushed);
        if std::mem::take(&mut sender.is_due) {
            self.due.push((1 + rng.skewed(5_000), WalEvent::Wake(process)));
        }
        messages
    }

    /// Begins to make a slot for a process.
    fn begin_slot(&mut self, process: usize) {
        let awaited = self.running.keys().copied().collect();
        self.slots.insert(process, Slot { awaited, known_from: None });
    }

    /// Returns whether the slot of a process is made: the transactions have ended that ran when it was begun, and after that those that ran then.
    fn is_slot_made(&mut self, process: usize) -> bool {
        let place = self.log.len();
        let Some(slot) = self.slots.get_mut(&process) else { return false };
        if !slot.awaited.is_empty() {
            return false;
        }
        let Some(known_from) = slot.known_from else {
            slot.known_from = Some(place);
            slot.awaited = self.running.keys().copied().collect();
            return slot.awaited.is_empty() && self.is_slot_made(process);
        };
        let large_from = self.options.large_from;
        self.senders.insert(process, Sender::new(known_from, place, self.end, large_from));
        self.slots.remove(&process);
        true
    }

    /// The server is shut down: transactions are rolled back that are not committed, and all others are visible.
    pub(in crate::sim) fn shut_down(&mut self, rng: &mut Rng, now_us: u64) {
        let open: Vec<(u64, bool)> = self.running.iter().map(|(xid, open)| (*xid, open.is_ended)).collect();
        for (xid, is_ended) in open {
            if is_ended {
                self.becomes_visible(xid, now_us);
            } else {
                self.roll_back(rng, xid);
            }
        }
        self.flushed = self.end;
        (self.started_us, self.settings, self.is_down) = (now_us, self.settings + 1, true);
        self.slots.clear();
        self.senders.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wal() -> (Wal, Rng) {
        let options = FollowPlan {
            max_age_ms: 100,
            probe_ms: 20,
            ddl_ms: 1000,
            lag_us_max: 1,
            large_from: 1000,
            quiet_us_max: 1,
            has_faults: false,
            verify: 0,
        };
        (Wal::new(options, 7, 0), Rng::new(1))
    }

    /// The transaction's number, without its epoch, is in what the stream sends.
    fn sends(wal: &mut Wal, rng: &mut Rng, xid: u64) -> bool {
        let begins = (xid & 0xffff_ffff).to_be_bytes();
        let is_begin =
            |message: &Message| message.body.get(25) == Some(&b'B') && message.body.ends_with(&begins[4..]);
        (0..100).any(|_| {
            wal.resumes(1);
            wal.send(rng, 1).iter().any(is_begin)
        })
    }

    #[test]
    fn a_transaction_is_sent_when_it_is_on_disk_and_may_be_invisible_then() {
        let (mut wal, mut rng) = wal();
        wal.begin_slot(1);
        assert!(wal.is_slot_made(1), "no transaction runs");
        wal.write(&mut rng, 2, (1, 5));
        wal.end(&mut rng, 2, true);
        let xid = wal.next_xid - 1;
        assert!(wal.is_committing(2) && !sends(&mut wal, &mut rng, xid));
        wal.flushed(&mut rng, wal.end);
        assert!(sends(&mut wal, &mut rng, xid));
        assert_eq!(
            wal.snapshot(),
            format!("{xid}:{xid}:"),
            "it is the newest one, which is told as not begun"
        );
        assert_eq!((wal.check.values()[BOARD], wal.becomes_visible(xid, 9)), (0, Some(2)));
        assert_eq!((wal.check.values()[BOARD], wal.is_committing(2)), (1, false));
        assert_eq!(wal.snapshot(), format!("{0}:{0}:", xid + 1));
    }

    #[test]
    fn a_slot_waits_twice_and_sends_nothing_that_was_committed_before() {
        let (mut wal, mut rng) = wal();
        wal.write(&mut rng, 2, (1, 5));
        let first = wal.next_xid - 1;
        wal.begin_slot(1);
        wal.write(&mut rng, 3, (2, 5));
        let second = wal.next_xid - 1;
        wal.end(&mut rng, 2, true);
        assert!(!wal.is_slot_made(1));
        wal.becomes_visible(first, 1);
        assert!(!wal.is_slot_made(1), "the second one ran when the first was over");
        // The third one is committed before the slot is made, and not visible.
        wal.write(&mut rng, 4, (3, 5));
        wal.end(&mut rng, 4, true);
        let third = wal.next_xid - 1;
        wal.end(&mut rng, 3, false);
        assert!(wal.is_slot_made(1));
        wal.flushed(&mut rng, wal.end);
        assert!(![first, second, third].into_iter().any(|xid| sends(&mut wal, &mut rng, xid)));
        assert_eq!(wal.snapshot(), format!("{third}:{third}:"), "no snapshot tells that it runs");
    }

    #[test]
    fn a_part_that_is_rolled_back_changes_nothing() {
        let (mut wal, mut rng) = wal();
        let xid = wal.begin();
        wal.write_row(&mut rng, xid, xid + 1, LEDGER);
        wal.write_row(&mut rng, xid, xid, BOARD);
        wal.roll_back_part(&mut rng, xid, xid + 1);
        wal.commit(&mut rng, xid);
        wal.becomes_visible(xid, 1);
        assert_eq!(wal.check.values(), [1, 0, 0, 0]);
    }
}
