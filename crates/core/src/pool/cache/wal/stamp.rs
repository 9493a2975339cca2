//! Stamps: what PostgreSQL says at one moment about which transactions are visible. A statement that is sent after a stamp was answered sees
//! at least what the stamp shows.
//!
//! A stamp is a snapshot and no position in the write-ahead log: PostgreSQL sends the changes of a transaction before the transaction is
//! visible, so that a statement that is sent after a change was received may still not see it.

/// The visible transactions at one moment, as `pg_current_snapshot` tells them. All numbers are of 64 bits and never wrap around.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// All transactions below this one are over.
    xmin: u64,
    /// No transaction from this one on is visible.
    xmax: u64,
    /// The transactions from `xmin` on that were not over, in order.
    running: Box<[u64]>,
}

impl Stamp {
    /// Reads a snapshot as PostgreSQL writes it: `xmin:xmax:` and the running transactions, separated by commas.
    pub(crate) fn parse(text: &[u8]) -> Option<Stamp> {
        let text = std::str::from_utf8(text).ok()?;
        let mut parts = text.splitn(3, ':');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (xmin, xmax) = (number()?, number()?);
        let list = parts.next()?;
        let running = list.split(',').filter(|part| !part.is_empty()).map(|part| part.parse::<u64>().ok());
        let running: Box<[u64]> = running.collect::<Option<_>>()?;
        let is_ordered = running.is_sorted() && xmin <= xmax;
        let is_within = running.iter().all(|xid| (xmin..xmax).contains(xid));
        (is_ordered && is_within).then_some(Stamp { xmin, xmax, running })
    }

    /// Whether the transaction is visible.
    pub(crate) fn shows(&self, xid: u64) -> bool {
        xid < self.xmax && (xid < self.xmin || self.running.binary_search(&xid).is_err())
    }

    /// Whether all transactions that were running at `earlier` are over.
    pub(crate) fn is_after_all_of(&self, earlier: &Stamp) -> bool {
        self.xmin >= earlier.xmax
    }

    /// Whether all transactions up to this one are over.
    pub(crate) fn is_beyond(&self, xid: u64) -> bool {
        self.xmin > xid
    }

    /// Returns the whole number of a transaction of which the stream has told the lower 32 bits. PostgreSQL keeps running transactions
    /// within 2^31 of the next one.
    pub(crate) fn widen(&self, xid: u32) -> u64 {
        let difference = xid.wrapping_sub(self.xmax as u32).cast_signed();
        self.xmax.wrapping_add_signed(i64::from(difference))
    }

    /// Returns the oldest transaction that is not over, for SHOW CACHE.
    pub(crate) fn oldest(&self) -> u64 {
        self.xmin
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stamp(text: &str) -> Stamp {
        Stamp::parse(text.as_bytes()).expect("it is a snapshot")
    }

    #[test]
    fn a_snapshot_is_read() {
        let stamp = stamp("10:20:10,14");
        let visible: Vec<u64> = (8..22).filter(|&xid| stamp.shows(xid)).collect();
        assert_eq!(visible, [8, 9, 11, 12, 13, 15, 16, 17, 18, 19]);
        for text in
            ["", "10", "10:20", "20:10:", "10:20:14,10", "10:20:9", "10:20:20", "a:b:", "10:20:x", "-1:3:"]
        {
            assert_eq!(Stamp::parse(text.as_bytes()), None, "{text}");
        }
        assert!(Stamp::parse(b"10:10:").is_some());
    }

    #[test]
    fn the_transactions_of_a_start_are_over_when_the_oldest_one_is_newer() {
        let first = stamp("10:20:10,14");
        assert!(!stamp("14:25:14").is_after_all_of(&first));
        assert!(!stamp("19:25:19").is_after_all_of(&first));
        assert!(stamp("20:25:20").is_after_all_of(&first));
        assert!(stamp("14:25:14").is_beyond(13) && !stamp("14:25:14").is_beyond(14));
    }

    proptest! {
        #[test]
        fn a_number_is_widened_near_the_stamp(xmax in (1u64 << 33)..(1u64 << 60), by in -0x7fff_0000i64..0x7fff_0000) {
            let stamp = Stamp { xmin: xmax, xmax, running: Box::default() };
            let whole = xmax.wrapping_add_signed(by);
            prop_assert_eq!(stamp.widen(whole as u32), whole);
        }

        #[test]
        fn an_old_transaction_is_visible_however_many_came_since(xid in 3u64..1000, since in (1u64 << 31)..(1u64 << 40)) {
            let stamp = Stamp { xmin: xid + since, xmax: xid + since, running: Box::default() };
            prop_assert!(stamp.shows(xid) && !stamp.shows(xid + since));
        }
    }
}
