//! The stream of logical replication, as far as it tells which tables a transaction has changed: the messages inside of CopyData (WAL data,
//! keepalives, the receiver's status), and the messages of the output plugin `pgoutput` in its protocol versions 1 and 2. It follows
//! <https://www.postgresql.org/docs/current/protocol-replication.html> and
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>.
//!
//! Of a change of a row [`Change::parse`] reads the number of its table; the caller reads the rest if it needs the row's key ([`Rows`]). A caller
//! that has only the beginning of a long message may pass that: [`Change::parse`] needs no more than [`CHANGE_BYTES_MAX`] bytes of it. All other
//! messages are read whole.

mod rows;

pub use rows::{IDENTITY_PRIMARY_KEY, Relation, RelationColumn, Rows, Tuple, Value};

use crate::error::WireError;
use crate::frontend;
use crate::limits::{STREAM_MESSAGE_BYTES_MAX, TRUNCATED_TABLES_MAX};
use crate::reader::Reader;
use crate::writer;

/// The number of bytes of [`Frame::Data`] ahead of the plugin's message, its type included.
pub const DATA_HEAD_BYTES: usize = 1 + 8 + 8 + 8;

/// The number of bytes of a change of a row that tell its table: the message's type, the transaction and the table.
pub const CHANGE_BYTES_MAX: usize = 1 + 4 + 4;

/// The content of a CopyData message of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the output plugin.
    Data(&'a [u8]),
    /// The server is alive.
    Keepalive {
        /// The position up to which the server has read the log and has sent all that concerns the receiver.
        position: u64,
        /// Whether the server wants to be answered at once.
        wants_reply: bool,
    },
}

impl<'a> Frame<'a> {
    /// Reads the content of a CopyData message, or the beginning of one that has [`Frame::Data`].
    ///
    /// # Errors
    /// The content is neither WAL data nor a keepalive.
    pub fn parse(body: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let mut reader = Reader::new("replication data", body);
        match reader.u8("type")? {
            b'w' => {
                // The positions of logical replication are in the plugin's messages.
                reader.take(8 + 8 + 8, "positions and time")?;
                Ok(Frame::Data(reader.rest()))
            }
            b'k' => {
                let position = reader.u64("end of the log")?;
                reader.take(8, "time")?;
                let wants_reply = reader.u8("whether a reply is wanted")? != 0;
                reader.finish()?;
                Ok(Frame::Keepalive { position, wants_reply })
            }
            other => Err(reader.refuse("type", "WAL data or a keepalive", u32::from(other))),
        }
    }
}

/// Appends the status of a receiver that has read everything up to `position`. With `wants_reply` the server sends a keepalive at once.
pub fn encode_status(out: &mut Vec<u8>, position: u64, wants_reply: bool) {
    writer::message(out, frontend::tag::COPY_DATA, |out| {
        out.push(b'r');
        // Written, flushed, applied.
        for _ in 0..3 {
            out.extend_from_slice(&position.to_be_bytes());
        }
        // The receiver's time, which PostgreSQL only shows.
        out.extend_from_slice(&0u64.to_be_bytes());
        out.push(u8::from(wants_reply));
    });
}

/// A message of `pgoutput`, as far as it tells which transaction has changed what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<'a> {
    /// The changes of a transaction follow, all of them. The transaction is committed.
    Begin {
        /// The transaction, without its epoch.
        xid: u32,
    },
    /// The transaction of the last [`Change::Begin`] is complete.
    Commit {
        /// The position after the commit's record.
        end: u64,
    },
    /// A row was inserted, updated or deleted.
    Row {
        /// The transaction, or a part of it that can be rolled back by itself: only if the message is a part of a transaction that was not
        /// committed yet.
        xid: Option<u32>,
        /// The table, by number.
        table: u32,
        /// The type of the message, for [`Rows::parse`].
        tag: u8,
        /// The rest of the message, as far as it was passed, for [`Rows::parse`].
        rest: &'a [u8],
    },
    /// Tables were truncated.
    Truncate {
        /// As in [`Change::Row`].
        xid: Option<u32>,
        /// The tables, by number.
        tables: Vec<u32>,
    },
    /// The description of a table, which holds for the rows that follow.
    Relation {
        /// As in [`Change::Row`].
        xid: Option<u32>,
        /// The table, by number.
        table: u32,
        /// The rest of the message, as far as it was passed, for [`Relation::parse`].
        rest: &'a [u8],
    },
    /// Changes of a transaction follow that was not committed yet.
    StreamStart {
        /// The transaction, without its epoch.
        xid: u32,
    },
    /// The changes of the last [`Change::StreamStart`] end, for now or altogether.
    StreamStop,
    /// A transaction was committed whose changes were sent before.
    StreamCommit {
        /// The transaction, without its epoch.
        xid: u32,
        /// The position after the commit's record.
        end: u64,
    },
    /// A transaction whose changes were sent before, or a part of it, was rolled back.
    StreamAbort {
        /// The transaction, without its epoch.
        xid: u32,
        /// The part that was rolled back; the same number as `xid` if it was all of the transaction.
        part: u32,
    },
    /// A message that tells of no change: the description of a type, an origin, or the message of a program.
    Other,
}

