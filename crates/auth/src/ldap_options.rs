//! The options of LDAP authentication: how a directory server is reached and asked (PostgreSQL's chapter
//! "LDAP Authentication"). This file only parses the options; other crates connect to the server.

use crate::access::options;
use crate::password::PlainPassword;
use std::fmt;
use thiserror::Error;

/// The directory server, and the way to find a user there.
#[derive(Clone, PartialEq, Eq)]
pub struct LdapOptions {
    /// `ldapserver`: host names or addresses. The next one is tried if one cannot be reached.
    pub servers: Vec<String>,
    /// `ldapport`.
    pub port: u16,
    /// `ldapscheme=ldaps`: TLS from the first byte.
    pub ldaps: bool,
    /// `ldaptls=1`: TLS by the StartTLS operation.
    pub start_tls: bool,
    /// The way to turn a user into a name of the directory.
    pub way: LdapWay,
}

/// The way to turn a user into a name of the directory.
#[derive(Clone, PartialEq, Eq)]
pub enum LdapWay {
    /// Texts are put around the user's name (`ldapprefix`, `ldapsuffix`).
    Simple {
        /// The text before the user's name.
        prefix: String,
        /// The text after the user's name.
        suffix: String,
    },
    /// A search, which has to find exactly one entry.
    Search {
        /// `ldapbasedn`: the entry at which the search starts.
        base: String,
        /// `ldapbinddn`: the user to bind as; an anonymous bind when it is empty.
        bind_dn: String,
        /// `ldapbindpasswd`.
        bind_password: Secretive,
        /// The filter of the search, with `$username` in it.
        filter: String,
        /// The depth of the search.
        scope: LdapScope,
    },
}

/// The depth of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LdapScope {
    /// The base entry itself.
    Base,
    /// The children of the base entry.
    One,
    /// The base entry and everything below it.
    Subtree,
}

/// A text that must not be printed.
#[derive(Clone)]
pub struct Secretive(PlainPassword);

impl Secretive {
    /// Returns the text.
    pub fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl PartialEq for Secretive {
    fn eq(&self, other: &Self) -> bool {
        self.reveal() == other.reveal()
    }
}

impl Eq for Secretive {}

/// The fault of a list of options. No value is repeated: one of them is a password.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LdapOptionsError {
    /// The text is not a list of `name=value`.
    #[error("expected name=value, with double quotes around values that hold blanks or commas")]
    Shape,
    /// An option of this name does not exist.
    #[error("unknown LDAP option {0}")]
    Unknown(String),
    /// An option does not take this value.
    #[error("LDAP option {0} does not take this value")]
    Value(&'static str),
    /// `ldapurl` does not have the right form.
    #[error("ldapurl has to be ldap[s]://host[:port]/basedn[?attribute[?scope[?filter]]]")]
    Url,
    /// The options name no server.
    #[error("ldapserver (or ldapurl) is missing; servers are not looked up in DNS")]
    NoServer,
    /// The options belong to both ways of finding a user.
    #[error(
        "ldapprefix and ldapsuffix exclude ldapbasedn, ldapbinddn, ldapbindpasswd, ldapsearchattribute and ldapsearchfilter"
    )]
    BothWays,
    /// The options belong to neither way of finding a user.
    #[error("ldapbasedn, ldapprefix or ldapsuffix is missing")]
    NoWay,
    /// The options give the filter in both ways.
    #[error("ldapsearchattribute and ldapsearchfilter exclude each other")]
    BothFilters,
    /// The options ask for both kinds of TLS.
    #[error("ldaptls is of no use with ldapscheme=ldaps")]
    BothTls,
}

/// The options as they are written.
#[derive(Default)]
struct Given {
    servers: String,
    port: Option<u16>,
    ldaps: bool,
    start_tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    bind_dn: Option<String>,
    bind_password: Option<String>,
    attribute: Option<String>,
    filter: Option<String>,
    scope: Option<LdapScope>,
}

impl LdapOptions {
    /// Reads `name=value ...`.
    ///
    /// # Errors
    ///
    /// The first fault.
    pub fn parse(text: &str) -> Result<Self, LdapOptionsError> {
        let mut given = Given::default();
        for word in options(text).map_err(|_| LdapOptionsError::Shape)? {
            let (name, value) = word.split_once('=').ok_or(LdapOptionsError::Shape)?;
            given.take(name, value)?;
        }
        given.into_options()
    }

