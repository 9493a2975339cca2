//! The write-ahead log of the model's cluster: what was committed, in one history for each timeline, and how far each node has come in it.

use crate::sim::rng::Rng;

/// Bytes of a page, and of the header that each begins with.
const PAGE_BYTES: u64 = 8192;
const PAGE_HEADER_BYTES: u64 = 24;
/// Bytes of a segment, and of the header of its first page.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
const SEGMENT_HEADER_BYTES: u64 = 40;

/// The age at which written log is flushed, too (`wal_writer_delay`).
const WRITER_US: u64 = 100_000;

/// The position of a new cluster.
const FIRST_LSN: u64 = 0x0300_0060;

/// A position in the history of a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The timeline, from 1.
    pub timeline: u32,
    /// The end of the last record.
    pub lsn: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    end: u64,
    at_us: u64,
    /// The change that it commits: the client, and the number of its statement.
    change: Option<(u32, u32)>,
    /// `true` if the log up to the record's end was flushed when it was written.
    flushes: bool,
}

/// The log that one timeline's primary has written.
#[derive(Clone, Debug)]
struct Timeline {
    /// The place where the timeline left another one.
    from: Option<Place>,
    records: Vec<Record>,
    end: u64,
}

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Wal {
    timelines: Vec<Timeline>,
}

/// The delay of a standby.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    /// The delay of each record, in microseconds.
    pub base_us: u64,
    /// Besides, up to so many.
    pub more_us: u64,
    /// The delay after which it follows the new primary of a promotion.
    pub repoint_us: u64,
}

impl Delay {
    /// Draws a delay from the seed.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Delay {
        Delay {
            base_us: *rng.pick(&[0, 0, 200, 2_000, 20_000, 200_000]),
            more_us: *rng.pick(&[1, 500, 5_000, 30_000]),
            repoint_us: rng.between(1_000, 500_000),
        }
    }

    fn of(&self, lsn: u64) -> u64 {
        self.base_us + (lsn / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.more_us
    }
}

impl Default for Wal {
    fn default() -> Wal {
        let first = Timeline { from: None, records: Vec::new(), end: FIRST_LSN };
        Wal { timelines: vec![first] }
    }
}

impl Wal {
    /// The timeline that began last.
    #[must_use]
    pub fn newest(&self) -> u32 {
        u32::try_from(self.timelines.len()).expect("few timelines")
    }

    fn timeline(&self, number: u32) -> &Timeline {
        &self.timelines[number as usize - 1]
    }

    /// The end of what a timeline's primary has written.
    #[must_use]
    pub fn end(&self, timeline: u32) -> Place {
        Place { timeline, lsn: self.timeline(timeline).end }
    }

    /// The end of the last change of a timeline, or its beginning.
    #[must_use]
    pub fn changed(&self, timeline: u32) -> Place {
        let Timeline { from, records, .. } = self.timeline(timeline);
        let last = records.iter().rev().find(|record| record.change.is_some()).map(|record| record.end);
        Place { timeline, lsn: last.unwrap_or(from.map_or(FIRST_LSN, |from| from.lsn)) }
    }

    /// Returns the place where the next record begins: after a page's header, if the last record ended with a
    /// page.
    #[must_use]
    pub fn inserts_at(&self, timeline: u32) -> u64 {
        let end = self.timeline(timeline).end;
        match (end % SEGMENT_BYTES, end % PAGE_BYTES) {
            (0, _) => end + SEGMENT_HEADER_BYTES,
            (_, 0) => end + PAGE_HEADER_BYTES,
            _ => end,
        }
    }

    /// A primary writes a record: one that commits a change of a client's statement, which it flushes, or another one. Returns where it
    /// ends.
    pub fn write(&mut self, timeline: u32, change: Option<(u32, u32)>, rng: &mut Rng, now_us: u64) -> u64 {
        let begin = self.inserts_at(timeline);
        let rest = PAGE_BYTES - begin % PAGE_BYTES;
        // Often a record ends with its page.
        let bytes = if rng.percent(35) && rest >= 24 { rest } else { 8 * rng.between(4, 60) };
        let crosses = bytes > rest;
        let end = begin + bytes + if crosses { PAGE_HEADER_BYTES } else { 0 };
        let timeline = &mut self.timelines[timeline as usize - 1];
        timeline.records.push(Record { end, at_us: now_us, change, flushes: change.is_some() });
        timeline.end = end;
        end
    }

    /// The end of what a crash of a timeline's primary leaves for certain.
    fn flushed(&self, timeline: u32, now_us: u64) -> u64 {
        let Timeline { from, records, .. } = self.timeline(timeline);
        let last = records.iter().rev().find(|record| record.flushes || record.at_us + WRITER_US <= now_us);
        last.map_or(from.map_or(FIRST_LSN, |from| from.lsn), |record| record.end)
    }

