//! One connection of the load, from dialing to its last answer. It never waits: it is told when its socket is ready.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use pgweir_auth::{Proof, Prover};
use pgweir_wire::backend::{Authentication, tag};
use pgweir_wire::frontend::{encode_ssl_request, encode_terminate};
use rustls::ClientConnection;
use socket2::{Domain, SockAddr, Socket, Type};

use super::mix::Mix;
use super::scan::Scanner;
use super::tls::Tls;
use pgweir_client::{Address, Login, ServerError, random};

/// What arrived in one go.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The status byte of a ReadyForQuery.
    pub(super) ready: Option<u8>,
    /// An ErrorResponse: `SQLSTATE: message`.
    pub(super) error: Option<String>,
}

#[derive(Debug)]
enum Socketed {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How far a connection is.
enum Phase {
    /// The kernel is connecting.
    Dialing,
    /// SSLRequest is sent; one byte comes.
    AskedForTls,
    /// The startup packet is sent.
    LoggingIn(Prover),
    /// Logged in.
    In,
}

/// A connection.
pub(super) struct Connection {
    socket: Socketed,
    tls: Option<Box<ClientConnection>>,
    scanner: Scanner,
    phase: Phase,
    /// What the kernel has not taken yet; plain text, or records.
    unsent: Vec<u8>,
}

/// What all connections of a thread have in common.
pub(super) struct Common {
    pub(super) login: Login,
    pub(super) tls: Option<Tls>,
    pub(super) buffer: Vec<u8>,
    address: SockAddr,
    domain: Domain,
    startup: Vec<u8>,
}

impl Common {
    /// Resolves the address.
    ///
    /// # Errors
    /// The name has no address.
    pub(super) fn new(login: &Login, tls: bool) -> io::Result<Self> {
        let (address, domain) = match &login.address {
            Address::Unix(directory, port) => {
                (SockAddr::unix(directory.join(format!(".s.PGSQL.{port}")))?, Domain::UNIX)
            }
            Address::Loopback(port) => tcp("127.0.0.1", *port)?,
            Address::Tcp(host, port) => tcp(host, *port)?,
        };
        Ok(Self {
            login: login.clone(),
            tls: tls.then(Tls::new),
            buffer: vec![0; 64 * 1024],
            address,
            domain,
            startup: login.startup(),
        })
    }
}

fn tcp(host: &str, port: u16) -> io::Result<(SockAddr, Domain)> {
    let address = (host, port).to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other(format!("{host} has no address")))?;
    Ok((address.into(), Domain::for_address(address)))
}

impl Connection {
    /// Begins to connect.
    ///
    /// # Errors
    /// No socket could be had, or the connection was refused at once.
    pub(super) fn dial(common: &Common) -> io::Result<Self> {
        let socket = Socket::new(common.domain, Type::STREAM.nonblocking().cloexec(), None)?;
        if common.domain != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        match socket.connect(&common.address) {
            Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => return Err(error),
            _ => {}
        }
        let socket = if common.domain == Domain::UNIX {
            Socketed::Unix(socket.into())
        } else {
            Socketed::Tcp(socket.into())
        };
        let phase = Phase::Dialing;
        Ok(Self { socket, tls: None, scanner: Scanner::default(), phase, unsent: Vec::new() })
    }

