//! The questions to a server that has no client: the statements that the operator configures (`connect_query`, the reset and check
//! queries), and questions about the server's session, its database and its node.
//!
//! The three matches over the questions stand here and nowhere else: how a row of the answer is used, what an error means, and which
//! room reads the complete answer. This file never sends anything (`moves/server.rs` does), and never interprets an answer.

use std::sync::Arc;

use pgweir_wire::backend::{DataRow, encode_parameter_status};
use pgweir_wire::error::SqlState;

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::limits::{AUDIT_ATTEMPTS_MAX, GREETING_PARAMETERS_MAX, SERVER_MESSAGE_BYTES_MAX};
use crate::pool::relay::own_settings::{place_of_masked, unmask};
use crate::pool::server::following::analysis::AnalysisWanted;
use crate::pool::server::state::{Reported, ServerState};
use crate::pool::session::params::Params;
use crate::pool::{Pool, ServerKind};

/// The state of a server that has no client and was asked something by pgweir.
pub(crate) struct AskedServer {
    pub(crate) question: ServerQuestion,
    /// The number of times that the question was sent.
    pub(crate) attempts: u8,
    /// The answer as far as it has arrived; `None` if nothing of it has to be kept yet.
    answer: Option<Box<Replies>>,
}

/// The question to a server without a client, with what only this question needs.
pub(crate) enum ServerQuestion {
    /// `connect_query` runs. The server's login ends with it; `None` if it runs again, after a reset.
    ConnectQuery(Option<Box<AtLogin>>),
    /// The settings and objects that `connect_query` left in the session. The value is that of [`ServerQuestion::ConnectQuery`].
    AfterConnectQuery(Option<Box<AtLogin>>),
    /// Whether the session is what it should be.
    Session(Box<SampledSession>),
    /// The routines of the database that change sessions, and the names that stand for more than a read. `age` is the age of routines at which
    /// the server was asked.
    Catalog { age: u64 },
    /// The position of the server's node in the write-ahead log. `asked_us` is when the server was asked (monotonic, µs).
    Position { asked_us: u64 },
    /// The processes that PostgreSQL has (`pool/choose/parts.rs`). `number` is that of the control plane's request, 0 if there is none, and
    /// `asked_us` the time at which the server was asked (monotonic, µs).
    Backends { number: u64, asked_us: u64 },
    /// The values that new connections begin with. `unused_us` is since when the server was unused, which counts on after the answer (monotonic, µs).
    Greeting { unused_us: u64 },
    /// Which PostgreSQL server and database this is, for the query cache.
    Node,
    /// The tables that a statement depends on.
    Tables(Box<AnalysisWanted>),
    /// Whether PostgreSQL accepts the startup parameters of a client that logs in.
    Startup(Box<StartupCheck>),
    /// `server_reset_query`, or DISCARD ALL in its place.
    Reset,
    /// `server_check_query`.
    Check,
}

/// The parameters that a server reported when it was logged in.
#[derive(Clone)]
pub(crate) struct AtLogin {
    /// Parameters that are not tracked, with the values that `connect_query` has given them since.
    pub(crate) fixed: Vec<Reported>,
    /// The tracked parameters, as they were at login.
    pub(crate) params: Arc<Params>,
    /// `connect_query` failed, or the session that it left is not known.
    pub(crate) in_doubt: bool,
}

/// The transactions that may have changed the session that a server is asked for.
#[derive(Default)]
pub(crate) struct SampledSession {
    /// The number of transactions since the session was last known.
    pub(crate) transactions: u32,
    /// The last statements of these transactions, by fingerprint and text.
    pub(crate) statements: Vec<(u64, Box<str>)>,
}

/// The startup parameters of a client that are being tried.
pub(crate) struct StartupCheck {
    pub(crate) client: ClientId,
    /// The parameters that were set, in the order of the answer's columns.
    pub(crate) names: Vec<Box<[u8]>>,
    /// ParameterStatus messages about parameters that are not tracked, as the client is to get them.
    pub(crate) reported: Vec<u8>,
}