    /// Returns the default port of the scheme.
    fn default_port(ldaps: bool) -> u16 {
        if ldaps { 636 } else { 389 }
    }
}

impl Given {
    fn take(&mut self, name: &str, value: &str) -> Result<(), LdapOptionsError> {
        let text = Some(value.to_owned());
        match name {
            "ldapserver" => self.servers = value.to_owned(),
            "ldapport" => self.port = Some(value.parse().map_err(|_| LdapOptionsError::Value("ldapport"))?),
            "ldapscheme" => self.ldaps = scheme(value).ok_or(LdapOptionsError::Value("ldapscheme"))?,
            "ldaptls" if matches!(value, "0" | "1") => self.start_tls = value == "1",
            "ldaptls" => return Err(LdapOptionsError::Value("ldaptls")),
            "ldapprefix" => self.prefix = text,
            "ldapsuffix" => self.suffix = text,
            "ldapbasedn" => self.base = text,
            "ldapbinddn" => self.bind_dn = text,
            "ldapbindpasswd" => self.bind_password = text,
            "ldapsearchattribute" => self.attribute = text,
            "ldapsearchfilter" => self.filter = text,
            "ldapurl" => self.take_url(value)?,
            _ => return Err(LdapOptionsError::Unknown(name.chars().take(40).collect())),
        }
        Ok(())
    }

    fn take_url(&mut self, url: &str) -> Result<(), LdapOptionsError> {
        let (word, rest) = url.split_once("://").ok_or(LdapOptionsError::Url)?;
        self.ldaps = scheme(word).ok_or(LdapOptionsError::Url)?;
        let (place, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match place.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| LdapOptionsError::Url)?)),
            None => (place, None),
        };
        self.servers = host.to_owned();
        self.port = port.or(self.port);
        let mut parts = path.split('?');
        let mut part = || parts.next().filter(|part| !part.is_empty()).map(str::to_owned);
        self.base = part();
        self.attribute = part();
        self.scope = match part().as_deref() {
            None => None,
            Some("base") => Some(LdapScope::Base),
            Some("one") => Some(LdapScope::One),
            Some("sub") => Some(LdapScope::Subtree),
            Some(_) => return Err(LdapOptionsError::Url),
        };
        self.filter = part();
        if parts.next().is_some() { Err(LdapOptionsError::Url) } else { Ok(()) }
    }

    fn into_options(self) -> Result<LdapOptions, LdapOptionsError> {
        let servers: Vec<String> = self.servers.split_ascii_whitespace().map(str::to_owned).collect();
        if servers.is_empty() {
            return Err(LdapOptionsError::NoServer);
        }
        if self.ldaps && self.start_tls {
            return Err(LdapOptionsError::BothTls);
        }
        let searches = self.base.is_some()
            || self.bind_dn.is_some()
            || self.bind_password.is_some()
            || self.attribute.is_some()
            || self.filter.is_some();
        let way = match (self.prefix.is_some() || self.suffix.is_some(), searches) {
            (true, true) => return Err(LdapOptionsError::BothWays),
            (true, false) => LdapWay::Simple {
                prefix: self.prefix.unwrap_or_default(),
                suffix: self.suffix.unwrap_or_default(),
            },
            (false, _) => LdapWay::Search {
                base: self.base.ok_or(LdapOptionsError::NoWay)?,
                bind_dn: self.bind_dn.unwrap_or_default(),
                bind_password: Secretive(PlainPassword::new(self.bind_password.unwrap_or_default())),
                filter: match (self.attribute, self.filter) {
                    (Some(_), Some(_)) => return Err(LdapOptionsError::BothFilters),
                    (_, Some(filter)) => filter,
                    (Some(attribute), None) => format!("({attribute}=$username)"),
                    (None, None) => "(uid=$username)".to_owned(),
                },
                scope: self.scope.unwrap_or(LdapScope::Subtree),
            },
        };
        let port = self.port.unwrap_or_else(|| LdapOptions::default_port(self.ldaps));
        Ok(LdapOptions { servers, port, ldaps: self.ldaps, start_tls: self.start_tls, way })
    }
}

