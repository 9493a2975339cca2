//! The HTTP server: its connections, with TLS or without, and their number.
//!
//! The server must never know the meaning of a request.

pub(in crate::web) mod connection_slots;
pub(in crate::web) mod serve;
pub(in crate::web) mod tls;
