//! What a worker decides by itself, from what it measures: how it asks to be scheduled ([`patience`]), and whether it looks for
//! more for a moment before it sleeps ([`vigil`]).
//!
//! Both are found out in trials: two ways take turns for short windows, and what a trial found is kept for a while. One
//! trial runs at a time, and while a worker stays awake its patience is left as it is.
//!
//! This room is arithmetic; it must never call the system.

use patience::Patience;
use vigil::Vigil;

mod patience;
mod vigil;

/// So often a worker looks at what it does.
const WINDOW_US: u64 = 30_000;
/// How long one way is watched in a trial. A machine that is for moments faster or slower is the same one for two windows
/// that follow each other soon.
const TRIAL_WINDOW_US: u64 = 10_000;
/// Most windows of a trial.
const TURNS: u8 = 32;
/// Fewest of them, for what is plain.
const TURNS_MIN: u8 = 8;
/// Below this part of what it moved when it was found better, the load is another one.
const OTHER_LOAD_PERCENT: u64 = 60;
/// That, or idleness, counts after so many windows one after the other: machines stand still for moments.
const LOW_WINDOWS: u8 = 4;
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
    /// Those of them for which it had not gone to sleep.
    pub(crate) awake_turns: u64,
    /// The processor's time that the thread took.
    pub(crate) cpu_ns: u64,
}

impl Work {
    fn since(self, before: Work) -> Work {
        Work {
            bytes: self.bytes - before.bytes,
            busy_us: self.busy_us - before.busy_us,
            turns: self.turns - before.turns,
            awake_turns: self.awake_turns - before.awake_turns,
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
        }
    }
}

/// What a worker did in a stretch of time.
#[derive(Clone, Copy, Debug)]
struct Window {
    us: u64,
    work: Work,
}

impl Window {
    /// Bytes in a second.
    fn rate(&self) -> u64 {
        rate_of(self.work.bytes, self.us)
    }

    fn works_less_than(&self, percent: u64) -> bool {
        self.work.busy_us * 100 < self.us * percent
    }
}

/// Bytes in a second.
fn rate_of(bytes: u64, us: u64) -> u64 {
    bytes.saturating_mul(1_000_000) / us.max(1)
}

/// What was seen of one way in a trial.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    us: u64,
    bytes: u64,
    turns: u64,
    /// In the last window: bytes in a second, and the processor's time for a MiB (ns).
    last_rate: u64,
    last_effort: u64,
}

impl Seen {
    fn add(&mut self, window: &Window) {
        let Window { us, work } = *window;
        self.us += us;
        self.bytes += work.bytes;
        self.turns += work.turns;
        self.last_rate = window.rate();
        self.last_effort = per_mebibyte(work.cpu_ns, work.bytes);
    }

    /// Bytes in a second.
    fn rate(&self) -> u64 {
        rate_of(self.bytes, self.us)
    }
}

fn per_mebibyte(what: u64, bytes: u64) -> u64 {
    what.saturating_mul(1 << 20) / bytes.max(1)
}

/// A way that is tried takes turns with the usual one.
#[derive(Clone, Copy, Default, Debug)]
struct Turns {
    at: u8,
    tried: Seen,
    usual: Seen,
}

/// How far a trial is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// Too little was seen.
    Early,
    /// What is plain by now counts.
    Enough,
    /// It says what it can.
    Over,
}

impl Turns {
    /// They alternate as A B B A, so that a load that grows or fades favours none.
    fn is_tried(&self) -> bool {
        matches!(self.at % 4, 0 | 3)
    }

    /// A window ends. `true` when each had one since the last time.
    fn add(&mut self, window: &Window) -> bool {
        let seen = if self.is_tried() { &mut self.tried } else { &mut self.usual };
        seen.add(window);
        self.at += 1;
        self.at.is_multiple_of(2)
    }

    fn progress(&self) -> Progress {
        match self.at {
            TURNS.. => Progress::Over,
            TURNS_MIN.. if self.at.is_multiple_of(4) => Progress::Enough,
            _ => Progress::Early,
        }
    }
}

/// For how long what was found is kept (µs): longer each time.
#[derive(Clone, Copy, Debug)]
struct Keeping(u64);

impl Keeping {
    /// What is found now is kept until then.
    fn until_us(&mut self, now_us: u64) -> u64 {
        let longer_us = (self.0 * 2).min(KEPT_MAX_US);
        now_us + std::mem::replace(&mut self.0, longer_us)
    }
}

impl Default for Keeping {
    fn default() -> Keeping {
        Keeping(KEPT_MIN_US)
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Manners {
    patience: Option<Patience>,
    vigil: Option<Vigil>,
    since_us: u64,
    before: Work,
}

impl Manners {
    /// For a worker that may wait for others or not, and that may look for more for so long; 0 = not at all.
    pub(crate) fn new(may_wait: bool, awake_us: u64) -> Manners {
        Manners {
            patience: may_wait.then(Patience::new),
            vigil: (awake_us > 0).then(|| Vigil::new(awake_us)),
            since_us: 0,
            before: Work::default(),
        }
    }

    /// How it is scheduled now.
    pub(crate) fn way(&self) -> Way {
        self.patience.as_ref().map_or(Way::Prompt, Patience::way)
    }

    /// Whether it looks for more before it sleeps.
    pub(crate) fn is_awake(&self) -> bool {
        self.vigil.as_ref().is_some_and(Vigil::is_awake)
    }

    /// Whether to tell it with the end of a turn what was done until now.
    #[inline]
    pub(crate) fn is_due(&self, now_us: u64) -> bool {
        let tries = self.patience.as_ref().is_some_and(Patience::tries)
            || self.vigil.as_ref().is_some_and(Vigil::tries);
        now_us >= self.since_us + if tries { TRIAL_WINDOW_US } else { WINDOW_US }
    }

    /// A window ends: see [`is_due`](Manners::is_due). `may_watch`: not so many workers are awake that this one may not be.
    /// Returns the way to be scheduled from now on where it is another one.
    pub(crate) fn window_ends(&mut self, now_us: u64, work: Work, may_watch: bool) -> Option<Way> {
        let us = now_us - std::mem::replace(&mut self.since_us, now_us);
        let window = Window { us, work: work.since(std::mem::replace(&mut self.before, work)) };
        if let Some(vigil) = &mut self.vigil
            && (vigil.tries() || vigil.is_awake())
        {
            vigil.window_ends(now_us, &window);
            return None;
        }
        let change = self.patience.as_mut().and_then(|patience| patience.window_ends(now_us, &window));
        if may_watch
            && self.patience.as_ref().is_none_or(|patience| !patience.tries())
            && let Some(vigil) = &mut self.vigil
        {
            vigil.window_ends(now_us, &window);
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_tried_at_a_time() {
        let (mut manners, mut work, mut now_us) = (Manners::new(true, 150), Work::default(), 1_000_000);
        let (mut patient, mut awake) = (0, 0);
        for _ in 0..20_000 {
            let (was_awake, way) = (manners.is_awake(), manners.way());
            patient += u32::from(way == Way::Patient);
            awake += u32::from(was_awake);
            assert!(!was_awake || way == Way::Prompt, "waiting was not found better");
            now_us += if was_awake { 1_000 } else { 1_800 };
            work.turns += 20;
            work.awake_turns += if was_awake { 20 } else { 0 };
            work.bytes += 2_000;
            work.busy_us += 500;
            work.cpu_ns += 900_000;
            if manners.is_due(now_us) {
                manners.window_ends(now_us, work, true);
            }
        }
        assert!(patient > 10 && awake > 15_000, "{patient}, {awake}");
    }
}
