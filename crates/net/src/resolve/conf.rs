//! Parses `resolv.conf` and the hosts file, as far as finding servers needs them (resolv.conf(5), hosts(5)).
//! Unknown lines are skipped, as every resolver does. The parsers read no files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The port of name servers.
const DNS_PORT: u16 = 53;
/// The maximum number of name servers that are used; more would only make a failing look-up last longer.
const SERVERS_MAX: usize = 8;
/// The maximum number of domains that are appended to a short name.
const SEARCH_MAX: usize = 32;
/// The bounds of resolv.conf(5) for `timeout`, `attempts` and `ndots`.
const TIMEOUT_S_MAX: u64 = 30;
const ATTEMPTS_MAX: u32 = 5;
const NDOTS_MAX: usize = 15;

/// The name servers to ask, and the rules for asking them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResolvConf {
    /// `nameserver`, in the order in which they are asked. Unlike in the C library, a port may follow the
    /// address (`127.0.0.1:5353`, `[::1]:5353`), as in c-ares.
    pub(super) servers: Vec<SocketAddr>,
    /// `search` or `domain`, whichever comes last.
    pub(super) search: Vec<String>,
    /// `options ndots`: a name with at least this number of dots is tried as it is before the search list.
    pub(super) ndots: usize,
    /// `options timeout`: the time to wait for one server.
    pub(super) timeout: Duration,
    /// `options attempts`: the number of times that the list is tried.
    pub(super) attempts: u32,
}

impl ResolvConf {
    pub(super) fn parse(text: &str) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            search: Vec::new(),
            ndots: 1,
            timeout: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if conf.servers.len() < SERVERS_MAX => {
                    conf.servers.extend(words.next().and_then(server));
                }
                Some("search") => conf.search = words.take(SEARCH_MAX).map(domain).collect(),
                Some("domain") => conf.search = words.take(1).map(domain).collect(),
                Some("options") => words.for_each(|word| conf.take_option(word)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            conf.servers.push(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DNS_PORT));
        }
        conf
    }

    fn take_option(&mut self, word: &str) {
        let Some((name, value)) = word.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        match name {
            "ndots" => self.ndots = usize::try_from(value).unwrap_or(NDOTS_MAX).min(NDOTS_MAX),
            "timeout" => self.timeout = Duration::from_secs(u64::from(value).clamp(1, TIMEOUT_S_MAX)),
            "attempts" => self.attempts = value.clamp(1, ATTEMPTS_MAX),
            _ => {}
        }
    }

    /// Returns the names that a host may stand for, in the order in which they are tried.
    pub(super) fn candidates(&self, host: &str) -> Vec<String> {
        if let Some(absolute) = host.strip_suffix('.') {
            return vec![absolute.to_owned()];
        }
        let mut names: Vec<String> = self.search.iter().map(|domain| format!("{host}.{domain}")).collect();
        let dots = host.matches('.').count();
        let place = if dots >= self.ndots { 0 } else { names.len() };
        names.insert(place, host.to_owned());
        names
    }
}

fn server(word: &str) -> Option<SocketAddr> {
    word.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT)).or_else(|_| word.parse()).ok()
}

fn domain(word: &str) -> String {
    word.trim_matches('.').to_owned()
}

/// Returns the addresses of a name in a hosts file.
pub(super) fn in_hosts(text: &str, host: &str) -> Vec<IpAddr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut addresses = Vec::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
        if words.any(|name| name.eq_ignore_ascii_case(host)) && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_says() {
        let conf = ResolvConf::parse(
            "# comment\nnameserver 10.0.0.1\nnameserver ::1 ; two\nnameserver 127.0.0.1:5353\nnameserver nobody\n\
             domain gone.example\nsearch a.example. b.example\noptions ndots:2 timeout:99 attempts:0 rotate\nsortlist x\n",
        );
        let servers: Vec<String> = conf.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.1:53", "[::1]:53", "127.0.0.1:5353"]);
        assert_eq!(conf.search, ["a.example", "b.example"]);
        assert_eq!((conf.ndots, conf.timeout, conf.attempts), (2, Duration::from_secs(30), 1));
        let empty = ResolvConf::parse("");
        assert_eq!(empty.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!((empty.ndots, empty.timeout, empty.attempts), (1, Duration::from_secs(5), 2));
    }

    #[test]
    fn short_names_are_looked_for_in_the_search_list_first() {
        let conf = ResolvConf::parse("search a.example b.example");
        assert_eq!(conf.candidates("db"), ["db.a.example", "db.b.example", "db"]);
        assert_eq!(conf.candidates("db.c"), ["db.c", "db.c.a.example", "db.c.b.example"]);
        assert_eq!(conf.candidates("db.c."), ["db.c"]);
        assert_eq!(ResolvConf::parse("").candidates("db"), ["db"]);
    }

    #[test]
    fn hosts_file() {
        let text = "127.0.0.1 localhost\n::1 localhost ip6-localhost # not: db\n10.1.1.1\tdb.example DB\nbad db\n10.1.1.1 db\n";
        assert_eq!(in_hosts(text, "localhost").len(), 2);
        assert_eq!(in_hosts(text, "db"), ["10.1.1.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(in_hosts(text, "Db.Example."), ["10.1.1.1".parse::<IpAddr>().unwrap()]);
        assert!(in_hosts(text, "not:").is_empty());
    }
}
