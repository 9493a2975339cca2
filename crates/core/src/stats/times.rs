//! The times of a pool's statements, by their parts, and of its transactions: histograms that are filled when a statement or transaction
//! ends.

use crate::stats::histogram::Histogram;

/// The distributions of the times of a pool's statements and transactions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The total time of each statement: waiting, at the server, and held up by its client.
    pub total: Histogram,
    /// The time of each statement at the server: from its first byte to the server until ReadyForQuery, without `client`.
    pub server: Histogram,
    /// The time of each transaction at the server.
    pub transaction: Histogram,
    /// The waits for a server that took any time. See [`Times::wait`] for all.
    some_wait: Histogram,
    /// The times in which an answer was held up by its client. See [`Times::client`] for all statements.
    some_client: Histogram,
}

/// A statement's time, by its parts, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// The time in the queue for a server.
    pub wait_us: u64,
    /// The time at the server.
    pub server_us: u64,
    /// The time in which the server had to stop because the client did not read.
    pub client_us: u64,
}

impl Split {
    /// Returns the sum of the parts.
    #[must_use]
    pub fn total_us(self) -> u64 {
        self.wait_us + self.server_us + self.client_us
    }
}

impl Times {
    /// Records a statement that ended.
    #[inline]
    pub(crate) fn statement(&mut self, split: Split) {
        self.total.record(split.total_us());
        self.server.record(split.server_us);
        if split.wait_us > 0 {
            self.some_wait.record(split.wait_us);
        }
        if split.client_us > 0 {
            self.some_client.record(split.client_us);
        }
    }

    /// Records a transaction that ended.
    #[inline]
    pub(crate) fn transaction(&mut self, us: u64) {
        self.transaction.record(us);
    }

    /// Returns the statements' waits for a server; a wait is zero within a transaction that has its server already.
    #[must_use]
    pub fn wait(&self) -> Histogram {
        with_zeros(&self.some_wait, self.total.count())
    }

    /// Returns the times in which the statements' answers were held up by their clients; most are zero.
    #[must_use]
    pub fn client(&self) -> Histogram {
        with_zeros(&self.some_client, self.total.count())
    }

    /// Adds the times of another pool or worker.
    pub fn add(&mut self, other: &Times) {
        self.total.add(&other.total);
        self.server.add(&other.server);
        self.transaction.add(&other.transaction);
        self.some_wait.add(&other.some_wait);
        self.some_client.add(&other.some_client);
    }

    /// Returns the times that were recorded since `earlier`, a former state of these times.
    #[must_use]
    pub fn since(&self, earlier: &Times) -> Times {
        Times {
            total: self.total.since(&earlier.total),
            server: self.server.since(&earlier.server),
            transaction: self.transaction.since(&earlier.transaction),
            some_wait: self.some_wait.since(&earlier.some_wait),
            some_client: self.some_client.since(&earlier.some_client),
        }
    }

    /// Returns the histograms by name, as SHOW PERCENTILES and the metrics list them.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Histogram); 5] {
        [
            ("total", self.total.clone()),
            ("wait", self.wait()),
            ("server", self.server.clone()),
            ("client", self.client()),
            ("transaction", self.transaction.clone()),
        ]
    }
}

fn with_zeros(some: &Histogram, all: u64) -> Histogram {
    let mut with = some.clone();
    with.record_zeros(all.saturating_sub(some.count()));
    with
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_no_time_counts_as_well() {
        let mut times = Times::default();
        for wait_us in [0, 0, 0, 400] {
            times.statement(Split { wait_us, server_us: 100, client_us: 0 });
        }
        assert_eq!((times.wait().count(), times.wait().quantile_us(0.75)), (4, Some(0.0)));
        assert_eq!(times.wait().sum_us(), 400);
        assert_eq!(times.total.sum_us(), 800);
        assert_eq!(times.client().max_us(), Some(0));
        let before = times.clone();
        times.transaction(70);
        assert_eq!(times.since(&before).transaction.count(), 1);
        assert_eq!(times.since(&before).wait().count(), 0);
    }
}
