//! The board: a value that all clients change and read with the same texts, so that a query cache may answer them. It is the number of
//! changes that were committed.

use std::collections::BTreeMap;

use crate::sim::model::nodes::xids::{Change, Told};

/// The mark ahead of the board's value in a row, behind the number of the process.
pub const MARK: char = '#';

/// The check of what a cached answer may lack of its reader's own changes.
pub const OWN_CHANGES: &str = "a client that changed something never reads an answer from before that";
/// The check of a cached answer's age.
pub const AGE: &str = "an answer is not older than its rule allows";

/// The changes that were committed, and how much of them each client must see.
#[derive(Debug)]
pub struct Board {
    /// The age at which an answer is no longer given, as the rule says.
    ttl_us: u64,
    /// The times of the commits. The value of the board is their number.
    committed_us: Vec<u64>,
    /// The board's value after each client's change.
    values: BTreeMap<Change, u64>,
    /// The value that each client must see at least: it was told of its changes up to there.
    told: BTreeMap<u32, u64>,
}

impl Board {
    /// A board without changes.
    #[must_use]
    pub fn new(ttl_us: u64) -> Self {
        Board { ttl_us, committed_us: Vec::new(), values: BTreeMap::new(), told: BTreeMap::new() }
    }

    /// Returns the present value, which a statement that begins now sees.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.committed_us.len() as u64
    }

    /// Notes that a transaction with these changes is committed.
    pub fn commits(&mut self, changes: &[Change], now_us: u64) {
        for change in changes {
            self.committed_us.push(now_us);
            let value = self.value();
            self.values.insert(*change, value);
        }
    }

    /// Notes a report to a client about its own changes.
    pub fn told(&mut self, told: &Told) {
        let Told::Committed(changes) = told else { return };
        for change in changes {
            if let Some(value) = self.values.get(change) {
                let seen = self.told.entry(change.0).or_default();
                *seen = (*seen).max(*value);
            }
        }
    }

    /// A client was told a value that it asked for at `asked_us` at the earliest. Returns the check that this breaks, and how.
    #[must_use]
    pub fn saw(&self, client: u32, value: u64, asked_us: u64) -> Option<(&'static str, String)> {
        let own = self.told.get(&client).copied().unwrap_or_default();
        if value < own {
            let text = format!("client {client} reads {value}, and was told of its change {own}");
            return Some((OWN_CHANGES, text));
        }
        let next_us = *self.committed_us.get(usize::try_from(value).ok()?)?;
        let since_us = asked_us.saturating_sub(next_us);
        (since_us > self.ttl_us).then(|| {
            let text =
                format!("client {client} reads {value}, which was out of date {since_us} us before it asked");
            (AGE, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_changes_and_age_are_checked() {
        let mut board = Board::new(100);
        board.commits(&[(1, 7), (1, 8)], 1_000);
        board.commits(&[(2, 3)], 2_000);
        assert_eq!(board.value(), 3);
        assert_eq!(board.saw(1, 0, 1_000), None, "it was not told yet");
        board.told(&Told::Committed(vec![(1, 7), (1, 8)]));
        assert_eq!(board.saw(1, 1, 1_000).map(|(check, _)| check), Some(OWN_CHANGES));
        assert_eq!(board.saw(1, 2, 2_100), None, "not too old yet");
        assert_eq!(board.saw(1, 2, 2_101).map(|(check, _)| check), Some(AGE));
        assert_eq!(board.saw(1, 3, 9_000), None, "nothing came after that");
        board.told(&Told::Unknown(vec![(2, 3)]));
        assert_eq!(board.saw(2, 2, 2_000), None, "it was told nothing certain");
    }
}
