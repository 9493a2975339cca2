//! Startup parameters of clients, tried on a server before the client is let in.

pub(crate) mod check;
pub(crate) mod checked;
