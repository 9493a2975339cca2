//! Logins that are checked outside of the workers: with the operating system's users, PAM, or directories.
//!
//! Nothing here may block the control loop.

pub(crate) mod auth_workers;
pub(crate) mod ldap;
