//! A client of the console: its user, prepared statements and portals.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::client_handoff::Counted;
use crate::pool::cancel_key::CancelKey;
use crate::worker::console::Rights;
use crate::worker::console::command::Command;
use crate::worker::console::table::Formats;

/// The user of a console client, and whether its command is still being carried out.
pub(crate) struct ConsoleSession {
    user: Arc<str>,
    /// The `application_name` of the startup packet; `None` if it had none.
    pub(crate) application: Option<Box<[u8]>>,
    /// The time of the client's last request (monotonic, µs).
    pub(crate) request_us: u64,
    pub(crate) rights: Rights,
    /// The ticket of the command that is being carried out; commands that are typed in the meantime wait.
    pub(crate) pending: Option<u64>,
    pub(crate) cancel_key: CancelKey,
    /// The client's places in counters, which it has until this is dropped.
    pub(crate) _counted: Counted,
    pub(crate) reply: Reply,
    pub(crate) extended: Extended,
}

/// The form of the answer to the present command.
#[derive(Clone, Default, Debug)]
pub(crate) enum Reply {
    /// The answer to a Query: with RowDescription, and followed by ReadyForQuery.
    #[default]
    Query,
    /// The answer to an Execute: at most `max_rows` rows (0 means all) in the portal's formats; the other rows stay in the portal.
    Execute { portal: Vec<u8>, formats: Formats, max_rows: usize },
}

/// The state of the extended protocol.
#[derive(Default)]
pub(crate) struct Extended {
    /// The prepared statements by their names; `None` is the empty query.
    pub(crate) statements: HashMap<Vec<u8>, Option<Command>>,
    /// The portals by their names. Each lasts until Sync, because a console has no transactions.
    pub(crate) portals: HashMap<Vec<u8>, Portal>,
    /// The last message failed, so all messages up to Sync are ignored.
    pub(crate) skipping: bool,
}

/// A bound statement.
pub(crate) struct Portal {
    pub(crate) command: Option<Command>,
    pub(crate) formats: Formats,
    pub(crate) progress: Progress,
}

/// The progress of a portal's execution.
pub(crate) enum Progress {
    /// The portal was not executed yet.
    Fresh,
    /// The portal was executed in part: these rows were not fetched yet.
    Rest(VecDeque<Vec<Option<String>>>),
    /// The portal was executed completely.
    Done,
}

impl ConsoleSession {
    pub(crate) fn new(
        user: Arc<str>,
        application: Option<Box<[u8]>>,
        request_us: u64,
        rights: Rights,
        cancel_key: CancelKey,
        counted: Counted,
    ) -> ConsoleSession {
        ConsoleSession {
            user,
            application,
            request_us,
            rights,
            pending: None,
            cancel_key,
            _counted: counted,
            reply: Reply::Query,
            extended: Extended::default(),
        }
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }
}
