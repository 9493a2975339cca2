//! Whether a worker is scheduled at once when something arrives for it, or after those that run just then.
//!
//! Where clients, the pooler and PostgreSQL share processors that are busy, a worker that is woken by each arriving byte
//! interrupts the very threads that were about to send more. Asked to wait for its turn (Linux: SCHED_BATCH, see
//! sched(7)), it finds more to do in each of its turns: fewer system calls, fewer switches. But next to a process that computes
//! without end that means to wait for it. So no fixed rule decides: while the worker is busy, both ways take turns for
//! short windows now and then, and waiting is kept where it takes less of the processor's time for as much, or moves more in
//! fewer turns: that it seemed to in as many turns is chance (one client, whose every message is a turn, is only answered
//! later). In fewer turns it only needs to seem easier: on a restless machine proof would take minutes. If other processes use the
//! machine, too, the processor's time says more than what is moved: it varies less.
//!
//! This file is arithmetic; it must never call the system.

use pgweir_core::pairs::Pairs;

use super::{
    KEPT_MIN_US, Keeping, LOW_WINDOWS, OTHER_LOAD_PERCENT, Progress, Seen, Turns, Way, Window, per_mebibyte,
};

/// A worker that works less than so much of the time has nothing to try ...
const BUSY_PERCENT: u64 = 25;
/// ... and nothing to gain below this. (With fewer, larger turns the same load takes less of its time.)
const IDLE_PERCENT: u64 = 8;
/// Waiting must take so much less of the processor's time, in thousandths and beyond what may be chance ...
const EASIER: i64 = 20;
/// ... and not move less by so much, unless that may be chance; ...
const SLOWER: i64 = 20;
/// ... or it must move so much more, without a doubt, ...
const FASTER: i64 = 20;
/// ... in so many percent fewer turns.
const FEWER_TURNS_PERCENT: u64 = 3;

/// What a trial found.
#[derive(Clone, Copy, Default, Debug)]
struct Found {
    /// By how much waiting moves more.
    faster: Pairs,
    /// By how much not waiting takes more effort.
    harder: Pairs,
}

/// Both ways taking turns: to wait is what is tried.
#[derive(Clone, Copy, Default, Debug)]
struct Trial {
    turns: Turns,
    found: Found,
}

impl Trial {
    fn add(&mut self, window: &Window) {
        if self.turns.add(window) {
            let Turns { tried: patient, usual: prompt, .. } = self.turns;
            self.found.faster.add(prompt.last_rate, patient.last_rate);
            self.found.harder.add(patient.last_effort, prompt.last_effort);
        }
    }

    /// `None` as long as nothing is plain and the trial goes on.
    fn verdict(&self) -> Option<Verdict> {
        let Found { faster, harder } = self.found;
        match self.turns.progress() {
            Progress::Early => return None,
            Progress::Enough => {}
            Progress::Over => return Some(self.last_verdict()),
        }
        let (eased, moved) = (harder.mean().0, faster.mean().0);
        let slows = moved + faster.chance(5) < -SLOWER;
        let eases = eased - harder.chance(5) > EASIER && moved >= -SLOWER;
        match (eases, slows) {
            (true, _) => Some(Verdict::Wait),
            (false, true) => Some(Verdict::WaitNot),
            (false, false) => None,
        }
    }

    /// What seems so but may be chance counts where waiting takes fewer turns, which is no chance.
    fn last_verdict(&self) -> Verdict {
        let turns = |seen: &Seen| per_mebibyte(seen.turns, seen.bytes);
        let in_fewer =
            turns(&self.turns.tried) * 100 < turns(&self.turns.usual) * (100 - FEWER_TURNS_PERCENT);
        let ((faster, rate_error), (harder, effort_error)) =
            (self.found.faster.mean(), self.found.harder.mean());
        let may_be_chance = if in_fewer { 0 } else { effort_error };
        let as_fast = faster + rate_error >= -SLOWER;
        if as_fast && harder - may_be_chance > EASIER || in_fewer && faster - 2 * rate_error > FASTER {
            Verdict::Wait
        } else if as_fast && in_fewer && harder + effort_error > EASIER {
            Verdict::Unknown
        } else {
            Verdict::WaitNot
        }
    }
}

