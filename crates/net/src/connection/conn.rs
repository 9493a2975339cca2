//! One connection: its socket, the state of its two directions, and the bytes to be written.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use pgweir_core::driver::Endpoint;
use socket2::Socket;

use crate::connection::bulk::Flow;
use crate::connection::dial::Attempt;
use crate::connection::out::{BufferPool, Out};
use crate::sys;
use crate::tls::stream::{TLS_PIECE_BYTES, TlsStream};

/// The side that began the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// A connection that a client opened to this process.
    Accepted,
    /// A connection that this process opened to a server.
    Dialed,
}

/// A connection that the machine knows.
pub(crate) struct Conn {
    pub(crate) socket: Socket,
    pub(crate) origin: Origin,
    pub(crate) read: ReadSide,
    pub(crate) write: WriteSide,
    /// Bytes that the machine sent and the kernel has not taken: plain text, which is not yet encrypted on a
    /// TLS connection.
    pub(crate) out: Out,
    pub(crate) tls: Option<Box<TlsStream>>,
}

/// The state of the direction from the peer. Readiness is edge-triggered, so it has to be remembered.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ReadSide {
    /// `true` while the machine does not want to read.
    pub(crate) paused: bool,
    /// `true` if the kernel reported bytes that have not been read completely.
    pub(crate) readable: bool,
    /// `true` if the kernel reported the end or an error. Then a short read does not mean that there is
    /// nothing more.
    pub(crate) ended: bool,
    /// `true` while the connection is on the worker's ready list.
    pub(crate) listed: bool,
    pub(crate) flow: Flow,
    /// The last window of [`crate::scheduling`] in which the connection brought bytes.
    pub(crate) window: u32,
}

/// The state of the direction to the peer.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct WriteSide {
    /// `true` while the connection is on the worker's list of connections to flush.
    pub(crate) listed: bool,
    /// `true` while the socket is full and the poll watches for room.
    pub(crate) blocked: bool,
    /// `true` if the backlog was so deep that the machine may be waiting for `drained`.
    pub(crate) deep: bool,
    /// The operating system's error number (0 if it has none) after a failed write. All later bytes are
    /// dropped.
    pub(crate) failed: Option<i32>,
}

/// The stages of a connection to a server that is not open yet.
pub(crate) enum Dialing {
    /// The host's address is not known yet.
    Resolving,
    /// TCP: the handshake is under way.
    Connecting(Attempt),
    /// A unix socket whose listener's queue was full; it is tried again.
    Queueing(Endpoint),
}

/// A connection that the machine has closed.
pub(crate) struct Lingering {
    pub(crate) conn: Conn,
    /// `true` after our direction was closed: now only the peer's end is awaited.
    pub(crate) shut: bool,
    /// `true` after the peer has closed its direction.
    pub(crate) peer_ended: bool,
    /// The number of bytes read and discarded so far.
    pub(crate) discarded_bytes: usize,
    pub(crate) confirms: Confirms,
}

/// Whether the machine is told how a lingering connection ends (`CloseMode::Confirm`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Confirms {
    No,
    /// The end is awaited. Bytes are discarded without limit: if the socket was dropped because of them, the end would not be known.
    Awaits,
    /// The end is in the list of ends. The connection keeps its name until the machine has been told.
    Ended,
}

/// The result of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// The kernel has everything.
    All,
    /// The socket is full.
    Blocked,
}

/// The worker's tools for writing.
pub(crate) struct Tools<'a> {
    pub(crate) pool: &'a mut BufferPool,
    /// The buffer for encrypted bytes.
    pub(crate) scratch: &'a mut [u8],
}

impl Conn {
    pub(crate) fn new(socket: Socket, origin: Origin) -> Self {
        Self {
            socket,
            origin,
            read: ReadSide::default(),
            write: WriteSide::default(),
            out: Out::default(),
            tls: None,
        }
    }

    /// Returns the number of queued bytes that the kernel has not taken.
    pub(crate) fn backlog(&self) -> usize {
        self.out.len() + self.tls.as_ref().map_or(0, |tls| tls.wire.len())
    }

