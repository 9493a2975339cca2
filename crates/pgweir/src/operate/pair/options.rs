//! The command line of `pgweir pair keepalived`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use lexopt::prelude::*;

/// The text of `pair -h`.
pub(crate) const PAIR_HELP: &str = "\
pgweir pair keepalived: one address for two poolers, by keepalived.

Usage:
  pgweir pair keepalived --address=IP/PREFIX --interface=NAME --peer=IP [OPTION]...
  pgweir pair keepalived --check=FILE [--check=FILE]

The first form prints keepalived's configuration for both machines and how to
install it. The second one reads an existing configuration, or those of both
machines, and says what would go wrong.

Options:
      --address=ADDR     the address that moves, with its prefix: 10.0.0.9/24
      --interface=NAME   the network interface that gets it
      --peer=IP          the address of the other machine
      --here=IP          the address of this machine;
                         otherwise that of the interface
      --peer-interface=NAME  the interface of the other machine, if its name differs
      --router-id=N      the number of the pair in its network, 1 to 255 (51)
      --url=URL          where each machine finds /readyz of its pooler
                         (http://127.0.0.1:9127/readyz)
      --only=MACHINE     print one file and nothing else: here or peer
      --check=FILE       read FILE; given twice, compare both machines
  -h, --help             show this help, then exit

Exit code: 0 printed, or nothing is wrong; 1 something would go wrong; 2 the
arguments or a file cannot be used.
";

/// The work of one call of `pgweir pair`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PairCommand {
    /// Print keepalived's configuration.
    Write(Wanted),
    /// Read these files.
    Check(Vec<PathBuf>),
    /// `-h`
    Help,
}

/// The pair that the user describes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) address: (IpAddr, u8),
    pub(crate) interface: String,
    pub(crate) peer: IpAddr,
    /// `None`: the address of the interface.
    pub(crate) here: Option<IpAddr>,
    pub(crate) peer_interface: Option<String>,
    pub(crate) router_id: u8,
    pub(crate) url: String,
    /// `None`: both files, with how to install them. `Some(true)`: the other machine's.
    pub(crate) only_peer: Option<bool>,
}

/// The options as they come.
#[derive(Default)]
struct Given {
    address: Option<(IpAddr, u8)>,
    interface: Option<String>,
    peer: Option<IpAddr>,
    here: Option<IpAddr>,
    peer_interface: Option<String>,
    router_id: Option<u8>,
    url: Option<String>,
    only_peer: Option<bool>,
    files: Vec<PathBuf>,
}

/// Understands what comes after `pair`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<PairCommand, String> {
    let mut parser = lexopt::Parser::from_args(args);
    let (mut given, mut is_named) = (Given::default(), false);
    while let Some(arg) = parser.next().map_err(text)? {
        match arg {
            Short('h') | Long("help") => return Ok(PairCommand::Help),
            Value(word) if !is_named && word == "keepalived" => is_named = true,
            Long("check") => given.files.push(parser.value().map_err(text)?.into()),
            Long(name) => {
                let name = name.to_owned();
                let value = parser.value().map_err(text)?.string().map_err(text)?;
                take(&mut given, &name, &value)?;
            }
            other => return Err(other.unexpected().to_string()),
        }
    }
    if !is_named {
        return Err("say keepalived: it is the program that moves the address".to_owned());
    }
    match given.files.len() {
        0 => given.wanted().map(PairCommand::Write),
        1 | 2 => Ok(PairCommand::Check(given.files)),
        _ => Err("--check takes the files of two machines at most".to_owned()),
    }
}

fn text(error: lexopt::Error) -> String {
    error.to_string()
}

fn take(given: &mut Given, name: &str, value: &str) -> Result<(), String> {
    let ip = || value.parse::<IpAddr>().map_err(|_| format!("--{name}: {value:?} is no IP address"));
    match name {
        "address" => given.address = Some(address(value)?),
        "peer" => given.peer = Some(ip()?),
        "here" => given.here = Some(ip()?),
        "interface" => given.interface = Some(word(name, value)?),
        "peer-interface" => given.peer_interface = Some(word(name, value)?),
        "url" => given.url = Some(word(name, value)?),
        "router-id" => {
            let number = value.parse().ok().filter(|number| *number > 0);
            given.router_id = Some(number.ok_or("--router-id must be a number from 1 to 255")?);
        }
        "only" => {
            given.only_peer = Some(match value {
                "here" => false,
                "peer" => true,
                _ => return Err("--only must be one of here, peer".to_owned()),
            });
        }
        _ => return Err(format!("invalid option '--{name}'")),
    }
    Ok(())
}

