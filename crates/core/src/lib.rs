//! The pooler as a deterministic machine: clients, servers, pools, the ledger, the console, timers.
//!
//! [`Machine`] gets bytes, events and the time, and asks a [`driver::Driver`] for everything that touches the world. The same machine runs
//! over sockets (`pgweir-net`) and over a virtual network (`pgweir-testkit`). Nothing in this crate may open, read, wait, start a thread,
//! ask for the time, or keep global state.
//!
//! Begin reading at [`driver`] (the border), `worker.rs` (the verbs) and `pool.rs` (its rooms), then the life of a client in
//! order: `worker/login`, `pool/client/arrival.rs`, `pool/relay/moments/request.rs`, `pool/choose`, `pool/relay/receive.rs`,
//! `pool/moves`. [`ledger`] decides which client an answer belongs to.

mod buffer_pool;
pub mod client_handoff;
mod cluster;
mod context;
pub mod driver;
pub mod engine;
mod errors;
pub mod ids;
pub mod limits;
pub mod mail;
mod pool;
pub mod shared;
pub mod stats;
mod worker;

pub use cluster::{source, view, vip};
pub use context::{Suspicion, WriteTime};
pub use engine::Engine;
pub use pool::catalog::reach;
pub use pool::relay::{ledger, own_settings};
pub use pool::session::content as session;
pub use pool::session::{pairs, params};
pub use pool::takeover::carried;
pub use shared::{Shared, places};
pub use stats::{snapshot, trace};
pub use worker::console;
pub use worker::login::inquiry;
pub use worker::{Machine, Setup};
