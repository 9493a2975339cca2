//! Accepts clients.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use mio::Interest;
use pgweir_core::driver::{ConnId, DoorSeen, Level, Peer};
use socket2::Socket;

use crate::connection::conn::{Conn, Origin};
use crate::connection::table::listener_token;
use crate::sys;
use crate::worker::io::Io;
use crate::worker::tick::Worker;
use pgweir_core::Engine;

/// The maximum number of clients accepted from one listener in a turn, so that connected clients have their
/// turn, too.
const ACCEPTS_PER_TICK: usize = 64;
/// The time for which nothing is accepted after descriptors ran out, in microseconds.
pub(crate) const ACCEPT_PAUSE_US: u64 = 5_000_000;

/// A listening socket.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) kind: Kind,
}

impl Listener {
    fn seen(&self) -> DoorSeen {
        let (address, port) = match self.kind {
            Kind::Tcp(address) => (Some(address), address.port()),
            Kind::Unix { port } => (None, port),
        };
        DoorSeen { descriptor: self.socket.as_raw_fd(), address, port }
    }
}

/// The kind and the address of a listening socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// TCP, on this address.
    Tcp(SocketAddr),
    /// A unix socket whose name carries this port.
    Unix { port: u16 },
}

/// The state of a listener's queue after accepting from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queue {
    Empty,
    Longer,
}

/// The listeners of a worker.
pub(crate) struct Acceptor {
    listeners: Vec<Option<Listener>>,
    ready: Vec<usize>,
    /// The time until which nothing is accepted, because descriptors ran out; `None` while clients are
    /// accepted.
    paused_until_us: Option<u64>,
    own_uid: u32,
}

impl Acceptor {
    /// Registers the listeners with the poll.
    pub(crate) fn new(listeners: Vec<Listener>, io: &mut Io) -> io::Result<Self> {
        for (number, listener) in listeners.iter().enumerate() {
            sys::register(&io.registry, &listener.socket, listener_token(number), Interest::READABLE)?;
        }
        io.doors = listeners.iter().map(Listener::seen).collect();
        Ok(Self {
            listeners: listeners.into_iter().map(Some).collect(),
            ready: Vec::new(),
            paused_until_us: None,
            own_uid: nix::unistd::geteuid().as_raw(),
        })
    }

    /// Notes that the poll has reported clients at a listener.
    pub(crate) fn mark_ready(&mut self, number: usize) {
        if !self.ready.contains(&number) {
            self.ready.push(number);
        }
    }

    fn is_tcp(&self, number: usize) -> bool {
        matches!(self.listeners.get(number), Some(Some(Listener { kind: Kind::Tcp(_), .. })))
    }

    /// Closes the listeners for which `concerned` returns `true`.
    pub(crate) fn close(&mut self, io: &mut Io, concerned: impl Fn(Kind) -> bool) {
        for place in &mut self.listeners {
            if let Some(Listener { socket, kind }) = place
                && concerned(*kind)
            {
                // The poll would not forget the socket by itself while another worker has it open. If this
                // fails, later reports for it are ignored.
                let _ = sys::deregister(&io.registry, socket);
                io.doors.retain(|door| door.descriptor != socket.as_raw_fd());
                *place = None;
            }
        }
    }

    /// Returns the TCP listeners, to set options that accepted connections inherit.
    pub(crate) fn tcp_sockets(&self) -> impl Iterator<Item = &Socket> {
        self.listeners.iter().flatten().filter(|l| matches!(l.kind, Kind::Tcp(_))).map(|l| &l.socket)
    }

    /// Returns duplicates of all listeners, for another process.
    pub(crate) fn duplicates(&self) -> io::Result<Vec<Socket>> {
        self.listeners.iter().flatten().map(|listener| listener.socket.try_clone()).collect()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.paused_until_us.is_none() && !self.ready.is_empty()
    }

    pub(crate) fn deadline_us(&self) -> Option<u64> {
        self.paused_until_us
    }

