//! The interface between the machine and the world: the requests of the machine, and the types that both sides use.
//!
//! The machine ([`crate::Machine`]) is fed events and the time; through [`Driver`] it asks for bytes to be sent,
//! connections to be opened and closed, reads to be paused. Two implementations exist: `pgweir-net` (sockets) and
//! `pgweir-testkit` (a virtual network). This file must never know either of them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::client_handoff::ClientHandoff;
use crate::mail::{Mail, Question};
use crate::pool::takeover::carried::Carried;
use crate::stats::rare_path::RarePath;

/// A connection of either kind (client or server), as driver and machine both name it.
///
/// The driver allocates it (on accept or in [`Driver::dial`]). `index` is small and dense and may be used
/// again after the connection is gone; `generation` then differs, so an old name cannot reach a new
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// The connection's place in the driver's table.
    pub index: u32,
    /// The number of times that the place was used before.
    pub generation: u32,
}

/// A worker's number, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WorkerId(pub u16);

/// The time as the machine sees it. Both run in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The monotonic clock, from an arbitrary start; never 0 in practice.
    pub mono_us: u64,
    /// The wall clock, in microseconds since 1970-01-01 UTC; only for showing.
    pub wall_us: u64,
}

/// The origin of a client's connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// TCP: the client's address and the local address it reached.
    Tcp {
        /// The client's end.
        remote: SocketAddr,
        /// The local address.
        local: SocketAddr,
    },
    /// A unix socket, with the credentials the kernel reports (SO_PEERCRED).
    Unix {
        /// Process id of the client, 0 if unknown.
        pid: u32,
        /// User id of the client.
        uid: u32,
        /// `true` if that is the user id this process runs as.
        same_user: bool,
        /// Port that the socket's name carries (listen_port, or standby_listen_port).
        port: u16,
    },
}

/// The address of a server connection.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// TCP; `host` is a name or an address. The driver resolves names (cached as `dns_max_ttl` says).
    Tcp {
        /// Host name, IPv4 or IPv6 address.
        host: Arc<str>,
        /// Port.
        port: u16,
    },
    /// A unix socket: full path of the socket, or `@name` for an abstract one.
    Unix {
        /// The path, e.g. `/tmp/.s.PGSQL.5432`.
        path: Arc<str>,
    },
}

impl Endpoint {
    /// Returns the address of PostgreSQL at a host of the configuration: a name, an address, the directory of a unix socket, or `@name`.
    pub(crate) fn of_host(host: &str, port: u16) -> Endpoint {
        if host.starts_with('/') || host.starts_with('@') {
            Endpoint::of_socket_in(host, port)
        } else {
            Endpoint::Tcp { host: host.into(), port }
        }
    }

    /// Returns the address of PostgreSQL's socket in a directory, or with an abstract name.
    pub(crate) fn of_socket_in(dir: &str, port: u16) -> Endpoint {
        let dir = if dir.is_empty() { "/tmp" } else { dir.trim_end_matches('/') };
        Endpoint::Unix { path: format!("{dir}/.s.PGSQL.{port}").into() }
    }
}

/// The state of a driver's host names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamesSeen {
    /// The hosts that were looked up.
    pub hosts: Vec<HostSeen>,
    /// The zones that they are in.
    pub zones: Vec<ZoneSeen>,
    /// The number of hosts and zones that are being looked up.
    pub asked: usize,
}

/// A host that was looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSeen {
    /// The host's name, as configured.
    pub name: Arc<str>,
    /// The time for which the addresses will be remembered, in microseconds; 0 if the host must be looked up again before its next use.
    pub left_us: u64,
    /// The host's addresses, with port 0; none if there is no such host.
    pub addresses: Vec<SocketAddr>,
}

/// A zone of the names of hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZoneSeen {
    /// The zone's name.
    pub name: Arc<str>,
    /// The zone's serial number; 0 if it was not asked for.
    pub serial: u32,
    /// The number of hosts in the zone that were looked up.
    pub hosts: usize,
}

