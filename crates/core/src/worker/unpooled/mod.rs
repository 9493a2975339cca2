//! A client that is in no pool: it logs in, or talks to the console, or asked for a statement to be cancelled. Its states, each
//! with what only that state needs.

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
    /// SHOW's column `id`. A client keeps it in its pool.
    pub(crate) serial: u64,
    pub(crate) state: UnpooledState,
    /// Received and not yet understood. Empty and unallocated when idle.
    pub(crate) inbox: Vec<u8>,
    /// Reads are paused: too much waits here.
    pub(crate) reads_paused: bool,
    pub(crate) origin: Origin,
}

/// The life of a client before it is in a pool. A client that leaves is removed at once; the driver flushes its last words.
pub(crate) enum UnpooledState {
    /// Accepted; first packets.
    Greeting(Greeting),
    /// Proves its identity.
    Authenticating(Box<Authenticating>),
    /// Its login waits for an answer: from a server for its secret, or from the control plane.
    AwaitingAnswer(Box<AwaitingAnswer>),
    /// Proven; goes to the worker that owns its pool, or into the pool if that is here, as soon as its bytes are gathered.
    Proven(Box<Proven>),
    /// Is about to be told why its login failed.
    Refused(Box<Login>),
    /// Asked for another client's statement to be cancelled, and waits until that is done.
    Cancelling,
    /// Talks to the console.
    Console(Box<ConsoleSession>),
}

/// First packets: which of the optional requests were made already.
#[derive(Default)]
pub(crate) struct Greeting {
    /// SSLRequest was answered (or TLS began directly): a second one is a fault.
    pub(crate) tls: TlsAsked,
    /// GSSENCRequest was answered N.
    pub(crate) gss_asked: bool,
}

/// TLS during greeting.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TlsAsked {
    /// Not yet.
    #[default]
    No,
    /// Asked and refused with N.
    Refused,
    /// The handshake runs.
    Handshake,
    /// Everything is encrypted.
    Established,
}

/// An authentication exchange.
pub(crate) struct Authenticating {
    pub(crate) attempt: LoginAttempt,
    pub(crate) exchange: Exchange,
}

/// Between the question of a login and its answer.
pub(crate) struct AwaitingAnswer {
    pub(crate) attempt: LoginAttempt,
    pub(crate) asked: Asked,
}

/// What a server or the control plane was asked for a login.
pub(crate) enum Asked {
    /// `auth_query`: the user's secret.
    Secret {
        /// The pool: database and user.
        pool: (Arc<str>, Arc<str>),
        /// Since when (monotonic, µs).
        since_us: u64,
        /// What is to be done with it.
        then: Then,
    },
    /// What an exchange wants to know of the control plane.
    Exchange(Exchange),
}

/// What to do when a user's secret is known.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    /// The client has to prove that it knows it, too.
    Exchange(Method),
    /// The client is proven; it is for its servers.
    Admit,
}

/// A login that is not proven yet.
pub(crate) struct LoginAttempt {
    pub(crate) login: Login,
    pub(crate) counted: Counted,
    /// What to do when it is proven.
    pub(crate) target: Target,
    pub(crate) record: Record,
}

/// What `auth_query` said of the user.
pub(crate) enum Record {
    /// It was not asked.
    NotAsked,
    /// There is no such user.
    Missing,
    /// Its secret.
    Found(Secret),
}

/// What a login is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// A database we serve.
    Database,
    /// The console.
    Console,
    /// No such database: said only after the login succeeded, so that names cannot be guessed.
    Nowhere,
}

/// On the way to its pool.
pub(crate) struct Proven {
    pub(crate) login: Login,
    pub(crate) counted: Counted,
    /// The worker that owns the pool.
    pub(crate) to: WorkerId,
}

impl Unpooled {
    /// `C-0x12: database/user@host:port` as log lines begin.
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
            UnpooledState::Greeting(_) | UnpooledState::Proven(_) | UnpooledState::Cancelling => {
                ("(nodb)", "(nouser)")
            }
        };
        log_name(self.serial, database, user, &self.origin.peer)
    }

    /// It has not logged in, and no part of a message waits.
    pub(crate) fn has_said_nothing(&self) -> bool {
        let before_login = matches!(
            self.state,
            UnpooledState::Greeting(_) | UnpooledState::Authenticating(_) | UnpooledState::Proven(_)
        );
        before_login && self.inbox.is_empty()
    }

    /// Nothing more can be done with its bytes until something else happens.
    pub(crate) fn is_stalled(&self) -> bool {
        match &self.state {
            UnpooledState::AwaitingAnswer(_) => true,
            UnpooledState::Console(console) => console.pending.is_some(),
            _ => false,
        }
    }

    /// It talks to the console.
    pub(crate) fn console(&self) -> Option<&ConsoleSession> {
        match &self.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }
}
