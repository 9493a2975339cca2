//! The results of a prepared statement can change: after ALTER TABLE, `select * from t` has other columns, and PostgreSQL
//! refuses to run statements that were prepared before ("cached plan must not change result type"). If clients share the
//! prepared statements of servers, that error must not reach a client that prepared its statement after the change.
//!
//! So each change begins a new age of statements: a text that is prepared from then on is another statement than the same text
//! before, and servers get it again. The same holds if a table, a type or a function goes, which often comes again in another
//! form: PostgreSQL keeps the parameter types of statements that were prepared before, even those that are gone.
//!
//! Until a change is committed no other client knows of it, and after a rollback no client does: a statement that is prepared
//! after a change in the same transaction is its client's alone.
//!
//! A client that prepared before the change keeps its statement until PostgreSQL refuses to run it. Then its name stands for
//! the statement of the new age, and its request is sent again, if that is right (`relay/attempt/`): nothing was done yet,
//! nothing was answered, and the client is about to be told the columns. Otherwise it is told the error, as on a direct
//! connection: its knowledge of the result may be wrong now.
//!
//! If a server prepares the statement only after the change, PostgreSQL has nothing to refuse: `shapes.rs` compares then.
//!
//! PostgreSQL also keeps the parameter types of a statement, and reads its text again after a change: `v = $1` means nothing if `v` was text
//! and is a number now (SQLSTATE 42883). If the change was not made through pgweir, the text that a client prepares after it would be that
//! statement still. So such an error begins a new age, too ([`Refusal::Unreadable`]).
//!
//! DROP ROLE is noted here, too: `server/recycle.rs` says what follows.

use pgweir_sql::{Marks, Statements, find_name, traits};
use pgweir_wire::backend::{ErrorFields, TxStatus};

use crate::context::{Effect, Env};
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::change::Change;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::statements::{Knows, Meaning, ServerCopy, Statement};
use crate::pool::relay::attempt::after_failure::{
    AfterFailure, ExchangeFailure, Ran, Situation, after_failure,
};
use crate::pool::relay::exchange::outdated::{Outdated, outdated_name};
use crate::pool::relay::ledger::{Accepted, Kind, Owner};
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::{Description, SchemaChanges};
use crate::pool::session::pins::Reasons;

/// Commands that can change the results or parameters of statements, by the beginning of their tag.
const CHANGES: [&[u8]; 12] = [
    b"ALTER TABLE",
    b"ALTER VIEW",
    b"ALTER MATERIALIZED VIEW",
    b"ALTER FOREIGN TABLE",
    b"ALTER TYPE",
    b"CREATE VIEW",
    b"DROP MATERIALIZED VIEW",
    b"DROP FOREIGN TABLE",
    b"DROP TYPE",
    b"DROP DOMAIN",
    b"DROP SCHEMA",
    b"DROP EXTENSION",
];

/// Commands that drop objects that may be temporary, by the beginning of their tag. Temporary objects come and go all the time, and no
/// other client's statements are about them.
const DROPS: [&[u8]; 3] = [b"DROP TABLE", b"DROP VIEW", b"DROP FUNCTION"];

/// Objects that lead to no code, and settings: commands that make or alter them change no answer about code, by the rest of their tags.
const WITHOUT_CODE: [&[u8]; 20] = [
    b"ACCESS METHOD",
    b"COLLATION",
    b"CONVERSION",
    b"DATABASE",
    b"DEFAULT PRIVILEGES",
    b"INDEX",
    b"LANGUAGE",
    b"LARGE OBJECT",
    b"PUBLICATION",
    b"ROLE",
    b"RULE",
    b"SCHEMA",
    b"SERVER",
    b"STATISTICS",
    b"SUBSCRIPTION",
    b"SYSTEM",
    b"TABLESPACE",
    b"TRANSFORM",
    b"TRIGGER",
    b"USER MAPPING",
];

/// Objects of [`WITHOUT_CODE`] for which the command that makes them can change an answer about code.
const MADE_WITH_CODE: [&[u8]; 6] = [b"CONVERSION", b"INDEX", b"LANGUAGE", b"RULE", b"SCHEMA", b"TRIGGER"];

