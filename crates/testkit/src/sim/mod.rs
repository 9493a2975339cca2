//! The simulator: machines, a model PostgreSQL, model clients and a virtual network, all from one seed.
//!
//! [`plan`] makes a run of a seed: configuration, behaviour of network and servers, faults, and what every client will do.
//! [`world`] works it off in virtual time. Each client holds its answers against a private model of PostgreSQL
//! ([`client::oracle`]); [`checks`] and [`reasons`] watch limits, sharing, cancels and disconnections; [`world`] watches that no client is
//! forgotten and nothing is left over. [`report`] runs seeds and tells what came of them. A failing seed repeats exactly.

pub mod check;
pub mod client;
pub mod context;
pub mod driver;
pub mod locks;
pub mod machine;
pub mod model;
pub mod network;
pub mod operator;
pub mod plan;
pub mod report;
pub mod rng;
pub mod subject;
pub mod trace;
mod turn;
pub mod world;
