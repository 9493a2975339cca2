//! The number of servers that a pool keeps busy with short statements before it wakes another one.
//!
//! Waking an idle backend costs two context switches and a cold cache, and beyond the database's cores more
//! busy backends only disturb each other. The best number is found by trying: another number and the one that
//! is kept take turns for a few short windows each, so that what changes by itself in the meantime hits both,
//! until the difference is more than chance. More servers are kept if they complete more statements (or as
//! many, and answer them much sooner), fewer if that costs next to nothing. Trials that fail become rarer;
//! when the load changes its nature they begin again. Statements that had to wait so long that idle servers
//! were woken are a reason to try at once, and never one to believe: if the host is overloaded, they wait
//! because too many servers are busy.
//!
//! This file is arithmetic: the time is passed in, and it never sees a connection.

use pgweir_settings::AutoCount;

use crate::limits::{WAKE_AFTER_US, WAKE_IN_VAIN_AFTER_US};
use crate::pool::session::pairs::Pairs;

/// Shortest time over which completions are counted.
const WINDOW_US: u64 = 40_000;
/// Shortest time of a window in a trial (µs), if answers are quick. A machine changes its speed within moments, so two short windows
/// that follow each other are compared under more equal conditions.
const SHORT_WINDOW_US: u64 = 8_000;
/// Number of times that each client is answered in such a window, about.
const ANSWERS_PER_WINDOW: u64 = 4;
/// Longest time of a window (µs). If too few statements end in this time, the window does not count.
const WINDOW_MAX_US: u64 = 1_000_000;
/// Fewest statements of a window.
const SAMPLES_MIN: u64 = 64;
/// Most pairs of windows of a trial: the number that is tried and the one that is kept take turns.
const PAIRS_MAX: i64 = 30;
/// Fewest pairs of windows before a trial is decided, so that one moment in which the machine stood still decides nothing.
const PAIRS_MIN: i64 = 2;
/// Shortest time before another number is accepted (µs). (A number that is plainly worse is given up sooner, because statements wait
/// in the meantime.)
const TRIAL_MIN_US: u64 = 120_000;
/// Time after which fewer pairs are enough to decide a trial (µs). Windows are long if answers take long or statements are few.
const TRIAL_MAX_US: u64 = 600_000;
/// Time without a statement after which the measurements begin again (µs).
const PAUSE_US: u64 = 250_000;
/// Shortest time after a change that is not counted (µs), because statements that were under way are answered in it.
const SETTLE_MIN_US: u64 = 1_500;
/// Longest time after a change that is not counted (µs).
const SETTLE_MAX_US: u64 = 50_000;
/// More servers must complete so much more, in thousandths, beside what may be chance ...
const GAIN: i64 = 15;
/// ... or answer in so much of the time. (If clients ask again at once, a gain at the servers only moves the
/// wait to another place, unless more is completed; it must be plain.)
const SOONER_PERCENT: u64 = 60;
/// Fewer servers may complete so much less, in thousandths ...
const LOSS: i64 = 20;
/// ... and take so much of the time to answer.
const LATER_PERCENT: u64 = 150;
/// Factor between two measurements from which the load counts as another one. (A machine that is shared with others can be twice as
/// fast at one moment as at another.)
const OTHER_LOAD: u64 = 3;
/// Windows between two trials, at first and at most.
const KEEP_WINDOWS_MIN: u32 = 2;
/// Greatest number of windows between two trials.
const KEEP_WINDOWS_MAX: u32 = 200;
/// Number of windows within which trials do not begin again.
const CALM_WINDOWS: u32 = 25;
/// Windows in which a load begins: clients come one after the other.
const START_WINDOWS: u32 = 5;

/// The measurements of a window or of several.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    elapsed_us: u64,
    count: u64,
    response_us: u64,
    wait_us: u64,
    /// Idle servers that were woken although the target was reached, and the most that were busy then.
    woken: u64,
    busy_max: u32,
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.elapsed_us += other.elapsed_us;
        self.count += other.count;
        self.response_us += other.response_us;
    }

    /// Completions in a thousand seconds.
    fn rate(&self) -> u64 {
        self.count.saturating_mul(1_000_000_000) / self.elapsed_us.max(1)
    }

    /// Mean time to the answer (µs, in sixteenths).
    fn response(&self) -> u64 {
        self.response_us.saturating_mul(16) / self.count.max(1)
    }
}

