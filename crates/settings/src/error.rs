//! The faults and warnings of a configuration. If PgBouncer has words for a fault, they are used, because
//! people and tools search logs for them.

use std::fmt;

use thiserror::Error;

/// A fault of a configuration file. A configuration with a fault is rejected as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct LoadError {
    /// The file, as it was named on the command line or by `%include`.
    pub file: String,
    /// The line, from 1; 0 if the fault is not in a line.
    pub line: u32,
    /// The whole message, with file and line if there is one. It holds no secret.
    pub text: String,
    /// The fault and perhaps a suggestion, without file and line: for a report that names the place itself.
    pub problem: String,
}

/// A remark about a configuration that the administrator should know. It does not stop the configuration from
/// being used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file or the variable; empty when the warning is about neither.
    pub file: String,
    /// The line, from 1; 0 if the warning is not about a line.
    pub line: u32,
    /// The warning, without file and line.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.file.as_str()) {
            (0, "") => f.write_str(&self.text),
            (0, source) => write!(f, "{} ({source})", self.text),
            (line, file) => write!(f, "{} ({file}:{line})", self.text),
        }
    }
}

/// The reason why `SET` changed nothing. The client gets "SET failed" (PgBouncer's words); this text is for
/// the log and the error's detail.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetError {
    /// No setting has this name.
    #[error("unknown parameter: pgbouncer/{key}")]
    Unknown {
        /// The name that was asked for.
        key: String,
    },
    /// The setting does not take this value.
    #[error("invalid value \"{value}\" for parameter {key}: {reason}")]
    Invalid {
        /// The setting.
        key: String,
        /// The value, with secrets hidden.
        value: String,
        /// The values that the setting takes.
        reason: String,
    },
}
