//! What the pool's database says of names: which routines change sessions or ask for drawn values, and which texts only read.

pub(crate) mod query;
pub mod reach;
pub(crate) mod routines;
