//! What can go wrong in the tools, with the exit code that scripts see.

use std::io;
use std::path::PathBuf;

/// Why a demo or a comparison could not be finished. The text is one line for the user: what happened, what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The command line is wrong.
    #[error("{0} (see --help)")]
    Usage(String),
    /// A program that is needed is not installed, and it could not be installed from here.
    #[error("{0}")]
    Missing(String),
    /// Another process listens on the port that was asked for.
    #[error(
        "port {port} on 127.0.0.1 is in use: choose another one with --port, or leave it out to get a free one"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// The file system for temporary files, or for reports, is full or would be.
    #[error("no room on the disk: {path} needs {needed_mb} MB free; free some, or point {option} elsewhere")]
    DiskFull {
        /// Directory that was to be used.
        path: PathBuf,
        /// What a run needs, megabytes.
        needed_mb: u64,
        /// What names the directory: `TMPDIR`, or an option.
        option: &'static str,
    },
    /// A program that was to keep running ended, or one that was to succeed failed.
    #[error("{what}: {detail}")]
    Failed {
        /// What was attempted.
        what: String,
        /// What the program said last, on one line.
        detail: String,
    },
    /// A call of the operating system failed.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Ctrl-C, SIGTERM or SIGHUP.
    #[error("interrupted")]
    Interrupted,
}

impl BenchError {
    /// Exit code of the process: 2 wrong command line, 3 a program is missing, 4 port in use, 5 disk full,
    /// 130 interrupted, 1 everything else.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Missing(_) => 3,
            Self::PortInUse { .. } => 4,
            Self::DiskFull { .. } => 5,
            Self::Failed { .. } | Self::Io { .. } => 1,
            Self::Interrupted => 130,
        }
    }

    /// A failure with what a program said: its last lines that are not empty, joined to one line.
    #[must_use]
    pub(crate) fn failed(what: impl Into<String>, said: &str) -> Self {
        Self::Failed { what: what.into(), detail: last_words(said) }
    }

    /// For `map_err`: wraps an I/O error, naming what was attempted.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

impl From<pgweir_client::UrlError> for BenchError {
    fn from(error: pgweir_client::UrlError) -> Self {
        Self::Usage(error.to_string())
    }
}

impl From<lexopt::Error> for BenchError {
    fn from(error: lexopt::Error) -> Self {
        Self::Usage(error.to_string())
    }
}

/// The last three lines of a program's output that say something, on one line.
fn last_words(said: &str) -> String {
    const LINES: usize = 3;
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "it said nothing".to_owned();
    }
    lines[lines.len().saturating_sub(LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_keeps_the_last_three_lines() {
        let error = BenchError::failed("initdb", "one\n\ntwo\nthree\n  four \n");
        assert_eq!(error.to_string(), "initdb: two | three | four");
        assert_eq!(error.exit_code(), 1);
    }

    #[test]
    fn silence_is_named() {
        assert_eq!(BenchError::failed("x", " \n").to_string(), "x: it said nothing");
    }
}
