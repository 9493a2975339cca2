//! LISTEN in transaction pooling: one connection of the pool listens for all clients.

pub(crate) mod join;
pub(crate) mod listeners;
pub(crate) mod notifications;
pub(crate) mod notify_listener;
pub(crate) mod spread;
