//! The state of a session of the model PostgreSQL: settings, prepared statements, locks, tables, cursors.
//!
//! Nothing here may answer a client.

pub mod holding;
pub mod holdings;
pub mod prepared;
pub mod settings;