/// The change of the target that a trial tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Double,
    Halve,
    More,
    Fewer,
}

impl Move {
    /// The number to be tried instead.
    fn from(self, target: u32) -> u32 {
        match self {
            Move::Double => target.saturating_mul(2),
            Move::Halve => target / 2,
            Move::More => target.saturating_add((target / 4).max(1)),
            Move::Fewer => target - (target / 8).max(1).min(target),
        }
    }

    /// Whether the small step from this number of servers is the same as the large step, which is tried separately.
    fn is_other_from(self, target: u32) -> bool {
        match self {
            Move::Double | Move::Halve => false,
            Move::More => self.from(target) == Move::Double.from(target),
            Move::Fewer => self.from(target) == Move::Halve.from(target),
        }
    }

    /// Returns the change to try after this one was in vain.
    fn next(self) -> Move {
        match self {
            Move::Double => Move::Halve,
            Move::Halve => Move::More,
            Move::More => Move::Fewer,
            Move::Fewer => Move::Double,
        }
    }
}

/// Two numbers of servers that take turns.
#[derive(Clone, Copy, Debug)]
struct Trial {
    home: u32,
    away: u32,
    turn: u8,
    at_home: Seen,
    there: Seen,
    /// Completions in the last window.
    last_rate: u64,
    /// How long each window lasts at least.
    window_us: u64,
    /// The differences in completions between the number that is tried and the one that is kept.
    gains: Pairs,
}

impl Trial {
    fn new(home: u32, away: u32, window_us: u64) -> Trial {
        let (at_home, there) = (Seen::default(), Seen::default());
        Trial { home, away, turn: 0, at_home, there, last_rate: 0, window_us, gains: Pairs::default() }
    }

