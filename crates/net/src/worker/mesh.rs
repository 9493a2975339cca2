//! Messages to a worker from other workers, the control plane and the resolver.

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
use crate::takeover::{HandoverMessage, ListenersReply};
use crate::tls::TlsConfigs;

/// A command of the control plane to a worker's event loop (not to its machine).
#[derive(Clone)]
pub(crate) enum NetCommand {
    /// TLS configuration for sessions that begin from now on.
    Tls(TlsConfigs),
    /// Socket options for connections made from now on.
    Options(SocketOptions),
    /// Reply with duplicates of the listeners.
    DuplicateListeners(ListenersReply),
    /// Accept no more connections, and send what the machine gives away through this channel.
    GiveAway(Arc<Sender<HandoverMessage>>),
    /// The new process has taken a connection that was given away, or the connection is back.
    Received,
    /// Send keys of cancel requests that are unknown here through this channel, to the process that this one
    /// replaces.
    PassBack(Sender<Vec<u8>>),
    /// End the loop.
    Stop,
}

/// A message to a worker.
pub(crate) enum WorkerMessage {
    /// Mail for the machine.
    Mail(Mail),
    /// A client that moves to this worker.
    ClientTransfer(Box<ClientTransfer>),
    /// A connection that another process hands over.
    Arrival(Box<Arrival>),
    /// A host name's addresses.
    Resolved(Box<Answer>),
    /// A command for the event loop.
    Command(Box<NetCommand>),
}

/// A client's connection on its way from one worker to another.
pub(crate) struct ClientTransfer {
    pub(crate) conn: Conn,
    pub(crate) handoff: Box<ClientHandoff>,
}

/// A client and a server that another process hands over, with their sockets, if there are any.
pub(crate) struct Arrival {
    pub(crate) client: Option<Socket>,
    pub(crate) server: Option<Socket>,
    pub(crate) carried: Box<Carried>,
}

impl Arrival {
    /// Creates an arrival. `sockets` are in the order in which they are handed over: the client's, then the
    /// server's.
    pub(crate) fn new(carried: Box<Carried>, sockets: impl IntoIterator<Item = Socket>) -> Arrival {
        let mut sockets = sockets.into_iter();
        let client = carried.client.as_ref().and_then(|_| sockets.next());
        let server = carried.server.as_ref().and_then(|_| sockets.next());
        Arrival { client, server, carried }
    }
}

/// The address of a worker for messages. Messages of one sender arrive in order.
#[derive(Clone)]
pub(crate) struct Mailbox {
    pub(crate) messages: Sender<WorkerMessage>,
    pub(crate) waker: Arc<Waker>,
}

impl Mailbox {
    /// Sends a message and wakes the worker at once. If the worker has ended, the message is dropped
    /// silently.
    pub(crate) fn send(&self, message: WorkerMessage) {
        if self.messages.send(message).is_ok() {
            self.wake();
        }
    }

    fn wake(&self) {
        // This fails only if the poll is gone, and the worker with it.
        let _ = self.waker.wake();
    }
}

/// The workers from the view of one of them. Messages are sent at once, but a receiver is woken (a system
/// call) once per turn.
pub(crate) struct Mesh {
    boxes: Vec<Mailbox>,
    to_wake: Vec<bool>,
    /// `true` if at least one worker has to be woken.
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
