//! Lines for syslog: datagrams to the system's logger, in the form of RFC 3164 as the C library's syslog(3)
//! writes it.
//!
//! Like PgBouncer, this sends the message alone, without the stamp of the log file, and nothing below LOG.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use pgweir_core::driver::Level;

use super::beginning;

/// The socket of the system's logger.
pub const SOCKET: &str = "/dev/log";

/// The longest message in one datagram. Loggers cut longer ones anyway (RFC 5424 asks them to take 2048
/// bytes).
const MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// The settings `syslog_ident` and `syslog_facility`, with the logger's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The tag at the start of each line.
    pub ident: String,
    /// The facility's name; a name that does not exist means daemon.
    pub facility: String,
    /// The logger's socket.
    pub socket: PathBuf,
}

impl Destination {
    /// Returns `<priority>ident[pid]: message`, or `None` for a level that syslog does not get. The logger
    /// adds the time.
    pub(super) fn datagram(&self, level: Level, pid: u32, message: &str) -> Option<Vec<u8>> {
        let severity = match level {
            Level::Fatal => 2,
            Level::Error => 3,
            Level::Warning => 4,
            Level::Log => 6,
            Level::Debug | Level::Noise => return None,
        };
        let priority = facility(&self.facility) * 8 + severity;
        let printable =
            beginning(message, MESSAGE_BYTES_MAX).chars().map(|c| if c.is_control() { ' ' } else { c });
        Some(format!("<{priority}>{}[{pid}]: {}", self.ident, printable.collect::<String>()).into_bytes())
    }
}

/// Returns the facility's number (RFC 3164, section 4.1.1).
fn facility(name: &str) -> u8 {
    match name.to_ascii_lowercase().as_str() {
        "auth" => 4,
        "authpriv" => 10,
        "user" => 1,
        "local0" => 16,
        "local1" => 17,
        "local2" => 18,
        "local3" => 19,
        "local4" => 20,
        "local5" => 21,
        "local6" => 22,
        "local7" => 23,
        _ => 3,
    }
}

/// The connection to the logger. If the logger is not there, or was restarted, each line tries to connect
/// again.
#[derive(Default)]
pub(super) struct Sender {
    socket: Option<UnixDatagram>,
}

impl Sender {
    /// Sends one datagram. If the logger does not take it, it is lost, as with syslog(3).
    pub(super) fn send(&mut self, to: &Path, datagram: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket
            && socket.send(datagram).is_ok()
        {
            return Ok(());
        }
        self.socket = None;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.connect(to)?;
        socket.send(datagram)?;
        self.socket = Some(socket);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn destination(facility: &str, socket: PathBuf) -> Destination {
        Destination { ident: "pool".to_owned(), facility: facility.to_owned(), socket }
    }

    #[test]
    fn priorities_are_those_of_syslog() {
        for (facility, level, expected) in [
            ("daemon", Level::Log, Some("<30>pool[7]: a b")),
            ("local3", Level::Warning, Some("<156>pool[7]: a b")),
            ("AUTH", Level::Fatal, Some("<34>pool[7]: a b")),
            ("no such", Level::Error, Some("<27>pool[7]: a b")),
            ("daemon", Level::Debug, None),
        ] {
            let datagram = destination(facility, PathBuf::new()).datagram(level, 7, "a\nb");
            assert_eq!(datagram.as_deref(), expected.map(str::as_bytes), "{facility}");
        }
    }

    #[test]
    fn a_logger_that_starts_again_is_found_again() {
        let scratch = Scratch::new("syslog-again");
        let path = scratch.path("log");
        let mut sender = Sender::default();
        assert!(sender.send(&path, b"lost").is_err());
        let mut buffer = [0; 64];
        for turn in [b"first", b"again"] {
            let _ = std::fs::remove_file(&path);
            let logger = UnixDatagram::bind(&path).expect("can listen");
            sender.send(&path, turn).expect("it is there");
            let got = logger.recv(&mut buffer).expect("a line");
            assert_eq!(&buffer[..got], turn);
        }
    }
}
