//! RESET and DISCARD go back to the client's startup values. A server goes back to its own startup values; so the client's own
//! values follow once the server has said that it did, in the same transaction: they commit and roll back with it. A statement
//! that failed or was cancelled has reset nothing, and nothing follows it. The client's next messages wait for that.
//!
//! No word tells of every reset. So when its server has sent the contents of a session, startup values of the client that are
//! missing there are put back, before the session counts as known. Session pooling does not ask for those contents: there
//! PostgreSQL itself finds what was reset, in the statement that puts it back.

use std::sync::Arc;

use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;

use crate::context::Cx;
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::limits::NAME_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::client::state::{ClientState, Link, UnnamedOnServer};
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Purpose};
use crate::pool::server::asked::Replies;
use crate::pool::server::state::{Server, Stage};
use crate::pool::session::content::{Session, Setting, set_config};
use crate::pool::session::params::quote_literal;
use crate::pool::session::pins::{PutBack, Reasons};

impl Pool {
    /// Puts back the client's startup values if the statement that was just answered with ReadyForQuery has reset them. Returns `true` if
    /// that must wait for a cancel request on its way, which is not meant for it.
    pub(crate) fn restores<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) -> bool {
        let Some(server) = self.servers.get_mut(server_id) else { return false };
        let Some(id) = server.state.served_client() else { return false };
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Linked(link) = &mut client.state else { return false };
        server.resets = has_to_restore(link);
        if !server.resets || link.streaming > 0 || clients_entries(&server.ledger).next().is_some() {
            return false;
        }
        if server.cancels > 0 {
            return true;
        }
        let Some(touched) = &mut link.touched else { return false };
        if server.tx == TxStatus::Failed {
            // What was committed before the transaction failed may have reset these.
            touched.restore.retain(|(_, how)| *how == PutBack::IfReset);
            return false;
        }
        server.resets = false;
        let mut names = std::mem::take(&mut touched.restore);
        let reports = |name: &[u8]| server.params.get(cx.env.tracked.position(name)?);
        let startup = client.account.startup.clone();
        let Some(startup) = startup else { return false };
        let is_in_block = server.tx != TxStatus::Idle;
        names.retain(|(name, how)| match how {
            PutBack::Session => true,
            PutBack::Transaction => is_in_block,
            // What a server reports and has as it was needs no look.
            PutBack::IfReset => reports(name) != startup.get(name),
        });
        let statements = put_back(&names, &startup);
        if statements.is_empty() {
            return false;
        }
        if self.state.policy.keeps_sessions() && !is_in_block {
            // A simple query ends the unnamed statement.
            link.unnamed = UnnamedOnServer::NotOwn;
            self.send_hidden(cx, server_id, Purpose::Restore, &statements.concat());
        } else {
            // It would also end the unnamed portal of the transaction; and in session pooling pgweir could not prepare that
            // statement again.
            self.send_hidden_aside(cx, server_id, Purpose::Restore, &statements);
        }
        false
    }

    /// Puts back the client's startup values that are missing in the session's contents: they were reset without a word that tells it, or
    /// together with a statement that failed. Returns `true` if there are any; then they are put back first.
    pub(crate) fn restores_startup<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        (reasons, answer): (Reasons, &Replies),
    ) -> bool {
        let Some(client) = self.clients.get(client_id) else { return false };
        let ClientState::Linked(link) = &client.state else { return false };
        let startup = client.account.startup.clone();
        let Some(startup) = startup else { return false };
        let Some(server) = self.servers.get(id) else { return false };
        let (mut params, mut session) = ((*server.params).clone(), (*server.session).clone());
        for Setting { name, value } in startup.settings() {
            match cx.env.tracked.position(name).filter(|_| self.state.is_tracked(&cx.env.tracked, name)) {
                // A server that has the client's value as its own was told nothing, and does not list it. Only a change from
                // another value can be a reset; a change from that value may have been rolled back.
                Some(position) if !answer.holds(name) && link.changed.tells_of_reset(position) => {
                    params.set(position, value);
                }
                Some(_) => {}
                None if session.get(name).is_none() => session.set(name, value),
                _ => {}
            }
        }
        if !self.send_session_sync(cx, id, &params, &session, Purpose::Audit) {
            return false;
        }
        let restored = self.state.known.sessions.share(session);
        if let Some(auditing) = self.servers.get_mut(id).and_then(|server| server.state.auditing_mut()) {
            auditing.stage = Stage::Restoring(reasons);
            auditing.restored = Some(restored);
        }
        true
    }

    /// Handles the answer after the client's startup values were put back, or could not be. Returns the reasons for which the client keeps
    /// its server.
    pub(crate) fn startup_restored<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        mut reasons: Reasons,
    ) -> Reasons {
        let Some(server) = self.servers.get_mut(id) else { return reasons };
        let Some(auditing) = server.state.auditing_mut() else { return reasons };
        let failed = std::mem::take(&mut auditing.answer).failed;
        if let Some((_, text)) = failed {
            reasons = reasons.with(Reasons::UNKNOWN);
            let name = self.server_log_name(&self.servers[id]);
            cx.log(Level::Warning, &format!("{name} does not go back to startup parameters: {text}"));
        } else if let Some(session) = auditing.restored.take() {
            server.session = session;
            if let Some(account) = self.clients.get_mut(client_id).map(|client| &mut client.account) {
                account.session = Arc::clone(&server.session);
            }
        }
        reasons
    }

    /// Notes that a statement of the client failed: the settings of its transaction may be gone, and a RESET or DISCARD in the same group
    /// of messages has no effect.
    pub(crate) fn statement_failed(&mut self, id: ClientId, server_id: ServerId) {
        self.doubt_session(id);
        let Some(server) = self.servers.get(server_id) else { return };
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        if let Some(touched) = link.touched.as_mut().filter(|touched| !touched.restore.is_empty())
            && clients_entries(&server.ledger).skip_while(|entry| !entry.kind.ends_group()).nth(1).is_none()
        {
            if self.state.policy.keeps_sessions() {
                // The audit finds what a COMMIT before the failure made good.
                touched.restore.clear();
            }
            touched.restore.iter_mut().for_each(|(_, how)| *how = PutBack::IfReset);
        }
    }
}

