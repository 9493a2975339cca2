//! Errors: the faults that this crate finds, and the reports of errors to peers.
//!
//! [`WireError`] is a fault in a peer's bytes, which it never repeats. [`Report`] is the text of an
//! `ErrorResponse` or `NoticeResponse` to a peer, with the [`SqlState`] that drivers act on.

use std::fmt;

use crate::limits::{MESSAGE_LEN_MAX, MESSAGE_LEN_MIN, STARTUP_PACKET_LEN_MAX};
use crate::writer;

/// A fault in a peer's bytes. Their connection cannot go on, unless the caller knows better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A length field that no message can have.
    #[error("bad packet header: message length {got} is outside of {MESSAGE_LEN_MIN}..={MESSAGE_LEN_MAX}")]
    MessageLength {
        /// The value of the length field.
        got: u32,
    },
    /// A first packet that is longer or shorter than PostgreSQL accepts.
    #[error("bad packet header: length {got} of the first packet is outside of 8..={}", STARTUP_PACKET_LEN_MAX + 4)]
    StartupLength {
        /// The value of the length field.
        got: u32,
    },
    /// A first packet for a protocol that is neither version 3 nor one that was ever used.
    #[error("unsupported frontend protocol {major}.{minor}: version 3 is supported")]
    UnsupportedProtocol {
        /// The upper half of the version number.
        major: u16,
        /// The lower half of the version number.
        minor: u16,
    },
    /// The body ended inside a field.
    #[error("{message}: {field} needs {needed} bytes, {left} are left")]
    Truncated {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// The number of bytes that the field needs.
        needed: usize,
        /// The number of bytes that are left.
        left: usize,
    },
    /// A text without its NUL.
    #[error("{message}: {field} has no terminator")]
    Unterminated {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
    },
    /// The body goes on after its last field.
    #[error("{message}: {left} bytes behind the last field")]
    Trailing {
        /// The message's name.
        message: &'static str,
        /// The number of superfluous bytes.
        left: usize,
    },
    /// A field with a value that it cannot have.
    #[error("{message}: {field} must be {expected}, got {got:#x}")]
    Value {
        /// The message's name.
        message: &'static str,
        /// The field's name.
        field: &'static str,
        /// The values that the field can have.
        expected: &'static str,
        /// The value of the field (a number, a tag or a length; never a text).
        got: u32,
    },
    /// The `options` of a startup packet have something other than settings.
    #[error(
        "unsupported options startup parameter: only '-c config=val' and '--config=val' are allowed ({problem})"
    )]
    Options {
        /// The problem.
        problem: &'static str,
    },
}

impl WireError {
    /// Returns the SQLSTATE for the peer, which is the same as PostgreSQL's.
    #[must_use]
    pub fn sql_state(&self) -> SqlState {
        match self {
            Self::UnsupportedProtocol { .. } => SqlState::FEATURE_NOT_SUPPORTED,
            Self::Options { .. } => SqlState::SYNTAX_ERROR,
            Self::MessageLength { .. }
            | Self::StartupLength { .. }
            | Self::Truncated { .. }
            | Self::Unterminated { .. }
            | Self::Trailing { .. }
            | Self::Value { .. } => SqlState::PROTOCOL_VIOLATION,
        }
    }
}

/// A five-character error code, see <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

