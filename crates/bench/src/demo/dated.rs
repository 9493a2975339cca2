//! Rows whose changes are dated: a writer notes when the commit of each value was acknowledged, and readers note which value they got, and
//! when they asked. Afterwards each answer is compared with the writer's times.
//!
//! An answer is *older than promised* if the value after it was committed more than the promised age before the client asked. Only such an
//! answer proves that the promise is broken, and the comparison needs no tolerance: the commit was acknowledged before the writer noted its
//! time, and the client noted its time before it asked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pgweir_client::{Client, Login};

use crate::error::BenchError;

/// The number of rows.
pub(super) const KEYS: usize = 100;
/// The SQL that makes the table. A row's value is the number of its changes.
pub(super) const TABLE: &str = "CREATE TABLE hot (key int PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50); \
                                INSERT INTO hot SELECT key, 0 FROM generate_series(1, 100) AS key";
/// The pause between two changes, and between two reads of a reader: what is measured is the load of pgbench, not this one.
const PAUSE: Duration = Duration::from_millis(2);

/// The times at which the changes of each row were acknowledged: the first entry of a row is that of value 1.
type Changes = Vec<Vec<Instant>>;

/// An answer that a reader got.
#[derive(Clone, Copy, Debug)]
struct Read {
    /// The time before the statement was sent.
    asked: Instant,
    /// The row's place in [`Changes`].
    row: usize,
    value: usize,
}

/// A writer and its readers at work. Dropping it lets them end by themselves.
pub(super) struct Dated {
    stop: Arc<AtomicBool>,
    /// The writer; `None` after it has been waited for.
    writer: Option<JoinHandle<io::Result<Changes>>>,
    readers: Vec<JoinHandle<io::Result<Vec<Read>>>>,
    began: Instant,
}

/// The result of comparing the answers with the writer's times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Checked {
    /// The number of changes.
    pub(super) changes: usize,
    /// The number of changes per second.
    pub(super) changes_per_s: f64,
    /// The number of answers.
    pub(super) reads: usize,
    /// For each answer whose row had been changed before the client asked: the time since the change that it did not show. Sorted.
    pub(super) behind: Vec<Duration>,
    /// The number of these answers that were older than promised.
    pub(super) too_old: usize,
}

impl Dated {
    /// Starts a writer that logs in with `writer`, and `readers` clients that log in with `reader`. The writer first sets all values to 0, so
    /// no answer from before may be kept that the readers can get.
    pub(super) fn start(writer: &Login, reader: &Login, readers: usize) -> Result<Dated, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writer = Client::log_in(writer).map_err(BenchError::io("the writer's login"))?;
        writer.query("UPDATE hot SET value = 0").map_err(BenchError::io("the writer's first change"))?;
        let stopped = Arc::clone(&stop);
        let readers = (0..readers)
            .map(|number| {
                let client = Client::log_in(reader).map_err(BenchError::io("a reader's login"))?;
                let stopped = Arc::clone(&stop);
                Ok(thread::spawn(move || read(client, number, &stopped)))
            })
            .collect::<Result<Vec<_>, BenchError>>();
        let readers = match readers {
            Ok(readers) => readers,
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                return Err(error);
            }
        };
        let writer = Some(thread::spawn(move || write(writer, &stopped)));
        Ok(Dated { stop, writer, readers, began: Instant::now() })
    }

    /// Ends the writer and the readers, and compares the answers with the writer's times.
    pub(super) fn end(mut self, promised: Duration) -> Result<Checked, BenchError> {
        self.stop.store(true, Ordering::Relaxed);
        let seconds = self.began.elapsed().as_secs_f64();
        let mut reads = Vec::new();
        for reader in self.readers.drain(..) {
            let its = reader.join().map_err(|_| BenchError::failed("a reader ended", ""))?;
            reads.extend(its.map_err(BenchError::io("a reader of dated rows"))?);
        }
        let writer = self.writer.take().expect("only this function takes it, once");
        let changes = writer.join().map_err(|_| BenchError::failed("the writer ended", ""))?;
        let changes = changes.map_err(BenchError::io("the writer of dated rows"))?;
        let mut checked = compare(&changes, &reads, promised)?;
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 changes")]
        let number = checked.changes as f64;
        checked.changes_per_s = number / seconds.max(f64::EPSILON);
        Ok(checked)
    }
}