/// Objects that are often temporary.
const OFTEN_TEMPORARY: [&[u8]; 4] = [b"CREATE TABLE", b"CREATE VIEW", b"CREATE SEQUENCE", b"CREATE INDEX"];

/// The tag of DROP ROLE, DROP USER and DROP GROUP.
const DROP_ROLE: &[u8] = b"DROP ROLE";

/// The tag of the command that ends a transaction for its session, to be committed later, by any session.
const PREPARE_TRANSACTION: &[u8] = b"PREPARE TRANSACTION";

/// The tag of the command that commits such a transaction.
const COMMIT_PREPARED: &[u8] = b"COMMIT PREPARED";

/// The tag of a command that makes, alters or drops an object, gives or takes rights, renews a materialized view, or has to do with a
/// prepared transaction, which may have done so: answers that were given before may not be given again. All tags that the functions here look for are among them.
#[inline]
pub(crate) fn changes_answers(tag: &[u8]) -> bool {
    match tag.first() {
        Some(b'A') => tag.starts_with(b"ALTER "),
        Some(b'C') => tag.starts_with(b"CREATE ") || tag.starts_with(COMMIT_PREPARED),
        Some(b'D') => tag.starts_with(b"DROP "),
        Some(b'G') => tag.starts_with(b"GRANT"),
        Some(b'I') => tag.starts_with(b"IMPORT "),
        Some(b'P') => tag.starts_with(PREPARE_TRANSACTION),
        Some(b'R') => [&b"REVOKE"[..], b"REASSIGN", b"REFRESH"].iter().any(|verb| tag.starts_with(verb)),
        _ => false,
    }
}

/// Whether this is the tag of a command that can change the results of statements.
#[inline]
pub(crate) fn is_schema_change(tag: &[u8]) -> bool {
    matches!(tag.first(), Some(b'A' | b'C' | b'D')) && CHANGES.iter().any(|change| tag.starts_with(change))
}

/// Whether this is the tag of a command that can make code, or have a name lead to it: it changes the answers of questions to the catalog.
/// (A routine or a DO block may hide such commands.)
#[inline]
pub(crate) fn makes_routines(tag: &[u8]) -> bool {
    let is_one_of = |list: &[&[u8]], kind: &[u8]| list.iter().any(|known| kind.starts_with(known));
    match tag.first() {
        Some(b'A') => tag.strip_prefix(b"ALTER ").is_some_and(|kind| !is_one_of(&WITHOUT_CODE, kind)),
        Some(b'C') => tag
            .strip_prefix(b"CREATE ")
            .is_some_and(|kind| !is_one_of(&WITHOUT_CODE, kind) || is_one_of(&MADE_WITH_CODE, kind)),
        Some(b'I') => tag.starts_with(b"IMPORT FOREIGN SCHEMA"),
        _ => false,
    }
}

/// The objects that the texts of a client's transaction make, by their words.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Makes {
    /// The texts make no objects.
    #[default]
    Nothing,
    /// The texts make temporary objects, and perhaps indexes.
    Temporary,
    /// The texts make other objects, or it is not known.
    Any,
}

impl Makes {
    /// Notes that a text with these marks is sent. The text may be missing, or be only a beginning.
    pub(crate) fn note(&mut self, marks: Marks, text: &[u8]) {
        if !marks.intersects(Marks::READS_LOCALLY.and(Marks::ROUTINES)) || *self == Makes::Any {
            return;
        }
        let traits = traits(text);
        if !text.is_empty() && !traits.marks.intersects(Marks::READS_LOCALLY.and(Marks::ROUTINES)) {
            // It calls a routine.
            return;
        }
        let begins =
            |words: &[u8]| text.get(..words.len()).is_some_and(|own| own.eq_ignore_ascii_case(words));
        let is_temporary =
            traits.marks.contains(Marks::TEMPORARY) || *self == Makes::Temporary && begins(b"create index");
        let is_one = traits.statements == Statements::One && traits.marks.contains(Marks::READS_LOCALLY);
        let drops = traits.statements == Statements::One && begins(b"drop ");
        *self = match is_one && is_temporary {
            true => Makes::Temporary,
            false if drops => *self,
            false => Makes::Any,
        };
    }