fn scheme(word: &str) -> Option<bool> {
    match word {
        "ldap" => Some(false),
        "ldaps" => Some(true),
        _ => None,
    }
}

impl fmt::Debug for LdapOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LdapOptions").field("servers", &self.servers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> LdapOptions {
        LdapOptions::parse(text).expect("good options")
    }

    #[test]
    fn the_simple_way() {
        let options = parse("ldapserver=\"a b\" ldapprefix=\"uid=\" ldapsuffix=\",dc=example,dc=net\"");
        assert_eq!((options.servers.as_slice(), options.port), (&["a".to_owned(), "b".to_owned()][..], 389));
        let suffix = ",dc=example,dc=net".to_owned();
        assert!(options.way == LdapWay::Simple { prefix: "uid=".to_owned(), suffix });
    }

    #[test]
    fn the_way_of_a_search() {
        let options =
            parse("ldapserver=h ldapscheme=ldaps ldapbasedn=dc=net ldapbinddn=cn=x ldapbindpasswd=p#w");
        assert_eq!((options.port, options.ldaps), (636, true));
        let LdapWay::Search { base, bind_dn, bind_password, filter, scope } = &options.way else {
            panic!("it searches")
        };
        assert_eq!((base.as_str(), bind_dn.as_str(), filter.as_str()), ("dc=net", "cn=x", "(uid=$username)"));
        assert_eq!((bind_password.reveal(), *scope), (&b"p#w"[..], LdapScope::Subtree));
        let options = parse("ldapserver=h ldapbasedn=b ldapsearchattribute=cn");
        assert!(matches!(options.way, LdapWay::Search { filter, .. } if filter == "(cn=$username)"));
        assert!(
            !format!("{:?}", parse("ldapserver=h ldapbasedn=b ldapbindpasswd=hidden")).contains("hidden")
        );
    }

    #[test]
    fn a_url_says_it_all() {
        let options = parse("ldapurl=\"ldap://h:1389/dc=example,dc=net?uid?one\"");
        assert_eq!((options.servers[0].as_str(), options.port), ("h", 1389));
        let LdapWay::Search { base, filter, scope, .. } = options.way else { panic!("it searches") };
        assert_eq!((base.as_str(), filter.as_str()), ("dc=example,dc=net", "(uid=$username)"));
        assert_eq!(scope, LdapScope::One);
        let options = parse("ldapurl=ldaps://[::1]/b??sub?(cn=$username)");
        assert_eq!((options.servers[0].as_str(), options.port, options.ldaps), ("[::1]", 636, true));
        assert!(matches!(options.way, LdapWay::Search { filter, .. } if filter == "(cn=$username)"));
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        for (text, error) in [
            ("ldapserver", LdapOptionsError::Shape),
            ("ldapserver=h color=red", LdapOptionsError::Unknown("color".to_owned())),
            ("ldapserver=h ldapport=99999", LdapOptionsError::Value("ldapport")),
            ("ldapserver=h ldapscheme=http", LdapOptionsError::Value("ldapscheme")),
            ("ldapserver=h ldaptls=yes", LdapOptionsError::Value("ldaptls")),
            ("ldapbasedn=b", LdapOptionsError::NoServer),
            ("ldapserver=h", LdapOptionsError::NoWay),
            ("ldapserver=h ldapprefix=x ldapbasedn=b", LdapOptionsError::BothWays),
            (
                "ldapserver=h ldapbasedn=b ldapsearchattribute=a ldapsearchfilter=f",
                LdapOptionsError::BothFilters,
            ),
            ("ldapserver=h ldapbasedn=b ldapscheme=ldaps ldaptls=1", LdapOptionsError::BothTls),
            ("ldapurl=http://h/b", LdapOptionsError::Url),
            ("ldapurl=ldap://h/b?a?all", LdapOptionsError::Url),
            ("ldapurl=ldap://h:x/b", LdapOptionsError::Url),
        ] {
            assert_eq!(LdapOptions::parse(text), Err(error), "{text}");
        }
    }
}
