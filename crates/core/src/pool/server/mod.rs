//! Connections to PostgreSQL: their states, their logins, their errors, and the steps that a server takes after its client has left it.

pub(crate) mod abandoned;
pub(crate) mod asked;
pub(crate) mod closing;
pub(crate) mod connect_query;
pub(crate) mod errors;
pub(crate) mod following;
pub(crate) mod greeting;
pub(crate) mod login;
pub(crate) mod login_failed;
pub(crate) mod lost;
pub(crate) mod recycle;
pub(crate) mod release;
pub(crate) mod state;
pub(crate) mod watching;
