//! The keys of `[peers]`: `id = host=... port=...`.

use super::{Kind, settings};

settings! {
    /// Another process of the same group, to which cancel requests that carry its id are forwarded.
    struct Peer, PEER_ROWS;
    extra {
        /// The peer's id, 1 to 65535.
        id: u32;
    }
    group "Peers" {
        /// The peer's address: a host, or the directory of its unix socket. It is required.
        host: String = "", Kind::Text, Reload, PgBouncer, InEffect;
        /// The peer's port.
        port: u16 = "6432", Kind::Count(1, 65535), Reload, PgBouncer, InEffect;
        /// The maximum number of cancel requests that are forwarded to this peer at once; `default_pool_size` when
        /// it is not set.
        pool_size: Option<u32> = NULL, Kind::OwnSize, Reload, PgBouncer, InEffect;
    }
}

/// The highest id that a peer can have.
pub(crate) const PEER_ID_MAX: u32 = 65535;
