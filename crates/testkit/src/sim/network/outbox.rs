//! Bytes that wait to be written: taken from the front in pieces, without moving what is behind each time.

use std::ops::Deref;

/// See the module's head; what is left is its slice.
#[derive(Clone, Default, Debug)]
pub struct Outbox {
    bytes: Vec<u8>,
    taken: usize,
}

impl Outbox {
    /// The first so many bytes were written.
    pub fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken * 2 > self.bytes.len() {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }

    /// Returns the buffer to which more can be appended.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Deref for Outbox {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }
}

#[cfg(test)]
mod tests {
    use super::Outbox;

    #[test]
    fn what_is_taken_is_gone_and_the_rest_stays_in_order() {
        let mut out = Outbox::default();
        let mut seen = Vec::new();
        for round in 0..100_u8 {
            out.end().extend([round; 7]);
            let count = out.len().min(usize::from(round % 11));
            seen.extend_from_slice(&out[..count]);
            out.take(count);
        }
        seen.extend_from_slice(&out);
        let all: Vec<u8> = (0..100).flat_map(|round| [round; 7]).collect();
        assert_eq!(seen, all);
    }
}
