//! Errors that clients were sent, counted by the class of their SQLSTATE (PostgreSQL's appendix "Error Codes").

/// The maximum number of classes that are counted separately. PostgreSQL has 43, but a server may send any two characters.
const CLASSES_MAX: usize = 64;

/// The class of a code that is not a SQLSTATE, and of errors that came when the list was full.
pub const OTHER: [u8; 2] = *b"??";

/// Counts by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorCounts {
    counts: Vec<([u8; 2], u64)>,
}

impl ErrorCounts {
    /// Counts an error by its code. A code that is not a SQLSTATE counts as [`OTHER`].
    pub(crate) fn note(&mut self, code: &[u8]) {
        let class = match code {
            [first, second, rest @ ..]
                if rest.len() == 3 && code.iter().all(|c| c.is_ascii_alphanumeric()) =>
            {
                [*first, *second]
            }
            _ => OTHER,
        };
        self.add(class, 1);
    }

    /// Adds to a class.
    pub fn add(&mut self, class: [u8; 2], count: u64) {
        let full = self.counts.len() >= CLASSES_MAX - 1;
        let place = self.counts.iter().position(|(known, _)| *known == class);
        let place = match place {
            Some(place) => Some(place),
            None if full => self.counts.iter().position(|(known, _)| *known == OTHER),
            None => None,
        };
        match place {
            Some(place) => self.counts[place].1 += count,
            None => self.counts.push((if full { OTHER } else { class }, count)),
        }
    }

    /// The classes and their counts, in the order of their first appearance.
    pub fn classes(&self) -> impl Iterator<Item = ([u8; 2], u64)> + '_ {
        self.counts.iter().copied()
    }

    /// Returns the number of all errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_counted_by_class_and_nonsense_together() {
        let mut errors = ErrorCounts::default();
        for code in [&b"23505"[..], b"23503", b"", b"2", b"23\x00\x01\x02", b"57P01"] {
            errors.note(code);
        }
        assert_eq!(errors.classes().collect::<Vec<_>>(), [(*b"23", 2), (OTHER, 3), (*b"57", 1)]);
        assert_eq!(errors.total(), 6);
    }

    #[test]
    fn a_server_that_makes_up_classes_fills_no_memory() {
        let mut errors = ErrorCounts::default();
        for first in b'A'..=b'Z' {
            for second in b'A'..=b'Z' {
                errors.note(&[first, second, b'0', b'0', b'0']);
            }
        }
        assert_eq!(errors.classes().count(), CLASSES_MAX);
        assert_eq!(errors.total(), 26 * 26);
    }
}
