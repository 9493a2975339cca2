//! The startup parameters of clients: they are tried on a server before the client is let in.

pub(crate) mod check;
pub(crate) mod checked;
