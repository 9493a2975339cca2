//! The checks of a run: invariants, reasons for errors, events that must have happened, and the promises to
//! clients.
//!
//! Nothing here may change the course of a run.

pub mod board;
pub mod checks;
pub mod followed;
pub mod notify_check;
pub mod pairs;
pub mod queued_behind;
pub mod reach;
pub mod reasons;
pub mod watch;
