//! Addresses of HTTP services, and the lists of hosts that a source may name.

use std::net::IpAddr;

/// The address of an HTTP service: `http://host:port` or `https://host:port`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SourceUrl {
    /// `true` for `https`.
    pub tls: bool,
    /// A name or an address; an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl SourceUrl {
    /// Reads an address, which has no path, no user and no password.
    ///
    /// # Errors
    ///
    /// The form that an address must have.
    pub fn parse(text: &str) -> Result<SourceUrl, &'static str> {
        const WANTED: &str = "an address must be http://host:port or https://host:port";
        let (tls, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err(WANTED),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or(WANTED)?;
        // Only an IPv6 address has brackets; without them its colons would look like a port.
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let host = match bare {
            Some(host) if host.parse::<std::net::Ipv6Addr>().is_ok() => host,
            None if !host.is_empty() && host.bytes().all(is_plain) => host,
            _ => return Err(WANTED),
        };
        let port = port.parse().ok().filter(|port| *port > 0).ok_or(WANTED)?;
        Ok(SourceUrl { tls, host: host.to_owned(), port })
    }
}

impl std::fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// Returns whether a host that a source names is in the list of `allow_discovered_hosts`.
pub fn is_allowed_host(list: &[String], host: &str) -> bool {
    list.iter().filter_map(|text| Allowed::parse(text)).any(|allowed| allowed.has(host))
}

/// Returns a message if the text is not an entry of the list.
pub(crate) fn fault_of_allowed(text: &str) -> Option<String> {
    let wanted = "it must be an address, a network such as 10.1.0.0/16, a host name, *.domain or *";
    Allowed::parse(text).is_none().then(|| format!("\"{text}\": {wanted}"))
}

/// An entry of the list of `allow_discovered_hosts`.
enum Allowed<'a> {
    Any,
    Network(IpAddr, u8),
    Name(&'a str),
    /// Host names with this ending.
    Ending(&'a str),
}

impl Allowed<'_> {
    fn parse(text: &str) -> Option<Allowed<'_>> {
        let is_name = |text: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !text.is_empty() && text.bytes().all(is_plain)
        };
        if text == "*" {
            return Some(Allowed::Any);
        }
        if let Some(ending) = text.strip_prefix('*') {
            return is_name(ending).then_some(Allowed::Ending(ending));
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
            None => (text, None),
        };
        match (address.parse::<IpAddr>(), bits) {
            (Ok(address), bits) => {
                let all = if address.is_ipv4() { 32 } else { 128 };
                let bits = bits.unwrap_or(all);
                (bits <= all).then_some(Allowed::Network(address, bits))
            }
            (Err(_), None) => is_name(text).then_some(Allowed::Name(text)),
            (Err(_), Some(_)) => None,
        }
    }

    fn has(&self, host: &str) -> bool {
        let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
        match (self, address) {
            (Allowed::Any, _) => true,
            (Allowed::Network(network, bits), Ok(address)) => is_in(address, *network, *bits),
            (Allowed::Name(name), Err(_)) => host.eq_ignore_ascii_case(name),
            (Allowed::Ending(ending), Err(_)) => {
                let start =
                    host.len().checked_sub(ending.len()).filter(|start| host.is_char_boundary(*start));
                start.is_some_and(|start| start > 0 && host[start..].eq_ignore_ascii_case(ending))
            }
            _ => false,
        }
    }
}

/// Returns whether an address is in a network.
pub(crate) fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let same = |one: u128, other: u128, width: u32| {
        let dropped = width - u32::from(bits);
        dropped >= width || one >> dropped == other >> dropped
    };
    match (address, network) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            same(u128::from(one.to_bits()), u128::from(other.to_bits()), 32)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => same(one.to_bits(), other.to_bits(), 128),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_of_services() {
        for good in ["http://10.0.0.1:8008", "https://[::1]:2379", "http://etcd-0.svc:2379"] {
            assert_eq!(SourceUrl::parse(good).expect(good).to_string(), good);
        }
        assert_eq!(SourceUrl::parse("http://a:1/").expect("a slash is no path").host, "a");
        for bad in [
            "10.0.0.1:8008",
            "http://a",
            "http://:1",
            "http://a:0",
            "http://u:p@a:1",
            "http://a:1/x",
            "http://[a]:1",
            "http://::1:1",
            "ftp://a:1",
            "http://a b:1",
            "http://a:99999",
            "",
        ] {
            assert!(SourceUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn hosts_that_a_source_may_name() {
        let is = |list: &[&str], host: &str| {
            is_allowed_host(&list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), host)
        };
        assert!(is(&["*"], "any.host") && is(&["*"], "::1") && !is(&[], "any.host"));
        assert!(is(&["10.1.0.0/16"], "10.1.255.3") && !is(&["10.1.0.0/16"], "10.2.0.1"));
        assert!(is(&["0.0.0.0/0"], "8.8.8.8") && !is(&["0.0.0.0/0"], "::1") && is(&["10.1.0.4"], "10.1.0.4"));
        assert!(is(&["fd00::/8"], "fd12::1") && !is(&["fd00::/8"], "fe80::1"));
        assert!(is(&["10.0.0.0/8"], "::ffff:10.0.0.1"), "an IPv4 address in IPv6 clothes is that address");
        assert!(
            is(&["*.db.local"], "A.DB.local")
                && !is(&["*.db.local"], ".db.local")
                && !is(&["*.db.local"], "db.local")
        );
        assert!(is(&["pg-1"], "PG-1") && !is(&["pg-1"], "pg-12"));
        assert!(!is(&["*1"], "10.0.0.1"), "a pattern of names has no address");
        for bad in ["10.0.0.0/33", "a/8", "a b", "/tmp", "*a*"] {
            assert!(fault_of_allowed(bad).is_some(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in any::<String>(), host in any::<String>()) {
            let _ = (SourceUrl::parse(&text), is_allowed_host(&[text], &host));
        }
    }
}
