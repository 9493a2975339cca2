//! `pgweir bench relay`: passes bytes on after a given time, as a network of some length would. For measuring what a pooler
//! does with a server that is not on the same machine, where the kernel can not delay packets (netem).

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use lexopt::prelude::*;

use crate::cluster::free_port;
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::process::{Process, STOP_PLAIN};

const HELP: &str = "\
usage: pgweir bench relay --to PORT [--port N] [--round-trip-us N]

Listens on 127.0.0.1 and passes everything on to another port there, each byte later by half of the round trip
(default 1000 microseconds), until Ctrl-C. --port defaults to 54321.
";

const START_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A relay as a process of its own: its CPU time must not count as anybody's.
#[derive(Debug)]
pub(crate) struct Relay {
    _process: Process,
    port: u16,
}

impl Relay {
    /// Starts one in front of a port of 127.0.0.1.
    ///
    /// # Errors
    /// It could not be started, or a signal came.
    pub(crate) fn start(to: u16, round_trip_us: u32, interrupt: &Interrupt) -> Result<Self, BenchError> {
        let port = free_port()?;
        let own = std::env::current_exe().map_err(BenchError::io("finding pgweir's own executable"))?;
        let mut command = Command::new(own);
        command.args(["bench", "relay", "--port", &port.to_string(), "--to", &to.to_string()]);
        command.args(["--round-trip-us", &round_trip_us.to_string()]).stderr(Stdio::null());
        let relay = Self { _process: Process::spawn(&mut command, "relay", STOP_PLAIN)?, port };
        let until = Instant::now() + START_LIMIT;
        while let Err(source) = TcpStream::connect(("127.0.0.1", port)) {
            if Instant::now() >= until {
                return Err(BenchError::Io { what: "connecting to the relay".to_owned(), source });
            }
            interrupt.sleep(LOOK_EVERY)?;
        }
        Ok(relay)
    }

    /// Where it listens.
    #[must_use]
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// Relays until a signal comes.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let (mut port, mut to, mut round_trip_us) = (54_321, None, 1000_u32);
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(());
            }
            Long("port") => port = parser.value()?.parse()?,
            Long("to") => to = Some(parser.value()?.parse()?),
            Long("round-trip-us") => round_trip_us = parser.value()?.parse()?,
            _ => return Err(arg.unexpected().into()),
        }
    }
    let to = to.ok_or_else(|| BenchError::Usage("--to is missing".to_owned()))?;
    let listener = TcpListener::bind(("127.0.0.1", port))
        .map_err(BenchError::io(format!("listening on port {port} of 127.0.0.1")))?;
    serve(&listener, to, Duration::from_micros(round_trip_us.into()) / 2, &Interrupt::install()?)
}

fn serve(listener: &TcpListener, to: u16, delay: Duration, interrupt: &Interrupt) -> Result<(), BenchError> {
    listener.set_nonblocking(true).map_err(BenchError::io("preparing the listener"))?;
    while !interrupt.is_raised() {
        let Ok((client, _)) = listener.accept() else {
            // Connections of a pool are opened rarely.
            thread::sleep(LOOK_EVERY / 10);
            continue;
        };
        // A server that is not there ends the client's connection, as it would without us.
        let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
        let _ = client.set_nonblocking(false);
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        if let (Ok(client_again), Ok(server_again)) = (client.try_clone(), server.try_clone()) {
            pass(client, server, delay);
            pass(server_again, client_again, delay);
        }
    }
    Ok(())
}

/// One direction: a thread reads and notes when, another writes when it is time.
fn pass(from: TcpStream, to: TcpStream, delay: Duration) {
    let (pieces_in, pieces_out) = mpsc::channel();
    thread::spawn(move || take(from, &pieces_in, delay));
    thread::spawn(move || give(to, &pieces_out));
}

fn take(mut from: TcpStream, pieces: &Sender<(Instant, Vec<u8>)>, delay: Duration) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || pieces.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
            break;
        }
    }
}

fn give(mut to: TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>) {
    while let Ok((due, piece)) = pieces.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_through_not_before_their_time() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = server.local_addr().expect("bound").port();
        thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("the relay");
            let mut buffer = [0; 5];
            stream.read_exact(&mut buffer).expect("a question");
            stream.write_all(&buffer).expect("its echo");
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let interrupt = Interrupt::default();
        let end = interrupt.clone();
        let relay = thread::spawn(move || serve(&listener, to, Duration::from_millis(20), &end));
        let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connected");
        let begin = Instant::now();
        client.write_all(b"hello").expect("sent");
        let mut echo = [0; 5];
        client.read_exact(&mut echo).expect("answered");
        assert_eq!(&echo, b"hello");
        assert!(begin.elapsed() >= Duration::from_millis(40));
        interrupt.raise();
        relay.join().expect("no panic").expect("served");
    }
}
