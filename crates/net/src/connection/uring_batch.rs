//! Many sends with one system call, where the kernel has io_uring (Linux 5.6, io_uring_enter(2)).
//!
//! Bytes for a socket on the same machine wake the process that reads from it, and the kernel lets that run as soon as the call returns.
//! With a call for each send of a turn the worker is put aside after each of them, while other readers wait for what it has not sent
//! yet. A batch is one call: all of it has left before any reader runs.
//!
//! No send is under way when a batch is over: the kernel has tried each once and said what came of it, as send(2) does on a
//! socket that does not block. This room must never change that: the bytes are only lent.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, Probe, opcode, types};
use nix::libc;

/// Sends that the kernel is handed at a time; longer batches take several calls.
const ENTRIES: u32 = 128;

/// What became of one send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// It was no part of the batch, or the kernel did not come to it.
    Untried,
    /// The kernel's answer: bytes that it took, or the negative of an errno.
    Tried(i32),
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct UringBatch {
    /// `None`: every send is a separate call.
    ring: Option<IoUring>,
    outcomes: Vec<Outcome>,
}

impl UringBatch {
    /// Fails where the kernel has no io_uring, is too old for sends, or does not allow them (containers often do not).
    pub(crate) fn new() -> io::Result<UringBatch> {
        let ring = build()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Send::CODE) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(UringBatch { ring: Some(ring), outcomes: Vec::new() })
    }

    /// Whether it can send.
    pub(crate) fn is_ready(&self) -> bool {
        self.ring.is_some()
    }

    /// Makes each of `sends` that is there, once, and returns their number; see [`UringBatch::outcome`]. An error is one of
    /// io_uring itself: what has no outcome was not sent, and there will be no batch any more.
    #[allow(unsafe_code, reason = "the kernel is given addresses")]
    pub(crate) fn send_all<'a>(
        &mut self,
        sends: impl Iterator<Item = Option<(RawFd, &'a [u8])>>,
    ) -> io::Result<usize> {
        self.outcomes.clear();
        // Until all is over, only this call has the ring: with whatever goes wrong it is gone, and what is queued with it.
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

    /// Has the kernel send what is queued. Whatever it took on it has finished when this returns: MSG_DONTWAIT leaves it
    /// nothing to wait for, and if it did wait, so would this.
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
            let taken = queued - ring.submission().len();
            match entered {
                Err(e) if e.kind() != io::ErrorKind::Interrupted && done == taken => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// What became of the send at this place of the last batch, as [`crate::sys::send`] would say it. `None`: it was not
    /// sent.
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

/// Where the kernel knows (Linux 6.1) that one thread alone has the ring, and asks for what became of its sends in the call that
/// makes them, it does without locks for that.
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
