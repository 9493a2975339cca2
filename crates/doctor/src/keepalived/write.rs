//! Writes keepalived's configuration of a pair.

use std::net::IpAddr;

/// Two machines with a pooler each, and the address that they share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The shared address, with the length of its network's prefix.
    pub address: (IpAddr, u8),
    /// The number of the pair in its network (VRRP's virtual router id): 1 to 255, and different from that of
    /// any other pair.
    pub router_id: u8,
    /// The machine that the command runs on.
    pub here: Machine,
    /// The other machine.
    pub peer: Machine,
    /// The URL of `/readyz`, as each machine asks its own pooler.
    pub url: String,
}

/// One machine of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The machine's own address, which does not move.
    pub address: IpAddr,
    /// The network interface that gets the pair's address.
    pub interface: String,
}

impl Pair {
    /// Returns the file for this machine, or for the other one.
    #[must_use]
    pub fn file(&self, is_for_peer: bool) -> String {
        let (own, other) = if is_for_peer { (&self.peer, &self.here) } else { (&self.here, &self.peer) };
        let (address, prefix) = self.address;
        let Machine { address: source, interface } = own;
        format!(
            r#"# keepalived for pgweir on {source}, written by `pgweir pair keepalived`
global_defs {{
    router_id pgweir_{source}
    vrrp_version 3
    # On a loaded machine adverts come before other work: without them the other machine takes over.
    vrrp_priority -20
    script_user keepalived_script
    enable_script_security
}}

# A refused connection fails at once. An answer that is late or not 200 is asked for again after a second.
vrrp_script pgweir_ready {{
    script "/usr/bin/curl --silent --fail --output /dev/null --max-time 0.5 --retry 1 --retry-delay 1 {url}"
    interval 1
    timeout 3
    fall 1
    rise 2
    weight -20
    init_fail
}}

vrrp_instance pgweir {{
    state BACKUP
    interface {interface}
    virtual_router_id {router_id}
    # The same on both machines: the address stays where it is when a machine returns, and moves when the check
    # of its machine fails. With `nopreempt` it would not move: that option ignores the weight.
    priority 100
    # The other machine takes over after three and a half adverts that are missing, or that have a lower priority.
    advert_int 0.3
    unicast_src_ip {source}
    unicast_peer {{
        {peer}
    }}
    virtual_ipaddress {{
        {address}/{prefix} dev {interface}
    }}
    track_script {{
        pgweir_ready
    }}
}}
"#,
            url = self.url,
            router_id = self.router_id,
            peer = other.address,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::inspect;
    use super::*;

    #[test]
    fn the_files_mirror_each_other_and_nothing_is_wrong_with_them() {
        let machine = |address: &str, interface: &str| Machine {
            address: address.parse().expect("an address"),
            interface: interface.to_owned(),
        };
        for (address, here, peer) in [("10.0.0.9", "10.0.0.1", "10.0.0.2"), ("fd00::9", "fd00::1", "fd00::2")]
        {
            let pair = Pair {
                address: (address.parse().expect("an address"), 24),
                router_id: 51,
                here: machine(here, "eth0"),
                peer: machine(peer, "ens3"),
                url: "http://127.0.0.1:9127/readyz".to_owned(),
            };
            let files = [pair.file(false), pair.file(true)];
            assert!(
                files[0].contains(&format!("unicast_src_ip {here}\n    unicast_peer {{\n        {peer}\n"))
            );
            assert!(files[1].contains(&format!("{address}/24 dev ens3")));
            let named = [("here", files[0].as_str()), ("peer", files[1].as_str())];
            assert_eq!(inspect(&named), Ok(Vec::new()));
        }
    }
}
