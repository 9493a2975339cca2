//! Whether a worker looks for more for a moment before it sleeps.
//!
//! To put a thread to sleep and to wake it again takes longer than many a statement, and with few clients it happens at each
//! message. While the processors have nothing else to do, a worker that keeps looking answers much sooner; where they have, it
//! is in the way of those it waits for. So it is tried, where what a worker waits for comes soon: looking and
//! sleeping take turns for short windows, and looking, which takes a processor's time for it, is kept where much more is
//! moved. A client that sends now and then moves as much in either way, and a worker never keeps looking for it.
//!
//! This file is arithmetic; it must never call the system.

use pgweir_core::pairs::Pairs;

use super::{Keeping, LOW_WINDOWS, OTHER_LOAD_PERCENT, Progress, Turns, Window};

/// So much more must be moved, in thousandths of the mean of both ways.
const LIVELIER: i64 = 150;
/// A worker that works more than so much of the time hardly sleeps.
const FULL_PERCENT: u64 = 80;
/// Looking that finds something less often than this is over.
const FINDS_PERCENT: u64 = 50;

/// Looking, which is tried, and sleeping take turns.
#[derive(Clone, Copy, Default, Debug)]
struct Trial {
    turns: Turns,
    /// By how much more is moved by a worker that looks.
    livelier: Pairs,
}

impl Trial {
    fn add(&mut self, window: &Window) {
        if self.turns.add(window) {
            self.livelier.add(self.turns.usual.last_rate, self.turns.tried.last_rate);
        }
    }