    /// Whether a text with these marks, which was noted, may make a lasting table by a query: CREATE TABLE AS, CREATE MATERIALIZED VIEW and
    /// SELECT INTO have the tag of a SELECT. The text may be missing; then it may be one of these.
    pub(crate) fn may_make_by_query(self, marks: Marks, text: &[u8]) -> bool {
        let is_word =
            |name: &[u8]| [&b"create"[..], b"into"].iter().any(|word| name.eq_ignore_ascii_case(word));
        self == Makes::Any
            && marks.contains(Marks::READS_LOCALLY)
            && (text.is_empty() || find_name(text, is_word).is_some())
    }
}

/// The next step after an attempt whose answers no client gets.
pub(crate) enum AttemptOver {
    /// The attempt is not over.
    NotYet,
    /// The client's group is sent again.
    AskAgain,
    /// The transaction that failed is rolled back first.
    RollBack,
    /// The transaction could not be rolled back: the server is given up.
    Stuck,
}

impl Pool {
    /// Handles a CommandComplete. A change counts for other clients when it is committed: at COMMIT, or at the end of a transaction that
    /// has none.
    pub(crate) fn note_command(&mut self, env: &mut Env, id: ServerId, tag: &[u8]) {
        if changes_answers(tag) {
            self.note_change(env, id, tag);
        } else if tag == b"COMMIT\0" {
            // With AND CHAIN, or with a BEGIN in the same message, no ReadyForQuery tells that a transaction is over.
            self.publish_changes(env, id);
        } else if tag.starts_with(b"SELECT ")
            && let Some(server) = self.servers.get_mut(id)
        {
            let changes = &mut server.work.changes;
            changes.add(SchemaChanges::ANSWERS, changes.has(SchemaChanges::BY_QUERY));
        }
    }

    #[cold]
    fn note_change(&mut self, env: &Env, id: ServerId, tag: &[u8]) {
        let may_drop_temporary = DROPS.iter().any(|drop| tag.starts_with(drop));
        let drops = may_drop_temporary && self.drops_lasting(id);
        let makes_temporary = self.makes_temporary(id, tag);
        let makes = makes_routines(tag) && !makes_temporary;
        let Some(server) = self.servers.get_mut(id) else { return };
        let changes = &mut server.work.changes;
        changes.add(SchemaChanges::STATEMENTS, drops || is_schema_change(tag));
        changes.add(SchemaChanges::ROUTINES, makes);
        changes.add(SchemaChanges::ROLES, tag.starts_with(DROP_ROLE));
        let (prepares, commits) = (tag.starts_with(PREPARE_TRANSACTION), tag.starts_with(COMMIT_PREPARED));
        changes.add(SchemaChanges::IN_PREPARED, prepares);
        changes.add(env.shared.prepared_changes(), commits);
        // An object that is dropped may be temporary. But there may be another one of its name, to which the name leads now.
        changes.add(SchemaChanges::ANSWERS, !makes_temporary && !prepares && !commits);
    }

    /// Whether an object that the client of this server drops is not temporary, as far as pgweir knows.
    #[cold]
    fn drops_lasting(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let client = server.state.client().and_then(|id| self.clients.get(id));
        let Some(ClientState::Linked(link)) = client.map(|client| &client.state) else { return false };
        let touches = link.touched.as_ref().is_some_and(|touched| touched.marks.intersects(Marks::TEMPORARY));
        let has = link.pin.as_ref().is_some_and(|pin| pin.reasons.has(Reasons::TEMPORARY));
        self.state.policy.keeps_sessions() && !touches && !has
    }

    /// Whether an object that the client of this server makes is temporary: no text of its transaction makes another one, and the object
    /// leads only to what its own statement names.
    #[cold]
    fn makes_temporary(&self, id: ServerId, tag: &[u8]) -> bool {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        let client = client.and_then(|id| self.clients.get(id)).map(|client| &client.state);
        matches!(client, Some(ClientState::Linked(link)) if link.makes == Makes::Temporary)
            && OFTEN_TEMPORARY.iter().any(|object| tag.starts_with(object))
    }

