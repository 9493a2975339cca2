//! What a statement reads: tables, or one row of a table by its primary key, so that a change of another row leaves the answer.
//!
//! PostgreSQL says which tables the statement reads, and which types its parameters have; the catalog says what the table's key is. The text says that
//! the statement reads this table alone, once, and that each column of the key is compared with a value ([`single_table_equalities`]). In doubt
//! the statement depends on the whole table.

use std::sync::Arc;

use pgweir_sql::{ComparedValue, Equality, single_table_equalities};
use pgweir_wire::frontend::{BindHead, BindTail, tag};

use crate::pool::cache::wal::row_key::{KeyColumns, KeyType, Kind, RowKey, row_key};
use crate::pool::relay::exchange::whole_messages;

/// The number of bytes that a row of a kept answer counts for besides its key: two places in an index, as rows whose answers are gone stay for a
/// while, and allocations.
const WATCHED_ROW_BYTES: usize = 128;

/// The rows on which an answer depends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Subject {
    /// Any row of these tables.
    Tables(Arc<[u32]>),
    /// The row of a table with this key.
    Row(u32, RowKey),
}

impl Subject {
    /// Returns the number of bytes that a kept answer takes for this: those of a key, with its place among the rows that are watched.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            // The list is the statement's, whose number is bounded.
            Subject::Tables(_) => 0,
            Subject::Row(_, key) => key.len() + WATCHED_ROW_BYTES,
        }
    }
}

/// The tables or the row that a statement reads, for any values.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Reads {
    tables: Arc<[u32]>,
    /// The values that are the key of the row that is read, in the order of the key's columns. `None` if more than one row may be read.
    row: Option<Box<[KeyValue]>>,
}

/// A value of a key.
#[derive(PartialEq, Eq, Debug)]
enum KeyValue {
    /// The text of a literal.
    Literal(Box<[u8]>),
    /// The parameter at this place, counted from 0, and its type.
    Param(usize, KeyType),
}

impl Reads {
    /// Returns the value for a statement that reads these tables. `columns` is the key of the table if there is one table and its key is known.
    pub(crate) fn of(
        tables: Arc<[u32]>,
        columns: Option<&KeyColumns>,
        text: &[u8],
        param_types: &[u32],
    ) -> Reads {
        let row = columns.filter(|_| tables.len() == 1);
        let row = row.and_then(|columns| values_of(columns, text, param_types));
        Reads { tables, row }
    }

    /// Returns what the answer to these messages depends on: those of one group that executes the statement.
    pub(crate) fn subject(&self, messages: &[u8]) -> Subject {
        match (&*self.tables, self.key(messages)) {
            ([table], Some(key)) => Subject::Row(*table, key),
            _ => Subject::Tables(Arc::clone(&self.tables)),
        }
    }

    fn key(&self, messages: &[u8]) -> Option<RowKey> {
        let row = self.row.as_ref()?;
        let mut params = Params::default();
        if row.iter().any(|value| matches!(value, KeyValue::Param(..))) {
            params = Params::of(messages)?;
        }
        let values = row.iter().map(|value| match value {
            KeyValue::Literal(text) => Some(text.to_vec()),
            KeyValue::Param(at, key_type) => match params.0.get(*at)? {
                (true, Some(value)) => key_type.of_binary(value),
                (false, Some(value)) => key_type.of_text(value),
                (_, None) => None,
            },
        });
        let values = values.collect::<Option<Vec<_>>>()?;
        row_key(values.iter().map(Vec::as_slice))
    }
}

/// The parameters of a Bind: whether each is in binary format, and its value.
#[derive(Default)]
struct Params<'a>(Vec<(bool, Option<&'a [u8]>)>);

