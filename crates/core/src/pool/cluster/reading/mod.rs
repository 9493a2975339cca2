//! Transactions that read at a standby (`route=auto`).
//!
//! A transaction is one if it is read-only from its BEGIN on, is not SERIALIZABLE, and its first group certainly reads or sets something
//! for the transaction. Its BEGIN is answered without a server, whether that group comes with it or later, and goes to the standby with
//! that group, which is a first try: if it fails there, both run on the primary. From then on the transaction is the standby's to its end, and `later.rs` looks at each message. With
//! `begin_undeclared=first`, one that does not say READ ONLY begins at a standby, too (`undeclared.rs`).
//!
//! **Invariant: what a standby does otherwise than the primary without an error never gets there in such a transaction.**

mod first;
mod later;
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

/// What is known of such a transaction.
#[derive(Default)]
pub(crate) struct Reading {
    /// Its BEGIN, until its first group runs.
    pub(super) begin: Vec<u8>,
    so_far: SoFar,
    /// It does not say READ ONLY.
    is_undeclared: bool,
}

/// What was sent in it so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SoFar {
    progress: Progress,
    /// Whether the unnamed statement ends the transaction, once it was prepared in it.
    unnamed_ends: Option<bool>,
    /// So many bytes of a group that is being sent are still to be.
    left: u32,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Progress {
    /// It goes on.
    #[default]
    Inside,
    /// The group that is being sent ends it.
    EndsWithGroup,
    /// What ends it was sent: what follows waits for the answer.
    Ended,
}

/// The first group of such a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FirstGroup {
    /// Its bytes, at the front of what its client sent.
    pub(super) len: u32,
    /// The fingerprint of its text, if that certainly reads.
    pub(super) statement: Option<u64>,
}

impl Pool {
    /// What a client with `route=auto` asks for.
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
