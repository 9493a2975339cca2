//! The messages of clients after login has begun, which pgweir also sends to servers.
//!
//! The file has the messages that a pooler must understand. Messages that it only passes on (`CopyData`, the
//! parameters of `Bind`, ...) have a tag here and no parser. It must never copy: every value borrows from the
//! body it was read from.

use std::fmt;

use crate::error::WireError;
use crate::reader::{Reader, split_text};

mod encode;

pub use encode::{
    encode_bind_head, encode_cancel, encode_close, encode_copy_fail, encode_describe, encode_execute,
    encode_flush, encode_gss_request, encode_parse, encode_password, encode_query, encode_sasl_initial,
    encode_sasl_response, encode_ssl_request, encode_startup, encode_sync, encode_terminate,
};

/// The message types that a frontend sends.
pub mod tag {
    /// `Query`: one simple query.
    pub const QUERY: u8 = b'Q';
    /// `Parse`: prepares a statement.
    pub const PARSE: u8 = b'P';
    /// `Bind`: makes a portal of a prepared statement and its parameters.
    pub const BIND: u8 = b'B';
    /// `Describe` of a statement or portal.
    pub const DESCRIBE: u8 = b'D';
    /// `Execute` of a portal.
    pub const EXECUTE: u8 = b'E';
    /// `Close` of a statement or portal.
    pub const CLOSE: u8 = b'C';
    /// `Sync`: ends a group of extended-protocol messages.
    pub const SYNC: u8 = b'S';
    /// `Flush`: asks for the answers so far.
    pub const FLUSH: u8 = b'H';
    /// `FunctionCall`: the old fast path.
    pub const FUNCTION_CALL: u8 = b'F';
    /// `CopyData`: a piece of a COPY.
    pub const COPY_DATA: u8 = b'd';
    /// `CopyDone`: the COPY is complete.
    pub const COPY_DONE: u8 = b'c';
    /// `CopyFail`: the client wants the COPY to fail.
    pub const COPY_FAIL: u8 = b'f';
    /// `Terminate`: ends the session.
    pub const TERMINATE: u8 = b'X';
    /// `PasswordMessage`, `SASLInitialResponse`, `SASLResponse` and `GSSResponse`, depending on the server's
    /// request.
    pub const PASSWORD: u8 = b'p';
}

/// `Query`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// One or more statements, in the client's encoding, without the NUL.
    pub text: &'a [u8],
}

impl<'a> Query<'a> {
    /// Reads the body of a `Query`.
    ///
    /// # Errors
    /// The body does not have exactly one NUL, at its end.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        if let [text @ .., 0] = body
            && memchr::memchr(0, text).is_none()
        {
            return Ok(Self { text });
        }
        let mut reader = Reader::new("Query", body);
        let text = reader.text("text")?;
        reader.finish()?;
        Ok(Self { text })
    }
}

impl fmt::Debug for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("len", &self.text.len()).finish()
    }
}

/// `Parse`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// The name that the statement gets; empty for the unnamed one.
    pub name: &'a [u8],
    /// The statement, in the client's encoding.
    pub query: &'a [u8],
    /// The type oids of the parameters, four bytes each, as in the message.
    pub param_types: &'a [u8],
}

impl<'a> Parse<'a> {
    /// Reads the body of a `Parse`.
    ///
    /// # Errors
    /// The body is not exactly two texts, a count and that number of oids.
    #[expect(
        clippy::self_named_constructors,
        reason = "all messages are read by `parse`; this one is called Parse"
    )]
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("Parse", body);
        let name = reader.text("statement name")?;
        let query = reader.text("query")?;
        let count = reader.u16("number of parameter types")?;
        let param_types = reader.take(usize::from(count) * 4, "parameter types")?;
        reader.finish()?;
        Ok(Self { name, query, param_types })
    }
}

impl fmt::Debug for Parse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parse")
            .field("name", &self.name.escape_ascii().to_string())
            .field("query_len", &self.query.len())
            .field("param_types", &(self.param_types.len() / 4))
            .finish()
    }
}

/// The start of a `Bind`: the names, which a pooler must know and may have to replace. The parameters after
/// them are passed on unread, because they may be large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindHead<'a> {
    /// The name that the portal gets; empty for the unnamed one.
    pub portal: &'a [u8],
    /// The prepared statement.
    pub statement: &'a [u8],
    /// The offset in the body at which the rest begins, in bytes.
    pub tail: usize,
}

impl<'a> BindHead<'a> {
    /// Reads the names at the start of the body of a `Bind`, of which `prefix` has arrived. Returns `None` if
    /// the names are not complete; if `prefix` is the whole body, the message is malformed then.
    #[must_use]
    #[inline]
    pub fn parse_prefix(prefix: &'a [u8]) -> Option<Self> {
        let (portal, rest) = split_text(prefix)?;
        let (statement, rest) = split_text(rest)?;
        Some(Self { portal, statement, tail: prefix.len() - rest.len() })
    }
}

/// The rest of a `Bind`, for a caller that answers the message itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BindTail<'a> {
    /// The number of parameters.
    pub parameters: u16,
    /// The formats of the parameters, two bytes each: none (all text), one for all parameters, or one for
    /// each.
    formats: &'a [u8],
    /// The formats of the results, two bytes each: none (all text), one for all columns, or one for each.
    result_formats: &'a [u8],
}

