//! From the messages of a replication stream to what each committed transaction has changed: tables, and rows by their keys. Large transactions are
//! sent before they are committed: what they have changed is remembered until the commit, and forgotten if the transaction is rolled back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use pgweir_wire::replication::{Change, IDENTITY_PRIMARY_KEY, Relation, Rows, Tuple, Value};

use crate::cluster::answer::Lsn;
use crate::limits::{KEYED_TABLES_MAX, STREAMED_TRANSACTIONS_MAX, TRANSACTION_KEYS_MAX};
use crate::pool::cache::wal::row_key::{KeyColumns, RowKey, row_key};

/// A committed transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Committed {
    /// The lower 32 bits of its number.
    pub(crate) xid: u32,
    /// The tables that it has changed, by number.
    pub(crate) tables: BTreeMap<u32, ChangedRows>,
    /// The position after its commit.
    pub(crate) end: Lsn,
}

/// The rows of a table that a transaction has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChangedRows {
    /// Any row.
    All,
    /// The rows with these keys, before or after the change, and rows whose keys are too long for any answer to depend on them.
    Keys(Arc<KeyColumns>, BTreeSet<RowKey>),
}

/// A table whose changes tell the keys of their rows.
struct KeyedTable {
    columns: Arc<KeyColumns>,
    /// The places of the key's columns among the values of a row.
    places: Box<[usize]>,
    /// The number of values of a row.
    count: u16,
}

impl KeyedTable {
    /// Returns the table that this is the description of; `None` if its replica identity is not its primary key.
    fn of(description: &[u8]) -> Option<Arc<KeyedTable>> {
        let relation = Relation::parse(description).ok()?;
        if relation.identity != IDENTITY_PRIMARY_KEY {
            return None;
        }
        let keys = || relation.columns().enumerate().filter(|(_, column)| column.is_key);
        let columns = KeyColumns::new(keys().map(|(_, column)| (column.name, column.type_oid)))?;
        let places = keys().map(|(place, _)| place).collect();
        let count = u16::try_from(relation.columns().count()).ok()?;
        Some(Arc::new(KeyedTable { columns: Arc::new(columns), places, count }))
    }

    /// Returns the keys of a changed row, before and after the change; without those that are too long. `None` if they are not certain.
    fn keys(&self, tag: u8, rest: &[u8]) -> Option<Vec<RowKey>> {
        let rows = Rows::parse(tag, rest).ok()?;
        let old = rows.old.map(|old| self.values(&old, None).ok_or(())).transpose().ok()?;
        let new = rows.new.map(|new| self.values(&new, old.as_deref()).ok_or(())).transpose().ok()?;
        let keys = old.into_iter().chain(new);
        Some(keys.filter_map(|values| row_key(values.into_iter())).collect())
    }

    /// Returns the values of the key's columns in a row. `old` are those before the change, if they are told.
    fn values<'a>(&self, row: &Tuple<'a>, old: Option<&[&'a [u8]]>) -> Option<Vec<&'a [u8]>> {
        let values: Vec<Value<'a>> = row.values().collect();
        let of_key = |(at, place): (usize, &usize)| match values.get(*place)? {
            Value::Text(text) => Some(*text),
            // A value that is stored apart and did not change is told with the old row, or not at all.
            Value::Unchanged => old?.get(at).copied(),
            Value::Null => None,
        };
        if row.len() != self.count {
            return None;
        }
        self.places.iter().enumerate().map(of_key).collect()
    }
}

/// The changes of a transaction, as far as they were received.
#[derive(Default)]
struct Changed {
    tables: BTreeMap<u32, ChangedRows>,
    /// The number of keys in `tables`.
    keys: usize,
}

impl Changed {
    /// Any row of the table may have changed.
    fn add_table(&mut self, table: u32) {
        if let Some(ChangedRows::Keys(_, keys)) = self.tables.insert(table, ChangedRows::All) {
            self.keys -= keys.len();
        }
    }

