//! Transactions that read at a standby (`route=auto`).
//!
//! A transaction is one if it is read-only from its BEGIN on, is not SERIALIZABLE, and its first group certainly reads or sets something
//! for the transaction. Its BEGIN is answered without a server, whether that group comes with it or later, and goes to the standby with
//! that group, which is a first try: if it fails there, both run on the primary. From then on the transaction is the standby's to its end, and `later.rs` looks at each message. With
//! `begin_undeclared=first`, one that does not say READ ONLY begins at a standby, too (`undeclared.rs`). `listening.rs` looks at all others
//! whose server is a standby's.
//!
//! **Invariant: what a standby does otherwise than the primary without an error never gets there in such a transaction.**

mod first;
mod later;
mod listening;
mod refusal;
mod state;
mod undeclared;

pub(crate) use first::BehindBegin;
pub(crate) use later::Later;
pub(super) use state::is_reading;

use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::cluster::route::{Asked, Asking};

use first::Declared;

/// The state of a transaction that reads at a standby.
#[derive(Default)]
pub(crate) struct Reading {
    /// The text of the transaction's BEGIN. Empty after its first group has run.
    pub(super) begin: Vec<u8>,
    so_far: SoFar,
    /// Whether the transaction was begun without READ ONLY (`begin_undeclared=first`).
    is_undeclared: bool,
}

/// The state of such a transaction after the bytes that were sent in it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SoFar {
    progress: Progress,
    /// Whether the unnamed statement ends the transaction; `None` if the transaction has not prepared it.
    unnamed_ends: Option<bool>,
    /// Number of bytes of the current group that are still to be sent.
    left: u32,
}

/// How far the transaction has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Progress {
    /// The transaction goes on.
    #[default]
    Inside,
    /// The group that is being sent ends the transaction.
    EndsWithGroup,
    /// The statement that ends the transaction was sent. Later bytes of the client wait for its answer.
    Ended,
}

/// The first group of such a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FirstGroup {
    /// Length of the group in bytes, at the front of the client's inbox.
    pub(super) len: u32,
    /// The fingerprint of the group's text if that certainly only reads; `None` if the group only sets something for its transaction.
    pub(super) statement: Option<u64>,
}

impl Pool {
    /// Returns what a client with `route=auto` asks for: a read, a transaction that a standby may run, or anything else.
    pub(super) fn asked_for(&mut self, env: &mut Env, id: ClientId, asking: Asking<'_>) -> Asked {
        let Some(begin) = asking.begin else {
            return self.state.certain_read(env, asking.group).map_or(Asked::Other, Asked::Read);
        };
        let is_undeclared = self.begins_reading(env, id, begin) == Some(Declared::Nothing);
        let Some(first) = self.first_group(env, id, begin, asking.bytes) else { return Asked::Other };
        if let Some(routing) = self.routing_mut(id) {
            routing.reading = Reading { begin: begin.to_vec(), so_far: SoFar::default(), is_undeclared };
        }
        Asked::Transaction(first)
    }
}