    /// Publishes the changes of a transaction that is over, at its ReadyForQuery.
    pub(crate) fn note_schema_change(&mut self, env: &mut Env, id: ServerId, status: TxStatus) {
        if status == TxStatus::Idle {
            self.publish_changes(env, id);
        }
    }

    fn publish_changes(&mut self, env: &mut Env, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let changes = std::mem::take(&mut server.work.changes);
        // The statement that makes a table may still be to come.
        let is_awaited = changes.has(SchemaChanges::BY_QUERY) && !server.ledger.is_empty();
        server.work.changes.add(SchemaChanges::BY_QUERY, is_awaited);
        if changes.has(SchemaChanges::IN_PREPARED) {
            // The changes take effect with COMMIT PREPARED, in whichever session.
            env.shared.prepare_changes(changes);
        }
        if changes.has(SchemaChanges::ANSWERS) {
            env.shared.begin_changes();
        }
        if changes.has(SchemaChanges::ROUTINES) {
            env.shared.begin_routines();
        }
        if changes.has(SchemaChanges::STATEMENTS) {
            env.shared.begin_age();
        }
        if changes.has(SchemaChanges::ROLES) {
            env.want(Effect::RolesDropped);
        }
    }

    /// Notes an error of a server that is the first to meet a change that was made elsewhere.
    pub(crate) fn note_shape_error(&mut self, env: &Env, body: &[u8]) {
        if refusal(body) == Some(Refusal::Outdated) {
            env.shared.begin_age();
        }
    }

    /// Handles an error that may be due to parameter types which were taken before a change that was made elsewhere.
    ///
    /// If the text means nothing with these types, a new age begins: other texts are read in another way now, too, and not each of them fails.
    /// This server prepares the statement again for a client that was not told the types.
    ///
    /// A value may also be beyond its type, as text (22003) or in binary form (22P03): if the result is as before, nothing else shows that a
    /// column was made wider. So a client that prepares this text from now on gets it prepared again. A text that is no such value at all
    /// (22P02) is a user's mistake, and too common for that.
    pub(crate) fn note_misfit(&mut self, env: &mut Env, id: ServerId, accepted: Accepted, body: &[u8]) {
        let (Some(client), Some(entry)) = (accepted.owner.client(), accepted.ended) else { return };
        if refusal(body) == Some(Refusal::Unreadable) {
            let statement = match entry.kind {
                Kind::Bind | Kind::DescribeStatement => self.named_by(client, entry.ticket),
                // pgweir has prepared it with the types that the client was told.
                Kind::Parse => entry.statement,
                _ => None,
            };
            let Some(statement) = statement else { return };
            let parse_context = self.parse_context_of(env, client);
            env.statements.enter_age(env.shared.age());
            if is_first_to_fail(env, statement, parse_context) {
                env.shared.begin_age();
            }
            if let Some(server) = self.servers.get_mut(id) {
                server.statements.mark(statement, ServerCopy::Outdated);
            }
        } else if entry.kind == Kind::Bind
            && ErrorFields::parse(body).is_ok_and(|fields| matches!(fields.code(), Some(b"22003" | b"22P03")))
            && let Some(statement) = self.named_by(client, entry.ticket)
        {
            env.statements.retire(statement);
        }
    }

    /// Returns the statement that the client's name with this ticket stands for.
    fn named_by(&self, id: ClientId, ticket: u32) -> Option<StatementId> {
        let names = self.clients.get(id)?.account.statements.as_deref()?;
        names.get(names.name(ticket)?)
    }

