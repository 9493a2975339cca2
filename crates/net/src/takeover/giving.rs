//! The old process's side of an online restart.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use pgweir_core::Shared;
use pgweir_core::carried::{Carried, CarriedSwitches};
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Mail;
use socket2::Socket;

use super::frames::{self, ACKNOWLEDGES, Frame, Tag};
use crate::worker::mesh::{Arrival, Mailbox, NetCommand, WorkerMessage};

/// The time that the new process may take from receiving our listeners to being ready. It only starts threads
/// in that time.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The time that a worker may take to duplicate its listeners.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that is handed over, with its sockets: the client's, then the server's.
pub(crate) struct Package {
    /// The worker that gave it away.
    pub(crate) from: WorkerId,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) carried: Box<Carried>,
}

/// A message to the thread that hands connections over. Only the workers own the sender: when the last of
/// them ends, the channel ends.
pub(crate) enum HandoverMessage {
    /// From a worker: a connection to hand over.
    Package(Package),
    /// From the new process: it is about to serve the oldest package that it has not acknowledged yet.
    Taken,
    /// The new process has closed the stream: packages that it has not acknowledged are never served there.
    Gone,
}

/// The handle that hands over everything the workers have to a new process.
#[derive(Clone)]
pub struct Giver {
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Listening sockets that no worker has.
    pub(crate) extra_listeners: Arc<[OwnedFd]>,
}

/// The failure of an online restart.
#[derive(Debug, thiserror::Error)]
pub enum GivingError {
    /// Nothing was handed over: this process goes on as before.
    #[error("the new process did not get ready, this one goes on: {0}")]
    NotReady(io::Error),
    /// The new process is gone. The connections that were not handed over stay here, without listeners; see
    /// [`Leftovers`].
    #[error("the new process is gone before everything was handed over: {0}")]
    BrokenOff(io::Error, Leftovers),
}

/// The connections that could not be handed over, because the new process is gone.
pub struct Leftovers {
    /// Connections that the workers have given away, and that the new process did not take.
    untaken: VecDeque<Package>,
    /// The channel of connections that workers give away until they know that the new process is gone.
    messages: Receiver<HandoverMessage>,
    giver: Giver,
}

impl std::fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leftovers").finish_non_exhaustive()
    }
}

impl Leftovers {
    /// Lets the workers serve the clients they have until the last one disconnects, and returns to them the
    /// connections that they gave away. Returns after the workers have ended.
    pub fn take_back(self) {
        let Leftovers { untaken, messages, giver } = self;
        for mailbox in &giver.mailboxes {
            mailbox.send(WorkerMessage::Mail(Mail::SuccessorGone));
        }
        untaken.into_iter().for_each(|package| giver.return_package(package));
        for message in messages {
            if let HandoverMessage::Package(package) = message {
                giver.return_package(package);
            }
        }
    }
}

impl Giver {
    /// Returns a giver that hands over these listening sockets, too.
    #[must_use]
    pub fn with_listeners(self, listeners: Vec<OwnedFd>) -> Giver {
        Giver { extra_listeners: listeners.into(), ..self }
    }

    /// Talks to the new process, which is at the other end of `stream`, until everything is handed over.
    /// `taken_over` is called when the new process is ready: when it returns, the pid file has to be gone,
    /// and the machines have to be told [`Shutdown::HandOver`](pgweir_core::mail::Shutdown). Returns after
    /// the workers have ended.
    ///
    /// # Errors
    ///
    /// [`GivingError`].
    pub fn give(
        &self,
        stream: OwnedFd,
        shared: &Shared,
        taken_over: impl FnOnce(),
    ) -> Result<(), GivingError> {
        let stream = UnixStream::from(stream);
        let acknowledges = self.offer_listeners(&stream, shared).map_err(GivingError::NotReady)?;
        let (give, messages) = channel();
        let give = Arc::new(give);
        // Only the workers own the sender: a strong one here would keep the channel open after they have
        // ended.
        let hears = Arc::downgrade(&give);
        self.command(&NetCommand::GiveAway(give));
        taken_over();
        let mut untaken = VecDeque::new();
        let given = self
            .hear(&stream, hears)
            .and_then(|()| self.give_all(&stream, &messages, &mut untaken, acknowledges));
        given.map_err(|error| {
            GivingError::BrokenOff(error, Leftovers { untaken, messages, giver: self.clone() })
        })
    }

