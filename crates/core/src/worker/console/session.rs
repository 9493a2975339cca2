//! A client of the console: its user, and the prepared statements and portals it has.

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
    /// As it named itself in its startup packet.
    pub(crate) application: Option<Box<[u8]>>,
    /// When it last asked for something (monotonic, µs).
    pub(crate) request_us: u64,
    pub(crate) rights: Rights,
    /// The ticket of the command that is being carried out; commands that are typed in the meantime wait.
    pub(crate) pending: Option<u64>,
    pub(crate) cancel_key: CancelKey,
    pub(crate) counted: Counted,
    pub(crate) reply: Reply,
    pub(crate) extended: Extended,
}

/// How the answer to the present command is to look.
#[derive(Clone, Default, Debug)]
pub(crate) enum Reply {
    /// As to a Query: described, and followed by ReadyForQuery.
    #[default]
    Query,
    /// As to an Execute: rows in the portal's formats, at most so many (0 is all); the rest stays in the portal.
    Execute { portal: Vec<u8>, formats: Formats, max_rows: usize },
}

/// What the extended protocol has made.
#[derive(Default)]
pub(crate) struct Extended {
    /// By the client's names. `None` is the empty query.
    pub(crate) statements: HashMap<Vec<u8>, Option<Command>>,
    /// They live until Sync: a console has no transactions.
    pub(crate) portals: HashMap<Vec<u8>, Portal>,
    /// After an error, everything up to Sync is ignored.
    pub(crate) skipping: bool,
}

/// A bound statement.
pub(crate) struct Portal {
    pub(crate) command: Option<Command>,
    pub(crate) formats: Formats,
    pub(crate) progress: Progress,
}

/// How far a portal was executed.
pub(crate) enum Progress {
    /// Not at all.
    Fresh,
    /// These rows were not fetched yet.
    Rest(VecDeque<Vec<Option<String>>>),
    /// To its end.
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
            counted,
            reply: Reply::Query,
            extended: Extended::default(),
        }
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }
}
