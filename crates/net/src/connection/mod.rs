//! The state of one connection: what is read from it and written to it, how it begins and how it ends.
//!
//! These files know bytes and sockets; they must never know what the bytes mean.

pub(crate) mod bulk;
pub(crate) mod conn;
pub(crate) mod dial;
pub(crate) mod linger;
pub(crate) mod out;
pub(crate) mod read;
pub(crate) mod table;
pub(crate) mod uring_batch;
pub(crate) mod write;
