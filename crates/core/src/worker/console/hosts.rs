//! Hosts whose addresses change: servers at an address that their host no longer has are closed when they become free. Also the rows of
//! SHOW about names. The driver resolves names.

use std::net::SocketAddr;

use crate::context::Cx;
use crate::driver::{Driver, NamesSeen};
use crate::worker::Worker;

type Row = Vec<Option<String>>;

impl Worker {
    /// Marks the servers of a host that are not at one of these addresses to be closed.
    pub(crate) fn leave_addresses<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        host: &str,
        addresses: &[SocketAddr],
    ) {
        self.for_pools(cx, |pool, cx| pool.leave_addresses(cx, host, addresses));
    }
}

/// Returns the rows of SHOW DNS_HOSTS.
pub(crate) fn host_rows(names: &NamesSeen) -> Vec<Row> {
    let row = |host: &crate::driver::HostSeen| {
        let addresses: Vec<String> = host.addresses.iter().map(ToString::to_string).collect();
        vec![
            Some(host.name.to_string()),
            Some((host.left_us / 1_000_000).to_string()),
            Some(addresses.join(",")),
        ]
    };
    names.hosts.iter().map(row).collect()
}

/// Returns the rows of SHOW DNS_ZONES.
pub(crate) fn zone_rows(names: &NamesSeen) -> Vec<Row> {
    let row = |zone: &crate::driver::ZoneSeen| {
        vec![Some(zone.name.to_string()), Some(zone.serial.to_string()), Some(zone.hosts.to_string())]
    };
    names.zones.iter().map(row).collect()
}