/// The use of a row that answers a question.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowUse {
    /// The operator's own statement returned the row: nothing reads it.
    Drop,
    /// The row is kept for the end of the answer.
    Keep,
    /// The same for a row about the session as a whole ([`Replies::add_of_session`]).
    OfSession,
}

impl AskedServer {
    pub(crate) fn new(question: ServerQuestion) -> AskedServer {
        AskedServer { question, attempts: 0, answer: None }
    }

    /// Returns the list that a server with this question is in.
    pub(crate) fn kind(&self) -> ServerKind {
        match &self.question {
            ServerQuestion::ConnectQuery(Some(_)) | ServerQuestion::AfterConnectQuery(Some(_)) => {
                ServerKind::Login
            }
            ServerQuestion::Startup(_) => ServerKind::Active,
            _ => ServerKind::Tested,
        }
    }

    fn row_use(&self) -> RowUse {
        match self.question {
            ServerQuestion::ConnectQuery(_) | ServerQuestion::Reset | ServerQuestion::Check => RowUse::Drop,
            ServerQuestion::AfterConnectQuery(_) | ServerQuestion::Session(_) => RowUse::OfSession,
            ServerQuestion::Catalog { .. }
            | ServerQuestion::Position { .. }
            | ServerQuestion::Backends { .. }
            | ServerQuestion::Greeting { .. }
            | ServerQuestion::Node
            | ServerQuestion::Tables(_)
            | ServerQuestion::Startup(_) => RowUse::Keep,
        }
    }

    /// The consequence of an error for this question: the statement's name for a log line, and the reason to close the server, if there is one.
    /// `None` if the error is part of the answer, and read with it.
    fn failed(&mut self, code: SqlState, text: &str) -> Option<Failed> {
        match &mut self.question {
            ServerQuestion::ConnectQuery(login) => {
                // The pool's other servers may succeed.
                login.iter_mut().for_each(|login| login.in_doubt = true);
                Some(("connect_query", None))
            }
            ServerQuestion::Reset => Some(("server_reset_query", Some("reset query failed"))),
            ServerQuestion::Check => Some(("server_check_query", Some("test query failed"))),
            ServerQuestion::AfterConnectQuery(_)
            | ServerQuestion::Session(_)
            | ServerQuestion::Catalog { .. }
            | ServerQuestion::Position { .. }
            | ServerQuestion::Backends { .. }
            | ServerQuestion::Greeting { .. }
            | ServerQuestion::Node
            | ServerQuestion::Tables(_)
            | ServerQuestion::Startup(_) => {
                self.answer.get_or_insert_default().fail(code, text);
                None
            }
        }
    }
}

impl AtLogin {
    /// `connect_query` changed a parameter that is not tracked.
    pub(crate) fn changed(&mut self, name: &[u8], value: &[u8]) {
        if let Some((_, known)) = self.fixed.iter_mut().find(|(known, _)| **known == *name) {
            *known = value.into();
        } else if self.fixed.len() < GREETING_PARAMETERS_MAX {
            self.fixed.push((name.into(), value.into()));
        }
    }

    /// Returns ParameterStatus messages of the parameters that are not tracked.
    pub(crate) fn messages(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.fixed.iter().for_each(|(name, value)| encode_parameter_status(&mut out, name, value));
        out
    }
}

/// The name of a statement that failed, for a log line, and the reason to close its server, if the failure is one.
pub(crate) type Failed = (&'static str, Option<&'static str>);

impl ServerState {
    /// Returns the question that a server without a client was asked, if any.
    pub(crate) fn question(&self) -> Option<&ServerQuestion> {
        match self {
            ServerState::Asked(asked) => Some(&asked.question),
            _ => None,
        }
    }

