//! The virtual address of several poolers, and what it needs of the other settings.

use std::fmt;
use std::net::IpAddr;

use crate::table::Main;

/// An address with the length of its network's prefix: `10.0.0.9/24`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VipAddress {
    /// The address.
    pub ip: IpAddr,
    /// The number of bits of the network.
    pub bits: u8,
}

impl VipAddress {
    /// Reads an address. Without a prefix length, the network has no other address.
    ///
    /// # Errors
    ///
    /// The form that an address must have.
    pub fn parse(text: &str) -> Result<VipAddress, &'static str> {
        const WANTED: &str =
            "it must be an address with its prefix length, such as 10.0.0.9/24 or fd00::9/64";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| WANTED)?)),
            None => (text, None),
        };
        let ip = address.parse::<IpAddr>().map_err(|_| WANTED)?;
        let all = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        if bits == 0 || bits > all || ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() {
            return Err(WANTED);
        }
        Ok(VipAddress { ip, bits })
    }

    /// Returns whether another address is in this address's network.
    #[must_use]
    pub fn network_has(&self, other: IpAddr) -> bool {
        super::hosts::is_in(other, self.ip, self.bits)
    }
}

impl fmt::Display for VipAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.bits)
    }
}

/// The place at which this process's HTTP server can be asked by other machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HttpPlace {
    /// The host; `None` if the server listens on all addresses of the machine.
    pub host: Option<String>,
    /// The port.
    pub port: u16,
}

impl HttpPlace {
    /// Returns the first entry of `http_listen` that other machines reach. `None`: the server listens on loopback only, or not at all.
    #[must_use]
    pub fn of(http_listen: &[String]) -> Option<HttpPlace> {
        http_listen.iter().find_map(|text| {
            let (host, port) = text.trim().rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port > 0)?;
            let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
            match host.parse::<IpAddr>() {
                Ok(ip) if ip.is_loopback() => None,
                Ok(ip) if ip.is_unspecified() => Some(HttpPlace { host: None, port }),
                _ if host == "localhost" || host.is_empty() => None,
                _ if host == "*" => Some(HttpPlace { host: None, port }),
                _ => Some(HttpPlace { host: Some(host.to_owned()), port }),
            }
        })
    }
}

/// Returns the faults of the settings of the virtual address: the setting, and the reason.
pub(crate) fn faults_of_vip(main: &Main) -> Vec<(&'static str, String)> {
    let mut faults = Vec::new();
    for (one, other, is_missing) in [
        ("vip_up_command", "vip_down_command", main.vip_down_command.is_empty()),
        ("vip_down_command", "vip_up_command", main.vip_up_command.is_empty()),
    ] {
        let is_set = if one == "vip_up_command" { &main.vip_up_command } else { &main.vip_down_command };
        if !is_set.is_empty() && is_missing {
            faults.push((one, format!("{one} needs {other}")));
        }
    }
    if main.vip.is_empty() {
        return faults;
    }
    if let Err(wanted) = VipAddress::parse(&main.vip) {
        faults.push(("vip", format!("vip: \"{}\": {wanted}", main.vip)));
    }
    if main.etcd_endpoints.is_empty() {
        faults.push((
            "vip",
            "vip needs etcd_endpoints: a lease in etcd decides which pooler has the address".to_owned(),
        ));
    }
    if HttpPlace::of(&main.http_listen).is_none() {
        let reason = "vip needs http_listen with an address that the other poolers reach, such as *:9127: there they ask whether this one serves";
        faults.push(("vip", reason.to_owned()));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_poolers_can_share() {
        for (text, shown) in
            [("10.0.0.9/24", "10.0.0.9/24"), ("10.0.0.9", "10.0.0.9/32"), ("fd00::9/64", "fd00::9/64")]
        {
            assert_eq!(VipAddress::parse(text).map(|address| address.to_string()).as_deref(), Ok(shown));
        }
        for bad in [
            "",
            "10.0.0.9/33",
            "10.0.0.9/0",
            "10.0.0/24",
            "host",
            "127.0.0.1/8",
            "0.0.0.0/8",
            "224.0.0.1/8",
            "::1",
            "10.0.0.9/x",
        ] {
            assert!(VipAddress::parse(bad).is_err(), "{bad}");
        }
        let address = VipAddress::parse("10.0.0.9/24").expect("an address");
        assert!(address.network_has([10, 0, 0, 1].into()) && !address.network_has([10, 0, 1, 1].into()));
    }

    #[test]
    fn places_that_other_machines_reach() {
        let place = |list: &[&str]| {
            let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
            HttpPlace::of(&list).map(|place| (place.host.unwrap_or_default(), place.port))
        };
        assert_eq!(place(&["127.0.0.1:1", "*:9127"]), Some((String::new(), 9127)));
        assert_eq!(place(&["[::]:9127"]), Some((String::new(), 9127)));
        assert_eq!(place(&["10.0.0.1:9127"]), Some(("10.0.0.1".to_owned(), 9127)));
        assert_eq!(place(&["[fd00::1]:9127"]), Some(("fd00::1".to_owned(), 9127)));
        for none in [&["9127"][..], &["127.0.0.1:9127"], &["[::1]:9127"], &["localhost:9127"], &[]] {
            assert_eq!(place(none), None, "{none:?}");
        }
    }
}
