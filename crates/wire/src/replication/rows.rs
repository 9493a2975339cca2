//! Tables and rows in the messages of `pgoutput`: the columns of a table's replica identity, and the values of a changed row. A caller that has
//! only the beginning of a long message gets an error, and must count the change as one of any row.

use crate::error::WireError;
use crate::reader::Reader;

/// The replica identity of a table whose old rows are told by their primary key.
pub const IDENTITY_PRIMARY_KEY: u8 = b'd';

/// The description of a table, with its replica identity: the columns by which old rows are told. Only columns that are published are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation<'a> {
    /// The kind of the replica identity, as `pg_class.relreplident` has it.
    pub identity: u8,
    count: u16,
    /// The columns, whose form is known.
    columns: &'a [u8],
}

/// A column of a [`Relation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelationColumn<'a> {
    /// Whether the column is a part of the replica identity.
    pub is_key: bool,
    /// The column's name.
    pub name: &'a [u8],
    /// The number of the column's type.
    pub type_oid: u32,
}

impl<'a> Relation<'a> {
    /// Reads what follows the number of the table.
    ///
    /// # Errors
    /// The description is not complete, or a length in it is wrong.
    pub fn parse(rest: &'a [u8]) -> Result<Relation<'a>, WireError> {
        let mut reader = Reader::new("relation", rest);
        reader.text("schema")?;
        reader.text("name")?;
        let identity = reader.u8("replica identity")?;
        let count = reader.u16("number of columns")?;
        let columns = reader.clone().rest();
        for _ in 0..count {
            column_of_relation(&mut reader)?;
        }
        reader.finish()?;
        Ok(Relation { identity, count, columns })
    }

    /// Returns the columns, in the order of the values in rows.
    pub fn columns(&self) -> impl Iterator<Item = RelationColumn<'a>> + use<'a> {
        let mut reader = Reader::new("relation", self.columns);
        (0..self.count).map_while(move |_| column_of_relation(&mut reader).ok())
    }
}

fn column_of_relation<'a>(reader: &mut Reader<'a>) -> Result<RelationColumn<'a>, WireError> {
    let is_key = reader.u8("flags")? & 1 != 0;
    let name = reader.text("column")?;
    let type_oid = reader.u32("type")?;
    reader.u32("type modifier")?;
    Ok(RelationColumn { is_key, name, type_oid })
}

/// The values of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    /// The values, whose form is known.
    values: &'a [u8],
}

/// A value of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value is NULL; in an old row also that the column is no part of the replica identity.
    Null,
    /// The value is stored apart from its row (TOAST), did not change, and is not told.
    Unchanged,
    /// The value as text, in the encoding of the connection.
    Text(&'a [u8]),
}

impl<'a> Tuple<'a> {
    fn parse(reader: &mut Reader<'a>) -> Result<Tuple<'a>, WireError> {
        let count = reader.u16("number of values")?;
        let before = reader.clone().rest();
        for _ in 0..count {
            value(reader)?;
        }
        let len = before.len() - reader.clone().rest().len();
        Ok(Tuple { count, values: before.get(..len).unwrap_or_default() })
    }

    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> u16 {
        self.count
    }

    /// Whether the row has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the values, in the order of the columns in [`Relation::columns`].
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut reader = Reader::new("row", self.values);
        (0..self.count).map_while(move |_| value(&mut reader).ok())
    }
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<Value<'a>, WireError> {
    match reader.u8("kind of a value")? {
        b'n' => Ok(Value::Null),
        b'u' => Ok(Value::Unchanged),
        b't' => {
            let len = reader.u32("length of a value")?;
            Ok(Value::Text(reader.take(len as usize, "value")?))
        }
        other => Err(reader.refuse("kind of a value", "n, u or t", u32::from(other))),
    }
}

/// The rows of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows<'a> {
    /// The columns of the replica identity before the change, or the whole row. `None` if a row was inserted, or if an update did not change
    /// the replica identity.
    pub old: Option<Tuple<'a>>,
    /// The row after the change; `None` if a row was deleted.
    pub new: Option<Tuple<'a>>,
}

