//! The tables that a statement depends on, asked of the server that has just run the statement, in the session of its client: PostgreSQL reads the
//! statement in a transaction, tells which tables it has locked for that, and rolls back. Nothing is planned, executed or written. It happens
//! when the client has left the server, before another client gets it.

use std::sync::Arc;

use pgweir_settings::PoolMode;
use pgweir_wire::frontend::{self, Target};

use crate::context::{Cx, Effect};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::cache::wal::analyses::Analysis;
use crate::pool::cache::wal::catalog::numbers;
use crate::pool::relay::hidden::{ASIDE, encode_aside};
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};
use crate::pool::server::asked::{Replies, ServerQuestion};

/// A statement that a server is to be asked about.
#[derive(Default)]
pub(crate) struct AnalysisWanted {
    /// The client that has executed the statement.
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

/// The start of the server, whether it is a standby, and the relations that the session has locked. `pg_lock_status` itself locks none.
const LOCKS: &[u8] = b"SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8::pg_catalog.text, \
    pg_catalog.pg_is_in_recovery()::pg_catalog.text, \
    (SELECT pg_catalog.string_agg(l.relation::pg_catalog.text, ',') FROM pg_catalog.pg_lock_status() AS l \
    WHERE l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid() AND l.locktype OPERATOR(pg_catalog.=) 'relation'::pg_catalog.text)";

impl Pool {
    /// Asks a server that its client has given back about the client's last statement, if that is to be analysed, and which PostgreSQL server it
    /// is, if that is not known. Returns whether it is asked.
    pub(crate) fn analyses<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        (id, client): (ServerId, ClientId),
        made_in: PoolMode,
    ) -> bool {
        cx.env.cache.is_some() && self.begin_analysis(cx, (id, client), made_in)
    }

    #[cold]
    fn begin_analysis<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        (id, client): (ServerId, ClientId),
        made_in: PoolMode,
    ) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        let followed = cx.env.followed.opened(&self.state.database);
        let Some(opened) = followed.and_then(|followed| followed.number()) else { return false };
        let wanted = match server.incoming.analysis.take().filter(|wanted| wanted.client == client) {
            Some(wanted) if wanted.opened == opened => wanted,
            // It is only to tell which server it is.
            _ if server.at.node.is_none() && server.branch.is_primary() => {
                Box::new(AnalysisWanted { text: b"SELECT 1"[..].into(), opened, ..AnalysisWanted::default() })
            }
            _ => return false,
        };
        let main = &cx.env.rules.config.main;
        let is_reset = main.server_reset_query_always && !main.server_reset_query.is_empty();
        let is_sound = server.is_at_rest() && server.opened.is_plain() && server.cancels == 0;
        let is_kept = made_in == PoolMode::Session || is_reset;
        if is_kept || !is_sound || self.reason_to_close(cx.env, id).is_some() {
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

    /// Takes the answer: the statement's tables, and which PostgreSQL server this is.
    pub(crate) fn analysed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        wanted: AnalysisWanted,
        answer: &Replies,
    ) {
        let found = read(answer);
        if let Some((node, _)) = &found
            && let Some(server) = self.servers.get_mut(id)
        {
            server.at.node = Some(*node);
            let state = cx.env.followed.state(&self.state.database);
            if state.and_then(|state| state.stream()).is_some_and(|stream| stream.node() != *node) {
                cx.env.want(Effect::OtherNode(Arc::clone(&self.state.database)));
            }
        }
        if let Some(followed) = cx.env.followed.opened(&self.state.database)
            && followed.number() == Some(wanted.opened)
        {
            let tables = found.map(|(_, tables)| {
                if followed.catalog().follows(&tables) {
                    Analysis::Tables(tables)
                } else {
                    Analysis::NotFollowed
                }
            });
            followed.analyses.take(wanted.key, tables);
        }
        self.free_server(cx, id);
    }
}

/// Reads the answer; `None` if the server has refused it, or is a standby.
fn read(answer: &Replies) -> Option<(i64, Arc<[u32]>)> {
    if answer.failed.is_some() {
        return None;
    }
    let [row] = answer.rows.as_slice() else { return None };
    let [node, recovery, tables] = row.as_slice() else { return None };
    let node = std::str::from_utf8(node.as_deref()?).ok()?.parse().ok()?;
    let tables = numbers(tables.as_deref().unwrap_or_default())?;
    (recovery.as_deref() == Some(&b"false"[..])).then(|| (node, tables.into()))
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
        assert_eq!(read(&answer(&[Some("17"), Some("false"), Some("5,6")])), Some((17, tables)));
        assert_eq!(
            read(&answer(&[Some("17"), Some("false"), None])),
            Some((17, [].into())),
            "no table is read"
        );
        assert_eq!(read(&answer(&[Some("17"), Some("true"), Some("5,6")])), None);
        assert_eq!(read(&answer(&[Some("17"), Some("false"), Some("5,x")])), None);
        assert_eq!(read(&answer(&[None, Some("false"), Some("5")])), None);
        assert_eq!(read(&Replies::default()), None);
    }
}
