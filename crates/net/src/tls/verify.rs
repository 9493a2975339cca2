//! Decides which certificates are accepted: PgBouncer's modes on top of rustls' own verification.
//!
//! Three things differ from rustls. A leaf certificate may be of X.509 version 1 (see [`super::version1`]). A
//! certificate that is itself listed among the authorities is accepted (a self-signed server certificate used
//! as its own root is common, and OpenSSL accepts it). And a certificate without an alternative name is
//! matched by its common name, as in libpq and PgBouncer.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use crate::tls::names;
use crate::tls::version1::{as_version_3, for_chains};

/// Implements the check that the certificate's owner signed the handshake, which is left to rustls. Its
/// traits for servers and clients have the same three methods.
macro_rules! signatures_by_inner {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.inner.verify_tls12_signature(message, &as_version_3(certificate), signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.inner.verify_tls13_signature(message, &as_version_3(certificate), signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.inner.supported_verify_schemes()
        }
    };
}

/// The certificates of the configured authorities, byte for byte.
#[derive(Clone, Debug)]
pub(crate) struct Pinned(Vec<CertificateDer<'static>>);

impl Pinned {
    pub(crate) fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self(certificates)
    }

    /// Returns `Some` if the certificate is one of ours; then only its dates are checked.
    fn accepts(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Option<Result<(), Error>> {
        self.0.iter().any(|ours| ours == certificate).then(|| in_time(certificate, now))
    }
}

fn in_time(certificate: &[u8], now: UnixTime) -> Result<(), Error> {
    let facts = names::read(certificate).ok_or(CertificateError::BadEncoding)?;
    let (from_s, to_s) = facts.validity_s.ok_or(CertificateError::BadEncoding)?;
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now_s < from_s {
        return Err(CertificateError::NotValidYet.into());
    }
    if now_s > to_s {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// rsa_pss_pss_sha256, rsa_pss_pss_sha384, rsa_pss_pss_sha512 (RFC 8446 section 4.2.3): the schemes of keys
/// for RSASSA-PSS alone, which rustls cannot check.
const RSA_PSS_KEYS: [u16; 3] = [0x0809, 0x080a, 0x080b];

/// `sslmode` allow, prefer and require: the certificate is not checked, so its signature of the handshake
/// would prove nothing either.
#[derive(Debug)]
pub(crate) struct AcceptAnything(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = self.0.signature_verification_algorithms.supported_schemes();
        known.into_iter().chain(RSA_PSS_KEYS.map(SignatureScheme::from)).collect()
    }
}

/// Returns the verification of server certificates by these authorities and by the host's name, as with
/// `server_tls_sslmode=verify-full`: for connections of the control plane.
///
/// # Errors
///
/// None of the authorities' certificates is usable.
pub fn verified_by(
    authorities: Vec<CertificateDer<'static>>,
) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
    let mut roots = RootCertStore::empty();
    // The system's authorities may include certificates that rustls cannot read.
    roots.add_parsable_certificates(authorities.iter().cloned());
    let provider = for_chains(&aws_lc_rs::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build()?;
    Ok(Arc::new(VerifyServer { inner, pinned: Pinned::new(authorities), check_name: true }))
}

/// `sslmode` verify-ca and verify-full.
#[derive(Debug)]
pub(crate) struct VerifyServer {
    pub(crate) inner: Arc<WebPkiServerVerifier>,
    pub(crate) pinned: Pinned,
    /// `true` for verify-full: the certificate has to be for the host's name.
    pub(crate) check_name: bool,
}

impl VerifyServer {
    fn check_pinned_name(
        &self,
        certificate: &CertificateDer<'_>,
        host: &ServerName<'_>,
    ) -> Result<(), Error> {
        if !self.check_name {
            return Ok(());
        }
        match verify_server_name(&ParsedCertificate::try_from(&*as_version_3(certificate))?, host) {
            Err(e) if is_about_name(&e) && matches_common_name(certificate, host) => Ok(()),
            result => result,
        }
    }
}

impl ServerCertVerifier for VerifyServer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(pinned) = self.pinned.accepts(certificate, now) {
            pinned?;
            self.check_pinned_name(certificate, host)?;
            return Ok(ServerCertVerified::assertion());
        }
        match self.inner.verify_server_cert(&as_version_3(certificate), intermediates, host, ocsp, now) {
            // rustls checks the name last, so the chain is good.
            Err(e) if is_about_name(&e) => {
                if self.check_name && !matches_common_name(certificate, host) {
                    return Err(e);
                }
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    signatures_by_inner!();
}

fn is_about_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

/// Returns whether the common name matches. It counts only if there is no alternative name (RFC 6125, as in
/// libpq).
fn matches_common_name(certificate: &[u8], host: &ServerName<'_>) -> bool {
    let Some(facts) = names::read(certificate) else { return false };
    let Some(name) = facts.common_name else { return false };
    if !facts.dns_names.is_empty() || facts.has_addresses {
        return false;
    }
    match host {
        ServerName::DnsName(host) => matches_pattern(&name, host.as_ref()),
        ServerName::IpAddress(address) => name == std::net::IpAddr::from(*address).to_string(),
        _ => false,
    }
}

/// Returns whether a host matches a pattern. A `*` matches one whole label, the first, and two more labels
/// have to follow.
fn matches_pattern(pattern: &str, host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let Some(suffix) = pattern.strip_prefix("*.") else { return pattern.eq_ignore_ascii_case(host) };
    let Some((label, rest)) = host.split_once('.') else { return false };
    !label.is_empty() && suffix.contains('.') && suffix.eq_ignore_ascii_case(rest)
}

/// The verification of client certificates: rustls' own, and certificates that are listed themselves.
#[derive(Debug)]
pub(crate) struct VerifyClient {
    pub(crate) inner: Arc<dyn ClientCertVerifier>,
    pub(crate) pinned: Pinned,
}

impl ClientCertVerifier for VerifyClient {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(pinned) = self.pinned.accepts(certificate, now) {
            return pinned.map(|()| ClientCertVerified::assertion());
        }
        self.inner.verify_client_cert(&as_version_3(certificate), intermediates, now)
    }

    signatures_by_inner!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_one_label() {
        assert!(matches_pattern("DB.example", "db.EXAMPLE"));
        assert!(matches_pattern("*.a.example", "x.a.example"));
        assert!(!matches_pattern("*.a.example", "x.y.a.example"));
        assert!(!matches_pattern("*.a.example", "a.example"));
        assert!(!matches_pattern("*.a.example", ".a.example"));
        assert!(!matches_pattern("*.example", "a.example"));
        assert!(!matches_pattern("*", "example"));
    }
}
