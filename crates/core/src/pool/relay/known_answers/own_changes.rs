//! What a client itself has changed: each answer that it is given from the cache must show it.

use pgweir_sql::{Statements, Verb, traits};
use pgweir_wire::frontend::{BindHead, Parse, Query, tag};

use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::Pool;
use crate::pool::cache::WRITING;
use crate::pool::cache::wal::catalog::Catalog;
use crate::pool::client::state::Account;
use crate::pool::relay::exchange::whole_messages;

impl Pool {
    /// Notes that these bytes of a client, which may change something, are about to be sent.
    pub(super) fn note_own_change(&mut self, env: &Env, id: ClientId, bytes: &[u8]) {
        let hides = self.may_redefine_unseen(env, id, bytes);
        let Some(client) = self.clients.get_mut(id) else { return };
        client.account.wrote_us = WRITING;
        if hides {
            client.account.redefined_us = WRITING;
        }
    }

    /// Whether the bytes may change definitions or rights, and no answer of the server would tell: a DO block, a procedure, a function of users or an
    /// EXPLAIN ANALYZE does so. For changes of rows the stream tells, and for DDL its command tag.
    fn may_redefine_unseen(&self, env: &Env, id: ClientId, bytes: &[u8]) -> bool {
        let followed = env.followed.state(&self.state.database);
        let Some(stream) = followed.and_then(|state| state.stream()) else { return false };
        let is_plain = |text: &[u8]| is_plain(text, stream.catalog());
        let Some(account) = self.clients.get(id).map(|client| &client.account) else { return true };
        let (mut is_parsed, mut len) = (false, 0);
        let all_are_plain = whole_messages(bytes).all(|message| {
            len += message.bytes.len();
            match message.tag() {
                tag::QUERY => Query::parse(message.body()).is_ok_and(|query| is_plain(query.text)),
                tag::PARSE => {
                    is_parsed = true;
                    Parse::parse(message.body()).is_ok_and(|parse| is_plain(parse.query))
                }
                tag::BIND => match BindHead::parse_prefix(message.body()) {
                    Some(head) if head.statement.is_empty() => is_parsed,
                    Some(head) => {
                        let statement =
                            account.statement(head.statement).and_then(|key| env.statements.get(key));
                        statement.is_some_and(|statement| is_plain(&statement.query))
                    }
                    None => false,
                },
                tag::FUNCTION_CALL => false,
                _ => true,
            }
        });
        !all_are_plain || len < bytes.len()
    }
}

/// Whether a text is one statement that changes rows, its session or its transaction, if anything, and calls no code of users by name.
fn is_plain(text: &[u8], catalog: &Catalog) -> bool {
    let found = traits(text);
    let is_known = match found.verb {
        Verb::Select | Verb::Insert | Verb::Update | Verb::Delete | Verb::Merge | Verb::With => true,
        Verb::Values | Verb::Table | Verb::Copy | Verb::Begin | Verb::Savepoint => true,
        Verb::Set | Verb::Reset | Verb::Show | Verb::Prepare | Verb::Deallocate => true,
        Verb::Listen | Verb::Unlisten | Verb::Notify | Verb::Empty => true,
        // What was changed before PREPARE TRANSACTION is visible from COMMIT PREPARED on.
        Verb::Commit | Verb::Rollback => !text.windows(8).any(|word| word.eq_ignore_ascii_case(b"prepared")),
        Verb::Execute | Verb::Discard | Verb::Other | Verb::Unknown => false,
    };
    is_known
        && matches!(found.statements, Statements::One | Statements::None)
        && !catalog.may_call_users_code(text)
}

/// Puts the time at which the client's changes were answered already in the place of those that may have been under way.
pub(super) fn settle_own_changes(account: &mut Account, answered_us: u64) {
    for changed_us in [&mut account.wrote_us, &mut account.redefined_us] {
        if *changed_us == WRITING {
            *changed_us = answered_us;
        }
    }
}