    /// Its socket, to be watched.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socketed::Tcp(stream) => stream.as_fd(),
            Socketed::Unix(stream) => stream.as_fd(),
        }
    }

    /// Whether it is logged in.
    pub(super) fn is_in(&self) -> bool {
        matches!(self.phase, Phase::In)
    }

    /// It has to be told when its socket takes bytes. (A unix socket would be told each time that the other side reads.)
    pub(super) fn wants_room(&self) -> bool {
        !self.is_in() || !self.unsent.is_empty()
    }

    /// The socket may be writable: sends what waits, or begins the login.
    ///
    /// # Errors
    /// The connection failed.
    pub(super) fn writable(&mut self, common: &Common) -> io::Result<()> {
        if matches!(self.phase, Phase::Dialing) {
            let failed = match &self.socket {
                Socketed::Tcp(stream) => stream.take_error()?,
                Socketed::Unix(stream) => stream.take_error()?,
            };
            if let Some(error) = failed {
                return Err(error);
            }
            if common.tls.is_some() {
                let mut packet = Vec::new();
                encode_ssl_request(&mut packet);
                self.phase = Phase::AskedForTls;
                return self.send_raw(&packet);
            }
            return self.start(common);
        }
        let waiting = std::mem::take(&mut self.unsent);
        self.send_raw(&waiting)
    }

    fn start(&mut self, common: &Common) -> io::Result<()> {
        self.phase = Phase::LoggingIn(common.login.prover());
        self.send(&common.startup)
    }

    /// Sends messages.
    ///
    /// # Errors
    /// The connection is gone.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.send_raw(bytes) };
        tls.writer().write_all(bytes)?;
        let mut records = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        self.send_raw(&records)
    }

    fn send_raw(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if !self.unsent.is_empty() {
            self.unsent.extend_from_slice(bytes);
            return Ok(());
        }
        while !bytes.is_empty() {
            let sent = match &mut self.socket {
                Socketed::Tcp(stream) => stream.write(bytes),
                Socketed::Unix(stream) => stream.write(bytes),
            };
            match sent {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(bytes);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The socket may be readable: takes all there is. A login goes on by itself; with `prepare`, what is to be prepared is
    /// sent as soon as it is over, and the ReadyForQuery behind that counts.
    ///
    /// # Errors
    /// The connection ended or broke, the server refused the login (its words), or what came is not the protocol.
    pub(super) fn readable(&mut self, common: &mut Common, prepare: Option<&Mix>) -> io::Result<Seen> {
        let mut seen = Seen::default();
        let mut buffer = std::mem::take(&mut common.buffer);
        let result = self.read_all(&mut buffer, common, prepare, &mut seen);
        common.buffer = buffer;
        match (result, &seen.error) {
            // A server that refuses a login says why and hangs up.
            (_, Some(refusal)) if !self.is_in() => Err(io::Error::other(refusal.clone())),
            (Err(error), _) => Err(error),
            (Ok(()), _) => Ok(seen),
        }
    }

    fn read_all(
        &mut self,
        buffer: &mut [u8],
        common: &Common,
        prepare: Option<&Mix>,
        seen: &mut Seen,
    ) -> io::Result<()> {
        loop {
            let count = match self.read_some(buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            if matches!(self.phase, Phase::AskedForTls) {
                self.answer_about_tls(&buffer[..count], common)?;
                continue;
            }
            self.take(&buffer[..count], prepare, seen)?;
            // The kernel had no more; TLS may have kept some.
            if count < buffer.len() && self.tls.is_none() {
                return Ok(());
            }
        }
    }

    fn answer_about_tls(&mut self, bytes: &[u8], common: &Common) -> io::Result<()> {
        match (bytes, &common.tls) {
            (b"S", Some(tls)) => {
                self.tls = Some(Box::new(tls.begin()));
                self.start(common)
            }
            _ => Err(io::Error::other("the server does not offer TLS")),
        }
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return match &mut self.socket {
                Socketed::Tcp(stream) => stream.read(buffer),
                Socketed::Unix(stream) => stream.read(buffer),
            };
        };
        loop {
            match tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            let count = match &mut self.socket {
                Socketed::Tcp(stream) => tls.read_tls(stream)?,
                Socketed::Unix(stream) => tls.read_tls(stream)?,
            };
            if count == 0 {
                return Ok(0);
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            let mut records = Vec::new();
            while tls.wants_write() {
                tls.write_tls(&mut records)?;
            }
            match &mut self.socket {
                Socketed::Tcp(stream) => stream.write_all(&records)?,
                Socketed::Unix(stream) => stream.write_all(&records)?,
            }
        }
    }

    fn take(&mut self, bytes: &[u8], prepare: Option<&Mix>, seen: &mut Seen) -> io::Result<()> {
        let mut questions = Vec::new();
        self.scanner
            .feed(bytes, |kind, body| match kind {
                tag::READY => seen.ready = body.first().copied(),
                tag::ERROR => seen.error = Some(ServerError::parse(body).to_string()),
                tag::AUTHENTICATION => questions.push(body.to_vec()),
                _ => {}
            })
            .map_err(io::Error::other)?;
        for question in questions {
            self.answer(&question)?;
        }
        if seen.ready.is_some() && matches!(self.phase, Phase::LoggingIn(_)) {
            self.phase = Phase::In;
            if let Some(mix) = prepare {
                let mut messages = Vec::new();
                mix.encode_prepare(&mut messages);
                seen.ready = None;
                self.send(&messages)?;
            }
        }
        Ok(())
    }

    fn answer(&mut self, question: &[u8]) -> io::Result<()> {
        let request = Authentication::parse(question).map_err(io::Error::other)?;
        let Phase::LoggingIn(prover) = std::mem::replace(&mut self.phase, Phase::Dialing) else {
            return Err(io::Error::other("the server asks for a proof in the middle of a session"));
        };
        match prover.handle(request, &mut random) {
            Proof::Reply(next, message) => {
                self.phase = Phase::LoggingIn(next);
                self.send(&message)
            }
            Proof::Waiting(next) => {
                self.phase = Phase::LoggingIn(next);
                Ok(())
            }
            // What is left of the login is ReadyForQuery; nothing is asked any more.
            Proof::Done => {
                self.phase = Phase::LoggingIn(Prover::new("", pgweir_auth::Credential::None));
                Ok(())
            }
            Proof::Failed(error) => Err(io::Error::other(error.text())),
        }
    }

    /// Says goodbye, as far as that goes without waiting.
    pub(super) fn leave(mut self) {
        let mut message = Vec::new();
        encode_terminate(&mut message);
        let _ = self.send(&message);
    }
}
