//! A server that answers at once, or after a given time: what is measured against it is the client (or the pooler) alone.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pgweir_wire::backend::{
    Column, TxStatus, encode_auth_ok, encode_backend_key_data, encode_bind_complete, encode_close_complete,
    encode_command_complete, encode_data_row, encode_parameter_status, encode_parse_complete, encode_ready,
    encode_row_description,
};
use pgweir_wire::frontend::tag;
use pgweir_wire::{HEADER_LEN, Header};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;

const LISTENER: u64 = u64::MAX;
const LOOK_EVERY_MS: u16 = 100;
const BACKLOG: i32 = 1024;
/// A request for encryption: answered "no".
const SSL_REQUEST: [u8; 4] = [0x04, 0xd2, 0x16, 0x2f];

/// Listens on a port of 127.0.0.1, or on a unix socket.
#[derive(Debug)]
pub(crate) struct StandIn {
    listener: Socket,
    /// The unix socket, which goes with it.
    path: Option<PathBuf>,
    port: u16,
    delay: Duration,
}

/// Answers whose time has not come.
type Later = VecDeque<(Instant, u64, Vec<u8>)>;

/// A client of it.
struct Guest {
    stream: Socket,
    /// Bytes that are no whole message yet.
    rest: Vec<u8>,
    greeted: bool,
    status: TxStatus,
}

/// What it says, made once.
struct Answers {
    greeting: Vec<u8>,
    columns: Vec<u8>,
    row: Vec<u8>,
}

impl StandIn {
    /// Binds; port 0 is any free one.
    ///
    /// # Errors
    /// The port is taken.
    pub(crate) fn bind(port: u16) -> Result<Self, BenchError> {
        let address = SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
        let listener = listening(Domain::IPV4, &address)
            .map_err(BenchError::io(format!("listening on port {port} of 127.0.0.1")))?;
        let bound = listener.local_addr().map_err(BenchError::io("asking for the port"))?;
        let port = bound.as_socket().map_or(port, |bound| bound.port());
        Ok(Self { listener, path: None, port, delay: Duration::ZERO })
    }

    /// Binds PostgreSQL's name for this port in a directory.
    ///
    /// # Errors
    /// There is such a socket, or no such directory.
    pub(crate) fn bind_unix(directory: &Path, port: u16) -> Result<Self, BenchError> {
        let path = directory.join(format!(".s.PGSQL.{port}"));
        let listener = SockAddr::unix(&path).and_then(|address| listening(Domain::UNIX, &address));
        let listener = listener.map_err(BenchError::io(format!("listening on {}", path.display())))?;
        Ok(Self { listener, path: Some(path), port, delay: Duration::ZERO })
    }

    /// Makes every statement take so long, whatever else is asked at the same time.
    #[must_use]
    pub(crate) fn delayed(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Where it listens.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Answers until the interrupt.
    ///
    /// # Errors
    /// The system gives no epoll.
    pub(crate) fn serve(self, interrupt: &Interrupt) -> Result<(), BenchError> {
        let failed = |errno: nix::Error| BenchError::Io { what: "epoll".to_owned(), source: errno.into() };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed)?;
        epoll.add(self.listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, LISTENER)).map_err(failed)?;
        let (mut guests, mut next) = (HashMap::new(), 0_u64);
        let (mut buffer, mut out, answers) = (vec![0; 64 * 1024], Vec::new(), Answers::new());
        let mut events = [EpollEvent::empty(); 512];
        let mut later = Later::new();
        while !interrupt.is_raised() {
            let count = wait(&epoll, &mut events, later.front().map(|(due, _, _)| *due));
            for event in &events[..count] {
                if event.data() == LISTENER {
                    self.greeting(&epoll, &mut guests, &mut next);
                    continue;
                }
                let Some(guest) = guests.get_mut(&event.data()) else { continue };
                let delayed = guest.greeted && !self.delay.is_zero();
                let said = guest.hear(&mut buffer, &mut out, &answers).and_then(|()| match delayed {
                    true if !out.is_empty() => {
                        later.push_back((Instant::now() + self.delay, event.data(), out.clone()));
                        Ok(())
                    }
                    _ => guest.say(&out),
                });
                if said.is_err() {
                    guests.remove(&event.data());
                }
            }
            say_due(&mut later, &mut guests);
        }
        Ok(())
    }

    fn greeting(&self, epoll: &Epoll, guests: &mut HashMap<u64, Guest>, next: &mut u64) {
        while let Ok((stream, _)) = self.listener.accept() {
            let added = stream.set_nonblocking(true).is_ok()
                && (self.path.is_some() || stream.set_tcp_nodelay(true).is_ok())
                && epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, *next)).is_ok();
            if added {
                guests.insert(*next, Guest::new(stream));
                *next += 1;
            }
        }
    }
}

