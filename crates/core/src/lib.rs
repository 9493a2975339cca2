//! The pooler as a deterministic machine: clients, servers, pools, the ledger, the console, timers.
//!
//! [`Machine`] is fed bytes, events and the time, and asks a [`driver::Driver`] for everything that touches
//! the world. The same machine runs over sockets (`pgweir-net`) and over a virtual network
//! (`pgweir-testkit`). Nothing in this crate may open, read, wait, start a thread, ask for the time, or keep
//! global state.
//!
//! Begin reading at [`driver`] (the border), `client.rs` and `server.rs` (the states), `machine.rs` (the
//! verbs), then the life of a client in order: `machine/greeting.rs`, `login.rs`, `from_client.rs`,
//! `handout.rs`, `from_server.rs`. [`ledger`] decides which client an answer belongs to.

mod buffer_pool;
mod cancel_key;
pub mod carried;
mod client;
pub mod client_handoff;
pub mod console;
mod context;
pub mod driver;
pub mod engine;
mod errors;
mod estimate;
mod first_ask;
mod forms;
mod group;
mod held;
pub mod ids;
pub mod inquiry;
mod known_sets;
pub mod ledger;
pub mod limits;
mod machine;
pub mod mail;
mod names;
mod notify_listener;
mod pace;
pub mod pairs;
pub mod params;
mod pins;
mod pipelined;
mod pool;
pub mod reach;
mod readings;
mod routines;
mod sequences;
mod server;
mod server_greeting;
pub mod session;
mod session_checks;
pub mod shared;
pub mod snapshot;
mod startup_checks;
mod statements;
pub mod stats;
mod texts;
pub mod trace;
mod unpooled;
mod untold;

pub use context::WriteTime;
pub use engine::Engine;
pub use machine::{Machine, Setup};
pub use shared::Shared;
