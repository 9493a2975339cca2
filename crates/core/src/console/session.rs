//! A client of the console.

use std::sync::Arc;

use super::Rights;
use crate::cancel_key::CancelKey;

/// Who is at the console, and whether a command of theirs is still being carried out.
pub(crate) struct ConsoleSession {
    user: Arc<str>,
    pub(crate) rights: Rights,
    /// The ticket of the command that is being carried out; what is typed meanwhile waits.
    pub(crate) pending: Option<u64>,
    pub(crate) cancel_key: CancelKey,
}

impl ConsoleSession {
    pub(crate) fn new(user: Arc<str>, rights: Rights, cancel_key: CancelKey) -> ConsoleSession {
        ConsoleSession { user, rights, pending: None, cancel_key }
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }
}