    /// Ends the pause if its time is over. Then every listener is asked, because clients that came in the
    /// meantime were reported only once.
    fn end_pause(&mut self, now_us: u64) {
        if self.paused_until_us.is_some_and(|until_us| until_us <= now_us) {
            self.paused_until_us = None;
            self.ready = (0..self.listeners.len()).collect();
        }
    }
}

impl<E: Engine> Worker<E> {
    /// Closes the TCP listeners if the machine wants that. First all clients in the kernel's queues are
    /// accepted, which the kernel would otherwise reset.
    pub(crate) fn stop_listening(&mut self) {
        if !std::mem::take(&mut self.io.stop_listening) {
            return;
        }
        for number in 0..self.acceptor.listeners.len() {
            while self.acceptor.is_tcp(number) && self.accept_from(number) == Queue::Longer {}
        }
        self.acceptor.close(&mut self.io, |kind| matches!(kind, Kind::Tcp(_)));
    }

    /// Accepts clients from every listener that is ready.
    pub(crate) fn accept_ready(&mut self) {
        self.acceptor.end_pause(self.io.now_us);
        if !self.acceptor.has_work() {
            return;
        }
        let list = std::mem::take(&mut self.acceptor.ready);
        for number in list {
            if self.acceptor.paused_until_us.is_none() && self.accept_from(number) == Queue::Longer {
                self.acceptor.mark_ready(number);
            }
        }
    }

    fn accept_from(&mut self, number: usize) -> Queue {
        for _ in 0..ACCEPTS_PER_TICK {
            let Some(Some(listener)) = self.acceptor.listeners.get(number) else { return Queue::Empty };
            match sys::accept(&listener.socket) {
                Ok((socket, address)) => {
                    let kind = listener.kind;
                    if let Err(e) = self.take_in(socket, &address, kind) {
                        self.io
                            .say(Level::Error, &format!("accepted a client but lost it: {}", sys::text(&e)));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Queue::Empty,
                Err(e) if sys::out_of_descriptors(&e) => {
                    self.pause_accepting(&e);
                    return Queue::Empty;
                }
                // The client has disconnected already, or the network reported an old error. The next client
                // may be fine.
                Err(_) => {}
            }
        }
        Queue::Longer
    }

    fn pause_accepting(&mut self, error: &io::Error) {
        let line = format!(
            "accept() failed: {}; nothing is accepted for {} s (raise the limit of open files, or lower \
             max_client_conn)",
            sys::text(error),
            ACCEPT_PAUSE_US / 1_000_000,
        );
        self.io.say(Level::Error, &line);
        self.acceptor.paused_until_us = Some(self.io.now_us.saturating_add(ACCEPT_PAUSE_US));
    }

    /// Reads from the connection in this turn: with `tcp_defer_accept` the kernel reports a client when its
    /// first bytes have arrived.
    fn read_in_this_turn(&mut self, id: ConnId) {
        if let Some(conn) = self.io.table.open(id) {
            conn.read.readable = true;
            self.io.list_ready(id);
        }
    }

    fn take_in(&mut self, socket: Socket, address: &socket2::SockAddr, kind: Kind) -> io::Result<()> {
        let peer = match kind {
            Kind::Unix { port } => {
                let (pid, uid) = sys::peer_credentials(&socket)?;
                Peer::Unix { pid, uid, same_user: uid == self.acceptor.own_uid, port }
            }
            Kind::Tcp(listening_on) => {
                let remote = address.as_socket().ok_or(io::ErrorKind::InvalidData)?;
                // The call is needed only if the listener is on all addresses.
                let local = if listening_on.ip().is_unspecified() {
                    socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?
                } else {
                    listening_on
                };
                Peer::Tcp { remote, local }
            }
        };
        let id = self.io.adopt_socket(Conn::new(socket, Origin::Accepted))?;
        self.engine.accepted(&mut self.io, id, peer);
        if matches!(kind, Kind::Tcp(_)) && self.io.options.defer_accept_s > 0 {
            self.read_in_this_turn(id);
        }
        Ok(())
    }
}
