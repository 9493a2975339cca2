//! The verification of servers that the control plane connects to. The data plane has the rules, which are
//! passed in, so that a directory or Patroni may have the same certificates as PostgreSQL.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::CertificateDer;
use rustls::server::VerifierBuilderError;

/// A function that makes a verifier of server certificates with these authorities.
pub type VerifyBy =
    fn(Vec<CertificateDer<'static>>) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError>;
