//! Leaf certificates of X.509 version 1, as `openssl x509 -req` makes them without `-extfile`: OpenSSL
//! accepts them, rustls reads only version 3.
//!
//! Such a certificate is given to rustls in the equivalent form of version 3: with the version's number,
//! without extensions. Without extensions it is not an authority, so it counts as a leaf only. The signature
//! of its issuer is checked over the bytes that were signed. Nothing here decides whether a certificate is
//! good; a certificate of another form is passed on unchanged.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, InconsistentKeys};

use crate::tls::names::{Der, SEQUENCE};

const INTEGER: u8 = 0x02;
/// `[0] EXPLICIT INTEGER 2`: version 3, the first field of a TBSCertificate (RFC 5280 section 4.1).
const VERSION_3: [u8; 5] = [0xa0, 3, INTEGER, 1, 2];
/// The fields of version 1: serial number, signature algorithm, issuer, validity, subject, public key.
const VERSION_1_FIELDS: [u8; 6] = [INTEGER, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE, SEQUENCE];

/// Returns a certificate of version 1 in the form of version 3, and any other unchanged.
pub(crate) fn as_version_3<'a>(certificate: &'a CertificateDer<'a>) -> Cow<'a, CertificateDer<'a>> {
    match convert(certificate) {
        Some(converted) => Cow::Owned(converted.into()),
        None => Cow::Borrowed(certificate),
    }
}

fn convert(certificate: &[u8]) -> Option<Vec<u8>> {
    let mut outer = Der(certificate);
    let mut parts = Der(outer.take(SEQUENCE)?);
    let body = parts.take(SEQUENCE)?;
    if !outer.is_at_end() || !is_version_1(body) {
        return None;
    }
    let body = sequence(&[&VERSION_3, body]);
    Some(sequence(&[&body, parts.rest()]))
}

fn is_version_1(body: &[u8]) -> bool {
    let mut fields = Der(body);
    let has = |wanted: u8| fields.take(wanted).is_some();
    VERSION_1_FIELDS.into_iter().all(has) && fields.is_at_end()
}

/// Returns the bytes that were signed, for a body in the form of version 3 that may be a converted one.
fn signed_bytes(body: &[u8]) -> Option<Vec<u8>> {
    let mut outer = Der(body);
    let body = outer.take(SEQUENCE)?.strip_prefix(&VERSION_3)?;
    (outer.is_at_end() && is_version_1(body)).then(|| sequence(&[body]))
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut out = vec![SEQUENCE];
    match u8::try_from(length) {
        Ok(length @ 0..=0x7f) => out.push(length),
        _ => {
            let digits = length.to_be_bytes();
            let digits = &digits[digits.iter().take_while(|digit| **digit == 0).count()..];
            out.push(0x80 | u8::try_from(digits.len()).expect("a length has eight bytes at most"));
            out.extend(digits);
        }
    }
    out.extend(parts.iter().copied().flatten());
    out
}

/// Returns the provider for verifying chains, which also accepts an issuer's signature over the version 1
/// form of a certificate.
pub(crate) fn for_chains(provider: &CryptoProvider) -> Arc<CryptoProvider> {
    let mut provider = provider.clone();
    let WebPkiSupportedAlgorithms { mapping, .. } = provider.signature_verification_algorithms;
    provider.signature_verification_algorithms = WebPkiSupportedAlgorithms { all: &ALGORITHMS, mapping };
    Arc::new(provider)
}

static ALGORITHMS: LazyLock<Vec<&'static dyn SignatureVerificationAlgorithm>> = LazyLock::new(|| {
    let all = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    all.iter().map(|own| &*Box::leak(Box::new(OfEitherForm(*own))) as _).collect()
});

#[derive(Debug)]
struct OfEitherForm(&'static dyn SignatureVerificationAlgorithm);

impl SignatureVerificationAlgorithm for OfEitherForm {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        self.0.verify_signature(public_key, message, signature).or_else(|error| {
            let signed = signed_bytes(message).ok_or(error)?;
            self.0.verify_signature(public_key, &signed, signature)
        })
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.0.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.0.signature_alg_id()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

/// Returns our own certificate and its key, to be presented.
///
/// # Errors
///
/// The key is unusable, or does not belong to the certificate.
pub fn own_certificate(
    provider: &CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<SingleCertAndKey>, Error> {
    let key = provider.key_provider.load_private_key(key)?;
    let leaf = chain.first().ok_or(Error::NoCertificatesPresented)?;
    match CertifiedKey::new(vec![as_version_3(leaf).into_owned().into_owned()], Arc::clone(&key)).keys_match()
    {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(error) => return Err(error),
    }
    Ok(Arc::new(CertifiedKey::new(chain, key).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = &[SEQUENCE, 0, 0x03, 2, 0, 7];

    fn body(fields: &[&[u8]]) -> Vec<u8> {
        sequence(fields)
    }

    /// The fields of version 1, with a subject of this length.
    fn fields(subject: usize) -> Vec<u8> {
        let subject = sequence(&[&vec![1; subject]]);
        [&[INTEGER, 1, 5][..], &[SEQUENCE, 0], &[SEQUENCE, 0], &[SEQUENCE, 0], &subject, &[SEQUENCE, 0]]
            .concat()
    }

    #[test]
    fn version_1_becomes_version_3_and_its_signature_is_over_version_1() {
        for length in [0, 100, 127, 128, 255, 256, 65_535, 65_536] {
            let signed = body(&[&fields(length)]);
            let converted = convert(&sequence(&[&signed, SIGNATURE])).expect("of version 1");
            let mut parts = Der(Der(&converted).take(SEQUENCE).expect("a certificate"));
            let content = parts.take(SEQUENCE).expect("a body");
            assert!(content.starts_with(&VERSION_3) && content.ends_with(&fields(length)));
            assert_eq!(parts.rest(), SIGNATURE);
            assert_eq!(signed_bytes(&sequence(&[content])), Some(signed), "{length}");
            assert_eq!(convert(&converted), None, "it is of version 3");
        }
    }

    #[test]
    fn other_forms_stay_as_they_are() {
        let extensions = [0xa3, 2, SEQUENCE, 0];
        let bad: [&[&[u8]]; 5] = [
            &[&VERSION_3, &fields(3)],
            &[&[0xa0, 3, INTEGER, 1, 1], &fields(3)],
            &[&fields(3), &extensions],
            &[&fields(3), &[0]],
            &[&fields(3)[3..]],
        ];
        for parts in bad {
            assert_eq!(convert(&sequence(&[&body(parts), SIGNATURE])), None, "{parts:?}");
        }
        let good = sequence(&[&body(&[&fields(3)]), SIGNATURE]);
        assert_eq!(convert(&[&good[..], &[0]].concat()), None, "something follows");
        // What has extensions was signed as it is.
        assert_eq!(signed_bytes(&body(&[&VERSION_3, &fields(3), &extensions])), None);
        assert_eq!(signed_bytes(&body(&[&fields(3)])), None);
    }

    #[test]
    fn no_damage_does_harm() {
        let good = sequence(&[&body(&[&fields(9)]), SIGNATURE]);
        for length in 0..good.len() {
            let _ = (convert(&good[..length]), signed_bytes(&good[length..]));
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = (convert(&bad), signed_bytes(&bad));
            }
        }
    }
}
