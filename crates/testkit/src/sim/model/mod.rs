//! The model PostgreSQL: sessions that follow protocol v3, in a cluster that can fail.

pub mod backend;
pub mod cluster;
mod copy;
mod exec;
pub mod followed;
mod login;
pub mod nodes;
mod others;
pub mod outcome;
mod session;
pub mod state;
pub mod statement;
#[cfg(test)]
mod tests;

pub use exec::AT_STANDBY;
pub use session::{Behaviour, IN_RECOVERY, INTERRUPTED, Note, Session, Step};
pub use state::prepared::{COLUMNS, row_description};
