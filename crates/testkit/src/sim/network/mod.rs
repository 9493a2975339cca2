//! The virtual network: pipes between two ends, the messages in them, and what waits to be written.
//!
//! It must never know what a message means.

pub mod net;
pub mod outbox;
pub mod proto;
