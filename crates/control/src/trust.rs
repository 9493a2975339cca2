//! How the control plane verifies the servers that it connects to. The data plane has the rules; they come from above, so that a
//! certificate that PostgreSQL may have is one that a directory or Patroni may have.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::CertificateDer;
use rustls::server::VerifierBuilderError;

/// Makes what verifies certificates of servers by these authorities.
pub type VerifyBy =
    fn(Vec<CertificateDer<'static>>) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError>;
