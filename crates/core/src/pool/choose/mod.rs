//! Which server runs what waits, and how: the moment *choose*.
//!
//! All callers ask `selector`. It learns from `admission` (multiplexing), `idle` and `own_server` (session pooling) which servers
//! there are. `request` asks for a client that has just sent something. `handout` serves the queue at the end of a turn, and opens
//! servers; `replication` opens those that serve one replication client.

pub(crate) mod admission;
pub(crate) mod handout;
pub(crate) mod idle;
pub(crate) mod own_server;
pub(crate) mod replication;
pub(crate) mod request;
pub(crate) mod selector;
