//! Session continuity: a client's session is its own, although its servers change.
//!
//! pgweir looks in a client's messages for words that may touch a session (`notes.rs`), and for the names of routines that do
//! (`catalog.rs`). When such a transaction is over, its server is asked for the contents of its session (`audit.rs`), unless
//! the effect of the statements is known (`recall.rs`). State that can move is brought to the next server with the client's
//! next statement (`settle.rs`, `replay.rs`); state that cannot move keeps the client on its server (`pin.rs`). The statement
//! without a name that a client prepared and did not use yet goes with it, too (`unnamed.rs`); and statements that SQL names
//! are there under that name (`exposed_names.rs`). The parameters of a client's startup packet are tried on a server before the
//! client is let in (`startup_check.rs`), and its RESET goes back to them (`restore.rs`). In session pooling a client has one
//! server, opened with its own startup packet if possible (`own_server.rs`). If a client listens, one connection of its pool
//! does so for it (`listen.rs`, `join.rs`). No guess ever counts more than the server's answer; and after some releases it is
//! asked whether nothing was overlooked (`session_check.rs`).

pub(crate) use exposed_names::{Named, Sent, is_ours};
pub(crate) use restore::{has_to_restore, waits_for_restore};
pub(crate) use startup_check::Known;
pub(crate) use unnamed::uses_earlier_portal;

mod audit;
mod catalog;
mod explain;
mod exposed_names;
mod join;
mod listen;
mod notes;
mod own_server;
mod pin;
mod recall;
mod replay;
mod restore;
mod sequences;
mod session_check;
mod settle;
mod startup_check;
mod unnamed;
