//! The comparison of two ways of doing the same that take turns for short windows: how much larger a value is with one of them than with
//! the other, over pairs of windows, and how much of that may be chance. A change that comes by itself in the meantime hits both of a pair.
//!
//! This file is arithmetic; it must never know what is compared.

/// The differences between the values of two ways (in thousandths), over pairs of windows.
#[derive(Clone, Copy, Default, Debug)]
pub struct Pairs {
    count: i64,
    sum: i64,
    squares: i64,
}

impl Pairs {
    /// Adds a pair: the value with one way, and with the other. The difference is relative to the mean of both, so that chance makes
    /// neither seem more.
    pub fn add(&mut self, than: u64, value: u64) {
        let signed = |value: u64| i64::try_from(value.min(1 << 40)).expect("that many bits fit");
        let (than, value) = (signed(than), signed(value));
        let more = (value - than) * 2000 / (value + than).max(1);
        self.count += 1;
        self.sum += more;
        self.squares += more * more;
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.count
    }

    /// Returns the same differences with half the weight, for pairs of an earlier time.
    #[must_use]
    pub fn half(&self) -> Pairs {
        Pairs { count: self.count / 2, sum: self.sum / 2, squares: self.squares / 2 }
    }

    /// Returns the mean difference, and its standard error.
    #[must_use]
    pub fn mean(&self) -> (i64, i64) {
        let count = self.count.max(1);
        let deviation = self.squares - self.sum * self.sum / count;
        (self.sum / count, (deviation.max(0) / (count * (count - 1).max(1))).isqrt())
    }

    /// Returns the distance by which the truth may differ from the mean by chance, for `half_errors` halves of a standard error. With few
    /// pairs even the standard error is not reliable.
    #[must_use]
    pub fn chance(&self, half_errors: i64) -> i64 {
        let count = self.count.max(1);
        self.mean().1 * half_errors / 2 + 640 / (count * count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_is_less_certain_than_what_does_not() {
        let (mut steady, mut restless) = (Pairs::default(), Pairs::default());
        for at in 0..10 {
            steady.add(1000, 1100);
            restless.add(1000, if at % 2 == 0 { 800 } else { 1420 });
        }
        assert_eq!(steady.mean(), (95, 0));
        let (mean, error) = restless.mean();
        assert!((50..150).contains(&mean) && error > 80, "{mean}, {error}");
        assert!(restless.chance(5) > 2 * error && steady.chance(5) < 10);
        assert_eq!(steady.half().count(), 5);
        assert_eq!(steady.half().mean().0, 95);
    }

    #[test]
    fn neither_way_is_favoured_by_where_one_begins() {
        let (mut up, mut down) = (Pairs::default(), Pairs::default());
        up.add(1000, 2000);
        down.add(2000, 1000);
        assert_eq!(up.mean().0, -down.mean().0);
        assert_eq!(Pairs::default().mean(), (0, 0));
    }
}
