//! Messages to a worker: from other workers, from the control plane, from the resolver.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use mio::Waker;
use pgweir_core::carried::Carried;
use pgweir_core::client_handoff::ClientHandoff;
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Mail;
use socket2::Socket;

use crate::connection::conn::Conn;
use crate::options::SocketOptions;
use crate::resolve::Answer;
use crate::takeover::{ListenersReply, Parting};
use crate::tls::TlsConfigs;

/// What the binary tells a worker's event loop (not its machine).
#[derive(Clone)]
pub(crate) enum NetCommand {
    /// TLS configuration for sessions that begin from now on.
    Tls(TlsConfigs),
    /// Socket options for connections made from now on.
    Options(SocketOptions),
    /// Answer with duplicates of the listeners.
    DuplicateListeners(ListenersReply),
    /// Accept no more connections, and hand over what the machine gives away through this.
    GiveAway(Arc<Sender<Parting>>),
    /// Something that was given away has a new owner, or is back.
    Received,
    /// Pass keys of cancel requests that mean nothing here through this, to the process whose place we take.
    PassBack(Sender<Vec<u8>>),
    /// End the loop.
    Stop,
}

/// A message to a worker.
pub(crate) enum WorkerMessage {
    /// For its machine.
    Mail(Mail),
    /// A client that moves there.
    ClientTransfer(Box<ClientTransfer>),
    /// Something that another process hands over.
    Arrival(Box<Arrival>),
    /// A host name's addresses.
    Resolved(Box<Answer>),
    /// For its event loop.
    Command(Box<NetCommand>),
}

/// A client's connection on its way from one worker to another.
pub(crate) struct ClientTransfer {
    pub(crate) conn: Conn,
    pub(crate) handoff: Box<ClientHandoff>,
}

/// What another process hands over, with the sockets of a client and a server as far as there are any.
pub(crate) struct Arrival {
    pub(crate) client: Option<Socket>,
    pub(crate) server: Option<Socket>,
    pub(crate) carried: Box<Carried>,
}

impl Arrival {
    /// With the sockets in the order in which they are handed over: the client's, then the server's.
    pub(crate) fn new(carried: Box<Carried>, sockets: impl IntoIterator<Item = Socket>) -> Arrival {
        let mut sockets = sockets.into_iter();
        let client = carried.client.as_ref().and_then(|_| sockets.next());
        let server = carried.server.as_ref().and_then(|_| sockets.next());
        Arrival { client, server, carried }
    }
}

/// The way into a worker. Messages of one sender arrive in order.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub(crate) messages: Sender<WorkerMessage>,
    pub(crate) waker: Arc<Waker>,
}

impl Mailbox {
    /// Sends and wakes at once. A worker that has ended gets nothing, and the sender does not learn of it.
    pub(crate) fn send(&self, message: WorkerMessage) {
        if self.messages.send(message).is_ok() {
            self.wake();
        }
    }

    fn wake(&self) {
        // It can fail only when the poll is gone, and the worker with it.
        let _ = self.waker.wake();
    }
}

/// The workers as one of them sees them: messages go at once, the wake-up (a system call) once per turn and receiver.
pub(crate) struct Mesh {
    boxes: Vec<Mailbox>,
    to_wake: Vec<bool>,
    /// At least one worker is to be woken.
    posted: bool,
}

impl Mesh {
    pub(crate) fn new(boxes: Vec<Mailbox>) -> Self {
        let to_wake = vec![false; boxes.len()];
        Self { boxes, to_wake, posted: false }
    }

    pub(crate) fn post(&mut self, to: WorkerId, message: WorkerMessage) {
        let number = usize::from(to.0);
        if let Some(mailbox) = self.boxes.get(number)
            && mailbox.messages.send(message).is_ok()
        {
            self.to_wake[number] = true;
            self.posted = true;
        }
    }

    #[inline]
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.posted) {
            self.wake_posted();
        }
    }

    fn wake_posted(&mut self) {
        for (mailbox, wanted) in self.boxes.iter().zip(&mut self.to_wake) {
            if std::mem::take(wanted) {
                mailbox.wake();
            }
        }
    }
}
