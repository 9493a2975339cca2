//! A client that is in no pool: it logs in, uses the console, or has sent a cancel request. Each state has the data that only that state
//! needs.

mod bytes;
mod moves;

use std::sync::Arc;

use pgweir_auth::{Method, Secret};

use crate::client_handoff::{Counted, Login, Origin};
use crate::driver::{ConnId, WorkerId};
use crate::pool::client::state::log_name;
use crate::worker::console::session::ConsoleSession;
use crate::worker::login::exchange::Exchange;

/// A client connection that is in no pool.
pub(crate) struct Unpooled {
    pub(crate) conn: ConnId,
    /// The client's number in SHOW's column `id`. A client keeps it in its pool.
    pub(crate) serial: u64,
    pub(crate) state: UnpooledState,
    /// The bytes that were received and not yet handled. Empty and unallocated when idle.
    pub(crate) inbox: Vec<u8>,
    /// Reads from the client are paused, because too many bytes wait in the inbox.
    pub(crate) reads_paused: bool,
    pub(crate) origin: Origin,
}

/// The state of a client that is in no pool. A client that leaves is removed at once; the driver flushes the last bytes to it.
pub(crate) enum UnpooledState {
    /// The client has connected and sends its first packets.
    Greeting(Greeting),
    /// The client proves its identity.
    Authenticating(Box<Authenticating>),
    /// The login waits for an answer: from a server for the user's secret, or from the control plane.
    AwaitingAnswer(Box<AwaitingAnswer>),
    /// The client is proven and goes into its pool, or to the worker that owns it, as soon as its bytes are collected.
    Proven(Box<Proven>),
    /// The login has failed; the client is about to get the error.
    Refused(Box<Login>),
    /// The client has sent a cancel request, and waits until this number of workers have said that it is over.
    Cancelling(u32),
    /// The client uses the console.
    Console(Box<ConsoleSession>),
}

/// The optional requests that a client has made in its first packets.
#[derive(Default)]
pub(crate) struct Greeting {
    /// The state of TLS. A second SSLRequest, or one after direct TLS, is an error.
    pub(crate) tls: TlsAsked,
    /// GSSENCRequest was received and answered with N.
    pub(crate) gss_asked: bool,
}

/// The state of TLS during the greeting.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsAsked {
    /// TLS was not requested yet.
    #[default]
    No,
    /// TLS was requested and refused with N.
    Refused,
    /// The TLS handshake is under way.
    Handshake,
    /// The connection is encrypted.
    Established,
}

/// An authentication exchange.
pub(crate) struct Authenticating {
    pub(crate) attempt: LoginAttempt,
    pub(crate) exchange: Exchange,
}

/// A login that waits for the answer to its question.
pub(crate) struct AwaitingAnswer {
    pub(crate) attempt: LoginAttempt,
    pub(crate) asked: Asked,
}

/// The question that a login has sent to a server or the control plane.
pub(crate) enum Asked {
    /// The user's secret, by `auth_query`.
    Secret {
        /// The pool that is asked: database and user.
        pool: (Arc<str>, Arc<str>),
        /// The time at which the question was sent (monotonic, µs).
        since_us: u64,
        /// The next step when the secret is known.
        then: Then,
    },
    /// A question of an authentication exchange to the control plane.
    Exchange(Exchange),
}

/// The next step when a user's secret is known.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    /// The client must prove that it knows the secret, too.
    Exchange(Method),
    /// The client is proven already; the secret is for logging in to servers.
    Admit,
}

/// A login that is not proven yet.
pub(crate) struct LoginAttempt {
    pub(crate) login: Login,
    pub(crate) counted: Counted,
    /// The destination of the client when it is proven.
    pub(crate) target: Target,
    pub(crate) record: Record,
}

/// The result of `auth_query` for the user.
pub(crate) enum Record {
    /// The query was not sent.
    NotAsked,
    /// The user does not exist.
    Missing,
    /// The user exists and has this secret.
    Found(Secret),
}

/// The destination of a login.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A database of the configuration.
    Database,
    /// The console.
    Console,
    /// A database that does not exist. The client gets that error only after a successful login, so that names cannot be guessed.
    Nowhere,
}

/// A client that has logged in and is on the way to its pool.
pub(crate) struct Proven {
    pub(crate) login: Login,
    pub(crate) counted: Counted,
    /// The worker that owns the pool.
    pub(crate) to: WorkerId,
}

impl Unpooled {
    /// Returns the name with which log lines about the client begin: `C-0x12: database/user@host:port`.
    pub(crate) fn log_name(&self) -> String {
        let (database, user) = match &self.state {
            UnpooledState::Authenticating(exchange) => {
                (&*exchange.attempt.login.database, &*exchange.attempt.login.user)
            }
            UnpooledState::AwaitingAnswer(waiting) => {
                (&*waiting.attempt.login.database, &*waiting.attempt.login.user)
            }
            UnpooledState::Refused(login) => (&*login.database, &*login.user),
            UnpooledState::Console(console) => (crate::worker::console::DATABASE, console.user()),
            UnpooledState::Greeting(_) | UnpooledState::Proven(_) | UnpooledState::Cancelling(_) => {
                ("(nodb)", "(nouser)")
            }
        };
        log_name(self.serial, database, user, &self.origin.peer)
    }

    /// Whether the client has not logged in, and no part of a message waits.
    pub(crate) fn has_said_nothing(&self) -> bool {
        let before_login = matches!(
            self.state,
            UnpooledState::Greeting(_) | UnpooledState::Authenticating(_) | UnpooledState::Proven(_)
        );
        before_login && self.inbox.is_empty()
    }

    /// Whether the client's bytes cannot be handled until another event has come.
    pub(crate) fn is_stalled(&self) -> bool {
        match &self.state {
            UnpooledState::AwaitingAnswer(_) => true,
            UnpooledState::Console(console) => console.pending.is_some(),
            _ => false,
        }
    }

    /// Returns the console session; `None` if the client does not use the console.
    pub(crate) fn console(&self) -> Option<&ConsoleSession> {
        match &self.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }
}