fn listening(domain: Domain, address: &SockAddr) -> io::Result<Socket> {
    let listener = Socket::new(domain, Type::STREAM, None)?;
    if domain == Domain::IPV4 {
        listener.set_reuse_address(true)?;
    }
    listener.bind(address)?;
    listener.listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits for readiness, or until `due`.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], due: Option<Instant>) -> usize {
    let timeout = due.map(|due| due.saturating_duration_since(Instant::now()));
    let milliseconds = match timeout {
        None => LOOK_EVERY_MS,
        Some(timeout) => {
            let mut fds = [PollFd::new(epoll.0.as_fd(), PollFlags::POLLIN)];
            let _ =
                ppoll(&mut fds, Some(timeout.min(Duration::from_millis(LOOK_EVERY_MS.into())).into()), None);
            0
        }
    };
    epoll.wait(events, EpollTimeout::from(milliseconds)).unwrap_or(0)
}

fn say_due(later: &mut Later, guests: &mut HashMap<u64, Guest>) {
    let now = Instant::now();
    while later.front().is_some_and(|(due, _, _)| *due <= now) {
        let Some((_, guest, bytes)) = later.pop_front() else { return };
        if guests.get_mut(&guest).is_some_and(|guest| guest.say(&bytes).is_err()) {
            guests.remove(&guest);
        }
    }
}

impl Guest {
    fn new(stream: Socket) -> Self {
        Self { stream, rest: Vec::new(), greeted: false, status: TxStatus::Idle }
    }

    /// Reads what there is; the answer is put into `out`. An error ends the connection.
    fn hear(&mut self, buffer: &mut [u8], out: &mut Vec<u8>, answers: &Answers) -> io::Result<()> {
        out.clear();
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let used = if self.rest.is_empty() {
            let used = self.answer(&buffer[..count], out, answers)?;
            self.rest.extend_from_slice(&buffer[used..count]);
            return Ok(());
        } else {
            let mut all = std::mem::take(&mut self.rest);
            all.extend_from_slice(&buffer[..count]);
            let used = self.answer(&all, out, answers)?;
            self.rest = all;
            used
        };
        self.rest.drain(..used);
        Ok(())
    }

    fn say(&mut self, mut out: &[u8]) -> io::Result<()> {
        while !out.is_empty() {
            match self.stream.write(out) {
                Ok(count) => out = &out[count..],
                // Its guests read what they asked for; a full socket is a moment's matter.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers whole messages; returns their length in bytes.
    fn answer(&mut self, bytes: &[u8], out: &mut Vec<u8>, answers: &Answers) -> io::Result<usize> {
        let mut at = 0;
        while !self.greeted {
            let Some(len) = bytes.get(at..at + 4) else { return Ok(at) };
            let len = u32::from_be_bytes(len.try_into().expect("four bytes")) as usize;
            if !(8..=10_000).contains(&len) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let Some(packet) = bytes.get(at..at + len) else { return Ok(at) };
            at += len;
            if packet[4..8] == SSL_REQUEST {
                out.push(b'N');
            } else {
                self.greeted = true;
                out.extend_from_slice(&answers.greeting);
            }
        }
        while let Some(header) = Header::peek(&bytes[at..]).map_err(io::Error::other)? {
            let Some(message) = bytes.get(at..at + header.total()) else { break };
            at += header.total();
            match header.tag {
                tag::QUERY => {
                    self.query(&message[HEADER_LEN..], out, answers);
                    encode_ready(out, self.status);
                }
                tag::PARSE => encode_parse_complete(out),
                tag::BIND => encode_bind_complete(out),
                tag::DESCRIBE => out.extend_from_slice(&answers.columns),
                tag::EXECUTE => out.extend_from_slice(&answers.row),
                tag::CLOSE => encode_close_complete(out),
                tag::SYNC => encode_ready(out, self.status),
                tag::TERMINATE => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
        }
        Ok(at)
    }

    fn query(&mut self, text: &[u8], out: &mut Vec<u8>, answers: &Answers) {
        let begins = |word: &[u8]| text.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word));
        if begins(b"BEGIN") {
            self.status = TxStatus::InTransaction;
            encode_command_complete(out, "BEGIN");
        } else if begins(b"COMMIT") || begins(b"END") || begins(b"ROLLBACK") {
            self.status = TxStatus::Idle;
            encode_command_complete(out, "COMMIT");
        } else if begins(b"SET") || begins(b"DISCARD") || begins(b"RESET") {
            encode_command_complete(out, "SET");
        } else {
            out.extend_from_slice(&answers.columns);
            out.extend_from_slice(&answers.row);
        }
    }
}

impl Answers {
    fn new() -> Self {
        let mut greeting = Vec::new();
        encode_auth_ok(&mut greeting);
        for (name, value) in [
            ("server_version", "15.0"),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
            ("application_name", ""),
        ] {
            encode_parameter_status(&mut greeting, name.as_bytes(), value.as_bytes());
        }
        encode_backend_key_data(&mut greeting, 1, &[0, 0, 0, 1]);
        encode_ready(&mut greeting, TxStatus::Idle);
        let (mut columns, mut row) = (Vec::new(), Vec::new());
        encode_row_description(
            &mut columns,
            &[Column { name: "abalance", type_oid: 23, type_len: 4, binary: false }],
        );
        encode_data_row(&mut row, &[Some(b"0")]);
        encode_command_complete(&mut row, "SELECT 1");
        Self { greeting, columns, row }
    }
}
