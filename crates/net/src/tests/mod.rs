//! Tests of the whole loop over loopback, with toy machines.

pub(crate) mod certs;
mod plain;
mod sockets;
mod tls_clients;
mod tls_servers;
pub(crate) mod toy;
