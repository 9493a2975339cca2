//! How many servers a pool keeps busy with short statements before it wakes another one.
//!
//! Waking an idle backend costs two context switches and a cold cache, and beyond the database's cores more busy backends only
//! disturb each other. The best number is found by trying: one server more, or fewer, for a while, and kept if short
//! statements are answered sooner (with a fixed number of clients that is the same as: if more of them complete), or with
//! fewer servers not later. It starts with one. Trials that fail become rarer; when the load changes its nature they begin
//! anew. And when statements had to wait so long that idle servers were woken anyway, their number is tried at once.
//!
//! This file is arithmetic: the time is passed in, and it never sees a connection.

use pgweir_settings::AutoCount;

/// Shortest time over which answers are measured.
const WINDOW_US: u64 = 100_000;
/// Longest one: what few statements say in this time counts nothing.
const WINDOW_MAX_US: u64 = 1_000_000;
/// Fewest statements a judgement is based on.
const SAMPLES_MIN: u64 = 64;
/// More servers must be this much better, in percent ...
const GAIN_PERCENT: u64 = 4;
/// ... and fewer may be this much worse.
const LOSS_PERCENT: u64 = 2;
/// Windows between two trials, at first and at most.
const PATIENCE_MIN: u32 = 2;
/// See [`PATIENCE_MIN`].
const PATIENCE_MAX: u32 = 100;

/// What a window saw.
#[derive(Clone, Copy, Default, Debug)]
struct Seen {
    since_us: u64,
    count: u64,
    response_us: u64,
    wait_us: u64,
    /// Idle servers that were woken although the target was reached, and the most that were busy then.
    woken: u64,
    busy_max: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The target is kept for so many windows.
    Keeping(u32),
    /// Another target was set: the first window shows the change only in part.
    Settling { from: u32 },
    /// The next window is compared.
    Judging { from: u32 },
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pace {
    target: u32,
    phase: Phase,
    seen: Seen,
    /// Mean time to the answer with the target that was kept (µs, in sixteenths); 0: not measured.
    base: u64,
    patience: u32,
    /// The next trial is with more servers.
    upwards: bool,
    stride: u32,
    decisions: u64,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            target: 1,
            phase: Phase::Keeping(PATIENCE_MIN),
            seen: Seen::default(),
            base: 0,
            patience: PATIENCE_MIN,
            upwards: true,
            stride: 1,
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

    /// How often the target was changed.
    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// An idle server is woken although the target is reached, because waiting would take too long; `busy` with it.
    pub(crate) fn note_woken(&mut self, busy: u32) {
        self.seen.woken += 1;
        self.seen.busy_max = self.seen.busy_max.max(busy);
    }

    /// A short statement was answered so long after it had been asked, of which it waited so long for a server. `size` is
    /// the most servers there can be.
    #[inline]
    pub(crate) fn note(&mut self, now_us: u64, response_us: u64, wait_us: u64, size: u32) {
        let seen = &mut self.seen;
        if seen.since_us == 0 {
            seen.since_us = now_us.saturating_sub(response_us.min(WINDOW_US));
        }
        seen.count += 1;
        seen.response_us += response_us;
        seen.wait_us += wait_us;
        let elapsed_us = now_us.saturating_sub(seen.since_us);
        if elapsed_us >= WINDOW_US && (seen.count >= SAMPLES_MIN || elapsed_us >= WINDOW_MAX_US) {
            let seen = std::mem::take(seen);
            if seen.count >= SAMPLES_MIN {
                self.judge(&seen, size.max(1));
            }
        }
    }

    fn judge(&mut self, seen: &Seen, size: u32) {
        let score = seen.response_us.saturating_mul(16) / seen.count;
        self.target = self.target.min(size);
        // One statement of a hundred had to wake a server: the target may be too low. (Or the machine is overloaded, where more
        // busy servers are worse: so their number is tried like any other, and not again before its turn.)
        let many_woken = seen.woken.saturating_mul(100) > seen.count && seen.busy_max > self.target;
        match self.phase {
            Phase::Keeping(_) if many_woken && self.patience == PATIENCE_MIN => {
                let from = self.target;
                self.set(seen.busy_max.min(size));
                self.base = score;
                self.phase = Phase::Settling { from };
            }
            Phase::Keeping(left) => self.keep(seen, score, left, size),
            Phase::Settling { from } => self.phase = Phase::Judging { from },
            Phase::Judging { from } => self.decide(score, from),
        }
    }

    fn keep(&mut self, seen: &Seen, score: u64, left: u32, size: u32) {
        let changed = self.base > 0 && (score > self.base * 2 || score * 2 < self.base);
        if changed {
            // The load is another one.
            return self.begin_anew(score);
        }
        self.base = if self.base == 0 { score } else { (self.base * 3 + score) / 4 };
        if left > 0 {
            self.phase = Phase::Keeping(left - 1);
            return;
        }
        let from = self.target;
        // Where nobody waits, more servers can not help.
        let waits = seen.wait_us.saturating_mul(10) > seen.response_us;
        let up = self.upwards && waits && from < size;
        if up {
            self.set(from.saturating_add(self.stride).min(size));
        } else if from > 1 {
            self.upwards = false;
            self.set(from.saturating_sub(self.stride.max(from / 8)).max(1));
        } else {
            self.upwards = true;
            return;
        }
        self.base = score;
        self.phase = Phase::Settling { from };
    }

    fn decide(&mut self, score: u64, from: u32) {
        let up = self.target > from;
        let good = if up {
            score.saturating_mul(100) < self.base.saturating_mul(100 - GAIN_PERCENT)
        } else {
            score.saturating_mul(100) <= self.base.saturating_mul(100 + LOSS_PERCENT)
        };
        if good {
            let much = score.saturating_mul(100) < self.base.saturating_mul(80);
            self.stride = if up && much { (self.stride * 2).min(16) } else { 1 };
            self.patience = PATIENCE_MIN;
            self.base = score;
            self.phase = Phase::Keeping(if up && much { 0 } else { 1 });
        } else {
            self.set(from);
            self.stride = 1;
            self.upwards = !self.upwards;
            self.patience = (self.patience * 2).min(PATIENCE_MAX);
            self.phase = Phase::Keeping(self.patience);
        }
    }

    fn begin_anew(&mut self, base: u64) {
        self.base = base;
        self.patience = PATIENCE_MIN;
        self.stride = 1;
        self.upwards = true;
        self.phase = Phase::Keeping(1);
    }

    fn set(&mut self, target: u32) {
        self.decisions += u64::from(target != self.target);
        self.target = target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    pace.note(self.now_us, response_us, waited_us, self.size);
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
    fn one_server_is_enough_where_nobody_waits() {
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
            pace.note(now_us, response_us, response_us / 2, 25);
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
