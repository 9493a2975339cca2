//! How a worker asks to be scheduled: at once when something arrives for it, or after those that run just then.
//!
//! Where clients, the pooler and PostgreSQL share processors that are busy, a worker that is woken by each arriving byte
//! interrupts the very threads that were about to send more. Asked to wait for its turn (Linux: SCHED_BATCH, see
//! sched(7)), it finds more to do in each of its turns: fewer system calls, fewer switches. But next to a process that computes
//! without end that means to wait for it. So nobody decides by thought: while the worker is busy, both ways take turns for
//! short windows now and then, and waiting is kept where it moves more, or as much with less effort, in fewer turns: that it
//! seemed to move more in as many turns is chance (one client, whose every message is a turn, is only answered later).
//!
//! This file is arithmetic; it must never call the system.

/// How long one way is watched.
const WINDOW_US: u64 = 30_000;
/// Windows of a trial. The ways alternate as A B B A, so that a load that grows or fades favours none.
const TURNS: u8 = 8;
/// A worker that works less than so much of the time has nothing to try ...
const BUSY_PERCENT: u64 = 25;
/// ... and nothing to gain below this. (With fewer, larger turns the same load takes less of its time.)
const IDLE_PERCENT: u64 = 8;
/// Waiting must move so much more, in percent, in so many percent fewer turns ...
const GAIN_PERCENT: u64 = 2;
/// See [`GAIN_PERCENT`].
const FEWER_TURNS_PERCENT: u64 = 3;
/// ... or not so much less, in so many percent fewer turns.
const LOSS_PERCENT: u64 = 2;
/// See [`LOSS_PERCENT`].
const FAR_FEWER_TURNS_PERCENT: u64 = 10;
/// Below this part of what it moved when it was found better, the load is another one.
const OTHER_LOAD_PERCENT: u64 = 60;
/// How long what was found is kept, at first and at most.
const KEPT_MIN_US: u64 = 3_000_000;
/// See [`KEPT_MIN_US`].
const KEPT_MAX_US: u64 = 60_000_000;

/// How a worker is scheduled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// As every thread: it may interrupt others when it is woken.
    Prompt,
    /// It waits until those that run have had their time.
    Patient,
}

/// A worker's counters since it began.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Work {
    /// Bytes that were read.
    pub(crate) bytes: u64,
    /// Time spent in turns.
    pub(crate) busy_us: u64,
    /// Turns of the loop.
    pub(crate) turns: u64,
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work {
            bytes: self.bytes - before.bytes,
            busy_us: self.busy_us - before.busy_us,
            turns: self.turns - before.turns,
        }
    }
}

/// What was seen of one way in a trial.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    us: u64,
    bytes: u64,
    turns: u64,
}

impl Seen {
    fn add(&mut self, us: u64, work: Work) {
        self.us += us;
        self.bytes += work.bytes;
        self.turns += work.turns;
    }

    /// Bytes in a second.
    fn rate(&self) -> u64 {
        self.bytes.saturating_mul(1_000_000) / self.us.max(1)
    }

