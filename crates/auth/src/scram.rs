//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL speaks it: keys, stored secrets, and the messages of both
//! sides.
//!
//! The exchanges themselves are with the party that runs them: `guard` and `prover`.

mod keys;
pub(crate) mod message;
mod prep;
mod stored;

pub use keys::ScramKeys;
pub use stored::ScramSecret;

/// The only mechanism spoken here. Its sibling with channel binding, `-PLUS`, is neither offered nor chosen.
pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