impl<'a> Rows<'a> {
    /// Reads what follows the number of the table in a message with this type.
    ///
    /// # Errors
    /// The message is not complete, a length in it is wrong, or a value is not told as text.
    pub fn parse(tag: u8, rest: &'a [u8]) -> Result<Rows<'a>, WireError> {
        let mut reader = Reader::new("row", rest);
        let mut kind = reader.u8("kind of a row")?;
        let mut rows = Rows { old: None, new: None };
        if tag != b'I' && matches!(kind, b'K' | b'O') {
            rows.old = Some(Tuple::parse(&mut reader)?);
            if tag == b'U' {
                kind = reader.u8("kind of a row")?;
            }
        }
        match (tag, kind) {
            (b'I' | b'U', b'N') => rows.new = Some(Tuple::parse(&mut reader)?),
            (b'D', _) if rows.old.is_some() => {}
            (_, other) => return Err(reader.refuse("kind of a row", "N, K or O", u32::from(other))),
        }
        reader.finish()?;
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{exact, hostile};

    fn tuple(values: &[Option<&str>]) -> Vec<u8> {
        let mut out = (values.len() as u16).to_be_bytes().to_vec();
        for value in values {
            match value {
                Some("(unchanged)") => out.push(b'u'),
                Some(text) => {
                    out.push(b't');
                    out.extend((text.len() as u32).to_be_bytes());
                    out.extend(text.as_bytes());
                }
                None => out.push(b'n'),
            }
        }
        out
    }

    fn values(tuple: Option<Tuple<'_>>) -> Vec<Value<'_>> {
        tuple.map(|tuple| tuple.values().collect()).unwrap_or_default()
    }

    #[test]
    fn the_columns_of_a_replica_identity_are_read() {
        let column = |flags: u8, name: &[u8], oid: u32| {
            [&[flags][..], name, &[0], &oid.to_be_bytes(), &u32::MAX.to_be_bytes()].concat()
        };
        let message = [&b"public\0t\0d\0\x02"[..], &column(1, b"id", 23), &column(0, b"a", 25)].concat();
        let relation = Relation::parse(&message).expect("it is whole");
        assert_eq!(relation.identity, IDENTITY_PRIMARY_KEY);
        let expected = [
            RelationColumn { is_key: true, name: b"id", type_oid: 23 },
            RelationColumn { is_key: false, name: b"a", type_oid: 25 },
        ];
        assert_eq!(relation.columns().collect::<Vec<_>>(), expected);
        exact(&message, Relation::parse);
    }

    #[test]
    fn old_and_new_rows_are_read() {
        let (old, new) = (tuple(&[Some("5"), None]), tuple(&[Some("6"), Some("(unchanged)")]));
        let insert = [b"N", &new[..]].concat();
        let update = [b"K", &old[..], b"N", &new].concat();
        let delete = [b"O", &old[..]].concat();
        for (tag, message, has_old, has_new) in [
            (b'I', &insert, false, true),
            (b'U', &insert, false, true),
            (b'U', &update, true, true),
            (b'D', &delete, true, false),
        ] {
            let rows = Rows::parse(tag, message).expect("it is whole");
            let expected = if has_old { vec![Value::Text(b"5"), Value::Null] } else { vec![] };
            assert_eq!(values(rows.old), expected);
            let expected = if has_new { vec![Value::Text(b"6"), Value::Unchanged] } else { vec![] };
            assert_eq!(values(rows.new), expected);
            exact(message, |bytes| Rows::parse(tag, bytes));
        }
        for (tag, message) in [(b'I', &update), (b'D', &insert), (b'D', &update), (b'U', &delete)] {
            assert!(Rows::parse(tag, message).is_err());
        }
        assert!(Rows::parse(b'I', b"N\0\x01b\0\0\0\x01x").is_err(), "binary values are not asked for");
    }

    proptest! {
        #[test]
        fn nothing_panics(message in hostile(), tag in prop_oneof![Just(b'I'), Just(b'U'), Just(b'D')]) {
            if let Ok(rows) = Rows::parse(tag, &message) {
                for tuple in rows.old.into_iter().chain(rows.new) {
                    prop_assert_eq!(tuple.values().count(), usize::from(tuple.len()));
                }
            }
            let _ = Relation::parse(&message).map(|relation| relation.columns().count());
        }
    }
}
