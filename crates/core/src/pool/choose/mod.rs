//! Which server runs what waits, and how: the moment *choose*.
//!
//! All callers ask `selector`. It learns from `admission` (multiplexing), `idle`, `reasons` and `own_server` (session pooling)
//! which servers there are. `request` asks for a client that has just sent something; `handout` serves the queue at the end of a
//! turn. `place` gives a client its place; `dial` opens servers, `replication` those that serve one replication client, `own_login`
//! those that are to greet one client. `parts` has what is shared with other poolers.

pub(crate) mod admission;
pub(crate) mod dial;
pub(crate) mod handout;
pub(crate) mod idle;
pub(crate) mod own_login;
pub(crate) mod own_server;
pub(crate) mod parts;
pub(crate) mod place;
pub(crate) mod reasons;
pub(crate) mod replication;
pub(crate) mod request;
pub(crate) mod selector;
