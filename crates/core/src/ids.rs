//! Names of the machine's objects. Keys carry a generation: an old key cannot reach a new object.

slotmap::new_key_type! {
    /// A client connection of this worker.
    pub struct ClientId;
    /// A server connection of this worker.
    pub struct ServerId;
    /// A pool: one (database, user) pair.
    pub struct PoolId;
    /// A connection to PostgreSQL that carries one CancelRequest.
    pub struct CancelId;
    /// A connection to a peer that carries one CancelRequest.
    pub struct ForwardId;
    /// A prepared statement's content.
    pub struct StatementId;
}
