//! What a client is, in one form that can move: from the worker that accepted it to the one that owns its pool.

use std::sync::Arc;

use pgweir_auth::Learned;

use crate::driver::{Now, Peer, TlsInfo};
use crate::pool::session::content::Session;
use crate::pool::session::params::Params;
use crate::shared::Counts;

/// How a connection came to us.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The peer, as the kernel says.
    pub peer: Peer,
    /// Its TLS session, if any.
    pub tls: Option<Box<TlsInfo>>,
    /// When it was accepted.
    pub since: Now,
}

/// What kind of connection a client asked for with the startup parameter `replication`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replication {
    /// An ordinary session.
    #[default]
    None,
    /// `replication=true`: the walsender's own commands only.
    Physical,
    /// `replication=database`: walsender commands and SQL.
    Logical,
}

impl Replication {
    /// As SHOW CLIENTS prints it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Replication::None => "none",
            Replication::Physical => "physical",
            Replication::Logical => "logical",
        }
    }
}

/// What a client said of itself in its startup packet, and what its authentication proved.
#[derive(Clone, Debug)]
pub struct Login {
    /// The database as the client named it.
    pub database: Arc<str>,
    /// The user it is.
    pub user: Arc<str>,
    /// Tracked parameters it gave.
    pub params: Params,
    /// The other ones, as they were given.
    pub session: Session,
    /// Protocol minor version that was agreed: 0 or 2.
    pub minor: u16,
    /// The startup parameter of that name.
    pub replication: Replication,
    /// The raw startup parameter `options`, for replication connections only: passed on to the server.
    pub options: Option<Arc<[u8]>>,
    /// What the exchange taught us that helps to log in to servers.
    pub learned: Learned,
}

/// The counters in which a client is counted; given back when it leaves.
#[derive(Default, Debug)]
pub struct Counted {
    /// `max_client_conn`.
    pub(crate) total: bool,
    /// `max_db_client_connections`.
    pub(crate) database: Option<Arc<Counts>>,
    /// `max_user_client_connections`.
    pub(crate) user: Option<Arc<Counts>>,
}

/// A client on its way to another worker.
#[derive(Debug)]
pub struct ClientHandoff {
    /// Number in SHOW's column `id`.
    pub serial: u64,
    /// The address that it came from.
    pub origin: Origin,
    /// Its login: proven.
    pub login: Login,
    /// The counters in which it is counted, and stays counted on the way.
    pub counted: Counted,
    /// Bytes that were received and not yet understood.
    pub unread: Vec<u8>,
}
