//! The moments of a transaction: the places at which features have a say. Each file states, in its head, which features are asked,
//! in which order, and what they may answer. Only `relay` and `moves` act on the answers.
//!
//! | moment | question | file |
//! |---|---|---|
//! | request | may pgweir answer this message of a client without a server? | `request.rs` |
//! | choose | which server, alone or behind other clients? | `../../choose/selector.rs` |
//! | prepare | what goes to the server ahead of a message? | `prepare.rs` |
//! | answer | does this message of a server need attention? | `answer.rs` |
//! | | a group is answered: whose turn is it? | `group_end.rs` |
//! | rest | a transaction is over: may the server go? | `rest.rs` |
//!
//! `concerns.rs` says whether any feature is to be asked at all: most clients use none.

pub(crate) mod answer;
pub(crate) mod concerns;
pub(crate) mod group_end;
pub(crate) mod prepare;
pub(crate) mod request;
pub(crate) mod rest;
pub(crate) mod without_server;
