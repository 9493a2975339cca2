//! Opens connections to servers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::Interest;
use pgweir_core::driver::{Closed, ConnId, Endpoint, Level};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::connection::conn::{Conn, Dialing, Origin};
use crate::connection::table::{State, token};
use crate::resolve::{Answer, AnswerEffects, Lookup};
use crate::sys;
use crate::worker::io::{Io, Report};

/// The pause after which a unix socket with a full queue is tried again, in microseconds.
const REDIAL_US: u64 = 20_000;

/// A connection attempt, with the other addresses of the host.
pub(crate) struct Attempt {
    pub(crate) socket: Socket,
    target: Target,
    others: Vec<SocketAddr>,
}

#[derive(Clone)]
enum Target {
    Tcp(SocketAddr),
    Unix(Arc<str>),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Tcp(address) => address.fmt(f),
            Target::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// The result of an event on an attempt.
pub(crate) enum Outcome {
    /// The connection is open; the text is our end's "ip:port", or "" for a unix socket.
    Up(String),
    /// The attempt failed, and there is no other address.
    Failed(Closed),
    /// The attempt goes on.
    Pending,
}

/// Returns the address of a unix socket; `@name` is an abstract one, as libpq writes it.
pub(crate) fn unix_address(path: &str) -> io::Result<SockAddr> {
    match path.strip_prefix('@') {
        Some(name) => SockAddr::unix(format!("\0{name}")),
        None => SockAddr::unix(path),
    }
}

impl Io {
    pub(crate) fn start_dial(&mut self, endpoint: &Endpoint) -> ConnId {
        let id = self.table.insert(State::Dialing(Dialing::Resolving));
        match endpoint {
            Endpoint::Tcp { host, port } => match self.names.lookup(id, host, *port, self.now_us) {
                Lookup::Found(addresses) => self.connect_tcp(id, addresses),
                Lookup::Failed(text) => self.fail(id, Closed::NameNotResolved(text)),
                Lookup::Asked => {}
            },
            Endpoint::Unix { path } => self.connect_unix(id, path),
        }
        id
    }

    /// Continues all connections that wait for this name. Returns the host with its current addresses if it
    /// has left one.
    pub(crate) fn resolved(&mut self, answer: Answer) -> Option<(Arc<str>, Vec<SocketAddr>)> {
        let ttl = (self.options.dns_max_ttl_us, self.options.dns_nxdomain_ttl_us);
        let AnswerEffects { waiters, moved, warning } = self.names.answered(answer, self.now_us, ttl);
        if let Some(warning) = warning {
            self.say(Level::Warning, &warning);
        }
        for waiter in waiters {
            // The machine may have given the connection up, and its slot may have another one.
            if !matches!(self.table.state(waiter.id), Some(State::Dialing(Dialing::Resolving))) {
                continue;
            }
            match waiter.result {
                Ok(addresses) => self.connect_tcp(waiter.id, addresses),
                Err(text) => self.fail(waiter.id, Closed::NameNotResolved(text)),
            }
        }
        moved
    }

    /// Tries again to connect to unix sockets whose queue was full.
    pub(crate) fn redial(&mut self) {
        while let Some(&(due_us, id)) = self.redials.front()
            && due_us <= self.now_us
        {
            self.redials.pop_front();
            if let Some(State::Dialing(Dialing::Queueing(Endpoint::Unix { path }))) = self.table.state(id) {
                let path = Arc::clone(path);
                self.connect_unix(id, &path);
            }
        }
    }

    /// Handles an event of the poll for a connection attempt.
    pub(crate) fn dial_event(&mut self, id: ConnId) -> Outcome {
        let Some(state) = self.table.state(id) else { return Outcome::Pending };
        let State::Dialing(Dialing::Connecting(attempt)) = state else { return Outcome::Pending };
        let local = match arrived(&attempt.socket) {
            Ok(Some(local)) => local,
            Ok(None) => return Outcome::Pending,
            Err(e) => return self.try_others(id, &e),
        };
        let State::Dialing(Dialing::Connecting(attempt)) = std::mem::replace(state, State::Free) else {
            unreachable!("looked at above");
        };
        let watched = sys::reregister(&self.registry, &attempt.socket, token(id), Interest::READABLE);
        *state = State::Open(Conn::new(attempt.socket, Origin::Dialed));
        match watched {
            Ok(()) => Outcome::Up(local),
            Err(e) => Outcome::Failed(Closed::DialFailed(sys::text(&e))),
        }
    }

