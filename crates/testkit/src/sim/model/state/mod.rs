//! What a session of the model PostgreSQL holds: settings, prepared statements, locks, tables, cursors.
//!
//! Nothing here may answer a client.

pub mod holding;
pub mod holdings;
pub mod prepared;
pub mod settings;
