//! Queues of bytes to be written, and the buffers behind them.

/// The capacity of a new buffer.
const BUFFER_INITIAL_BYTES: usize = 4 * 1024;
/// The capacity above which a buffer is returned to the allocator.
const BUFFER_KEEP_MAX_BYTES: usize = 64 * 1024;
/// The maximum number of empty buffers that a worker keeps.
const POOLED_BUFFERS_MAX: usize = 128;

/// The empty buffers of one worker. A connection takes one when it has something to queue and returns it when
/// that is sent, so that idle connections own none and busy ones do not allocate.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: Vec<Vec<u8>>,
}

impl BufferPool {
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_else(|| Vec::with_capacity(BUFFER_INITIAL_BYTES))
    }

    pub(crate) fn give(&mut self, mut buffer: Vec<u8>) {
        let worth_keeping = buffer.capacity() > 0 && buffer.capacity() <= BUFFER_KEEP_MAX_BYTES;
        if worth_keeping && self.free.len() < POOLED_BUFFERS_MAX {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}

/// A queue of bytes. An empty queue owns no memory.
#[derive(Default, Debug)]
pub(crate) struct Out {
    buffer: Vec<u8>,
    /// The number of bytes at the start of `buffer` that have been sent.
    sent: usize,
}

impl Out {
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.sent
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.buffer[self.sent..]
    }

    pub(crate) fn push(&mut self, bytes: &[u8], pool: &mut BufferPool) {
        if bytes.is_empty() {
            return;
        }
        if self.buffer.capacity() == 0 {
            self.buffer = pool.take();
        }
        // The buffer is compacted only if that pays: a copy never moves more bytes than have been sent before
        // it.
        if self.sent > 0
            && self.sent >= self.len()
            && self.buffer.len() + bytes.len() > self.buffer.capacity()
        {
            self.buffer.drain(..self.sent);
            self.sent = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Removes the first `count` bytes. With the last byte, the buffer returns to the pool.
    pub(crate) fn consume(&mut self, count: usize, pool: &mut BufferPool) {
        self.sent = self.buffer.len().min(self.sent + count);
        if self.sent == self.buffer.len() {
            self.clear(pool);
        }
    }

    /// Returns the memory that the queue takes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    pub(crate) fn clear(&mut self, pool: &mut BufferPool) {
        self.sent = 0;
        pool.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_the_pieces() {
        let (mut pool, mut out) = (BufferPool::default(), Out::default());
        let (mut expected, mut got) = (Vec::new(), Vec::new());
        for round in 0..2000_usize {
            let piece: Vec<u8> = (0..round % 97).map(|i| u8::try_from((round + i) % 251).unwrap()).collect();
            expected.extend_from_slice(&piece);
            out.push(&piece, &mut pool);
            let take = out.len().min((round * 7) % 101);
            got.extend_from_slice(&out.as_slice()[..take]);
            out.consume(take, &mut pool);
        }
        got.extend_from_slice(out.as_slice());
        assert_eq!(got, expected);
    }

    #[test]
    fn an_empty_queue_owns_nothing_and_its_buffer_is_used_again() {
        let (mut pool, mut out) = (BufferPool::default(), Out::default());
        out.push(b"", &mut pool);
        assert_eq!(out.buffer.capacity(), 0);
        out.push(b"abc", &mut pool);
        let address = out.buffer.as_ptr();
        out.consume(3, &mut pool);
        assert_eq!(out.buffer.capacity(), 0);
        let mut other = Out::default();
        other.push(b"d", &mut pool);
        assert_eq!(other.buffer.as_ptr(), address);
    }

    #[test]
    fn the_pool_is_bounded_in_count_and_size() {
        let mut pool = BufferPool::default();
        pool.give(Vec::with_capacity(BUFFER_KEEP_MAX_BYTES + 1));
        assert!(pool.free.is_empty());
        for _ in 0..POOLED_BUFFERS_MAX + 10 {
            pool.give(Vec::with_capacity(10));
        }
        assert_eq!(pool.free.len(), POOLED_BUFFERS_MAX);
    }

    #[test]
    fn a_queue_that_never_quite_empties_does_not_grow() {
        let (mut pool, mut out) = (BufferPool::default(), Out::default());
        out.push(&[1; 100], &mut pool);
        for _ in 0..10_000 {
            out.push(&[2; 1000], &mut pool);
            out.consume(1000, &mut pool);
        }
        assert!(out.buffer.capacity() <= 2 * BUFFER_INITIAL_BYTES, "{}", out.buffer.capacity());
    }
}
