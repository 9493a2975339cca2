//! Metrics of the virtual address, from the table of SHOW VIP.

use super::super::api::ShowRow;
use super::text::Page;

/// A gauge that is 0 or 1.
struct Gauge {
    name: &'static str,
    help: &'static str,
    is_one: fn(&ShowRow) -> bool,
}

const GAUGES: [Gauge; 3] = [
    Gauge {
        name: "pgweir_vip_holds",
        help: "Whether this pooler has the virtual address",
        is_one: |row| row.get("state") == Some("holds"),
    },
    Gauge {
        name: "pgweir_vip_able",
        help: "Whether this pooler can take the virtual address",
        is_one: |row| row.get("state") != Some("unable"),
    },
    Gauge {
        name: "pgweir_vip_lease_known",
        help: "Whether etcd has told which pooler has the lease of the address",
        is_one: |row| row.get("lease") != Some("unknown"),
    },
];

/// Writes the gauges; nothing if the pooler has no virtual address.
pub(super) fn write(page: &mut Page, rows: &[ShowRow]) {
    for Gauge { name, help, is_one } in GAUGES.iter().filter(|_| !rows.is_empty()) {
        page.gauge(name, help);
        for row in rows {
            page.labelled(&[("address", row.get("address").unwrap_or_default())], u32::from(is_one(row)));
        }
    }
}
