//! Keys of rows: the values of a table's primary key, so that a statement that reads one row and a change of that row are known to concern each other.
//!
//! Two values of a type in [`KeyType`] are equal for PostgreSQL if and only if their texts are: whole numbers and UUIDs have one text, and the collation
//! of text is deterministic, which the catalog's question makes sure of. Values of other types (`1.0` and `1` as numeric, `a` and `a ` as
//! character) have no key here.

use std::sync::Arc;

use crate::limits::KEY_VALUE_BYTES_MAX;

/// The values of a primary key, each after its length.
pub(crate) type RowKey = Arc<[u8]>;

/// A type whose values are equal if and only if their texts are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyType {
    Int2,
    Int4,
    Int8,
    Uuid,
    Text,
    Varchar,
}

/// A kind of types: a value of one can be compared with a value of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Number,
    Uuid,
    Text,
}

impl KeyType {
    /// Returns the type with this number in `pg_type`.
    pub(crate) fn of(oid: u32) -> Option<KeyType> {
        match oid {
            20 => Some(KeyType::Int8),
            21 => Some(KeyType::Int2),
            23 => Some(KeyType::Int4),
            25 => Some(KeyType::Text),
            1043 => Some(KeyType::Varchar),
            2950 => Some(KeyType::Uuid),
            _ => None,
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            KeyType::Int2 | KeyType::Int4 | KeyType::Int8 => Kind::Number,
            KeyType::Uuid => Kind::Uuid,
            KeyType::Text | KeyType::Varchar => Kind::Text,
        }
    }

    /// Returns the text that PostgreSQL has for a value that a client has sent as text; `None` if that is not certain.
    pub(crate) fn of_text(self, value: &[u8]) -> Option<Vec<u8>> {
        match self.kind() {
            Kind::Number => {
                let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
                // PostgreSQL also reads ` 5`, `+5`, `05` and `0x5`.
                let text = number.to_string().into_bytes();
                (text == value).then_some(text)
            }
            Kind::Uuid => {
                let is_plain = |(at, byte): (usize, &u8)| match at {
                    8 | 13 | 18 | 23 => *byte == b'-',
                    _ => byte.is_ascii_hexdigit(),
                };
                let is_uuid = value.len() == 36 && value.iter().enumerate().all(is_plain);
                is_uuid.then(|| value.to_ascii_lowercase())
            }
            Kind::Text => is_certain_text(value).then(|| value.to_vec()),
        }
    }

    /// Returns the text that PostgreSQL has for a value that a client has sent in binary format; `None` if that is not certain.
    pub(crate) fn of_binary(self, value: &[u8]) -> Option<Vec<u8>> {
        let number = match self {
            KeyType::Int2 => i64::from(i16::from_be_bytes(value.try_into().ok()?)),
            KeyType::Int4 => i64::from(i32::from_be_bytes(value.try_into().ok()?)),
            KeyType::Int8 => i64::from_be_bytes(value.try_into().ok()?),
            KeyType::Uuid => {
                let number = u128::from_be_bytes(value.try_into().ok()?);
                let hex = format!("{number:032x}");
                let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
                return Some(parts.join("-").into_bytes());
            }
            KeyType::Text | KeyType::Varchar => return self.of_text(value),
        };
        Some(number.to_string().into_bytes())
    }
}

/// Whether a text is the same in each encoding, and for each character type that PostgreSQL may compare it as: blanks at the end do not count for
/// `character`.
fn is_certain_text(value: &[u8]) -> bool {
    let is_plain = |byte: &u8| (0x20..0x7f).contains(byte) && !matches!(byte, b'\\' | b'\'');
    value.len() <= KEY_VALUE_BYTES_MAX && value.iter().all(is_plain) && !value.ends_with(b" ")
}

/// The primary key of a table whose changes tell the keys of their rows: its columns in the order of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyColumns(Box<[(Box<[u8]>, KeyType)]>);

