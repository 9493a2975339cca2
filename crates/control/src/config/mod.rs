//! The configuration in effect, and the files that it is read from.
//!
//! Nothing here may put a part of a configuration into effect: it is the whole or nothing.

pub(crate) mod access_files;
pub(crate) mod config_state;
pub(crate) mod files;
pub(crate) mod overlay;
