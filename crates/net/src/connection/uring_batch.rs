//! Many sends with one system call, if the kernel has io_uring (Linux 5.6, io_uring_enter(2)).
//!
//! Bytes for a socket on the same machine wake the process that reads from it, and the kernel lets that
//! process run as soon as the call returns. With one call for each send of a turn, the worker is preempted
//! after each of them, while other readers wait for bytes that it has not sent yet. A batch is one call: all
//! messages are sent before any reader runs.
//!
//! No send is under way when a batch is over: the kernel has tried each once and reported the result, as
//! send(2) does on a non-blocking socket. This must never change, because the bytes are only borrowed.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, Probe, opcode, types};
use nix::libc;

/// The number of sends that the kernel gets at a time; longer batches take several calls.
const ENTRIES: u32 = 128;

/// The result of one send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// The send was not part of the batch, or the kernel did not reach it.
    Untried,
    /// The kernel's result: the number of bytes sent, or a negative errno.
    Tried(i32),
}

/// The batch of one worker; see the module's head.
#[derive(Default)]
pub(crate) struct UringBatch {
    /// The ring of the kernel; `None` means that every send is a separate call.
    ring: Option<IoUring>,
    outcomes: Vec<Outcome>,
}

impl UringBatch {
    /// Creates a batch. Fails if the kernel has no io_uring, is too old for sends, or does not allow them (as
    /// in many containers).
    pub(crate) fn new() -> io::Result<UringBatch> {
        let ring = build()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Send::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(UringBatch { ring: Some(ring), outcomes: Vec::new() })
    }

