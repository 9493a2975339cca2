//! `pgweir bench relay`: passes bytes on after a given time, as a network of some length would. For measuring what a pooler
//! does with a server that is not on the same machine, where the kernel cannot delay packets (netem). `passing.rs` passes.

mod passing;

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lexopt::prelude::*;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process::{self, Process, STOP_PLAIN};
use crate::report::progress::say;
use crate::servers::cluster::free_port;

const HELP: &str = "\
usage: pgweir bench relay --to PORT [--port N] [--round-trip-us N]

Listens on 127.0.0.1 and passes everything on to another port there, each byte later by half of the round trip
(default 1000 microseconds), until Ctrl-C. --port defaults to 54321.
";

const START_LIMIT: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A relay as a separate process: its CPU time must not count for a pooler or a server. It has its own session, too: a network takes
/// no process's share of the processors.
#[derive(Debug)]
pub(crate) struct Relay {
    _process: Process,
    port: u16,
}

impl Relay {
    /// Starts one that relays to a port of 127.0.0.1.
    ///
    /// # Errors
    /// It could not be started, or a signal came.
    pub(crate) fn start(to: u16, round_trip_us: u32, interrupt: &Interrupt) -> Result<Self, BenchError> {
        let port = free_port()?;
        let own = std::env::current_exe().map_err(BenchError::io("finding pgweir's own executable"))?;
        let mut command = process::service_command(&own);
        command.args(["bench", "relay", "--port", &port.to_string(), "--to", &to.to_string()]);
        command.args(["--round-trip-us", &round_trip_us.to_string()]).stderr(Stdio::null());
        let relay = Self { _process: Process::spawn_service(&mut command, "relay", STOP_PLAIN)?, port };
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
                say!("{HELP}");
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
    let delay = Duration::from_micros(round_trip_us.into()) / 2;
    passing::serve(&listener, to, delay, &Interrupt::install()?).map_err(BenchError::io("passing bytes on"))
}
