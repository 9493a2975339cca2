//! A pool: the machine of one (database, user). It owns its clients and servers, and sees no other pool: what it wants of others
//! is an [`Effect`](crate::context::Effect), which the worker carries out.
//!
//! The rooms: `moves` changes the states of clients and servers; `choose` says which server a waiting client gets, and opens
//! servers; `relay` passes messages and accounts for answers; `client` and `server` hold their states, and what happens at their
//! beginning. The features each have a room: `session` (with `checks`, `startup` and `catalog`), `prepared`, `multiplex`,
//! `listen`, `sequences`, `begin`, `cluster` (what the pool does with the nodes of a cluster), `cache` (answers that are kept) and `cancel`.
//! `show` reports, `takeover` hands over to another process.

pub(crate) mod begin;
pub(crate) mod cache;
pub(crate) mod cancel;
pub(crate) mod cancel_key;
pub(crate) mod catalog;
pub(crate) mod checks;
pub(crate) mod choose;
pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod known;
pub(crate) mod listen;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod maintenance;
pub(crate) mod moves;
pub(crate) mod multiplex;
pub(crate) mod node;
pub(crate) mod numbers;
pub(crate) mod policy;
pub(crate) mod prepared;
pub(crate) mod queue;
pub(crate) mod relay;
pub(crate) mod sequences;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod startup;
pub(crate) mod state;
pub(crate) mod takeover;

use slotmap::SlotMap;

use crate::ids::{CancelId, ClientId, PoolId, ServerId};
use crate::pool::cancel::CancelConnection;
use crate::pool::client::state::Client;
pub(crate) use crate::pool::node::{Branch, Failure, ServerKind};
use crate::pool::server::state::Server;
pub(crate) use crate::pool::state::{Gate, PoolState};

/// A pool: the machine of one (database, user). It owns its clients and servers, and sees no other pool.
pub(crate) struct Pool {
    pub(crate) id: PoolId,
    pub(crate) clients: SlotMap<ClientId, Client>,
    pub(crate) servers: SlotMap<ServerId, Server>,
    /// Connections to PostgreSQL that carry a cancel request.
    pub(crate) cancels: SlotMap<CancelId, CancelConnection>,
    pub(crate) state: PoolState,
}

/// The result of looking at received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The bytes up to this number are handled. The caller must look at the rest.
    Used(usize),
    /// The rest must wait: for more bytes, a server, an answer.
    Wait,
    /// The connection is gone, and its bytes with it.
    Gone,
}

impl Pool {
    /// Returns a pool without connections.
    pub(crate) fn new(id: PoolId, state: PoolState) -> Pool {
        Pool {
            id,
            clients: SlotMap::with_key(),
            servers: SlotMap::with_key(),
            cancels: SlotMap::with_key(),
            state,
        }
    }

    /// Notes that the queue must be looked at when the tick ends.
    pub(crate) fn notice(&mut self) {
        self.state.notice();
    }

    /// Whether the pool has something to do when the tick ends.
    pub(crate) fn has_work(&self) -> bool {
        self.state.due.noticed || !self.state.due.to_resume.is_empty()
    }
}
