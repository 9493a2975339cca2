//! Tests of the whole loop over loopback, with toy machines.

mod certs;
mod plain;
mod sockets;
mod tls_clients;
mod tls_servers;
mod toy;
