//! The sockets that clients connect to: opened here or by systemd, and accepted from.
//!
//! Nothing here may know a connection after it was accepted.

pub(crate) mod accept;
pub(crate) mod activation;
pub(crate) mod listen;
