//! What is pipelined on a server: the statement at its head, and those that were sent after it.
//!
//! A server's answers come in order, so the first of these is always the one that is due to be answered. This
//! file keeps the order and says whether one more may be queued; it must never see a byte.

use std::collections::VecDeque;

use slotmap::Key as _;

use crate::ids::ClientId;
use crate::limits::{MULTIPLEXED_ANSWER_BYTES_MAX, PIPELINED_KEPT, RESCUE_AFTER_US};
use crate::pool::multiplex::held::{Held, HeldBack};

/// The statement at the head of a server's queue. It certainly only reads and leaves nothing after its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The statement's key in the estimates.
    pub(crate) key: u64,
    /// The time since which the statement has been at the head (monotonic, µs).
    pub(crate) since_us: u64,
    /// Bytes that the server had sent until then.
    pub(crate) received_bytes: u64,
    /// The estimated time of the statement (µs). `None`: the statement is not known to be short, so nothing is queued behind it.
    pub(crate) estimate_us: Option<u64>,
}

/// A statement queued behind the head. It certainly only reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedClient {
    /// The client that sent the statement. It may be gone; a rescued statement has no client.
    pub(crate) client: ClientId,
    /// The statement's key in the estimates.
    pub(crate) key: u64,
    /// The estimated time of the statement (µs). Only statements that are known to be short are queued.
    pub(crate) estimate_us: u64,
    /// Whether a cancel request for a client ahead of this one may hit the statement.
    pub(crate) exposed: bool,
}

/// Whether one more may be queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// There is room. The statement would wait about this time (µs).
    Yes(u64),
    /// The statement would have to wait for the queue to become shorter, which happens soon.
    Full,
    /// The head turned out long, or nothing is known of it.
    Never,
}

/// The bounds of multiplexing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MultiplexLimits {
    /// `multiplex_depth`
    pub(crate) depth: usize,
    /// `multiplex_max_ms` (µs)
    pub(crate) max_us: u64,
}

/// The queue of statements that were sent to a server: the head, and those queued behind it.
#[derive(Default, Debug)]
pub(crate) struct Pipelined {
    head: Option<Head>,
    behind: VecDeque<QueuedClient>,
    /// The time that the statements queued behind the head are expected to take together (µs).
    behind_us: u64,
    /// Whether a cancel is wanted for a queued client. No further client is queued then until all have left.
    closed: bool,
    /// The reason why the head's answer is looked at before it is passed on; `None` if it is not.
    held: Option<HeldBack>,
}

impl Pipelined {
    /// Sets the head: a statement that leaves nothing after its answer and was sent to a server at rest.
    pub(crate) fn begin(&mut self, head: Head) {
        debug_assert!(self.behind.is_empty(), "a server with pipelined clients was not at rest");
        self.head = Some(head);
        self.closed = false;
    }

    /// Takes the head, because its answer is complete or it is not self-contained any more. No statement may be queued behind it.
    pub(crate) fn end(&mut self) -> Option<Head> {
        debug_assert!(self.behind.is_empty(), "pipelined clients were forgotten");
        self.closed = false;
        self.head.take()
    }

    /// The statement at the head.
    pub(crate) fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Notes that no cancel request of another client can hit the head any more.
    pub(crate) fn trust_head(&mut self) {
        self.held.take_if(|held| matches!(held, HeldBack::Exposed(_)));
    }

    /// Sets the reason for which the head's answer is looked at before it is passed on; `None` ends that.
    pub(crate) fn hold(&mut self, held: Option<HeldBack>) {
        self.held = held;
    }

    /// Returns the reason for which the head's answer is looked at before it is passed on.
    #[inline]
    pub(crate) fn held(&mut self) -> Option<&mut HeldBack> {
        self.held.as_mut()
    }

