//! Scripted conversations with the machine: what a client sends, what the server gets and answers, what the client gets.

#[path = "../rig/mod.rs"]
mod rig;

mod admin;
mod allocations;
mod auth_query;
mod basics;
mod begin;
mod cancel;
mod catalog;
mod chaos;
mod cluster_reads;
mod clusters;
mod connect_query;
mod copy;
mod ends;
mod hba;
mod hosts;
mod known_answers;
mod listening;
mod locks;
mod login;
mod multiplexing;
mod names;
mod outdated;
mod own_names;
mod own_servers;
mod params;
mod peers;
mod pipelines;
mod pools;
mod prepared;
mod pressure;
mod readings;
mod replay;
mod replication;
mod security;
mod sequences;
mod session_checks;
mod sessions;
mod statements;
mod streaming;
mod takeover;
mod timeouts;
mod unnamed;
mod workers;
