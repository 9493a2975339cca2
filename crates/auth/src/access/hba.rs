//! The rules of an `auth_hba_file`: the authentication method for each kind of connection.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::tokens::{self, Field, Word};
use crate::ldap_options::LdapOptions;
use crate::limits::{ACCESS_FILES_MAX, ACCESS_RULES_MAX};

/// The way in which a client has connected, as rules distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A connection over the unix socket: lines `local`.
    Local,
    /// A TCP connection: lines `host`, and `hostssl` or `hostnossl`.
    Tcp {
        /// The client's address.
        address: IpAddr,
        /// `true` if the connection is encrypted.
        tls: bool,
    },
}

/// A client that asks to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival<'a> {
    /// The way in which the client has connected.
    pub way: Way,
    /// The database that the client asks for.
    pub database: &'a str,
    /// The user that the client claims to be.
    pub user: &'a str,
    /// `true` if the client asks for physical replication, which belongs to no database.
    pub physical: bool,
}

/// The way in which the client has to prove who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HbaMethod {
    /// `trust`: no proof.
    Trust,
    /// `reject`: the client may not log in.
    Reject,
    /// `password`: the password in clear.
    Password,
    /// `md5`.
    Md5,
    /// `scram-sha-256`.
    ScramSha256,
    /// `peer`: the user of the operating system at the other end of the unix socket.
    Peer,
    /// `cert`: the client's TLS certificate.
    Cert,
    /// `pam`.
    Pam,
    /// `ldap`, with the options that follow it.
    Ldap(Arc<LdapOptions>),
}

/// A rule: one line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HbaRule {
    /// The line's number.
    pub line: u32,
    /// The method that the rule demands.
    pub method: HbaMethod,
    /// The map of the ident file that `map=` names.
    pub map: Option<Box<str>>,
    kind: Kind,
    databases: Names,
    users: Names,
    /// The addresses that the rule applies to; `None` means every address.
    network: Option<Network>,
}

/// The rules of a file, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hba {
    rules: Vec<HbaRule>,
}

impl Hba {
    /// Reads a file's text. Also returns a warning for each line that is skipped. `read` returns the text of
    /// a file that a line names with `@`, or the reason why it cannot.
    pub fn parse(text: &str, read: &mut dyn FnMut(&str) -> Result<String, String>) -> (Self, Vec<String>) {
        let mut hba = Self::default();
        let mut reader = Reader { read, files: 0 };
        let mut warnings = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let rule = match reader.rule(number, line) {
                Ok(None) => continue,
                Ok(Some(_)) if hba.rules.len() >= ACCESS_RULES_MAX => Err("too many rules".to_owned()),
                Ok(Some((rule, warning))) => {
                    warnings.extend(warning);
                    Ok(rule)
                }
                Err(why) => Err(why),
            };
            match rule {
                Ok(rule) => hba.rules.push(rule),
                Err(why) => {
                    warnings.push(format!("could not parse hba config line {number}: {why}; it is skipped"));
                }
            }
        }
        (hba, warnings)
    }

    /// Returns the first rule that applies to this client.
    pub fn rule_for(&self, arrival: &Arrival<'_>) -> Option<&HbaRule> {
        self.rules.iter().find(|rule| rule.is_about(arrival))
    }

    /// Returns the rules, in order.
    pub fn rules(&self) -> &[HbaRule] {
        &self.rules
    }
}

impl HbaRule {
    fn is_about(&self, arrival: &Arrival<'_>) -> bool {
        let came = match (self.kind, arrival.way) {
            (Kind::Local, Way::Local) | (Kind::Host, Way::Tcp { .. }) => true,
            (Kind::HostSsl, Way::Tcp { tls, .. }) => tls,
            (Kind::HostNoSsl, Way::Tcp { tls, .. }) => !tls,
            _ => false,
        };
        let from = match (&self.network, arrival.way) {
            (Some(network), Way::Tcp { address, .. }) => network.contains(address.to_canonical()),
            (Some(_), Way::Local) => false,
            (None, _) => true,
        };
        let database = if arrival.physical {
            self.databases.replication
        } else {
            self.databases.all
                || self.databases.same_user && arrival.database == arrival.user
                || self.databases.names.contains(arrival.database)
        };
        came && from && database && (self.users.all || self.users.names.contains(arrival.user))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Local,
    Host,
    HostSsl,
    HostNoSsl,
}

/// A field of databases or users.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Names {
    all: bool,
    same_user: bool,
    replication: bool,
    names: BTreeSet<String>,
}

/// A network: the addresses that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    address: u128,
    mask: u128,
    v4: bool,
}

impl Network {
    fn new(address: IpAddr, mask: u128) -> Self {
        Self { address: bits(address) & mask, mask, v4: address.is_ipv4() }
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.v4 == address.is_ipv4() && bits(address) & self.mask == self.address
    }
}

/// Returns an address as a number. An IPv4 address is in the highest bits, so that a prefix length means the
/// same for both.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

struct Reader<'r> {
    read: &'r mut dyn FnMut(&str) -> Result<String, String>,
    files: usize,
}

/// A rule, and a warning about it.
type Parsed = (HbaRule, Option<String>);

