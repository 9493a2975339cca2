//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL implements it: keys, stored secrets, and the messages of
//! both sides.
//!
//! The exchanges themselves are in `guard` and `prover`.

mod keys;
pub(crate) mod message;
mod prep;
mod stored;

pub use keys::ScramKeys;
pub use stored::ScramSecret;

/// The mechanism without channel binding, and the prefix of stored secrets.
pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";

/// The mechanism whose proof covers the server's certificate.
pub(crate) const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";