    /// Whether to look; `None` as long as nothing is plain and the trial goes on.
    fn verdict(&self) -> Option<bool> {
        let (more, error) = self.livelier.mean();
        match self.turns.progress() {
            Progress::Early => return None,
            Progress::Enough => {}
            Progress::Over => return Some(more - error > LIVELIER),
        }
        let chance = self.livelier.chance(5);
        match (more - chance > LIVELIER, more + chance < LIVELIER) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No trial before this moment (µs).
    Asleep {
        until_us: u64,
    },
    Trying(Trial),
    /// Until this moment (µs), unless the load becomes another one than that of which so many bytes in a second were moved; in
    /// so many windows it seemed to be.
    Awake {
        until_us: u64,
        rate: u64,
        other: u8,
    },
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Vigil {
    phase: Phase,
    awake_us: u64,
    keeping: Keeping,
    learnt: Pairs,
}

impl Vigil {
    /// `awake_us`: so long is looked.
    pub(super) fn new(awake_us: u64) -> Vigil {
        Vigil {
            phase: Phase::Asleep { until_us: 0 },
            awake_us,
            keeping: Keeping::default(),
            learnt: Pairs::default(),
        }
    }

    pub(super) fn is_awake(&self) -> bool {
        match self.phase {
            Phase::Asleep { .. } => false,
            Phase::Trying(trial) => trial.turns.is_tried(),
            Phase::Awake { .. } => true,
        }
    }

    pub(super) fn tries(&self) -> bool {
        matches!(self.phase, Phase::Trying(_))
    }

    pub(super) fn window_ends(&mut self, now_us: u64, window: &Window) {
        self.phase = match self.phase {
            Phase::Asleep { until_us } if now_us < until_us || !self.has_reason(window) => self.phase,
            Phase::Asleep { .. } => {
                // What an earlier trial of the same load said counts half.
                Phase::Trying(Trial { livelier: self.learnt.half(), ..Trial::default() })
            }
            Phase::Trying(trial) => self.try_on(now_us, window, trial),
            Phase::Awake { until_us, .. } if now_us >= until_us => Phase::Asleep { until_us },
            Phase::Awake { other: LOW_WINDOWS.., .. } => {
                (self.keeping, self.learnt) = Default::default();
                Phase::Asleep { until_us: now_us }
            }
            Phase::Awake { until_us, rate, other } => {
                let other = if is_other_load(window, rate) { other + 1 } else { 0 };
                Phase::Awake { until_us, rate, other }
            }
        };
    }

    /// What it sleeps for comes, in the mean, while it would still look.
    fn has_reason(&self, window: &Window) -> bool {
        let slept_us = window.us.saturating_sub(window.work.busy_us);
        window.works_less_than(FULL_PERCENT) && slept_us <= window.work.turns.saturating_mul(self.awake_us)
    }

    fn try_on(&mut self, now_us: u64, window: &Window, mut trial: Trial) -> Phase {
        trial.add(window);
        let Some(look) = trial.verdict() else { return Phase::Trying(trial) };
        self.learnt = trial.livelier;
        let until_us = self.keeping.until_us(now_us);
        if look {
            Phase::Awake { until_us, rate: trial.turns.tried.rate(), other: 0 }
        } else {
            Phase::Asleep { until_us }
        }
    }
}

/// Much less is moved than when it was found good to look, or much more, or little is found.
fn is_other_load(window: &Window, found_rate: u64) -> bool {
    let (rate, work) = (window.rate(), window.work);
    rate * 100 < found_rate * OTHER_LOAD_PERCENT
        || rate * OTHER_LOAD_PERCENT > found_rate * 100
        || work.awake_turns * 100 < work.turns * FINDS_PERCENT
}

#[cfg(test)]
mod tests {
    use super::super::{Manners, TURNS, Work};
    use super::*;

    const AWAKE_US: u64 = 150;

    /// Clients and servers that send again so long after they were answered; a worker that sleeps is woken late.
    #[derive(Clone, Copy)]
    struct Peers {
        pause_us: u64,
        wake_us: u64,
        /// What a turn takes; longer for a worker that is in the way of other threads.
        turn_us: u64,
        awake_turn_us: u64,
        /// A turn takes by chance so many percent more or less, changing every 10 ms.
        unrest_percent: u64,
    }

    const FEW: Peers = Peers { pause_us: 40, wake_us: 40, turn_us: 10, awake_turn_us: 10, unrest_percent: 0 };

    /// A worker and the time.
    struct Model {
        manners: Manners,
        work: Work,
        now_us: u64,
        luck: u64,
    }

    impl Model {
        fn new(awake_us: u64) -> Model {
            Model {
                manners: Manners::new(false, awake_us),
                work: Work::default(),
                now_us: 1_000_000,
                luck: 1,
            }
        }

        /// Returns the percentage of the time that it was awake.
        fn run(&mut self, peers: Peers, seconds: u64) -> u64 {
            let (began_us, mut awake_us) = (self.now_us, 0);
            let (until_us, mut unrest, mut changes_us) = (began_us + seconds * 1_000_000, 100, 0);
            while self.now_us < until_us {
                if self.now_us >= changes_us {
                    self.luck = self
                        .luck
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    unrest = 100 - peers.unrest_percent + (self.luck >> 33) % (2 * peers.unrest_percent + 1);
                    changes_us = self.now_us + 10_000;
                }
                let is_awake = self.manners.is_awake();
                let caught = is_awake && peers.pause_us <= AWAKE_US;
                let waited_us = peers.pause_us + if caught { 0 } else { peers.wake_us };
                let turn_us = if is_awake { peers.awake_turn_us } else { peers.turn_us };
                let lasted_us = (waited_us + turn_us) * unrest / 100;
                self.now_us += lasted_us;
                awake_us += if is_awake { lasted_us } else { 0 };
                self.work.busy_us += turn_us * unrest / 100;
                self.work.turns += 1;
                self.work.awake_turns += u64::from(caught);
                self.work.bytes += 100;
                if self.manners.is_due(self.now_us) {
                    self.manners.window_ends(self.now_us, self.work, true);
                }
            }
            awake_us * 100 / (self.now_us - began_us)
        }
    }

    #[test]
    fn it_looks_where_waking_takes_as_long_as_what_it_waits_for() {
        assert!(Model::new(AWAKE_US).run(FEW, 20) >= 98);
        assert_eq!(Model::new(0).run(FEW, 20), 0);
    }

    #[test]
    fn a_restless_machine_does_not_hide_it() {
        let restless = Peers { unrest_percent: 30, ..FEW };
        assert!(Model::new(AWAKE_US).run(restless, 60) >= 90);
        // Nor is chance taken for more.
        let level = Peers { wake_us: 2, ..restless };
        assert!(Model::new(AWAKE_US).run(level, 60) <= 3);
    }

    #[test]
    fn it_sleeps_where_looking_is_in_the_way_of_others() {
        let crowded = Peers { awake_turn_us: 60, ..FEW };
        assert!(Model::new(AWAKE_US).run(crowded, 60) <= 2);
    }

    #[test]
    fn what_comes_now_and_then_is_not_looked_for() {
        let leisurely = Peers { pause_us: 400, ..FEW };
        assert_eq!(Model::new(AWAKE_US).run(leisurely, 20), 0);
        let mut model = Model::new(AWAKE_US);
        model.run(FEW, 20);
        assert!(model.manners.is_awake());
        // A few windows until that is noticed.
        assert!(model.run(leisurely, 5) <= 5 && !model.manners.is_awake());
        assert!(model.run(FEW, 5) >= 95);
    }

    #[test]
    fn what_was_found_is_tried_again() {
        let mut model = Model::new(AWAKE_US);
        model.run(FEW, 60);
        // Awake, nothing seems to change.
        let woken_at_once = Peers { wake_us: 0, ..FEW };
        model.run(woken_at_once, 60);
        assert!(!model.manners.is_awake());
        // What another load showed does not count: this one is tried again soon.
        let mut model = Model::new(AWAKE_US);
        model.run(FEW, 60);
        model.run(Peers { pause_us: 400, ..FEW }, 1);
        model.run(FEW, 1);
        let awake_percent = model.run(woken_at_once, 20);
        assert!(awake_percent <= 20, "{awake_percent}");
    }

    #[test]
    fn another_load_is_known_by_what_is_moved_and_what_is_found() {
        let window = |bytes, awake_turns| {
            let work = Work { bytes, turns: 100, awake_turns, ..Work::default() };
            Window { us: 1_000_000, work }
        };
        let is_other = |bytes, awake_turns| is_other_load(&window(bytes, awake_turns), 1_000);
        assert!(!is_other(1_000, 100) && !is_other(600, 50) && !is_other(1_666, 50));
        assert!(is_other(599, 100) && is_other(1_667, 100) && is_other(1_000, 49));
    }

    #[test]
    fn a_trial_that_ends_open_says_what_is_likely() {
        let trial = |pairs: &[(u64, u64)]| {
            let mut livelier = Pairs::default();
            (0..16).map(|at| pairs[at % pairs.len()]).for_each(|(asleep, awake)| livelier.add(asleep, awake));
            Trial { turns: Turns { at: TURNS, ..Turns::default() }, livelier }.verdict()
        };
        assert_eq!(trial(&[(1_000, 1_900), (1_000, 900)]), Some(true));
        assert_eq!(trial(&[(1_000, 1_600), (1_000, 900)]), Some(false));
        assert_eq!(trial(&[(1_000, 1_150)]), Some(false));
    }

    #[test]
    fn a_load_that_grows_is_tried_again() {
        let mut model = Model::new(AWAKE_US);
        model.run(FEW, 20);
        let many = Peers { pause_us: 8, wake_us: 1, awake_turn_us: 16, ..FEW };
        assert!(model.run(many, 5) <= 8 && !model.manners.is_awake());
    }

    #[test]
    fn a_worker_that_hardly_sleeps_tries_nothing() {
        let busy = Peers { pause_us: 1, wake_us: 1, turn_us: 20, ..FEW };
        assert_eq!(Model::new(AWAKE_US).run(busy, 20), 0);
    }

    #[test]
    fn where_enough_others_are_awake_it_is_not() {
        let mut manners = Manners::new(false, AWAKE_US);
        let mut work = Work::default();
        for window in 1..100_u64 {
            work.turns += 300;
            work.bytes += 30_000;
            manners.window_ends(window * 30_000, work, false);
            assert!(!manners.is_awake());
        }
        manners.window_ends(3_000_000, work, true);
        manners.window_ends(3_030_000, Work { turns: work.turns + 300, ..work }, true);
        assert!(manners.is_awake());
    }
}
