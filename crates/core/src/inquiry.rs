//! What a login asks others: a server of another pool, for the secret of a user (`auth_query`). The question may go to the worker that
//! owns that pool; the answer comes back to the client's.

use std::sync::Arc;

use pgweir_auth::Secret;

use crate::driver::WorkerId;
use crate::ids::ClientId;

/// Which secret does this user have? To be asked of a server of one pool.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The worker of the client that logs in ...
    pub from: WorkerId,
    /// ... and the client: answers carry it back.
    pub client: ClientId,
    /// The database whose pool is asked.
    pub database: Arc<str>,
    /// The user of that pool: `auth_user`.
    pub auth_user: Arc<str>,
    /// `auth_query`, with one parameter.
    pub query: Arc<str>,
    /// The parameter's value: the only thing of what an unproven client sent that a server gets to see.
    pub user: Arc<str>,
}

/// What came of a question.
#[derive(Clone, Debug)]
pub enum Answer {
    /// There is such a user.
    User {
        /// The name that counts from here on.
        name: Arc<str>,
        /// Its secret. One that never matches, where there is none.
        secret: Secret,
    },
    /// There is none.
    NoUser,
    /// Nobody can tell.
    Nobody(Obstacle),
}

/// Why a question has no answer. What exactly went wrong stands in the log: an unproven client need not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// The configuration does not allow an answer: no such database, a query that fails.
    Misconfigured,
    /// No server can be reached at present.
    Unreachable,
    /// The process ends.
    ShuttingDown,
}
