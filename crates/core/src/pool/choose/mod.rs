//! Which server a waiting client gets, whether alone or queued behind others, and when a server is opened.
//!
//! A client asks in `request`. `admission` decides between a free server (`idle`; in session pooling `own_server`), a place behind
//! other clients, and waiting. `handout` serves the queue at the end of a turn and opens servers; `replication` opens those that
//! serve one replication client.

pub(crate) mod admission;
pub(crate) mod handout;
pub(crate) mod idle;
pub(crate) mod own_server;
pub(crate) mod replication;
pub(crate) mod request;