    /// Whether no statement is queued behind the head.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.behind.is_empty()
    }

    /// Returns the time at which the statements queued behind the head must run on other servers if the head has not ended by then
    /// (monotonic, µs).
    #[inline]
    pub(crate) fn rescue_us(&self) -> Option<u64> {
        let head = self.head.as_ref().filter(|_| self.is_waited_on())?;
        Some(head.since_us.saturating_add(RESCUE_AFTER_US))
    }

    /// Whether a client is queued behind the head. (Rescued statements are ahead of the others.)
    fn is_waited_on(&self) -> bool {
        self.behind.back().is_some_and(|queued| !queued.client.is_null())
    }

    /// The number of statements queued behind the head.
    pub(crate) fn len(&self) -> usize {
        self.behind.iter().filter(|queued| !queued.client.is_null()).count()
    }

    /// Marks the statements queued behind the head as rescued, because they run on other servers, and returns their clients. The
    /// answers to them here are dropped.
    pub(crate) fn rescue(&mut self) -> Vec<ClientId> {
        let clients = self.behind.iter_mut().map(|queued| std::mem::take(&mut queued.client));
        clients.filter(|client| !client.is_null()).collect()
    }

    /// Whether one more statement that certainly only reads may be queued now. `received_bytes` as in [`Head`].
    #[inline]
    pub(crate) fn room(&self, now_us: u64, received_bytes: u64, limits: MultiplexLimits) -> Room {
        let Some(head) = self.head.as_ref() else { return Room::Never };
        let Some(estimate_us) = head.estimate_us else { return Room::Never };
        let runs_us = now_us.saturating_sub(head.since_us);
        if self.closed
            || runs_us > limits.max_us
            || received_bytes - head.received_bytes > MULTIPLEXED_ANSWER_BYTES_MAX
        {
            return Room::Never;
        }
        let wait_us = self.behind_us + estimate_us;
        if self.behind.len() + 1 >= limits.depth || wait_us >= limits.max_us {
            return Room::Full;
        }
        Room::Yes(wait_us)
    }

    /// Adds a statement that has been sent. Returns whether it is the first one queued behind the head.
    pub(crate) fn enqueue_behind(&mut self, queued: QueuedClient) -> bool {
        let is_first = !self.is_waited_on();
        self.behind_us += queued.estimate_us;
        self.behind.push_back(queued);
        is_first
    }

    /// Makes the next statement the head after the head's answer is complete. Returns the previous head, and the client of the next
    /// statement.
    #[inline]
    pub(crate) fn next(&mut self, now_us: u64, received_bytes: u64) -> (Option<Head>, Option<ClientId>) {
        let was = self.head.take();
        let Some(queued) = self.behind.pop_front() else {
            self.closed = false;
            return (was, None);
        };
        self.behind_us -= queued.estimate_us;
        let QueuedClient { key, estimate_us, exposed, client } = queued;
        let estimate_us = Some(estimate_us);
        self.held = exposed.then(|| HeldBack::Exposed(Held::default()));
        self.head = Some(Head { key, since_us: now_us, received_bytes, estimate_us });
        (was, Some(client))
    }

    /// Keeps further clients from being queued, because a cancel is wanted.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Marks every statement queued behind the head as exposed, because a cancel request is on its way to PostgreSQL and may hit any
    /// of them.
    pub(crate) fn expose(&mut self) {
        for queued in &mut self.behind {
            queued.exposed = true;
        }
    }

    /// The statements queued behind the head, in order.
    pub(crate) fn behind(&self) -> impl Iterator<Item = &QueuedClient> {
        self.behind.iter()
    }

    /// Frees the memory that a long queue needed.
    pub(crate) fn shrink(&mut self) {
        if self.behind.capacity() > PIPELINED_KEPT {
            self.behind.shrink_to(PIPELINED_KEPT);
        }
    }
}

/// The counters of multiplexing in a pool since its beginning.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct MultiplexStats {
    /// Statements that were queued behind others.
    pub(crate) multiplexed: u64,
    /// Statements that were taken back from a dead or cancelled server, unseen by their clients.
    pub(crate) requeued: u64,
    /// Statements that left a transaction, a COPY or other parameters although that was certain not to
    /// happen. Must stay 0.
    pub(crate) violations: u64,
}
