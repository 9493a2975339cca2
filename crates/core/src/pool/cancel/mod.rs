//! CancelRequest: a cancel reaches only the statement it was meant for.
//!
//! A cancel is a separate connection to PostgreSQL, which signals the backend and closes it. Until that is over the signal may
//! still arrive, so the server that it is aimed at is given to no other client meanwhile (`ServerState::HeldForCancel`). If the
//! client has no server any more when the cancel's connection is up, the cancel is not sent at all. A client that waits for a
//! server is told here that its statement is cancelled.

//!
//! `queue.rs` has those that wait, `connection.rs` the life of a cancel's connection.

pub(crate) mod connection;
pub(crate) mod queue;

use crate::driver::{ConnId, WorkerId};
use crate::ids::{ClientId, ServerId, UnpooledId};

/// The connection that a cancel request came by. It is closed when the cancel is over: a client may rely on that its next statement is not
/// hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Requester {
    /// A connection of this worker.
    Here(UnpooledId),
    /// A connection of another worker, which gets [`Mail::CancelOver`](crate::mail::Mail::CancelOver).
    At(WorkerId, UnpooledId),
    /// No connection waits: pgweir itself cancels the statement of a client that has left, or the request came to another process, which has
    /// closed the connection already.
    Absent,
}

/// A connection to PostgreSQL for one cancel.
pub(crate) struct CancelConnection {
    pub(crate) conn: ConnId,
    requester: Requester,
    /// The client that runs the statement.
    target: ClientId,
    pub(crate) server: ServerId,
    stage: Stage,
    pub(crate) since_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Dialing,
    SecuringTls,
    /// The server is held from here on.
    Sent,
}

/// A cancel that waits for its turn: a pool has at most twice its size of cancel connections.
pub(crate) struct WaitingCancel {
    pub(crate) requester: Requester,
    pub(crate) target: ClientId,
    pub(crate) since_us: u64,
}
