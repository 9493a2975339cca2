//! The smallest PostgreSQL client that can log in without a password and run a statement: it watches
//! `pg_stat_activity`, and thousands of it are the idle clients whose memory is weighed.
//!
//! It never handles passwords: the clusters it meets are our own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Messages that a server sends to this client are small; a longer one is not from PostgreSQL.
const MESSAGE_MAX: usize = 16 * 1024 * 1024;
/// Nothing that is asked here takes longer.
const IO_LIMIT: Duration = Duration::from_secs(60);
/// Protocol 3.0 as a startup packet carries it.
const PROTOCOL: u32 = 3 << 16;

/// Where a server or pooler listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A TCP port on 127.0.0.1.
    Loopback(u16),
    /// A unix socket in this directory, for this port.
    Unix(PathBuf, u16),
}

impl Address {
    /// What `--host` and `--port` of PostgreSQL's programs take.
    #[must_use]
    pub(crate) fn host_and_port(&self) -> (String, String) {
        match self {
            Self::Loopback(port) => ("127.0.0.1".to_owned(), port.to_string()),
            Self::Unix(directory, port) => (directory.display().to_string(), port.to_string()),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A logged-in connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
}

/// A message as it came: type byte and content.
struct Message {
    kind: u8,
    body: Vec<u8>,
}

impl Client {
    /// Connects and logs in.
    ///
    /// # Errors
    /// No connection, or the server refused; the text then is the server's.
    pub(crate) fn connect(address: &Address, user: &str, database: &str) -> io::Result<Self> {
        let stream = match address {
            Address::Loopback(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port))?;
                stream.set_read_timeout(Some(IO_LIMIT))?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Address::Unix(directory, port) => {
                let stream = UnixStream::connect(directory.join(format!(".s.PGSQL.{port}")))?;
                stream.set_read_timeout(Some(IO_LIMIT))?;
                Stream::Unix(stream)
            }
        };
        let mut client = Self { stream };
        client.write(&startup_packet(user, database))?;
        client.until_ready(&mut |_| {})?;
        Ok(client)
    }

    /// Runs a statement; gives its rows as text, NULL as an empty one.
    ///
    /// # Errors
    /// The connection broke, or the server refused; the text then is the server's.
    pub(crate) fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        let length = u32::try_from(sql.len() + 5).map_err(io::Error::other)?;
        let mut message = vec![b'Q'];
        message.extend(length.to_be_bytes());
        message.extend(sql.as_bytes());
        message.push(0);
        self.write(&message)?;
        let mut rows = Vec::new();
        self.until_ready(&mut |message| {
            if message.kind == b'D' {
                rows.push(data_row(&message.body));
            }
        })?;
        rows.into_iter().collect::<Option<_>>().ok_or_else(|| bad("a DataRow that does not fit its length"))
    }

    /// Reads up to ReadyForQuery; an ErrorResponse on the way becomes the error.
    fn until_ready(&mut self, on_message: &mut dyn FnMut(&Message)) -> io::Result<()> {
        let mut refused = None;
        loop {
            let message = match self.read_message() {
                Ok(message) => message,
                // A server that refuses a login says why and hangs up.
                Err(error) => return Err(refused.unwrap_or(error)),
            };
            match message.kind {
                b'Z' => return refused.map_or(Ok(()), Err),
                b'E' => refused = Some(io::Error::other(error_text(&message.body))),
                b'R' if message.body.get(..4) != Some(&[0, 0, 0, 0]) => {
                    return Err(bad("the server asks for a password, which this client has not"));
                }
                _ => on_message(&message),
            }
        }
    }

    fn read_message(&mut self) -> io::Result<Message> {
        let mut head = [0; 5];
        self.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=MESSAGE_MAX).contains(&length) {
            return Err(bad("a message length that PostgreSQL would not send"));
        }
        let mut body = vec![0; length - 4];
        self.read_exact(&mut body)?;
        Ok(Message { kind, body })
    }

    fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.read_exact(into),
            Stream::Unix(stream) => stream.read_exact(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.write(&[b'X', 0, 0, 0, 4]);
    }
}

fn startup_packet(user: &str, database: &str) -> Vec<u8> {
    let mut body = PROTOCOL.to_be_bytes().to_vec();
    for text in ["user", user, "database", database, "application_name", "pgweir-tools"] {
        body.extend(text.as_bytes());
        body.push(0);
    }
    body.push(0);
    let length = u32::try_from(body.len() + 4).expect("names are short");
    let mut packet = length.to_be_bytes().to_vec();
    packet.extend(body);
    packet
}

/// `SQLSTATE: message` out of an ErrorResponse.
fn error_text(body: &[u8]) -> String {
    let field = |wanted: u8| {
        let field = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&wanted));
        String::from_utf8_lossy(field.map_or(&[][..], |field| &field[1..])).into_owned()
    };
    format!("{}: {}", field(b'C'), field(b'M'))
}

/// The columns of a DataRow, `None` if its lengths are wrong.
fn data_row(body: &[u8]) -> Option<Vec<String>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        columns.push(String::from_utf8_lossy(after.get(..length)?).into_owned());
        rest = &after[length..];
    }
    Some(columns)
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_a_null_is_read_and_a_short_one_refused() {
        let row = [0, 2, 0, 0, 0, 2, b'4', b'2', 255, 255, 255, 255];
        assert_eq!(data_row(&row), Some(vec!["42".to_owned(), String::new()]));
        for cut in 0..row.len() {
            assert_eq!(data_row(&row[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn an_error_is_told_with_its_sqlstate() {
        let body = b"SFATAL\0C53300\0Msorry, too many clients already\0\0";
        assert_eq!(error_text(body), "53300: sorry, too many clients already");
        assert_eq!(error_text(b""), ": ");
    }

    #[test]
    fn the_startup_packet_counts_itself() {
        let packet = startup_packet("u", "d");
        assert_eq!(packet[..4], u32::try_from(packet.len()).expect("short").to_be_bytes());
        assert!(packet.ends_with(b"application_name\0pgweir-tools\0\0"));
    }
}
