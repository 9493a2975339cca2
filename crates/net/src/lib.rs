//! Event loop, sockets and TLS: drives the machine of `pgweir-core` with the real world.
//!
//! One [`Workers`] runs N threads; each owns one event loop, one machine ([`Engine`](pgweir_core::Engine)), and the sockets of its clients
//! and servers. A tick is: wait, read every ready socket and feed the machine, let it hand out servers, write what
//! collected, one write per connection. This crate knows bytes and sockets; it must never know what the bytes mean.
#![allow(
    clippy::disallowed_methods,
    reason = "this is where the machine meets the world: the clock is read and the threads are started here"
)]

mod clock;
mod connection;
mod listening;
mod options;
pub mod pam;
mod resolve;
mod scheduling;
mod sys;
mod takeover;
mod tls;
mod worker;

#[cfg(test)]
mod tests;

pub use listening::activation::Passed;
pub use listening::listen::{ListenError, ListenSettings, Listeners, open_listeners};
pub use options::SocketOptions;
pub use resolve::addresses_of;
pub use socket2::Socket;
pub use takeover::{Arrivals, Giver, GivingError, Leftovers, Takeover, TakeoverError};
pub use tls::{
    Pems, ServerTls, Side, TlsConfigs, TlsSetupError, certificate_end_point, own_certificate, verified_by,
};
pub use worker::io::DEEP_BACKLOG_BYTES;
pub use worker::workers::{Log, LogSink, Post, Setup, WorkerLoad, Workers};
