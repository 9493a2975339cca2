//! What a login asks others: a server of another pool, for the secret of a user (`auth_query`); or the control plane, which may take its
//! time. The question may go to another worker; the answer comes back to the client's.

use std::net::IpAddr;
use std::sync::Arc;

use pgweir_auth::{LdapOptions, PlainPassword, Secret};

use crate::driver::WorkerId;
use crate::ids::UnpooledId;

/// Which secret does this user have? To be asked of a server of one pool.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The worker of the client that logs in ...
    pub from: WorkerId,
    /// ... and the client: answers carry it back.
    pub client: UnpooledId,
    /// The database of the pool that is asked.
    pub database: Arc<str>,
    /// The user of that pool: `auth_user`.
    pub auth_user: Arc<str>,
    /// `auth_query`, with one parameter.
    pub query: Arc<str>,
    /// The parameter's value: the only thing of what an unproven client sent that a server gets to see.
    pub user: Arc<str>,
}

/// A question to the control plane.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// As in [`Lookup`].
    pub from: WorkerId,
    /// As in [`Lookup`].
    pub client: UnpooledId,
    /// What is to be found out.
    pub about: About,
}

/// What is to be found out.
#[derive(Clone, Debug)]
pub enum About {
    /// What the operating system calls the user with this id.
    OsUser {
        /// The id.
        uid: u32,
    },
    /// Whether this is the user's password.
    Password {
        /// The user.
        user: Arc<str>,
        /// What the client says.
        password: PlainPassword,
        /// The client's address; `None` for the unix socket.
        address: Option<IpAddr>,
        /// What checks it.
        by: Checker,
    },
}

/// What checks passwords that are not stored here.
#[derive(Clone, Debug)]
pub enum Checker {
    /// The modules of the operating system that are configured for the service `pgbouncer`.
    Pam,
    /// A directory.
    Ldap(Arc<LdapOptions>),
}

/// What came of a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// There is such a user.
    User {
        /// The name that counts from here on.
        name: Arc<str>,
        /// Its secret; if it has none, one that never matches.
        secret: Secret,
    },
    /// There is none.
    NoUser,
    /// The operating system's name, if it has one.
    OsUser(Option<Arc<str>>),
    /// Whether the password was right.
    Password(bool),
    /// The question cannot be answered.
    Unavailable(Obstacle),
}

/// Why a question has no answer. What exactly went wrong stands in the log: an unproven client need not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The configuration does not allow an answer: no such database, a query that fails.
    Misconfigured,
    /// The server or directory that would know cannot be reached.
    Unreachable,
    /// It could not be reached just now, and is not asked again until `server_login_retry` is over.
    Failing,
    /// The process ends.
    ShuttingDown,
}
