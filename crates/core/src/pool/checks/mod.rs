//! Whether the session of a released server is what it should be: when that is asked, and what follows.

pub(crate) mod schedule;
pub(crate) mod session_check;
