//! Everything that the screen shows of one reading.

use super::rates::{Rates, rates};
use super::reading::Reading;
use super::tables::{Tab, Table, tables};
use super::verdict::{Verdict, is_idle_in_transaction, verdict};

/// A reading with what follows from it and from the reading before.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) verdict: Verdict,
    /// `None` while there is only one reading.
    pub(crate) rates: Option<Rates>,
    /// Words for states of clients, each with the number of clients; states without a client are left out.
    pub(crate) clients: Vec<(&'static str, u64)>,
    /// The same of servers.
    pub(crate) servers: Vec<(&'static str, u64)>,
    tables: [Table; 5],
    /// Whether there is a cluster.
    pub(crate) has_nodes: bool,
}

impl Default for Picture {
    /// The picture of a pooler of which nothing is known.
    fn default() -> Picture {
        Picture::new(None, &Reading::default(), 0)
    }
}

impl Picture {
    /// The picture of a reading; `earlier` is the one before. `clients_max` is `max_client_conn`, 0 if it is not known.
    pub(crate) fn new(earlier: Option<&Reading>, now: &Reading, clients_max: u64) -> Picture {
        let rates = earlier.and_then(|earlier| rates(earlier, now));
        // The pooler was started again: its totals began at 0.
        let earlier = earlier.filter(|_| rates.is_some());
        Picture {
            verdict: verdict(now, clients_max),
            rates,
            clients: clients(now),
            servers: servers(now),
            tables: tables(earlier, now),
            has_nodes: !now.nodes.is_empty(),
        }
    }

    /// The table of a view.
    pub(crate) fn table(&self, tab: Tab) -> &Table {
        &self.tables[tab.place()]
    }
}

fn clients(now: &Reading) -> Vec<(&'static str, u64)> {
    let of_pools = |column| now.pools.iter().map(|row| row.number(column)).sum::<u64>();
    let counts = match &now.clients {
        None => vec![("waiting", of_pools("cl_waiting")), ("active or idle", of_pools("cl_active"))],
        Some(rows) => {
            let idle_tx = rows.iter().filter(|row| is_idle_in_transaction(row)).count() as u64;
            let with = |state: &str| rows.iter().filter(|row| row.text("state") == state).count() as u64;
            vec![
                ("waiting", with("waiting")),
                ("active", with("active") - idle_tx),
                ("idle in transaction", idle_tx),
                ("idle", with("idle")),
                ("being canceled", with("active_cancel_req") + with("waiting_cancel_req")),
            ]
        }
    };
    counts.into_iter().filter(|(_, number)| *number > 0).collect()
}

fn servers(now: &Reading) -> Vec<(&'static str, u64)> {
    let states = [
        ("active", "sv_active"),
        ("idle", "sv_idle"),
        ("used", "sv_used"),
        ("tested", "sv_tested"),
        ("login", "sv_login"),
        ("being canceled", "sv_being_canceled"),
    ];
    let count = |(word, column)| (word, now.pools.iter().map(|row| row.number(column)).sum::<u64>());
    states.into_iter().map(count).filter(|(_, number)| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::reading::Row;
    use super::*;

    fn at(seconds: u64, queries: &str, calls: &str) -> Reading {
        let columns = [
            "total_query_time",
            "total_xact_count",
            "total_xact_time",
            "total_wait_time",
            "total_received",
            "total_sent",
        ];
        let mut stats: Vec<(&str, &str)> = columns.iter().map(|column| (*column, "0")).collect();
        stats.push(("total_query_count", queries));
        Reading {
            taken: Duration::from_secs(seconds),
            stats: vec![Row::of(&stats)],
            statements: vec![Row::of(&[("query", "select 1"), ("calls", calls), ("total_us", "10")])],
            ..Reading::default()
        }
    }

    #[test]
    fn after_a_restart_of_the_pooler_no_rate_is_shown() {
        let (first, second) = (at(1, "100", "100"), at(2, "200", "200"));
        let calls = |picture: &Picture| picture.table(Tab::Statements).lines[0].cells[1].shown();
        assert_eq!(calls(&Picture::new(None, &first, 0)), "");
        let picture = Picture::new(Some(&first), &second, 0);
        assert_eq!(
            (calls(&picture).as_str(), picture.rates.map(|rates| rates.statements)),
            ("100", Some(100.0))
        );
        let restarted = Picture::new(Some(&second), &at(3, "5", "5"), 0);
        assert_eq!((calls(&restarted).as_str(), restarted.rates), ("", None));
    }

    #[test]
    fn clients_and_servers_are_counted_by_state() {
        let client = |state, age| Row::of(&[("state", state), ("transaction_us", age)]);
        let now = Reading {
            clients: Some(vec![client("active", "0"), client("active", "5"), client("waiting", "0")]),
            pools: vec![Row::of(&[("sv_active", "2"), ("sv_idle", "0"), ("sv_login", "1")])],
            ..Reading::default()
        };
        let picture = Picture::new(None, &now, 0);
        assert_eq!(picture.clients, [("waiting", 1), ("active", 1), ("idle in transaction", 1)]);
        assert_eq!(picture.servers, [("active", 2), ("login", 1)]);
    }
}
