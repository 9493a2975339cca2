//! The keys of `[nodes]`: `name = host=... port=...`.

use super::{Kind, settings};

settings! {
    /// One PostgreSQL server of a cluster. For a node that a cluster discovers the line has its options, under the name that the
    /// source gives it.
    struct NodeOptions, NODE_ROWS;
    group "Nodes" {
        /// The server's address: a host name, an address, or the directory of a unix socket. A node that a
        /// cluster lists needs it; the address of a discovered node comes from the source.
        host: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The server's port.
        port: u16 = "5432", Kind::Count(1, 65535), Reload, Ours, InEffect;
        /// The node's share of the reads, in proportion to the weights of the other standbys. With 0 it gets
        /// none.
        weight: u32 = "1", Kind::Count(0, 1000), Reload, Ours, InEffect;
        /// The location of the node, in a word of your choice. Reads go first to standbys whose `zone` is the
        /// global one.
        zone: String = "", Kind::Text, Reload, Ours, InEffect;
        /// Sends clients to the node. With 0 pgweir watches the node and sends no client to it, until `ATTACH
        /// NODE`.
        attached: bool = "1", Kind::Bool, Reload, Ours, InEffect;
    }
}
