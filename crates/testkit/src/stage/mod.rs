//! A stage without faults: a quiet driver, and what a server says that never fails. For what is counted and timed; what
//! breaks is in [`crate::sim`].

pub mod answers;
pub mod quiet;
