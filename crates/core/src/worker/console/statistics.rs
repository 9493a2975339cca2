//! The counters of databases: columns and rows of SHOW STATS, STATS_TOTALS, STATS_AVERAGES and TOTALS.
//!
//! PgBouncer 1.26 counts logins of clients. With `compatible_with=1.25` that counter is in STATS_EXTENDED only, after PgBouncer's.

use pgweir_settings::CompatibleWith;

use crate::stats::{Stats, Window};
use crate::worker::console::command::Topic;
use crate::worker::console::report::{Row, cell};

/// A counter's names, which differ from table to table.
struct Counter {
    total: &'static str,
    average: &'static str,
    in_totals: &'static str,
    in_averages: &'static str,
    /// The counter's row in SHOW TOTALS, without the prefix.
    row: &'static str,
}

/// The counters in the order of [`Stats::columns`]. The logins of clients are the last.
const COUNTERS: [Counter; 12] = [
    counter(
        ["total_server_assignment_count", "avg_server_assignment_count"],
        ["server_assignment_count"; 2],
        "server_assignment_count",
    ),
    counter(["total_xact_count", "avg_xact_count"], ["xact_count"; 2], "xact_count"),
    counter(["total_query_count", "avg_query_count"], ["query_count"; 2], "query_count"),
    counter(["total_received", "avg_recv"], ["bytes_received"; 2], "client_bytes"),
    counter(["total_sent", "avg_sent"], ["bytes_sent"; 2], "server_bytes"),
    counter(["total_xact_time", "avg_xact_time"], ["xact_time"; 2], "xact_time"),
    counter(["total_query_time", "avg_query_time"], ["query_time"; 2], "query_time"),
    counter(["total_wait_time", "avg_wait_time"], ["wait_time"; 2], "wait_time"),
    counter(
        ["total_client_parse_count", "avg_client_parse_count"],
        ["client_parse_count", "avg_client_parse_count"],
        "ps_client_parse_count",
    ),
    counter(
        ["total_server_parse_count", "avg_server_parse_count"],
        ["server_parse_count", "avg_server_parse_count"],
        "ps_server_parse_count",
    ),
    counter(["total_bind_count", "avg_bind_count"], ["bind_count", "avg_bind_count"], "ps_bind_count"),
    counter(
        ["total_client_login_count", "avg_client_login_count"],
        ["client_login_count", "avg_client_login_count"],
        "client_login_count",
    ),
];

const fn counter(
    [total, average]: [&'static str; 2],
    [in_totals, in_averages]: [&'static str; 2],
    row: &'static str,
) -> Counter {
    Counter { total, average, in_totals, in_averages, row }
}

/// The number of counters that PgBouncer of this version has.
fn counted(compatible_with: CompatibleWith) -> usize {
    COUNTERS.len() - usize::from(!compatible_with.counts_logins())
}

/// The columns after the database: all totals, then all averages, of PgBouncer's counters; in STATS_EXTENDED those of pgweir's after these.
pub(crate) fn column_names(topic: Topic, compatible_with: CompatibleWith) -> Vec<&'static str> {
    let (theirs, ours) = COUNTERS.split_at(counted(compatible_with));
    let both = |counters: &'static [Counter]| {
        let totals = counters.iter().map(|counter| counter.total);
        totals.chain(counters.iter().map(|counter| counter.average))
    };
    match topic {
        Topic::StatsTotals => theirs.iter().map(|counter| counter.in_totals).collect(),
        Topic::StatsAverages => theirs.iter().map(|counter| counter.in_averages).collect(),
        Topic::StatsExtended => both(theirs).chain(both(ours)).collect(),
        _ => both(theirs).collect(),
    }
}

/// A database's row, with the values of the extended table at its end.
pub(crate) fn row(
    topic: Topic,
    compatible_with: CompatibleWith,
    (name, stats, window): &(String, Stats, Window),
) -> Row {
    let parts = match topic {
        Topic::StatsTotals => vec![stats.columns()],
        Topic::StatsAverages => vec![window.averages()],
        _ => vec![stats.columns(), window.averages()],
    };
    let counted = counted(compatible_with);
    let theirs = parts.iter().flat_map(|columns| &columns[..counted]);
    let ours = parts.iter().flat_map(|columns| &columns[counted..]);
    std::iter::once(cell(name)).chain(theirs.chain(ours).map(cell)).collect()
}

/// The rows of SHOW TOTALS: the sums of all databases, then their averages.
pub(crate) fn total_rows(compatible_with: CompatibleWith, stats: &[(String, Stats, Window)]) -> Vec<Row> {
    let mut sum = Stats::default();
    let mut window = Window::default();
    for (_, one, change) in stats {
        sum = sum.plus(one);
        window = window.plus(change);
    }
    let rows = |prefix: &'static str, values: [u64; 12]| {
        let counters = COUNTERS.iter().take(counted(compatible_with)).zip(values);
        counters.map(move |(counter, value)| vec![cell(format!("{prefix}_{}", counter.row)), cell(value)])
    };
    rows("total", sum.columns()).chain(rows("avg", window.averages())).collect()
}
