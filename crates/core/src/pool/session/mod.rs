//! Session continuity: a client's session is its own, although its servers change.
//!
//! pgweir looks in a client's messages for words that may touch a session (`notes.rs`), and for the names of routines that do
//! (`../catalog`). When such a transaction is over, its server is asked for the contents of its session (`audit.rs`), unless the
//! effect of the statements is known (`recall.rs`). State that can move is brought to the next server with the client's next
//! statement (`sync.rs`, `replay.rs`); state that cannot move keeps the client on its server (`pin.rs`). A client's RESET goes
//! back to the parameters of its startup packet (`restore.rs`). No guess ever counts more than the server's answer; and after some
//! releases the server is asked whether nothing was overlooked (`../checks`).

pub(crate) mod audit;
pub mod content;
pub(crate) mod known_sets;
pub(crate) mod notes;
pub mod pairs;
pub mod params;
pub(crate) mod partial_text;
pub(crate) mod pin;
pub(crate) mod pins;
pub(crate) mod recall;
pub(crate) mod replay;
pub(crate) mod restore;
pub(crate) mod sync;
