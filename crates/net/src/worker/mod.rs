//! The workers: their threads, the loop of each, and the messages between them.
//!
//! A worker must never wait for another one.

pub(crate) mod io;
pub(crate) mod mesh;
pub(crate) mod tick;
pub(crate) mod workers;