impl<'a> Change<'a> {
    /// Reads a message of `pgoutput`. `is_streamed`: the message is between [`Change::StreamStart`] and [`Change::StreamStop`], where messages
    /// name their transaction.
    ///
    /// # Errors
    /// The message is unknown, or its length or a value in it is not allowed.
    pub fn parse(message: &'a [u8], is_streamed: bool) -> Result<Change<'a>, WireError> {
        let mut reader = Reader::new("pgoutput", message);
        match reader.u8("type")? {
            b'B' => {
                reader.take(8 + 8, "position and time")?;
                let xid = reader.u32("transaction")?;
                reader.finish()?;
                Ok(Change::Begin { xid })
            }
            b'C' => {
                let end = commit_end(&mut reader)?;
                reader.finish()?;
                Ok(Change::Commit { end })
            }
            tag @ (b'I' | b'U' | b'D') => {
                let xid = streamed(&mut reader, is_streamed)?;
                let table = reader.u32("table")?;
                Ok(Change::Row { xid, table, tag, rest: reader.rest() })
            }
            b'R' => {
                let xid = streamed(&mut reader, is_streamed)?;
                let table = reader.u32("table")?;
                Ok(Change::Relation { xid, table, rest: reader.rest() })
            }
            b'T' => truncated(reader, is_streamed),
            b'S' => {
                let xid = reader.u32("transaction")?;
                reader.u8("whether it is the first part")?;
                reader.finish()?;
                Ok(Change::StreamStart { xid })
            }
            b'E' => {
                reader.finish()?;
                Ok(Change::StreamStop)
            }
            b'c' => {
                let xid = reader.u32("transaction")?;
                let end = commit_end(&mut reader)?;
                reader.finish()?;
                Ok(Change::StreamCommit { xid, end })
            }
            b'A' => {
                let (xid, part) = (reader.u32("transaction")?, reader.u32("part")?);
                reader.finish()?;
                Ok(Change::StreamAbort { xid, part })
            }
            b'Y' | b'O' | b'M' => Ok(Change::Other),
            other => Err(reader.refuse("type", "a message of versions 1 and 2", u32::from(other))),
        }
    }

    /// Returns whether a message with this type may be read from its first [`CHANGE_BYTES_MAX`] bytes, because it may be as long as a row
    /// or a description. Other messages are at most [`STREAM_MESSAGE_BYTES_MAX`] bytes long.
    #[must_use]
    pub fn may_be_long(tag: u8) -> bool {
        matches!(tag, b'I' | b'U' | b'D' | b'R' | b'Y' | b'O' | b'M')
    }
}

const _: () = assert!(STREAM_MESSAGE_BYTES_MAX > CHANGE_BYTES_MAX + 4 * TRUNCATED_TABLES_MAX as usize);

fn streamed(reader: &mut Reader<'_>, is_streamed: bool) -> Result<Option<u32>, WireError> {
    if is_streamed { reader.u32("transaction").map(Some) } else { Ok(None) }
}

/// Reads flags, the commit's position, the position after it and the time.
fn commit_end(reader: &mut Reader<'_>) -> Result<u64, WireError> {
    reader.take(1 + 8, "flags and position")?;
    let end = reader.u64("end of the commit")?;
    reader.take(8, "time")?;
    Ok(end)
}

fn truncated(mut reader: Reader<'_>, is_streamed: bool) -> Result<Change<'_>, WireError> {
    let xid = streamed(&mut reader, is_streamed)?;
    let count = reader.u32("number of tables")?;
    if count > TRUNCATED_TABLES_MAX {
        return Err(reader.refuse("number of tables", "at most 10000", count));
    }
    reader.u8("options")?;
    let tables = (0..count).map(|_| reader.u32("table")).collect::<Result<Vec<u32>, WireError>>()?;
    reader.finish()?;
    Ok(Change::Truncate { xid, tables })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{body, closed, exact, hostile};

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn parse(message: &[u8]) -> Result<Change<'_>, WireError> {
        Change::parse(message, false)
    }

    /// The transaction and table of a change, which its beginning tells.
    fn table_of(change: Change<'_>) -> Option<(Option<u32>, u32)> {
        match change {
            Change::Row { xid, table, .. } | Change::Relation { xid, table, .. } => Some((xid, table)),
            _ => None,
        }
    }

    #[test]
    fn a_keepalive_tells_how_far_the_server_has_read() {
        let message = bytes(&[b"k", &7u64.to_be_bytes(), &[0; 8], &[1]]);
        assert_eq!(Frame::parse(&message), Ok(Frame::Keepalive { position: 7, wants_reply: true }));
        exact(&message, Frame::parse);
        closed(&message, |bytes| Frame::parse(bytes).map(drop));
    }

    #[test]
    fn data_are_what_follows_their_head() {
        let message = bytes(&[b"w", &[0; 24], b"E"]);
        assert_eq!(message.len(), DATA_HEAD_BYTES + 1);
        assert_eq!(Frame::parse(&message), Ok(Frame::Data(b"E")));
        assert!(Frame::parse(&message[..DATA_HEAD_BYTES - 1]).is_err());
        assert!(Frame::parse(b"x").is_err() && Frame::parse(b"").is_err());
    }

    #[test]
    fn a_status_acknowledges_one_position_in_all_three_ways() {
        let mut out = Vec::new();
        encode_status(&mut out, 0x0102_0304_0506_0708, true);
        let sent = body(b'd', &out);
        assert_eq!(sent.len(), 34);
        assert_eq!((sent[0], sent[33]), (b'r', 1));
        for field in sent[1..25].chunks(8) {
            assert_eq!(field, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn a_transaction_is_read() {
        let begin = bytes(&[b"B", &[0; 16], &9u32.to_be_bytes()]);
        assert_eq!(parse(&begin), Ok(Change::Begin { xid: 9 }));
        let commit = bytes(&[b"C", &[0; 9], &77u64.to_be_bytes(), &[0; 8]]);
        assert_eq!(parse(&commit), Ok(Change::Commit { end: 77 }));
        for message in [begin, commit] {
            exact(&message, parse);
            closed(&message, |bytes| parse(bytes).map(drop));
        }
        for tag in *b"IUD" {
            let row = bytes(&[&[tag], &5u32.to_be_bytes(), b"N\0\x01t"]);
            assert_eq!(parse(&row), Ok(Change::Row { xid: None, table: 5, tag, rest: b"N\0\x01t" }));
            assert!(parse(&row[..4]).is_err());
        }
        let relation = bytes(&[b"R", &5u32.to_be_bytes(), b"s\0t\0d\0\0"]);
        assert_eq!(parse(&relation), Ok(Change::Relation { xid: None, table: 5, rest: b"s\0t\0d\0\0" }));
        assert!(parse(&relation[..4]).is_err());
    }

    #[test]
    fn all_truncated_tables_are_read() {
        let truncate = bytes(&[b"T", &2u32.to_be_bytes(), &[0], &5u32.to_be_bytes(), &6u32.to_be_bytes()]);
        assert_eq!(parse(&truncate), Ok(Change::Truncate { xid: None, tables: vec![5, 6] }));
        exact(&truncate, parse);
        closed(&truncate, |bytes| parse(bytes).map(drop));
        let many = bytes(&[b"T", &u32::MAX.to_be_bytes(), &[0]]);
        assert!(matches!(parse(&many), Err(WireError::Value { .. })));
    }

    #[test]
    fn messages_of_a_transaction_under_way_name_it() {
        let start = bytes(&[b"S", &9u32.to_be_bytes(), &[1]]);
        assert_eq!(parse(&start), Ok(Change::StreamStart { xid: 9 }));
        let row = bytes(&[b"I", &10u32.to_be_bytes(), &5u32.to_be_bytes(), b"N"]);
        assert_eq!(row.len(), CHANGE_BYTES_MAX + 1);
        let expected = Change::Row { xid: Some(10), table: 5, tag: b'I', rest: b"N" };
        assert_eq!(Change::parse(&row, true), Ok(expected));
        assert!(Change::parse(&row[..8], true).is_err());
        let truncate = bytes(&[b"T", &9u32.to_be_bytes(), &1u32.to_be_bytes(), &[0], &6u32.to_be_bytes()]);
        assert_eq!(Change::parse(&truncate, true), Ok(Change::Truncate { xid: Some(9), tables: vec![6] }));
        assert_eq!(parse(b"E"), Ok(Change::StreamStop));
        let commit = bytes(&[b"c", &9u32.to_be_bytes(), &[0; 9], &77u64.to_be_bytes(), &[0; 8]]);
        assert_eq!(parse(&commit), Ok(Change::StreamCommit { xid: 9, end: 77 }));
        let abort = bytes(&[b"A", &9u32.to_be_bytes(), &10u32.to_be_bytes()]);
        assert_eq!(parse(&abort), Ok(Change::StreamAbort { xid: 9, part: 10 }));
        for message in [start, commit, abort, b"E".to_vec()] {
            exact(&message, parse);
            closed(&message, |bytes| parse(bytes).map(drop));
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for tag in 0..=255u8 {
            let is_known = b"BCIUDTSEcARYOM".contains(&tag);
            let refused = matches!(parse(&[tag]), Err(WireError::Value { .. }));
            assert_eq!(refused, !is_known, "{}", tag as char);
        }
        assert!(parse(b"").is_err());
        for tag in *b"YOM" {
            assert!(Change::may_be_long(tag));
            assert_eq!(parse(&[tag]), Ok(Change::Other));
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_the_beginning_of_a_long_message_tells_the_same(
            message in hostile(), is_streamed: bool
        ) {
            let _ = Frame::parse(&message);
            let whole = Change::parse(&message, is_streamed);
            if message.first().is_some_and(|tag| Change::may_be_long(*tag)) {
                let beginning = &message[..message.len().min(CHANGE_BYTES_MAX)];
                prop_assert_eq!(Change::parse(beginning, is_streamed).map(table_of), whole.map(table_of));
            }
        }
    }
}
