//! The online restart (`-R`): clients, servers and pools in a form that another process can read.

pub(crate) mod arriving;
pub mod carried;
pub(crate) mod leaving;
