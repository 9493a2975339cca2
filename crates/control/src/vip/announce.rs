//! Announcements of the virtual address to the machines of its network: ARP (RFC 826, RFC 5227) and IPv6's neighbour advertisement (RFC 4861,
//! section 7.2.6). Clients and routers then send to this machine what they sent to another one.
//!
//! Other machines' announcements are heard, too: two machines may have the address if etcd cannot be asked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, sendto, socket};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

use super::interface::Link;

type Mac = [u8; 6];

const EVERY_MACHINE: Mac = [0xff; 6];
/// The group of all IPv6 nodes on Ethernet, for ff02::1.
const EVERY_NODE: Mac = [0x33, 0x33, 0, 0, 0, 1];
const ETHERTYPE_ARP: u16 = 0x0806;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERNET_BYTES: usize = 14;
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
/// The flag of an answer to a question.
const SOLICITED: u8 = 0x40;
/// The flag that a known hardware address is replaced.
const OVERRIDE: u8 = 0x20;
/// The kind of the option that has the hardware address.
const TARGET_LINK_ADDRESS: u8 = 2;

/// Announces that this machine has the address.
pub(super) fn announce(link: &Link, ip: IpAddr) -> io::Result<()> {
    let mac = mac_of(link)?;
    let frames = match ip {
        // Some systems learn from requests only, others from answers only.
        IpAddr::V4(ip) => vec![arp(mac, ip, ARP_REQUEST), arp(mac, ip, ARP_REPLY)],
        IpAddr::V6(ip) => vec![advertisement(mac, ip)],
    };
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    for frame in frames {
        sendto(socket.as_raw_fd(), &frame, &link.hardware, MsgFlags::empty())?;
    }
    Ok(())
}

fn mac_of(link: &Link) -> io::Result<Mac> {
    let mac = link.hardware.addr().filter(|_| link.hardware.halen() == 6);
    mac.ok_or_else(|| io::Error::other("the network interface has no Ethernet address"))
}

fn ethernet(to: Mac, from: Mac, kind: u16) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes()].concat()
}

fn arp(mac: Mac, ip: Ipv4Addr, operation: u8) -> Vec<u8> {
    let mut frame = ethernet(EVERY_MACHINE, mac, ETHERTYPE_ARP);
    // Ethernet, IPv4, the lengths of their addresses.
    frame.extend([0, 1, 8, 0, 6, 4, 0, operation]);
    frame.extend(mac);
    frame.extend(ip.octets());
    frame.extend(if operation == ARP_REPLY { mac } else { [0; 6] });
    frame.extend(ip.octets());
    frame
}

fn advertisement(mac: Mac, ip: Ipv6Addr) -> Vec<u8> {
    let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(ip.octets());
    message.extend([TARGET_LINK_ADDRESS, 1]);
    message.extend(mac);
    let length = u8::try_from(message.len()).unwrap_or(u8::MAX);
    // RFC 8200, section 8.1: the checksum is over this, too.
    let pseudo = [&ip.octets()[..], &to.octets(), &[0, 0, 0, length, 0, 0, 0, 58]].concat();
    let sum = checksum(&[pseudo, message.clone()].concat());
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = ethernet(EVERY_NODE, mac, ETHERTYPE_IPV6);
    // Version 6, the length, ICMPv6, and the hop limit that shows that no router has passed it on.
    frame.extend([0x60, 0, 0, 0, 0, length, 58, 255]);
    frame.extend(ip.octets());
    frame.extend(to.octets());
    frame.extend(message);
    frame
}

/// Returns the checksum of RFC 1071 over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(u16::MAX)
}

/// The announcements of the address by other machines on a network interface.
pub(super) struct OtherAnnouncements {
    /// A raw socket. To tokio, which has no type for it, it is any socket that receives datagrams.
    socket: UdpSocket,
    ip: IpAddr,
    mac: Mac,
    link: Link,
    /// Whether an announcement came since [`OtherAnnouncements::take`] was last called.
    has_come: bool,
}

impl OtherAnnouncements {
    /// Begins to receive them. This needs the capability for raw sockets.
    pub(super) fn open(link: &Link, ip: IpAddr) -> io::Result<OtherAnnouncements> {
        let socket = match ip {
            IpAddr::V4(_) => {
                let protocol = Protocol::from(i32::from(ETHERTYPE_ARP.to_be()));
                let socket = Socket::new(Domain::PACKET, Type::RAW.cloexec().nonblocking(), Some(protocol))?;
                bind(socket.as_raw_fd(), &link.hardware)?;
                socket
            }
            IpAddr::V6(_) => {
                let socket =
                    Socket::new(Domain::IPV6, Type::RAW.cloexec().nonblocking(), Some(Protocol::ICMPV6))?;
                socket.bind_device(Some(link.name.as_bytes()))?;
                socket
            }
        };
        let (socket, mac) = (UdpSocket::from_std(socket.into())?, mac_of(link)?);
        Ok(OtherAnnouncements { socket, ip, mac, link: link.clone(), has_come: false })
    }

