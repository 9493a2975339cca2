//! The HTTP server: its connections, with TLS or without, and how many there may be.
//!
//! It must never know what a request asks for.

pub(in crate::web) mod connection_slots;
pub(in crate::web) mod serve;
pub(in crate::web) mod tls;
