//! What a client itself has changed: each answer that it is given from the cache must show it.

use pgweir_sql::{Kind, Lexeme, Lexer};
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

/// The words that begin statements which change rows, their session or their transaction, if anything. Of COMMIT and ROLLBACK, and of FETCH, what they
/// end or execute was looked at when it was sent, in the same transaction.
const PLAIN: [&[u8]; 31] = [
    b"select",
    b"insert",
    b"update",
    b"delete",
    b"merge",
    b"with",
    b"values",
    b"table",
    b"copy",
    b"begin",
    b"start",
    b"commit",
    b"end",
    b"rollback",
    b"abort",
    b"savepoint",
    b"release",
    b"lock",
    b"set",
    b"reset",
    b"show",
    b"discard",
    b"prepare",
    b"deallocate",
    b"declare",
    b"close",
    b"listen",
    b"unlisten",
    b"notify",
    b"fetch",
    b"move",
];

/// Whether each statement of a text begins with a word of [`PLAIN`], and none has the name of a function of users, or the word PREPARED: what was
/// changed before PREPARE TRANSACTION is visible from COMMIT PREPARED on.
fn is_plain(text: &[u8], catalog: &Catalog) -> bool {
    let is_word = |word: &[u8], known: &[u8]| word.eq_ignore_ascii_case(known);
    let mut begins = true;
    Lexer::new(text).all(|lexeme| {
        let Ok(Lexeme { kind, text: word, .. }) = lexeme else { return false };
        let at_begin = begins;
        begins = kind == Kind::Symbol && (at_begin || word == b";");
        match kind {
            Kind::Word if is_word(word, b"prepared") => false,
            Kind::Word if at_begin => PLAIN.iter().any(|known| is_word(word, known)),
            Kind::Word => !catalog.is_impure(&word.to_ascii_lowercase()),
            Kind::QuotedWord => !at_begin && !catalog.is_impure(word),
            Kind::UnicodeWord => false,
            Kind::Symbol => true,
            _ => !at_begin,
        }
    })
}

/// Puts the time at which the client's changes were answered already in the place of those that may have been under way.
pub(super) fn settle_own_changes(account: &mut Account, answered_us: u64) {
    for changed_us in [&mut account.wrote_us, &mut account.redefined_us] {
        if *changed_us == WRITING {
            *changed_us = answered_us;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_plain_if_each_of_its_statements_is() {
        let catalog = Catalog::of(b"", b"renames", b"double_it").expect("it is a catalog");
        for text in [
            "insert into t values ('renames', 1)",
            "(select 1) union (select double_it(2))",
            "DISCARD ALL",
            // A driver sends this whenever its pool gets a connection back.
            "SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;",
            "begin; update t set a = 1; commit",
            "declare c cursor for select 1; fetch c",
            "copy t from stdin",
            "",
            ";;",
        ] {
            assert!(is_plain(text.as_bytes(), &catalog), "{text}");
        }
        for text in [
            "do 'begin end'",
            "call p()",
            "execute p",
            "select 1; do 'begin end'",
            "explain analyze create table u as select 1",
            "select renames()",
            "insert into t select Renames()",
            "select \"renames\"()",
            "select U&\"ren!0061mes\" uescape '!' ()",
            "commit prepared 'x'",
            "\"select\" 1",
            "'select'",
            "select 'a",
        ] {
            assert!(!is_plain(text.as_bytes(), &catalog), "{text}");
        }
    }
}
