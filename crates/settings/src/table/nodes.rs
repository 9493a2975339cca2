//! The keys of `[nodes]`: `name = host=... port=...`.

use super::{Kind, settings};

settings! {
    /// One PostgreSQL server of a cluster. For a node that a cluster discovers the line has its options, under the name that the
    /// source gives it.
    struct NodeOptions, NODE_ROWS;
    group "Nodes" {
        /// Where the server is: a host name, an address, or the directory of a unix socket. A node that a cluster lists needs it;
        /// the address of a discovered node comes from the source.
        host: String = "", Kind::Text, Reload, Ours, InEffect;
        /// The server's port.
        port: u16 = "5432", Kind::Count(1, 65535), Reload, Ours, InEffect;
        /// The node's part of the reads, in proportion to those of the other standbys. 0: it gets none.
        weight: u32 = "1", Kind::Count(0, 1000), Reload, Ours, InEffect;
        /// Where the node is, in a word of yours. Reads go to standbys whose `zone` is the global one first.
        zone: String = "", Kind::Text, Reload, Ours, InEffect;
        /// 0: pgweir watches the node and sends no client to it, until `ATTACH NODE`.
        attached: bool = "1", Kind::Bool, Reload, Ours, InEffect;
    }
}
