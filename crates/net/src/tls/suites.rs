//! Cipher suites, protocol versions and curves: maps OpenSSL's names, as in configuration files, to those of
//! rustls.

use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion, version};

/// OpenSSL's names of the suites that rustls has.
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

/// Words of OpenSSL's cipher lists, and of libtls', that include all of rustls' suites: the good ones, with a
/// key exchange by elliptic curves and authenticated encryption, of TLS 1.2 and later.
const ALL: [&str; 15] = [
    "DEFAULT", "SECURE", "FAST", "NORMAL", "COMPAT", "LEGACY", "INSECURE", "ALL", "HIGH", "ECDHE", "EECDH",
    "KECDHE", "KEECDH", "TLSV1.2", "AEAD",
];

/// Words that include the suites whose name has this text in it.
const CLASSES: [(&str, &str); 11] = [
    ("AES", "AES"),
    ("AESGCM", "AES"),
    ("AES128", "AES128"),
    ("AES256", "AES256"),
    ("AES128GCM", "AES128"),
    ("AES256GCM", "AES256"),
    ("CHACHA20", "CHACHA20"),
    ("ARSA", "-RSA-"),
    ("AECDSA", "-ECDSA-"),
    ("ECDSA", "-ECDSA-"),
    ("FIPS", "AES"),
];

/// Returns OpenSSL's name of a suite, which SHOW CLIENTS shows.
pub(crate) fn openssl_name(suite: CipherSuite) -> &'static str {
    SUITES.iter().find(|(known, _)| *known == suite).map_or("unknown", |(_, name)| name)
}