impl Reader<'_> {
    fn rule(&mut self, number: u32, line: &str) -> Result<Option<Parsed>, String> {
        let fields = tokens::fields(line)?;
        let count = fields.len();
        let mut fields = fields.into_iter();
        let Some(kind) = fields.next() else { return Ok(None) };
        let kind = match single(&kind) {
            Some("local") => Kind::Local,
            Some("host") => Kind::Host,
            Some("hostssl") => Kind::HostSsl,
            Some("hostnossl") => Kind::HostNoSsl,
            _ => return Err("unknown type: there are local, host, hostssl and hostnossl".to_owned()),
        };
        let databases = self.names(fields.next().ok_or("the database is missing")?, Column::Database)?;
        let users = self.names(fields.next().ok_or("the user is missing")?, Column::User)?;
        let mut warning = None;
        let network = if kind == Kind::Local {
            None
        } else {
            let (network, odd) = network(&mut fields)?;
            warning = odd.then(|| {
                format!("hba config line {number}: the address has bits that its mask does not cover")
            });
            network
        };
        let method = fields.next().ok_or("the method is missing")?;
        let rest: Vec<Field> = fields.collect();
        let (method, map) = match single(&method) {
            // The text is used as it is, because a password among the options may contain `#`, which begins a
            // comment elsewhere.
            Some("ldap") => {
                let options = LdapOptions::parse(tokens::behind(line, count - rest.len()));
                (HbaMethod::Ldap(Arc::new(options.map_err(|error| error.to_string())?)), None)
            }
            _ => method_of(&method, &rest)?,
        };
        Ok(Some((HbaRule { line: number, method, map, kind, databases, users, network }, warning)))
    }

    fn names(&mut self, field: Field, column: Column) -> Result<Names, String> {
        let mut names = Names::default();
        for word in field {
            self.name(&mut names, word, column, true)?;
        }
        Ok(names)
    }

    fn name(
        &mut self,
        names: &mut Names,
        word: Word,
        column: Column,
        may_include: bool,
    ) -> Result<(), String> {
        let database = column == Column::Database;
        if !word.quoted && word.text.starts_with(['+', '/']) {
            return Err(format!("\"{}\": groups and regular expressions are not supported", word.text));
        }
        if database && ["samerole", "samegroup"].into_iter().any(|keyword| word.is(keyword)) {
            return Err(format!("{} is not supported: roles are not known here", word.text));
        }
        match word.text.strip_prefix('@').filter(|_| !word.quoted) {
            Some(path) if may_include => self.include(names, path, column)?,
            Some(_) => return Err("a file of names cannot name another one".to_owned()),
            None if word.is("all") => names.all = true,
            None if database && word.is("sameuser") => names.same_user = true,
            None if database && word.is("replication") => names.replication = true,
            None => {
                names.names.insert(word.text);
            }
        }
        Ok(())
    }

    fn include(&mut self, names: &mut Names, path: &str, column: Column) -> Result<(), String> {
        self.files += 1;
        if self.files > ACCESS_FILES_MAX {
            return Err("too many files".to_owned());
        }
        let text = (self.read)(path).map_err(|why| format!("could not read {path}: {why}"))?;
        for line in text.lines() {
            for word in tokens::fields(line)?.into_iter().flatten() {
                self.name(names, word, column, false)?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Database,
    User,
}

fn single(field: &Field) -> Option<&str> {
    match field.as_slice() {
        [word] => Some(&word.text),
        _ => None,
    }
}

/// Reads `all`, a network, or an address and a mask. Also returns whether the address has bits beyond its
/// mask.
fn network(fields: &mut impl Iterator<Item = Field>) -> Result<(Option<Network>, bool), String> {
    let field = fields.next().ok_or("the address is missing")?;
    let text = single(&field).ok_or("expected one address")?;
    if text == "all" {
        return Ok((None, false));
    }
    let bad = || format!("\"{text}\" is no address: names, samehost and samenet are not supported");
    let (address, mask) = match text.split_once('/') {
        Some((address, prefix)) => {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let width = if address.is_ipv4() { 32 } else { 128 };
            let length: u32 = prefix.parse().ok().filter(|length| *length <= width).ok_or_else(bad)?;
            (address, u128::MAX.checked_shl(128 - length).unwrap_or(0))
        }
        None => {
            let address: IpAddr = text.parse().map_err(|_| bad())?;
            let mask = fields.next().ok_or("the mask is missing")?;
            let mask: IpAddr =
                single(&mask).and_then(|mask| mask.parse().ok()).ok_or("the mask is no address")?;
            let mask = if mask.is_ipv4() == address.is_ipv4() { bits(mask) } else { return Err(bad()) };
            if mask.leading_ones() + mask.trailing_zeros() < 128 {
                return Err("the mask has gaps".to_owned());
            }
            (address, mask)
        }
    };
    Ok((Some(Network::new(address, mask)), bits(address) & !mask != 0))
}

/// Reads the method and its options.
fn method_of(field: &Field, rest: &[Field]) -> Result<(HbaMethod, Option<Box<str>>), String> {
    let name = single(field).unwrap_or_default();
    let method = match name {
        "trust" => HbaMethod::Trust,
        "reject" => HbaMethod::Reject,
        "password" | "plain" => HbaMethod::Password,
        "md5" => HbaMethod::Md5,
        "scram-sha-256" => HbaMethod::ScramSha256,
        "peer" => HbaMethod::Peer,
        "cert" => HbaMethod::Cert,
        "pam" => HbaMethod::Pam,
        _ => return Err(format!("unknown method \"{name}\"")),
    };
    let mut map = None;
    for field in rest {
        match single(field).and_then(|text| text.split_once('=')) {
            Some(("map", value)) if !value.is_empty() => map = Some(value.into()),
            _ => return Err(format!("unknown option behind {name}: there is map=")),
        }
    }
    Ok((method, map))
}

#[cfg(test)]
mod tests;
