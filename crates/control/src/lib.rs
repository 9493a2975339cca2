//! The control plane: what may block, kept off the data plane's threads.
//!
//! It reads the files (configuration, user list, certificates), owns the log, knows signals, the pid file and the
//! process's rights, and answers the questions of the workers' machines. It must never touch a client's or server's
//! connection: it speaks with the workers by messages only.

// Files, clocks and threads are this crate's work; the list of disallowed methods is for the data plane.
#![allow(clippy::disallowed_methods)]

mod access_files;
mod askers;
mod files;
mod keys;
mod ldap;
pub mod log;
mod plane;
pub mod process;
mod rulebook;
pub mod stopping;
pub mod supervisor;
#[cfg(any(feature = "traces", test))]
mod traces;
pub mod web;

pub use askers::{ASKER_THREAD, AskPam, Askers};
pub use files::{TlsFiles, TlsSide};
pub use keys::Keys;
pub use plane::{Event, Fleet, Plane, log_targets};
pub use rulebook::{CommandLine, Draft, Examination, Rulebook};

#[cfg(test)]
mod scratch;
