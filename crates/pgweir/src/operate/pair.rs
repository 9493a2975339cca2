//! `pgweir pair keepalived`: what the files say and what is wrong with them is `pgweir-doctor`'s matter; here they are read and printed.

mod options;

use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use nix::ifaddrs::getifaddrs;
use pgweir_doctor::keepalived::{Machine, Pair, inspect};
use pgweir_doctor::{Severity, printable};

pub(crate) use options::{PAIR_HELP, PairCommand, Wanted, parse};

/// Exit code: something would go wrong.
const FOUND: u8 = 1;
/// Exit code: the arguments or a file cannot be used.
pub(crate) const UNUSABLE: u8 = 2;

/// Prints the configuration of a pair, or what is wrong with one.
pub(crate) fn pair(command: &PairCommand) -> ExitCode {
    let done = match command {
        PairCommand::Write(wanted) => page(wanted).map(|page| (page, ExitCode::SUCCESS)),
        PairCommand::Check(files) => check(files),
        PairCommand::Help => Ok((PAIR_HELP.to_owned(), ExitCode::SUCCESS)),
    };
    match done {
        Ok((page, code)) => {
            let _ = std::io::stdout().write_all(page.as_bytes());
            code
        }
        Err(why) => {
            eprintln!("pgweir pair: {}", printable(&why));
            ExitCode::from(UNUSABLE)
        }
    }
}

fn page(wanted: &Wanted) -> Result<String, String> {
    let here = match wanted.here {
        Some(here) => here,
        None => own_address(wanted)?,
    };
    if here == wanted.peer {
        return Err(format!("{here} is this machine's address; --peer names the other machine"));
    }
    let machine = |address, interface: &str| Machine { address, interface: interface.to_owned() };
    let peer_interface = wanted.peer_interface.as_deref().unwrap_or(&wanted.interface);
    let pair = Pair {
        address: wanted.address,
        router_id: wanted.router_id,
        here: machine(here, &wanted.interface),
        peer: machine(wanted.peer, peer_interface),
        url: wanted.url.clone(),
    };
    Ok(match wanted.only_peer {
        Some(is_for_peer) => pair.file(is_for_peer),
        None => {
            let heading = |machine: &str, address: IpAddr| {
                format!("\n# ==== /etc/keepalived/keepalived.conf on {address} ({machine}) ====\n\n")
            };
            let own = heading("this machine", here) + &pair.file(false);
            steps(&pair) + &own + &heading("the other machine", wanted.peer) + &pair.file(true)
        }
    })
}

/// The steps by which the files are installed.
fn steps(pair: &Pair) -> String {
    let ((address, prefix), here, peer) = (pair.address, &pair.here, &pair.peer);
    let router_id = pair.router_id;
    format!(
        "\
# {address} for the poolers on {here} and {peer}. On both machines, as root:
#
# 1. Install keepalived and curl, and make the user that the check runs as:
#      apt-get install keepalived curl     (or dnf)
#      useradd --system --no-create-home --shell /usr/sbin/nologin keepalived_script
# 2. In pgweir.ini: listen_addr = *, and http_listen = 9127 for the check. See that this succeeds:
#      curl --fail {url}
# 3. Let the machines talk: VRRP is IP protocol 112, not TCP or UDP.
#      iptables -A INPUT -p 112 -s {peer} -j ACCEPT     (on the other machine -s {here})
# 4. Write the files below; each command prints one:
#      pgweir pair keepalived --address={address}/{prefix} --interface={interface} --peer={peer} --peer-interface={peer_interface} \\
#        --here={here} --router-id={router_id} --url={url} --only=here > /etc/keepalived/keepalived.conf
#      (--only=peer for the other machine)
# 5. systemctl enable --now keepalived
# 6. Try it: kill pgweir on the machine that has the address; it moves within 3 seconds.
#      ip address show dev {interface}
#
# In a cloud an address is moved by the provider's API, not by VRRP: use a load balancer there.
",
        here = here.address,
        peer = peer.address,
        interface = here.interface,
        peer_interface = peer.interface,
        url = pair.url,
    )
}

/// The address of the interface: the first of the pair's family that is not the pair's own.
fn own_address(wanted: &Wanted) -> Result<IpAddr, String> {
    let unknown = || {
        format!(
            "interface {} has no address here that fits; name this machine's address with --here",
            wanted.interface
        )
    };
    let all = getifaddrs().map_err(|error| format!("the interfaces cannot be listed: {error}"))?;
    let of_interface = all.filter(|one| one.interface_name == wanted.interface);
    let addresses = of_interface.filter_map(|one| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    });
    // A link-local address names no machine without its interface.
    let is_link_local =
        |ip: &IpAddr| matches!(ip, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80);
    let fits = |ip: &IpAddr| {
        ip.is_ipv4() == wanted.address.0.is_ipv4() && *ip != wanted.address.0 && !is_link_local(ip)
    };
    addresses.into_iter().find(fits).ok_or_else(unknown)
}

fn check(files: &[PathBuf]) -> Result<(String, ExitCode), String> {
    let mut texts = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
        texts.push((name, text));
    }
    let named: Vec<(&str, &str)> = texts.iter().map(|(name, text)| (&**name, &**text)).collect();
    let found = inspect(&named).map_err(|(name, error)| format!("{name}: {error}"))?;
    if found.is_empty() {
        return Ok(("nothing would go wrong that this can see\n".to_owned(), ExitCode::SUCCESS));
    }
    let is_wrong = found.iter().any(|finding| finding.severity < Severity::Note);
    let page = found.iter().map(|finding| format!("{finding}\n")).collect();
    Ok((page, if is_wrong { ExitCode::from(FOUND) } else { ExitCode::SUCCESS }))
}