impl<'a> BindTail<'a> {
    /// Reads the bytes after [`BindHead::tail`].
    ///
    /// # Errors
    ///
    /// The bytes are not exactly formats, parameters and formats.
    pub fn parse(tail: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("Bind", tail);
        let formats = reader.u16("number of parameter formats")?;
        let formats = reader.take(usize::from(formats) * 2, "parameter formats")?;
        let parameters = reader.u16("number of parameters")?;
        for _ in 0..parameters {
            reader.nullable("parameter")?;
        }
        let results = reader.u16("number of result formats")?;
        let result_formats = reader.take(usize::from(results) * 2, "result formats")?;
        reader.finish()?;
        Ok(Self { parameters, formats, result_formats })
    }

    /// Reads the values of the parameters from the bytes after [`BindHead::tail`], in order. `None` is NULL.
    ///
    /// # Errors
    ///
    /// The bytes do not have as many formats and values as they say.
    pub fn values(tail: &'a [u8]) -> Result<Vec<Option<&'a [u8]>>, WireError> {
        let mut reader = Reader::new("Bind", tail);
        let formats = reader.u16("number of parameter formats")?;
        reader.take(usize::from(formats) * 2, "parameter formats")?;
        let parameters = reader.u16("number of parameters")?;
        (0..parameters).map(|_| reader.nullable("parameter")).collect()
    }

    /// Returns for each parameter whether it is in binary format.
    pub fn binary_parameters(&self) -> impl Iterator<Item = bool> + 'a {
        let formats = self.formats;
        (0..usize::from(self.parameters)).map(move |at| {
            let at = if formats.len() == 2 { 0 } else { at * 2 };
            formats.get(at..at + 2).is_some_and(|format| format != [0, 0])
        })
    }

    /// Returns for each column whether it is wanted in binary format. The number of values has the same
    /// meaning as for the formats.
    pub fn binary_results(&self) -> impl Iterator<Item = bool> + 'a {
        self.result_formats.chunks_exact(2).map(|format| format != [0, 0])
    }
}

/// The kind of object that `Describe` and `Close` name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

impl Target {
    /// Returns the byte in the message.
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Statement => b'S',
            Self::Portal => b'P',
        }
    }

    fn read<'a>(message: &'static str, body: &'a [u8]) -> Result<(Self, &'a [u8]), WireError> {
        let mut reader = Reader::new(message, body);
        let target = match reader.u8("target")? {
            b'S' => Self::Statement,
            b'P' => Self::Portal,
            other => return Err(reader.refuse("target", "'S' or 'P'", other.into())),
        };
        let name = reader.text("name")?;
        reader.finish()?;
        Ok((target, name))
    }
}

/// `Describe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Describe<'a> {
    /// Statement or portal.
    pub target: Target,
    /// The object's name; empty for the unnamed one.
    pub name: &'a [u8],
}

impl<'a> Describe<'a> {
    /// Reads the body of a `Describe`.
    ///
    /// # Errors
    /// The body is not exactly a target and a name.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        // Nearly every driver sends this.
        if body == b"P\0" {
            return Ok(Self { target: Target::Portal, name: b"" });
        }
        let (target, name) = Target::read("Describe", body)?;
        Ok(Self { target, name })
    }
}

/// `Close`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close<'a> {
    /// Statement or portal.
    pub target: Target,
    /// The object's name; empty for the unnamed one.
    pub name: &'a [u8],
}

impl<'a> Close<'a> {
    /// Reads the body of a `Close`.
    ///
    /// # Errors
    /// The body is not exactly a target and a name.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (target, name) = Target::read("Close", body)?;
        Ok(Self { target, name })
    }
}

/// `Execute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execute<'a> {
    /// The portal; empty for the unnamed one.
    pub portal: &'a [u8],
    /// The number of rows that are wanted; 0 means all. PostgreSQL treats numbers above `i32::MAX` as 0.
    pub max_rows: u32,
}

impl<'a> Execute<'a> {
    /// Reads the body of an `Execute`.
    ///
    /// # Errors
    /// The body is not exactly a name and a number.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("Execute", body);
        let portal = reader.text("portal")?;
        let max_rows = reader.u32("number of rows")?;
        reader.finish()?;
        Ok(Self { portal, max_rows })
    }
}

/// `PasswordMessage`: the answer to a request for a password, in clear text or as md5.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Password<'a> {
    /// The password or its hash, without the NUL. It is a secret.
    pub text: &'a [u8],
}

impl<'a> Password<'a> {
    /// Reads the body of a `PasswordMessage`.
    ///
    /// # Errors
    /// The body does not have exactly one NUL, at its end.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("PasswordMessage", body);
        let text = reader.text("password")?;
        reader.finish()?;
        Ok(Self { text })
    }
}

impl fmt::Debug for Password<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Password").finish_non_exhaustive()
    }
}

/// `SASLInitialResponse`: the chosen mechanism and the first message of the exchange. The later messages
/// (`SASLResponse`) consist of their body only and need no parser.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SaslInitial<'a> {
    /// The mechanism's name.
    pub mechanism: &'a [u8],
    /// The first message; `None` if the client waits for a request.
    pub data: Option<&'a [u8]>,
}

impl<'a> SaslInitial<'a> {
    /// Reads the body of a `SASLInitialResponse`.
    ///
    /// # Errors
    /// The body is not exactly a text and a value with its length.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("SASLInitialResponse", body);
        let mechanism = reader.text("mechanism")?;
        let data = reader.nullable("initial response")?;
        reader.finish()?;
        Ok(Self { mechanism, data })
    }
}

impl fmt::Debug for SaslInitial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslInitial")
            .field("mechanism", &self.mechanism.escape_ascii().to_string())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