    /// Handles a server's error that the client need not see: the statement was outdated, and the exchange runs again. The statement's name
    /// stands for a new statement then. Returns `None` if the client must be told the error.
    #[cold]
    #[inline(never)]
    pub(crate) fn renews_statement(
        &mut self,
        env: &mut Env,
        id: ServerId,
        accepted: Accepted,
        body: &[u8],
    ) -> Option<(ClientId, AfterFailure)> {
        let (Some(client_id), Some(failed)) = (accepted.owner.client(), accepted.ended) else { return None };
        // The statement was prepared again ahead of the client's message, with types of which one is gone.
        let is_prepared_again = failed.kind == Kind::Parse && failed.statement.is_some();
        let failed = match accepted.owner {
            Owner::Client(_) => Some(failed.kind),
            _ if is_prepared_again => None,
            _ => return None,
        };
        // The client would be told of the parameters twice.
        let is_shown = self.servers.get(id)?.incoming.description == Description::Shown;
        let refusal = refusal(body).filter(|_| !is_shown)?;
        if failed.is_none() && refusal == Refusal::Unreadable {
            // The types are those that the client was told: PostgreSQL would say the same of a statement that it has kept.
            return None;
        }
        let parse_context = self.parse_context_of(env, client_id);
        let server = self.servers.get(id)?;
        let client = self.clients.get_mut(client_id)?;
        let (ClientState::Linked(link), account) = (&client.state, &mut client.account) else { return None };
        let is_plain = (link.phase.is_clear()
            || matches!(link.phase, LinkPhase::Exchange(Preamble::Block(Change::Runs(_)))))
            && server.state.is_serving()
            && server.tx == TxStatus::Idle
            && link.streaming == 0;
        let ran = if is_plain { Ran::Nothing } else { Ran::Something };
        let situation =
            Situation { ran, ..Situation::of(ExchangeFailure::PlanOutdated, link, account, server) };
        let decision = after_failure(ExchangeFailure::PlanOutdated, situation);
        if decision == AfterFailure::Told {
            return None;
        }
        let bytes = server.attempt.kept().map(|kept| &*kept.bytes);
        let (bytes, names) = (bytes?, account.statements.as_deref_mut()?);
        let known = |name: &[u8]| {
            let Meaning { statement, knows, .. } = names.named(name)?;
            let statement = env.statements.get(statement)?;
            let is_compared = match knows {
                Knows::Nothing => false,
                Knows::Statement => statement.shape().is_some(),
                Knows::AnotherShape => true,
            };
            Some(Outdated { types: &statement.types, is_compared })
        };
        let name = outdated_name(bytes, failed, known)?;
        let old = names.get(name)?;
        env.statements.enter_age(env.shared.age());
        if is_first_to_fail(env, old, parse_context) {
            env.shared.begin_age();
            env.statements.enter_age(env.shared.age());
        }
        let new = env.statements.take_again(old, parse_context)?;
        names.renew(name, new, env.statements.get(old).and_then(Statement::shape));
        env.statements.give_back_name(old);
        Some((client_id, decision))
    }

    /// Returns the next step after a ReadyForQuery of an attempt whose answers no client gets. If the attempt's transaction failed, it must
    /// be rolled back before the client's group follows.
    #[cold]
    #[inline(never)]
    pub(crate) fn attempt_over(&mut self, id: ServerId, client_id: ClientId) -> AttemptOver {
        let Some(server) = self.servers.get(id) else { return AttemptOver::NotYet };
        let (idle, own) = (server.tx == TxStatus::Idle, server.ledger.is_empty());
        let Some(client) = self.clients.get_mut(client_id) else { return AttemptOver::NotYet };
        let ClientState::Linked(link) = &mut client.state else { return AttemptOver::NotYet };
        let LinkPhase::Again(again) = &mut link.phase else { return AttemptOver::NotYet };
        if !own {
            return AttemptOver::NotYet;
        }
        if idle {
            link.phase = LinkPhase::behind(again.begin.take());
            AttemptOver::AskAgain
        } else if !std::mem::replace(&mut again.rolls_back, true) {
            AttemptOver::RollBack
        } else {
            AttemptOver::Stuck
        }
    }
}

/// Whether a statement that has failed was prepared before with success and is of this age: clients that prepare its text still get it. A
/// client with another search_path than when it was prepared has met no change.
fn is_first_to_fail(env: &Env, id: StatementId, parse_context: Option<ParseContext>) -> bool {
    let was_fine = env
        .statements
        .get(id)
        .is_some_and(|known| known.shape().is_some() && parse_context == Some(known.parse_context));
    was_fine && env.statements.is_of_this_age(id)
}

