//! `ErrorResponse` and `NoticeResponse` as a server sends them.

use std::fmt;

use crate::error::WireError;
use crate::reader::{Reader, split_text};

/// The fields of an `ErrorResponse` or `NoticeResponse`. Fields may be missing, unknown or repeated (the
/// first one counts): servers and extensions may send any, and no client may be disconnected for it. See
/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ErrorFields<'a> {
    body: &'a [u8],
}

impl<'a> ErrorFields<'a> {
    /// Reads the body of an `ErrorResponse` or `NoticeResponse`.
    ///
    /// # Errors
    ///
    /// The body is not exactly a list of fields and its terminator.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("ErrorResponse", body);
        while reader.u8("field type")? != 0 {
            reader.text("field")?;
        }
        reader.finish()?;
        Ok(Self { body })
    }

    /// Returns all fields, with type and value, in the server's order.
    #[must_use]
    pub fn fields(&self) -> Fields<'a> {
        Fields { rest: self.body }
    }

    /// Returns the value of the first field of this type.
    #[must_use]
    pub fn field(&self, kind: u8) -> Option<&'a [u8]> {
        self.fields().find(|(found, _)| *found == kind).map(|(_, value)| value)
    }

    /// Returns `ERROR`, `FATAL`, ..., untranslated if the server sends that (all since 9.6 do).
    #[must_use]
    pub fn severity(&self) -> Option<&'a [u8]> {
        self.field(b'V').or_else(|| self.field(b'S'))
    }

    /// Whether the server ends the session with this.
    #[must_use]
    pub fn ends_session(&self) -> bool {
        matches!(self.severity(), Some(b"FATAL" | b"PANIC"))
    }

    /// Returns the SQLSTATE.
    #[must_use]
    pub fn code(&self) -> Option<&'a [u8]> {
        self.field(b'C')
    }

    /// Returns the primary message.
    #[must_use]
    pub fn message(&self) -> Option<&'a [u8]> {
        self.field(b'M')
    }

    /// Returns the detail message.
    #[must_use]
    pub fn detail(&self) -> Option<&'a [u8]> {
        self.field(b'D')
    }

    /// Returns the hint.
    #[must_use]
    pub fn hint(&self) -> Option<&'a [u8]> {
        self.field(b'H')
    }
}

impl fmt::Debug for ErrorFields<'_> {
    /// Prints severity and code only, because messages may quote a user's input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: Option<&[u8]>| value.map(|value| value.escape_ascii().to_string());
        f.debug_struct("ErrorFields")
            .field("severity", &text(self.severity()))
            .field("code", &text(self.code()))
            .finish_non_exhaustive()
    }
}

/// An iterator over the fields of an [`ErrorFields`].
#[derive(Clone)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.rest.split_first()?;
        if *kind == 0 {
            return None;
        }
        let (value, rest) = split_text(rest)?;
        self.rest = rest;
        Some((*kind, value))
    }
}
