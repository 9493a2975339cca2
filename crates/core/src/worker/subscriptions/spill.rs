//! The bytes that PostgreSQL holds on its disk because it decodes a stream: it writes transactions under way there if they do not fit its memory
//! (`logical_decoding_work_mem`) and cannot be sent before their commit. It tells the number of bytes that were ever written for a slot; those
//! of transactions that are over are deleted, and do not count here.

use crate::pool::cache::wal::stamp::Stamp;

/// The time between two questions for the number (µs).
pub(super) const SPILL_EVERY_US: u64 = 5_000_000;

/// The spilled bytes of a slot.
#[derive(Default)]
pub(super) struct Spill {
    /// The time of the last question, or that of the slot (monotonic, µs).
    pub(super) asked_us: u64,
    /// The number of bytes that only transactions had written which are over.
    over_bytes: u64,
    /// A number that was told, whose transactions are waited for.
    mark: Option<Mark>,
}

struct Mark {
    bytes: u64,
    /// The transactions at a moment after the number was told; `None` before the next question.
    stamp: Option<Stamp>,
}

impl Spill {
    /// Takes an answer: the number of bytes that were ever written for the slot, and the transactions of that moment. Returns the number of bytes that
    /// transactions under way may have written.
    pub(super) fn take(&mut self, bytes: u64, stamp: Stamp) -> u64 {
        match &mut self.mark {
            None => self.mark = Some(Mark { bytes, stamp: None }),
            // A transaction that began after the last answer's stamp may have written before its number was read. This stamp has it.
            Some(Mark { stamp: first @ None, .. }) => *first = Some(stamp),
            Some(Mark { bytes: before, stamp: Some(first) }) => {
                if stamp.is_after_all_of(first) {
                    self.over_bytes = *before;
                    self.mark = Some(Mark { bytes, stamp: None });
                }
            }
        }
        bytes.saturating_sub(self.over_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(spill: &mut Spill, bytes: u64, stamp: &str) -> u64 {
        spill.take(bytes, Stamp::parse(stamp.as_bytes()).expect("it is a snapshot"))
    }

    #[test]
    fn bytes_count_while_their_transactions_may_be_under_way() {
        let mut spill = Spill::default();
        assert_eq!(take(&mut spill, 100, "10:12:10"), 100);
        assert_eq!(take(&mut spill, 150, "10:15:10,14"), 150);
        assert_eq!(take(&mut spill, 150, "14:16:14"), 150, "14 may have written before the number was told");
        assert_eq!(take(&mut spill, 170, "16:16:"), 70, "all that had begun when 100 was told are over");
        assert_eq!(take(&mut spill, 170, "16:16:"), 70);
        assert_eq!(take(&mut spill, 170, "16:16:"), 0);
        assert_eq!(take(&mut spill, 10, "16:16:"), 0, "the statistics were reset");
    }
}
