//! What a prepared statement returns can change: after ALTER TABLE, `select * from t` has other columns, and PostgreSQL refuses
//! to run what was prepared before ("cached plan must not change result type"). Where clients share what servers have prepared,
//! that error must not reach a client that prepared its statement after the change.
//!
//! So each change begins a new age of statements: a text that is prepared from then on is another statement than the same text
//! before, and servers get it anew. A client that prepared before the change keeps what it has, and is told PostgreSQL's error as
//! on a connection of its own: what it knows of the result may be wrong now.

use pgweir_wire::backend::{ErrorFields, TxStatus};

use super::Machine;
use crate::ids::ServerId;

/// Commands that can change what statements return, by the beginning of their tag. What is dropped and made anew is known by its
/// errors alone: temporary tables come and go all the time.
const CHANGES: [&[u8]; 5] =
    [b"ALTER TABLE", b"ALTER VIEW", b"ALTER MATERIALIZED VIEW", b"ALTER FOREIGN TABLE", b"CREATE VIEW"];

/// The tag of a command that can change what statements return.
#[inline]
pub(super) fn is_reshaping(tag: &[u8]) -> bool {
    matches!(tag.first(), Some(b'A' | b'C')) && CHANGES.iter().any(|change| tag.starts_with(change))
}

impl Machine {
    /// CommandComplete: a change counts for others when its transaction is over.
    pub(super) fn note_command(&mut self, id: ServerId, tag: &[u8]) {
        if is_reshaping(tag)
            && let Some(server) = self.servers.get_mut(id)
        {
            server.reshapes = true;
        }
    }

    /// ReadyForQuery.
    pub(super) fn note_shapes(&mut self, id: ServerId, status: TxStatus) {
        if status == TxStatus::Idle
            && let Some(server) = self.servers.get_mut(id)
            && std::mem::take(&mut server.reshapes)
        {
            self.shared.begin_age();
        }
    }

    /// An error of a server: the first to meet a change that was made elsewhere. PostgreSQL's function is named, as the text may be
    /// in any language (plancache.c).
    pub(super) fn note_shape_error(&mut self, fields: &ErrorFields<'_>) {
        if fields.code() == Some(b"0A000") && fields.field(b'R') == Some(b"RevalidateCachedQuery") {
            self.shared.begin_age();
        }
    }
}