    /// Returns whether the network interface is still the one on which they are received.
    pub(super) fn is_at(&self, link: &Link) -> bool {
        self.link.hardware == link.hardware
    }

    /// Returns whether an announcement came since the last call.
    pub(super) fn take(&mut self) -> bool {
        std::mem::take(&mut self.has_come)
    }

    /// Waits for the first announcement after [`OtherAnnouncements::take`], and does not return for the others, which usually follow it.
    /// The caller may drop the future at any time.
    pub(super) async fn first(&mut self) -> io::Result<()> {
        if self.has_come {
            return std::future::pending().await;
        }
        let mut bytes = [0; 1500];
        loop {
            let length = self.socket.recv(&mut bytes).await?;
            let is_other = match self.ip {
                IpAddr::V4(ip) => is_other_arp(&bytes[..length], ip, self.mac),
                IpAddr::V6(ip) => is_other_advertisement(&bytes[..length], ip, self.mac),
            };
            if is_other {
                self.has_come = true;
                return Ok(());
            }
        }
    }
}

/// Returns whether an Ethernet frame is an announcement of the address by another machine. A question of a machine that uses the address is
/// none: only a pooler with the lease announces.
fn is_other_arp(frame: &[u8], ip: Ipv4Addr, mac: Mac) -> bool {
    let part = |from: usize, to: usize| frame.get(ETHERNET_BYTES + from..ETHERNET_BYTES + to);
    let is_arp = part(0, 6) == Some(&[0, 1, 8, 0, 6, 4]);
    let is_announcement = part(14, 18) == Some(&ip.octets()) && part(24, 28) == Some(&ip.octets());
    is_arp && is_announcement && part(8, 14).is_some_and(|sender| sender != mac)
}

/// Returns whether an ICMPv6 message is an announcement of the address by another machine.
fn is_other_advertisement(message: &[u8], ip: Ipv6Addr, mac: Mac) -> bool {
    let is_announcement = message.first() == Some(&NEIGHBOUR_ADVERTISEMENT)
        && message.get(4).is_some_and(|flags| flags & SOLICITED == 0)
        && message.get(8..24) == Some(&ip.octets());
    is_announcement
        && message.get(24..26) == Some(&[TARGET_LINK_ADDRESS, 1])
        && message.get(26..32).is_some_and(|sender| sender != mac)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINE: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];
    const V4: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
    const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

    #[test]
    fn an_announcement_of_another_machine_is_heard_and_ones_own_is_not() {
        for operation in [ARP_REQUEST, ARP_REPLY] {
            assert!(is_other_arp(&arp(OTHER, V4, operation), V4, MINE));
            assert!(!is_other_arp(&arp(MINE, V4, operation), V4, MINE));
            assert!(!is_other_arp(&arp(OTHER, Ipv4Addr::new(10, 0, 0, 8), operation), V4, MINE));
        }
        let mut question = arp(OTHER, V4, ARP_REQUEST);
        question[38..42].copy_from_slice(&[10, 0, 0, 1]);
        assert!(!is_other_arp(&question, V4, MINE), "a machine that has the address asks for a client's");
        let message = |mac| advertisement(mac, V6)[54..].to_vec();
        assert!(is_other_advertisement(&message(OTHER), V6, MINE));
        assert!(!is_other_advertisement(&message(MINE), V6, MINE));
        let mut answer = message(OTHER);
        answer[4] |= SOLICITED;
        assert!(!is_other_advertisement(&answer, V6, MINE));
    }

    #[test]
    fn frames_are_whole() {
        assert_eq!(arp(MINE, V4, ARP_REQUEST).len(), 42);
        let frame = advertisement(MINE, V6);
        assert_eq!(frame.len(), 14 + 40 + 32);
        // A receiver sums the whole, with the checksum in it, to zero.
        let pseudo = [&frame[22..54], &[0, 0, 0, 32, 0, 0, 0, 58]].concat();
        assert_eq!(checksum(&[&pseudo, &frame[54..]].concat()), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (is_other_arp(&bytes, V4, MINE), is_other_advertisement(&bytes, V6, MINE));
        }
    }
}
