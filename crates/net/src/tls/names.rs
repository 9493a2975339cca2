//! Names and dates in a certificate, read from its DER by a small bounded parser (RFC 5280).
//!
//! The check is used on certificates that were verified, or that are compared byte for byte with configured ones.
//! Still, for any bytes its worst result must be "nothing found".

use aws_lc_rs::digest;

/// The maximum number of names taken from one certificate.
const NAMES_MAX: usize = 64;

const OID_COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const OID_SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

pub(super) const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const OCTET_STRING: u8 = 0x04;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The facts that a certificate states about its owner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Facts {
    /// The subject's first common name.
    pub(crate) common_name: Option<String>,
    /// DNS names of the subject alternative name.
    pub(crate) dns_names: Vec<String>,
    /// `true` if the subject alternative name has IP addresses.
    pub(crate) has_addresses: bool,
    /// The start and the end of the validity, in seconds since 1970; `None` if they cannot be read.
    pub(crate) validity_s: Option<(i64, i64)>,
}

/// Returns the common name and the DNS names, in this order.
pub(crate) fn of(certificate: &[u8]) -> Vec<String> {
    let facts = read(certificate).unwrap_or_default();
    facts.common_name.into_iter().chain(facts.dns_names).collect()
}

/// Reads a certificate. Returns `None` if it is not one.
pub(crate) fn read(certificate: &[u8]) -> Option<Facts> {
    let mut outer = Der(certificate);
    let mut certificate = Der(outer.take(SEQUENCE)?);
    let mut body = Der(certificate.take(SEQUENCE)?);
    let (mut tag, mut content) = body.next()?;
    if tag == 0xa0 {
        // This was the version; the serial number follows.
        (tag, content) = body.next()?;
    }
    if tag != 0x02 || content.is_empty() {
        return None;
    }
    body.take(SEQUENCE)?; // signature algorithm
    body.take(SEQUENCE)?; // issuer
    let validity_s = validity(body.take(SEQUENCE)?);
    let common_name = common_name(body.take(SEQUENCE)?);
    body.take(SEQUENCE)?; // public key
    let mut facts = Facts { common_name, validity_s, ..Facts::default() };
    while let Some((tag, content)) = body.next() {
        if tag == 0xa3 {
            read_extensions(content, &mut facts);
        }
    }
    Some(facts)
}

/// Returns the hash of a certificate to which a login over its session can be bound (`tls-server-end-point`,
/// RFC 5929 section 4.1): with the hash function of the certificate's signature, or SHA-256 if that is
/// weaker. `None` if the signature has no hash function, or an unknown one.
#[must_use]
pub fn end_point(certificate: &[u8]) -> Option<Box<[u8]>> {
    let mut parts = Der(Der(certificate).take(SEQUENCE)?);
    parts.take(SEQUENCE)?;
    let mut algorithm = Der(parts.take(SEQUENCE)?);
    let name = algorithm.take(OID)?;
    let function = match SIGNATURES.iter().find(|(known, _)| *known == name) {
        Some((_, function)) => function,
        None if name == OID_RSA_PSS => {
            // RSASSA-PSS-params ::= SEQUENCE { hashAlgorithm [0] AlgorithmIdentifier DEFAULT sha1, ... }
            let mut params = Der(algorithm.take(SEQUENCE)?);
            let hash = Der(Der(params.take(0xa0)?).take(SEQUENCE)?).take(OID)?;
            HASHES.iter().find(|(known, _)| *known == hash)?.1
        }
        None => return None,
    };
    Some(digest::digest(function, certificate).as_ref().into())
}

const OID_RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a];

/// Signature algorithms, each with the hash function that counts (RFC 8017, RFC 5758).
const SIGNATURES: [(&[u8], &digest::Algorithm); 9] = [
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x04], &digest::SHA256), // md5WithRSAEncryption
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x05], &digest::SHA256), // sha1WithRSAEncryption
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b], &digest::SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0c], &digest::SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0d], &digest::SHA512),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01], &digest::SHA256), // ecdsa-with-SHA1
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], &digest::SHA256),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], &digest::SHA384),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04], &digest::SHA512),
];

/// Hash functions alone, as RSASSA-PSS names them.
const HASHES: [(&[u8], &digest::Algorithm); 3] = [
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01], &digest::SHA256),
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02], &digest::SHA384),
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x03], &digest::SHA512),
];

/// A sequence of DER elements.
pub(super) struct Der<'a>(pub(super) &'a [u8]);

impl<'a> Der<'a> {
    /// Returns the next element's tag and content. Only short tags exist in certificates.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x83 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    pub(super) fn take(&mut self, wanted: u8) -> Option<&'a [u8]> {
        let (tag, content) = self.next()?;
        (tag == wanted).then_some(content)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }
}

/// Returns the first common name. Name ::= SEQUENCE OF SET OF SEQUENCE { type, value }
fn common_name(name: &[u8]) -> Option<String> {
    let mut parts = Der(name);
    while let Some(part) = parts.take(SET) {
        let mut attributes = Der(part);
        while let Some(attribute) = attributes.take(SEQUENCE) {
            let mut attribute = Der(attribute);
            if attribute.take(OID)? == OID_COMMON_NAME {
                let (tag, value) = attribute.next()?;
                return text(tag, value);
            }
        }
    }
    None
}

