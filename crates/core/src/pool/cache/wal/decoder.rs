//! From the messages of a replication stream to the tables that each committed transaction has changed. Large transactions are sent before they
//! are committed: their tables are remembered until the commit, and forgotten if the transaction is rolled back.

use std::collections::{BTreeSet, HashMap};

use pgweir_wire::replication::Change;

use crate::cluster::answer::Lsn;
use crate::limits::STREAMED_TRANSACTIONS_MAX;

/// A committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Committed {
    /// The lower 32 bits of its number.
    pub(crate) xid: u32,
    /// The tables that it has changed, by number.
    pub(crate) tables: Vec<u32>,
    /// The position after its commit.
    pub(crate) end: Lsn,
}

/// The transactions whose changes are being received.
#[derive(Default)]
pub(crate) struct Decoder {
    /// The committed transaction whose changes are arriving.
    current: Option<(u32, BTreeSet<u32>)>,
    /// The transaction under way whose changes are arriving now.
    part: Option<u32>,
    /// The tables that transactions under way have changed. Parts that were rolled back are not taken out again.
    under_way: HashMap<u32, BTreeSet<u32>>,
}

impl Decoder {
    /// Takes a message of the plugin, or the beginning of a long one. Returns the transaction if it is complete.
    ///
    /// # Errors
    /// The message cannot be read, or does not follow the ones before it.
    pub(crate) fn take(&mut self, message: &[u8]) -> Result<Option<Committed>, String> {
        let change = Change::parse(message, self.part.is_some()).map_err(|error| error.to_string())?;
        let disorder =
            || Err("a message of the replication stream does not follow the one before it".to_owned());
        match change {
            Change::Begin { xid } if self.current.is_none() && self.part.is_none() => {
                self.current = Some((xid, BTreeSet::new()));
            }
            Change::Tables { tables, .. } => {
                let changed = match (self.part, &mut self.current) {
                    (Some(xid), None) => self.under_way.get_mut(&xid),
                    (None, Some((_, changed))) => Some(changed),
                    _ => None,
                };
                let Some(changed) = changed else { return disorder() };
                changed.extend(tables);
            }
            Change::Commit { end } if self.part.is_none() => {
                let Some((xid, tables)) = self.current.take() else { return disorder() };
                return Ok(Some(Committed { xid, tables: tables.into_iter().collect(), end: Lsn(end) }));
            }
            Change::StreamStart { xid } if self.current.is_none() && self.part.is_none() => {
                self.part = Some(xid);
                self.under_way.entry(xid).or_default();
                if self.under_way.len() > STREAMED_TRANSACTIONS_MAX {
                    return Err("too many large transactions are under way".to_owned());
                }
            }
            Change::StreamStop if self.part.is_some() => self.part = None,
            Change::StreamCommit { xid, end } if self.part.is_none() && self.current.is_none() => {
                let Some(tables) = self.under_way.remove(&xid) else { return disorder() };
                return Ok(Some(Committed { xid, tables: tables.into_iter().collect(), end: Lsn(end) }));
            }
            Change::StreamAbort { xid, part } if self.part.is_none() => {
                if xid == part {
                    self.under_way.remove(&xid);
                }
            }
            Change::Other => {}
            _ => return disorder(),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        [&[tag][..], &parts.concat()].concat()
    }

    fn begin(xid: u32) -> Vec<u8> {
        message(b'B', &[&[0; 16], &xid.to_be_bytes()])
    }

    fn commit(end: u64) -> Vec<u8> {
        message(b'C', &[&[0; 9], &end.to_be_bytes(), &[0; 8]])
    }

    fn insert(table: u32) -> Vec<u8> {
        message(b'I', &[&table.to_be_bytes(), b"N"])
    }

    fn start(xid: u32) -> Vec<u8> {
        message(b'S', &[&xid.to_be_bytes(), &[1]])
    }

    fn part(xid: u32, table: u32) -> Vec<u8> {
        message(b'I', &[&xid.to_be_bytes(), &table.to_be_bytes()])
    }

    fn stream_commit(xid: u32, end: u64) -> Vec<u8> {
        message(b'c', &[&xid.to_be_bytes(), &[0; 9], &end.to_be_bytes(), &[0; 8]])
    }

    fn abort(xid: u32, part: u32) -> Vec<u8> {
        message(b'A', &[&xid.to_be_bytes(), &part.to_be_bytes()])
    }

    fn all(messages: &[Vec<u8>]) -> Result<Vec<Committed>, String> {
        let mut decoder = Decoder::default();
        let taken = messages.iter().map(|message| decoder.take(message)).collect::<Result<Vec<_>, _>>()?;
        Ok(taken.into_iter().flatten().collect())
    }

    #[test]
    fn a_transaction_has_the_tables_between_its_begin_and_commit() {
        let found = all(&[begin(5), insert(1), insert(2), insert(1), commit(70), begin(6), commit(80)]);
        let of = |xid, tables: &[u32], end| Committed { xid, tables: tables.to_vec(), end: Lsn(end) };
        assert_eq!(found, Ok(vec![of(5, &[1, 2], 70), of(6, &[], 80)]));
    }

    #[test]
    fn a_large_transaction_has_the_tables_of_all_its_parts() {
        let stop = || b"E".to_vec();
        let parts =
            [start(5), part(5, 1), stop(), begin(6), insert(9), commit(60), start(5), part(8, 2), stop()];
        let end = [abort(5, 8), stream_commit(5, 90)];
        let found = all(&[&parts[..], &end].concat()).expect("it is in order");
        assert_eq!(
            found[1],
            Committed { xid: 5, tables: vec![1, 2], end: Lsn(90) },
            "rolled back parts stay"
        );
        let gone = [&parts[..], &[abort(5, 5), stream_commit(5, 90)]].concat();
        assert!(all(&gone).is_err(), "it was rolled back");
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        for messages in [
            vec![commit(1)],
            vec![insert(1)],
            vec![begin(1), begin(2)],
            vec![begin(1), start(2)],
            vec![start(1), start(2)],
            vec![start(1), commit(2)],
            vec![start(1), stream_commit(1, 2)],
            vec![b"E".to_vec()],
            vec![b"X".to_vec()],
            vec![],
        ] {
            assert_eq!(all(&messages).is_err(), !messages.is_empty(), "{messages:?}");
        }
        let many = (0..=STREAMED_TRANSACTIONS_MAX as u32).flat_map(|xid| [start(xid), b"E".to_vec()]);
        assert!(all(&many.collect::<Vec<_>>()).is_err());
    }
}
