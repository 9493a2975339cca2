//! Messages: which need a server and how they reach it, and which client an answer belongs to.

pub(crate) mod answer;
pub(crate) mod asynchronous;
pub(crate) mod first_ask;
pub(crate) mod group;
pub(crate) mod hidden;
pub mod known_answers;
pub mod ledger;
pub(crate) mod plain;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod send;
