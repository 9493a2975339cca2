//! TLS by rustls: sessions over bytes, and configurations built from certificates and settings. The rest of
//! the crate uses rustls through this module only.

mod names;
mod setup;
pub(crate) mod stream;
mod suites;
mod verify;
mod version1;

#[cfg(test)]
mod tests;

pub use names::end_point as certificate_end_point;
pub use setup::{Pems, ServerTls, Side, TlsConfigs, TlsSetupError};
pub use verify::verified_by;
pub use version1::own_certificate;

/// The protocol that PostgreSQL registered for ALPN.
pub(crate) const ALPN_POSTGRESQL: &[u8] = b"postgresql";