impl KeyColumns {
    /// Returns the key with these columns, by name and number of the type. `None` if a type is no [`KeyType`], or if there is no column.
    pub(crate) fn new<'a>(columns: impl Iterator<Item = (&'a [u8], u32)>) -> Option<KeyColumns> {
        let columns: Box<[_]> =
            columns.map(|(name, oid)| Some((name.into(), KeyType::of(oid)?))).collect::<Option<_>>()?;
        (!columns.is_empty()).then_some(KeyColumns(columns))
    }

    /// Reads what the catalog's question tells: `name=number` of each column, with `+` in between. Names have only letters, digits, `_` and `$`.
    pub(crate) fn parse(text: &str) -> Option<KeyColumns> {
        let columns = text.split('+').map(|column| {
            let (name, oid) = column.split_once('=')?;
            Some((name.as_bytes(), oid.parse().ok()?))
        });
        KeyColumns::new(columns.collect::<Option<Vec<_>>>()?.into_iter())
    }

    /// Returns the columns, with their types.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], KeyType)> {
        self.0.iter().map(|(name, key_type)| (&**name, *key_type))
    }
}

/// Returns the key with these values; `None` if one is longer than those of statements are.
pub(crate) fn row_key<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<RowKey> {
    let mut key = Vec::new();
    for value in values {
        let len = u8::try_from(value.len()).ok().filter(|len| usize::from(*len) <= KEY_VALUE_BYTES_MAX)?;
        key.push(len);
        key.extend_from_slice(value);
    }
    Some(key.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key_type: KeyType, value: &str) -> Option<String> {
        key_type.of_text(value.as_bytes()).map(|text| String::from_utf8(text).expect("it is ASCII"))
    }

    #[test]
    fn a_text_counts_if_it_is_the_one_that_postgresql_writes() {
        for value in ["0", "5", "-5", "9223372036854775807"] {
            assert_eq!(text(KeyType::Int4, value).as_deref(), Some(value));
        }
        for value in ["", " 5", "5 ", "+5", "05", "-0", "0x5", "5_0", "5.0", "9223372036854775808", "x"] {
            assert_eq!(text(KeyType::Int8, value), None, "{value}");
        }
        let uuid = "A0EEbc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        assert_eq!(text(KeyType::Uuid, uuid), Some(uuid.to_ascii_lowercase()));
        for value in ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a0eebc999c0b4ef8bb6d6bb9bd380a11", ""] {
            assert_eq!(text(KeyType::Uuid, value), None, "{value}");
        }
        for value in ["", "a", " a b"] {
            assert_eq!(text(KeyType::Text, value).as_deref(), Some(value));
        }
        let long = "x".repeat(KEY_VALUE_BYTES_MAX + 1);
        for value in ["a ", "ß", "a\\b", "a'b", "a\tb", &long] {
            assert_eq!(text(KeyType::Varchar, value), None, "{value}");
        }
    }

    #[test]
    fn a_binary_value_is_the_text_that_postgresql_writes() {
        let of = |key_type: KeyType, value: &[u8]| key_type.of_binary(value);
        assert_eq!(of(KeyType::Int2, &[0xff, 0xfe]).as_deref(), Some(&b"-2"[..]));
        assert_eq!(of(KeyType::Int4, &[0, 0, 1, 0]).as_deref(), Some(&b"256"[..]));
        assert_eq!(of(KeyType::Int8, &[0, 0, 1, 0]), None);
        let uuid = [0, 0xee, 0xbc, 0x99, 0x9c, 0x0b, 0x4e, 0xf8, 0xbb, 0x6d, 0x6b, 0xb9, 0xbd, 0x38, 0x0a, 1];
        let expected = &b"00eebc99-9c0b-4ef8-bb6d-6bb9bd380a01"[..];
        assert_eq!(of(KeyType::Uuid, &uuid).as_deref(), Some(expected));
        assert_eq!(of(KeyType::Text, b"5").as_deref(), Some(&b"5"[..]));
    }

    #[test]
    fn a_key_has_its_values_apart() {
        let key = |values: &[&[u8]]| row_key(values.iter().copied());
        assert_ne!(key(&[b"ab", b"c"]), key(&[b"a", b"bc"]));
        assert_ne!(key(&[b"a"]), key(&[b"a", b""]));
        assert_eq!(key(&[&[b'x'; KEY_VALUE_BYTES_MAX + 1]]), None);
    }

    #[test]
    fn a_key_needs_types_whose_texts_tell_them_apart() {
        let columns = KeyColumns::parse("id=23+a=1043").expect("both have");
        let expected = [(&b"id"[..], KeyType::Int4), (b"a", KeyType::Varchar)];
        assert_eq!(columns.iter().collect::<Vec<_>>(), expected);
        for text in ["", "id", "id=1700", "id=23+b=1042", "id=x"] {
            assert_eq!(KeyColumns::parse(text), None, "{text}");
        }
    }
}