    fn try_others(&mut self, id: ConnId, error: &io::Error) -> Outcome {
        let Some(State::Dialing(Dialing::Connecting(attempt))) = self.table.state(id) else {
            return Outcome::Pending;
        };
        let failed =
            Closed::DialFailed(format!("connect to {} failed: {}", attempt.target, sys::text(error)));
        let others = std::mem::take(&mut attempt.others);
        if others.is_empty() {
            return Outcome::Failed(failed);
        }
        self.connect_tcp(id, others);
        Outcome::Pending
    }

    /// Connects to the first of the addresses that does not fail at once.
    fn connect_tcp(&mut self, id: ConnId, addresses: Vec<SocketAddr>) {
        let mut last = String::from("the host has no address");
        for (number, address) in addresses.iter().enumerate() {
            let begun =
                Socket::new(Domain::for_address(*address), Type::STREAM.nonblocking().cloexec(), None)
                    .and_then(|socket| {
                        sys::tune_tcp(&socket, &self.options)?;
                        self.begin(id, socket, &(*address).into(), Target::Tcp(*address))
                    });
            match begun {
                Ok(mut attempt) => {
                    attempt.others = addresses[number + 1..].to_vec();
                    return self.set_dialing(id, Dialing::Connecting(attempt));
                }
                Err(e) => last = format!("connect to {address} failed: {}", sys::text(&e)),
            }
        }
        self.fail(id, Closed::DialFailed(last));
    }

    fn connect_unix(&mut self, id: ConnId, path: &Arc<str>) {
        let begun = unix_address(path).and_then(|address| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
            self.begin(id, socket, &address, Target::Unix(Arc::clone(path)))
        });
        match begun {
            Ok(attempt) => self.set_dialing(id, Dialing::Connecting(attempt)),
            // The listener's queue is full. The machine's own time limit ends the attempts.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.set_dialing(id, Dialing::Queueing(Endpoint::Unix { path: Arc::clone(path) }));
                self.redials.push_back((self.now_us.saturating_add(REDIAL_US), id));
            }
            Err(e) => {
                let text = format!("connect to unix:{path} failed: {}", sys::text(&e));
                self.fail(id, Closed::DialFailed(text));
            }
        }
    }

    /// Starts to connect and watches the socket. Even if the connection is open at once, the poll reports it.
    fn begin(&self, id: ConnId, socket: Socket, address: &SockAddr, target: Target) -> io::Result<Attempt> {
        match socket.connect(address) {
            Err(e) if !sys::in_progress(&e) => return Err(e),
            _ => {}
        }
        sys::register(&self.registry, &socket, token(id), Interest::READABLE | Interest::WRITABLE)?;
        Ok(Attempt { socket, target, others: Vec::new() })
    }

    fn set_dialing(&mut self, id: ConnId, dialing: Dialing) {
        if let Some(state) = self.table.state(id) {
            *state = State::Dialing(dialing);
        }
    }

    fn fail(&mut self, id: ConnId, why: Closed) {
        self.reports.push_back((id, Report::Closed(why)));
    }
}

/// Returns the local address if the connection is open, and `None` if it is still being opened.
fn arrived(socket: &Socket) -> io::Result<Option<String>> {
    // The poll reports a failed connect as writable, too: only SO_ERROR tells.
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let peer = match socket.peer_addr() {
        Ok(peer) => peer,
        Err(e) if e.kind() == io::ErrorKind::NotConnected => return Ok(None),
        Err(e) => return Err(e),
    };
    let local = socket.local_addr()?;
    match (local.as_socket(), peer.as_socket()) {
        // No server listens, and the kernel chose the very port that was dialed as our own end: the socket is
        // connected to itself.
        (Some(ours), Some(theirs)) if ours == theirs => Err(io::ErrorKind::ConnectionRefused.into()),
        (Some(ours), _) => Ok(Some(ours.to_string())),
        (None, _) => Ok(Some(String::new())),
    }
}
