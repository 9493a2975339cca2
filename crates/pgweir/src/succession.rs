//! Online restart (`-R`): how this process takes the place of the one that runs, and how it gives its own to the next. The
//! sockets' way is `pgweir-net`'s; here are the first words on the old one's console, the pid file, and the log.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, JoinHandle};

use pgweir_control::Event;
use pgweir_control::log::Log;
use pgweir_core::Shared;
use pgweir_core::driver::Level;
use pgweir_core::mail::Shutdown;
use pgweir_net::{Arrivals, Giver, GivingError, Takeover, TakeoverError};
use pgweir_settings::Main;
use pgweir_wire::backend::tag as backend;
use pgweir_wire::frontend::{encode_query, encode_startup};
use pgweir_wire::startup::PROTOCOL_MAJOR;

use crate::run::{SharedPidFile, take};

/// The console's messages are short.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Asks the process that listens on our unix socket to give its place; `None` if no process listens there.
pub(crate) fn ask(main: &Main) -> Result<Option<Takeover>, TakeoverError> {
    match connect(main)? {
        Some(stream) => {
            enter_console(&stream)?;
            send(&stream, b"TAKE_OVER;")?;
            Takeover::begin(stream).map(Some)
        }
        None => Ok(None),
    }
}

/// The directories and variables with which the process that listens on our unix socket was started, directories with an empty name.
/// Nothing if there is no such process, or if it is of a version that does not tell: the takeover itself then says what is wrong.
pub(crate) fn overlay(main: &Main, log: &Log) -> Vec<(String, String)> {
    match asked_for_overlay(main) {
        Ok(rows) => rows,
        Err(error) => {
            let line = format!(
                "the running process did not tell its variables, so those of this one count: {error}"
            );
            log.write(Level::Warning, &line);
            Vec::new()
        }
    }
}

fn asked_for_overlay(main: &Main) -> Result<Vec<(String, String)>, TakeoverError> {
    let Some(stream) = connect(main)? else { return Ok(Vec::new()) };
    enter_console(&stream)?;
    send(&stream, b"SHOW OVERLAY;")?;
    let mut rows = Vec::new();
    until_ready(&stream, |tag, body| {
        if tag == backend::DATA_ROW {
            rows.extend(pair(body));
        }
        Ok(())
    })?;
    Ok(rows)
}

/// A DataRow of two texts.
fn pair(body: &[u8]) -> Option<(String, String)> {
    let text = |body: &mut &[u8]| {
        let (length, rest) = body.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        *body = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    let mut rest = body.strip_prefix(&[0, 2])?;
    Some((text(&mut rest)?, text(&mut rest)?))
}

/// The running process's unix socket; `None` if no process listens there.
fn connect(main: &Main) -> Result<Option<UnixStream>, TakeoverError> {
    let path = format!("{}/.s.PGSQL.{}", main.unix_socket_dir, main.listen_port);
    if main.unix_socket_dir.is_empty() {
        return Err(TakeoverError::Refused("-R needs a unix socket (unix_socket_dir)".to_owned()));
    }
    let connected = match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name).and_then(|to| UnixStream::connect_addr(&to)),
        None => UnixStream::connect(&path),
    };
    match connected {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn send(mut stream: &UnixStream, query: &[u8]) -> Result<(), TakeoverError> {
    let mut out = Vec::new();
    encode_query(&mut out, query);
    Ok(stream.write_all(&out)?)
}

/// Logs in as the house user.
fn enter_console(mut stream: &UnixStream) -> Result<(), TakeoverError> {
    let mut out = Vec::new();
    let house: [(&[u8], &[u8]); 2] = [(b"user", b"pgbouncer"), (b"database", b"pgbouncer")];
    encode_startup(&mut out, (PROTOCOL_MAJOR, 0), &house);
    stream.write_all(&out)?;
    until_ready(stream, |tag, body| match tag {
        backend::AUTHENTICATION if body != [0, 0, 0, 0] => {
            Err(TakeoverError::Refused("it runs as another user".to_owned()))
        }
        _ => Ok(()),
    })
}

/// Reads messages until ReadyForQuery. An error ends it.
fn until_ready(
    mut stream: &UnixStream,
    mut look: impl FnMut(u8, &[u8]) -> Result<(), TakeoverError>,
) -> Result<(), TakeoverError> {
    loop {
        let mut header = [0; 5];
        stream.read_exact(&mut header)?;
        let [tag, length @ ..] = header;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        let length = length.checked_sub(4).filter(|&length| length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or(io::ErrorKind::InvalidData).map_err(io::Error::from)?;
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        match tag {
            backend::ERROR => {
                let message = body.split(|&byte| byte == 0).find_map(|field| field.strip_prefix(b"M"));
                let message = String::from_utf8_lossy(message.unwrap_or_default()).into_owned();
                return Err(TakeoverError::Refused(message));
            }
            backend::READY => return Ok(()),
            _ => look(tag, &body)?,
        }
    }
}

/// Receives everything from the old process, in a new thread.
pub(crate) fn receive(takeover: Takeover, to: Arrivals, shared: Arc<Shared>, log: Log) -> io::Result<()> {
    let work = move || match takeover.receive(&to, |database, user| shared.owner(database, user)) {
        Ok((clients, servers)) => {
            let line = format!("takeover is complete: {clients} clients, {servers} server connections");
            log.write(Level::Log, &line);
        }
        Err(error) => log.write(Level::Error, &error.to_string()),
    };
    thread::Builder::new().name("takeover".into()).spawn(work)?;
    Ok(())
}

/// The parts of this process that a handover to another process needs.
pub(crate) struct HandoverParts {
    pub(crate) giver: Giver,
    pub(crate) shared: Arc<Shared>,
    pub(crate) pid_file: SharedPidFile,
    pub(crate) events: Sender<Event>,
    pub(crate) log: Log,
}

/// Gives everything to the first process that asks and is able, in a new thread. The flag says that this has begun; the
/// thread ends after the workers.
pub(crate) fn hear_successors(
    handover_parts: HandoverParts,
    successors: Receiver<OwnedFd>,
) -> io::Result<(Arc<AtomicBool>, JoinHandle<()>)> {
    let given = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&given);
    let work = move || {
        let HandoverParts { giver, shared, pid_file, events, log } = handover_parts;
        for successor in successors {
            log.write(Level::Log, "another process takes over: handing over clients and servers");
            let result = giver.give(successor, &shared, || {
                flag.store(true, Ordering::Release);
                take(&pid_file);
                // The control loop ends only after the workers have been told to.
                let _ = events.send(Event::Shutdown(Shutdown::HandOver));
            });
            match result {
                Err(error @ GivingError::NotReady(_)) => log.write(Level::Warning, &error.to_string()),
                Err(error) => {
                    log.write(Level::Error, &error.to_string());
                    if let GivingError::BrokenOff(_, leftovers) = error {
                        leftovers.take_back();
                    }
                    return;
                }
                Ok(()) => return,
            }
        }
    };
    Ok((given, thread::Builder::new().name("successors".into()).spawn(work)?))
}
