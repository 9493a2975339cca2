//! Reads what pgbench prints: the summary, the progress lines and the per-transaction log of `--log`.

use std::io::{self, BufRead};

use hdrhistogram::Histogram;

/// Latencies above this are counted as this: ten minutes, in microseconds.
const LATENCY_MAX_US: u64 = 600_000_000;

/// pgbench's summary at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Transactions that were processed.
    pub(crate) transactions: u64,
    /// Transactions that failed (serialization, deadlock); 0 where pgbench is too old to say (before 15).
    pub(crate) failed: u64,
    /// Transactions a second, without the time of the first connections.
    pub(crate) tps: f64,
}

/// Reads the summary; `None` if it is not complete.
#[must_use]
pub(crate) fn summary(stdout: &str) -> Option<Summary> {
    let value = |label: &str| stdout.lines().find_map(|line| line.strip_prefix(label)).map(str::trim);
    let transactions = value("number of transactions actually processed:")?;
    let transactions = transactions.split('/').next()?.trim().parse().ok()?;
    let failed =
        value("number of failed transactions:").and_then(|text| text.split(' ').next()?.parse().ok());
    // Before version 14 there are two lines; the one to take has "excluding" in it.
    let tps = stdout.lines().filter_map(|line| line.strip_prefix("tps = "));
    let tps = match tps.max_by_key(|text| text.contains("excluding")) {
        Some(tps) => tps.split(' ').next()?.parse().ok()?,
        // Where nothing was processed pgbench ends its summary there.
        None if transactions == 0 => 0.0,
        None => return None,
    };
    Some(Summary { transactions, failed: failed.unwrap_or(0), tps })
}

/// `average connection time = 1.234 ms`, which pgbench tells with `--connect`.
#[must_use]
pub(crate) fn average_connection_ms(stdout: &str) -> Option<f64> {
    let text = stdout.lines().find_map(|line| line.strip_prefix("average connection time = "))?;
    text.split(' ').next()?.parse().ok()
}

/// A line of `--progress`: seconds since the start and transactions a second in the last interval.
#[must_use]
pub(crate) fn progress(line: &str) -> Option<(f64, f64)> {
    let (seconds, rest) = line.strip_prefix("progress: ")?.split_once(" s, ")?;
    let (tps, _) = rest.split_once(" tps")?;
    Some((seconds.parse().ok()?, tps.parse().ok()?))
}

/// The latencies of a run, from the files of `--log`.
#[derive(Debug)]
pub(crate) struct Latencies {
    histogram: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).expect("bounds and digits are in range");
        Self { histogram }
    }
}

impl Latencies {
    /// Adds the lines of one log file: `client transaction time script epoch microseconds [more]`, where `time` is in
    /// microseconds or the word `failed`. Failed transactions (the summary has them) and lines that are cut off are left out.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn add_log(&mut self, log: impl BufRead) -> io::Result<()> {
        for line in log.lines() {
            let line = line?;
            let mut columns = line.split_ascii_whitespace().skip(2);
            let (Some(time_us), Some(_)) = (columns.next(), columns.nth(2)) else { continue };
            if let Ok(time_us) = time_us.parse::<u64>() {
                self.histogram.saturating_record(time_us.clamp(1, LATENCY_MAX_US));
            }
        }
        Ok(())
    }

    /// The latency that this share (0 to 1) of the logged transactions did not exceed, milliseconds; `None` without any.
    #[must_use]
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "at most ten minutes in microseconds")]
        let value_us = self.histogram.value_at_quantile(share) as f64;
        (!self.histogram.is_empty()).then_some(value_us / 1000.0)
    }

    /// The mean of the logged transactions, milliseconds; `None` without any.
    #[must_use]
    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (!self.histogram.is_empty()).then(|| self.histogram.mean() / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_15: &str = "\
pgbench (15.18 (Debian 15.18-0+deb12u1))
transaction type: <builtin: select only>
number of clients: 20
duration: 5 s
number of transactions actually processed: 162345
number of failed transactions: 7 (0.004%)
latency average = 0.616 ms
initial connection time = 12.345 ms
tps = 32469.123456 (without initial connection time)
";

    #[test]
    fn the_summary_of_version_15_is_read() {
        let expected = Summary { transactions: 162_345, failed: 7, tps: 32_469.123_456 };
        assert_eq!(summary(VERSION_15), Some(expected));
    }

    #[test]
    fn the_summary_of_version_13_takes_the_rate_without_connecting() {
        let text = "number of transactions actually processed: 100/200\n\
                    tps = 10.5 (including connections establishing)\ntps = 11.5 (excluding connections establishing)\n";
        assert_eq!(summary(text), Some(Summary { transactions: 100, failed: 0, tps: 11.5 }));
    }

    #[test]
    fn reconnecting_has_one_rate() {
        let text = "number of transactions actually processed: 100\naverage connection time = 1.2 ms\n\
                    tps = 700.25 (including reconnection times)\n";
        assert_eq!(summary(text).map(|summary| summary.tps), Some(700.25));
    }

    #[test]
    fn a_run_without_transactions_has_a_rate_of_nothing() {
        let text = "duration: 10 s\nnumber of transactions actually processed: 0\nnumber of failed transactions: 0 (NaN%)\n";
        assert_eq!(summary(text), Some(Summary { transactions: 0, failed: 0, tps: 0.0 }));
    }

    #[test]
    fn an_incomplete_summary_is_none() {
        for cut in 0..VERSION_15.find("tps = ").expect("there") {
            assert_eq!(summary(&VERSION_15[..cut]), None);
        }
    }

    #[test]
    fn a_progress_line_gives_time_and_rate() {
        let line = "progress: 3.0 s, 31234.5 tps, lat 0.640 ms stddev 0.2, 0 failed";
        assert_eq!(progress(line), Some((3.0, 31_234.5)));
        assert_eq!(progress("pgbench: error: client 3 aborted"), None);
        assert_eq!(progress("progress: "), None);
    }

    #[test]
    fn a_log_gives_quantiles_without_failures_and_cut_lines() {
        let mut log = String::new();
        for time_us in 1..=1000 {
            log.push_str(&format!("0 {time_us} {} 0 1700000000 123456\n", time_us * 10));
        }
        log.push_str("0 1001 failed 0 1700000000 123456\n0 1002 99999999 0 17");
        let mut latencies = Latencies::default();
        latencies.add_log(log.as_bytes()).expect("bytes can be read");
        let near = |share: f64, expected_ms: f64| {
            let found = latencies.quantile_ms(share).expect("there are samples");
            assert!(
                (found - expected_ms).abs() <= expected_ms * 0.002,
                "{share}: {found} instead of {expected_ms}"
            );
        };
        near(0.5, 5.0);
        near(0.99, 9.9);
        assert_eq!(latencies.quantile_ms(1.0).map(f64::round), Some(10.0));
    }

    #[test]
    fn no_samples_no_quantile() {
        assert_eq!(Latencies::default().quantile_ms(0.5), None);
    }
}
