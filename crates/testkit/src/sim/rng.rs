//! The one source of chance in a simulation: everything a run does follows from a `u64` seed.
//!
//! SplitMix64 (Steele, Lea, Flood 2014): one word of state, passes the usual batteries, and two generators whose seeds
//! differ by one are independent. Nothing here is fit for keys; the simulator needs repeatable, not secret.

/// A repeatable stream of numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream that belongs to a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng { state: seed ^ 0x5851_f42d_4c95_7f2d }
    }

    /// A separate stream for one part of a run, so that a change in one part does not shift the streams of the other parts.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Rng { state: self.draw() }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Draws a number like [`Rng::between`], for the small counts of scripts.
    pub fn count(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.between(u64::from(low), u64::from(high))).unwrap_or(high)
    }

    /// Draws a number like [`Rng::below`], for places in memory.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }

    /// `true` in `of_hundred` of 100 cases.
    pub fn percent(&mut self, of_hundred: u64) -> bool {
        self.below(100) < of_hundred
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// A duration that is mostly short and sometimes long: each power of two up to `high` is equally likely.
    pub fn skewed(&mut self, high: u64) -> u64 {
        let bits = 64 - high.leading_zeros();
        let bound = 1_u64 << self.below(u64::from(bits) + 1);
        self.below(bound.min(high.saturating_add(1)))
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.draw().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_stream_and_another_seed_does_not() {
        let stream = |seed| {
            let mut rng = Rng::new(seed);
            (0..20).map(|_| rng.draw()).collect::<Vec<_>>()
        };
        assert_eq!(stream(7), stream(7));
        assert_ne!(stream(7), stream(8));
    }

    #[test]
    fn bounds_hold_at_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..2000).map(|_| rng.between(3, 6)).collect();
        assert_eq!(drawn.iter().min(), Some(&3));
        assert_eq!(drawn.iter().max(), Some(&6));
        assert_eq!(rng.below(0), 0);
        assert!((0..2000).all(|_| rng.skewed(1000) <= 1000));
    }
}