    /// Returns the parameters that the login reported, while `connect_query` belongs to the login.
    pub(crate) fn at_login(&self) -> Option<&AtLogin> {
        match self.question()? {
            ServerQuestion::ConnectQuery(login) | ServerQuestion::AfterConnectQuery(login) => {
                login.as_deref()
            }
            _ => None,
        }
    }

    /// Notes the value of a parameter that is not tracked. `is_own` is true if the server was opened with a client's own value, with which
    /// other clients do not begin.
    pub(crate) fn note_reported(&mut self, name: &[u8], value: &[u8], is_own: bool) {
        let ServerState::Asked(asked) = self else { return };
        match &mut asked.question {
            ServerQuestion::Startup(check) if check.reported.len() < SERVER_MESSAGE_BYTES_MAX => {
                encode_parameter_status(&mut check.reported, name, value);
            }
            ServerQuestion::ConnectQuery(Some(login)) | ServerQuestion::AfterConnectQuery(Some(login))
                if !is_own =>
            {
                login.changed(name, value);
            }
            _ => {}
        }
    }

    /// Whether pgweir reads the rows of an answer to [`Purpose::Question`](crate::pool::relay::ledger::Purpose::Question).
    pub(crate) fn reads_rows(&self) -> bool {
        match self {
            ServerState::Asked(asked) => asked.row_use() != RowUse::Drop,
            ServerState::Watching(_) => true,
            _ => false,
        }
    }
}

impl Pool {
    /// Takes a row that answers a question to a server without a client, or to the node that is watched.
    pub(crate) fn question_row(&mut self, id: ServerId, row: &DataRow<'_>, bytes: usize) {
        match self.servers.get_mut(id).map(|server| &mut server.state) {
            Some(ServerState::Asked(asked)) => {
                let is_of_session = asked.row_use() == RowUse::OfSession;
                asked.answer.get_or_insert_default().add(row, bytes, is_of_session);
            }
            Some(ServerState::Watching(watching)) => watching.answer.add(row, bytes, false),
            _ => {}
        }
    }

    /// Handles the error in which a question to a server without a client, or to the node that is watched, has ended. Returns a failure
    /// that the caller must act on; `None` if the error is part of the answer.
    pub(crate) fn question_failed(&mut self, id: ServerId, code: SqlState, text: &str) -> Option<Failed> {
        match &mut self.servers.get_mut(id)?.state {
            ServerState::Asked(asked) => asked.failed(code, text),
            ServerState::Watching(watching) => {
                watching.answer.fail(code, text);
                None
            }
            _ => None,
        }
    }

    /// Handles the complete answer of a server that is idle: the room of the question reads the answer, and then frees the server or asks
    /// it something else.
    pub(crate) fn question_answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let ServerState::Asked(asked) = &mut server.state else { return };
        let answer = asked.answer.take().map(|answer| *answer).unwrap_or_default();
        // A question about a session may be refused for a reason that passes, such as a statement timeout that the session itself has set.
        let again = answer.failed.is_some() && asked.attempts < AUDIT_ATTEMPTS_MAX;
        match &mut asked.question {
            ServerQuestion::ConnectQuery(login) => {
                let login = login.clone();
                self.connect_query_ended(cx, id, login);
            }
            ServerQuestion::AfterConnectQuery(_) if again => self.ask_what_is_left(cx, id),
            ServerQuestion::AfterConnectQuery(login) => {
                let login = login.clone();
                self.learnt(cx, id, login, &answer);
            }
            ServerQuestion::Session(_) if again => self.ask_for_look(cx, id),
            ServerQuestion::Session(sampled) => {
                let sampled = std::mem::take(&mut **sampled);
                self.session_checked(cx, id, sampled, &answer);
            }
            &mut ServerQuestion::Catalog { age } => self.catalog_read(cx, id, age, &answer),
            &mut ServerQuestion::Position { asked_us } => self.located(cx, id, asked_us, &answer),
            &mut ServerQuestion::Backends { number, asked_us } => {
                self.backends_told(cx, id, (number, asked_us), &answer);
            }
            &mut ServerQuestion::Greeting { unused_us } => self.looked(cx, id, unused_us, &answer),
            ServerQuestion::Startup(check) => {
                let (client, names) = (check.client, std::mem::take(&mut check.names));
                let reported = std::mem::take(&mut check.reported);
                self.checked(cx, id, StartupCheck { client, names, reported }, answer);
            }
            ServerQuestion::Node => self.node_told(cx, id, &answer),
            ServerQuestion::Tables(wanted) => {
                let wanted = std::mem::take(&mut **wanted);
                self.analysed(cx, id, wanted, &answer);
            }
            ServerQuestion::Reset => self.cleaned(cx, id),
            ServerQuestion::Check => self.free_server(cx, id),
        }
    }
}