/// The meaning of an error for a statement that a server has prepared before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Its columns have changed, or the type of a parameter is gone.
    Outdated,
    /// PostgreSQL has read the text again, and the text means nothing with the parameter types that were taken before: the type of a column
    /// has changed, or something is gone. The text may mean something with other types.
    Unreadable,
}

/// Returns what the error says of its statement, if it says something. PostgreSQL's function is named, as the text may be in any language
/// (plancache.c). If the type of a parameter is gone, that is an internal error, with a text that is never translated (lsyscache.c).
fn refusal(body: &[u8]) -> Option<Refusal> {
    let fields = ErrorFields::parse(body).ok()?;
    let gone = |text: &[u8]| text.starts_with(b"cache lookup failed for type ");
    match fields.code()? {
        b"0A000" => (fields.field(b'R') == Some(b"RevalidateCachedQuery")).then_some(Refusal::Outdated),
        b"XX000" => fields.message().is_some_and(gone).then_some(Refusal::Outdated),
        // A missing right is none of the text's. An error in a value, such as the name of a table that is not there, has no place in the text.
        b"42501" => None,
        code => (code.starts_with(b"42") && fields.field(b'P').is_some()).then_some(Refusal::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_make_code_are_known_by_their_tags() {
        for tag in [
            "CREATE FUNCTION",
            "CREATE TABLE",
            "CREATE OPERATOR CLASS",
            "CREATE EVENT TRIGGER",
            "CREATE RULE",
            "CREATE INDEX",
            "ALTER TABLE",
            "ALTER FUNCTION",
            "ALTER ROUTINE",
            "ALTER TYPE",
            "ALTER EXTENSION",
            "IMPORT FOREIGN SCHEMA",
            "CREATE SCHEMA",
        ] {
            assert!(makes_routines(tag.as_bytes()), "{tag}");
        }
        for tag in [
            "CREATE ROLE",
            "CREATE DATABASE",
            "ALTER INDEX",
            "ALTER SYSTEM",
            "COMMIT",
            "COPY 3",
            "INSERT 0 1",
            "SELECT 1",
            "DROP TABLE",
            "",
        ] {
            assert!(!makes_routines(tag.as_bytes()), "{tag}");
        }
    }

    #[test]
    fn tables_that_a_query_makes_are_known_by_the_words_of_their_texts() {
        for (text, expected) in [
            ("create table t as select 1", true),
            ("CREATE MATERIALIZED VIEW v AS SELECT 1", true),
            ("with a as (select 1) select * into t from a", true),
            ("select 1; create table t as select 1", true),
            ("create temp table t as select 1", false),
            ("set local search_path = into_t", false),
            ("set local search_path = 'create'", false),
            ("insert into t values (1)", false),
            ("select 1", false),
        ] {
            let (mut makes, marks) = (Makes::default(), traits(text.as_bytes()).marks);
            makes.note(marks, text.as_bytes());
            assert_eq!(makes.may_make_by_query(marks, text.as_bytes()), expected, "{text}");
        }
        assert!(Makes::Any.may_make_by_query(Marks::READS_LOCALLY, b""), "the text is missing");
    }

    #[test]
    fn temporary_objects_are_told_from_others() {
        let made = |texts: &[&str]| {
            let mut makes = Makes::default();
            texts.iter().for_each(|text| makes.note(traits(text.as_bytes()).marks, text.as_bytes()));
            makes
        };
        assert_eq!(made(&["select 1", "insert into t values (1)"]), Makes::Nothing);
        let temporary = "create temp table t (a int) on commit drop";
        assert_eq!(made(&[temporary, "create index on t (a)", "drop table t", temporary]), Makes::Temporary);
        for texts in [
            &["create table t (a int)"][..],
            &[temporary, "create table u (a int)"],
            &[temporary, "do $$ begin end $$"],
            &["create index on t (a)", temporary],
            &["create temp table t (a int); create table u (a int default f())"],
        ] {
            assert_eq!(made(texts), Makes::Any, "{texts:?}");
        }
    }
}
