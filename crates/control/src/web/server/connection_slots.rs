//! The connections of the HTTP server. If all slots are taken, a new connection replaces the one that was
//! sent nothing for the longest time: a scraper must not wait for connections that ask nothing, or that do
//! not read their answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use crate::web::limits::CONNECTIONS_MAX;

/// The slots, for connections of all addresses together.
#[derive(Default)]
pub(in crate::web) struct ConnectionSlots {
    taken: RefCell<BTreeMap<u64, Rc<State>>>,
    next: Cell<u64>,
}

/// The slot of a connection. Dropping it frees the slot.
pub(in crate::web) struct ConnectionSlot {
    slots: Rc<ConnectionSlots>,
    number: u64,
    state: Rc<State>,
}

struct State {
    /// The time when the connection came, or was last sent something.
    moved: Cell<Instant>,
    /// `true` while a complete request of the connection is being answered.
    answering: Cell<bool>,
    /// The signal that another connection has taken the slot.
    leave: Notify,
}

impl ConnectionSlots {
    /// Takes a slot for a new connection. If none is free, it replaces the connection that was sent nothing
    /// for the longest time and is not being answered.
    pub(in crate::web) fn take(self: &Rc<ConnectionSlots>) -> ConnectionSlot {
        let mut taken = self.taken.borrow_mut();
        while taken.len() >= CONNECTIONS_MAX {
            // A connection that is being answered goes last, whatever its age.
            let silent = taken.iter().min_by_key(|(_, state)| (state.answering.get(), state.moved.get()));
            let Some(number) = silent.map(|(number, _)| *number) else { break };
            if let Some(state) = taken.remove(&number) {
                state.leave.notify_one();
            }
        }
        let number = self.next.get();
        self.next.set(number + 1);
        let state = Rc::new(State {
            moved: Cell::new(Instant::now()),
            answering: Cell::new(false),
            leave: Notify::new(),
        });
        taken.insert(number, Rc::clone(&state));
        ConnectionSlot { slots: Rc::clone(self), number, state }
    }
}

impl ConnectionSlot {
    /// Waits until another connection takes the slot.
    pub(in crate::web) async fn lost(&self) {
        self.state.leave.notified().await;
    }

    /// Returns the mark through which the connection's requests are answered.
    pub(in crate::web) fn request_mark(&self) -> RequestMark {
        RequestMark(Rc::clone(&self.state))
    }

    /// Wraps the connection's stream, so that a write fails after `timeout` without progress.
    pub(in crate::web) fn watch<S>(&self, stream: S, timeout: Duration) -> Watched<S> {
        Watched { stream, state: Rc::clone(&self.state), timeout, stalled: None }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.taken.borrow_mut().remove(&self.number);
    }
}

/// A mark that notes while a request is being answered.
#[derive(Clone)]
pub(in crate::web) struct RequestMark(Rc<State>);

impl RequestMark {
    pub(in crate::web) async fn answered<T>(self, answer: impl Future<Output = T>) -> T {
        self.0.answering.set(true);
        let answer = answer.await;
        self.0.answering.set(false);
        answer
    }
}

/// A connection's stream. It notes when bytes are sent, and fails if the peer does not read them.
pub(in crate::web) struct Watched<S> {
    stream: S,
    state: Rc<State>,
    timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    /// Notes the result of a write, and fails it if nothing was written for too long.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.stalled = None;
            self.state.moved.set(Instant::now());
            return result;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Bytes that are received do not count as activity: half a request deserves no slot.
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test);
    }

    async fn is_lost(slot: &ConnectionSlot) -> bool {
        tokio::select! {
            biased;
            () = slot.lost() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[test]
    fn the_one_that_was_silent_for_longest_leaves() {
        run(async {
            let slots = Rc::new(ConnectionSlots::default());
            let all: Vec<ConnectionSlot> = (0..CONNECTIONS_MAX).map(|_| slots.take()).collect();
            let long_ago = Instant::now() - Duration::from_secs(60);
            // The first was silent for longest, but is being answered.
            all[0].state.moved.set(long_ago - Duration::from_secs(1));
            all[0].state.answering.set(true);
            all[7].state.moved.set(long_ago);
            let newcomer = slots.take();
            assert!(is_lost(&all[7]).await && !is_lost(&all[0]).await && !is_lost(&newcomer).await);
            drop(all);
            assert_eq!(slots.taken.borrow().len(), 1, "places are given back, the lost one too");
        });
    }

    #[test]
    fn where_all_are_being_answered_one_leaves_nevertheless() {
        let slots = Rc::new(ConnectionSlots::default());
        let all: Vec<ConnectionSlot> = (0..CONNECTIONS_MAX).map(|_| slots.take()).collect();
        all.iter().for_each(|slot| slot.state.answering.set(true));
        let _newcomer = slots.take();
        assert_eq!(slots.taken.borrow().len(), CONNECTIONS_MAX);
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_waited_for() {
        run(async {
            let slots = Rc::new(ConnectionSlots::default());
            let (ours, mut theirs) = duplex(16);
            let mut stream = slots.take().watch(ours, Duration::from_millis(20));
            stream.write_all(&[1; 16]).await.expect("there is room");
            let error = stream.write_all(&[2; 16]).await.expect_err("the peer does not read");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            // A peer that reads again is written to again.
            let mut read = [0; 16];
            theirs.read_exact(&mut read).await.expect("what came before");
            stream.write_all(&[3; 8]).await.expect("there is room again");
        });
    }
}
