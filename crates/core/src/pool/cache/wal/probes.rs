//! Probes: one small question, asked again and again, that stamps answers and dates them. A probe asks for the visible transactions and then for
//! the end of the write-ahead log. What was visible, or acknowledged, when the probe was sent is ahead of that position in the log. When the
//! stream has been read up to it, all of that was received: the probe is *confirmed*.

use std::collections::VecDeque;

use crate::cluster::answer::Lsn;
use crate::limits::UNCONFIRMED_PROBES_MAX;
use crate::pool::cache::wal::changes::StampNumber;

/// The time up to which everything that was visible is known to be received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fresh {
    /// The number of the confirmed probe.
    pub(crate) number: StampNumber,
    /// The time at which the probe was sent (monotonic, µs).
    pub(crate) at_us: u64,
}

/// The probes of a subscription.
#[derive(Default)]
pub(crate) struct Probes {
    /// The probe that is not answered yet. There is at most one.
    asked: Option<Fresh>,
    /// The answered probes that are not confirmed, and the positions up to which the stream must be read, the oldest first.
    answered: VecDeque<(Fresh, Lsn)>,
    /// The position up to which the stream was read.
    position: Lsn,
    /// The position that the last probe told.
    told: Lsn,
}

impl Probes {
    /// Notes that a probe is sent.
    pub(crate) fn send(&mut self, number: StampNumber, now_us: u64) {
        self.asked = Some(Fresh { number, at_us: now_us });
    }

    /// Notes the answer to the probe. Returns the probe; the caller tells its stamp, and then asks for [`Probes::confirm`].
    pub(crate) fn answer(&mut self, position: Lsn, page_bytes: u64) -> Option<Fresh> {
        let probe = self.asked.take()?;
        self.told = position;
        if self.answered.len() >= UNCONFIRMED_PROBES_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back((probe, position.at_end_of_record(page_bytes)));
        Some(probe)
    }

    /// Notes that the stream was read up to this position. Everything that came before it must have been told.
    pub(crate) fn advance(&mut self, position: Lsn) {
        self.position = self.position.max(position);
    }

    /// Returns the newest probe that has become confirmed since the last call.
    pub(crate) fn confirm(&mut self) -> Option<Fresh> {
        let mut confirmed = None;
        while let Some((probe, _)) = self.answered.front().filter(|(_, end)| *end <= self.position) {
            confirmed = Some(*probe);
            self.answered.pop_front();
        }
        confirmed
    }

    /// The time at which the oldest probe was sent that is answered and not confirmed (monotonic, µs).
    pub(crate) fn unconfirmed_since_us(&self) -> Option<u64> {
        self.answered.front().map(|(probe, _)| probe.at_us)
    }

    /// The position up to which the stream was read.
    pub(crate) fn position(&self) -> Lsn {
        self.position
    }

    /// The number of bytes of the log that were written and not read when the last probe was answered.
    pub(crate) fn lag_bytes(&self) -> u64 {
        self.told.0.saturating_sub(self.position.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 8192;

    #[test]
    fn a_probe_is_confirmed_when_the_stream_was_read_up_to_its_position() {
        let mut probes = Probes::default();
        probes.send(StampNumber(1), 10);
        assert_eq!(probes.answer(Lsn(100), PAGE), Some(Fresh { number: StampNumber(1), at_us: 10 }));
        assert_eq!(probes.answer(Lsn(100), PAGE), None, "nothing was asked");
        probes.advance(Lsn(99));
        assert_eq!((probes.confirm(), probes.unconfirmed_since_us()), (None, Some(10)));
        assert_eq!(probes.lag_bytes(), 1);
        probes.send(StampNumber(2), 20);
        probes.answer(Lsn(120), PAGE);
        probes.advance(Lsn(100));
        assert_eq!(
            probes.confirm(),
            Some(Fresh { number: StampNumber(1), at_us: 10 }),
            "its time is that of sending"
        );
        assert_eq!(probes.confirm(), None);
        probes.advance(Lsn(50));
        assert_eq!(probes.position(), Lsn(100));
        probes.send(StampNumber(3), 30);
        probes.answer(Lsn(120), PAGE);
        probes.advance(Lsn(500));
        assert_eq!(probes.confirm(), Some(Fresh { number: StampNumber(3), at_us: 30 }));
    }

    #[test]
    fn a_position_after_the_header_of_a_page_is_that_of_the_page() {
        let mut probes = Probes::default();
        probes.send(StampNumber(1), 10);
        probes.answer(Lsn(3 * PAGE + 24), PAGE);
        probes.advance(Lsn(3 * PAGE));
        assert!(probes.confirm().is_some(), "the stream comes by the header with the next record");
    }

    #[test]
    fn the_number_of_unconfirmed_probes_is_bounded() {
        let mut probes = Probes::default();
        for number in 0..UNCONFIRMED_PROBES_MAX as u64 + 10 {
            probes.send(StampNumber(number), number);
            probes.answer(Lsn(100), PAGE);
        }
        assert_eq!(probes.answered.len(), UNCONFIRMED_PROBES_MAX);
    }
}
