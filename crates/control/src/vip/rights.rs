//! The rights that the virtual address needs: capabilities(7), not the user root.

use std::fs;

/// The capabilities by their bits: to set addresses, and to send raw packets.
const NEEDED: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];

/// Returns what this thread lacks, and how it is granted; `None` if it lacks nothing.
pub(super) fn lacking() -> Option<String> {
    // Without /proc the kernel says it itself when the address is set.
    lacking_in(&fs::read_to_string("/proc/thread-self/status").ok()?)
}

fn lacking_in(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let held = u64::from_str_radix(line.trim(), 16).ok()?;
    let names: Vec<&str> =
        NEEDED.iter().filter(|(bit, _)| held >> bit & 1 == 0).map(|(_, name)| *name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "this process lacks {}; with systemd, install the drop-in pgweir-vip.conf; otherwise run \
             \"setcap cap_net_admin,cap_net_raw+ep\" on the program, or set vip_up_command and vip_down_command",
            names.join(" and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_that_are_missing_are_named() {
        let said = |mask: &str| lacking_in(&format!("Name:\tpgweir\nCapPrm:\t0\nCapEff:\t{mask}\n"));
        assert_eq!(said("0000000000003000"), None);
        assert_eq!(said("000001ffffffffff"), None);
        let both = said("0000000000000000").expect("both are missing");
        assert!(both.contains("CAP_NET_ADMIN and CAP_NET_RAW") && both.contains("pgweir-vip.conf"), "{both}");
        let raw = said("0000000000001000").expect("one is missing");
        assert!(raw.contains("lacks CAP_NET_RAW;"), "{raw}");
        assert_eq!(lacking_in(""), None);
    }
}
