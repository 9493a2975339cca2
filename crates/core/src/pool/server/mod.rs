//! A connection to PostgreSQL: its states, its login, its errors.

pub(crate) mod connect_query;
pub(crate) mod errors;
pub(crate) mod greeting;
pub(crate) mod login;
pub(crate) mod recycle;
pub(crate) mod state;
pub(crate) mod watching;
