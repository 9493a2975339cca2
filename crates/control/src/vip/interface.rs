//! The network interface that has the virtual address: it is found by `getifaddrs`, and changed over netlink (rtnetlink(7)).
//!
//! The address is set with a lifetime, which only a living process renews. So the kernel removes the address of a process that was killed or stopped.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrStorage, recv,
    sendto, socket,
};
use pgweir_settings::VipAddress;

/// A network interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) name: String,
    /// The interface's hardware address, as the kernel wants it for raw packets.
    pub(super) hardware: LinkAddr,
    /// An address of the machine's own, at which others reach it; `None` if there is none of the virtual address's family.
    pub(super) own: Option<IpAddr>,
    /// Whether the interface has the virtual address now.
    pub(super) has_address: bool,
}

/// One address of an interface.
struct Entry {
    name: String,
    hardware: Option<LinkAddr>,
    ip: Option<IpAddr>,
}

/// Finds the interface by its name, or, with an empty name, by an address in the same network.
pub(super) fn find(address: VipAddress, name: &str) -> Result<Link, String> {
    let entries =
        getifaddrs().map_err(|error| format!("the network interfaces cannot be listed: {error}"))?;
    let entries: Vec<Entry> = entries
        .map(|entry| Entry {
            name: entry.interface_name,
            hardware: entry.address.as_ref().and_then(|address| address.as_link_addr().copied()),
            ip: entry.address.as_ref().and_then(ip_of),
        })
        .collect();
    choose(&entries, address, name)
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

fn choose(entries: &[Entry], address: VipAddress, name: &str) -> Result<Link, String> {
    let own_ip = |entry: &Entry| entry.ip.filter(|ip| *ip != address.ip);
    let is_near = |entry: &&Entry| own_ip(entry).is_some_and(|ip| address.network_has(ip));
    let name = match name {
        "" => entries.iter().find(is_near).map(|entry| entry.name.clone()).ok_or_else(|| {
            format!("no network interface has an address in the network of {address}; set vip_interface")
        })?,
        name => name.to_owned(),
    };
    let of_link: Vec<&Entry> = entries.iter().filter(|entry| entry.name == name).collect();
    let hardware = of_link.iter().find_map(|entry| entry.hardware);
    let hardware =
        hardware.ok_or_else(|| format!("there is no network interface \"{name}\" (vip_interface)"))?;
    let is_own = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => address.ip.is_ipv4(),
        // Link-local addresses are no use without the name of an interface, which is another one on the other machine.
        IpAddr::V6(ip) => address.ip.is_ipv6() && !ip.is_unicast_link_local(),
    };
    let near = of_link.iter().copied().find(is_near).and_then(own_ip);
    let own = near.or_else(|| of_link.iter().filter_map(|entry| own_ip(entry)).find(is_own));
    let has_address = of_link.iter().any(|entry| entry.ip == Some(address.ip));
    Ok(Link { name, hardware, own, has_address })
}

/// Sets the address, or renews its lifetime.
pub(super) fn set(link: &Link, address: VipAddress, lifetime_s: u32) -> io::Result<()> {
    change(&message(Change::Set { lifetime_s }, index_of(link)?, address))
}

/// Removes the address. It is no error if it is not set.
pub(super) fn remove(link: &Link, address: VipAddress) -> io::Result<()> {
    match change(&message(Change::Remove, index_of(link)?, address)) {
        Err(error) if error.raw_os_error() == Some(Errno::EADDRNOTAVAIL as i32) => Ok(()),
        said => said,
    }
}

fn index_of(link: &Link) -> io::Result<u32> {
    u32::try_from(link.hardware.ifindex()).map_err(io::Error::other)
}

enum Change {
    Set { lifetime_s: u32 },
    Remove,
}

// linux/netlink.h, linux/rtnetlink.h, linux/if_addr.h.
const NLMSG_ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// No duplicate address detection: for a second or more, the address could not be used.
const IFA_F_NODAD: u32 = 0x02;
/// No route to the network, which the interface's own address has: the lifetime of this address must not end that route.
const IFA_F_NOPREFIXROUTE: u32 = 0x200;

