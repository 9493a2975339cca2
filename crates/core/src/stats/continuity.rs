//! What session continuity did for a pool's clients.

/// Counters since the pool exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Continuity {
    /// Servers that were brought to a client's session in the packet of its statement.
    pub replays: u64,
    /// Servers that were asked what their session holds, because their client may have changed it.
    pub audits: u64,
    /// Changes of sessions that needed no question: the same statement was asked about before.
    pub remembered: u64,
    /// Clients that began to keep their server.
    pub pins: u64,
}
