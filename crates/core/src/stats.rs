//! Counters of a pool. Plain numbers, owned by the pool's worker; SHOW and the metrics read copies.

pub mod continuity;
pub mod errors;
pub mod histogram;
pub(crate) mod obstacle;
pub mod rare_path;
pub mod snapshot;
pub(crate) mod statements;
pub mod times;
pub mod trace;

use pgweir_settings::CompatibleWith;

/// The counters of SHOW STATS. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of times that a server was given to a client.
    pub server_assignments: u64,
    /// The number of transactions that ended.
    pub xacts: u64,
    /// The number of statements, or whole pipelines, that ended.
    pub queries: u64,
    /// The number of bytes received from clients.
    pub received_bytes: u64,
    /// The number of bytes received from servers.
    pub sent_bytes: u64,
    /// The time that transactions took.
    pub xact_us: u64,
    /// The time that statements took.
    pub query_us: u64,
    /// The time that clients waited for a server.
    pub wait_us: u64,
    /// The number of named Parse messages that clients sent.
    pub client_parses: u64,
    /// The number of named Parse messages that were sent to servers.
    pub server_parses: u64,
    /// The number of Bind messages for named statements.
    pub binds: u64,
    /// The number of clients that logged in.
    pub client_logins: u64,
}

impl Stats {
    /// The counters in the order of SHOW STATS.
    #[must_use]
    pub fn columns(&self) -> [u64; 12] {
        [
            self.server_assignments,
            self.xacts,
            self.queries,
            self.received_bytes,
            self.sent_bytes,
            self.xact_us,
            self.query_us,
            self.wait_us,
            self.client_parses,
            self.server_parses,
            self.binds,
            self.client_logins,
        ]
    }

    /// The counters from [`Stats::columns`].
    #[must_use]
    pub fn from_columns(columns: [u64; 12]) -> Stats {
        let [
            server_assignments,
            xacts,
            queries,
            received_bytes,
            sent_bytes,
            xact_us,
            query_us,
            wait_us,
            client_parses,
            server_parses,
            binds,
            client_logins,
        ] = columns;
        Stats {
            server_assignments,
            xacts,
            queries,
            received_bytes,
            sent_bytes,
            xact_us,
            query_us,
            wait_us,
            client_parses,
            server_parses,
            binds,
            client_logins,
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, other: &Stats) -> Stats {
        let (mut sum, other) = (self.columns(), other.columns());
        for (own, their) in sum.iter_mut().zip(other) {
            *own += their;
        }
        Stats::from_columns(sum)
    }

    /// Returns the counts that were added since `earlier`, a former state of these counters.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        let (mut change, earlier) = (self.columns(), earlier.columns());
        for (own, their) in change.iter_mut().zip(earlier) {
            *own = own.saturating_sub(their);
        }
        Stats::from_columns(change)
    }
}

/// A period over which averages are computed: its counts and its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The counts of the period.
    pub change: Stats,
    /// The period's length in microseconds; 0 if no period has been measured yet.
    pub elapsed_us: u64,
}

impl Window {
    /// The `avg_` columns of SHOW STATS: counts and bytes per second, times per transaction, statement or assignment.
    #[must_use]
    pub fn averages(&self) -> [u64; 12] {
        let change = &self.change;
        let per_second = |count: u64| -> u64 {
            if self.elapsed_us == 0 {
                return 0;
            }
            u64::try_from(u128::from(count) * 1_000_000 / u128::from(self.elapsed_us)).unwrap_or(u64::MAX)
        };
        let per = |time_us: u64, count: u64| time_us.checked_div(count).unwrap_or(0);
        let mut columns = change.columns().map(per_second);
        columns[5] = per(change.xact_us, change.xacts);
        columns[6] = per(change.query_us, change.queries);
        columns[7] = per(change.wait_us, change.server_assignments);
        columns
    }

    /// Returns the sum of both, as if one worker had done it all in the longer of the two periods.
    #[must_use]
    pub fn plus(&self, other: &Window) -> Window {
        Window { change: self.change.plus(&other.change), elapsed_us: self.elapsed_us.max(other.elapsed_us) }
    }

    /// Returns the line of `log_stats`, exactly in the form of the version: pgBadger 13.2 does not read a line with a number that PgBouncer
    /// 1.25 does not have.
    #[must_use]
    pub fn log_line(&self, compatible_with: CompatibleWith) -> String {
        let averages = Stats::from_columns(self.averages());
        let logins = match compatible_with.counts_logins() {
            true => format!("{} client logins/s, ", averages.client_logins),
            false => String::new(),
        };
        format!(
            "stats: {} xacts/s, {} queries/s, {} client parses/s, {} server parses/s, {} binds/s, \
             {logins}in {} B/s, out {} B/s, xact {} us, query {} us, wait {} us",
            averages.xacts,
            averages.queries,
            averages.client_parses,
            averages.server_parses,
            averages.binds,
            averages.received_bytes,
            averages.sent_bytes,
            averages.xact_us,
            averages.query_us,
            averages.wait_us,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_per_second_and_times_per_event() {
        let change = Stats { xacts: 10, xact_us: 500, queries: 20, query_us: 400, ..Stats::default() };
        let window = Window { change, elapsed_us: 2_000_000 };
        let averages = window.averages();
        assert_eq!((averages[1], averages[2], averages[5], averages[6]), (5, 10, 50, 20));
        assert_eq!(Window::default().averages(), [0; 12]);
    }

    #[test]
    fn the_line_is_that_of_the_version() {
        let change = Stats { xacts: 1, client_logins: 77, ..Stats::default() };
        let window = Window { change, elapsed_us: 1_000_000 };
        assert_eq!(
            window.log_line(CompatibleWith::V1_25),
            "stats: 1 xacts/s, 0 queries/s, 0 client parses/s, 0 server parses/s, 0 binds/s, in 0 B/s, out 0 B/s, xact 0 us, query 0 us, wait 0 us"
        );
        assert_eq!(
            window.log_line(CompatibleWith::V1_26),
            "stats: 1 xacts/s, 0 queries/s, 0 client parses/s, 0 server parses/s, 0 binds/s, 77 client logins/s, in 0 B/s, out 0 B/s, xact 0 us, query 0 us, wait 0 us"
        );
    }
}
