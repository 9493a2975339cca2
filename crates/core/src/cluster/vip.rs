//! The state of the virtual address (`vip`), for SHOW VIP. The control plane decides which pooler has the address.

/// A line of SHOW VIP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VipReport {
    /// The address with its prefix length.
    pub address: String,
    /// The network interface; `None` if none is known.
    pub interface: Option<String>,
    /// Whether this pooler has the address: `holds`, `standby`, `given away` or `unable`.
    pub state: &'static str,
    /// The lease as etcd told it last: `own`, `other`, `free` or `unknown`.
    pub lease: &'static str,
    /// The pooler that has the lease, by the address of its HTTP server; `None` if no pooler has it, or if etcd does not answer.
    pub holder: Option<String>,
    /// The reason why this pooler cannot take the address, or why etcd cannot be asked.
    pub error: Option<String>,
}
