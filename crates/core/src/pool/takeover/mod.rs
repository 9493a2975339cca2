//! Online restart (`-R`): what clients, servers and pools are in a form that another process can read.

pub(crate) mod arriving;
pub mod carried;
pub(crate) mod leaving;
