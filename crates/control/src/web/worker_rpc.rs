//! Requests to the workers, and their answers.

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

/// The error that a worker has not answered in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Late;

/// The reason why a console command was not carried out, or not yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotDone {
    /// The command was refused; the text is for an administrator.
    Refused(String),
    /// The command goes on, but has not finished in time.
    Late,
}

/// The requests to workers that wait for an answer.
pub(super) struct WorkerRpc {
    workforce: Box<dyn Workforce>,
    tickets: Cell<u64>,
    looks: RefCell<HashMap<u64, oneshot::Sender<Snapshot>>>,
    operations: RefCell<HashMap<u64, oneshot::Sender<Operated>>>,
}

/// The number of a waiting request, which is forgotten when the wait ends, however it ends.
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

    /// Requests a snapshot from a worker.
    pub(super) async fn look(&self, worker: WorkerId, look: SnapshotRequest) -> Result<Snapshot, Late> {
        let ticket = Ticket { number: self.next_ticket(), waiting: &self.looks };
        let (sender, receiver) = oneshot::channel();
        self.looks.borrow_mut().insert(ticket.number, sender);
        self.workforce.mail(worker, Mail::SnapshotRequest { ticket: ticket.number, look });
        timeout(LOOK_S_MAX, receiver).await.ok().and_then(Result::ok).ok_or(Late)
    }

    /// Has a console command carried out everywhere. A command that takes long goes on after its request has
    /// stopped waiting.
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

    /// Delivers a worker's answer to a snapshot request.
    pub(super) fn seen(&self, _worker: WorkerId, ticket: u64, snapshot: Snapshot) {
        if let Some(waiting) = self.looks.borrow_mut().remove(&ticket) {
            // This fails if the request has stopped waiting.
            let _ = waiting.send(snapshot);
        }
    }

    /// Delivers the result of a command.
    pub(super) fn operated(&self, ticket: u64, result: Operated) {
        if let Some(waiting) = self.operations.borrow_mut().remove(&ticket) {
            let _ = waiting.send(result);
        }
    }
}