/// Returns the netlink message that makes a change.
fn message(change: Change, index: u32, address: VipAddress) -> Vec<u8> {
    let (kind, flags) = match change {
        Change::Set { .. } => (RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE),
        Change::Remove => (RTM_DELADDR, 0),
    };
    let (family, bytes) = match address.ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, ip.octets().to_vec()),
        IpAddr::V6(ip) => (AddressFamily::Inet6, ip.octets().to_vec()),
    };
    let mut out = vec![0; 4];
    out.extend(kind.to_ne_bytes());
    out.extend((flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
    // The sequence number, and the port: 0 is the kernel.
    out.extend([0; 8]);
    // struct ifaddrmsg; scope 0 is the whole world.
    out.extend([u8::try_from(family as i32).unwrap_or_default(), address.bits, 0, 0]);
    out.extend(index.to_ne_bytes());
    attribute(&mut out, IFA_LOCAL, &bytes);
    attribute(&mut out, IFA_ADDRESS, &bytes);
    if let Change::Set { lifetime_s } = change {
        // An IPv6 address that is not preferred is no source of the machine's own connections.
        let preferred_s = if address.ip.is_ipv6() { 0 } else { lifetime_s };
        let cache_info: Vec<u8> =
            [preferred_s, lifetime_s, 0, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
        attribute(&mut out, IFA_CACHEINFO, &cache_info);
        if address.ip.is_ipv6() {
            attribute(&mut out, IFA_FLAGS, &(IFA_F_NODAD | IFA_F_NOPREFIXROUTE).to_ne_bytes());
        }
    }
    let length = u32::try_from(out.len()).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_ne_bytes());
    out
}

/// Appends an attribute. All values here have lengths that need no padding.
fn attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    debug_assert_eq!(value.len() % 4, 0, "no padding is written");
    out.extend(u16::try_from(value.len() + 4).unwrap_or(u16::MAX).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
}

/// Sends a message to the kernel and reads its acknowledgement.
fn change(message: &[u8]) -> io::Result<()> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    sendto(socket.as_raw_fd(), message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 4096];
    // The kernel has answered before `sendto` returns.
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_DONTWAIT)?;
    match errno_of(&answer[..length]) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the kernel's answer is not understood")),
    }
}

/// Reads an acknowledgement: an error's number, which is 0 for a success.
fn errno_of(answer: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(answer.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then(|| error.saturating_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the hardware address of the loopback interface: nix makes none from a value.
    fn hardware() -> LinkAddr {
        let mut all = getifaddrs().expect("interfaces");
        all.find_map(|entry| entry.address?.as_link_addr().copied()).expect("an interface")
    }

    fn entries(list: &[(&str, &str)]) -> Vec<Entry> {
        let entry = |(name, ip): &(&str, &str)| Entry {
            name: (*name).to_owned(),
            hardware: None,
            ip: ip.parse().ok(),
        };
        let link = |(name, _): &(&str, &str)| Entry {
            name: (*name).to_owned(),
            hardware: Some(hardware()),
            ip: None,
        };
        list.iter().map(link).chain(list.iter().map(entry)).collect()
    }

    #[test]
    fn the_interface_is_found_by_an_address_of_the_network() {
        let address = VipAddress::parse("10.0.0.9/24").expect("an address");
        let list =
            entries(&[("lo", "127.0.0.1"), ("eth0", "10.0.1.1"), ("eth1", "fe80::1"), ("eth1", "10.0.0.1")]);
        let found = choose(&list, address, "").expect("an interface");
        assert_eq!((&*found.name, found.own, found.has_address), ("eth1", Some([10, 0, 0, 1].into()), false));
        let named = choose(&list, address, "eth0").expect("an interface");
        assert_eq!((&*named.name, named.own), ("eth0", Some([10, 0, 1, 1].into())));
        assert!(choose(&list, address, "eth7").expect_err("none").contains("\"eth7\""));
        assert!(choose(&list[..3], address, "").expect_err("none").contains("vip_interface"));
        let with = entries(&[("eth0", "10.0.0.9"), ("eth0", "10.0.0.1")]);
        let found = choose(&with, address, "").expect("an interface");
        assert_eq!((found.own, found.has_address), (Some([10, 0, 0, 1].into()), true));
        let v6 = VipAddress::parse("fd00::9/64").expect("an address");
        let found = choose(&entries(&[("eth0", "fe80::1"), ("eth0", "fd00:0:0:1::1")]), v6, "eth0")
            .expect("an interface");
        assert_eq!(found.own, "fd00:0:0:1::1".parse().ok(), "not the link-local one");
    }

    #[test]
    fn messages_are_as_long_as_they_say() {
        let v4 = VipAddress::parse("10.0.0.9/24").expect("an address");
        let v6 = VipAddress::parse("fd00::9/64").expect("an address");
        // Header 16, ifaddrmsg 8, addresses 8 or 20 each, lifetimes 20, flags 8.
        for (change, address, length) in [
            (Change::Set { lifetime_s: 9 }, v4, 60),
            (Change::Set { lifetime_s: 9 }, v6, 92),
            (Change::Remove, v4, 40),
            (Change::Remove, v6, 64),
        ] {
            let message = message(change, 3, address);
            assert_eq!(message.len(), length);
            assert_eq!(message[..4], u32::try_from(length).expect("small").to_ne_bytes());
        }
    }

    #[test]
    fn acknowledgements() {
        let answer = |errno: i32| {
            let mut answer = vec![0; 36];
            answer[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
            answer[16..20].copy_from_slice(&(-errno).to_ne_bytes());
            answer
        };
        assert_eq!(errno_of(&answer(0)), Some(0));
        assert_eq!(errno_of(&answer(1)), Some(1));
        assert_eq!(errno_of(&answer(0)[..18]), None);
        assert_eq!(errno_of(&[0; 36]), None, "another kind of message");
    }
}