    /// Writes queued bytes until they are all sent or the socket is full.
    pub(crate) fn flush(&mut self, tools: &mut Tools<'_>) -> io::Result<Sent> {
        let Some(tls) = self.tls.as_mut() else {
            return flush_queue(&self.socket, &mut self.out, tools.pool);
        };
        loop {
            if flush_queue(&self.socket, &mut tls.wire, tools.pool)? == Sent::Blocked {
                return Ok(Sent::Blocked);
            }
            // During the handshake plain text waits in `out`.
            if self.out.is_empty() || !tls.is_established() {
                return Ok(Sent::All);
            }
            let piece = &self.out.as_slice()[..self.out.len().min(TLS_PIECE_BYTES)];
            let plain_bytes = piece.len();
            send_encrypted(&self.socket, tls, piece, tools)?;
            self.out.consume(plain_bytes, tools.pool);
        }
    }

    /// Returns the bytes that may be sent together with those of other connections; see
    /// [`crate::connection::uring_batch`].
    pub(crate) fn batch_send(&self) -> Option<(RawFd, &[u8])> {
        let may_leave = self.tls.is_none() && !self.write.blocked && !self.out.is_empty();
        may_leave.then(|| (self.socket.as_raw_fd(), self.out.as_slice()))
    }

    /// Takes the result of the send in a batch.
    pub(crate) fn note_batch_send(
        &mut self,
        sent: io::Result<usize>,
        pool: &mut BufferPool,
    ) -> io::Result<Sent> {
        note_sent(sent, &mut self.out, pool)
    }

    /// Writes a large piece without a copy, if nothing is queued before it. Returns the number of bytes that
    /// were taken.
    pub(crate) fn send_now(&mut self, bytes: &[u8], tools: &mut Tools<'_>) -> io::Result<usize> {
        let Some(tls) = self.tls.as_mut() else {
            return match sys::send(&self.socket, bytes) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
                result => result,
            };
        };
        let mut taken = 0;
        while taken < bytes.len() && tls.wire.is_empty() && tls.is_established() {
            let piece = &bytes[taken..bytes.len().min(taken + TLS_PIECE_BYTES)];
            send_encrypted(&self.socket, tls, piece, tools)?;
            taken += piece.len();
        }
        Ok(taken)
    }

    /// Drops the queued bytes.
    pub(crate) fn drop_queued(&mut self, pool: &mut BufferPool) {
        self.out.clear(pool);
        if let Some(tls) = self.tls.as_mut() {
            tls.wire.clear(pool);
        }
    }

    /// Returns all buffers to the pool, before the connection is dropped.
    pub(crate) fn recycle(mut self, pool: &mut BufferPool) {
        self.drop_queued(pool);
        if let Some(tls) = self.tls.take() {
            tls.recycle(pool);
        }
    }
}

fn flush_queue(socket: &Socket, queue: &mut Out, pool: &mut BufferPool) -> io::Result<Sent> {
    if queue.is_empty() {
        return Ok(Sent::All);
    }
    note_sent(sys::send(socket, queue.as_slice()), queue, pool)
}

/// Takes the result of send(2) for the bytes of a queue.
fn note_sent(sent: io::Result<usize>, queue: &mut Out, pool: &mut BufferPool) -> io::Result<Sent> {
    match sent {
        Ok(count) => {
            queue.consume(count, pool);
            Ok(if queue.is_empty() { Sent::All } else { Sent::Blocked })
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Sent::Blocked),
        Err(e) => Err(e),
    }
}

/// Encrypts a piece and writes it. Bytes that the socket does not take are queued; the queue must be empty
/// before.
fn send_encrypted(
    socket: &Socket,
    tls: &mut TlsStream,
    plain: &[u8],
    tools: &mut Tools<'_>,
) -> io::Result<()> {
    let count = tls.encrypt(plain, tools.scratch).map_err(io::Error::other)?;
    let sealed = &tools.scratch[..count];
    let sent = match sys::send(socket, sealed) {
        Ok(sent) => sent,
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
        Err(e) => return Err(e),
    };
    if sent < sealed.len() {
        tls.wire.push(&sealed[sent..], tools.pool);
    }
    Ok(())
}
