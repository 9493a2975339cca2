//! The simulator.

pub mod client;
pub mod model;
pub mod proto;
pub mod rng;
