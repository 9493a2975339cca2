//! A PostgreSQL as far as a pooler sees one: it accepts every login, answers every statement, and keeps to the protocol. It
//! insists on a stream of whole messages that it knows, unless the fuzzer speaks in its name, too.

use pgweir_wire::backend::{self, CopyFormat, TxStatus};
use pgweir_wire::frontend::{self, Parse, Query, Target};
use pgweir_wire::startup::{Initial, peek_initial};
use pgweir_wire::{HEADER_LEN, Header, Report, SqlState, encode_error};

/// One server process.
pub struct Postgres {
    state: State,
    tx: TxStatus,
    /// After an error in an extended group, until Sync.
    skipping: bool,
    /// The last text that was parsed.
    parsed: Vec<u8>,
    speaks_tls: bool,
    /// The fuzzer does not speak in its name: the messages that it gets must make sense.
    strict: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Startup,
    Ready,
    /// COPY FROM STDIN, by a simple query (`true`) or Execute.
    CopyIn(bool),
    Gone,
}

impl Postgres {
    pub fn new(speaks_tls: bool, strict: bool) -> Self {
        Self {
            state: State::Startup,
            tx: TxStatus::Idle,
            skipping: false,
            parsed: Vec::new(),
            speaks_tls,
            strict,
        }
    }

