//! The model PostgreSQL: sessions that follow protocol v3, in a cluster that can fail.

pub mod backend;
pub mod cluster;
mod copy;
mod exec;
mod holding;
pub mod holdings;
mod login;
mod others;
pub mod outcome;
mod prepared;
mod session;
pub mod settings;
pub mod statement;
#[cfg(test)]
mod tests;

pub use prepared::{COLUMNS, row_description};
pub use session::{Behaviour, Note, Session, Step};