    /// Whether the number that is tried is better than the one that is kept; `None` as long as the difference may be chance.
    fn verdict(&self) -> Option<bool> {
        let (mean, error) = self.gains.mean();
        let response = self.there.response().saturating_mul(100);
        let than_home = |percent| self.at_home.response().saturating_mul(percent);
        let up = self.away > self.home;
        let (least, fits) = match up {
            true if mean >= -LOSS && response < than_home(SOONER_PERCENT) => (-LOSS, true),
            true => (GAIN, true),
            false => (-LOSS, response <= than_home(LATER_PERCENT)),
        };
        let elapsed_us = self.at_home.elapsed_us + self.there.elapsed_us;
        // To stay needs less than to go: what was given up too soon is tried again.
        if self.gains.count() >= PAIRS_MIN && mean + self.gains.chance(3) < least {
            return Some(false);
        }
        if elapsed_us < TRIAL_MIN_US || self.gains.count() < PAIRS_MIN {
            return None;
        }
        if self.gains.count() == PAIRS_MAX || elapsed_us > TRIAL_MAX_US {
            return Some(fits && mean >= if up { least + error } else { least });
        }
        // It is looked at again and again: so chance must be rare at each time.
        (mean - self.gains.chance(5) > least).then_some(fits)
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The target is kept for this number of windows.
    Keeping(u32),
    Trying(Trial),
}

/// The controller of the number of servers that a pool keeps busy with short statements.
#[derive(Debug)]
pub(crate) struct Pace {
    target: u32,
    phase: Phase,
    seen: Seen,
    /// The time at which the window began (monotonic, µs); 0: the window begins with the next statement.
    since_us: u64,
    /// Completions and response time of the target that is kept, as in [`Seen`]; 0: not measured.
    base_rate: u64,
    base_response: u64,
    keep_windows: u32,
    next: Move,
    /// Whether more servers were tried with this load and did not help.
    in_vain: bool,
    /// Windows since the trials began again.
    calm: u32,
    decisions: u64,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            target: 2,
            phase: Phase::Keeping(KEEP_WINDOWS_MIN),
            seen: Seen::default(),
            since_us: 0,
            base_rate: 0,
            base_response: 0,
            keep_windows: KEEP_WINDOWS_MIN,
            next: Move::Double,
            in_vain: false,
            calm: 0,
            decisions: 0,
        }
    }

    /// Servers to keep busy with short statements.
    #[inline]
    pub(crate) fn target(&self, servers: AutoCount) -> u32 {
        match servers {
            AutoCount::Auto => self.target,
            AutoCount::Fixed(count) => count,
        }
    }

    /// How often another number was found better.
    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Longest wait of a short statement while a server is idle (µs). The wait is longer during a trial, because additional servers
    /// would hide the effect of the number that is tried.
    pub(crate) fn wake_after_us(&self) -> u64 {
        let tries = matches!(self.phase, Phase::Trying(_));
        if self.in_vain || tries { WAKE_IN_VAIN_AFTER_US } else { WAKE_AFTER_US }
    }

    /// Notes that an idle server was woken although the target is reached, because waiting would take too long. `busy` is the number
    /// of busy servers with it.
    pub(crate) fn note_woken(&mut self, busy: u32) {
        self.seen.woken += 1;
        self.seen.busy_max = self.seen.busy_max.max(busy);
    }

    /// Notes that a short statement was answered after `response_us`, of which it waited `wait_us` for a server. Returns whether
    /// there are enough measurements to [`judge`](Pace::judge).
    #[inline]
    pub(crate) fn note(&mut self, now_us: u64, response_us: u64, wait_us: u64) -> bool {
        if self.since_us == 0 {
            self.since_us = now_us;
        }
        // While what was changed settles, the window has not begun.
        let Some(elapsed_us) = now_us.checked_sub(self.since_us) else { return false };
        if elapsed_us - self.seen.elapsed_us > PAUSE_US {
            self.doze(now_us);
            return false;
        }
        self.seen.count += 1;
        self.seen.response_us += response_us;
        self.seen.wait_us += wait_us;
        self.seen.elapsed_us = elapsed_us;
        let window_us = match &self.phase {
            Phase::Keeping(_) => WINDOW_US,
            Phase::Trying(trial) => trial.window_us,
        };
        elapsed_us >= window_us && (self.seen.count >= SAMPLES_MIN || elapsed_us >= WINDOW_MAX_US)
    }

    /// Judges a window that is over. `size` is the greatest possible number of servers.
    pub(crate) fn judge(&mut self, now_us: u64, size: u32) {
        let seen = std::mem::take(&mut self.seen);
        self.since_us = now_us;
        if seen.count < SAMPLES_MIN || seen.elapsed_us >= 2 * WINDOW_MAX_US {
            return self.doze(now_us);
        }
        self.calm = self.calm.saturating_add(1);
        let before = self.target;
        match self.phase {
            Phase::Keeping(left) => self.keep(&seen, left, size.max(1)),
            Phase::Trying(trial) => self.compare(trial, &seen),
        }
        self.target = self.target.min(size.max(1));
        if self.target != before {
            let response_us = seen.response_us / seen.count;
            self.since_us = now_us + response_us.clamp(SETTLE_MIN_US, SETTLE_MAX_US);
        }
    }

    /// Pauses the trials because there are too few statements. The last target is kept for the case that the same load returns; the
    /// first windows of the next load do not count against it.
    fn doze(&mut self, now_us: u64) {
        (self.since_us, self.seen) = (now_us, Seen::default());
        if let Phase::Trying(trial) = self.phase {
            self.target = trial.home;
        }
        self.calm = CALM_WINDOWS - START_WINDOWS;
        self.phase = Phase::Keeping(self.keep_windows.max(START_WINDOWS));
    }

    fn keep(&mut self, seen: &Seen, left: u32, size: u32) {
        let (rate, response) = (seen.rate(), seen.response());
        let other = |base: u64, now: u64| base > 0 && (now > base * OTHER_LOAD || now * OTHER_LOAD < base);
        if (other(self.base_rate, rate) || other(self.base_response, response)) && self.calm >= CALM_WINDOWS {
            // The load is another one.
            return self.begin_again(rate, response);
        }
        // One statement of a hundred had to wake a server.
        let many_woken = seen.woken.saturating_mul(100) > seen.count && seen.busy_max > self.target;
        if many_woken && !self.in_vain {
            // More servers were busy than the target says: what they did is not its doing.
            (self.base_rate, self.base_response) = (0, 0);
            return self.attempt(seen.busy_max.min(size));
        }
        let smooth = |base: u64, now: u64| if base == 0 { now } else { (base * 3 + now) / 4 };
        self.base_rate = smooth(self.base_rate, rate);
        self.base_response = smooth(self.base_response, response);
        if left > 0 {
            self.phase = Phase::Keeping(left - 1);
            return;
        }
        // If no client waits, more servers cannot help.
        let waits = seen.wait_us.saturating_mul(10) > seen.response_us;
        for _ in 0..4 {
            let away = self.next.from(self.target).clamp(1, size);
            if away != self.target && !self.next.is_other_from(self.target) && (waits || away < self.target) {
                return self.attempt(away);
            }
            self.next = self.next.next();
        }
    }

    fn attempt(&mut self, away: u32) {
        if away == self.target {
            return;
        }
        let response_us = self.base_response / 16;
        let window_us = match response_us {
            0 => WINDOW_US,
            _ => (response_us * ANSWERS_PER_WINDOW).clamp(SHORT_WINDOW_US, WINDOW_US),
        };
        self.phase = Phase::Trying(Trial::new(self.target, away, window_us));
        self.target = away;
    }

    fn compare(&mut self, mut trial: Trial, seen: &Seen) {
        if self.target == trial.away {
            trial.there.add(seen);
        } else {
            trial.at_home.add(seen);
        }
        trial.turn += 1;
        // A plain result is not tried for longer.
        let first = trial.turn == 1 && self.base_rate > 0 && trial.window_us >= WINDOW_US;
        if first && (seen.rate() * 10 < self.base_rate * 7 || seen.response() > self.base_response * 2) {
            return self.decide(&trial, false);
        }
        if first && trial.away > trial.home && seen.rate() * 10 > self.base_rate * 15 {
            return self.decide(&trial, true);
        }
        let (rate, last) = (seen.rate(), std::mem::replace(&mut trial.last_rate, seen.rate()));
        if trial.turn % 2 == 1 {
            // The other one of a pair is next; the pairs begin with either in turns.
            self.target = if self.target == trial.away { trial.home } else { trial.away };
        } else {
            let (home, there) = if self.target == trial.away { (last, rate) } else { (rate, last) };
            trial.gains.add(home, there);
            if let Some(better) = trial.verdict() {
                return self.decide(&trial, better);
            }
        }
        self.phase = Phase::Trying(trial);
    }

    fn decide(&mut self, trial: &Trial, better: bool) {
        let up = trial.away > trial.home;
        if better {
            self.target = trial.away;
            self.decisions += 1;
            self.keep_windows = KEEP_WINDOWS_MIN;
            (self.base_rate, self.base_response) = (trial.there.rate(), trial.there.response());
            self.in_vain = false;
            self.phase = Phase::Keeping(0);
        } else {
            self.target = trial.home;
            self.in_vain |= up;
            self.next = self.next.next();
            self.keep_windows = (self.keep_windows * 3).min(KEEP_WINDOWS_MAX);
            self.phase = Phase::Keeping(self.keep_windows);
        }
    }

    fn begin_again(&mut self, rate: u64, response: u64) {
        (self.base_rate, self.base_response) = (rate, response);
        self.keep_windows = KEEP_WINDOWS_MIN;
        self.next = Move::Double;
        self.in_vain = false;
        self.calm = 0;
        self.phase = Phase::Keeping(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Completions in a thousandth of a second with 1, 2, ... busy servers, as measured on two cores: 20 clients, and 200.
    const FEW: [u64; 8] = [45, 50, 50, 46, 43, 40, 39, 38];
    const MANY: [u64; 8] = [45, 60, 63, 66, 65, 63, 62, 61];

    /// The same 20 clients on another day.
    const STEEP: [u64; 8] = [36, 52, 51, 49, 47, 46, 43, 41];

    /// The throughput measured with one thread that sends statements: it stays nearly the same beyond two servers.
    const FLAT: [u64; 8] = [40, 51, 52, 52, 52, 51, 51, 50];

    /// Moments in which a machine is faster or slower: each part lasts so long (ms, about) and is so large (in thousandths). What
    /// a machine of two processors showed: 28 % between spans of 2.5 ms, 24 % of 10 ms, 20 % of 40 ms, 18 % of 80 ms.
    const RESTLESS: [(u64, i64); 4] = [(2, 200), (20, 120), (300, 150), (1500, 300)];

    struct Noise {
        draw: u64,
        parts: [(u64, i64); 4],
    }

    impl Noise {
        fn draw(&mut self) -> u64 {
            self.draw =
                self.draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.draw >> 33
        }

        /// The speed in this millisecond, in thousandths.
        fn speed(&mut self, ms: u64) -> u64 {
            for (at, (lasts_ms, size)) in RESTLESS.into_iter().enumerate() {
                if ms >= self.parts[at].0 {
                    // A sum of three is near enough to a normal distribution; its deviation is 0.5.
                    let sum: u64 = (0..3).map(|_| self.draw() % 1000).sum();
                    let value = (i64::try_from(sum).expect("small") - 1500) * 2 * size / 1000;
                    self.parts[at] = (ms + 1 + self.draw() % (2 * lasts_ms), value);
                }
            }
            let sum: i64 = 1000 + self.parts.iter().map(|part| part.1).sum::<i64>();
            sum.clamp(200, 2000).unsigned_abs()
        }
    }

    /// The share of the best possible work that is done on a restless machine over so many seconds, and the
    /// mean target, in thousandths; and in how much of the time (ten-thousandths) the number was one with
    /// which a tenth less is done.
    fn share_of_best(rates: &[u64], clients: u64, seconds: u64, seed: u64) -> (u64, u64, u64) {
        let mut noise = Noise { draw: seed, parts: [(0, 0); 4] };
        let mut pace = Pace::new();
        let most = rates.iter().max().expect("there are some");
        let (mut done, mut best, mut targets, mut bad) = (0, 0, 0, 0);
        for ms in 0..seconds * 1000 {
            let speed = noise.speed(ms);
            let target = pace.target(AutoCount::Auto) as usize;
            targets += target as u64;
            let rate = rates[target.min(rates.len()) - 1] * speed / 100;
            bad += u64::from(rates[target.min(rates.len()) - 1] * 10 < most * 9);
            done += rate;
            best += most * speed / 100;
            let response_us = clients * 10_000 / rate;
            let count = (rate + ms % 10) / 10;
            for number in 0..count {
                let now_us = (1000 + ms) * 1000 + number * 1000 / count;
                if pace.note(now_us, response_us, response_us / 2) {
                    pace.judge(now_us, 8);
                }
            }
        }
        (done * 1000 / best, targets / seconds, bad * 10_000 / (seconds * 1000))
    }

    #[test]
    fn on_a_restless_machine_little_is_lost_against_the_best_number() {
        let loads = [(FEW, 20, 985), (STEEP, 20, 985), (MANY, 200, 955), (FLAT, 20, 970)];
        for (rates, clients, least) in loads {
            let seen: Vec<_> = (1..=60).map(|seed| share_of_best(&rates, clients, 5, seed * 7919)).collect();
            let mean = |of: fn(&(u64, u64, u64)) -> u64| seen.iter().map(of).sum::<u64>() / 60;
            let (share, target, bad) = (mean(|seen| seen.0), mean(|seen| seen.1), mean(|seen| seen.2));
            assert!(share >= least && target < 4_000, "{clients} clients: {share}, {target} servers");
            // A client that is answered late in a trial is one of the hundred that all clients look at.
            assert!(bad <= 100, "{clients} clients: {bad} of 10,000 with a bad number");
        }
    }

    #[test]
    fn what_was_found_is_kept_over_a_pause() {
        let mut pace = Pace::new();
        let mut model = Model::new(400, 4, 500);
        model.run(&mut pace, 15);
        let (tried, changes) = (pace.keep_windows, pace.decisions());
        model.now_us += 20_000_000;
        model.run(&mut pace, 2);
        assert!(pace.decisions() - changes <= 1 && pace.keep_windows >= tried, "{pace:?}");
    }

    /// Servers share `cores`; each statement takes `work_us` of one, and a wake-up costs something when a server waits for
    /// work. So many clients ask as soon as they are answered.
    struct Model {
        clients: u64,
        cores: u64,
        work_us: u64,
        size: u32,
        now_us: u64,
        noise: u64,
    }

    impl Model {
        fn new(clients: u64, cores: u64, work_us: u64) -> Model {
            Model { clients, cores, work_us, size: 64, now_us: 1_000_000, noise: 1 }
        }

        /// Statements per second with so many busy servers: more than there are cores lose to switching between them.
        fn rate(&self, busy: u64) -> u64 {
            let useful = busy.min(self.cores);
            let surplus = busy.saturating_sub(self.cores);
            useful * 1_000_000 / self.work_us * 100 / (100 + 8 * surplus.min(20))
        }

        /// Runs for so many seconds; returns where the target stood at the end.
        fn run(&mut self, pace: &mut Pace, seconds: u64) -> u32 {
            let end_us = self.now_us + seconds * 1_000_000;
            while self.now_us < end_us {
                let target = u64::from(pace.target(AutoCount::Auto));
                let rate = self.rate(target.min(self.clients));
                let waited_us = (self.clients * 1_000_000 / rate).saturating_sub(self.work_us);
                let step = (rate / 1_000).max(1);
                self.now_us += step * 1_000_000 / rate;
                self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = (self.noise >> 40) % 20;
                for _ in 0..step {
                    let response_us = self.clients * 1_000_000 / rate * (990 + noise) / 1000;
                    if pace.note(self.now_us, response_us, waited_us) {
                        pace.judge(self.now_us, self.size);
                    }
                }
            }
            pace.target(AutoCount::Auto)
        }
    }

    #[test]
    fn it_finds_about_the_number_of_cores() {
        for (cores, allowed) in [(1, 1..=2), (2, 1..=3), (4, 3..=6), (32, 22..=40)] {
            let mut pace = Pace::new();
            let target = Model::new(400, cores, 500).run(&mut pace, 15);
            assert!(allowed.contains(&target), "{cores} cores: {target}");
        }
    }

    #[test]
    fn it_stays_where_it_is_good() {
        let mut pace = Pace::new();
        let mut model = Model::new(400, 4, 500);
        model.run(&mut pace, 15);
        let before = pace.decisions();
        model.run(&mut pace, 20);
        assert!(pace.decisions() - before <= 20, "{} changes", pace.decisions() - before);
    }

    #[test]
    fn one_server_is_enough_if_no_client_waits() {
        let mut pace = Pace::new();
        assert_eq!(Model::new(1, 32, 100).run(&mut pace, 5), 1);
    }

    /// Statements of which many have to wake a server; `better`: more busy servers answer sooner. Returns the targets seen.
    fn woken(better: bool, windows: u64) -> Vec<u32> {
        let (mut pace, mut now_us) = (Pace::new(), 1_000_000);
        let mut targets = Vec::new();
        for _ in 0..windows * 100 {
            now_us += 1_000;
            let target = pace.target(AutoCount::Auto);
            pace.note_woken(9);
            let response_us = if better { 20_000 / u64::from(target) } else { 20_000 };
            if pace.note(now_us, response_us, response_us / 2) {
                pace.judge(now_us, 25);
            }
            targets.push(target);
        }
        targets
    }

    #[test]
    fn when_servers_had_to_be_woken_their_number_is_tried_within_a_second() {
        assert!(woken(true, 10).last().is_some_and(|&target| target >= 9));
        assert_eq!(AutoCount::Fixed(3), AutoCount::Fixed(Pace::new().target(AutoCount::Fixed(3))));
    }

    #[test]
    fn in_an_overload_that_is_tried_and_given_up() {
        let targets = woken(false, 100);
        assert!(targets.contains(&9));
        let high = targets.iter().filter(|&&target| target >= 9).count();
        assert!(high * 5 < targets.len(), "{high} of {}", targets.len());
    }

    #[test]
    fn a_pool_that_shrinks_takes_the_target_along() {
        let mut pace = Pace::new();
        Model::new(400, 32, 500).run(&mut pace, 10);
        let mut small = Model { size: 2, now_us: 900_000_000, ..Model::new(400, 32, 500) };
        assert!(small.run(&mut pace, 2) <= 2);
    }
}
