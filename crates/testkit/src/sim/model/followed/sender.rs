//! The process that sends the changes of published tables: it reads the log as far as that is on disk, puts the changes of each transaction
//! together, and sends them with the commit. Large transactions are sent in parts, before they are committed.

use std::collections::BTreeMap;

use crate::sim::check::followed::{BOARD, LEDGER};
use crate::sim::model::followed::{Record, What};
use crate::sim::network::proto::{Body, Message};
use crate::sim::rng::Rng;

/// The changes of a transaction that is not over.
#[derive(Default)]
struct Buffer {
    /// The published rows: the part of the transaction, and the table.
    rows: Vec<(u64, usize)>,
    is_sent: bool,
}

/// The process that sends changes to one receiver, as far as it has come.
pub struct Sender {
    /// The place in the log that is read next, and from which on commits are sent.
    next: usize,
    sends_from: usize,
    /// The position that was read up to, and the one that the receiver was told last.
    position: u64,
    told: u64,
    buffers: BTreeMap<u64, Buffer>,
    /// The number of rows from which on a transaction is sent in parts.
    large_from: usize,
    /// The receiver wants to be answered.
    is_asked: bool,
    /// The sender has begun, and has something to do.
    pub is_due: bool,
    /// Nothing is sent for a while.
    pub is_stalled: bool,
}

/// Returns the number of a table.
#[must_use]
pub fn number(table: usize) -> u32 {
    16_401 + u32::try_from(table).expect("few tables")
}

impl Sender {
    pub(super) fn new(next: usize, sends_from: usize, position: u64, large_from: usize) -> Self {
        Sender {
            next,
            sends_from,
            position,
            told: 0,
            buffers: BTreeMap::new(),
            large_from,
            is_asked: false,
            is_due: false,
            is_stalled: false,
        }
    }

    /// Takes a message of the receiver: its status.
    pub(super) fn hear(&mut self, body: &[u8]) {
        // The last byte of a status says whether an answer is wanted.
        if body.first() == Some(&b'r') && body.last() == Some(&1) {
            (self.is_asked, self.is_due) = (true, !self.is_stalled);
        }
    }

    /// Reads the log up to a position, or a part of it. Returns what is sent.
    pub(super) fn send(&mut self, rng: &mut Rng, log: &[Record], flushed: u64) -> Vec<Message> {
        let mut out = Vec::new();
        self.is_due = false;
        while let Some(record) = log.get(self.next).filter(|record| record.end <= flushed) {
            self.take(rng, self.next, record, &mut out);
            self.next += 1;
            self.position = self.position.max(record.end);
            if rng.percent(5) {
                // The rest a little later.
                self.is_due = true;
                return out;
            }
        }
        if self.is_asked || self.position > self.told {
            self.is_asked = false;
            self.told = self.position;
            let keepalive = Body::new().byte(b'k').raw(&self.position.to_be_bytes()).raw(&[0; 8]);
            out.push(keepalive.byte(u8::from(rng.percent(20))).message(b'd'));
        }
        out
    }

    fn take(&mut self, rng: &mut Rng, place: usize, record: &Record, out: &mut Vec<Message>) {
        match record.what {
            What::Row { xid, part, table, is_published } => {
                let buffer = self.buffers.entry(xid).or_default();
                if is_published {
                    buffer.rows.push((part, table));
                }
                if buffer.rows.len() >= self.large_from && place >= self.sends_from {
                    send_part(rng, xid, buffer, out);
                }
            }
            What::Abort { xid, part } => {
                let Some(buffer) = self.buffers.get_mut(&xid) else { return };
                buffer.rows.retain(|(of, _)| *of != part);
                if buffer.is_sent {
                    out.push(data(Body::new().byte(b'A').raw(&low(xid)).raw(&low(part))));
                }
                if xid == part {
                    self.buffers.remove(&xid);
                }
            }
            What::Commit { xid } => {
                let Some(mut buffer) = self.buffers.remove(&xid).filter(|_| place >= self.sends_from) else {
                    return;
                };
                let end = record.end.to_be_bytes();
                if buffer.is_sent {
                    send_part(rng, xid, &mut buffer, out);
                    let commit = Body::new().byte(b'c').raw(&low(xid)).raw(&[0; 9]).raw(&end).raw(&[0; 8]);
                    out.push(data(commit));
                } else if !buffer.rows.is_empty() || rng.percent(20) {
                    // Versions before 15 send transactions without changes, too.
                    out.push(data(Body::new().byte(b'B').raw(&[0; 16]).raw(&low(xid))));
                    for (_, table) in buffer.rows {
                        send_row(rng, None, table, out);
                    }
                    out.push(data(Body::new().byte(b'C').raw(&[0; 9]).raw(&end).raw(&[0; 8])));
                }
            }
            What::Other => {}
        }
    }
}

/// Sends the changes of a transaction that were not sent yet.
fn send_part(rng: &mut Rng, xid: u64, buffer: &mut Buffer, out: &mut Vec<Message>) {
    let is_first = !std::mem::replace(&mut buffer.is_sent, true);
    out.push(data(Body::new().byte(b'S').raw(&low(xid)).byte(u8::from(is_first))));
    for (part, table) in buffer.rows.drain(..) {
        send_row(rng, Some(part), table, out);
    }
    out.push(data(Body::new().byte(b'E')));
}

/// Sends the change of a row. `part`: the transaction that names it, if it is sent before the commit.
fn send_row(rng: &mut Rng, part: Option<u64>, table: usize, out: &mut Vec<Message>) {
    let of = |tag: u8| part.map(low).iter().fold(Body::new().byte(tag), |body, xid| body.raw(xid));
    let number = number(table).to_be_bytes();
    if rng.percent(10) {
        let relation =
            of(b'R').raw(&number).text("public").text(if table == BOARD { "board" } else { "ledger" });
        out.push(data(relation.byte(b'd').int16(0)));
    }
    let row: &[u8] = b"\0\x01t\0\0\0\x011";
    out.push(data(match rng.below(8) {
        0..3 => of(b'I').raw(&number).byte(b'N').raw(row),
        3..6 => of(b'U').raw(&number).byte(b'N').raw(row),
        6 => of(b'D').raw(&number).byte(b'K').raw(row),
        _ => of(b'T').int32(1).byte(0).raw(&number),
    }));
}

fn data(body: Body) -> Message {
    let plugin = body.message(b'd').body;
    Body::new().byte(b'w').raw(&[0; 24]).raw(&plugin).message(b'd')
}

/// The lower 32 bits of a transaction's number, as the stream has them.
fn low(xid: u64) -> [u8; 4] {
    u32::try_from(xid & u64::from(u32::MAX)).expect("32 bits").to_be_bytes()
}

/// Returns the numbers of the tables that can be followed.
#[must_use]
pub fn followed_tables(has_ledger: bool) -> String {
    match has_ledger {
        true => format!("{},{}", number(BOARD), number(LEDGER)),
        false => number(BOARD).to_string(),
    }
}
