//! Rows, and the messages that describe them.

use std::fmt;

use crate::error::WireError;
use crate::reader::Reader;

/// A column of a `RowDescription` that pgweir sends; it belongs to no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column<'a> {
    /// The column's name.
    pub name: &'a str,
    /// The oid of the column's type, for example 25 for `text`.
    pub type_oid: u32,
    /// The size of the column's type in bytes; -1 if it varies.
    pub type_len: i16,
    /// `true` if the column's values are sent in binary format, not as text.
    pub binary: bool,
}

/// The format of the data of a COPY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// Lines of text (also CSV).
    Text,
    /// PostgreSQL's binary format.
    Binary,
}

impl CopyFormat {
    /// Returns the number in the message.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}

/// A `DataRow`: the answer to a question of pgweir's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DataRow<'a> {
    count: u16,
    values: &'a [u8],
}

impl<'a> DataRow<'a> {
    /// Reads the body of a `DataRow` and checks it as a whole.
    ///
    /// # Errors
    ///
    /// The body is not exactly a count and that number of values.
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

    /// Returns the number of columns.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns whether the row has no columns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the values in order; `None` is NULL.
    #[must_use]
    pub fn columns(&self) -> Columns<'a> {
        Columns { reader: Reader::new(MESSAGE, self.values) }
    }
}

const MESSAGE: &str = "DataRow";

impl fmt::Debug for DataRow<'_> {
    /// Prints no values: a row of auth_query has a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataRow").field("columns", &self.count).finish_non_exhaustive()
    }
}

/// An iterator over the values of a [`DataRow`].
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
