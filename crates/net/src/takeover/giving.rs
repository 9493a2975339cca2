//! The old process's side.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use pgweir_core::Shared;
use pgweir_core::carried::{Carried, CarriedSwitches};
use pgweir_core::mail::Mail;
use socket2::Socket;

use super::frames::{self, Frame, Tag};
use crate::mesh::{Arrival, Letter, Mailbox, NetCommand};

/// How long the new process may take from our listeners to being ready: it starts threads, nothing else.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// How long a worker may take to lend its listeners.
const WORKER_PATIENCE: Duration = Duration::from_secs(10);

/// One thing to be handed over, with its sockets: the client's, then the server's.
pub(crate) struct Package {
    pub(crate) sockets: Vec<Socket>,
    pub(crate) carried: Box<Carried>,
}

/// Gives everything the workers have to a new process.
#[derive(Clone)]
pub struct Giver {
    pub(crate) mailboxes: Vec<Mailbox>,
    /// Listening sockets that no worker knows.
    pub(crate) doors: Arc<[OwnedFd]>,
}

/// An online restart came to nothing, or broke off.
#[derive(Debug, thiserror::Error)]
pub enum GivingError {
    /// Nothing was given: this process goes on as before.
    #[error("the new process did not get ready, this one goes on: {0}")]
    NotReady(io::Error),
    /// What was not given yet stays here, without a way in; see [`Leftovers`].
    #[error("the new process is gone before everything was handed over: {0}")]
    BrokenOff(io::Error, Leftovers),
}

/// What could not be given, because the new process is gone.
pub struct Leftovers {
    /// What the workers have given away, and nobody took.
    packages: Receiver<Package>,
    /// The one at which that was noticed.
    failed: Option<Package>,
    giver: Giver,
}

impl std::fmt::Debug for Leftovers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leftovers").finish_non_exhaustive()
    }
}

impl Leftovers {
    /// Has the workers serve on whom they have, until the last client leaves, and gives back to them what they gave away meanwhile.
    /// Returns after they have ended.
    pub fn take_back(self, shared: &Shared) {
        for mailbox in &self.giver.mailboxes {
            mailbox.send(Letter::Mail(Mail::SuccessorGone));
        }
        for Package { sockets, carried } in self.failed.into_iter().chain(self.packages) {
            // Who logs in to PostgreSQL anew is told what there is to tell: what was known of a pool is known here.
            let owner = shared.owner(&carried.database, &carried.pool_user);
            if let Some(mailbox) = self.giver.mailboxes.get(usize::from(owner.0)) {
                mailbox.send(Letter::Arrival(Box::new(Arrival::new(carried, sockets))));
            }
        }
    }
}

impl Giver {
    /// Gives these listening sockets, too.
    #[must_use]
    pub fn with_doors(self, doors: Vec<OwnedFd>) -> Giver {
        Giver { doors: doors.into(), ..self }
    }

    /// Talks to the new process, which is at the other end of `stream`, until everything was given. `taken_over` is called when
    /// it is ready: the pid file has to be gone when that returns, and the machines have to be told
    /// [`Shutdown::HandOver`](pgweir_core::mail::Shutdown) then. Returns after the workers have ended.
    ///
    /// # Errors
    /// [`GivingError`].
    pub fn give(
        &self,
        stream: OwnedFd,
        shared: &Shared,
        taken_over: impl FnOnce(),
    ) -> Result<(), GivingError> {
        let stream = UnixStream::from(stream);
        self.open_doors(&stream, shared).map_err(GivingError::NotReady)?;
        let (give, packages) = channel();
        self.command(&NetCommand::GiveAway(give));
        taken_over();
        let mut failed = None;
        self.give_all(&stream, &packages, &mut failed).map_err(|error| {
            GivingError::BrokenOff(error, Leftovers { packages, failed, giver: self.clone() })
        })
    }

    /// The one that could not be given is left in `failed`.
    fn give_all(
        &self,
        stream: &UnixStream,
        packages: &Receiver<Package>,
        failed: &mut Option<Package>,
    ) -> io::Result<()> {
        frames::write(stream, Tag::Yours, &[], &[])?;
        self.hear_cancels(stream)?;
        for package in packages {
            let sockets: Vec<_> = package.sockets.iter().map(AsFd::as_fd).collect();
            let written = frames::write(stream, Tag::Carried, &package.carried.encode(), &sockets);
            drop(sockets);
            if written.is_err() {
                *failed = Some(package);
                return written;
            }
        }
        frames::write(stream, Tag::End, &[], &[])
    }

    fn open_doors(&self, stream: &UnixStream, shared: &Shared) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(READY_PATIENCE))?;
        let listeners = self.borrow_listeners()?;
        let own = listeners.iter().map(AsFd::as_fd);
        let listeners: Vec<_> = own.chain(self.doors.iter().map(AsFd::as_fd)).collect();
        let mut body = shared.generation().to_be_bytes().to_vec();
        body.extend(CarriedSwitches::encode(shared));
        frames::write(stream, Tag::Doors, &body, &listeners)?;
        match frames::read(stream)?.tag {
            Tag::Ready => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Cancel requests for clients that are here still come in at the new process: it passes them on. The thread ends with the stream.
    fn hear_cancels(&self, stream: &UnixStream) -> io::Result<()> {
        stream.set_read_timeout(None)?;
        let (stream, mailboxes) = (stream.try_clone()?, self.mailboxes.clone());
        thread::Builder::new().name("cancels".into()).spawn(move || {
            while let Ok(Frame { tag: Tag::Cancel, body: key, .. }) = frames::read(&stream) {
                for mailbox in &mailboxes {
                    mailbox.send(Letter::Mail(Mail::Cancel { key: key.clone() }));
                }
            }
        })?;
        Ok(())
    }

    /// Every worker has the same ones.
    fn borrow_listeners(&self) -> io::Result<Vec<Socket>> {
        let (lend, lent) = channel();
        if let Some(first) = self.mailboxes.first() {
            first.send(Letter::Command(Box::new(NetCommand::LendListeners(lend))));
        }
        lent.recv_timeout(WORKER_PATIENCE).map_err(|_| io::ErrorKind::TimedOut)?
    }

    fn command(&self, command: &NetCommand) {
        for mailbox in &self.mailboxes {
            mailbox.send(Letter::Command(Box::new(command.clone())));
        }
    }
}

/// Where a worker puts duplicates of its listeners.
pub(crate) type Lend = Sender<io::Result<Vec<Socket>>>;
