//! The servers that are measured: a throw-away PostgreSQL, and poolers in front of it.
//!
//! Nothing here may touch a server that it did not start.

pub(crate) mod cluster;
pub(crate) mod pgpool;
pub(crate) mod pooler;
