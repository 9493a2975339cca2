//! The smallest PostgreSQL client that can log in and run a statement: it watches `pg_stat_activity`, and thousands of it
//! are the idle clients whose memory is weighed.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

use pgweir_auth::{Credential, Proof, Prover};
use pgweir_wire::backend::{Authentication, DataRow, ErrorFields, ParameterStatus, tag};
use pgweir_wire::frontend::{
    Target, encode_bind_head, encode_describe, encode_execute, encode_parse, encode_query, encode_sync,
    encode_terminate,
};
use pgweir_wire::{HEADER_LEN, Header};

use crate::login::{Address, Login, random};
use crate::stream::Stream;

/// Messages that a server sends to this client are small; a longer one is not the answer to anything that is asked here.
const BODY_MAX: u32 = 16 * 1024 * 1024;

/// What a server said in an ErrorResponse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ServerError {
    /// The SQLSTATE.
    pub code: String,
    /// The primary message.
    pub message: String,
}

impl ServerError {
    /// Reads the body of an ErrorResponse.
    #[must_use]
    pub fn parse(body: &[u8]) -> ServerError {
        let text = |field: Option<&[u8]>| String::from_utf8_lossy(field.unwrap_or_default()).into_owned();
        match ErrorFields::parse(body) {
            Ok(fields) => ServerError { code: text(fields.code()), message: text(fields.message()) },
            Err(_) => ServerError { code: String::new(), message: "an error without a text".to_owned() },
        }
    }

    /// What the server said, if that is why something failed.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&ServerError> {
        error.get_ref()?.downcast_ref()
    }
}

/// Everything that a server says to a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Names of the columns, each with the number of its type; empty if there is no result.
    pub columns: Vec<(String, u32)>,
    /// The rows as text; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// The command tag (`SHOW`, `PAUSE`).
    pub tag: String,
    /// The server's remarks.
    pub notices: Vec<String>,
}

/// A logged-in connection.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    /// Names of the columns of the last result, each with the number of its type.
    columns: Vec<(String, u32)>,
    /// The tag of the last statement (`SHOW`).
    tag: String,
    /// The server's notices since the last statement was sent.
    notices: Vec<String>,
    /// What the server told of itself at login.
    parameters: Vec<(String, String)>,
}

impl Client {
    /// Connects and logs in without a password.
    ///
    /// # Errors
    /// No connection, or the server refused; the text then is the server's.
    pub fn connect(address: &Address, user: &str, database: &str) -> io::Result<Self> {
        Self::log_in(&Login::trusted(address.clone(), user, database, "pgweir-tools"))
    }

    /// Connects and logs in.
    ///
    /// # Errors
    /// No connection, or the server refused: then the error holds a [`ServerError`].
    pub fn log_in(login: &Login) -> io::Result<Self> {
        let tcp = |host: &str, port: u16| {
            let stream = Stream::tcp(host, port, login.wait_max)?;
            match &login.tls {
                Some(tls) => Stream::secure(stream, tls),
                None => Ok(Stream::Tcp(stream)),
            }
        };
        let stream = match &login.address {
            Address::Loopback(port) => tcp("127.0.0.1", *port)?,
            Address::Tcp(host, port) => tcp(host, *port)?,
            Address::Unix(directory, port) => Stream::unix(directory, *port, login.wait_max)?,
        };
        let prover = login.prover().bound_to(stream.end_point(login.tls.as_ref()));
        let mut client = Self {
            stream,
            columns: Vec::new(),
            tag: String::new(),
            notices: Vec::new(),
            parameters: Vec::new(),
        };
        client.stream.write_all(&login.startup())?;
        client.until_ready(prover, &mut |_| Ok(()))?;
        Ok(client)
    }