    /// A row of the table has changed. `keyed` is the table if its keys are known.
    fn add_row(&mut self, table: u32, keyed: Option<&KeyedTable>, (tag, rest): (u8, &[u8])) {
        if self.tables.get(&table) == Some(&ChangedRows::All) {
            return;
        }
        let Some((keyed, keys)) = keyed.and_then(|keyed| Some((keyed, keyed.keys(tag, rest)?))) else {
            return self.add_table(table);
        };
        let none = || ChangedRows::Keys(Arc::clone(&keyed.columns), BTreeSet::new());
        match self.tables.entry(table).or_insert_with(none) {
            ChangedRows::Keys(columns, known) if *columns == keyed.columns => {
                let before = known.len();
                known.extend(keys);
                self.keys += known.len() - before;
            }
            // The table got another key in this transaction.
            _ => return self.add_table(table),
        }
        if self.keys > TRANSACTION_KEYS_MAX {
            self.add_table(table);
        }
    }
}

/// A transaction under way.
#[derive(Default)]
struct UnderWay {
    /// Parts that were rolled back are not taken out again.
    changed: Changed,
    /// The tables that were described among the changes of the transaction: `None` for one whose keys are not known.
    described: HashMap<u32, Option<Arc<KeyedTable>>>,
}

/// The transactions whose changes are being received.
#[derive(Default)]
pub(crate) struct Decoder {
    /// The committed transaction whose changes are arriving.
    current: Option<(u32, Changed)>,
    /// The transaction under way whose changes are arriving now.
    part: Option<u32>,
    under_way: HashMap<u32, UnderWay>,
    /// The tables whose keys are known, as they were last described. A change of any other table concerns all its rows.
    keyed: HashMap<u32, Arc<KeyedTable>>,
}

impl Decoder {
    /// Takes a message of the plugin, or the beginning of a long one. Returns the transaction if it is complete.
    ///
    /// # Errors
    /// The message cannot be read, or does not follow the ones before it.
    pub(crate) fn take(&mut self, message: &[u8]) -> Result<Option<Committed>, String> {
        let change = Change::parse(message, self.part.is_some()).map_err(|error| error.to_string())?;
        match change {
            Change::Begin { xid } if self.current.is_none() && self.part.is_none() => {
                self.current = Some((xid, Changed::default()));
            }
            Change::Row { table, tag, rest, .. } => {
                let (changed, keyed) = self.changed(table)?;
                changed.add_row(table, keyed, (tag, rest));
            }
            Change::Truncate { tables, .. } => {
                for table in tables {
                    self.changed(table)?.0.add_table(table);
                }
            }
            Change::Relation { table, rest, .. } => self.describe(table, rest),
            Change::Commit { end } if self.part.is_none() => {
                let Some((xid, changed)) = self.current.take() else { return disorder() };
                return Ok(Some(Committed { xid, tables: changed.tables, end: Lsn(end) }));
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
                let Some(UnderWay { changed, described }) = self.under_way.remove(&xid) else {
                    return disorder();
                };
                // PostgreSQL does not describe these tables again.
                described.into_iter().for_each(|(table, keyed)| self.remember(table, keyed));
                return Ok(Some(Committed { xid, tables: changed.tables, end: Lsn(end) }));
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

    /// Returns where the changes that are arriving are noted, and the table if its keys are known.
    fn changed(&mut self, table: u32) -> Result<(&mut Changed, Option<&KeyedTable>), String> {
        match (self.part, &mut self.current) {
            (Some(xid), None) => {
                let UnderWay { changed, described } =
                    self.under_way.get_mut(&xid).ok_or_else(out_of_order)?;
                Ok((changed, described.get(&table).and_then(Option::as_deref)))
            }
            (None, Some((_, changed))) => Ok((changed, self.keyed.get(&table).map(|keyed| &**keyed))),
            _ => Err(out_of_order()),
        }
    }

    /// Takes the description of a table. It holds for the changes that follow, of the same transaction if that is under way.
    fn describe(&mut self, table: u32, description: &[u8]) {
        let keyed = KeyedTable::of(description);
        if let Some(known) = self.part.and_then(|xid| self.under_way.get_mut(&xid)) {
            if known.described.len() < KEYED_TABLES_MAX || known.described.contains_key(&table) {
                known.described.insert(table, keyed);
            }
            return;
        }
        // A description that a transaction under way was sent before is older than this one, and must not replace it.
        self.under_way.values_mut().for_each(|known| drop(known.described.remove(&table)));
        self.remember(table, keyed);
    }

    fn remember(&mut self, table: u32, keyed: Option<Arc<KeyedTable>>) {
        self.keyed.remove(&table);
        if let Some(keyed) = keyed.filter(|_| self.keyed.len() < KEYED_TABLES_MAX) {
            self.keyed.insert(table, keyed);
        }
    }
}

fn out_of_order() -> String {
    "a message of the replication stream does not follow the one before it".to_owned()
}

fn disorder<T>() -> Result<T, String> {
    Err(out_of_order())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::cache::wal::stream_messages::{
        UNCHANGED, begin, commit, delete, in_part, insert, relation, stream_abort, stream_commit,
        stream_start, stream_stop, truncate, update,
    };

    const LONG: &str = "a value that is longer than each value that a statement may have as a key";

    fn all(messages: &[Vec<u8>]) -> Result<Vec<Committed>, String> {
        let mut decoder = Decoder::default();
        let taken = messages.iter().map(|message| decoder.take(message)).collect::<Result<Vec<_>, _>>()?;
        Ok(taken.into_iter().flatten().collect())
    }

    /// A row of a table whose key is not known.
    fn row(table: u32) -> Vec<u8> {
        insert(table, &[Some("x")])
    }

    /// Table 1, whose key is `id`.
    fn table() -> Vec<u8> {
        relation(1, b'd', &[("a", 25), ("ID", 23)])
    }

    fn key(id: &str) -> RowKey {
        row_key([id.as_bytes()].into_iter()).expect("it is short")
    }

    /// The keys of the rows of table 1 that the last transaction has changed; `None` if all rows.
    fn keys(messages: &[Vec<u8>]) -> Option<Vec<RowKey>> {
        let found = all(messages).expect("they are in order");
        match &found.last().expect("there is a transaction").tables[&1] {
            ChangedRows::All => None,
            ChangedRows::Keys(_, keys) => Some(keys.iter().cloned().collect()),
        }
    }

    /// The rows of table 1 that a transaction with these changes has changed.
    fn changed(changes: &[Vec<u8>]) -> Option<Vec<RowKey>> {
        keys(&[&[begin(5), table()], changes, &[commit(70)]].concat())
    }

    #[test]
    fn a_transaction_has_the_tables_between_its_begin_and_commit() {
        let found = all(&[begin(5), row(1), row(2), row(1), commit(70), begin(6), commit(80)]);
        let of = |xid, tables: &[u32], end| Committed {
            xid,
            tables: tables.iter().map(|table| (*table, ChangedRows::All)).collect(),
            end: Lsn(end),
        };
        assert_eq!(found, Ok(vec![of(5, &[1, 2], 70), of(6, &[], 80)]));
    }

    #[test]
    fn a_large_transaction_has_the_tables_of_all_its_parts() {
        let parts = [
            stream_start(5),
            in_part(5, &row(1)),
            stream_stop(),
            begin(6),
            row(9),
            commit(60),
            stream_start(5),
            in_part(8, &row(2)),
            stream_stop(),
        ];
        let end = [stream_abort(5, 8), stream_commit(5, 90)];
        let found = all(&[&parts[..], &end].concat()).expect("it is in order");
        let tables = [(1, ChangedRows::All), (2, ChangedRows::All)].into();
        assert_eq!(found[1], Committed { xid: 5, tables, end: Lsn(90) }, "rolled back parts stay");
        let gone = [&parts[..], &[stream_abort(5, 5), stream_commit(5, 90)]].concat();
        assert!(all(&gone).is_err(), "it was rolled back");
    }

    #[test]
    fn what_does_not_follow_is_refused() {
        for messages in [
            vec![commit(1)],
            vec![row(1)],
            vec![truncate(1)],
            vec![begin(1), begin(2)],
            vec![begin(1), stream_start(2)],
            vec![stream_start(1), stream_start(2)],
            vec![stream_start(1), commit(2)],
            vec![stream_start(1), stream_commit(1, 2)],
            vec![stream_stop()],
            vec![b"X".to_vec()],
            vec![],
        ] {
            assert_eq!(all(&messages).is_err(), !messages.is_empty(), "{messages:?}");
        }
        let many = (0..=STREAMED_TRANSACTIONS_MAX as u32).flat_map(|xid| [stream_start(xid), stream_stop()]);
        assert!(all(&many.collect::<Vec<_>>()).is_err());
    }

    #[test]
    fn each_change_of_a_row_has_its_key() {
        let (a, b) = ([Some("x"), Some("1")], [None, Some("2")]);
        assert_eq!(changed(&[insert(1, &a), insert(1, &a)]), Some(vec![key("1")]));
        assert_eq!(changed(&[update(1, &[], &b)]), Some(vec![key("2")]));
        assert_eq!(
            changed(&[update(1, &[None, Some("1")], &b)]),
            Some(vec![key("1"), key("2")]),
            "both keys"
        );
        assert_eq!(changed(&[delete(1, &b), insert(1, &a)]), Some(vec![key("1"), key("2")]));
        assert_eq!(changed(&[insert(1, &a), truncate(1)]), None);
        assert_eq!(changed(&[insert(1, &[None, Some(LONG)])]), Some(vec![]), "no answer depends on it");
    }

    #[test]
    fn a_key_that_is_stored_apart_is_that_of_the_old_row() {
        let new = [Some("x"), Some(UNCHANGED)];
        assert_eq!(changed(&[update(1, &[None, Some("1")], &new)]), Some(vec![key("1")]));
        assert_eq!(changed(&[update(1, &[], &new)]), None, "nothing tells it");
        assert_eq!(changed(&[insert(1, &[Some("x"), None])]), None);
    }

    #[test]
    fn a_change_that_cannot_be_read_concerns_all_rows() {
        let whole = insert(1, &[Some("x"), Some("1")]);
        assert_eq!(changed(&[whole[..5].to_vec()]), None, "the beginning of a long row");
        assert_eq!(changed(&[insert(1, &[Some("1")])]), None, "a column is missing");
        let longer = [Some("x"), Some("1"), Some("y")];
        assert_eq!(changed(&[insert(1, &longer)]), None, "its description is another one");
        let binary: Vec<u8> = whole.iter().map(|byte| if *byte == b't' { b'b' } else { *byte }).collect();
        assert_eq!(changed(&[binary]), None);
    }

    #[test]
    fn only_the_primary_key_as_replica_identity_has_keys() {
        let row = insert(1, &[Some("x"), Some("1")]);
        let with = |table: Vec<u8>| keys(&[begin(5), table, row.clone(), commit(70)]);
        assert_eq!(with(table()), Some(vec![key("1")]));
        for identity in *b"nfi" {
            assert_eq!(with(relation(1, identity, &[("a", 25), ("ID", 23)])), None);
        }
        assert_eq!(with(relation(1, b'd', &[("a", 25), ("id", 23)])), None, "without a key");
        assert_eq!(with(relation(1, b'd', &[("a", 25), ("ID", 1700)])), None, "1.0 is 1");
        assert_eq!(with(table()[..9].to_vec()), None, "the beginning of a long description");
        assert_eq!(keys(&[begin(5), row.clone(), commit(70)]), None, "without a description");
    }

    #[test]
    fn a_table_that_is_described_again_has_other_keys() {
        let row = insert(1, &[Some("x"), Some("1")]);
        let other = relation(1, b'd', &[("A", 25), ("id", 23)]);
        let lost = relation(1, b'n', &[("a", 25), ("id", 23)]);
        let first = [begin(5), table(), row.clone()];
        let then = |more: &[Vec<u8>]| keys(&[&first[..], more].concat());
        assert_eq!(then(&[other, row.clone(), commit(70)]), None, "two keys in one transaction");
        assert_eq!(then(&[lost.clone(), row.clone(), commit(70)]), None);
        assert_eq!(then(&[commit(70), begin(6), row.clone(), commit(80)]), Some(vec![key("1")]));
        assert_eq!(then(&[commit(70), begin(6), lost, row, commit(80)]), None);
    }

    #[test]
    fn too_many_keys_are_the_whole_table() {
        let rows = |table: u32, count: usize| {
            (0..count).map(move |id| insert(table, &[None, Some(&id.to_string())])).collect::<Vec<_>>()
        };
        let found = changed(&rows(1, TRANSACTION_KEYS_MAX)).expect("there is room for them");
        assert_eq!(found.len(), TRANSACTION_KEYS_MAX);
        assert_eq!(changed(&rows(1, TRANSACTION_KEYS_MAX + 1)), None);
        let second = relation(2, b'd', &[("a", 25), ("ID", 23)]);
        let both = [&[second][..], &rows(2, 1), &rows(1, TRANSACTION_KEYS_MAX)].concat();
        assert_eq!(changed(&both), None, "the keys of all tables count");
        let after = [&rows(1, TRANSACTION_KEYS_MAX + 1)[..], &[relation(2, b'd', &[("ID", 23)])]].concat();
        let after = [&after[..], &[insert(2, &[Some("5")])]].concat();
        let found = all(&[&[begin(5), table()], &after[..], &[commit(70)]].concat()).expect("in order");
        assert!(
            matches!(&found[0].tables[&2], ChangedRows::Keys(_, keys) if keys.len() == 1),
            "there is room again"
        );
    }

    #[test]
    fn a_description_among_changes_under_way_holds_for_them_and_after_their_commit() {
        let row = insert(1, &[Some("x"), Some("1")]);
        let part = |xid, message: &[u8]| vec![stream_start(xid), in_part(xid, message), stream_stop()];
        let described = part(5, &table());
        let changes = part(5, &row);
        let committed = [&described[..], &changes, &[stream_commit(5, 60)]].concat();
        assert_eq!(keys(&committed), Some(vec![key("1")]));
        let later = [begin(6), row.clone(), commit(70)];
        assert_eq!(keys(&[&committed[..], &later].concat()), Some(vec![key("1")]));
        let aborted = [&described[..], &changes, &[stream_abort(5, 5)], &later].concat();
        assert_eq!(keys(&aborted), None, "its description was never committed");
        // The description outside is newer: the one of the transaction under way must not replace it.
        let lost = relation(1, b'n', &[("a", 25), ("id", 23)]);
        let newer = [&described[..], &[begin(6), lost, row.clone(), commit(50)], &changes];
        let newer = [&newer.concat()[..], &[stream_commit(5, 60)]].concat();
        assert_eq!(keys(&newer), None);
        assert_eq!(keys(&[&newer[..], &[begin(7)], &later[1..]].concat()), None);
        // A table that is known outside is described again to each transaction under way.
        let known = [&[begin(4), table(), commit(40)][..], &changes, &[stream_commit(5, 60)]].concat();
        assert_eq!(keys(&known), None);
    }
}
