//! A self-signed certificate for clients, for starts whose operator mounts none.
//!
//! This module must not write files: its caller decides where they are and who may read them.

use rcgen::{CertificateParams, DistinguishedName, DnType, Error, KeyPair};

/// The common name of the certificate. No client can check it: the certificate has no authority.
const NAME: &str = "pgweir";

/// Makes a key pair (ECDSA on P-256, which every OpenSSL since 1.0 accepts) and a certificate for it. Returns the
/// certificate and the private key, both as PEM text.
pub(super) fn self_signed() -> Result<(String, String), Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    // The validity stays rcgen's, which never ends in practice: a pooler that runs for years must not begin to
    // refuse clients.
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_has_a_key_of_its_own() {
        let (certificate, key) = self_signed().expect("it is made");
        assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_ne!(self_signed().expect("it is made").1, key);
    }
}