impl Drop for Dated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Changes one row after the other, each change in its own transaction, and notes when each was acknowledged.
fn write(mut client: Client, stop: &AtomicBool) -> io::Result<Changes> {
    let mut changes: Changes = vec![Vec::new(); KEYS];
    for row in (0..KEYS).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        client.query(&format!("UPDATE hot SET value = value + 1 WHERE key = {}", row + 1))?;
        changes[row].push(Instant::now());
        thread::sleep(PAUSE);
    }
    Ok(changes)
}

/// Reads one row after the other, with the same text as the load, and notes each answer.
fn read(mut client: Client, number: usize, stop: &AtomicBool) -> io::Result<Vec<Read>> {
    let mut reads = Vec::new();
    // Each reader begins elsewhere, and takes steps that visit all rows: 37 and 100 have no common factor.
    let mut row = number * 29 % KEYS;
    while !stop.load(Ordering::Relaxed) {
        row = (row + 37) % KEYS;
        let asked = Instant::now();
        let rows = client.query(&statement(&(row + 1).to_string()))?;
        let value = rows.first().and_then(|row| row.first()).and_then(|value| value.parse().ok());
        let value = value.ok_or_else(|| io::Error::other("a row of the table hot is not there"))?;
        reads.push(Read { asked, row, value });
        thread::sleep(PAUSE);
    }
    Ok(reads)
}

/// Returns the read of one row. pgbench's script and the readers send the same text, so that they share answers.
pub(super) fn statement(key: &str) -> String {
    format!("SELECT value FROM hot WHERE key = {key}")
}

/// Compares the answers with the times of the changes.
fn compare(changes: &Changes, reads: &[Read], promised: Duration) -> Result<Checked, BenchError> {
    let mut behind = Vec::new();
    for read in reads {
        let of_row = changes.get(read.row).map(Vec::as_slice).unwrap_or_default();
        // The change to the value `n + 1` is the entry `n`. The writer noted its last change before it ended.
        if read.value > of_row.len() {
            return Err(BenchError::failed("a reader got a value that was never written", ""));
        }
        let next = of_row.get(read.value).filter(|next| **next <= read.asked);
        behind.extend(next.map(|next| read.asked - *next));
    }
    behind.sort_unstable();
    let too_old = behind.iter().filter(|age| **age >= promised).count();
    let changes = changes.iter().map(Vec::len).sum();
    Ok(Checked { changes, changes_per_s: 0.0, reads: reads.len(), behind, too_old })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(value: usize, asked_ms: u64) -> Result<Checked, BenchError> {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        // The row gets the values 1, 2 and 3 after 100, 200 and 300 ms.
        let changes = vec![vec![at(100), at(200), at(300)], Vec::new()];
        compare(&changes, &[Read { asked: at(asked_ms), row: 0, value }], Duration::from_millis(50))
    }

    #[test]
    fn an_answer_is_as_late_as_the_change_that_it_does_not_show() {
        let behind = |value, asked_ms| {
            let checked = compared(value, asked_ms).expect("a value that was written");
            (checked.behind.first().map(Duration::as_millis), checked.too_old)
        };
        assert_eq!(behind(1, 150), (None, 0));
        assert_eq!(behind(0, 99), (None, 0));
        assert_eq!(behind(0, 149), (Some(49), 0));
        assert_eq!(behind(0, 150), (Some(50), 1));
        assert_eq!(behind(1, 210), (Some(10), 0));
        // The value 1 was no longer there from 200 ms on, whatever came after the value 2.
        assert_eq!(behind(1, 350), (Some(150), 1));
        assert_eq!(behind(3, 900), (None, 0));
    }

    #[test]
    fn a_value_may_be_seen_before_it_is_acknowledged_but_must_have_been_written() {
        assert_eq!(compared(3, 250).map(|checked| (checked.reads, checked.too_old)).ok(), Some((1, 0)));
        assert!(compared(4, 400).is_err());
    }
}
