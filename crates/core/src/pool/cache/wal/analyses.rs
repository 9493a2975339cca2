//! What statements depend on, as PostgreSQL has said: the tables that it locks when it reads a statement. A statement is asked about when it is
//! executed for the second time, once for each reading of its text.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use crate::limits::{ANALYSES_BYTES_MAX, ANALYSES_MAX, ANALYSIS_ATTEMPTS_MAX, SEEN_ONCE_PLACES};
use crate::pool::cache::wal::reads::Reads;

/// The result of an analysis.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Analysis {
    /// The statement reads this alone, and all of its tables can be followed.
    Reads(Arc<Reads>),
    /// The statement reads something that cannot be followed.
    NotFollowed,
    /// The server has not answered this number of times.
    Failed(u8),
}

/// The state of a statement that is about to be executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The statement depends on what it reads.
    Reads(Arc<Reads>),
    /// The answer to the statement cannot be followed.
    NotFollowed,
    /// The statement is to be analysed after this execution.
    Wanted,
    /// The statement was executed for the first time.
    FirstTime,
}

/// The analyses of a database's statements.
pub(crate) struct Analyses {
    known: HashMap<Box<[u8]>, Analysis>,
    /// The number of bytes in the keys of `known`.
    key_bytes: usize,
    /// Hashes of statements that were executed once, each at the place that its hash gives.
    seen: Box<[u64]>,
    hasher: RandomState,
}

impl Default for Analyses {
    fn default() -> Analyses {
        Analyses {
            known: HashMap::new(),
            key_bytes: 0,
            seen: vec![0; SEEN_ONCE_PLACES].into(),
            hasher: RandomState::new(),
        }
    }
}

impl Analyses {
    /// Returns what is known of a statement that is executed now. `key` is its text, types and reading.
    pub(crate) fn look_up(&mut self, key: &[u8]) -> Known {
        match self.known.get(key) {
            Some(Analysis::Reads(reads)) => return Known::Reads(Arc::clone(reads)),
            Some(Analysis::Failed(attempts)) if *attempts < ANALYSIS_ATTEMPTS_MAX => return Known::Wanted,
            Some(Analysis::NotFollowed | Analysis::Failed(_)) => return Known::NotFollowed,
            None => {}
        }
        let hash = self.hasher.hash_one(key);
        let places = self.seen.len() as u64;
        let Some(seen) = self.seen.get_mut((hash % places) as usize) else { return Known::FirstTime };
        if *seen == hash {
            return Known::Wanted;
        }
        *seen = hash;
        Known::FirstTime
    }

    /// Takes the result of an analysis. `None`: the server has not answered.
    pub(crate) fn take(&mut self, key: Box<[u8]>, found: Option<Analysis>) {
        let failed = |known: &HashMap<Box<[u8]>, Analysis>| match known.get(&key) {
            Some(Analysis::Failed(attempts)) => Analysis::Failed(attempts.saturating_add(1)),
            _ => Analysis::Failed(1),
        };
        let found = found.unwrap_or_else(|| failed(&self.known));
        if !self.known.contains_key(&key) {
            if self.known.len() >= ANALYSES_MAX || self.key_bytes + key.len() > ANALYSES_BYTES_MAX {
                self.known.clear();
                self.key_bytes = 0;
            }
            self.key_bytes += key.len();
        }
        self.known.insert(key, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_analysed_when_it_comes_again() {
        let mut analyses = Analyses::default();
        assert_eq!(analyses.look_up(b"a"), Known::FirstTime);
        assert_eq!(analyses.look_up(b"a"), Known::Wanted);
        let reads = Arc::new(Reads::of([1, 2].into(), None, b"a", &[]));
        analyses.take(b"a"[..].into(), Some(Analysis::Reads(Arc::clone(&reads))));
        assert_eq!(analyses.look_up(b"a"), Known::Reads(reads));
        analyses.take(b"b"[..].into(), Some(Analysis::NotFollowed));
        assert_eq!(analyses.look_up(b"b"), Known::NotFollowed);
    }

    #[test]
    fn an_analysis_that_fails_is_tried_a_few_times() {
        let mut analyses = Analyses::default();
        for _ in 0..ANALYSIS_ATTEMPTS_MAX {
            analyses.take(b"a"[..].into(), None);
        }
        assert_eq!(analyses.look_up(b"a"), Known::NotFollowed);
        analyses.take(b"b"[..].into(), None);
        assert_eq!(analyses.look_up(b"b"), Known::Wanted);
    }

    #[test]
    fn the_number_of_analyses_is_bounded() {
        let mut analyses = Analyses::default();
        for number in 0..=ANALYSES_MAX as u64 {
            analyses.take(number.to_be_bytes().into(), Some(Analysis::NotFollowed));
        }
        assert_eq!(analyses.known.len(), 1);
        let long = |number: u8| vec![number; ANALYSES_BYTES_MAX / 8].into_boxed_slice();
        for _ in 0..3 {
            (0..20).for_each(|number| analyses.take(long(number), None));
            let sum: usize = analyses.known.keys().map(|key| key.len()).sum();
            assert!(sum == analyses.key_bytes && sum <= ANALYSES_BYTES_MAX);
        }
    }
}
