//! Support for `currval` and `lastval`: the clients whose values a server holds, and the clients that a server waits for.

pub(crate) mod affinity;
pub(crate) mod state;
