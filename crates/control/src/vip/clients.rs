//! The clients that came by the virtual address. They are ended when the address leaves this pooler: no packet of theirs arrives any more, but
//! they would keep their servers and locks. This file must not decide when the address leaves.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgweir_core::Shared;
use tokio::time::sleep;

use super::EndClients;

/// The longest time for which the address stays so that the clients can be told: another pooler may have it already.
const TELL_MAX: Duration = Duration::from_millis(250);
/// The time between two looks at whether the workers have told their clients.
const POLL: Duration = Duration::from_millis(5);
/// The time in which a worker sends what it has written at the end of its turn.
const SEND: Duration = Duration::from_millis(20);
/// The time after the address has left in which clients are still ended: those that had just connected, or that arrive from a process that
/// this one has replaced.
const LATE: Duration = Duration::from_secs(5);

/// The clients of this process that came by the virtual address.
pub(super) struct Clients {
    address: IpAddr,
    shared: Arc<Shared>,
    end: EndClients,
    /// The time at which the address left; `None` if this pooler has it, or never had it.
    left: Option<Instant>,
}

impl Clients {
    pub(super) fn new(address: IpAddr, shared: Arc<Shared>, end: EndClients) -> Clients {
        Clients { address, shared, end, left: None }
    }

    /// Ends all clients, and waits until they are told, but for a short time only. Call it before the address is removed: afterwards nothing
    /// can be sent to them.
    pub(super) async fn end(&mut self) {
        let all = self.shared.addresses_left() + u64::from(self.shared.workers());
        let began = Instant::now();
        self.left = Some(began);
        (self.end)(self.address);
        while self.shared.addresses_left() < all && began.elapsed() < TELL_MAX {
            sleep(POLL).await;
        }
        sleep(SEND).await;
    }

    /// Ends the clients that have come since [`Clients::end`], if the address has left a short time ago.
    pub(super) fn end_late(&self) {
        if self.left.is_some_and(|left| left.elapsed() < LATE) {
            (self.end)(self.address);
        }
    }

    /// Notes that this pooler has the address again.
    pub(super) fn address_is_back(&mut self) {
        self.left = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn clients_are_ended_once_more_after_the_address_has_left() {
        let ended = Arc::new(Mutex::new(0));
        let count = Arc::clone(&ended);
        let end: EndClients = Arc::new(move |_| *count.lock().expect("not poisoned") += 1);
        let shared = Arc::new(Shared::new(1, [0; 32]));
        let mut clients = Clients::new([10, 0, 0, 9].into(), shared, end);
        let ends = || *ended.lock().expect("not poisoned");
        clients.end_late();
        assert_eq!(ends(), 0, "the address has not left");
        // A worker that does not answer holds nothing up for long.
        clients.end().await;
        clients.end_late();
        assert_eq!(ends(), 2);
        clients.address_is_back();
        clients.end_late();
        assert_eq!(ends(), 2, "these clients are served");
    }
}