/// Reads a list of versions: `tlsv1.2,tlsv1.3`, `secure` (the same as `default` and an empty list), `all`,
/// `tlsv1` (all of 1.x). `!` removes a version; at the start of the list, it removes from all.
pub(crate) fn versions(list: &str) -> Result<Vec<&'static SupportedProtocolVersion>, String> {
    let all = list.trim().is_empty() || list.trim().starts_with('!');
    let (mut v12, mut v13) = (all, all);
    for word in list.split([',', ':']).map(str::trim).filter(|word| !word.is_empty()) {
        let (wanted, name) = match word.strip_prefix('!') {
            Some(name) => (false, name.trim()),
            None => (true, word),
        };
        match name.to_ascii_lowercase().as_str() {
            "secure" | "default" | "all" | "legacy" | "tlsv1" => (v12, v13) = (wanted, wanted),
            "tlsv1.2" => v12 = wanted,
            "tlsv1.3" => v13 = wanted,
            // These versions are known and insecure, and never used here, whatever else is in the list.
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

/// Returns the cryptography that the settings ask for. The suites of TLS 1.2 and 1.3 are configured
/// separately, as in OpenSSL; an empty text means all. An error has the name of the setting, as in
/// `TlsSetupError`, and the problem.
pub(crate) fn provider(
    ciphers: &str,
    tls13_ciphers: &str,
    curve: &str,
) -> Result<CryptoProvider, (&'static str, String)> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let of = |setting: &'static str| move |problem: String| (setting, problem);
    let old = selected(ciphers, false, &provider.cipher_suites).map_err(of("ciphers"))?;
    let new = selected(tls13_ciphers, true, &provider.cipher_suites).map_err(of("tls13_ciphers"))?;
    provider.cipher_suites = new.into_iter().chain(old).collect();
    if let Some(group) = group(curve).map_err(of("ecdhcurve"))? {
        provider.kx_groups.retain(|known| known.name() == group.name());
    }
    Ok(provider)
}

/// Returns whether a word of a list includes a suite: its name, a class, or classes with `+` between them,
/// all of which must include it.
fn answers_to(suite: &SupportedCipherSuite, word: &str) -> bool {
    let name = openssl_name(suite.suite());
    let is_of = |class: &str| {
        let class = class.to_ascii_uppercase();
        let part = CLASSES.iter().find(|(known, _)| *known == class);
        ALL.contains(&&*class) || part.is_some_and(|(_, part)| name.contains(part))
    };
    name.eq_ignore_ascii_case(word) || word.split('+').all(is_of)
}

/// Returns the suites of one version that an OpenSSL list names, in the list's order (ciphers(1)): `!`
/// removes permanently, `-` until the suite is named again, and `+` at the front moves to the end. As in
/// OpenSSL, unknown words are ignored, and only a list that leaves no suite is an error.
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
    let mut banned: Vec<SupportedCipherSuite> = Vec::new();
    for word in words() {
        if let Some(unwanted) = word.strip_prefix('!') {
            banned.extend(all.clone().filter(|suite| answers_to(suite, unwanted)));
            chosen.retain(|suite| !banned.contains(suite));
        } else if let Some(unwanted) = word.strip_prefix('-') {
            chosen.retain(|suite| !answers_to(suite, unwanted));
        } else if let Some(last) = word.strip_prefix('+') {
            // The sort is stable: suites that stay in front keep their order, and so do the others.
            chosen.sort_by_key(|suite| answers_to(suite, last));
        } else if !word.starts_with('@') {
            let named = all.clone().filter(|suite| answers_to(suite, word));
            let named = named.filter(|suite| !chosen.contains(suite) && !banned.contains(suite));
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
    use rustls::crypto::aws_lc_rs::kx_group;
    match curve.to_ascii_lowercase().as_str() {
        "" | "auto" | "none" => Ok(None),
        "x25519mlkem768" => Ok(Some(kx_group::X25519MLKEM768)),
        "x25519" => Ok(Some(kx_group::X25519)),
        "prime256v1" | "secp256r1" | "p-256" => Ok(Some(kx_group::SECP256R1)),
        "secp384r1" | "p-384" => Ok(Some(kx_group::SECP384R1)),
        _ => Err(format!(
            "unknown curve \"{curve}\": known are auto, X25519MLKEM768, X25519, prime256v1, secp384r1"
        )),
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
        assert_eq!(count(""), Some(2));
        assert_eq!(count("!tlsv1.3"), Some(1));
        assert_eq!(count("!tlsv1.0"), Some(2));
        assert_eq!(count("!tlsv1.2:!tlsv1.3"), None);
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
        for (list, left) in [
            ("HIGH:!CHACHA20", "AES256 AES128"),
            ("HIGH:!AES128", "AES256 CHACHA20"),
            ("HIGH:!CHACHA20:!AES128:!aNULL", "AES256"),
            ("HIGH:!AESGCM", "CHACHA20"),
            ("AESGCM", "AES256 AES128"),
            ("ALL:!ECDHE:ECDHE", ""),
            ("ALL:-ECDHE:CHACHA20", "CHACHA20"),
            ("!ECDHE-RSA-CHACHA20-POLY1305:HIGH", "AES256 AES128"),
            ("ECDHE-RSA-AES256-GCM-SHA384:ECDHE+CHACHA20", "AES256 CHACHA20"),
            ("EECDH+AESGCM:EDH+AESGCM", "AES256 AES128"),
            ("ECDHE+AES128:kEECDH+aRSA", "AES128 AES256 CHACHA20"),
            ("ALL:+AES256", "AES128 CHACHA20 AES256"),
            ("3DES+ECDHE", ""),
        ] {
            let found = provider(list, "TLS_AES_128_GCM_SHA256", "auto");
            let found = found.map(|provider| provider.cipher_suites).unwrap_or_default();
            let rsa = found.iter().map(|suite| openssl_name(suite.suite()));
            let rsa = rsa.filter_map(|name| name.strip_prefix("ECDHE-RSA-")?.split('-').next());
            assert_eq!(rsa.collect::<Vec<_>>().join(" "), left, "{list}");
        }
        assert!(provider("RC4-MD5", "", "auto").is_err());
        assert!(provider("default", "TLS_NONE", "auto").is_err());
    }

    #[test]
    fn every_suite_has_its_openssl_name() {
        for suite in rustls::crypto::aws_lc_rs::default_provider().cipher_suites {
            assert_ne!(openssl_name(suite.suite()), "unknown", "{suite:?}");
        }
    }

    #[test]
    fn curves() {
        let names: Vec<_> =
            provider("", "", "auto").unwrap().kx_groups.iter().map(|group| group.name()).collect();
        use rustls::NamedGroup::{X25519, X25519MLKEM768, secp256r1, secp384r1};
        assert_eq!(names, [X25519MLKEM768, X25519, secp256r1, secp384r1]);
        assert_eq!(provider("", "", "X25519MLKEM768").unwrap().kx_groups.len(), 1);
        assert_eq!(provider("", "", "prime256v1").unwrap().kx_groups.len(), 1);
        assert!(provider("", "", "sect113r1").is_err());
    }
}
