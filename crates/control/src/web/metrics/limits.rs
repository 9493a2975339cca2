//! Metrics of limits that several poolers share, from the table of SHOW LIMITS.

use super::super::api::ShowRow;
use super::text::Page;

/// The gauges with a column of their own: the metric, the column, its help.
const COLUMNS: [(&str, &str, &str); 6] = [
    ("pgweir_shared_limit_connections", "limit", "Server connections that all poolers together may have"),
    ("pgweir_shared_limit_granted", "granted", "Server connections that this pooler may have"),
    (
        "pgweir_shared_limit_held",
        "held",
        "Server connections that this pooler has, or that PostgreSQL may still have of it",
    ),
    ("pgweir_shared_limit_demand", "demand", "Server connections that this pooler could use"),
    ("pgweir_shared_limit_poolers", "poolers", "Poolers that share the limit"),
    (
        "pgweir_shared_limit_kept_back",
        "kept_back",
        "Server connections kept back because PostgreSQL may still have them of a pooler that has ended",
    ),
];

/// Writes the gauges; nothing if the pooler shares no limits. Without `names` the limits on users are left out.
pub(super) fn write(page: &mut Page, rows: &[ShowRow], names: bool) {
    let rows: Vec<&ShowRow> = rows.iter().filter(|row| names || row.get("kind") != Some("user")).collect();
    if rows.is_empty() {
        return;
    }
    let labels = |row: &ShowRow| {
        ["kind", "name", "node"].map(|name| (name, row.get(name).unwrap_or_default().to_owned()))
    };
    let mut gauge = |name: &'static str, help: &'static str, value: &dyn Fn(&ShowRow) -> u32| {
        page.gauge(name, help);
        for row in &rows {
            let owned = labels(row);
            let labels: Vec<(&str, &str)> =
                owned.iter().map(|(name, value)| (*name, value.as_str())).collect();
            page.labelled(&labels, value(row));
        }
    };
    for (name, column, help) in COLUMNS {
        gauge(name, help, &|row| row.get(column).and_then(|value| value.parse().ok()).unwrap_or_default());
    }
    gauge(
        "pgweir_shared_limit_up",
        "Whether this pooler may open connections up to what is granted",
        &|row| u32::from(row.get("state") == Some("shared")),
    );
}
