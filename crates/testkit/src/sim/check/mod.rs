//! What a run is held against: invariants, reasons for errors, what must have happened, and what clients are owed.
//!
//! Nothing here may change what happens in a run.

pub mod checks;
pub mod notify_check;
pub mod pairs;
pub mod queued_behind;
pub mod reach;
pub mod reasons;
pub mod watch;