    /// It has closed the connection.
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Takes a message off the front of `bytes` and answers it; returns how long it was, 0 if it is not whole.
    pub fn handle(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        if self.state == State::Startup {
            return self.startup(bytes, out);
        }
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return 0,
            Err(error) => return self.nonsense(&error.to_string(), bytes),
        };
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return 0 };
        self.message(header.tag, body, out);
        header.total()
    }

    fn startup(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        let Some((packet, used)) = peek_initial(bytes).expect("the pooler begins as it should") else {
            return 0;
        };
        match packet {
            Initial::Ssl => out.push(if self.speaks_tls { b'S' } else { b'N' }),
            Initial::Cancel { .. } => self.state = State::Gone,
            Initial::Startup(_) => {
                backend::encode_auth_ok(out);
                for (name, value) in [
                    ("server_version", "17.0"),
                    ("client_encoding", "UTF8"),
                    ("DateStyle", "ISO, MDY"),
                    ("TimeZone", "UTC"),
                    ("standard_conforming_strings", "on"),
                    ("application_name", ""),
                    ("IntervalStyle", "postgres"),
                ] {
                    backend::encode_parameter_status(out, name.as_bytes(), value.as_bytes());
                }
                backend::encode_backend_key_data(out, 4711, b"1234");
                backend::encode_ready(out, self.tx);
                self.state = State::Ready;
            }
            Initial::Gss | Initial::OldProtocol | Initial::DirectTls => {
                return self.nonsense("no startup packet", bytes);
            }
        }
        used
    }

    /// What it was sent is not the protocol. Then all of it is passed over, and the connection ends.
    fn nonsense(&mut self, what: &str, bytes: &[u8]) -> usize {
        assert!(!self.strict, "a server was sent nonsense: {what}");
        self.state = State::Gone;
        bytes.len()
    }

    fn message(&mut self, tag: u8, body: &[u8], out: &mut Vec<u8>) {
        use frontend::tag;
        if let State::CopyIn(simple) = self.state {
            return self.copy_in(simple, tag, body, out);
        }
        match tag {
            tag::TERMINATE => self.state = State::Gone,
            tag::SYNC => {
                self.skipping = false;
                backend::encode_ready(out, self.tx);
            }
            tag::QUERY => match Query::parse(body) {
                Ok(query) => self.query(query.text, out),
                Err(_) => self.fails(true, out),
            },
            _ if self.skipping => {}
            tag::PARSE => match Parse::parse(body) {
                Ok(parse) if !parse.query.starts_with(b"fail") => {
                    self.parsed = parse.query.to_vec();
                    backend::encode_parse_complete(out);
                }
                _ => self.fails(false, out),
            },
            tag::BIND => match frontend::BindHead::parse_prefix(body) {
                Some(_) => backend::encode_bind_complete(out),
                None => self.fails(false, out),
            },
            tag::DESCRIBE => match frontend::Describe::parse(body) {
                Ok(describe) => {
                    if describe.target == Target::Statement {
                        backend::encode_parameter_description(out, &[25]);
                    }
                    backend::encode_no_data(out);
                }
                Err(_) => self.fails(false, out),
            },
            tag::CLOSE => match frontend::Close::parse(body) {
                Ok(_) => backend::encode_close_complete(out),
                Err(_) => self.fails(false, out),
            },
            tag::EXECUTE => match frontend::Execute::parse(body) {
                Ok(_) => self.execute(out),
                Err(_) => self.fails(false, out),
            },
            tag::FUNCTION_CALL => {
                backend::encode_function_response(out, Some(b"1"));
                backend::encode_ready(out, self.tx);
            }
            // A COPY that has failed leaves its rest behind: PostgreSQL passes over it.
            tag::FLUSH | tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => {}
            other => assert!(!self.strict, "a server was sent a message of type {:?}", char::from(other)),
        }
    }

    fn execute(&mut self, out: &mut Vec<u8>) {
        if self.parsed.starts_with(b"copy") {
            backend::encode_copy_in(out, CopyFormat::Text, 1);
            self.state = State::CopyIn(false);
            return;
        }
        backend::encode_data_row(out, &[Some(b"1")]);
        self.complete(&self.parsed.clone(), out);
    }

    fn copy_in(&mut self, simple: bool, tag: u8, _body: &[u8], out: &mut Vec<u8>) {
        use frontend::tag;
        match tag {
            tag::COPY_DATA | tag::FLUSH | tag::SYNC => {}
            tag::COPY_DONE => {
                self.state = State::Ready;
                backend::encode_command_complete(out, "COPY 1");
                if simple {
                    backend::encode_ready(out, self.tx);
                }
            }
            tag::TERMINATE => self.state = State::Gone,
            _ => {
                self.state = State::Ready;
                self.fails(simple, out);
            }
        }
    }

    /// A simple query: each statement of it is answered, then ReadyForQuery.
    fn query(&mut self, text: &[u8], out: &mut Vec<u8>) {
        let text = text.to_ascii_lowercase();
        let mut any = false;
        for statement in
            text.split(|&byte| byte == b';').map(<[u8]>::trim_ascii).filter(|part| !part.is_empty())
        {
            any = true;
            if statement.starts_with(b"fail") {
                return self.fails(true, out);
            }
            if statement.starts_with(b"copy") {
                backend::encode_copy_in(out, CopyFormat::Text, 1);
                self.state = State::CopyIn(true);
                return;
            }
            if statement.starts_with(b"select") {
                backend::encode_row_description(out, &[]);
                backend::encode_data_row(out, &[]);
            }
            self.complete(statement, out);
        }
        if !any {
            backend::encode_empty_query(out);
        }
        backend::encode_ready(out, self.tx);
    }

    fn complete(&mut self, statement: &[u8], out: &mut Vec<u8>) {
        let tag = if statement.starts_with(b"begin") {
            self.tx = TxStatus::InTransaction;
            "BEGIN"
        } else if statement.starts_with(b"commit") || statement.starts_with(b"rollback") {
            self.tx = TxStatus::Idle;
            "COMMIT"
        } else if statement.starts_with(b"discard all") {
            "DISCARD ALL"
        } else if statement.starts_with(b"deallocate all") {
            "DEALLOCATE ALL"
        } else if statement.starts_with(b"set") {
            backend::encode_parameter_status(out, b"application_name", statement);
            "SET"
        } else {
            "SELECT 1"
        };
        backend::encode_command_complete(out, tag);
    }

    fn fails(&mut self, simple: bool, out: &mut Vec<u8>) {
        encode_error(out, &Report::error(SqlState::PROTOCOL_VIOLATION, "it failed"));
        if self.tx == TxStatus::InTransaction {
            self.tx = TxStatus::Failed;
        }
        if simple {
            backend::encode_ready(out, self.tx);
        } else {
            self.skipping = true;
        }
    }
}