/// What a trial says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Wait,
    WaitNot,
    /// Not to wait, for now: another trial is to follow soon, which goes on where this one ended.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Prompt; no trial before this moment (µs).
    Prompt {
        until_us: u64,
    },
    Trying(Trial),
    Patient(Kept),
    /// Prompt, as there is little to do; patient again when there is more.
    Resting(Kept),
}

/// Patient until this moment (µs), unless much less is moved than so many bytes in a second; in so many windows it was.
#[derive(Clone, Copy, Debug)]
struct Kept {
    until_us: u64,
    rate: u64,
    low: u8,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Patience {
    phase: Phase,
    way: Way,
    keeping: Keeping,
    learnt: Found,
}

impl Patience {
    pub(super) fn new() -> Patience {
        Patience {
            phase: Phase::Prompt { until_us: 0 },
            way: Way::Prompt,
            keeping: Keeping::default(),
            learnt: Found::default(),
        }
    }

    /// The way taken now.
    pub(super) fn way(&self) -> Way {
        self.way
    }

    pub(super) fn tries(&self) -> bool {
        matches!(self.phase, Phase::Trying(_))
    }

    /// Returns the way to take from now on where it is another one.
    pub(super) fn window_ends(&mut self, now_us: u64, window: &Window) -> Option<Way> {
        let (calm, is_idle) = (window.works_less_than(BUSY_PERCENT), window.works_less_than(IDLE_PERCENT));
        self.phase = match self.phase {
            Phase::Prompt { until_us } if calm || now_us < until_us => Phase::Prompt { until_us },
            Phase::Prompt { .. } => self.begin_trial(),
            Phase::Trying(trial) => self.try_on(now_us, window, trial),
            Phase::Patient(kept) => {
                let fell = window.rate() * 100 < kept.rate * OTHER_LOAD_PERCENT;
                match kept.low {
                    // A worker that does little is in no other process's way.
                    LOW_WINDOWS.. if is_idle => Phase::Resting(kept),
                    LOW_WINDOWS.. if fell => {
                        (self.keeping, self.learnt) = Default::default();
                        self.begin_trial()
                    }
                    low if is_idle || fell => Phase::Patient(Kept { low: low + 1, ..kept }),
                    _ if now_us >= kept.until_us => self.begin_trial(),
                    _ => Phase::Patient(Kept { low: 0, ..kept }),
                }
            }
            Phase::Resting(kept) if calm => Phase::Resting(kept),
            Phase::Resting(kept) => Phase::Patient(Kept { low: 0, ..kept }),
        };
        let way = match self.phase {
            Phase::Patient(_) => Way::Patient,
            Phase::Trying(trial) if trial.turns.is_tried() => Way::Patient,
            Phase::Prompt { .. } | Phase::Resting(_) | Phase::Trying(_) => Way::Prompt,
        };
        (std::mem::replace(&mut self.way, way) != way).then_some(way)
    }

    /// What an earlier trial of the same load said counts half.
    fn begin_trial(&self) -> Phase {
        let found = Found { faster: self.learnt.faster.half(), harder: self.learnt.harder.half() };
        Phase::Trying(Trial { found, ..Trial::default() })
    }

