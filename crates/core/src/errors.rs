//! Every error that pgweir itself sends to a client, in one closed list: the text (PgBouncer's where it has
//! one), the SQLSTATE (PostgreSQL's own), and a hint if the reader can do something about it.

use std::borrow::Cow;

use pgweir_wire::error::{Report, SqlState};

/// PostgreSQL's text for a statement in a failed transaction (25P02).
pub(crate) const IN_FAILED_TRANSACTION: &str =
    "current transaction is aborted, commands ignored until end of transaction block";

/// The reason why a client is refused or disconnected. All are FATAL: the connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client broke the protocol; the text says in which way.
    Protocol(Cow<'static, str>),
    /// The startup packet has a parameter that pgweir cannot honour.
    UnsupportedParameter(String),
    /// The startup packet has, inside `options`, a parameter that pgweir cannot honour.
    UnsupportedOption(String),
    /// The startup packet has a parameter that PostgreSQL does not know either; the text is PostgreSQL's.
    UnknownParameter(String),
    /// The client does not use TLS, and `client_tls_sslmode` requires it.
    TlsRequired,
    /// The startup packet has no user.
    NoUser,
    /// The client did not prove itself; the text does not say why.
    Authentication(&'static str, Unproven),
    /// The password could not be checked: the server or directory that knows it cannot be reached. Which one failed, and how, is for the
    /// log alone.
    SecretUnavailable,
    /// The password could not be checked, and the server that knows it is not asked again until `server_login_retry` is over.
    SecretNotAsked,
    /// PostgreSQL refused the login of a replication client: its own code and text.
    ReplicationRefused(SqlState, String),
    /// The HBA file has no rule for this connection, or one that rejects it.
    NotAllowedIn(&'static str),
    /// The database has no forced user, although `auth_type=any` needs one.
    NoForcedUser,
    NoSuchDatabase(String),
    DatabaseDisabled(String),
    /// The database in which `auth_query` is asked was disabled (DISABLE).
    AuthDatabaseDisabled(String),
    NotAllowedOnConsole,
    TooManyClients(&'static str),
    ShuttingDown,
    ServerShuttingDown,
    DatabaseRemoved,
    ForcedDisconnect,
    /// The virtual address that the client has connected to has left this pooler.
    AddressMoved,
    /// A timeout of the settings has passed; the text is PgBouncer's. The SQLSTATE is that of PostgreSQL's own timeout if that one ends the
    /// session, too; else PgBouncer's 08P01.
    Timeout(&'static str, SqlState),
    /// A timeout has passed while the client waited for a server; with the error of the last attempt to open one, if it failed.
    Unserved(&'static str, SqlState, Option<String>),
    /// Servers cannot be opened at the moment; the text is the error of the last attempt.
    ServerFailing(String),
    /// PostgreSQL refused the login; with its own code and text.
    ServerRefused(SqlState, String),
    /// The client's session could not be brought to another server: PostgreSQL's code and text.
    SessionNotRestored(SqlState, String),
    /// The server connection ended while the client used it.
    ServerLost(Cow<'static, str>),
    /// The server connection ended that the client kept between transactions; the second text names what the client has lost.
    PinnedServerLost(Cow<'static, str>, String),
    /// The cluster has had no primary for as long as a client may wait; `nodes` names the state of each node.
    NoPrimary {
        cluster: String,
        nodes: String,
    },
    /// The cluster has had no standby for as long as a client may wait whose route is a standby.
    NoStandby {
        cluster: String,
        nodes: String,
    },
    /// The connection to the primary ended before the client's request was answered.
    OutcomeUnknown,
    /// The connection to the primary ended in an open transaction, but not during a statement.
    RolledBack,
    /// The server connection that listened for the client's notifications ended.
    NotificationsLost,
    /// A notification came in an encoding that is not the client's any more.
    NotificationEncoding,
    /// The client reads its notifications too slowly.
    TooManyNotifications,
    /// The client has opened a transaction, which statement pooling does not allow.
    TransactionInStatementMode,
    SimpleQueryDisabled,
    /// The client's session has state that cannot move to another server, for these reasons, and `session_state = error` forbids that.
    CanNotMove(String),
    /// The client would have to keep its server, for these reasons, but `max_pinned` clients do so already.
    TooManyPinned(String),
    /// The client exceeds a limit of pgweir's for one client.
    TooLarge(Cow<'static, str>),
}

/// The knowledge about a user that was not proven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unproven {
    /// Only the user list was asked.
    Listed,
    /// `auth_query` found the user.
    Found,
    /// `auth_query` found no such user.
    Missing,
}

impl Fault {
    /// Returns the error for a client whose startup parameters PostgreSQL refused with this code and text. A parameter that PostgreSQL does
    /// not know is named in PgBouncer's words, too.
    pub(crate) fn of_startup(code: SqlState, text: String) -> Self {
        if code == SqlState::UNDEFINED_OBJECT && text.starts_with("unrecognized configuration parameter") {
            return Fault::UnknownParameter(text);
        }
        Fault::ServerRefused(code, text)
    }

    /// Returns the text, which is also the reason in the log.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Fault::Protocol(text)
            | Fault::ServerLost(text)
            | Fault::PinnedServerLost(text, _)
            | Fault::TooLarge(text) => Cow::Borrowed(text),
            Fault::Authentication(text, _) | Fault::NotAllowedIn(text) => Cow::Borrowed(text),
            Fault::SecretUnavailable => "the password could not be checked".into(),
            Fault::ReplicationRefused(..) => "login failed".into(),
            Fault::SecretNotAsked => {
                "server login has been failing, try again later (server_login_retry)".into()
            }
            Fault::UnsupportedParameter(name) => format!("unsupported startup parameter: {name}").into(),
            Fault::UnsupportedOption(name) => {
                format!("unsupported startup parameter in options: {name}").into()
            }
            Fault::UnknownParameter(text) => Cow::Borrowed(text),
            Fault::TlsRequired => "SSL required".into(),
            Fault::NoUser => "no username supplied".into(),
            Fault::NoForcedUser => "bouncer config error".into(),
            Fault::NoSuchDatabase(name) => format!("no such database: {name}").into(),
            Fault::DatabaseDisabled(name) => format!("database \"{name}\" is disabled").into(),
            Fault::AuthDatabaseDisabled(name) => {
                format!("authentication database \"{name}\" is disabled").into()
            }
            Fault::NotAllowedOnConsole => "not allowed".into(),
            Fault::TooManyClients("max_client_conn") => {
                "no more connections allowed (max_client_conn)".into()
            }
            Fault::TooManyClients(limit) => format!("client connections exceeded ({limit})").into(),
            Fault::ShuttingDown => "pooler is shutting down".into(),
            Fault::ServerShuttingDown => "server shutting down".into(),
            Fault::DatabaseRemoved => "database removed".into(),
            Fault::ForcedDisconnect => "admin forced disconnect".into(),
            Fault::AddressMoved => {
                "terminating connection because its address (vip) has left this pooler".into()
            }
            Fault::Timeout(text, _) | Fault::Unserved(text, ..) => Cow::Borrowed(text),
            Fault::ServerFailing(last) => {
                format!("server login has been failing, cached error: {last} (server_login_retry)").into()
            }
            Fault::ServerRefused(_, text) => Cow::Borrowed(text),
            Fault::SessionNotRestored(_, text) => {
                format!("the session could not be brought to another server: {text}").into()
            }
            Fault::NoPrimary { cluster, .. } => {
                format!("cluster \"{cluster}\" has no primary (primary_wait)").into()
            }
            Fault::NoStandby { cluster, .. } => {
                format!("cluster \"{cluster}\" has no usable standby (primary_wait)").into()
            }
            Fault::OutcomeUnknown => {
                "the connection to the primary was lost; it is not known whether the statement took effect"
                    .into()
            }
            Fault::RolledBack => {
                "the transaction was rolled back: the connection to the primary was lost".into()
            }
            Fault::TransactionInStatementMode => {
                "transaction blocks not allowed in statement pooling mode".into()
            }
            Fault::SimpleQueryDisabled => "PQexec disallowed".into(),
            Fault::NotificationsLost => {
                "the connection that listens for this client ended: notifications may have been missed".into()
            }
            Fault::NotificationEncoding => {
                "a notification cannot be converted to the client_encoding that was set after LISTEN".into()
            }
            Fault::TooManyNotifications => "too many notifications wait for this client".into(),
            Fault::CanNotMove(reasons) => {
                format!("not possible where servers change hands (session_state=error): {reasons}").into()
            }
            Fault::TooManyPinned(reasons) => {
                format!("too many clients keep their server (max_pinned); this one would for: {reasons}")
                    .into()
            }
        }
    }

    /// The SQLSTATE, as PostgreSQL would choose it (appendix "PostgreSQL Error Codes").
    pub(crate) fn code(&self) -> SqlState {
        match self {
            Fault::Protocol(_) | Fault::UnsupportedParameter(_) | Fault::UnsupportedOption(_) => {
                SqlState::PROTOCOL_VIOLATION
            }
            Fault::UnknownParameter(_) => SqlState::UNDEFINED_OBJECT,
            Fault::TlsRequired | Fault::NoUser | Fault::NotAllowedIn(_) | Fault::NotAllowedOnConsole => {
                SqlState::INVALID_AUTHORIZATION
            }
            Fault::Authentication(..) => SqlState::INVALID_PASSWORD,
            Fault::NoForcedUser => SqlState::CONFIG_FILE_ERROR,
            Fault::NoSuchDatabase(_) => SqlState::INVALID_CATALOG_NAME,
            Fault::DatabaseDisabled(_) | Fault::AuthDatabaseDisabled(_) => {
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
            }
            Fault::TooManyClients(_) => SqlState::TOO_MANY_CONNECTIONS,
            Fault::ShuttingDown | Fault::NoPrimary { .. } | Fault::NoStandby { .. } => {
                SqlState::CANNOT_CONNECT_NOW
            }
            Fault::OutcomeUnknown => SqlState::TRANSACTION_RESOLUTION_UNKNOWN,
            Fault::RolledBack => SqlState::SERIALIZATION_FAILURE,
            Fault::ServerShuttingDown
            | Fault::DatabaseRemoved
            | Fault::ForcedDisconnect
            | Fault::AddressMoved => SqlState::ADMIN_SHUTDOWN,
            Fault::Timeout(_, code)
            | Fault::Unserved(_, code, _)
            | Fault::ServerRefused(code, _)
            | Fault::ReplicationRefused(code, _)
            | Fault::SessionNotRestored(code, _) => *code,
            Fault::ServerFailing(_) | Fault::SecretUnavailable | Fault::SecretNotAsked => {
                SqlState::CANNOT_CONNECT
            }
            Fault::ServerLost(_) | Fault::PinnedServerLost(..) | Fault::NotificationsLost => {
                SqlState::CONNECTION_FAILURE
            }
            Fault::TransactionInStatementMode | Fault::SimpleQueryDisabled | Fault::NotificationEncoding => {
                SqlState::FEATURE_NOT_SUPPORTED
            }
            Fault::TooLarge(_) | Fault::TooManyNotifications => SqlState::PROGRAM_LIMIT_EXCEEDED,
            Fault::CanNotMove(_) => SqlState::FEATURE_NOT_SUPPORTED,
            Fault::TooManyPinned(_) => SqlState::CONFIGURATION_LIMIT_EXCEEDED,
        }
    }

    /// Returns the reason in the log, which may say more than the client is told.
    pub(crate) fn reason(&self) -> Cow<'_, str> {
        match self {
            Fault::Authentication(_, Unproven::Missing) => "no such user".into(),
            Fault::UnknownParameter(text) => unsupported_parameter(text).into(),
            _ => self.text(),
        }
    }

    fn detail(&self) -> Option<Cow<'_, str>> {
        match self {
            Fault::PinnedServerLost(_, text) | Fault::ReplicationRefused(_, text) => {
                Some(Cow::Borrowed(text))
            }
            Fault::Unserved(.., failure) => {
                let last = failure.as_deref()?;
                Some(
                    format!(
                        "The last attempt to open a server connection failed: {}.",
                        last.trim_end_matches('.')
                    )
                    .into(),
                )
            }
            Fault::NoPrimary { nodes, .. } | Fault::NoStandby { nodes, .. } => {
                Some(format!("The nodes are: {nodes}.").into())
            }
            // The same for a user that exists and one that does not, and wherever it was looked for.
            Fault::Authentication(..) => Some("There is no such user, or the password is wrong.".into()),
            Fault::UnknownParameter(text) => Some(unsupported_parameter(text).into()),
            _ => None,
        }
    }

    /// Returns the reason why the client's server is closed with it; `None` if that is only because the client is gone.
    pub(crate) fn ends_server(&self) -> Option<&'static str> {
        match self {
            // Its server has nothing to do.
            Fault::Timeout("client_idle_timeout", _) => None,
            Fault::Timeout(text, _) => Some(text),
            Fault::TransactionInStatementMode => {
                Some("transaction blocks not allowed in statement pooling mode")
            }
            Fault::DatabaseRemoved => Some("database removed"),
            _ => None,
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            Fault::UnsupportedParameter(_) | Fault::UnsupportedOption(_) | Fault::UnknownParameter(_) => {
                Some("Remove it from the connection string, or add its name to ignore_startup_parameters.")
            }
            Fault::NotAllowedOnConsole => {
                Some("The console is for the users in admin_users and stats_users.")
            }
            Fault::AddressMoved => Some("Connect again: another pooler has the address, or gets it soon."),
            Fault::TooManyClients("max_client_conn") => Some("Raise max_client_conn, or close idle clients."),
            Fault::CanNotMove(_) => {
                Some("Keep it inside one transaction, use session pooling, or set session_state to preserve.")
            }
            Fault::TooManyPinned(_) => {
                Some("Raise max_pinned, or use session state only inside of a transaction.")
            }
            Fault::NoPrimary { .. } | Fault::NoStandby { .. } => {
                Some("The statement was not executed. SHOW NODES on the console has the details.")
            }
            Fault::OutcomeUnknown => {
                Some("Connect again, and look whether the change is there before it is tried again.")
            }
            Fault::RolledBack => Some("Connect again, and try the whole transaction again."),
            Fault::SecretUnavailable => Some("Try again later; the pooler's log has the details."),
            Fault::ServerFailing(_) => {
                Some("The next attempt comes after server_login_retry; the pooler's log has the details.")
            }
            Fault::SessionNotRestored(..) => Some(
                "The statement was not executed. Connect again: what the session held has changed in the database.",
            ),
            Fault::NotificationsLost => {
                Some("Connect and LISTEN again, then look at what has changed meanwhile.")
            }
            Fault::NotificationEncoding => {
                Some("Set client_encoding before the first LISTEN, or ask for it in the startup packet.")
            }
            Fault::TooManyNotifications => {
                Some("A client that listens must read, and must end its transactions.")
            }
            _ => None,
        }
    }

    /// Appends the ErrorResponse.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let text = self.text();
        let mut report = Report::fatal(self.code(), &text);
        let detail = self.detail();
        if let Some(detail) = &detail {
            report = report.with_detail(detail);
        }
        if let Some(hint) = self.hint() {
            report = report.with_hint(hint);
        }
        pgweir_wire::error::encode_error(out, &report);
    }
}

/// Returns PgBouncer's text for a parameter that PostgreSQL's text names.
fn unsupported_parameter(text: &str) -> String {
    format!("unsupported startup parameter: {}", text.split('"').nth(1).unwrap_or_default())
}

/// The reason why a client's request is refused before a server received it. These are errors: the session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request was canceled while it waited for a server.
    Canceled,
    /// `max_waiting_clients` clients wait already.
    QueueFull,
    /// The value of `pgweir.read_after` or of the hint `after=` is not a position, or so far ahead that it is not one of this cluster.
    NoPosition,
}

impl Refusal {
    /// The SQLSTATE.
    pub(crate) fn code(self) -> SqlState {
        match self {
            Refusal::Canceled => SqlState::QUERY_CANCELED,
            Refusal::QueueFull => SqlState::TOO_MANY_CONNECTIONS,
            Refusal::NoPosition => SqlState::INVALID_PARAMETER_VALUE,
        }
    }

    /// Appends the ErrorResponse.
    pub(crate) fn encode(self, out: &mut Vec<u8>) {
        let report = match self {
            Refusal::Canceled => Report::error(self.code(), "canceling statement due to user request"),
            Refusal::QueueFull => {
                let text = "too many clients wait for a server connection (max_waiting_clients)";
                Report::error(self.code(), text)
                    .with_hint("Try again later; nothing of the statement was executed.")
            }
            Refusal::NoPosition => {
                let text = "what is to be seen is no position of this cluster (pgweir.read_after, or the hint after=)";
                Report::error(self.code(), text).with_hint(
                    "A position of the primary looks like 00000002-0/404C6B0. To go on without: /* pgweir: primary */ RESET pgweir.read_after",
                )
            }
        };
        pgweir_wire::error::encode_error(out, &report);
    }
}
