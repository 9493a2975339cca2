//! Checks a password with a directory: by a bind as the user, whose name in the directory is composed or
//! searched for.
//!
//! Servers are tried in turn. Each step has a time limit, as one client's login waits for it.

mod start_tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use ldap3::{
    LdapConn, LdapConnSettings, ResultEntry, Scope, SearchOptions, StdStream, dn_escape, ldap_escape,
};
use pgweir_auth::{LdapOptions, LdapScope, LdapWay};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::trust::VerifyBy;

/// The time that connecting, and each operation, may take.
const STEP_MAX: Duration = Duration::from_secs(10);

/// The tag's number of a search result (RFC 4511, section 4.5.2).
const SEARCH_RESULT_ENTRY: u64 = 4;

/// The configuration files of OpenLDAP's library.
const LDAP_CONF: [&str; 2] = ["/etc/ldap/ldap.conf", "/etc/openldap/ldap.conf"];

/// `invalidCredentials` (RFC 4511, appendix A).
const INVALID_CREDENTIALS: u32 = 49;

/// Checks a password. Returns `Ok(false)` if the directory reports that it is wrong, or knows no such user.
///
/// # Errors
///
/// No server could be asked, or the answer was neither yes nor no; for the log.
pub(crate) fn check_password(
    options: &LdapOptions,
    user: &str,
    password: &[u8],
    verify: VerifyBy,
) -> Result<bool, String> {
    // An empty password would be an unauthenticated bind, which succeeds (RFC 4513, section 5.1.2).
    let Some(password) = std::str::from_utf8(password).ok().filter(|password| !password.is_empty()) else {
        return Ok(false);
    };
    let mut why = "no LDAP server is configured".to_owned();
    for server in &options.servers {
        match connect(options, server, verify) {
            Ok(mut directory) => {
                let found = name_of(&mut directory, options, user);
                let taken = found.and_then(|name| match name {
                    Some(name) => bind(&mut directory, &name, password),
                    None => Ok(false),
                });
                // The server has answered already, so a failure to say goodbye does not matter.
                let _ = directory.unbind();
                return taken.map_err(|why| format!("LDAP server {server}: {why}"));
            }
            Err(error) => {
                let ignored = if error.contains("certificate") { ignored_laxness() } else { String::new() };
                why = format!("could not connect to LDAP server {server}: {error}{ignored}");
            }
        }
    }
    Err(why)
}

fn connect(options: &LdapOptions, server: &str, verify: VerifyBy) -> Result<LdapConn, String> {
    let scheme = if options.ldaps || options.start_tls { "ldaps" } else { "ldap" };
    // In a URL, an IPv6 address has brackets.
    let bare_ipv6 = server.contains(':') && !server.starts_with('[');
    let server = if bare_ipv6 { format!("[{server}]") } else { server.to_owned() };
    let mut settings = LdapConnSettings::new().set_conn_timeout(STEP_MAX);
    if options.ldaps || options.start_tls {
        settings = settings.set_config(trusting(authorities().as_deref(), verify)?);
    }
    if options.start_tls {
        let stream = start_tls::connect(&server, options.port, STEP_MAX)?;
        settings = settings.set_std_stream(StdStream::Tcp(stream));
    }
    LdapConn::with_settings(settings, &format!("{scheme}://{server}:{}", options.port))
        .map_err(|error| error.to_string())
}

/// Returns the file with the authorities that OpenLDAP's library would trust (ldap.conf(5)); `None` means
/// those of the system.
fn authorities() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LDAPTLS_CACERT") {
        return Some(path.into());
    }
    if env::var_os("SSL_CERT_FILE").is_some() {
        return None;
    }
    value_in(&ldap_conf()?, "TLS_CACERT").map(PathBuf::from)
}

fn ldap_conf() -> Option<String> {
    let given = env::var_os("LDAPCONF").map(PathBuf::from);
    let usual = LDAP_CONF.map(PathBuf::from);
    given.into_iter().chain(usual).find_map(|path| fs::read_to_string(path).ok())
}

/// Returns the value of an option in an ldap.conf; the last one counts.
fn value_in(text: &str, option: &str) -> Option<String> {
    let value = |line: &str| {
        let (name, value) = line.split_once(|c: char| c.is_ascii_whitespace())?;
        name.eq_ignore_ascii_case(option).then(|| value.trim().to_owned())
    };
    text.lines().filter_map(value).next_back()
}

/// Returns the part of a warning about a certificate that names a `TLS_REQCERT` with which OpenLDAP's library
/// would accept it; an empty text if there is none.
fn ignored_laxness() -> String {
    let from_environment = env::var("LDAPTLS_REQCERT").ok();
    let value = from_environment.or_else(|| value_in(&ldap_conf()?, "TLS_REQCERT"));
    value.map_or_else(String::new, |value| laxness(&value))
}