/// A listening socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoorSeen {
    /// The number of the socket's descriptor.
    pub descriptor: i32,
    /// The socket's address; `None` for a unix socket.
    pub address: Option<SocketAddr>,
    /// The socket's port, or the one that the unix socket's name carries.
    pub port: u16,
}

/// The side of TLS that [`Driver::start_tls`] takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsRole {
    /// We are the TLS server: a client asked for it (SSLRequest, or its first byte was a TLS record).
    Accept {
        /// `true` when the client spoke TLS at once, without SSLRequest: ALPN `postgresql` is then required.
        direct: bool,
    },
    /// We are the TLS client, towards a server; `host` is checked in sslmode verify-full.
    Connect {
        /// The host as configured.
        host: Arc<str>,
    },
}

/// The properties of a TLS connection after the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TlsInfo {
    /// The protocol and cipher as SHOW CLIENTS prints them: `TLSv1.3/TLS_AES_256_GCM_SHA384`.
    pub description: String,
    /// Common name and DNS names of a verified peer certificate; empty without one.
    pub peer_names: Vec<String>,
    /// The hash of the TLS server's certificate, as `tls-server-end-point` has it (RFC 5929 section 4), to which a login can be bound.
    /// `None` if the certificate's signature leaves it undefined.
    pub end_point: Option<Box<[u8]>>,
}

/// The reason why a connection ended without the machine asking for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Closed {
    /// End of stream: the peer closed in order.
    Eof,
    /// The connection broke (reset, timeout, ...); the text is the operating system's.
    Broken(String),
    /// The connection was never established: refused, unreachable.
    DialFailed(String),
    /// The host name has no address.
    NameNotResolved(String),
    /// TLS failed: handshake, certificate, a broken record.
    Tls(String),
}

/// The treatment of queued bytes by [`Driver::close`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseMode {
    /// The queued bytes are sent first (bounded by time in the driver), then the connection is closed.
    Flush,
    /// The connection is closed at once.
    Now,
    /// pgweir's direction is closed, after the queued bytes were sent or, if `flushes` is false, without them. The driver then reports the
    /// end of the connection: `Closed::Eof` if the peer has closed it, too, and another reason if it has not within the driver's time.
    Confirm {
        /// Whether the queued bytes are sent first.
        flushes: bool,
    },
}

/// Importance of a log line, in PgBouncer's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Level {
    /// The process cannot go on.
    Fatal,
    /// Something failed that should not.
    Error,
    /// An administrator should look at it.
    Warning,
    /// The line is for information.
    Log,
    /// Details that are logged with `-v`.
    Debug,
    /// Details that are logged with `-vv`.
    Noise,
}

/// The requests of the machine to the world. All calls return at once.
///
/// After [`Driver::close`] or [`Driver::hand_over`] the driver reports nothing more about that connection (but its end with
/// [`CloseMode::Confirm`]), and calls that name it do nothing. Calls that name a connection that is already gone do nothing either.
pub trait Driver {
    /// Queues bytes for a connection. They leave at the end of the tick, all that collected in one write; large pieces
    /// may leave at once if nothing is queued before them. On a TLS connection this is plain text.
    fn send(&mut self, conn: ConnId, bytes: &[u8]);

    /// Returns the number of bytes that are queued and not yet accepted by the kernel.
    fn backlog(&self, conn: ConnId) -> usize;

    /// Opens a connection; later `Machine::connected` or `Machine::closed` follows for it, never within this call.
    fn dial(&mut self, endpoint: &Endpoint) -> ConnId;

    /// Returns the address that a connection reached, as a host's name may have several; `None` for a unix socket.
    fn remote(&self, conn: ConnId) -> Option<SocketAddr> {
        let _ = conn;
        None
    }

    /// Returns the number of a connection's socket, for SHOW FDS; `None` while it has none. A driver without sockets returns `None`.
    fn descriptor(&self, conn: ConnId) -> Option<i32> {
        let _ = conn;
        None
    }

    /// Returns the listening sockets.
    fn doors(&self) -> Vec<DoorSeen> {
        Vec::new()
    }