/// Returns the text of a DirectoryString. A name with a NUL in it is rejected: it is made to be read
/// differently by different readers.
fn text(tag: u8, value: &[u8]) -> Option<String> {
    let text = match tag {
        0x0c | 0x13 | 0x16 => std::str::from_utf8(value).ok()?.to_owned(),
        0x14 => value.iter().map(|byte| char::from(*byte)).collect(),
        0x1e => {
            let units = value.chunks(2).map(|pair| match pair {
                [high, low] => Some(u16::from_be_bytes([*high, *low])),
                _ => None,
            });
            String::from_utf16(&units.collect::<Option<Vec<u16>>>()?).ok()?
        }
        _ => return None,
    };
    (!text.is_empty() && !text.contains('\0')).then_some(text)
}

/// Reads the alternative names. Extensions ::= SEQUENCE OF SEQUENCE { id, critical BOOLEAN DEFAULT FALSE,
/// value OCTET STRING }
fn read_extensions(extensions: &[u8], facts: &mut Facts) {
    let mut list = Der(Der(extensions).take(SEQUENCE).unwrap_or_default());
    while let Some(extension) = list.take(SEQUENCE) {
        let mut extension = Der(extension);
        if extension.take(OID) != Some(OID_SUBJECT_ALT_NAME) {
            continue;
        }
        while let Some((tag, value)) = extension.next() {
            if tag == OCTET_STRING {
                read_alt_names(value, facts);
            }
        }
    }
}

fn read_alt_names(value: &[u8], facts: &mut Facts) {
    let mut names = Der(Der(value).take(SEQUENCE).unwrap_or_default());
    while let Some((tag, value)) = names.next() {
        match tag {
            0x82 if facts.dns_names.len() < NAMES_MAX => facts.dns_names.extend(text(0x16, value)),
            0x87 => facts.has_addresses = true,
            _ => {}
        }
    }
}

fn validity(content: &[u8]) -> Option<(i64, i64)> {
    let mut times = Der(content);
    let (from_tag, from) = times.next()?;
    let (to_tag, to) = times.next()?;
    Some((seconds(from_tag, from)?, seconds(to_tag, to)?))
}

/// Returns a UTCTime YYMMDDHHMMSSZ or a GeneralizedTime YYYYMMDDHHMMSSZ in seconds since 1970.
fn seconds(tag: u8, content: &[u8]) -> Option<i64> {
    let digits = content.strip_suffix(b"Z")?;
    let (year_digits, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => digits.split_at(2),
        (GENERALIZED_TIME, 14) => digits.split_at(4),
        _ => return None,
    };
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0_i64, |sum, d| d.is_ascii_digit().then(|| sum * 10 + i64::from(d - b'0')))
    };
    let mut year = number(year_digits)?;
    if tag == UTC_TIME {
        year += if year < 50 { 2000 } else { 1900 };
    }
    let part = |at: usize| number(&rest[at..at + 2]);
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Returns the days of the civil calendar since 1970. March counts as the first month, so that the leap day
/// is the last one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec![
            "db.example".to_owned(),
            "*.other.example".to_owned(),
            "10.1.2.3".to_owned(),
        ])
        .unwrap();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Works");
        params.distinguished_name.push(rcgen::DnType::CommonName, "Grüße");
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn names_and_dates_of_a_certificate() {
        let certificate = certificate();
        assert_eq!(of(&certificate), ["Grüße", "db.example", "*.other.example"]);
        let facts = read(&certificate).unwrap();
        assert!(facts.has_addresses);
        // 2024-02-29 and 2051-01-01 (a GeneralizedTime), as `date -u -d … +%s` says.
        assert_eq!(facts.validity_s, Some((1_709_164_800, 2_556_144_000)));
    }

    #[test]
    fn a_certificate_is_hashed_as_it_was_signed() {
        let params = rcgen::CertificateParams::new(vec!["db.example".to_owned()]).unwrap();
        for (algorithm, function) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(&digest::SHA256)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(&digest::SHA384)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let certificate = params.self_signed(&key).unwrap();
            let hash = function.map(|function| digest::digest(function, certificate.der()).as_ref().into());
            assert_eq!(end_point(certificate.der()), hash);
        }
    }

    #[test]
    fn no_damage_does_harm() {
        let good = certificate();
        for length in 0..good.len() {
            let _ = (read(&good[..length]), end_point(&good[..length]));
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = (read(&bad), end_point(&bad));
            }
        }
    }

    #[test]
    fn a_name_with_a_nul_is_no_name() {
        assert_eq!(text(0x0c, b"good\0.evil"), None);
        assert_eq!(text(0x0c, b""), None);
        assert_eq!(text(0x1e, &[0, b'a', 0, b'b']), Some("ab".to_owned()));
        assert_eq!(text(0x1e, &[0, b'a', 0]), None);
        assert_eq!(text(0x14, &[0xe9]), Some("é".to_owned()));
    }

    #[test]
    fn times() {
        assert_eq!(seconds(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, b"491231235959Z"), Some(2_524_607_999));
        assert_eq!(seconds(GENERALIZED_TIME, b"20000301000001Z"), Some(951_868_801));
        assert_eq!(seconds(UTC_TIME, b"701301000000Z"), None);
        assert_eq!(seconds(UTC_TIME, b"7001010000Z"), None);
        assert_eq!(seconds(UTC_TIME, b"7001a1000000Z"), None);
    }
}
