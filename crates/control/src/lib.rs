//! The control plane: everything that may block, kept off the data plane's threads.
//!
//! The control plane reads the files (configuration, user list, certificates), owns the log, handles signals, the pid file
//! and the process's privileges, and answers the questions of the workers' machines. It must never touch a
//! client's or server's connection: it communicates with the workers by messages only.

// Files, clocks and threads are this crate's work; the list of disallowed methods is for the data plane.
#![allow(clippy::disallowed_methods)]

mod commands;
mod config;
mod keys;
mod limits;
pub mod log;
mod login;
mod order_thread;
mod plane;
pub mod process;
mod sources;
pub mod stopping;
pub mod supervisor;
#[cfg(any(feature = "traces", test))]
mod traces;
mod trust;
mod vip;
pub mod web;

pub use commands::Commands;
pub use config::config_state::{CommandLine, ConfigState, Draft, Examination};
pub use config::files::{TlsFiles, TlsSide};
pub use config::overlay::Overlay;
pub use keys::Keys;
pub use limits::Limits;
pub use login::auth_workers::{AUTH_THREAD, AskPam, AuthWorkers};
pub use plane::{Event, Fleet, Plane, log_targets};
pub use sources::{LookUp, Sources};
pub use trust::VerifyBy;
pub use vip::{EndClients, Vip};

#[cfg(test)]
mod scratch;