    /// Turns for a MiB.
    fn turns(&self) -> u64 {
        self.turns.saturating_mul(1 << 20) / self.bytes.max(1)
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Prompt; no trial before this moment (µs).
    Prompt {
        until_us: u64,
    },
    Trying {
        turn: u8,
        prompt: Seen,
        patient: Seen,
    },
    /// Patient until this moment (µs), unless less is moved than so many bytes in a second.
    Patient {
        until_us: u64,
        rate: u64,
    },
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Manners {
    phase: Phase,
    way: Way,
    since_us: u64,
    before: Work,
    kept_us: u64,
}

impl Manners {
    pub(crate) fn new() -> Manners {
        Manners {
            phase: Phase::Prompt { until_us: 0 },
            way: Way::Prompt,
            since_us: 0,
            before: Work::default(),
            kept_us: KEPT_MIN_US,
        }
    }

    /// The way taken now.
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    /// A turn ends. Returns the way to take from now on where it is another one.
    #[inline]
    pub(crate) fn turn_ends(&mut self, now_us: u64, work: Work) -> Option<Way> {
        if now_us < self.since_us + WINDOW_US {
            return None;
        }
        self.window_ends(now_us, work)
    }

    fn window_ends(&mut self, now_us: u64, work: Work) -> Option<Way> {
        let us = now_us - std::mem::replace(&mut self.since_us, now_us);
        let seen = work.since(std::mem::replace(&mut self.before, work));
        let works_less_than = |percent: u64| seen.busy_us * 100 < us * percent;
        let (calm, idle) = (works_less_than(BUSY_PERCENT), works_less_than(IDLE_PERCENT));
        self.phase = match self.phase {
            Phase::Prompt { until_us } if calm || now_us < until_us => Phase::Prompt { until_us },
            Phase::Prompt { .. } => begin_trial(),
            // Who does little is in nobody's way.
            Phase::Trying { .. } | Phase::Patient { .. } if idle => {
                Phase::Prompt { until_us: now_us + KEPT_MIN_US }
            }
            Phase::Trying { turn, prompt, patient } => self.try_on(now_us, (us, seen), turn, prompt, patient),
            Phase::Patient { until_us, rate } => {
                let fell = seen.bytes * 1_000_000 / us * 100 < rate * OTHER_LOAD_PERCENT;
                if fell {
                    self.kept_us = KEPT_MIN_US;
                }
                if fell || now_us >= until_us { begin_trial() } else { Phase::Patient { until_us, rate } }
            }
        };
        let way = match self.phase {
            Phase::Prompt { .. } => Way::Prompt,
            Phase::Patient { .. } => Way::Patient,
            Phase::Trying { turn, .. } => way_of(turn),
        };
        (std::mem::replace(&mut self.way, way) != way).then_some(way)
    }

    fn try_on(
        &mut self,
        now_us: u64,
        (us, work): (u64, Work),
        turn: u8,
        mut prompt: Seen,
        mut patient: Seen,
    ) -> Phase {
        match self.way {
            Way::Prompt => prompt.add(us, work),
            Way::Patient => patient.add(us, work),
        }
        if turn + 1 < TURNS {
            return Phase::Trying { turn: turn + 1, prompt, patient };
        }
        let until_us = now_us + self.kept_us;
        self.kept_us = (self.kept_us * 2).min(KEPT_MAX_US);
        if is_better(&prompt, &patient) {
            Phase::Patient { until_us, rate: patient.rate() }
        } else {
            Phase::Prompt { until_us }
        }
    }
}

fn begin_trial() -> Phase {
    Phase::Trying { turn: 0, prompt: Seen::default(), patient: Seen::default() }
}

fn way_of(turn: u8) -> Way {
    if matches!(turn % 4, 0 | 3) { Way::Patient } else { Way::Prompt }
}

fn is_better(prompt: &Seen, patient: &Seen) -> bool {
    let (before, now) = (prompt.rate(), patient.rate().saturating_mul(100));
    let fewer = |percent| patient.turns() * 100 < prompt.turns() * (100 - percent);
    fewer(FEWER_TURNS_PERCENT) && now > before.saturating_mul(100 + GAIN_PERCENT)
        || fewer(FAR_FEWER_TURNS_PERCENT) && now >= before.saturating_mul(100 - LOSS_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker moves and how many turns it takes for it, per millisecond, in each way.
    struct Machine {
        prompt: (u64, u64),
        patient: (u64, u64),
        busy_percent: u64,
    }

    /// Runs for so many seconds; returns how many milliseconds it was patient.
    fn run(manners: &mut Manners, machine: &Machine, from_ms: u64, seconds: u64, work: &mut Work) -> u64 {
        let mut patient_ms = 0;
        for ms in from_ms..from_ms + seconds * 1_000 {
            let (bytes, turns) = if manners.way == Way::Patient { machine.patient } else { machine.prompt };
            patient_ms += u64::from(manners.way == Way::Patient);
            work.bytes += bytes;
            work.turns += turns;
            work.busy_us += machine.busy_percent * 10;
            manners.turn_ends((ms + 1_000) * 1_000, *work);
        }
        patient_ms
    }

    #[test]
    fn it_waits_where_that_moves_more() {
        let machine = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        let patient_ms = run(&mut Manners::new(), &machine, 0, 20, &mut Work::default());
        assert!(patient_ms > 18_500, "{patient_ms}");
    }

    #[test]
    fn it_waits_where_that_moves_as_much_with_less_effort() {
        let machine = Machine { prompt: (4_000, 80), patient: (3_990, 50), busy_percent: 80 };
        let patient_ms = run(&mut Manners::new(), &machine, 0, 20, &mut Work::default());
        assert!(patient_ms > 18_500, "{patient_ms}");
    }

    #[test]
    fn it_does_not_wait_for_somebody_who_computes_without_end() {
        let machine = Machine { prompt: (4_000, 80), patient: (500, 5), busy_percent: 80 };
        let patient_ms = run(&mut Manners::new(), &machine, 0, 60, &mut Work::default());
        assert!(patient_ms < 1_000, "{patient_ms}");
    }

    #[test]
    fn it_does_not_wait_where_that_takes_as_many_turns() {
        let machine = Machine { prompt: (4_000, 80), patient: (4_200, 82), busy_percent: 35 };
        let patient_ms = run(&mut Manners::new(), &machine, 0, 60, &mut Work::default());
        assert!(patient_ms < 1_000, "{patient_ms}");
    }

    #[test]
    fn an_idle_worker_is_prompt_and_tries_nothing() {
        let machine = Machine { prompt: (40, 8), patient: (80, 8), busy_percent: 5 };
        assert_eq!(run(&mut Manners::new(), &machine, 0, 20, &mut Work::default()), 0);
    }

    #[test]
    fn when_the_load_turns_it_turns_too() {
        let (mut manners, mut work) = (Manners::new(), Work::default());
        let good = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        run(&mut manners, &good, 0, 30, &mut work);
        assert_eq!(manners.way, Way::Patient);
        let crowded = Machine { prompt: (3_000, 80), patient: (800, 20), busy_percent: 80 };
        let patient_ms = run(&mut manners, &crowded, 30_000, 10, &mut work);
        assert!(patient_ms < 1_000, "{patient_ms}");
        let calm = Machine { prompt: (10, 1), patient: (10, 1), busy_percent: 1 };
        run(&mut manners, &calm, 40_000, 1, &mut work);
        assert_eq!(manners.way, Way::Prompt);
    }
}
