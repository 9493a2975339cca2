//! The smallest PostgreSQL client that can log in without a password and run a statement: it watches
//! `pg_stat_activity`, and thousands of it are the idle clients whose memory is weighed.
//!
//! It never handles passwords: the clusters it meets are our own.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use pgweir_wire::backend::{Authentication, DataRow, ErrorFields, tag};
use pgweir_wire::frontend::{encode_query, encode_startup, encode_terminate};
use pgweir_wire::{HEADER_LEN, Header};

/// Messages that a server sends to this client are small; a longer one is not the answer to anything that is asked here.
const BODY_MAX: u32 = 16 * 1024 * 1024;
/// Nothing that is asked here takes longer.
const IO_LIMIT: Duration = Duration::from_secs(60);
/// What this client speaks.
const PROTOCOL: (u16, u16) = (3, 0);

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
        let parameters: [(&[u8], &[u8]); 3] = [
            (b"user", user.as_bytes()),
            (b"database", database.as_bytes()),
            (b"application_name", b"pgweir-tools"),
        ];
        let mut packet = Vec::new();
        encode_startup(&mut packet, PROTOCOL, &parameters);
        client.write(&packet)?;
        client.until_ready(&mut |_| Ok(()))?;
        Ok(client)
    }

    /// Runs a statement; gives its rows as text, NULL as an empty one.
    ///
    /// # Errors
    /// The connection broke, or the server refused; the text then is the server's.
    pub(crate) fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        let mut message = Vec::new();
        encode_query(&mut message, sql.as_bytes());
        self.write(&message)?;
        let mut rows = Vec::new();
        self.until_ready(&mut |body| {
            let row = DataRow::parse(body).map_err(io::Error::other)?;
            let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
            rows.push(row.columns().map(text).collect());
            Ok(())
        })?;
        Ok(rows)
    }

    /// Reads up to ReadyForQuery, showing each row to `on_row`; an ErrorResponse on the way becomes the error.
    fn until_ready(&mut self, on_row: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut refused = None;
        loop {
            let (kind, body) = match self.read_message() {
                Ok(message) => message,
                // A server that refuses a login says why and hangs up.
                Err(error) => return Err(refused.unwrap_or(error)),
            };
            match kind {
                tag::READY => return refused.map_or(Ok(()), Err),
                tag::ERROR => refused = Some(refusal(&body)),
                tag::AUTHENTICATION => match Authentication::parse(&body).map_err(io::Error::other)? {
                    Authentication::Ok => {}
                    _ => {
                        return Err(io::Error::other(
                            "the server asks for a password, which this client has not",
                        ));
                    }
                },
                tag::DATA_ROW => on_row(&body)?,
                _ => {}
            }
        }
    }

    fn read_message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEADER_LEN];
        self.read_exact(&mut head)?;
        let header = Header::peek(&head).map_err(io::Error::other)?.expect("all of the header was read");
        if header.body_len > BODY_MAX {
            return Err(io::Error::other("a message that is longer than any answer"));
        }
        let mut body = vec![0; header.total() - HEADER_LEN];
        self.read_exact(&mut body)?;
        Ok((header.tag, body))
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
        let mut message = Vec::new();
        encode_terminate(&mut message);
        let _ = self.write(&message);
    }
}

/// `SQLSTATE: message` out of an ErrorResponse.
fn refusal(body: &[u8]) -> io::Error {
    let Ok(fields) = ErrorFields::parse(body) else { return io::Error::other("an error without a text") };
    let text = |field: Option<&[u8]>| String::from_utf8_lossy(field.unwrap_or_default()).into_owned();
    io::Error::other(format!("{}: {}", text(fields.code()), text(fields.message())))
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use pgweir_wire::backend::{TxStatus, encode_auth_md5, encode_auth_ok, encode_data_row, encode_ready};

    use super::*;

    /// A server for one client, which sends `answers` whatever it is asked, and then nothing more.
    fn server(answers: Vec<u8>) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.write_all(&answers);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        Address::Loopback(port)
    }

    #[test]
    fn logs_in_and_reads_rows_with_nulls() {
        let mut answers = Vec::new();
        encode_auth_ok(&mut answers);
        encode_ready(&mut answers, TxStatus::Idle);
        encode_data_row(&mut answers, &[Some(&b"42"[..]), None]);
        encode_ready(&mut answers, TxStatus::Idle);
        let mut client = Client::connect(&server(answers), "u", "d").expect("logged in");
        assert_eq!(client.query("SELECT").expect("a row"), [["42".to_owned(), String::new()]]);
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        let body = b"C53300\0Mtoo many!\0\0";
        let mut answers = Vec::new();
        Header { tag: tag::ERROR, body_len: u32::try_from(body.len()).expect("short") }.encode(&mut answers);
        answers.extend(body);
        let error = Client::connect(&server(answers), "u", "d").expect_err("refused");
        assert_eq!(error.to_string(), "53300: too many!");
    }

    #[test]
    fn a_server_that_wants_a_password_is_refused() {
        let mut answers = Vec::new();
        encode_auth_md5(&mut answers, [1, 2, 3, 4]);
        let error = Client::connect(&server(answers), "u", "d").expect_err("no password");
        assert!(error.to_string().contains("password"), "{error}");
    }

    #[test]
    fn a_huge_message_is_refused_before_it_is_read() {
        let error =
            Client::connect(&server(vec![b'T', 0x7f, 0xff, 0xff, 0xff]), "u", "d").expect_err("too long");
        assert!(error.to_string().contains("longer than any answer"), "{error}");
    }
}