fn laxness(value: &str) -> String {
    match ["never", "allow", "try"].iter().any(|lax| value.eq_ignore_ascii_case(lax)) {
        true => format!(
            " (pgweir ignores TLS_REQCERT {value} of ldap.conf: it always checks the certificate; TLS_CACERT names the authority)"
        ),
        false => String::new(),
    }
}

/// Returns a TLS configuration that trusts the authorities of this file, or (`None`) those of the system.
fn trusting(path: Option<&Path>, verify: VerifyBy) -> Result<Arc<ClientConfig>, String> {
    let authorities = match path {
        Some(path) => CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect)
            .map_err(|error| format!("TLS_CACERT {}: {error}", path.display()))?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let failed = |error: &dyn std::fmt::Display| match path {
        Some(path) => format!("TLS_CACERT {}: {error}", path.display()),
        None => format!("the authorities of the system: {error}"),
    };
    let verifier = verify(authorities).map_err(|error| failed(&error))?;
    let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Returns the user's name in the directory; `None` if the directory does not know the user.
fn name_of(directory: &mut LdapConn, options: &LdapOptions, user: &str) -> Result<Option<String>, String> {
    match &options.way {
        LdapWay::Simple { prefix, suffix } => {
            // A value in a distinguished name is escaped; `user@domain` and `DOMAIN\user` are not such names.
            let in_name = prefix.ends_with('=') || suffix.starts_with(',');
            let value = if in_name { dn_escape(user).into_owned() } else { user.to_owned() };
            Ok(Some(format!("{prefix}{value}{suffix}")))
        }
        LdapWay::Search { base, bind_dn, bind_password, filter, scope } => {
            let bind_password = std::str::from_utf8(bind_password.reveal())
                .map_err(|_| "ldapbindpasswd is not UTF-8".to_owned())?;
            if !bind(directory, bind_dn, bind_password)? {
                return Err("ldapbinddn and ldapbindpasswd are not taken".to_owned());
            }
            let filter = filter.replace("$username", &ldap_escape(user));
            let scope = match scope {
                LdapScope::Base => Scope::Base,
                LdapScope::One => Scope::OneLevel,
                LdapScope::Subtree => Scope::Subtree,
            };
            let found = directory
                .with_timeout(STEP_MAX)
                .with_search_options(SearchOptions::new().sizelimit(2))
                .search(base, scope, &filter, ["1.1"])
                .and_then(ldap3::SearchResult::success)
                .map_err(|error| format!("the search {filter} failed: {error}"))?;
            // Referrals to other servers are not entries.
            let mut entries = found.0.into_iter().filter(|entry| entry.0.id == SEARCH_RESULT_ENTRY);
            match (entries.next(), entries.next()) {
                (Some(_), Some(_)) => Err(format!("the search {filter} finds more than one entry")),
                (None, _) => Ok(None),
                (Some(entry), None) => match object_name(entry) {
                    Some(name) => Ok(Some(name)),
                    None => Err(format!("the search {filter} finds an entry without a name")),
                },
            }
        }
    }
}

/// Returns the `objectName` of a SearchResultEntry (RFC 4511, section 4.5.2).
fn object_name(entry: ResultEntry) -> Option<String> {
    let name = entry.0.expect_constructed()?.into_iter().next()?.expect_primitive()?;
    String::from_utf8(name).ok()
}

fn bind(directory: &mut LdapConn, name: &str, password: &str) -> Result<bool, String> {
    let result =
        directory.with_timeout(STEP_MAX).simple_bind(name, password).map_err(|error| error.to_string())?;
    match result.rc {
        0 => Ok(true),
        INVALID_CREDENTIALS => Ok(false),
        code => Err(format!("bind failed with code {code}: {}", result.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_of_an_ldap_conf() {
        for (text, path) in [
            ("# TLS_CACERT /no\nBASE dc=x\n", None),
            ("TLS_CACERT\t/etc/ssl/ca.crt \n", Some("/etc/ssl/ca.crt")),
            ("tls_cacert /a\nTLS_CACERTDIR /b\nTLS_CACERT /c\n", Some("/c")),
        ] {
            assert_eq!(value_in(text, "TLS_CACERT").as_deref(), path, "{text}");
        }
    }

    #[test]
    fn a_warning_names_a_setting_that_is_ignored() {
        assert!(laxness("never").contains("TLS_REQCERT never"));
        assert!(laxness("Allow").contains("TLS_REQCERT Allow"));
        assert_eq!(laxness("demand"), "");
        assert_eq!(value_in("TLS_REQCERT never\n", "tls_reqcert").as_deref(), Some("never"));
    }
}
