//! The pages that are made from the tables of settings: the reference, the manual page, the packages'
//! configuration file.
//!
//! The pages must say nothing that the tables do not.

pub(crate) mod man;
pub(crate) mod packaged;
pub(crate) mod reference;