impl<'a> Params<'a> {
    fn of(messages: &'a [u8]) -> Option<Params<'a>> {
        let bind = whole_messages(messages).find(|message| message.tag() == tag::BIND)?;
        let body = bind.body();
        let tail = body.get(BindHead::parse_prefix(body)?.tail..)?;
        let formats = BindTail::parse(tail).ok()?.binary_parameters();
        Some(Params(formats.zip(BindTail::values(tail).ok()?).collect()))
    }
}

/// Returns the values that a text compares the columns of a key with; `None` if it may read other rows.
fn values_of(columns: &KeyColumns, text: &[u8], param_types: &[u32]) -> Option<Box<[KeyValue]>> {
    let columns: Vec<(&[u8], KeyType)> = columns.iter().collect();
    let mut values: Vec<Option<KeyValue>> = columns.iter().map(|_| None).collect();
    let mut is_certain = true;
    let is_one_table = single_table_equalities(text, |Equality { column, is_quoted, value }| {
        let is_named = |name: &[u8]| match is_quoted {
            true => column == name,
            false => column.to_ascii_lowercase() == name,
        };
        let Some(at) = columns.iter().position(|(name, _)| is_named(name)) else { return };
        let found = value_of(columns[at].1, value, param_types);
        // A column that is compared twice is rare.
        is_certain &= found.is_some() && values[at].is_none();
        values[at] = found;
    });
    (is_one_table && is_certain).then_some(())?;
    values.into_iter().collect()
}

/// Returns the value with which a column is compared; `None` if it is not certain which one that is.
fn value_of(column: KeyType, value: ComparedValue<'_>, param_types: &[u32]) -> Option<KeyValue> {
    let literal = |text: &[u8]| Some(KeyValue::Literal(column.of_text(text)?.into()));
    match value {
        ComparedValue::Number(number) if column.kind() == Kind::Number => literal(number),
        ComparedValue::Number(_) => None,
        // PostgreSQL reads a literal as a value of the column's type.
        ComparedValue::Text(text) => literal(text),
        ComparedValue::Param(digits) => {
            let at = std::str::from_utf8(digits).ok()?.parse::<usize>().ok()?.checked_sub(1)?;
            let param = KeyType::of(*param_types.get(at)?)?;
            (param.kind() == column.kind()).then_some(KeyValue::Param(at, param))
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_wire::frontend;

    use super::*;

    fn reads(columns: &str, text: &str, param_types: &[u32]) -> Reads {
        let columns = KeyColumns::parse(columns).expect("it is a key");
        Reads::of([5].into(), Some(&columns), text.as_bytes(), param_types)
    }

    fn bind(formats: &[u16], values: &[Option<&[u8]>]) -> Vec<u8> {
        let mut tail = (formats.len() as u16).to_be_bytes().to_vec();
        formats.iter().for_each(|format| tail.extend(format.to_be_bytes()));
        tail.extend((values.len() as u16).to_be_bytes());
        for value in values {
            tail.extend(value.map_or(u32::MAX, |value| value.len() as u32).to_be_bytes());
            tail.extend(value.unwrap_or_default());
        }
        tail.extend([0, 0]);
        let mut out = Vec::new();
        frontend::encode_bind_head(&mut out, b"", b"s", tail.len());
        out.extend(tail);
        out
    }

    fn row(values: &[&[u8]]) -> Subject {
        Subject::Row(5, row_key(values.iter().copied()).expect("it is short"))
    }

    fn all() -> Subject {
        Subject::Tables([5].into())
    }

    #[test]
    fn a_literal_is_a_key() {
        for (text, expected) in [
            ("select * from t where id = 7", row(&[b"7"])),
            ("select * from t where ID = '7' and x = 1", row(&[b"7"])),
            ("select * from t where \"id\" = 7 limit 1", row(&[b"7"])),
            ("select * from t where \"ID\" = 7", all()),
            ("select * from t where id = 7.0", all()),
            ("select * from t where id = ' 7'", all()),
            ("select * from t where id = 07", all()),
            ("select * from t where id = 7 and id = 8", all()),
            ("select * from t where x = 7", all()),
            ("select * from t where id = 7 or id = 8", all()),
        ] {
            assert_eq!(reads("id=23", text, &[]).subject(b""), expected, "{text}");
        }
        assert_eq!(reads("id=25", "select * from t where id = 7", &[]).subject(b""), all());
    }

    #[test]
    fn all_columns_of_a_key_are_needed() {
        let text = "select * from t where b = 'x' and a = 1";
        assert_eq!(reads("a=20+b=1043", text, &[]).subject(b""), row(&[b"1", b"x"]));
        assert_eq!(reads("a=20+b=1043+c=23", text, &[]).subject(b""), all());
        let columns = KeyColumns::parse("a=20").expect("it is a key");
        let two = Reads::of([5, 6].into(), Some(&columns), text.as_bytes(), &[]);
        assert_eq!(two.subject(b""), Subject::Tables([5, 6].into()));
    }

    #[test]
    fn a_parameter_is_a_key_in_both_formats() {
        let of = |types: &[u32], messages: &[u8]| {
            reads("id=23", "select $1 from t where id = $2", types).subject(messages)
        };
        let types = [25, 23];
        assert_eq!(of(&types, &bind(&[], &[Some(b"x"), Some(b"12")])), row(&[b"12"]));
        assert_eq!(of(&types, &bind(&[0, 1], &[Some(b"x"), Some(&[0, 0, 0, 12])])), row(&[b"12"]));
        assert_eq!(
            of(&[25, 20], &bind(&[1], &[Some(b"x"), Some(&[0, 0, 0, 0, 0, 0, 0, 12])])),
            row(&[b"12"])
        );
        for (types, messages) in [
            (&types[..], bind(&[1], &[Some(b"x"), Some(b"12")])),
            (&types, bind(&[], &[Some(b"x"), None])),
            (&types, bind(&[], &[Some(b"x"), Some(b"012")])),
            (&types, bind(&[], &[Some(b"x")])),
            (&types, Vec::new()),
            (&[25, 1700], bind(&[], &[Some(b"x"), Some(b"12")])),
            (&[25, 1042], bind(&[], &[Some(b"x"), Some(b"12")])),
            (&[25], bind(&[], &[Some(b"x"), Some(b"12")])),
        ] {
            assert_eq!(of(types, &messages), all(), "{types:?}");
        }
    }
}
