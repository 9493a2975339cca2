//! The moves of clients and servers between their states.

pub(crate) mod another_server;
pub(crate) mod client;
pub(crate) mod requeue;
pub(crate) mod server;
