//! The questions of a login: to a server of another pool, for the secret of a user (`auth_query`), or to the control plane, which may take
//! long. The question may go to another worker; the answer comes back to the client's worker.

use std::net::IpAddr;
use std::sync::Arc;

use pgweir_auth::{LdapOptions, PlainPassword, Secret};

use crate::driver::WorkerId;
use crate::ids::UnpooledId;

/// A question for the secret of a user, which a server of one pool answers.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The worker of the client that logs in.
    pub from: WorkerId,
    /// The client that logs in; answers carry its id.
    pub client: UnpooledId,
    /// The database of the pool that is asked.
    pub database: Arc<str>,
    /// The user of that pool: `auth_user`.
    pub auth_user: Arc<str>,
    /// `auth_query`, with one parameter.
    pub query: Arc<str>,
    /// The parameter's value: the user name, which is the only data from an unproven client that a server receives.
    pub user: Arc<str>,
}

/// A question to the control plane.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// The worker of the client that logs in.
    pub from: WorkerId,
    /// The client that logs in; answers carry its id.
    pub client: UnpooledId,
    /// The question itself.
    pub about: About,
}

/// The question to the control plane.
#[derive(Clone, Debug)]
pub enum About {
    /// The name of the operating system user with this id.
    OsUser {
        /// The id.
        uid: u32,
    },
    /// Whether this is the user's password.
    Password {
        /// The user.
        user: Arc<str>,
        /// The password that the client has sent.
        password: PlainPassword,
        /// The client's address; `None` for the unix socket.
        address: Option<IpAddr>,
        /// The service that checks the password.
        by: Checker,
    },
}

/// A service that checks passwords which are not stored here.
#[derive(Clone, Debug)]
pub enum Checker {
    /// The modules of the operating system that are configured for the service `pgbouncer`.
    Pam,
    /// An LDAP directory.
    Ldap(Arc<LdapOptions>),
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The user exists.
    User {
        /// The user name that counts from now on.
        name: Arc<str>,
        /// The user's secret; if the user has none, a secret that never matches.
        secret: Secret,
    },
    /// The user does not exist.
    NoUser,
    /// The name of the operating system user; `None` if the id has no name.
    OsUser(Option<Arc<str>>),
    /// Whether the password was right.
    Password(bool),
    /// The question cannot be answered.
    Unavailable(Obstacle),
}

/// The reason why a question has no answer. The exact cause is only in the log: an unproven client need not know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The configuration does not allow an answer: no such database, a query that fails.
    Misconfigured,
    /// The server or directory that would know cannot be reached.
    Unreachable,
    /// The last attempt to reach the server failed, and it is not asked again until `server_login_retry` is over.
    Failing,
    /// The process is shutting down.
    ShuttingDown,
}
