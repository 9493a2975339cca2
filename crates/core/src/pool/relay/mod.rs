//! Messages between clients and servers: which need a server and how they reach it, and which client an answer belongs to.
//!
//! `send` and `receive` are the loops over the bytes of clients and servers; `plain` is the short way of both. `moments` has the
//! places at which features have a say. `exchange` says what a client's next messages are. `ledger` accounts for answers.

pub(crate) mod ahead;
pub(crate) mod asynchronous;
pub(crate) mod attempt;
pub(crate) mod exchange;
pub(crate) mod hidden;
pub(crate) mod known_answers;
pub mod ledger;
pub(crate) mod moments;
pub mod own_settings;
pub(crate) mod plain;
pub(crate) mod preamble;
pub(crate) mod receive;
pub(crate) mod route;
pub(crate) mod send;
