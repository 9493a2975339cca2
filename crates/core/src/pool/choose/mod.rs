//! Which server a waiting client gets, whether alone or queued behind others, and when a server is opened.

pub(crate) mod admission;
pub(crate) mod handout;
pub(crate) mod own_server;
pub(crate) mod replication;
