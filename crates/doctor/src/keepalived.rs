//! keepalived's configuration for two poolers that share an address: [`Pair`] writes it, [`inspect`] reads an
//! existing one and reports its faults.

mod conf;
mod judge;
mod syntax;
mod write;

pub use judge::inspect;
pub use syntax::SyntaxError;
pub use write::{Machine, Pair};
