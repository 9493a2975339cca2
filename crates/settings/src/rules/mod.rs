//! The sections whose lines are looked at in their order: the first one that a client or a statement matches counts.

pub(crate) mod cache;
pub(crate) mod routes;
