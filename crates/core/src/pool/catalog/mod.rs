//! What the pool's database says of names: which of them lead to code that changes sessions or asks for drawn values, and which texts
//! only read. One question for the graph of its objects answers both, and tells whether columns have other types than before.

pub(crate) mod columns;
mod graph;
mod names;
mod question;

pub(crate) mod query;
pub mod reach;
pub(crate) mod routines;
