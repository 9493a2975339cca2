//! Buffers for partial messages, kept for the next use: the steady state allocates nothing, and an idle connection
//! owns no buffer.

use crate::limits::{BUFFER_POOL_BYTES_MAX, POOLED_BUFFER_BYTES_MAX};

/// A bounded store of empty buffers.
#[derive(Default)]
pub(crate) struct BufferPool {
    buffers: Vec<Vec<u8>>,
    /// The capacity of all buffers together.
    bytes: usize,
}

impl BufferPool {
    /// Returns an empty buffer.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Keeps a buffer for the next use, unless there are enough or it is too large.
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0
            && buffer.capacity() <= POOLED_BUFFER_BYTES_MAX
            && self.bytes + buffer.capacity() <= BUFFER_POOL_BYTES_MAX
        {
            buffer.clear();
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }

    /// Returns the rest of `bytes` after the first `used` ones, as the new content of an inbox. `held` is the buffer that `bytes` came
    /// from, if they waited in one.
    #[inline]
    pub(crate) fn remainder(&mut self, held: Option<Vec<u8>>, bytes: &[u8], used: usize) -> Vec<u8> {
        match held {
            Some(mut buffer) => {
                buffer.drain(..used.min(buffer.len()));
                if buffer.is_empty() {
                    self.give_back(buffer);
                    return Vec::new();
                }
                buffer
            }
            None => match bytes.get(used..) {
                Some(rest) if !rest.is_empty() => {
                    let mut buffer = self.take();
                    buffer.extend_from_slice(rest);
                    buffer
                }
                _ => Vec::new(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_whose_bytes_were_used_owns_no_buffer() {
        let mut pool = BufferPool::default();
        assert_eq!(pool.remainder(None, b"whole", 5).capacity(), 0);
        let held = pool.remainder(None, b"part of", 0);
        assert_eq!(held, b"part of");
        let (address, len) = (held.as_ptr(), held.len());
        assert_eq!(pool.remainder(Some(held), b"", len).capacity(), 0);
        let next = pool.remainder(None, b"of another", 3);
        assert_eq!((next.as_ptr(), &next[..]), (address, &b"another"[..]), "the buffer is used again");
    }

    #[test]
    fn what_waits_moves_to_the_front_of_its_buffer() {
        let mut pool = BufferPool::default();
        let held = pool.remainder(None, b"used and kept", 0);
        assert_eq!(pool.remainder(Some(held), b"", 9), b"kept");
    }
}