fn address(value: &str) -> Result<(IpAddr, u8), String> {
    let wrong = || format!("--address: {value:?} is no address with a prefix, as in 10.0.0.9/24");
    let (ip, prefix) = value.split_once('/').ok_or_else(wrong)?;
    let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
    let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
    let prefix_max = if ip.is_ipv4() { 32 } else { 128 };
    if (1..=prefix_max).contains(&prefix) { Ok((ip, prefix)) } else { Err(wrong()) }
}

/// A word that can be written to keepalived's file as it is.
fn word(name: &str, value: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"{}#!$'\\`".contains(c);
    if value.is_empty() || !value.chars().all(is_plain) {
        return Err(format!("--{name}: {value:?} has characters that keepalived's file cannot have"));
    }
    Ok(value.to_owned())
}

impl Given {
    fn wanted(self) -> Result<Wanted, String> {
        let missing = |name: &str| format!("--{name} is missing; see pgweir pair -h");
        let address = self.address.ok_or_else(|| missing("address"))?;
        let interface = self.interface.ok_or_else(|| missing("interface"))?;
        let peer = self.peer.ok_or_else(|| missing("peer"))?;
        let of_machines = [Some(peer), self.here];
        if of_machines.into_iter().flatten().any(|ip| ip.is_ipv4() != address.0.is_ipv4()) {
            return Err("--address, --peer and --here must all be IPv4 or all be IPv6".to_owned());
        }
        if of_machines.contains(&Some(address.0)) || self.here == Some(peer) {
            return Err("--address, --peer and --here must be three different addresses".to_owned());
        }
        Ok(Wanted {
            address,
            interface,
            peer,
            here: self.here,
            peer_interface: self.peer_interface,
            router_id: self.router_id.unwrap_or(51),
            url: self.url.unwrap_or_else(|| "http://127.0.0.1:9127/readyz".to_owned()),
            only_peer: self.only_peer,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<PairCommand, String> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn a_pair_is_described() {
        let line = "keepalived --address 10.0.0.9/24 --interface eth0 --peer 10.0.0.2";
        let wanted = Wanted {
            address: ([10, 0, 0, 9].into(), 24),
            interface: "eth0".to_owned(),
            peer: [10, 0, 0, 2].into(),
            here: None,
            peer_interface: None,
            router_id: 51,
            url: "http://127.0.0.1:9127/readyz".to_owned(),
            only_peer: None,
        };
        assert_eq!(parsed(line), Ok(PairCommand::Write(wanted)));
        assert_eq!(
            parsed("keepalived --check=a --check b"),
            Ok(PairCommand::Check(vec!["a".into(), "b".into()]))
        );
        assert_eq!(parsed("keepalived -h"), Ok(PairCommand::Help));
    }

    #[test]
    fn what_cannot_be_a_pair_is_refused() {
        let good = "keepalived --address 10.0.0.9/24 --interface eth0 --peer 10.0.0.2";
        for (more, expected) in [
            (" --address 10.0.0.9", "prefix"),
            (" --address 10.0.0.9/33", "prefix"),
            (" --peer fd00::2", "IPv6"),
            (" --peer 10.0.0.9", "different"),
            (" --here 10.0.0.2", "different"),
            (" --router-id 0", "1 to 255"),
            (" --router-id 256", "1 to 255"),
            (" --interface e{h0", "characters"),
            (" --url http://h/\"", "characters"),
            (" --only both", "here, peer"),
            (" --fast=1", "invalid option '--fast'"),
            (" x", "unexpected argument"),
            (" --check a --check b --check c", "two machines"),
        ] {
            let error = parsed(&format!("{good}{more}")).expect_err(more);
            assert!(error.contains(expected), "{more}: {error}");
        }
        assert!(
            parsed("keepalived --interface eth0").is_err_and(|error| error.contains("--address is missing"))
        );
        assert!(parsed("").is_err_and(|error| error.contains("keepalived")));
    }
}