macro_rules! sql_states {
    ($($name:ident $code:literal $doc:literal,)+) => {
        impl SqlState {
            $(#[doc = concat!($code, ": ", $doc)]
            pub const $name: Self = Self::known($code);)+

            /// All codes that have a name here.
            pub const NAMED: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

sql_states! {
    SUCCESSFUL_COMPLETION "00000" "no error; the code of notices",
    CONNECTION_EXCEPTION "08000" "something about the connection",
    CANNOT_CONNECT "08001" "a connection to the server cannot be established",
    CONNECTION_DOES_NOT_EXIST "08003" "the connection is gone",
    CONNECTION_FAILURE "08006" "the connection broke",
    TRANSACTION_RESOLUTION_UNKNOWN "08007" "it is not known whether the transaction took effect",
    PROTOCOL_VIOLATION "08P01" "the peer does not speak the protocol, or speaks it out of turn",
    FEATURE_NOT_SUPPORTED "0A000" "not supported",
    INVALID_PARAMETER_VALUE "22023" "a setting cannot have this value",
    IN_FAILED_SQL_TRANSACTION "25P02" "commands are ignored until the end of the transaction",
    IDLE_IN_TRANSACTION_SESSION_TIMEOUT "25P03" "idle in a transaction for too long",
    TRANSACTION_TIMEOUT "25P04" "the transaction took too long",
    INVALID_SQL_STATEMENT_NAME "26000" "no prepared statement of this name",
    INVALID_AUTHORIZATION "28000" "this user may not connect so",
    INVALID_PASSWORD "28P01" "password authentication failed",
    INVALID_CURSOR_NAME "34000" "no portal of this name",
    INVALID_CATALOG_NAME "3D000" "no such database",
    DUPLICATE_PREPARED_STATEMENT "42P05" "a prepared statement of this name exists",
    SERIALIZATION_FAILURE "40001" "rolled back; it can be tried again",
    SYNTAX_ERROR "42601" "cannot be parsed",
    UNDEFINED_OBJECT "42704" "no such thing",
    TOO_MANY_CONNECTIONS "53300" "a limit of connections is reached",
    CONFIGURATION_LIMIT_EXCEEDED "53400" "a configured limit is reached",
    PROGRAM_LIMIT_EXCEEDED "54000" "a built-in limit is reached",
    OBJECT_NOT_IN_PREREQUISITE_STATE "55000" "not in the state that this needs",
    OPERATOR_INTERVENTION "57000" "an operator stepped in",
    QUERY_CANCELED "57014" "the statement was cancelled",
    ADMIN_SHUTDOWN "57P01" "ended by an administrator's command",
    CRASH_SHUTDOWN "57P02" "ended by a crash",
    CANNOT_CONNECT_NOW "57P03" "not now: starting, stopping or paused",
    IDLE_SESSION_TIMEOUT "57P05" "idle for too long",
    SYSTEM_ERROR "58000" "the operating system refused something",
    CONFIG_FILE_ERROR "F0000" "the configuration is wrong",
    INTERNAL_ERROR "XX000" "a defect of ours",
}

impl SqlState {
    const fn known(code: &'static str) -> Self {
        match code.as_bytes().first_chunk::<5>() {
            Some(bytes) if code.len() == 5 && valid(bytes) => Self(*bytes),
            _ => panic!("a SQLSTATE is five characters of 0-9 and A-Z"),
        }
    }

    /// Reads a code of a server. Returns `None` unless it is five characters of 0-9 and A-Z.
    #[must_use]
    pub fn from_bytes(code: &[u8]) -> Option<Self> {
        let bytes: &[u8; 5] = code.try_into().ok()?;
        valid(bytes).then_some(Self(*bytes))
    }

    /// Returns the five characters as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 5] {
        &self.0
    }

    /// Returns the five characters as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("every constructor lets only ASCII in")
    }
}

const fn valid(code: &[u8; 5]) -> bool {
    let mut i = 0;
    while i < code.len() {
        if !(code[i].is_ascii_digit() || code[i].is_ascii_uppercase()) {
            return false;
        }
        i += 1;
    }
    true
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlState({})", self.as_str())
    }
}

/// The severity of an error or a notice. After [`Severity::Fatal`] and [`Severity::Panic`] the sender closes
/// the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The statement failed, the session goes on.
    Error,
    /// The session ends.
    Fatal,
    /// Information for the user.
    Notice,
    /// A likely problem.
    Warning,
    /// Information that the user has requested.
    Info,
    /// A line for the server's log, which clients get on request.
    Log,
    /// The whole server goes down.
    Panic,
}

impl Severity {
    /// Returns the word in the message.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Notice => "NOTICE",
            Self::Warning => "WARNING",
            Self::Info => "INFO",
            Self::Log => "LOG",
            Self::Panic => "PANIC",
        }
    }
}

/// An error or a notice for a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report<'a> {
    /// The severity.
    pub severity: Severity,
    /// The SQLSTATE, which drivers act on.
    pub code: SqlState,
    /// The primary message: one sentence about what happened.
    pub message: &'a str,
    /// The detail message.
    pub detail: Option<&'a str>,
    /// The hint: what the user can do about it.
    pub hint: Option<&'a str>,
}