    /// Hands over connections until the workers have ended. Fails if the new process is gone: then `untaken`
    /// has the packages that it has not acknowledged, and never will.
    fn give_all(
        &self,
        stream: &UnixStream,
        messages: &Receiver<HandoverMessage>,
        untaken: &mut VecDeque<Package>,
        acknowledges: bool,
    ) -> io::Result<()> {
        let mut written =
            frames::write(stream, Tag::Yours, if acknowledges { ACKNOWLEDGES } else { &[] }, &[]);
        for message in messages {
            match message {
                HandoverMessage::Package(package) => {
                    if written.is_ok() {
                        written = write_package(stream, &package);
                    }
                    untaken.push_back(package);
                    if !acknowledges && written.is_ok() {
                        self.forget_oldest(untaken);
                    }
                }
                HandoverMessage::Taken => self.forget_oldest(untaken),
                HandoverMessage::Gone => {
                    return Err(written.err().unwrap_or(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            if written.is_err() {
                // When the new process finds the end of our stream, it closes its own. Only then is it known
                // which packages it has taken.
                let _ = stream.shutdown(Shutdown::Write);
                if !acknowledges {
                    return written;
                }
            }
        }
        frames::write(stream, Tag::End, &[], &[])
    }

    /// Forgets the oldest package, which the new process has taken: our descriptors are closed, and its
    /// worker may end.
    fn forget_oldest(&self, untaken: &mut VecDeque<Package>) {
        if let Some(Package { from, sockets, .. }) = untaken.pop_front() {
            drop(sockets);
            self.tell(from, WorkerMessage::Command(Box::new(NetCommand::Received)));
        }
    }

    /// Returns a package to the worker that gave it away. A client that is still logging in to PostgreSQL can
    /// be answered there, because the worker knows its pool.
    fn return_package(&self, package: Package) {
        let Package { from, sockets, carried } = package;
        self.tell(from, WorkerMessage::Arrival(Box::new(Arrival::new(carried, sockets))));
        self.tell(from, WorkerMessage::Command(Box::new(NetCommand::Received)));
    }

    fn tell(&self, worker: WorkerId, message: WorkerMessage) {
        if let Some(mailbox) = self.mailboxes.get(usize::from(worker.0)) {
            mailbox.send(message);
        }
    }

    /// Sends the listeners and waits until the new process is ready. Returns `true` if the new process
    /// acknowledges what it takes.
    fn offer_listeners(&self, stream: &UnixStream, shared: &Shared) -> io::Result<bool> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(READY_TIMEOUT))?;
        let listeners = self.borrow_listeners()?;
        let own = listeners.iter().map(AsFd::as_fd);
        let listeners: Vec<_> = own.chain(self.extra_listeners.iter().map(AsFd::as_fd)).collect();
        let mut body = shared.generation().to_be_bytes().to_vec();
        body.extend(CarriedSwitches::encode(shared));
        frames::write(stream, Tag::Listeners, &body, &listeners)?;
        match frames::read(stream)? {
            Frame { tag: Tag::Ready, body, .. } => Ok(body == ACKNOWLEDGES),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Starts a thread that receives the new process's messages until the stream ends: acknowledgements, and
    /// cancel requests for clients that stayed here, whose requests still arrive there.
    fn hear(&self, stream: &UnixStream, messages: Weak<Sender<HandoverMessage>>) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        let (mut stream, mailboxes) = (stream.try_clone()?, self.mailboxes.clone());
        let tell = move |message| {
            if let Some(messages) = messages.upgrade() {
                // The receiver exists as long as a worker does.
                let _ = messages.send(message);
            }
        };
        let listen = move || {
            loop {
                match frames::read(&stream) {
                    Ok(Frame { tag: Tag::Taken, .. }) => tell(HandoverMessage::Taken),
                    Ok(Frame { tag: Tag::Cancel, body: key, .. }) => {
                        for mailbox in &mailboxes {
                            mailbox.send(WorkerMessage::Mail(Mail::Cancel { key: key.clone(), from: None }));
                        }
                    }
                    Ok(_) | Err(_) => break,
                }
            }
            // After a frame that makes no sense, nothing more is handed over. Still, only the stream's end
            // tells that nothing more is taken.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
            tell(HandoverMessage::Gone);
        };
        thread::Builder::new().name("successor".into()).spawn(listen)?;
        Ok(())
    }

    /// Returns duplicates of the first worker's listeners; every worker has the same ones.
    fn borrow_listeners(&self) -> io::Result<Vec<Socket>> {
        let (reply, duplicates) = channel();
        if let Some(first) = self.mailboxes.first() {
            first.send(WorkerMessage::Command(Box::new(NetCommand::DuplicateListeners(reply))));
        }
        duplicates.recv_timeout(WORKER_TIMEOUT).map_err(|_| io::ErrorKind::TimedOut)?
    }

    fn command(&self, command: &NetCommand) {
        for mailbox in &self.mailboxes {
            mailbox.send(WorkerMessage::Command(Box::new(command.clone())));
        }
    }
}

fn write_package(stream: &UnixStream, package: &Package) -> io::Result<()> {
    let sockets: Vec<_> = package.sockets.iter().map(AsFd::as_fd).collect();
    frames::write(stream, Tag::Carried, &package.carried.encode(), &sockets)
}

/// The channel for duplicates of a worker's listeners.
pub(crate) type ListenersReply = Sender<io::Result<Vec<Socket>>>;
