//! The new process's side of an online restart.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;

use pgweir_core::carried::{Carried, CarriedError, CarriedSwitches};
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Mail;
use socket2::Socket;

use super::frames::{self, ACKNOWLEDGES, Frame, Tag};
use crate::worker::mesh::{Arrival, Mailbox, NetCommand, WorkerMessage};

/// An old process that is about to be replaced by this one.
pub struct Takeover {
    stream: UnixStream,
    listeners: Vec<Socket>,
    generation: u32,
    switches: CarriedSwitches,
    /// `true` if the old process waits for an acknowledgement of each connection.
    acknowledges: bool,
}

/// The reason why this process cannot replace the other one.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The old process refused; its own words.
    #[error("the running process cannot be taken over: {0}")]
    Refused(String),
    /// The connection broke, or the old process sent something unexpected.
    #[error("taking over from the running process failed: {0}")]
    Broken(#[from] io::Error),
}

impl Takeover {
    /// Receives the old process's listeners. `stream` is a connection to its console, on which this process
    /// has requested the takeover.
    ///
    /// # Errors
    ///
    /// The old process refuses, is not a pgweir, or is gone.
    pub fn begin(stream: UnixStream) -> Result<Takeover, TakeoverError> {
        let Frame { tag, body, sockets } = frames::read(&stream)?;
        match (tag, body.split_first_chunk()) {
            (Tag::Listeners, Some((&generation, switches))) => Ok(Takeover {
                stream,
                listeners: sockets.into_iter().map(Socket::from).collect(),
                generation: u32::from_be_bytes(generation),
                switches: CarriedSwitches::decode(switches).map_err(not_understood)?,
                acknowledges: false,
            }),
            (Tag::Refused, _) => Err(TakeoverError::Refused(error_text(&body))),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Returns the old process's generation; this one's is the next.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the state of the old process's console switches (PAUSE, DISABLE). The machines must not start
    /// without it.
    #[must_use]
    pub fn switches(&self) -> &CarriedSwitches {
        &self.switches
    }

    /// Returns the old process's listening sockets. A second call returns none.
    pub fn take_listeners(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.listeners)
    }

    /// Tells the old process that this one serves, and waits until its pid file is gone.
    ///
    /// # Errors
    ///
    /// The old process is gone.
    pub fn ready(&mut self) -> Result<(), TakeoverError> {
        frames::write(&self.stream, Tag::Ready, ACKNOWLEDGES, &[])?;
        match frames::read(&self.stream)? {
            Frame { tag: Tag::Yours, body, .. } => {
                self.acknowledges = body == ACKNOWLEDGES;
                Ok(())
            }
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Receives connections until the old process has handed over all, and tells the machines when that is
    /// so. `owner` returns the worker that a pool (database, user) lives on. Returns the number of clients
    /// and of servers that came.
    ///
    /// # Errors
    ///
    /// The old process ended before it had handed over all.
    pub fn receive(
        self,
        to: &Arrivals,
        owner: impl Fn(&str, &str) -> WorkerId,
    ) -> Result<(u64, u64), TakeoverError> {
        let received = self.receive_all(to, owner);
        // The old process reads the end of the stream as "nothing more is taken". The thread for cancel
        // requests has the stream, too, so dropping it would not end it.
        let _ = self.stream.shutdown(Shutdown::Both);
        for mailbox in &to.mailboxes {
            mailbox.send(WorkerMessage::Mail(Mail::AllArrived));
        }
        received
    }

    fn receive_all(
        &self,
        to: &Arrivals,
        owner: impl Fn(&str, &str) -> WorkerId,
    ) -> Result<(u64, u64), TakeoverError> {
        self.pass_cancels_back(to)?;
        let (mut clients, mut servers) = (0, 0);
        loop {
            let Frame { tag, body, sockets } = frames::read(&self.stream)?;
            match tag {
                Tag::End => return Ok((clients, servers)),
                Tag::Carried => {}
                _ => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
            }
            let carried = Carried::decode(&body).map_err(not_understood)?;
            if self.acknowledges {
                // The acknowledgement precedes the service. If it fails because the old process has ended,
                // only this process has the sockets, and none is needed.
                let _ = frames::write(&self.stream, Tag::Taken, &[], &[]);
            }
            clients += u64::from(carried.client.is_some());
            servers += u64::from(carried.server.is_some());
            let worker = owner(&carried.database, &carried.pool_user);
            if let Some(mailbox) = to.mailboxes.get(usize::from(worker.0)) {
                let arrival = Arrival::new(Box::new(carried), sockets.into_iter().map(Socket::from));
                mailbox.send(WorkerMessage::Arrival(Box::new(arrival)));
            }
        }
    }
}

impl Takeover {
    /// Starts a thread that sends the workers' unknown cancel requests to the old process. It ends with the
    /// old process.
    fn pass_cancels_back(&self, to: &Arrivals) -> io::Result<()> {
        let stream = self.stream.try_clone()?;
        let (pass, keys) = channel::<Vec<u8>>();
        for mailbox in &to.mailboxes {
            mailbox.send(WorkerMessage::Command(Box::new(NetCommand::PassBack(pass.clone()))));
        }
        thread::Builder::new().name("cancels-back".into()).spawn(move || {
            for key in keys {
                if frames::write(&stream, Tag::Cancel, &key, &[]).is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// The workers, as the receivers of what another process hands over.
#[derive(Clone)]
pub struct Arrivals {
    pub(crate) mailboxes: Vec<Mailbox>,
}

fn not_understood(error: CarriedError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Returns the field `M` of an ErrorResponse (PostgreSQL's documentation, "Error and Notice Message Fields").
fn error_text(body: &[u8]) -> String {
    let message = body.split(|&byte| byte == 0).find_map(|field| field.strip_prefix(b"M"));
    String::from_utf8_lossy(message.unwrap_or(b"(no reason given)")).into_owned()
}