/// The answer to a statement of pgweir's own.
#[derive(Default)]
pub(crate) struct Replies {
    /// The rows of the answer. A value is `None` if it is NULL.
    pub(crate) rows: Vec<Vec<Option<Box<[u8]>>>>,
    /// The session's own values of settings that the question itself has set, in their order (`relay/own_settings.rs`).
    pub(crate) shown: Vec<Box<[u8]>>,
    pub(crate) bytes: usize,
    /// The SQLSTATE and text of the error in which the answer ended.
    pub(crate) failed: Option<(SqlState, String)>,
}

impl Replies {
    /// Adds a row. If the answer has become too long, the row is dropped and only the length of the answer grows: the rows are no longer
    /// complete.
    pub(crate) fn add(&mut self, row: &DataRow<'_>, bytes: usize, is_of_session: bool) {
        self.bytes += bytes;
        if self.bytes > SERVER_MESSAGE_BYTES_MAX {
            return;
        }
        let columns = row.columns().map(|value| value.map(Box::from)).collect();
        match is_of_session {
            true => self.add_of_session(columns),
            false => self.rows.push(columns),
        }
    }

    /// Notes that the question, or a part of it, was refused. Only the first error counts.
    pub(crate) fn fail(&mut self, code: SqlState, text: &str) {
        self.failed.get_or_insert_with(|| (code, text.to_owned()));
    }

    /// Adds a row of an answer about all that a session holds. If the question itself has set a setting, the session's own value replaces
    /// the value in the row.
    fn add_of_session(&mut self, mut row: Vec<Option<Box<[u8]>>>) {
        if let [Some(value)] = row.as_slice() {
            self.shown.push(value.clone());
            return;
        }
        if let [Some(kind), Some(name), value] = row.as_mut_slice()
            && let Some(shown) = place_of_masked(name).and_then(|place| self.shown.get(place))
        {
            let own = match &**kind {
                b"s" => unmask(shown, value.as_deref()),
                _ => Some(&**shown),
            };
            let Some(own) = own else { return };
            *value = Some(own.into());
        }
        self.rows.push(row);
    }

    /// Whether the answer lists a setting of PostgreSQL's own as set in the session.
    pub(crate) fn holds(&self, name: &[u8]) -> bool {
        self.rows.iter().any(|row| match row.as_slice() {
            [Some(kind), Some(known), _] => **kind == *b"s" && known.eq_ignore_ascii_case(name),
            _ => false,
        })
    }

    /// Whether the answer says that statements were prepared in the session through the protocol.
    pub(crate) fn tells_of_protocol(&self) -> bool {
        self.rows.iter().any(|row| row.first() == Some(&Some(b"h".as_slice().into())))
    }

    /// Returns the value of a custom setting in a new connection, if the answer has one.
    pub(crate) fn default_of(&self, name: &[u8]) -> Option<&[u8]> {
        self.rows.iter().find_map(|row| match row.as_slice() {
            [Some(kind), Some(known), Some(value)] if **kind == *b"d" && **known == *name => Some(&**value),
            _ => None,
        })
    }
}
