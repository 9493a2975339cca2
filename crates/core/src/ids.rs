//! Names of the machine's objects. Keys carry a generation: an old key cannot reach a new object.

slotmap::new_key_type! {
    /// A client of this worker that is in no pool: it logs in, or talks to the console.
    pub struct UnpooledId;
    /// A client of a pool.
    pub struct ClientId;
    /// A server connection of a pool.
    pub struct ServerId;
    /// A pool: one (database, user) pair.
    pub struct PoolId;
    /// A connection to PostgreSQL that carries one CancelRequest.
    pub struct CancelId;
    /// The watch of a node of a cluster.
    pub struct WatchId;
    /// A database whose changes are followed.
    pub struct SubscriptionId;
    /// A connection to a peer that carries one CancelRequest.
    pub struct ForwardId;
    /// A prepared statement's content.
    pub struct StatementId;
}