impl<'a> Report<'a> {
    /// Creates a report without detail and hint.
    #[must_use]
    pub const fn new(severity: Severity, code: SqlState, message: &'a str) -> Self {
        Self { severity, code, message, detail: None, hint: None }
    }

    /// Creates a report that ends the session.
    #[must_use]
    pub const fn fatal(code: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Fatal, code, message)
    }

    /// Creates a report of a failed statement.
    #[must_use]
    pub const fn error(code: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Error, code, message)
    }

    /// Creates a report of a likely problem.
    #[must_use]
    pub const fn warning(code: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Warning, code, message)
    }

    /// Creates a report for the user's information.
    #[must_use]
    pub const fn notice(code: SqlState, message: &'a str) -> Self {
        Self::new(Severity::Notice, code, message)
    }

    /// Adds a hint.
    #[must_use]
    pub const fn with_hint(mut self, hint: &'a str) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Adds a detail message.
    #[must_use]
    pub const fn with_detail(mut self, detail: &'a str) -> Self {
        self.detail = Some(detail);
        self
    }
}

/// Appends an `ErrorResponse`.
pub fn encode_error(out: &mut Vec<u8>, report: &Report<'_>) {
    encode_report(out, crate::backend::tag::ERROR, report);
}

/// Appends a `NoticeResponse`.
pub fn encode_notice(out: &mut Vec<u8>, report: &Report<'_>) {
    encode_report(out, crate::backend::tag::NOTICE, report);
}

fn encode_report(out: &mut Vec<u8>, tag: u8, report: &Report<'_>) {
    let severity = Some(report.severity.as_str());
    let fields = [
        (b'S', severity),
        (b'V', severity),
        (b'C', Some(report.code.as_str())),
        (b'M', Some(report.message)),
        (b'D', report.detail),
        (b'H', report.hint),
    ];
    writer::message(out, tag, |out| {
        for (kind, value) in fields {
            if let Some(value) = value {
                out.push(kind);
                writer::text(out, value.as_bytes());
            }
        }
        out.push(0);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_an_error() {
        let report = Report::fatal(SqlState::INVALID_PASSWORD, "no").with_hint("h").with_detail("d");
        let mut out = Vec::new();
        encode_error(&mut out, &report);
        assert_eq!(out, b"E\0\0\0\x24SFATAL\0VFATAL\0C28P01\0Mno\0Dd\0Hh\0\0");
        out.clear();
        encode_notice(&mut out, &Report::notice(SqlState::SUCCESSFUL_COMPLETION, "a\0Cb"));
        assert_eq!(out, b"N\0\0\0\x1fSNOTICE\0VNOTICE\0C00000\0Ma\0\0", "a NUL cannot add a field");
    }

    #[test]
    fn codes_are_unique_and_well_formed() {
        for (i, code) in SqlState::NAMED.iter().enumerate() {
            assert!(!SqlState::NAMED[i + 1..].contains(code), "{code} twice");
            assert_eq!(SqlState::from_bytes(code.as_bytes()), Some(*code));
        }
        for bad in [&b"28p01"[..], b"", b"2800", b"280000", b"28\0 1", "28é1".as_bytes()] {
            assert_eq!(SqlState::from_bytes(bad), None);
        }
    }

    #[test]
    fn an_error_says_what_was_expected_and_what_came() {
        let error = WireError::Truncated { message: "Parse", field: "query", needed: 4, left: 1 };
        assert_eq!(error.to_string(), "Parse: query needs 4 bytes, 1 are left");
        assert_eq!(error.sql_state(), SqlState::PROTOCOL_VIOLATION);
        let error = WireError::UnsupportedProtocol { major: 4, minor: 1 };
        assert_eq!(error.to_string(), "unsupported frontend protocol 4.1: version 3 is supported");
        assert_eq!(error.sql_state(), SqlState::FEATURE_NOT_SUPPORTED);
        let error = WireError::StartupLength { got: 3 };
        assert_eq!(
            error.to_string(),
            "bad packet header: length 3 of the first packet is outside of 8..=10004"
        );
    }
}
