//! The state of a client in a form that can move: from the worker that accepted the client to the worker that owns its pool.

use std::sync::Arc;

use pgweir_auth::Learned;

use crate::driver::{Now, Peer, TlsInfo};
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::shared::{Counter, Counts};

/// The origin of a client's connection.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The peer, as the kernel says.
    pub peer: Peer,
    /// The connection's TLS session; `None` without TLS.
    pub tls: Option<Box<TlsInfo>>,
    /// The time at which the connection was accepted.
    pub since: Now,
}

/// The kind of connection that a client requested with the startup parameter `replication`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replication {
    /// An ordinary session.
    #[default]
    None,
    /// The client has `replication=true`: it may send the walsender's own commands only.
    Physical,
    /// The client has `replication=database`: it may send walsender commands and SQL.
    Logical,
}

impl Replication {
    /// Returns the name that SHOW CLIENTS prints.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Replication::None => "none",
            Replication::Physical => "physical",
            Replication::Logical => "logical",
        }
    }
}

/// The data of a client's startup packet, and the result of its authentication.
#[derive(Clone, Debug)]
pub struct Login {
    /// The database as the client named it.
    pub database: Arc<str>,
    /// The user that the client has proven to be.
    pub user: Arc<str>,
    /// The tracked parameters of the startup packet.
    pub params: Params,
    /// The other parameters of the startup packet, as they were given.
    pub session: Session,
    /// Protocol minor version that was agreed: 0 or 2.
    pub minor: u16,
    /// The value of the startup parameter `replication`.
    pub replication: Replication,
    /// The raw startup parameter `options`, for replication connections only: passed on to the server.
    pub options: Option<Arc<[u8]>>,
    /// The secrets from the authentication that help to log in to servers.
    pub learned: Learned,
}

/// The counters in which a client is counted. Dropping this, wherever the client ends, gives its places back.
#[derive(Default, Debug)]
pub struct Counted {
    /// The counter of all clients, if the client is counted for `max_client_conn`.
    pub(crate) total: Option<Arc<Counter>>,
    /// The counters of the database, if the client is counted for `max_db_client_connections`.
    pub(crate) database: Option<Arc<Counts>>,
    /// The counters of the user, if the client is counted for `max_user_client_connections`.
    pub(crate) user: Option<Arc<Counts>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Counted { total, database, user } = self;
        total.iter().for_each(|clients| clients.give_back());
        [database, user].into_iter().flatten().for_each(|counts| counts.clients.give_back());
    }
}

/// A client on its way to another worker.
#[derive(Debug)]
pub struct ClientHandoff {
    /// Number in SHOW's column `id`.
    pub serial: u64,
    /// The address that it came from.
    pub origin: Origin,
    /// The client's login, which is proven.
    pub login: Login,
    /// The counters in which it is counted, and stays counted on the way.
    pub counted: Counted,
    /// The bytes that were received and not yet handled.
    pub unread: Vec<u8>,
}
