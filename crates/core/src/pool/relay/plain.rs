//! Messages that pass in runs: whole messages, one after the other. The only note that they need is which client is owed their
//! answer. The other way, a run of a server's bytes is flushed to the client that they are for.
//!
//! This file handles nearly all messages of nearly all statements. `send` and `receive` ask many questions of a
//! message, because it could be a special one; here those that certainly are not pass with one question each. It must never
//! take a message that the other two would treat in another way: special messages are left to those two.

use pgweir_wire::backend;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{Client, ClientState, OwnNames};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::prepared::schema_version::{changes_answers, is_schema_change};
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner, Pushed};
use crate::pool::relay::receive::Run;
use crate::pool::relay::route::{Route, route};
use crate::pool::relay::send::Cursor;
use crate::pool::show::measure::rows_in_tag;

impl Pool {
    /// Moves the cursor of a linked client past the messages that its server gets as they are.
    pub(crate) fn pass_plain(
        &mut self,
        env: &Env,
        id: ClientId,
        server_id: ServerId,
        tracking: bool,
        cursor: &mut Cursor<'_>,
    ) {
        let Some(Client { state: ClientState::Linked(link), .. }) = self.clients.get(id) else { return };
        let Some(server) = self.servers.get_mut(server_id) else { return };
        let ordinary = server.state.is_serving()
            && link.streaming == 0
            && link.touched.is_none()
            && link.own_names == OwnNames::Hidden
            && link.doubts.is_none()
            && link.phase.is_plain();
        if !ordinary {
            return;
        }
        let main = &env.rules.config.main;
        let is_first_try = link.first_try == FirstTry::Sending;
        while (server.ledger.len() < env.limits.ledger_entries || is_first_try)
            && let Ok(Some(header)) = Header::peek(cursor.rest())
            && header.total() <= cursor.rest().len()
            && header.total() <= main.max_packet_size as usize
        {
            // Messages that a session may remember go the other way, which notes them.
            let notable = matches!(header.tag, tag::QUERY | tag::PARSE | tag::BIND | tag::FUNCTION_CALL);
            if notable && !cursor.is_judged() || header.tag == tag::QUERY && main.disable_pqexec {
                return;
            }
            let kind = match route(header, cursor.rest(), tracking) {
                Route::Pass(None) => None,
                Route::Pass(Some(kind)) if kind != Kind::CopyEnd => Some(kind),
                // A group that was looked at as a whole prepares the unnamed statement itself.
                Route::Unnamed(kind) if cursor.is_judged() => Some(kind),
                _ => return,
            };
            if let Some(kind) = kind
                && server.ledger.push(Entry::new(Owner::Client(id), kind)) == Pushed::Queued
            {
                server.note_begin(env.now.mono_us);
            }
            cursor.pass(header.total());
        }
    }

    /// Adds a message that begins at `at` to the run if it goes to the same receiver. Otherwise the run ends, and the next one begins.
    // One comparison for nearly all messages.
    #[inline(always)]
    pub(super) fn extend<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        run: &mut Run,
        to: Option<ClientId>,
        bytes: &[u8],
        at: usize,
    ) {
        if run.to != to {
            self.flush(cx, id, run, &bytes[..at]);
            *run = Run { from: at, to };
        } else if to.is_none() {
            run.from = at;
        }
    }

    pub(super) fn flush<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, run: &Run, bytes: &[u8]) {
        if run.to.is_some() && run.from < bytes.len() {
            self.pass(cx, id, run.to, &bytes[run.from..]);
        }
    }

    /// Passes bytes on to a client. If too many bytes wait for the client, pgweir stops reading from the server.
    pub(crate) fn pass<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        to: Option<ClientId>,
        bytes: &[u8],
    ) {
        let Some((to, client)) = to.and_then(|to| Some((to, self.clients.get(to)?))) else { return };
        cx.driver.send(client.conn, bytes);
        if cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            self.pause_server(cx, id);
        }
        if self.servers.get(id).is_some_and(|server| server.incoming.capture.is_some()) {
            self.hear_answer(cx, id, to, bytes);
        }
    }
}

/// Messages that go to one client.
pub(crate) struct PlainAnswers {
    pub(crate) client: ClientId,
    /// The length of all these messages, in bytes.
    pub(crate) len: usize,
    /// The number of rows in their CommandCompletes.
    pub(crate) rows: u64,
}

/// The tags of commands that [`plain_answers`] leaves to the moments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Commands {
    /// The tags of commands that change something.
    SomeTell,
    /// All tags. In a transaction that changes objects or rights, COMMIT and SELECT tell something, too.
    AllTell,
}

/// Returns the whole messages at the front of a server's `bytes` that go to one client and change nothing but the ledger.
#[inline]
pub(crate) fn plain_answers(ledger: &mut Ledger, bytes: &[u8], commands: Commands) -> Option<PlainAnswers> {
    let (client, mut kind) = ledger.plain_head()?;
    let (mut end, mut rows) = (0, 0_u64);
    while let Some(rest) = bytes.get(end..)
        && let Ok(Some(header)) = Header::peek(rest)
        && let Some(message) = rest.get(..header.total())
        && let Some(ends) = kind.is_ended_by(header.tag)
    {
        let command = &message[HEADER_LEN..];
        if header.tag == backend::tag::COMMAND_COMPLETE
            && (commands == Commands::AllTell || is_telling(command))
        {
            break;
        }
        let next = match ends {
            true => ledger.end_plain(),
            false => Some(Some((client, kind))),
        };
        let Some(next) = next else { break };
        end += message.len();
        if header.tag == backend::tag::COMMAND_COMPLETE {
            rows = rows.saturating_add(rows_in_tag(command));
        }
        match next {
            Some((next, asked)) if next == client => kind = asked,
            _ => break,
        }
    }
    (end > 0).then_some(PlainAnswers { client, len: end, rows })
}

/// Whether this is the tag of a command that changes what is known of a session, the columns of statements, or routines.
#[inline]
fn is_telling(command: &[u8]) -> bool {
    is_discarding(command)
        || command.starts_with(b"DISCARD")
        || command == DEALLOCATED
        || command == ROLLED_BACK
        || changes_answers(command)
}

/// Whether this is the tag of a command that changes or drops a table, a view or a similar object.
#[inline]
pub(crate) fn changes_objects(command: &[u8]) -> bool {
    is_schema_change(command) || command.starts_with(b"DROP")
}

/// The tag of ROLLBACK, also to a savepoint, and of a COMMIT that was none.
pub(crate) const ROLLED_BACK: &[u8] = b"ROLLBACK\0";

/// The tag of a command that ends one prepared statement.
pub(crate) const DEALLOCATED: &[u8] = b"DEALLOCATE\0";

/// Whether this is the tag of a command that ends all prepared statements.
#[inline]
pub(crate) fn is_discarding(command: &[u8]) -> bool {
    matches!(command, b"DISCARD ALL\0" | b"DEALLOCATE ALL\0")
}
