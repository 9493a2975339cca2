//! What is pipelined on a server: the statement at its head, and those that were sent after it.
//!
//! A server's answers come in order, so the first of these is always the one that is due to be answered. This
//! file keeps the order and says whether one more may be queued; it must never see a byte.

use std::collections::VecDeque;

use slotmap::Key as _;

use crate::ids::ClientId;
use crate::limits::{MULTIPLEXED_ANSWER_BYTES_MAX, PIPELINED_KEPT, RESCUE_AFTER_US};
use crate::pool::multiplex::held::{Held, HeldBack};

/// The statement at the head, if it certainly only reads and is over with its own answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// For the estimates.
    pub(crate) key: u64,
    /// Since when it is at the head (monotonic, µs).
    pub(crate) since_us: u64,
    /// Bytes that the server had sent until then.
    pub(crate) received_bytes: u64,
    /// `None`: it is not known to be short, so nothing is queued behind it.
    pub(crate) estimate_us: Option<u64>,
}

/// A statement queued behind the head. It certainly only reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedClient {
    /// The client that sent it; it may be gone. A rescued statement has no client.
    pub(crate) client: ClientId,
    /// See [`Head::key`].
    pub(crate) key: u64,
    /// See [`Head::estimate_us`]; what is queued is known to be short.
    pub(crate) estimate_us: u64,
    /// A cancel request of a client before it may hit it.
    pub(crate) exposed: bool,
}

/// Whether one more may be queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// Yes; it would wait about so long (µs).
    Yes(u64),
    /// Not now, but soon.
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

/// See the module's head.
#[derive(Default, Debug)]
pub(crate) struct Pipelined {
    head: Option<Head>,
    behind: VecDeque<QueuedClient>,
    /// The time that the statements queued behind the head are expected to take together (µs).
    behind_us: u64,
    /// A cancel is wanted for a queued client: no further one is queued until all have left.
    closed: bool,
    /// Why the answer at the head is looked at before it is passed on, if it is.
    held: Option<HeldBack>,
}

impl Pipelined {
    /// A statement that is over with its own answer was sent to a server at rest.
    pub(crate) fn begin(&mut self, head: Head) {
        debug_assert!(self.behind.is_empty(), "a server with pipelined was not at rest");
        self.head = Some(head);
        self.closed = false;
    }

    /// The head is over, or no statement of that kind any more. No statement may be queued behind it.
    pub(crate) fn end(&mut self) -> Option<Head> {
        debug_assert!(self.behind.is_empty(), "pipelined were forgotten");
        self.closed = false;
        self.head.take()
    }

    /// The statement at the head.
    pub(crate) fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// No cancel request of another client may hit the head any more.
    pub(crate) fn trust_head(&mut self) {
        self.held.take_if(|held| matches!(held, HeldBack::Exposed(_)));
    }

    /// The head's answer is looked at before it is passed on, or no longer.
    pub(crate) fn hold(&mut self, held: Option<HeldBack>) {
        self.held = held;
    }

    /// Why the head's answer is looked at before it is passed on.
    #[inline]
    pub(crate) fn held(&mut self) -> Option<&mut HeldBack> {
        self.held.as_mut()
    }

    /// No statement is queued behind the head.
    #[inline]
    pub(crate) fn is_alone(&self) -> bool {
        self.behind.is_empty()
    }

    /// When the statements queued behind the head must run on other servers, if it is still the head then
    /// (monotonic, µs).
    #[inline]
    pub(crate) fn rescue_us(&self) -> Option<u64> {
        let head = self.head.as_ref().filter(|_| self.is_waited_on())?;
        Some(head.since_us.saturating_add(RESCUE_AFTER_US))
    }

    /// A client is queued behind the head. (Those that were rescued are ahead of those that were not.)
    fn is_waited_on(&self) -> bool {
        self.behind.back().is_some_and(|queued| !queued.client.is_null())
    }

    /// The number of statements queued behind the head.
    pub(crate) fn len(&self) -> usize {
        self.behind.iter().filter(|queued| !queued.client.is_null()).count()
    }

    /// The statements queued behind the head run on other servers: returns their clients. The answers to them
    /// here are dropped.
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

    /// The head's answer is complete: the next one becomes the head. Returns what the head was, and the
    /// client of the next one.
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

    /// A cancel is wanted: no further client is queued.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// A cancel request is on its way to PostgreSQL: it may hit every statement queued behind the head.
    pub(crate) fn expose(&mut self) {
        for queued in &mut self.behind {
            queued.exposed = true;
        }
    }

    /// The statements queued behind the head, in order.
    pub(crate) fn behind(&self) -> impl Iterator<Item = &QueuedClient> {
        self.behind.iter()
    }

    /// Gives back what a crowd needed once.
    pub(crate) fn shrink(&mut self) {
        if self.behind.capacity() > PIPELINED_KEPT {
            self.behind.shrink_to(PIPELINED_KEPT);
        }
    }
}

/// What multiplexing did in a pool since its beginning.
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