    /// A timeline's primary crashes: of the records that were not flushed, so many are left. Returns where it ends.
    pub fn crash(&mut self, timeline: u32, left: usize, now_us: u64) -> u64 {
        let flushed = self.flushed(timeline, now_us);
        let timeline = &mut self.timelines[timeline as usize - 1];
        let kept = timeline.records.partition_point(|record| record.end <= flushed) + left;
        timeline.records.truncate(kept);
        timeline.end = timeline.records.last().map_or(flushed, |record| record.end);
        timeline.end
    }

    /// A standby that stands there is promoted. Returns its timeline, which begins with a record that says so.
    pub fn promote(&mut self, from: Place, now_us: u64) -> u32 {
        let (begin, end) = (from.lsn, from.lsn + 48);
        let record = Record { end, at_us: now_us, change: None, flushes: true };
        self.timelines.push(Timeline {
            from: Some(Place { lsn: begin, ..from }),
            records: vec![record],
            end,
        });
        self.newest()
    }

    /// The end of an older timeline's part in the history of a newer one, if it has any.
    #[must_use]
    pub fn fork(&self, of: u32, from: u32) -> Option<u64> {
        let (mut number, mut end) = (of, u64::MAX);
        while number != from {
            let left = self.timeline(number).from?;
            (number, end) = (left.timeline, left.lsn);
        }
        Some(end)
    }

    /// A node that stands there has a part of the newest history, and nothing else.
    #[must_use]
    pub fn is_in_newest(&self, place: Place) -> bool {
        self.fork(self.newest(), place.timeline).is_some_and(|end| place.lsn <= end)
    }

    /// Returns the place of a node after it was made a standby of the newest primary.
    #[must_use]
    pub fn rewound(&self) -> Place {
        let newest = self.newest();
        let lsn = self.timeline(newest).from.map_or(self.timeline(newest).end, |from| from.lsn);
        Place { timeline: newest, lsn }
    }

    /// A standby has replayed what is old enough for it.
    pub fn replay(&self, place: &mut Place, delay: Delay, now_us: u64) {
        while let Some(upto) = self.fork(self.newest(), place.timeline).filter(|upto| place.lsn <= *upto) {
            let records = &self.timeline(place.timeline).records;
            let first = records.partition_point(|record| record.end <= place.lsn);
            let sent = upto.min(self.flushed(place.timeline, now_us));
            for record in records[first..].iter().filter(|record| record.end <= sent) {
                if record.at_us + delay.of(record.end) > now_us {
                    return;
                }
                place.lsn = record.end;
            }
            let follows = |number: &u32| {
                let from = self.timeline(*number).from.is_some_and(|from| from.timeline == place.timeline);
                from && self.fork(self.newest(), *number).is_some()
            };
            let Some(next) = (place.timeline + 1..=self.newest()).find(follows) else { return };
            let begins_us = self.timeline(next).records.first().map_or(0, |record| record.at_us);
            if begins_us + delay.repoint_us > now_us {
                return;
            }
            *place = Place { timeline: next, lsn: upto };
        }
    }

    /// A standby starts again so many records before where it was.
    #[must_use]
    pub fn back(&self, place: Place, records: usize) -> Place {
        let timeline = self.timeline(place.timeline);
        let before = timeline.records.iter().rev().filter(|record| record.end <= place.lsn);
        let begin = timeline.from.map_or(FIRST_LSN, |from| from.lsn);
        let lsn = before.map(|record| record.end).nth(records).unwrap_or(begin);
        Place { lsn, ..place }
    }

    /// A state at `place` has what a timeline has there.
    fn has(&self, place: Place, timeline: u32, lsn: u64) -> bool {
        self.fork(place.timeline, timeline).is_some_and(|end| lsn <= end.min(place.lsn))
    }

    /// A state at `place` has all changes that one at `other` had, but for those that the newest history has lost.
    #[must_use]
    pub fn covers(&self, place: Place, other: Place) -> bool {
        let mut part = Some(other);
        while let Some(Place { timeline, lsn }) = part {
            let kept = self.fork(self.newest(), timeline).map_or(0, |end| lsn.min(end));
            let mut changes =
                self.timeline(timeline).records.iter().rev().filter(|record| record.change.is_some());
            if changes
                .find(|record| record.end <= kept)
                .is_some_and(|last| !self.has(place, timeline, last.end))
            {
                return false;
            }
            part = self.timeline(timeline).from;
        }
        true
    }

