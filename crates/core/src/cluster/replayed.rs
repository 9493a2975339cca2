//! The replay position of a standby as a pool knows it, and the time since which it belongs to one run of the standby's server.
//!
//! In one run replay only goes forward. A standby that starts again may come up before its former position, even if only its processes were
//! started again and nothing reports that. But a connection does not outlive a run: two connections are of the same run if one of them was
//! open before the other was, and answered a question that was sent after the other was opened.

use crate::cluster::answer::Lsn;

/// The replay position of a standby and the connections for which it is known. All times are of one clock (monotonic, µs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Replayed {
    /// The start of a period; all connections that were open between `from_us` and `upto_us` and still answer are of one run.
    from_us: u64,
    upto_us: u64,
    /// The time at which the newest connection was logged in.
    newest_us: u64,
    /// The highest position that a connection of this run has reported; `None` if none has.
    lsn: Option<Lsn>,
}

/// Whether the changes that a client has seen at a standby are still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seen {
    /// The changes are there: any connection shows at least these.
    Here,
    /// The changes are probably there; an answer of the standby can prove it.
    Unproven,
    /// The changes may be missing, because the standby may have started again.
    Doubtful,
}

impl Replayed {
    /// Returns the state in which nothing is known of the standby.
    pub(crate) fn new(now_us: u64) -> Replayed {
        Replayed { from_us: now_us, upto_us: now_us, newest_us: now_us, lsn: None }
    }

    /// Notes that a connection was logged in. Returns its login time, which no other connection has.
    pub(crate) fn logged_in(&mut self, now_us: u64) -> u64 {
        self.newest_us = now_us.max(self.newest_us + 1);
        self.newest_us
    }

    /// Returns the time for a question or a client's statement that is sent now: later than all logins so far, even if the clock has not
    /// advanced since.
    pub(crate) fn asks_at(&self, now_us: u64) -> u64 {
        now_us.max(self.newest_us + 1)
    }

    /// Takes the position that a connection reported: `logged_in_us` is the connection's login time, `asked_us` the time of the question.
    pub(crate) fn told(&mut self, logged_in_us: u64, asked_us: u64, lsn: Option<Lsn>) {
        if logged_in_us >= self.upto_us {
            // Nothing shows that it is of the same run as those before.
            (self.from_us, self.upto_us, self.lsn) = (logged_in_us, asked_us, lsn);
            return;
        }
        self.from_us = self.from_us.min(logged_in_us);
        self.upto_us = self.upto_us.max(asked_us);
        self.lsn = self.lsn.max(lsn);
    }

    /// Whether all connections are of the run whose position is known.
    fn is_of_all(&self) -> bool {
        self.newest_us < self.upto_us
    }

    /// Returns the position that every connection shows at least; `None` if it is not known for all connections.
    pub(crate) fn lsn(&self) -> Option<Lsn> {
        self.lsn.filter(|_| self.is_of_all())
    }

    /// Whether every connection shows what one of them has shown after `since_us`.
    pub(crate) fn seen_since(&self, since_us: u64) -> Seen {
        match since_us > self.from_us {
            true if self.is_of_all() || self.newest_us < since_us => Seen::Here,
            true => Seen::Unproven,
            false => Seen::Doubtful,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_position_counts_for_connections_that_were_there_when_it_was_asked_for() {
        let mut replayed = Replayed::new(0);
        replayed.logged_in(10);
        assert_eq!(replayed.lsn(), None);
        replayed.told(10, 20, Some(Lsn(5)));
        assert_eq!(replayed.lsn(), Some(Lsn(5)));
        replayed.told(10, 21, Some(Lsn(4)));
        assert_eq!(replayed.lsn(), Some(Lsn(5)), "answers may overtake each other");
        replayed.logged_in(30);
        assert_eq!(replayed.lsn(), None, "the new one may be of another run");
        replayed.told(10, 30, Some(Lsn(6)));
        assert_eq!(replayed.lsn(), None, "it was asked at the same moment, perhaps before");
        assert_eq!((replayed.asks_at(30), replayed.asks_at(40)), (31, 40));
        replayed.told(10, 31, Some(Lsn(7)));
        assert_eq!(replayed.lsn(), Some(Lsn(7)), "an older one has lived to see the new one");
        replayed.logged_in(40);
        replayed.told(40, 41, Some(Lsn(2)));
        assert_eq!(replayed.lsn(), Some(Lsn(2)), "only the new one answers: the others may be gone");
    }

    #[test]
    fn what_was_seen_is_there_until_the_run_may_be_another_one() {
        let mut replayed = Replayed::new(0);
        replayed.logged_in(10);
        assert_eq!(replayed.seen_since(15), Seen::Here);
        replayed.logged_in(20);
        assert_eq!(replayed.seen_since(15), Seen::Unproven);
        let mut other = replayed;
        replayed.told(10, 21, None);
        assert_eq!(replayed.seen_since(15), Seen::Here);
        other.told(20, 21, None);
        assert_eq!(other.seen_since(15), Seen::Doubtful);
        assert_eq!(other.seen_since(25), Seen::Here);
    }

    /// A standby whose runs begin at these times: what it has replayed at a time.
    fn position(runs: &[u64], at_us: u64) -> u64 {
        let begin = runs.iter().filter(|begin| **begin <= at_us).max().copied().unwrap_or(0);
        // Each run begins behind where the last one was.
        at_us - begin / 2 - (at_us - begin) / 2
    }

    proptest! {
        #[test]
        fn no_connection_shows_less_than_what_counts(
            runs in prop::collection::vec(1_u64..400, 0..3),
            steps in prop::collection::vec((1_u64..20, 0_u8..4, any::<prop::sample::Index>()), 1..60)
        ) {
            let run = |at_us: u64| runs.iter().filter(|begin| **begin <= at_us).max().copied().unwrap_or(0);
            let mut replayed = Replayed::new(0);
            let (mut now_us, mut connections, mut seen) = (0, Vec::<u64>::new(), Vec::<(u64, u64)>::new());
            for (us, what, which) in steps {
                now_us += us;
                let alive: Vec<u64> = connections.iter().copied().filter(|login| run(*login) == run(now_us)).collect();
                match what {
                    0 => {
                        connections.push(now_us);
                        replayed.logged_in(now_us);
                    }
                    // It answers a little later; those that are dead do not.
                    1 if !alive.is_empty() => {
                        replayed.told(*which.get(&alive), now_us, Some(Lsn(position(&runs, now_us))));
                    }
                    2 if !alive.is_empty() => seen.push((now_us, position(&runs, now_us + 1))),
                    _ => {}
                }
                now_us += 1;
                let alive = connections.iter().any(|login| run(*login) == run(now_us));
                let shows = position(&runs, now_us);
                if alive && let Some(lsn) = replayed.lsn() {
                    prop_assert!(lsn.0 <= shows, "{lsn:?} and {shows}");
                }
                for (since_us, saw) in &seen {
                    if alive && replayed.seen_since(*since_us) == Seen::Here {
                        prop_assert!(*saw <= shows, "{saw} at {since_us} and {shows} at {now_us}");
                    }
                }
            }
        }
    }
}
