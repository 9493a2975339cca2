//! Asking the workers, and waiting for what they answer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use pgweir_core::console::command::Command;
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::{Mail, Operated};
use pgweir_core::snapshot::{Snapshot, SnapshotRequest};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::limits::{LOOK_S_MAX, OPERATE_S_MAX};
use super::{Load, Workforce};

/// A worker has not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late;

/// Why a console command was not carried out, or not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// It cannot be; what an administrator is told.
    Refused(String),
    /// It goes on.
    Late,
}

/// Where questions to the workers go out and their answers come in.
pub(super) struct WorkerRpc {
    workforce: Box<dyn Workforce>,
    tickets: Cell<u64>,
    looks: RefCell<HashMap<u64, oneshot::Sender<Snapshot>>>,
    operations: RefCell<HashMap<u64, oneshot::Sender<Operated>>>,
}

/// Forgets a ticket when its wait ends, however it ends.
struct Ticket<'a, T> {
    number: u64,
    waiting: &'a RefCell<HashMap<u64, oneshot::Sender<T>>>,
}

impl<T> Drop for Ticket<'_, T> {
    fn drop(&mut self) {
        self.waiting.borrow_mut().remove(&self.number);
    }
}

impl WorkerRpc {
    pub(super) fn new(workforce: Box<dyn Workforce>) -> WorkerRpc {
        WorkerRpc {
            workforce,
            tickets: Cell::new(0),
            looks: RefCell::default(),
            operations: RefCell::default(),
        }
    }

    pub(super) fn workers(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (0..self.workforce.count()).map(WorkerId)
    }

    pub(super) fn loads(&self) -> Vec<Load> {
        self.workforce.loads()
    }

    fn next_ticket(&self) -> u64 {
        self.tickets.set(self.tickets.get() + 1);
        self.tickets.get()
    }

    /// Looks at a worker.
    pub(super) async fn look(&self, worker: WorkerId, look: SnapshotRequest) -> Result<Snapshot, Late> {
        let ticket = Ticket { number: self.next_ticket(), waiting: &self.looks };
        let (sender, receiver) = oneshot::channel();
        self.looks.borrow_mut().insert(ticket.number, sender);
        self.workforce.mail(worker, Mail::SnapshotRequest { ticket: ticket.number, look });
        timeout(LOOK_S_MAX, receiver).await.ok().and_then(Result::ok).ok_or(Late)
    }

    /// Has a console command carried out everywhere. One that takes long goes on when no request waits for it any more.
    pub(super) async fn operate(&self, command: Command) -> Result<Vec<Vec<Option<String>>>, NotDone> {
        let ticket = Ticket { number: self.next_ticket(), waiting: &self.operations };
        let (sender, receiver) = oneshot::channel();
        self.operations.borrow_mut().insert(ticket.number, sender);
        self.workforce.mail(WorkerId(0), Mail::Operate { ticket: ticket.number, command });
        match timeout(OPERATE_S_MAX, receiver).await {
            Ok(Ok(result)) => result.map_err(NotDone::Refused),
            Ok(Err(_)) | Err(_) => Err(NotDone::Late),
        }
    }

    /// A worker answered a look.
    pub(super) fn seen(&self, _worker: WorkerId, ticket: u64, snapshot: Snapshot) {
        if let Some(waiting) = self.looks.borrow_mut().remove(&ticket) {
            // The request that waited may be gone.
            let _ = waiting.send(snapshot);
        }
    }

    /// A command is done, or refused.
    pub(super) fn operated(&self, ticket: u64, result: Operated) {
        if let Some(waiting) = self.operations.borrow_mut().remove(&ticket) {
            let _ = waiting.send(result);
        }
    }
}