    /// The number of a client's statement before this one whose change a state at `place` lacks, and the newest history has. `counts`:
    /// whether a change counts.
    #[must_use]
    pub fn lacks(
        &self,
        place: Place,
        (client, before): (u32, u32),
        counts: impl Fn((u32, u32)) -> bool,
    ) -> Option<u32> {
        let is_own = |record: &&Record| {
            let is_before = |(owner, number): &(u32, u32)| *owner == client && *number < before;
            record.change.filter(is_before).is_some_and(&counts)
        };
        self.timelines.iter().zip(1..).find_map(|(timeline, number)| {
            let end = self.fork(self.newest(), number)?;
            let last = timeline.records.iter().rev().filter(is_own).find(|record| record.end <= end)?;
            (!self.has(place, number, last.end)).then_some(last.change.map_or(0, |(_, number)| number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Delay = Delay { base_us: 0, more_us: 1, repoint_us: 0 };

    fn lacks(wal: &Wal, place: Place, statement: (u32, u32)) -> Option<u32> {
        wal.lacks(place, statement, |_| true)
    }

    fn with_changes(count: u32) -> Wal {
        let (mut wal, mut rng) = (Wal::default(), Rng::new(7));
        for number in 1..=count {
            wal.write(1, Some((3, number)), &mut rng, u64::from(number));
        }
        wal
    }

    #[test]
    fn a_standby_replays_what_is_old_enough_and_sees_that() {
        let wal = with_changes(9);
        let mut place = Place { timeline: 1, lsn: FIRST_LSN };
        assert_eq!(lacks(&wal, place, (3, 10)), Some(9));
        assert_eq!(lacks(&wal, place, (3, 1)), None, "that was before any change");
        assert_eq!(lacks(&wal, place, (4, 10)), None, "another client's");
        wal.replay(&mut place, Delay { base_us: 5, ..AT_ONCE }, 10);
        assert_eq!((lacks(&wal, place, (3, 6)), lacks(&wal, place, (3, 7))), (None, Some(6)));
        wal.replay(&mut place, AT_ONCE, 10);
        assert_eq!(place, wal.end(1));
        assert_eq!(lacks(&wal, wal.back(place, 2), (3, 10)), Some(9));
    }

    #[test]
    fn records_end_with_pages_and_the_next_begins_behind_the_header() {
        let (mut wal, mut rng) = (Wal::default(), Rng::new(1));
        let mut starts = 0;
        for number in 0..1000 {
            wal.write(1, Some((1, number)), &mut rng, 0);
            let (end, next) = (wal.end(1).lsn, wal.inserts_at(1));
            assert!(end.is_multiple_of(8) && next >= end);
            starts += u32::from(next != end);
            assert_eq!(next != end, end.is_multiple_of(PAGE_BYTES));
        }
        assert!(starts > 100, "{starts}");
    }

    #[test]
    fn a_crash_loses_what_was_not_flushed_and_no_standby_has_that() {
        let (mut wal, mut rng) = (with_changes(2), Rng::new(7));
        let committed = wal.end(1);
        let marks: Vec<u64> = (0..3).map(|_| wal.write(1, None, &mut rng, 50)).collect();
        assert_eq!(wal.changed(1), committed);
        let mut standby = Place { timeline: 1, lsn: FIRST_LSN };
        wal.replay(&mut standby, AT_ONCE, 60);
        assert_eq!(standby, committed);
        let mut later = wal.clone();
        later.replay(&mut standby, AT_ONCE, 50 + WRITER_US);
        assert_eq!(standby, later.end(1));
        assert_eq!(later.crash(1, 0, 50 + WRITER_US), marks[2]);
        assert_eq!(wal.clone().crash(1, 1, 60), marks[0]);
        assert_eq!(wal.crash(1, 0, 60), committed.lsn);
        assert_eq!(wal.end(1), committed);
    }

    #[test]
    fn a_promotion_loses_what_was_not_replayed() {
        let mut wal = with_changes(9);
        let mut standby = Place { timeline: 1, lsn: FIRST_LSN };
        wal.replay(&mut standby, AT_ONCE, 6);
        let mut other = standby;
        wal.replay(&mut other, AT_ONCE, 7);
        assert!(wal.covers(other, standby) && !wal.covers(standby, other));
        assert_eq!(wal.promote(standby, 20), 2);
        wal.write(2, Some((3, 10)), &mut Rng::new(1), 21);
        assert!(wal.is_in_newest(standby) && !wal.is_in_newest(other));
        assert_eq!(lacks(&wal, wal.end(2), (3, 11)), None, "what is lost is not asked for");
        assert_eq!(lacks(&wal, standby, (3, 11)), Some(10));
        assert_eq!(lacks(&wal, other, (3, 11)), Some(10), "a position beyond, in a history that ended");
        assert!(wal.covers(wal.end(2), other) && !wal.covers(standby, wal.end(2)));
        wal.replay(&mut standby, AT_ONCE, 30);
        assert_eq!(standby, wal.end(2));
        wal.replay(&mut other, AT_ONCE, 30);
        assert_eq!(other.timeline, 1, "it must be made again");
        other = wal.rewound();
        wal.replay(&mut other, AT_ONCE, 30);
        assert_eq!(other, wal.end(2));
    }
}
