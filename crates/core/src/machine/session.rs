//! Session continuity: a client's session is its own, although its servers change.
//!
//! What a client sends is looked at for words that may touch a session (`notes.rs`), and for the names of routines that
//! do (`catalog.rs`). When such a transaction is over, its server is asked what its session holds (`audit.rs`), unless
//! it is known what the statements do (`recall.rs`): what can move is brought to the next server with the client's next
//! statement (`settle.rs`, `replay.rs`), what can not keeps the client on its server (`pin.rs`). The statement without
//! a name that a client prepared and did not use yet goes with it, too (`unnamed.rs`); and what SQL names is there
//! under that name (`exposed_names.rs`). What a client asks for in its startup packet is tried on a server before the client is
//! let in (`startup_check.rs`), and is what its RESET goes back to (`restore.rs`). In session pooling a client has one
//! server, opened with its own startup packet where that can be (`own_server.rs`). Where a client listens, one
//! connection of its pool does so for it (`listen.rs`, `join.rs`). No guess ever counts more than what the server says;
//! and after some releases it is asked whether nothing was overlooked (`session_check.rs`).

pub(in crate::machine) use exposed_names::{Named, Sent, is_ours};
pub(in crate::machine) use restore::{has_to_restore, waits_for_restore};
pub(in crate::machine) use startup_check::Known;
pub(in crate::machine) use unnamed::uses_earlier_portal;

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