/// Returns the statements that put values back.
fn put_back(names: &[(Box<[u8]>, PutBack)], startup: &Session) -> Vec<Vec<u8>> {
    let values = |if_reset: bool| {
        names.iter().filter_map(move |(name, how)| {
            let value = startup.get(name)?;
            ((*how == PutBack::IfReset) == if_reset).then_some((&**name, value, *how))
        })
    };
    let mut statements: Vec<Vec<u8>> =
        values(false).map(|(name, value, how)| set(name, value, how == PutBack::Transaction)).collect();
    let mut pairs = Vec::new();
    for (name, value, _) in values(true) {
        pairs.extend_from_slice(if pairs.is_empty() { b"(" } else { b",(" });
        quote_literal(&mut pairs, name);
        pairs.push(b',');
        quote_literal(&mut pairs, value);
        pairs.push(b')');
    }
    if !pairs.is_empty() {
        statements.push([PUT_BACK, &pairs, PUT_BACK_END].concat());
    }
    statements
}

/// Returns a SET, which takes no snapshot: SET TRANSACTION may still follow. (A query must not come before it.) Only two things need
/// `set_config`: a list of names that must be quoted, and a name that PostgreSQL would cut as an identifier.
fn set(name: &[u8], value: &[u8], local: bool) -> Vec<u8> {
    let is_list = LISTS.iter().any(|list| list.eq_ignore_ascii_case(name));
    let is_name = |item: &[u8]| {
        item.first().is_some_and(|first| !first.is_ascii_digit())
            && item.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'_')
    };
    // With any other blanks, SHOW would not say the same.
    let mut items: Vec<&[u8]> = vec![value];
    if is_list {
        items = value.split(|byte| *byte == b',').collect();
        items.iter_mut().skip(1).for_each(|item| *item = item.strip_prefix(b" ").unwrap_or(b""));
    }
    let mut text = Vec::new();
    if name.len() > NAME_BYTES_MAX || (is_list && !items.iter().all(|item| is_name(item))) {
        set_config(&mut text, std::iter::once((name, Some(value), local)));
        return text;
    }
    text.extend_from_slice(if local { b"SET LOCAL " } else { b"SET " });
    pgweir_sql::quote_identifier(&mut text, name);
    for (at, item) in items.iter().enumerate() {
        text.push(if at == 0 { b'=' } else { b',' });
        quote_literal(&mut text, item);
    }
    text.push(b';');
    text
}

/// The parameters whose values are lists of names (`GUC_LIST_QUOTE`): SET takes the names one by one.
const LISTS: [&[u8]; 4] =
    [b"search_path", b"temp_tablespaces", b"local_preload_libraries", b"session_preload_libraries"];

