//! The refusal of a text in a transaction that reads at a standby.
//!
//! In its place the standby gets a statement that certainly fails, so that the transaction fails there as it would by any error. That
//! statement's error has the refused word in it, which is how it is known; the client is told pgweir's error in its place.

use pgweir_wire::backend::ErrorFields;
use pgweir_wire::error::{Report, SqlState, encode_error};
use pgweir_wire::frontend::{self, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::ledger::{Entry, Kind, Owner, Pushed};
use crate::pool::client::state::ClientState;
use crate::pool::session::restore::waits_for_restore;
use crate::pool::{Pool, Step};

/// The beginning of a column's name that no statement has, as it stands in an error. How that quotes it depends on the server's language.
const NO_COLUMN: &[u8] = b"pgweir:";

/// Greatest number of bytes of a word that the error shows.
const WORD_BYTES_MAX: usize = 48;

/// SQLSTATE of a column that is not there.
const UNDEFINED_COLUMN: &[u8] = b"42703";

impl Pool {
    /// Sends the standby a statement that fails, instead of a message that only the primary may run. The transaction then fails as
    /// after any error.
    pub(super) fn refuse_at_standby<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (header, message): (Header, &[u8]),
        word: &[u8],
    ) -> Step {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return Step::Gone;
        };
        let Some(server) = self.servers.get_mut(server_id) else { return Step::Gone };
        let may_send = server.state.is_serving()
            && !link.ready_due
            && !waits_for_restore(link, server, message)
            && server.ledger.len() < cx.env.limits.ledger_entries;
        if !may_send {
            if server.ledger.len() >= cx.env.limits.ledger_entries {
                // Within a group the server keeps its answers back.
                self.ask_for_answers(cx, server_id);
            }
            return self.waits_at_server(id);
        }
        let text = failing_text(word);
        cx.env.scratch.clear();
        let is_simple = matches!(header.tag, tag::QUERY | tag::FUNCTION_CALL);
        let kind = match is_simple {
            true => {
                frontend::encode_query(&mut cx.env.scratch, &text);
                Kind::Query
            }
            // With a name: the client's unnamed statement stays what it is.
            false => {
                frontend::encode_parse(&mut cx.env.scratch, b"pgweir", &text, &[]);
                Kind::Parse
            }
        };
        if server.ledger.push(Entry::new(Owner::Client(id), kind)) == Pushed::Queued {
            server.note_begin(cx.env.now.mono_us);
        }
        cx.driver.send(server.conn, &cx.env.scratch);
        if let Some(client) = self.clients.get_mut(id) {
            client.skip = header.total().saturating_sub(message.len());
        }
        if is_simple {
            self.forget_unnamed(id);
        }
        Step::Used(header.total().min(message.len()))
    }

    /// Returns the error for the client if a server's error is the answer to such a failing statement.
    pub(crate) fn refusal_in_place_of(&self, id: ServerId, message: &[u8]) -> Option<Vec<u8>> {
        if self.servers.get(id)?.branch.is_primary() {
            return None;
        }
        let fields = ErrorFields::parse(message.get(HEADER_LEN..)?).ok()?;
        let text = fields.message().filter(|_| fields.code() == Some(UNDEFINED_COLUMN))?;
        let begin = text.windows(NO_COLUMN.len()).position(|part| part == NO_COLUMN)?;
        let behind = text.get(begin + NO_COLUMN.len()..)?;
        let word = behind.split(|byte| !is_shown(byte)).next()?;
        let word = String::from_utf8_lossy(word);
        let text = match word.is_empty() {
            true => "a statement is not certain to be the same on a standby as on the primary".to_owned(),
            false => format!("cannot use {word} in a transaction that reads from a standby"),
        };
        let report = Report::error(SqlState::FEATURE_NOT_SUPPORTED, &text)
            .with_hint("BEGIN READ ONLY /* pgweir: primary */ has the transaction run on the primary.");
        let mut told = Vec::new();
        encode_error(&mut told, &report);
        Some(told)
    }
}

/// A statement that fails in each database, and not before the transaction block is looked at.
fn failing_text(word: &[u8]) -> Vec<u8> {
    let mut text = b"SELECT \"pgweir:".to_vec();
    let shown = word.iter().take(WORD_BYTES_MAX);
    text.extend(shown.map(|byte| if is_shown(byte) { *byte } else { UNSHOWN }));
    text.push(b'"');
    text
}

/// The character that the error shows instead of one that plain names do not contain.
const UNSHOWN: u8 = b'?';

fn is_shown(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(*byte, b'_' | UNSHOWN)
}
