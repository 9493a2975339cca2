//! Cipher suites, protocol versions and curves: OpenSSL's names, as configuration files have them, and rustls'.

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion, version};

/// OpenSSL's names of what rustls has.
const SUITES: [(CipherSuite, &str); 9] = [
    (CipherSuite::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384"),
    (CipherSuite::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256"),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, "ECDHE-ECDSA-AES256-GCM-SHA384"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, "ECDHE-ECDSA-AES128-GCM-SHA256"),
    (CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, "ECDHE-ECDSA-CHACHA20-POLY1305"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, "ECDHE-RSA-AES256-GCM-SHA384"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "ECDHE-RSA-AES128-GCM-SHA256"),
    (CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256, "ECDHE-RSA-CHACHA20-POLY1305"),
];

/// Words of OpenSSL's cipher lists, and of libtls', that stand for "what is good": all that rustls has is.
const GOOD: [&str; 10] =
    ["DEFAULT", "SECURE", "FAST", "NORMAL", "COMPAT", "ALL", "HIGH", "MEDIUM", "ECDHE", "AESGCM"];

/// The name under which OpenSSL, and with it SHOW CLIENTS, knows a suite.
pub(crate) fn openssl_name(suite: CipherSuite) -> &'static str {
    SUITES.iter().find(|(known, _)| *known == suite).map_or("unknown", |(_, name)| name)
}

/// A list of versions: `tlsv1.2,tlsv1.3`, `secure` (= `default`), `all`, `tlsv1` (all of 1.x); `!` takes away.
pub(crate) fn versions(list: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let (mut v12, mut v13) = (false, false);
    for word in list.split([',', ':']).map(str::trim).filter(|word| !word.is_empty()) {
        let (wanted, name) = match word.strip_prefix('!') {
            Some(name) => (false, name.trim()),
            None => (true, word),
        };
        match name.to_ascii_lowercase().as_str() {
            "secure" | "default" | "all" | "legacy" | "tlsv1" => (v12, v13) = (wanted, wanted),
            "tlsv1.2" => v12 = wanted,
            "tlsv1.3" => v13 = wanted,
            // Known and insecure: never spoken here, whatever else is in the list.
            "tlsv1.0" | "tlsv1.1" => {}
            _ => return Err(format!("unknown TLS version \"{name}\"")),
        }
    }
    let mut versions = Vec::new();
    if v13 {
        versions.push(&version::TLS13);
    }
    if v12 {
        versions.push(&version::TLS12);
    }
    if versions.is_empty() {
        return Err(format!("\"{list}\" leaves no TLS version: pgweir speaks tlsv1.2 and tlsv1.3"));
    }
    Ok(versions)
}

/// What the settings want of rustls' cryptography. TLS 1.2's and 1.3's suites are configured apart, as in OpenSSL; an
/// empty text means all.
pub(crate) fn provider(ciphers: &str, tls13_ciphers: &str, curve: &str) -> Result<CryptoProvider, String> {
    let mut provider = rustls::crypto::ring::default_provider();
    let old = selected(ciphers, false, &provider.cipher_suites)?;
    let new = selected(tls13_ciphers, true, &provider.cipher_suites)?;
    provider.cipher_suites = new.into_iter().chain(old).collect();
    if let Some(group) = group(curve)? {
        provider.kx_groups.retain(|known| known.name() == group.name());
    }
    Ok(provider)
}

/// The suites of one version that an OpenSSL list names, in the list's order. As in OpenSSL, unknown words are passed
/// over and only a list that leaves nothing is an error.
fn selected(
    list: &str,
    tls13: bool,
    all: &[SupportedCipherSuite],
) -> Result<Vec<SupportedCipherSuite>, String> {
    let all = all.iter().copied().filter(|suite| (suite.version() == &version::TLS13) == tls13);
    let mut chosen: Vec<SupportedCipherSuite> = Vec::new();
    let words = || list.split([':', ',', ' ', ';']).filter(|word| !word.is_empty());
    if words().next().is_none() {
        return Ok(all.collect());
    }
    for word in words() {
        if let Some(unwanted) = word.strip_prefix(['!', '-']) {
            chosen.retain(|suite| !openssl_name(suite.suite()).eq_ignore_ascii_case(unwanted));
        } else if !word.starts_with(['+', '@']) {
            let good = GOOD.iter().any(|known| known.eq_ignore_ascii_case(word));
            let named = all
                .clone()
                .filter(|suite| good || openssl_name(suite.suite()).eq_ignore_ascii_case(word))
                .filter(|suite| !chosen.contains(suite));
            let named: Vec<_> = named.collect();
            chosen.extend(named);
        }
    }
    if chosen.is_empty() {
        let known: Vec<&str> = all.map(|suite| openssl_name(suite.suite())).collect();
        return Err(format!("the cipher list \"{list}\" leaves nothing: known are {}", known.join(", ")));
    }
    Ok(chosen)
}

fn group(curve: &str) -> Result<Option<&'static dyn SupportedKxGroup>, String> {
    use rustls::crypto::ring::kx_group;
    match curve.to_ascii_lowercase().as_str() {
        "" | "auto" | "none" => Ok(None),
        "x25519" => Ok(Some(kx_group::X25519)),
        "prime256v1" | "secp256r1" | "p-256" => Ok(Some(kx_group::SECP256R1)),
        "secp384r1" | "p-384" => Ok(Some(kx_group::SECP384R1)),
        _ => Err(format!("unknown curve \"{curve}\": known are auto, X25519, prime256v1, secp384r1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(list: &str) -> Option<usize> {
        versions(list).ok().map(|found| found.len())
    }

    #[test]
    fn version_lists_as_pgbouncer_writes_them() {
        assert_eq!(count("secure"), Some(2));
        assert_eq!(count("all,!tlsv1.3"), Some(1));
        assert_eq!(count("tlsv1.0,tlsv1.1,tlsv1.2"), Some(1));
        assert_eq!(count("tlsv1.3"), Some(1));
        assert_eq!(count("tlsv1.0"), None);
        assert_eq!(count("ssl3"), None);
        assert_eq!(count(""), None);
    }

    fn names(ciphers: &str, tls13: &str) -> Vec<&'static str> {
        let provider = provider(ciphers, tls13, "auto").unwrap();
        provider.cipher_suites.iter().map(|suite| openssl_name(suite.suite())).collect()
    }

    #[test]
    fn cipher_lists_as_openssl_writes_them() {
        assert_eq!(names("", "").len(), SUITES.len());
        assert_eq!(names("HIGH:MEDIUM:+3DES:!aNULL", "").len(), SUITES.len());
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:AES128-SHA", "TLS_AES_128_GCM_SHA256"),
            ["TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        assert!(!names("default:!ECDHE-RSA-CHACHA20-POLY1305", "").contains(&"ECDHE-RSA-CHACHA20-POLY1305"));
        assert!(provider("RC4-MD5", "", "auto").is_err());
        assert!(provider("default", "TLS_NONE", "auto").is_err());
    }

    #[test]
    fn every_suite_has_its_openssl_name() {
        for suite in rustls::crypto::ring::default_provider().cipher_suites {
            assert_ne!(openssl_name(suite.suite()), "unknown", "{suite:?}");
        }
    }

    #[test]
    fn curves() {
        assert_eq!(provider("", "", "auto").unwrap().kx_groups.len(), 3);
        assert_eq!(provider("", "", "prime256v1").unwrap().kx_groups.len(), 1);
        assert!(provider("", "", "sect113r1").is_err());
    }
}