/// The query that sets values that are no longer the session's own (`pg_settings.source`). Custom settings and roles are in no list: an
/// empty value and the role `none` are what a RESET leaves of them.
const PUT_BACK: &[u8] = b"SELECT pg_catalog.set_config(began.name, began.value, false) FROM (VALUES ";
const PUT_BACK_END: &[u8] = b") AS began(name, value) LEFT JOIN pg_catalog.pg_settings AS now \
ON pg_catalog.lower(now.name) OPERATOR(pg_catalog.=) began.name \
WHERE CASE WHEN now.name IS NULL \
THEN COALESCE(pg_catalog.current_setting(began.name, true), '') OPERATOR(pg_catalog.=) ANY ('{\"\",none}'::pg_catalog.text[]) \
ELSE now.source OPERATOR(pg_catalog.<>) 'session' END;";

/// Whether startup values must be put back.
#[inline]
pub(crate) fn has_to_restore(link: &Link) -> bool {
    link.touched.as_ref().is_some_and(|touched| !touched.restore.is_empty())
}

/// Whether the next message must wait until startup values are put back, because the group that reset them has ended. The data of a COPY
/// belongs to its group.
#[inline]
pub(crate) fn waits_for_restore(link: &Link, server: &Server, next: &[u8]) -> bool {
    has_to_restore(link) && is_reset(link, server, next)
}

#[cold]
#[inline(never)]
fn is_reset(link: &Link, server: &Server, next: &[u8]) -> bool {
    let ledger = &server.ledger;
    // Nothing can be put back in a failed transaction; its end comes next.
    (server.tx != TxStatus::Failed || !ledger.is_empty())
        && link.streaming == 0
        && !matches!(next.first(), Some(&(tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL)))
        && match clients_entries(ledger).last() {
            Some(entry) => entry.kind.ends_group(),
            // A Flush may have brought all answers of a group whose Sync is still to come.
            None => ledger.is_between_groups(),
        }
}

/// Returns the entries for clients' messages, without the end of a COPY's data, which has no separate answer.
fn clients_entries(ledger: &Ledger) -> impl Iterator<Item = &Entry> {
    ledger.of_clients().filter(|entry| entry.kind != Kind::CopyEnd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(values: &[(&str, &str, PutBack)]) -> Vec<String> {
        let mut startup = Session::default();
        values.iter().for_each(|(name, value, _)| startup.set(name.as_bytes(), value.as_bytes()));
        let names: Vec<_> = values.iter().map(|(name, _, how)| (name.as_bytes().into(), *how)).collect();
        put_back(&names, &startup).into_iter().map(|text| String::from_utf8(text).expect("a text")).collect()
    }

    #[test]
    fn what_was_certainly_reset_needs_no_query() {
        let values = [
            ("datestyle", "German, DMY", PutBack::Session),
            ("work_mem", "5MB", PutBack::Transaction),
            ("a.b", "it's", PutBack::Session),
        ];
        let wanted =
            ["SET \"datestyle\"='German, DMY';", "SET LOCAL \"work_mem\"='5MB';", "SET \"a.b\"='it''s';"];
        assert_eq!(put(&values), wanted);
    }

    #[test]
    fn a_list_of_names_is_set_name_by_name_or_by_a_query() {
        let path = |value| put(&[("search_path", value, PutBack::Session)]).concat();
        assert_eq!(path("public"), "SET \"search_path\"='public';");
        assert_eq!(path("public, pg_catalog"), "SET \"search_path\"='public','pg_catalog';");
        for value in ["\"$user\", public", "public,pg_catalog", "Public", "", "public, ", "1a", "a b"] {
            let wanted = format!("SELECT pg_catalog.set_config('search_path','{value}',false);");
            assert_eq!(path(value), wanted);
        }
    }

    #[test]
    fn a_name_that_an_identifier_cannot_hold_is_set_by_a_query() {
        let put = |name: String| put(&[(&name, "x", PutBack::Session)]).concat();
        assert_eq!(put(format!("a.{}", "b".repeat(61))), format!("SET \"a.{}\"='x';", "b".repeat(61)));
        assert!(put(format!("a.{}", "b".repeat(62))).starts_with("SELECT pg_catalog.set_config("));
    }

    #[test]
    fn what_may_have_been_reset_is_looked_for() {
        let texts = put(&[("work_mem", "5MB", PutBack::IfReset), ("a.b", "x", PutBack::Session)]);
        assert_eq!(texts[0], "SET \"a.b\"='x';");
        assert!(texts[1].contains("FROM (VALUES ('work_mem','5MB')) AS began"), "{texts:?}");
    }
}
