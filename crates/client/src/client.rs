//! The smallest PostgreSQL client that can log in and run a statement: it watches `pg_stat_activity`, and thousands of it
//! are the idle clients whose memory is weighed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pgweir_auth::{Credential, Proof, Prover};
use pgweir_wire::backend::{Authentication, DataRow, tag};
use pgweir_wire::frontend::{encode_query, encode_terminate};
use pgweir_wire::{HEADER_LEN, Header};

use crate::load::words;
use crate::login::{Address, Login, random};

/// Messages that a server sends to this client are small; a longer one is not the answer to anything that is asked here.
const BODY_MAX: u32 = 16 * 1024 * 1024;
/// Nothing that is asked here takes longer.
const IO_LIMIT: Duration = Duration::from_secs(60);
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A logged-in connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: Stream,
    /// Names of the columns of the last result.
    columns: Vec<String>,
}

impl Client {
    /// Connects and logs in without a password.
    ///
    /// # Errors
    /// No connection, or the server refused; the text then is the server's.
    pub(crate) fn connect(address: &Address, user: &str, database: &str) -> io::Result<Self> {
        Self::log_in(&Login::trusted(address.clone(), user, database, "pgweir-tools"))
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// No connection, or the server refused; the text then is the server's.
    pub(crate) fn log_in(login: &Login) -> io::Result<Self> {
        let stream = match &login.address {
            Address::Loopback(port) => tcp("127.0.0.1", *port)?,
            Address::Tcp(host, port) => tcp(host, *port)?,
            Address::Unix(directory, port) => {
                let stream = UnixStream::connect(directory.join(format!(".s.PGSQL.{port}")))?;
                stream.set_read_timeout(Some(IO_LIMIT))?;
                Stream::Unix(stream)
            }
        };
        let mut client = Self { stream, columns: Vec::new() };
        client.write(&login.startup())?;
        client.until_ready(login.prover(), &mut |_| Ok(()))?;
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
        self.until_ready(Prover::new("", Credential::None), &mut |body| {
            let row = DataRow::parse(body).map_err(io::Error::other)?;
            let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
            rows.push(row.columns().map(text).collect());
            Ok(())
        })?;
        Ok(rows)
    }

    /// Runs a statement; gives the columns' names, and its rows as text.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub(crate) fn table(&mut self, sql: &str) -> io::Result<(Vec<String>, Vec<Vec<String>>)> {
        self.columns.clear();
        let rows = self.query(sql)?;
        Ok((self.columns.clone(), rows))
    }

    /// Reads up to ReadyForQuery, showing each row to `on_row` and letting `prover` answer what the server wants to be
    /// proven; an ErrorResponse on the way becomes the error.
    fn until_ready(
        &mut self,
        mut prover: Prover,
        on_row: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut refused = None;
        loop {
            let (kind, body) = match self.read_message() {
                Ok(message) => message,
                // A server that refuses a login says why and hangs up.
                Err(error) => return Err(refused.unwrap_or(error)),
            };
            match kind {
                tag::READY => return refused.map_or(Ok(()), Err),
                tag::ERROR => refused = Some(io::Error::other(words(&body))),
                tag::AUTHENTICATION => {
                    let request = Authentication::parse(&body).map_err(io::Error::other)?;
                    prover = match prover.handle(request, &mut random) {
                        Proof::Reply(next, message) => {
                            self.write(&message)?;
                            next
                        }
                        Proof::Waiting(next) => next,
                        Proof::Done => Prover::new("", Credential::None),
                        Proof::Failed(error) => {
                            return Err(io::Error::other(format!(
                                "the server asks for a password, and there is none or not a fitting one: {error}"
                            )));
                        }
                    };
                }
                tag::ROW_DESCRIPTION => self.columns = column_names(&body),
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

/// The names in a RowDescription; as many as are whole.
fn column_names(body: &[u8]) -> Vec<String> {
    // Behind each name: table, attribute, type, length, modifier, format.
    const BEHIND: usize = 18;
    let (mut names, mut rest) = (Vec::new(), body.get(2..).unwrap_or_default());
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        names.push(String::from_utf8_lossy(&rest[..end]).into_owned());
        rest = rest.get(end + 1 + BEHIND..).unwrap_or_default();
    }
    names
}

fn tcp(host: &str, port: u16) -> io::Result<Stream> {
    let stream = TcpStream::connect((host, port))?;
    stream.set_read_timeout(Some(IO_LIMIT))?;
    stream.set_nodelay(true)?;
    Ok(Stream::Tcp(stream))
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