    fn try_on(&mut self, now_us: u64, window: &Window, mut trial: Trial) -> Phase {
        trial.add(window);
        let Some(verdict) = trial.verdict() else { return Phase::Trying(trial) };
        self.learnt = trial.found;
        if verdict == Verdict::Unknown {
            return Phase::Prompt { until_us: now_us + KEPT_MIN_US };
        }
        let until_us = self.keeping.until_us(now_us);
        if verdict == Verdict::Wait {
            Phase::Patient(Kept { until_us, rate: trial.turns.tried.rate(), low: 0 })
        } else {
            Phase::Prompt { until_us }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KEPT_MAX_US, Manners, TURNS, Work};
    use super::*;

    /// What a worker moves and the number of turns that this takes, per millisecond, in each way.
    struct Machine {
        prompt: (u64, u64),
        patient: (u64, u64),
        busy_percent: u64,
    }

    /// Of a worker that is never awake.
    fn manners() -> Manners {
        Manners::new(true, 0)
    }

    /// Runs for so many seconds; returns the number of milliseconds that it was patient. Each turn costs as much as 100 bytes.
    fn run(manners: &mut Manners, machine: &Machine, from_ms: u64, seconds: u64, work: &mut Work) -> u64 {
        run_ms(manners, machine, from_ms, seconds * 1_000, work)
    }

    fn run_ms(manners: &mut Manners, machine: &Machine, from_ms: u64, for_ms: u64, work: &mut Work) -> u64 {
        let mut patient_ms = 0;
        for ms in from_ms..from_ms + for_ms {
            let (bytes, turns) = if manners.way() == Way::Patient { machine.patient } else { machine.prompt };
            patient_ms += u64::from(manners.way() == Way::Patient);
            work.bytes += bytes;
            work.turns += turns;
            work.busy_us += machine.busy_percent * 10;
            work.cpu_ns += (bytes + turns * 100) * 50;
            let now_us = (ms + 1_000) * 1_000;
            if manners.is_due(now_us) {
                manners.window_ends(now_us, *work, false);
            }
        }
        patient_ms
    }

    #[test]
    fn it_waits_where_that_moves_more() {
        let machine = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        let patient_ms = run(&mut manners(), &machine, 0, 20, &mut Work::default());
        assert!(patient_ms > 19_800, "{patient_ms}");
    }

    #[test]
    fn it_waits_where_that_moves_as_much_with_less_effort() {
        let machine = Machine { prompt: (4_000, 80), patient: (3_990, 50), busy_percent: 80 };
        let patient_ms = run(&mut manners(), &machine, 0, 20, &mut Work::default());
        assert!(patient_ms > 19_800, "{patient_ms}");
    }

    #[test]
    fn it_does_not_wait_for_a_process_that_computes_without_end() {
        let machine = Machine { prompt: (4_000, 80), patient: (500, 5), busy_percent: 80 };
        let patient_ms = run(&mut manners(), &machine, 0, 60, &mut Work::default());
        assert!(patient_ms < 1_000, "{patient_ms}");
    }

    #[test]
    fn it_does_not_wait_where_that_takes_as_many_turns() {
        let machine = Machine { prompt: (4_000, 80), patient: (4_200, 82), busy_percent: 35 };
        let patient_ms = run(&mut manners(), &machine, 0, 60, &mut Work::default());
        assert!(patient_ms < 1_000, "{patient_ms}");
    }

    #[test]
    fn a_machine_that_stands_still_for_a_moment_begins_no_trial() {
        let (mut manners, mut work) = (manners(), Work::default());
        let good = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        run(&mut manners, &good, 0, 1, &mut work);
        let mut patient_ms = 0;
        for at in 0..5 {
            for ms in 0..60 {
                patient_ms += u64::from(manners.way() == Way::Patient);
                let now_us = (2_000 + at * 300 + ms) * 1_000;
                if manners.is_due(now_us) {
                    manners.window_ends(now_us, work, false);
                }
            }
            patient_ms += run_ms(&mut manners, &good, 1_060 + at * 300, 240, &mut work);
        }
        assert_eq!(patient_ms, 5 * 300);
    }

    /// Moves, and takes for it, by chance up to 40 % more or less from window to window.
    fn run_restless(manners: &mut Manners, prompt_turns: u64, patient_turns: u64, seed: u64) -> u64 {
        let (mut work, mut patient_ms, mut chance) = (Work::default(), 0, seed);
        let mut luck = || {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            600 + (chance >> 33) % 800
        };
        let (mut speed, mut effort) = (1_000, 1_000);
        for ms in 0..20_000_u64 {
            if ms.is_multiple_of(10) {
                (speed, effort) = (luck(), luck());
            }
            let is_patient = manners.way() == Way::Patient;
            patient_ms += u64::from(is_patient);
            let turns = if is_patient { patient_turns } else { prompt_turns };
            work.bytes += 4 * speed;
            work.turns += turns * speed / 1_000;
            work.busy_us += 800;
            work.cpu_ns += (200_000 + turns * 5_000) * speed / 1_000 * effort / 1_000;
            let now_us = (ms + 1_000) * 1_000;
            if manners.is_due(now_us) {
                manners.window_ends(now_us, work, false);
            }
        }
        patient_ms
    }

    #[test]
    fn a_restless_machine_hides_it_for_seconds_only() {
        let mut patient_ms: Vec<u64> =
            (0..50).map(|seed| run_restless(&mut manners(), 52, 40, seed * 7 + 1)).collect();
        patient_ms.sort_unstable();
        assert!(patient_ms[10] > 15_000 && patient_ms[25] > 19_000, "{patient_ms:?}");
        // Where it takes as many turns, chance is not taken for more.
        let mut patient_ms: Vec<u64> =
            (0..50).map(|seed| run_restless(&mut manners(), 40, 40, seed * 7 + 1)).collect();
        patient_ms.sort_unstable();
        assert!(patient_ms[25] < 1_000 && patient_ms[40] < 12_000, "{patient_ms:?}");
    }

    #[test]
    fn what_a_trial_leaves_open_is_tried_again_soon() {
        let trial = |patient_turns, efforts: [u64; 2]| {
            let seen = |turns| Seen { bytes: 1 << 20, turns, ..Seen::default() };
            let mut found = Found::default();
            for at in 0..16 {
                found.faster.add(1_000, 1_000);
                found.harder.add(1_000, efforts[at % 2]);
            }
            Trial { turns: Turns { at: TURNS, usual: seen(100), tried: seen(patient_turns) }, found }
        };
        // Half of the pairs say that it is easier by far, and half that it is harder.
        let (open, easier) = ([1_300, 760], [1_300, 860]);
        assert_eq!(trial(80, open).verdict(), Some(Verdict::Unknown));
        assert_eq!(trial(100, open).verdict(), Some(Verdict::WaitNot));
        assert_eq!(trial(80, easier).verdict(), Some(Verdict::Wait));
        assert_eq!(trial(100, easier).verdict(), Some(Verdict::WaitNot));

        let mut patience = Patience { keeping: Keeping(KEPT_MAX_US), ..Patience::new() };
        let window = Window { us: 10_000, work: Work { bytes: 1 << 20, turns: 1, ..Work::default() } };
        let mut early = trial(80, open);
        early.turns.at = TURNS - 2;
        let next = patience.try_on(1_000_000, &window, early);
        assert!(matches!(next, Phase::Trying(_)), "{next:?}");
        let next = patience.try_on(1_000_000, &window, trial(80, open));
        assert!(
            matches!(next, Phase::Prompt { until_us } if until_us == 1_000_000 + KEPT_MIN_US),
            "{next:?}"
        );
    }

    #[test]
    fn after_a_rest_it_is_patient_at_once() {
        let (mut manners, mut work) = (manners(), Work::default());
        let good = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        run(&mut manners, &good, 0, 5, &mut work);
        let calm = Machine { prompt: (10, 1), patient: (10, 1), busy_percent: 1 };
        run(&mut manners, &calm, 5_000, 1, &mut work);
        assert_eq!(manners.way(), Way::Prompt);
        let patient_ms = run(&mut manners, &good, 6_000, 1, &mut work);
        assert!(patient_ms > 940, "{patient_ms}");
    }

    #[test]
    fn an_idle_worker_is_prompt_and_tries_nothing() {
        let machine = Machine { prompt: (40, 8), patient: (80, 8), busy_percent: 5 };
        assert_eq!(run(&mut manners(), &machine, 0, 20, &mut Work::default()), 0);
    }

    #[test]
    fn when_the_load_turns_it_turns_too() {
        let (mut manners, mut work) = (manners(), Work::default());
        let good = Machine { prompt: (4_000, 80), patient: (4_500, 40), busy_percent: 80 };
        run(&mut manners, &good, 0, 30, &mut work);
        assert_eq!(manners.way(), Way::Patient);
        let crowded = Machine { prompt: (3_000, 80), patient: (800, 20), busy_percent: 80 };
        let patient_ms = run(&mut manners, &crowded, 30_000, 10, &mut work);
        assert!(patient_ms < 1_000, "{patient_ms}");
        let calm = Machine { prompt: (10, 1), patient: (10, 1), busy_percent: 1 };
        run(&mut manners, &calm, 40_000, 1, &mut work);
        assert_eq!(manners.way(), Way::Prompt);
    }
}
