//! Rows and what describes them.

use std::fmt;

use crate::error::WireError;
use crate::reader::Reader;

/// A column of a `RowDescription` that we send; of no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// The column's name.
    pub name: &'a str,
    /// Its type's oid, for example 25 for `text`.
    pub type_oid: u32,
    /// Its type's size in bytes; -1 for a varying one.
    pub type_len: i16,
    /// Its values are sent in binary format, not as text.
    pub binary: bool,
}

/// How the data of a COPY are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// Lines of text (also CSV).
    Text,
    /// PostgreSQL's binary format.
    Binary,
}

impl CopyFormat {
    /// The number on the wire.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}

/// A `DataRow`: the answer to one of our own questions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DataRow<'a> {
    count: u16,
    values: &'a [u8],
}

impl<'a> DataRow<'a> {
    /// Reads the body of a `DataRow` and checks it as a whole.
    ///
    /// # Errors
    /// If it is not exactly a count and as many values.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(MESSAGE, body);
        let count = reader.u16("number of columns")?;
        let values = reader.clone().rest();
        for _ in 0..count {
            reader.nullable("value")?;
        }
        reader.finish()?;
        Ok(Self { count, values })
    }

    /// The number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are no columns at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order; `None` is NULL.
    #[must_use]
    pub fn columns(&self) -> Columns<'a> {
        Columns { reader: Reader::new(MESSAGE, self.values) }
    }
}

const MESSAGE: &str = "DataRow";

impl fmt::Debug for DataRow<'_> {
    /// Without the values: a row of auth_query holds a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataRow").field("columns", &self.count).finish_non_exhaustive()
    }
}

/// Iterates over the values of a [`DataRow`].
#[derive(Clone)]
pub struct Columns<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Columns<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        // `DataRow::parse` has checked the values, so an error can only be the end.
        if self.reader.is_empty() { None } else { self.reader.nullable("value").ok() }
    }
}