    /// Sends bytes over a unix socket together with a descriptor of this process, at once. Returns `false` if that was not possible; then
    /// no byte was sent.
    fn send_beside(&mut self, conn: ConnId, bytes: &[u8], descriptor: i32) -> bool {
        let _ = (conn, bytes, descriptor);
        false
    }

    /// Returns the state of host names, for SHOW. A driver without names returns an empty one.
    fn names(&self) -> NamesSeen {
        NamesSeen::default()
    }

    /// Closes a connection.
    fn close(&mut self, conn: ConnId, mode: CloseMode);

    /// Stops reading from a connection until [`Driver::resume_reads`]. The call may come from within
    /// `Machine::received` for the same connection: the driver then reads no further after that call.
    /// A connection's end may go unnoticed while it is paused.
    fn pause_reads(&mut self, conn: ConnId);

    /// Reads again; bytes that arrived in the meantime are delivered in a later call, never within this one.
    fn resume_reads(&mut self, conn: ConnId);

    /// Starts TLS. `received` are the bytes that the machine had received already and that belong to the TLS stream (the first record of
    /// direct TLS; empty otherwise). Bytes queued by `send` before this call leave in plain text first. `Machine::tls_established` or
    /// `Machine::closed` follows.
    fn start_tls(&mut self, conn: ConnId, role: TlsRole, received: &[u8]);

    /// Moves a client's connection, with its TLS state and queued bytes, to another worker.
    /// `Machine::adopted` gets the handoff there.
    fn hand_over(&mut self, conn: ConnId, to: WorkerId, handoff: Box<ClientHandoff>);

    /// Gives a console client that may take over the process to the part of the process that runs online restarts: the connection leaves
    /// the machine, and [`Mail::Shutdown`] with [`Shutdown::HandOver`](crate::mail::Shutdown) follows when a successor is ready.
    fn surrender(&mut self, conn: ConnId);

    /// Hands a client, a server or other state over to the successor process. The connections leave the machine.
    fn give_away(&mut self, client: Option<ConnId>, server: Option<ConnId>, carried: Box<Carried>);

    /// Whether something that was handed over has no new owner yet: it may come back with `Machine::carried`.
    fn is_giving(&self) -> bool {
        false
    }

    /// Passes the key of a cancel request to the process that this one replaces, while that process exists. No client here has the key, but
    /// the other process may have clients that could not be handed over. [`Mail::Cancel`] tells its machines.
    fn pass_back(&mut self, key: &[u8]) {
        let _ = key;
    }

    /// Stops accepting clients over TCP permanently. Connections that are already in the kernel's queue are still accepted
    /// (`Machine::accepted`, in this turn). Unix sockets stay open.
    fn stop_listening(&mut self);

    /// Sends a message to another worker's machine (`Machine::mail`), in order per pair of workers.
    fn mail(&mut self, to: WorkerId, mail: Mail);

    /// Sends a question to the control plane; an answer, if there is one, comes as mail.
    fn ask(&mut self, question: Question);

    /// Fills `out` with random bytes fit for keys and nonces.
    fn random(&mut self, out: &mut [u8]);

    /// Writes a log line. The driver adds time, process id and level.
    fn log(&mut self, level: Level, line: &str);

    /// Returns `false` if no log takes a line of this level: the lines that are logged for every client need not be built then.
    fn log_reaches_anybody(&self, level: Level) -> bool {
        let _ = level;
        true
    }

    /// Notes that the machine takes a rare path. Drivers that test the machine count it; others do nothing.
    fn reached(&mut self, path: RarePath) {
        let _ = path;
    }
}

impl Peer {
    /// Returns the port that the client connected to: that of the local address, or the one in the unix socket's name.
    #[must_use]
    pub fn port(&self) -> u16 {
        match self {
            Peer::Tcp { local, .. } => local.port(),
            Peer::Unix { port, .. } => *port,
        }
    }

    /// Returns the client's address; `None` for a unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Peer::Tcp { remote, .. } => Some(remote.ip()),
            Peer::Unix { .. } => None,
        }
    }
}
