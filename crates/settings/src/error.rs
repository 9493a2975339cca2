//! What can be wrong with a configuration. The words are PgBouncer's where it has some, because people and
//! tools search logs for them.

use std::fmt;

use thiserror::Error;

/// A fault of a configuration file. One of them means that nothing of the configuration is taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct LoadError {
    /// The file, as it was named on the command line or by `%include`.
    pub file: String,
    /// The line, from 1; 0 when the fault is not in a line.
    pub line: u32,
    /// The whole message, with file and line where there is one. It holds no secret.
    pub text: String,
    /// What is wrong, and what may be meant, without file and line: for a report that names the place itself.
    pub problem: String,
}

/// Something about a configuration that the administrator should know, and that does not stop anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file or the variable; empty when the warning is about neither.
    pub file: String,
    /// The line, from 1; 0 when the warning is not about a line.
    pub line: u32,
    /// What is to be known, without file and line.
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

/// Why `SET` changed nothing. The client is told "SET failed" (PgBouncer's words); this is for the log and
/// the error's detail.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SetError {
    /// There is no such setting.
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
        /// What would be right.
        reason: String,
    },
}
