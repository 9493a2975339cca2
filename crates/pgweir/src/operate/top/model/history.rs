//! The readings that are kept to make rates of.

use std::time::Duration;

use super::picture::Picture;
use super::reading::Reading;

/// The last readings that are at least half an interval apart: a reading that a key asked for comes soon after another one, and a difference of
/// two such readings says little.
#[derive(Debug, Default)]
pub(crate) struct History {
    older: Option<Reading>,
    newer: Option<Reading>,
}

impl History {
    /// Forgets all readings: the console was entered again, and may be another pooler's.
    pub(crate) fn clear(&mut self) {
        *self = History::default();
    }

    /// The picture of a reading, which is kept for the next ones.
    pub(crate) fn picture(&mut self, now: Reading, interval: Duration, clients_max: u64) -> Picture {
        let is_apart = |earlier: &Reading| now.taken.saturating_sub(earlier.taken) * 2 >= interval;
        match &self.newer {
            Some(newer) if !is_apart(newer) => Picture::new(self.older.as_ref(), &now, clients_max),
            _ => {
                let picture = Picture::new(self.newer.as_ref(), &now, clients_max);
                self.older = self.newer.replace(now);
                picture
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::Row;
    use super::*;

    #[test]
    fn readings_that_are_close_together_make_no_rates() {
        let at = |millis: u64, count: &str| {
            let columns = [
                "total_query_time",
                "total_xact_count",
                "total_xact_time",
                "total_wait_time",
                "total_received",
                "total_sent",
            ];
            let mut stats: Vec<(&str, &str)> = columns.iter().map(|column| (*column, "0")).collect();
            stats.push(("total_query_count", count));
            Reading {
                taken: Duration::from_millis(millis),
                stats: vec![Row::of(&stats)],
                ..Reading::default()
            }
        };
        let mut history = History::default();
        let mut elapsed = |millis, count| {
            let picture = history.picture(at(millis, count), Duration::from_secs(2), 0);
            picture.rates.map(|rates| rates.elapsed_s)
        };
        assert_eq!(elapsed(0, "0"), None);
        assert_eq!(elapsed(100, "1"), None, "there is no older one");
        assert_eq!(elapsed(2000, "2"), Some(2.0));
        assert_eq!(elapsed(2100, "3"), Some(2.1), "against the older one");
        assert_eq!(elapsed(4000, "4"), Some(2.0));
        history.clear();
        assert!(history.picture(at(6000, "9"), Duration::from_secs(2), 0).rates.is_none());
    }
}