    /// A parameter that the server reported (`server_version`).
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().rev().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The socket, if it is a unix socket: the operating system knows the process at its other end.
    #[must_use]
    pub fn unix_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.stream {
            Stream::Unix(stream) => Some(stream.as_fd()),
            Stream::Tcp(_) | Stream::Tls(_) => None,
        }
    }

    /// Runs a statement with one parameter `$1`; gives the number of its columns, and its rows with NULL as none.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub fn ask(&mut self, sql: &str, parameter: &str) -> io::Result<(usize, Vec<Vec<Option<String>>>)> {
        let mut tail = Vec::new();
        // No format codes: text. One value. Results as text.
        tail.extend_from_slice(&[0, 0, 0, 1]);
        tail.extend_from_slice(&u32::try_from(parameter.len()).map_err(io::Error::other)?.to_be_bytes());
        tail.extend_from_slice(parameter.as_bytes());
        tail.extend_from_slice(&[0, 0]);
        let mut out = Vec::new();
        encode_parse(&mut out, b"", sql.as_bytes(), b"");
        encode_bind_head(&mut out, b"", b"", tail.len());
        out.extend_from_slice(&tail);
        encode_describe(&mut out, Target::Portal, b"");
        encode_execute(&mut out, b"", 0);
        encode_sync(&mut out);
        let rows = self.rows(&out)?;
        Ok((self.columns.len(), rows))
    }

    /// Runs a statement; gives its rows as text, NULL as an empty one.
    ///
    /// # Errors
    /// The connection broke, or the server refused; the text then is the server's.
    pub fn query(&mut self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        let rows = self.rows(&query_message(sql))?;
        Ok(rows.into_iter().map(|row| row.into_iter().map(Option::unwrap_or_default).collect()).collect())
    }

    /// Runs a statement; gives the columns' names, and its rows as text.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub fn table(&mut self, sql: &str) -> io::Result<(Vec<String>, Vec<Vec<String>>)> {
        let rows = self.query(sql)?;
        Ok((self.columns.iter().map(|(name, _)| name.clone()).collect(), rows))
    }

    /// Runs a statement; gives everything that the server says to it.
    ///
    /// # Errors
    /// As [`Client::query`].
    pub fn answer(&mut self, sql: &str) -> io::Result<Answer> {
        let rows = self.rows(&query_message(sql))?;
        let (columns, notices) = (std::mem::take(&mut self.columns), std::mem::take(&mut self.notices));
        Ok(Answer { columns, rows, tag: std::mem::take(&mut self.tag), notices })
    }

    /// Sends messages and reads up to ReadyForQuery; gives the rows as text, NULL as `None`.
    fn rows(&mut self, messages: &[u8]) -> io::Result<Vec<Vec<Option<String>>>> {
        self.stream.write_all(messages)?;
        self.columns.clear();
        self.notices.clear();
        let mut rows = Vec::new();
        self.until_ready(Prover::new("", Credential::None), &mut |body| {
            let row = DataRow::parse(body).map_err(io::Error::other)?;
            let text = |value: Option<&[u8]>| value.map(|value| String::from_utf8_lossy(value).into_owned());
            rows.push(row.columns().map(text).collect());
            Ok(())
        })?;
        Ok(rows)
    }

    /// Lets later waits for an answer last as long as they take.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn wait_without_limit(&self) -> io::Result<()> {
        self.stream.wait_without_limit()
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
                tag::ERROR => refused = Some(io::Error::other(ServerError::parse(&body))),
                tag::AUTHENTICATION => {
                    let request = Authentication::parse(&body).map_err(io::Error::other)?;
                    prover = match prover.handle(request, &mut random) {
                        Proof::Reply(next, message) => {
                            self.stream.write_all(&message)?;
                            next
                        }
                        Proof::Waiting(next) => next,
                        Proof::Done => Prover::new("", Credential::None),
                        Proof::Failed(error) => return Err(io::Error::other(error)),
                    };
                }
                tag::PARAMETER_STATUS => {
                    let told = ParameterStatus::parse(&body).map_err(io::Error::other)?;
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    self.parameters.push((text(told.name), text(told.value)));
                }
                tag::ROW_DESCRIPTION => self.columns = column_names(&body),
                tag::COMMAND_COMPLETE => {
                    self.tag = String::from_utf8_lossy(body.strip_suffix(&[0]).unwrap_or(&body)).into_owned();
                }
                tag::NOTICE => self.notices.push(ServerError::parse(&body).message),
                tag::DATA_ROW => on_row(&body)?,
                _ => {}
            }
        }
    }

    fn read_message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; HEADER_LEN];
        self.stream.read_exact(&mut head)?;
        let header = Header::peek(&head).map_err(io::Error::other)?.expect("all of the header was read");
        if header.body_len > BODY_MAX {
            return Err(io::Error::other("a message that is longer than any answer"));
        }
        let mut body = vec![0; header.total() - HEADER_LEN];
        self.stream.read_exact(&mut body)?;
        Ok((header.tag, body))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut message = Vec::new();
        encode_terminate(&mut message);
        let _ = self.stream.write_all(&message);
    }
}

/// A Query message.
fn query_message(sql: &str) -> Vec<u8> {
    let mut message = Vec::new();
    encode_query(&mut message, sql.as_bytes());
    message
}

/// The names in a RowDescription, each with the number of its type; as many as are whole.
fn column_names(body: &[u8]) -> Vec<(String, u32)> {
    // After each name: table, attribute, type, length, modifier, format.
    const REST: usize = 18;
    let (mut names, mut rest) = (Vec::new(), body.get(2..).unwrap_or_default());
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let kind = rest.get(end + 7..end + 11).and_then(|bytes| bytes.try_into().ok());
        names.push((String::from_utf8_lossy(&rest[..end]).into_owned(), kind.map_or(0, u32::from_be_bytes)));
        rest = rest.get(end + 1 + REST..).unwrap_or_default();
    }
    names
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
