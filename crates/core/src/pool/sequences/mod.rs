//! `currval` and `lastval`: whose values a server holds, and who is waited for.

pub(crate) mod affinity;
pub(crate) mod state;
