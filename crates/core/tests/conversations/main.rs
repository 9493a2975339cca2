//! Scripted conversations with the machine: what a client sends, what the server gets and answers, what the client gets.

#[path = "../rig/mod.rs"]
mod rig;

mod basics;
mod cancel;
mod copy;
mod params;
mod pools;
mod prepared;
mod pressure;
mod replication;
mod streaming;
mod timeouts;
mod workers;
