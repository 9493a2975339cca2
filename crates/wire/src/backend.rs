//! The messages of servers, which pgweir also sends to clients.
//!
//! The file has the messages that a pooler must understand. A server's bytes are as foreign as a client's:
//! nothing in here trusts a length or a count. It must never copy: values borrow from the body (lists of
//! borrowed values are collected, and their number is bounded by [`crate::limits`]).

use std::fmt;

use crate::error::WireError;
use crate::reader::{Reader, cancel_key};

mod authentication;
mod encode;
mod report;
mod rows;

pub use authentication::{Authentication, Negotiate};
pub use encode::{
    encode_auth_cleartext, encode_auth_md5, encode_auth_ok, encode_auth_sasl, encode_auth_sasl_continue,
    encode_auth_sasl_final, encode_backend_key_data, encode_bind_complete, encode_close_complete,
    encode_command_complete, encode_copy_both, encode_copy_data, encode_copy_done, encode_copy_in,
    encode_copy_out, encode_data_row, encode_empty_query, encode_function_response, encode_negotiate,
    encode_no_data, encode_notification, encode_parameter_description, encode_parameter_status,
    encode_parse_complete, encode_portal_suspended, encode_ready, encode_row_description,
};
pub use report::{ErrorFields, Fields};
pub use rows::{Column, Columns, CopyFormat, DataRow};

/// The message types that a backend sends.
pub mod tag {
    /// `Authentication...`: a request for a proof, or success.
    pub const AUTHENTICATION: u8 = b'R';
    /// `BackendKeyData`: the data of a cancel request.
    pub const BACKEND_KEY_DATA: u8 = b'K';
    /// `BindComplete`.
    pub const BIND_COMPLETE: u8 = b'2';
    /// `CloseComplete`.
    pub const CLOSE_COMPLETE: u8 = b'3';
    /// `CommandComplete`: a statement is done.
    pub const COMMAND_COMPLETE: u8 = b'C';
    /// `CopyData`: a piece of a COPY.
    pub const COPY_DATA: u8 = b'd';
    /// `CopyDone`: the COPY is complete.
    pub const COPY_DONE: u8 = b'c';
    /// `CopyInResponse`: the client has to send data.
    pub const COPY_IN: u8 = b'G';
    /// `CopyOutResponse`: data follow from the server.
    pub const COPY_OUT: u8 = b'H';
    /// `CopyBothResponse`: both sides may send (streaming replication).
    pub const COPY_BOTH: u8 = b'W';
    /// `DataRow`.
    pub const DATA_ROW: u8 = b'D';
    /// `EmptyQueryResponse`: there was no statement.
    pub const EMPTY_QUERY: u8 = b'I';
    /// `ErrorResponse`.
    pub const ERROR: u8 = b'E';
    /// `FunctionCallResponse`.
    pub const FUNCTION_RESPONSE: u8 = b'V';
    /// `NegotiateProtocolVersion`.
    pub const NEGOTIATE: u8 = b'v';
    /// `NoData`: the described statement or portal returns no rows.
    pub const NO_DATA: u8 = b'n';
    /// `NoticeResponse`, which may come at any time.
    pub const NOTICE: u8 = b'N';
    /// `NotificationResponse`, which may come at any time.
    pub const NOTIFICATION: u8 = b'A';
    /// `ParameterDescription`.
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    /// `ParameterStatus`, which may come at any time.
    pub const PARAMETER_STATUS: u8 = b'S';
    /// `ParseComplete`.
    pub const PARSE_COMPLETE: u8 = b'1';
    /// `PortalSuspended`: the row limit of `Execute` is reached.
    pub const PORTAL_SUSPENDED: u8 = b's';
    /// `ReadyForQuery`.
    pub const READY: u8 = b'Z';
    /// `RowDescription`.
    pub const ROW_DESCRIPTION: u8 = b'T';
}

/// The transaction status in a `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TxStatus {
    /// No transaction is open.
    Idle,
    /// A transaction is open.
    InTransaction,
    /// A transaction is open and has failed: only its end is accepted.
    Failed,
}

impl TxStatus {
    /// Returns the byte in the message: `I`, `T` or `E`.
    #[inline]
    #[must_use]
    pub const fn as_byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }

    /// Reads the byte in the message. Returns `None` if it is none of the three.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }
}

/// Reads the body of a `ReadyForQuery`.
///
/// # Errors
/// The body is not exactly one of the three status bytes.
#[inline]
pub fn parse_ready(body: &[u8]) -> Result<TxStatus, WireError> {
    let mut reader = Reader::new("ReadyForQuery", body);
    let byte = reader.u8("status")?;
    let status =
        TxStatus::from_byte(byte).ok_or_else(|| reader.refuse("status", "'I', 'T' or 'E'", byte.into()))?;
    reader.finish()?;
    Ok(status)
}

/// Reads the body of a `CommandComplete`: the command tag, such as `INSERT 0 1`.
///
/// # Errors
/// The body does not have exactly one NUL, at its end.
pub fn parse_command_complete(body: &[u8]) -> Result<&[u8], WireError> {
    let mut reader = Reader::new("CommandComplete", body);
    let tag = reader.text("command tag")?;
    reader.finish()?;
    Ok(tag)
}

/// `ParameterStatus`: a setting that the server reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterStatus<'a> {
    /// The setting's name.
    pub name: &'a [u8],
    /// The setting's value.
    pub value: &'a [u8],
}

impl<'a> ParameterStatus<'a> {
    /// Reads the body of a `ParameterStatus`.
    ///
    /// # Errors
    /// The body is not exactly two texts.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("ParameterStatus", body);
        let name = reader.text("name")?;
        let value = reader.text("value")?;
        reader.finish()?;
        Ok(Self { name, value })
    }
}

/// `BackendKeyData`: the data of a cancel request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BackendKeyData<'a> {
    /// The server's process id, or the id that a pooler in between gave out.
    pub pid: u32,
    /// The key, of 1 to [`crate::limits::CANCEL_KEY_LEN_MAX`] bytes; 4 before protocol 3.2. It is a secret.
    pub key: &'a [u8],
}

impl<'a> BackendKeyData<'a> {
    /// Reads the body of a `BackendKeyData`.
    ///
    /// # Errors
    /// The body is not exactly a number and a key.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("BackendKeyData", body);
        let pid = reader.u32("process id")?;
        let key = cancel_key(reader)?;
        Ok(Self { pid, key })
    }
}

impl fmt::Debug for BackendKeyData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendKeyData").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// `NotificationResponse`: a session sent a NOTIFY on a channel that this session listens to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NotificationResponse<'a> {
    /// The process id of the sender's session.
    pub pid: u32,
    /// The channel.
    pub channel: &'a [u8],
    /// The payload, which may be empty.
    pub payload: &'a [u8],
}

impl<'a> NotificationResponse<'a> {
    /// Reads the body of a `NotificationResponse`.
    ///
    /// # Errors
    /// The body is not exactly a number and two texts.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("NotificationResponse", body);
        let pid = reader.u32("process id")?;
        let channel = reader.text("channel")?;
        let payload = reader.text("payload")?;
        reader.finish()?;
        Ok(Self { pid, channel, payload })
    }
}

impl fmt::Debug for NotificationResponse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotificationResponse")
            .field("pid", &self.pid)
            .field("channel", &self.channel.escape_ascii().to_string())
            .field("payload_len", &self.payload.len())
            .finish()
    }
}

#[cfg(test)]
mod tests;
