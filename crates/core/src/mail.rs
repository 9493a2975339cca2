//! Messages between workers, and between a worker and the control plane. Typed, never shared state.

use std::sync::Arc;

use pgweir_auth::UserList;
use pgweir_settings::Config;

use crate::driver::WorkerId;

/// Everything a machine runs by that comes from files: replaced as a whole by RELOAD.
#[derive(Clone)]
pub struct Rules {
    /// The parsed configuration.
    pub config: Arc<Config>,
    /// The users of `auth_file`.
    pub users: Arc<UserList>,
    /// Counts up whenever the TLS configuration towards servers changed: pools then recycle their servers.
    pub server_tls_epoch: u64,
}

/// A message to a worker's machine.
pub enum Mail {
    /// New configuration (RELOAD, SIGHUP or SET).
    Rules(Rules),
}

/// What the machine asks of the control plane.
pub enum Question {
    /// Read the files again; the answer is [`Mail::Rules`] for every worker.
    Reload { asked_by: WorkerId, ticket: u64 },
}
