//! The tables that a statement depends on, asked of the server that has just run the statement, in the session of its client: PostgreSQL reads the
//! statement in a transaction, tells which tables it has locked for that, and rolls back. Nothing is planned, executed or written. It happens
//! when the client has left the server, before another client gets it.

use std::sync::Arc;

use pgweir_wire::frontend::{self, Target};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::cache::wal::analyses::Analysis;
use crate::pool::cache::wal::catalog::numbers;
use crate::pool::cache::wal::reads::Reads;
use crate::pool::relay::hidden::{ASIDE, encode_aside};
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};
use crate::pool::server::asked::{Replies, ServerQuestion};

/// A statement that a server is to be asked about.
#[derive(Default)]
pub(crate) struct AnalysisWanted {
    /// The client that has sent the statement.
    pub(crate) client: ClientId,
    /// The statement's reading, types and text.
    pub(crate) key: Box<[u8]>,
    pub(crate) text: Box<[u8]>,
    /// The types of its parameters, four bytes each.
    pub(crate) types: Box<[u8]>,
    /// The number that identifies what is kept of the database (`News::Opened`). The answer counts only as long as it is the same.
    pub(crate) opened: u64,
}

/// The name under which the statement is prepared for a moment.
const NAME: &[u8] = b"PGWEIR_CACHE";

/// Begins the transaction. A lock that another session holds is hardly waited for.
const BEGIN: &[u8] = b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL lock_timeout = 100; SET LOCAL statement_timeout = 1000";

/// Whether the server is a standby, the relations that the session has locked, and the types of the statement's parameters. `pg_lock_status` itself
/// locks none.
const LOCKS: &[u8] = b"SELECT pg_catalog.pg_is_in_recovery()::pg_catalog.text, \
    (SELECT pg_catalog.string_agg(l.relation::pg_catalog.text, ',') FROM pg_catalog.pg_lock_status() AS l \
    WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND l.locktype OPERATOR(pg_catalog.=) 'relation'::pg_catalog.text), \
    (SELECT p.parameter_types::pg_catalog.oid[]::pg_catalog.text FROM pg_catalog.pg_prepared_statement() AS p \
    WHERE p.name OPERATOR(pg_catalog.=) 'PGWEIR_CACHE'::pg_catalog.text)";

impl Pool {
    /// Asks a released server about the last statement of the client that has left it, if that statement is to be analysed. Returns whether the
    /// server is asked.
    pub(crate) fn analyses<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        let Some(wanted) = server.incoming.analysis.take() else { return false };
        let followed = cx.env.followed.opened(&self.state.database);
        let opened = followed.and_then(|followed| followed.number());
        let is_sound = server.is_at_rest() && server.opened.is_plain() && server.cancels == 0;
        if opened != Some(wanted.opened) || !is_sound || self.reason_to_close(cx.env, id).is_some() {
            return false;
        }
        cx.env.scratch.clear();
        let out = &mut cx.env.scratch;
        let mut kinds = vec![Kind::Query, Kind::Parse];
        frontend::encode_query(out, BEGIN);
        frontend::encode_parse(out, NAME, &wanted.text, &wanted.types);
        encode_aside(out, LOCKS);
        frontend::encode_sync(out);
        kinds.extend(ASIDE);
        frontend::encode_query(out, b"ROLLBACK");
        // If the statement could be read, but not the locks, the statement is still there.
        frontend::encode_close(out, Target::Statement, NAME);
        frontend::encode_sync(out);
        kinds.extend([Kind::Sync, Kind::Query, Kind::Close, Kind::Sync]);
        self.begin_question(cx, id, ServerQuestion::Tables(wanted));
        let Some(server) = self.servers.get_mut(id) else { return true };
        for kind in kinds {
            server.ledger.push(Entry::new(Owner::Hidden(Purpose::Question), kind));
        }
        cx.driver.send(server.conn, &cx.env.scratch);
        self.server_unpause(cx, id);
        true
    }

    /// Takes the answer: the statement's tables.
    pub(crate) fn analysed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        wanted: AnalysisWanted,
        answer: &Replies,
    ) {
        let found = read(answer);
        if let Some(followed) = cx.env.followed.opened(&self.state.database)
            && followed.number() == Some(wanted.opened)
        {
            let catalog = followed.catalog();
            let found = found.map(|(tables, types)| {
                if catalog.follows(&tables) {
                    let columns = catalog.key_of(&tables);
                    Analysis::Reads(Arc::new(Reads::of(tables, columns, &wanted.text, &types)))
                } else {
                    Analysis::NotFollowed
                }
            });
            followed.analyses.take(wanted.key, found);
        }
        self.free_server(cx, id);
    }
}

/// Reads the answer: the tables, and the types of the parameters. `None` if the server has refused it, or is a standby.
fn read(answer: &Replies) -> Option<(Arc<[u32]>, Vec<u32>)> {
    if answer.failed.is_some() {
        return None;
    }
    let [row] = answer.rows.as_slice() else { return None };
    let [recovery, tables, types @ ..] = row.as_slice() else { return None };
    let tables = numbers(tables.as_deref().unwrap_or_default())?;
    // Without the types, no parameter is the key of a row.
    let types = types.first().and_then(|types| types.as_deref()).unwrap_or(b"{}");
    let types = numbers(types.strip_prefix(b"{")?.strip_suffix(b"}")?)?;
    (recovery.as_deref() == Some(&b"false"[..])).then(|| (tables.into(), types))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(row: &[Option<&str>]) -> Replies {
        let row = row.iter().map(|column| column.map(|text| Box::from(text.as_bytes()))).collect();
        Replies { rows: vec![row], ..Replies::default() }
    }

    #[test]
    fn only_a_whole_answer_of_a_primary_counts() {
        let tables: Arc<[u32]> = [5, 6].into();
        let typed = answer(&[Some("false"), Some("5,6"), Some("{23,2950}")]);
        assert_eq!(read(&typed), Some((Arc::clone(&tables), vec![23, 2950])));
        assert_eq!(read(&answer(&[Some("false"), Some("5,6"), None])), Some((tables, vec![])));
        assert_eq!(read(&answer(&[Some("false"), None, Some("{}")])), Some(([].into(), vec![])), "no table");
        assert_eq!(read(&answer(&[Some("false"), Some("5"), Some("23")])), None);
        assert_eq!(read(&answer(&[Some("true"), Some("5,6")])), None);
        assert_eq!(read(&answer(&[Some("false"), Some("5,x")])), None);
        assert_eq!(read(&answer(&[None, Some("5")])), None);
        assert_eq!(read(&Replies::default()), None);
    }
}