    /// Returns whether the batch can send.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.is_some()
    }

    /// Makes each of `sends` that is `Some`, once, and returns their number; the results are in
    /// [`UringBatch::outcome`]. An error is one of io_uring itself: messages without an outcome were not
    /// sent, and there will be no further batch.
    #[allow(unsafe_code, reason = "the kernel is given addresses")]
    pub(crate) fn send_all<'a>(
        &mut self,
        sends: impl Iterator<Item = Option<(RawFd, &'a [u8])>>,
    ) -> io::Result<usize> {
        self.outcomes.clear();
        // The ring is put back only after success: after any error it is dropped, with everything that is
        // queued in it.
        let Some(mut ring) = self.ring.take() else { return Ok(0) };
        let (mut queued, mut sent) = (0, 0);
        for (at, wanted) in sends.enumerate() {
            self.outcomes.push(Outcome::Untried);
            let Some((socket, bytes)) = wanted else { continue };
            let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let send = opcode::Send::new(types::Fd(socket), bytes.as_ptr(), len)
                .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
                .build()
                .user_data(at as u64);
            // SAFETY: the bytes outlive this call ('a), and the kernel is done with them when `submit` returns.
            let pushed = unsafe { ring.submission().push(&send) };
            pushed.expect("it is emptied whenever it is full");
            queued += 1;
            if queued == ENTRIES as usize {
                self.submit(&mut ring, queued)?;
                sent += std::mem::take(&mut queued);
            }
        }
        self.submit(&mut ring, queued)?;
        self.ring = Some(ring);
        Ok(sent + queued)
    }

    /// Lets the kernel make the queued sends. All of them have finished when this returns: with MSG_DONTWAIT
    /// they have nothing to wait for, and otherwise this call would wait as well.
    fn submit(&mut self, ring: &mut IoUring, queued: usize) -> io::Result<()> {
        let mut done = 0;
        while done < queued {
            let entered = ring.submit_and_wait(1);
            for completion in ring.completion() {
                let at = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
                if let Some(outcome) = self.outcomes.get_mut(at) {
                    *outcome = Outcome::Tried(completion.result());
                }
                done += 1;
            }
            // An error counts only after the kernel has finished all sends that it took.
            let taken = queued - ring.submission().len();
            match entered {
                Err(e) if e.kind() != io::ErrorKind::Interrupted && done == taken => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the result of the send at this place of the last batch, in the form of [`crate::sys::send`].
    /// `None` means that it was not sent.
    pub(crate) fn outcome(&self, at: usize) -> Option<io::Result<usize>> {
        match *self.outcomes.get(at)? {
            Outcome::Untried => None,
            Outcome::Tried(code) => {
                let failed = |_| io::Error::from_raw_os_error(code.saturating_neg());
                Some(usize::try_from(code).map_err(failed))
            }
        }
    }

    /// Forgets the outcomes.
    pub(crate) fn end(&mut self) {
        self.outcomes.clear();
    }
}

/// Builds a ring. If the kernel knows (Linux 6.1) that one thread alone has the ring, and collects the
/// results in the call that makes the sends, it needs no locks.
fn build() -> io::Result<IoUring> {
    let own = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(ENTRIES);
    own.or_else(|_| IoUring::new(ENTRIES))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// `None` where the machine that tests has no io_uring.
    fn uring_batch() -> Option<UringBatch> {
        UringBatch::new().inspect_err(|e| eprintln!("not tested: {e}")).ok()
    }

    fn pairs(count: usize) -> Vec<(UnixStream, UnixStream)> {
        let pair = |_| {
            let (near, far) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            (near, far)
        };
        (0..count).map(pair).collect()
    }

    fn received(far: &mut UnixStream) -> Vec<u8> {
        let mut bytes = [0; 64];
        let count = far.read(&mut bytes).unwrap();
        bytes[..count].to_vec()
    }

    #[test]
    fn every_send_arrives_once_in_batches_of_any_length() {
        let Some(mut batch) = uring_batch() else { return };
        let entries = ENTRIES as usize;
        for count in [0, 1, 2, entries - 1, entries, entries + 1, 2 * entries + 3] {
            let mut pairs = pairs(count);
            let texts: Vec<String> = (0..count).map(|at| format!("message {at}")).collect();
            let send = |(at, (near, _)): (usize, &(UnixStream, UnixStream))| {
                (at % 3 != 1).then(|| (near.as_raw_fd(), texts[at].as_bytes()))
            };
            let sent = batch.send_all(pairs.iter().enumerate().map(send)).unwrap();
            assert_eq!(sent, (0..count).filter(|at| at % 3 != 1).count());
            for (at, (_, far)) in pairs.iter_mut().enumerate() {
                if at % 3 == 1 {
                    assert!(batch.outcome(at).is_none());
                    continue;
                }
                assert_eq!(batch.outcome(at).unwrap().unwrap(), texts[at].len());
                assert_eq!(received(far), texts[at].as_bytes());
                assert_eq!(far.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            }
            assert!(batch.outcome(count).is_none());
            batch.end();
            assert!(batch.outcome(0).is_none());
        }
    }

    #[test]
    fn each_socket_answers_for_itself() {
        let Some(mut batch) = uring_batch() else { return };
        let mut pairs = pairs(3);
        // The first is full, and the second's peer is gone.
        while pairs[0].0.write(&[0; 4096]).is_ok() {}
        let (near, far) = pairs.remove(1);
        drop(far);
        let sockets = [pairs[0].0.as_raw_fd(), near.as_raw_fd(), pairs[1].0.as_raw_fd()];
        let sent = batch.send_all(sockets.iter().map(|&socket| Some((socket, &b"hello"[..])))).unwrap();
        assert_eq!(sent, 3);
        assert_eq!(batch.outcome(0).unwrap().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(batch.outcome(1).unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(batch.outcome(2).unwrap().unwrap(), 5);
        assert!(batch.is_ready());
    }

    #[test]
    fn a_socket_takes_a_part_of_what_is_too_much() {
        let Some(mut batch) = uring_batch() else { return };
        let pairs = pairs(1);
        let much = vec![7; 8 << 20];
        batch.send_all([Some((pairs[0].0.as_raw_fd(), &much[..]))].into_iter()).unwrap();
        let taken = batch.outcome(0).unwrap().unwrap();
        assert!(0 < taken && taken < much.len(), "{taken}");
    }

    #[test]
    fn without_a_ring_nothing_is_sent() {
        let pairs = pairs(1);
        let mut batch = UringBatch::default();
        assert!(!batch.is_ready());
        let sent = batch.send_all([Some((pairs[0].0.as_raw_fd(), &b"hello"[..]))].into_iter());
        assert_eq!(sent.unwrap(), 0);
        assert!(batch.outcome(0).is_none());
    }
}
