//! The contents of a session when a client's transaction is over: the server is asked, and its answer alone counts, whether
//! or not the statements succeeded.
//!
//! A transaction that only set settings by name is asked for these; after any other mark everything is asked for. The
//! statements run as the client's role and under its settings, so every name is qualified, operators too.

use std::sync::Arc;

use pgweir_settings::SequenceAffinity;
use pgweir_sql::Marks;
use pgweir_wire::backend::DataRow;
use pgweir_wire::error::SqlState;

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::limits::{AUDIT_ATTEMPTS_MAX, CUSTOM_SETTINGS_MAX, SERVER_MESSAGE_BYTES_MAX, SESSION_BYTES_MAX};
use crate::pool::Pool;
use crate::pool::catalog::routines;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::schema_version::Makes;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::own_settings::{Asks, plan_as_usual, question};
use crate::pool::server::asked::Replies;
use crate::pool::server::state::{Auditing, Probe, Question, Stage};
use crate::pool::session::content::{Prepared, Session};
use crate::pool::session::params::quote_literal;
use crate::pool::session::pins::{Reasons, Sets, Told, Touched};

use crate::pool::session::recall::Recalled;
use crate::stats::rare_path::RarePath;

/// The query for everything that a session can hold, with one row for each object: its kind, its name, its value.
///
/// Every object in a session's temporary schema depends on it in `pg_depend`: that is how PostgreSQL itself finds it (`RemoveTempRelations`
/// in `namespace.c`). Outside of a transaction only held cursors are left in `pg_cursors`.
///
/// In rows about settings that the question itself has set, the value is what RESET goes back to (`relay/own_settings.rs`).
pub(crate) const EVERYTHING: &[u8] = b"SELECT 's', name, CASE WHEN name OPERATOR(pg_catalog.=) ANY (\
'{statement_timeout,lock_timeout,jit,transaction_timeout}'::pg_catalog.text[]) THEN reset_val \
ELSE pg_catalog.current_setting(name) END FROM pg_catalog.pg_settings \
WHERE source OPERATOR(pg_catalog.=) 'session' \
UNION ALL SELECT 's', 'role', pg_catalog.current_setting('role') \
UNION ALL SELECT 's', 'session_authorization', pg_catalog.current_setting('session_authorization') \
UNION ALL SELECT 'p', name, statement FROM pg_catalog.pg_prepared_statements WHERE from_sql \
UNION ALL SELECT 'c', name, NULL FROM pg_catalog.pg_cursors \
UNION ALL SELECT 'l', channel.name, NULL FROM pg_catalog.pg_listening_channels() AS channel(name) \
UNION ALL SELECT 't', NULL, NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_depend \
WHERE refclassid OPERATOR(pg_catalog.=) '2615' AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema()) \
UNION ALL SELECT 'a', NULL, NULL WHERE EXISTS (SELECT FROM pg_catalog.pg_locks \
WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()) \
UNION ALL SELECT 'r', slot_name::pg_catalog.text, NULL FROM pg_catalog.pg_replication_slots \
WHERE temporary AND active_pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()";

/// Custom settings that a new connection of a user begins with: the values of ALTER ROLE and ALTER DATABASE, the nearest first
/// (`process_settings` in `postinit.c`). No list of PostgreSQL shows the source of such a setting's value.
const DEFAULTS: &[u8] = b" UNION ALL SELECT 'd', given.name, given.value FROM (\
SELECT DISTINCT ON (1) pg_catalog.lower(pg_catalog.split_part(item, '=', 1)) AS name, \
pg_catalog.substr(item, pg_catalog.strpos(item, '=') OPERATOR(pg_catalog.+) 1) AS value \
FROM pg_catalog.pg_db_role_setting AS wide, pg_catalog.unnest(wide.setconfig) AS item \
WHERE wide.setdatabase OPERATOR(pg_catalog.=) ANY (SELECT '0'::pg_catalog.oid UNION ALL SELECT oid FROM pg_catalog.pg_database \
WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) \
AND wide.setrole OPERATOR(pg_catalog.=) ANY (SELECT '0'::pg_catalog.oid UNION ALL SELECT oid FROM pg_catalog.pg_roles \
WHERE rolname OPERATOR(pg_catalog.=) ";
const DEFAULTS_END: &[u8] =
    b") AND pg_catalog.strpos(pg_catalog.split_part(item, '=', 1), '.') OPERATOR(pg_catalog.>) 0 \
ORDER BY 1, wide.setrole OPERATOR(pg_catalog.=) '0', wide.setdatabase OPERATOR(pg_catalog.=) '0') AS given";

/// The part of the query for custom settings, each with its kind. They are asked for by name, as no list of PostgreSQL shows them. If a
/// value is longer than a session may be, the answer has only the name.
const CUSTOM: &[u8] = b" UNION ALL SELECT CASE WHEN pg_catalog.octet_length(custom.value) OPERATOR(pg_catalog.>) '262144' \
THEN 'o' ELSE custom.kind END, custom.name, CASE WHEN pg_catalog.octet_length(custom.value) OPERATOR(pg_catalog.<=) '262144' \
THEN custom.value END FROM (SELECT named.kind, named.name, pg_catalog.current_setting(named.name, true) AS value FROM (VALUES ";
const CUSTOM_END: &[u8] = b") AS named(kind, name)) AS custom";
const _: () = assert!(SESSION_BYTES_MAX == 262_144, "the question names this number");

/// A query without rows. The questions about the catalog are a separate statement, with settings of their own, to which the parts for the
/// session are added.
const NO_ROUTINE: &[u8] = b"SELECT 'f', NULL, NULL WHERE false";

/// The part of the query that tells whether anything is prepared through the protocol.
const BY_PROTOCOL: &[u8] = b" UNION ALL SELECT 'h', NULL, NULL \
WHERE EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql)";

/// The knowledge of a client's session when its transaction is over.
pub(crate) enum SessionAtRest {
    /// The whole session is known. `stays` is true if the server stays with the client.
    Known { stays: bool },
    /// The whole session is known without asking the server. The client keeps the server for these reasons, if there are any.
    Recalled(Reasons),
    /// The session is not known as a whole: the server must be asked this.
    Ask(Box<Auditing>),
}

/// The result of an audit.
pub(crate) struct Audited {
    /// The reasons for which the client keeps the server, as far as the session alone tells.
    pub(crate) reasons: Reasons,
    /// Whether the server told everything that the session holds.
    pub(crate) is_told: bool,
    pub(crate) answer: Replies,
}

/// The settings that each transaction has for itself. Their rows in `pg_settings` are about the last transaction.
const OF_TRANSACTIONS: [&[u8]; 3] =
    [b"transaction_isolation", b"transaction_read_only", b"transaction_deferrable"];

impl Pool {
    /// Returns what is known of the session of a client whose transaction is over, and whether the server must be asked first.
    pub(crate) fn session_at_rest<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) -> SessionAtRest {
        let Some(client) = self.clients.get_mut(client_id) else {
            return SessionAtRest::Known { stays: false };
        };
        let ClientState::Linked(link) = &mut client.state else {
            return SessionAtRest::Known { stays: false };
        };
        let pinned = link.pin.is_some();
        link.reads_locally = false;
        link.makes = Makes::Nothing;
        let Some(mut touched) = link.touched.take() else { return SessionAtRest::Known { stays: pinned } };
        let sticky = link.pin.as_ref().map_or(Reasons::NONE, |pin| pin.reasons.only(Reasons::LASTING));
        let sticky = match touched.told {
            Told::Known => sticky,
            Told::Cleared => sticky.without(Reasons::UNKNOWN_NAMES),
            Told::Unknown => sticky.with(Reasons::UNKNOWN_NAMES),
        };
        let sticky = sticky.with(Reasons::of_marks(touched.marks));
        let reshaped =
            touched.reshaped || link.pin.as_ref().is_some_and(|pin| pin.reasons.has(Reasons::PREPARED));
        let prepares = touched.marks.intersects(Marks::PREPARED.and(Marks::DISCARDS));
        let sets = std::mem::take(&mut touched.sets);
        let is_unsure = matches!(sets, Sets::Unsure);
        // pgweir keeps values in the encoding that the client had. If the client changes it, the server is asked for them again.
        let encoding = cx.env.tracked.position(b"client_encoding");
        let is_recoded = encoding.is_some_and(|position| link.changed.has(position));
        touched.more |= is_recoded && !client.account.session.has_ascii_values();
        let Some((question, names)) = self.question(cx.env, *touched, (pinned, is_unsure)) else {
            return SessionAtRest::Known { stays: pinned };
        };
        let mut probe = None;
        if let (Question::Values, Sets::Certain(sets)) = (question, sets)
            && !sets.is_empty()
        {
            self.state.known.note_settable(names.iter());
            match self.recall(cx.env, id, client_id, &names, sets) {
                Recalled::Same => return SessionAtRest::Known { stays: false },
                Recalled::Kept(reasons) => return SessionAtRest::Recalled(reasons),
                Recalled::Unknown(worth) => probe = worth,
            }
        }
        SessionAtRest::Ask(Box::new(Auditing {
            question,
            names,
            sticky,
            reshaped,
            prepares,
            probe,
            ..Auditing::new(Stage::Asking)
        }))
    }

    /// Returns the question for the server, and the settings that it asks for by name; `None` if the server reports by itself all that was
    /// touched.
    ///
    /// A setting's value does not tell whether it was set in this session. If that is not certain, only settings that this user is known to
    /// be able to set, and so to take back, are asked for by name.
    fn question(
        &self,
        env: &Env,
        touched: Touched,
        (pinned, is_unsure): (bool, bool),
    ) -> Option<(Question, Vec<Box<[u8]>>)> {
        let Touched { marks, mut names, more, .. } = touched;
        let marks = marks.without(Marks::READS_LOCALLY);
        if marks.is_empty() {
            return None;
        }
        let pool = &self.state;
        names.retain(|name| !pool.is_tracked(&env.tracked, name));
        let known = || names.iter().all(|name| name.contains(&b'.') || pool.known.settable.contains(name));
        if more || pinned || marks != Marks::SETTINGS || is_unsure && !known() {
            return Some((Question::Everything, names));
        }
        (!names.is_empty()).then_some((Question::Values, names))
    }

    /// Sends the question to the server that is being audited.
    pub(crate) fn ask_session<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let Some(auditing) = server.state.auditing_mut() else { return };
        server.active_us = cx.env.now.mono_us;
        auditing.attempts += 1;
        self.state.numbers.continuity.audits += 1;
        auditing.answer = Replies::default();
        if auditing.question == Question::Values {
            let (names, version) = (auditing.names.clone(), server.at.version);
            let probe = auditing.probe.as_ref().map(|probe| probe.set.probe());
            let text = question(version, Asks::Values(&names), &values_of(&names));
            let probe = probe.map(|text| question(version, Asks::Values(&names), &text));
            self.send_hidden(cx, id, Purpose::Audit, &text);
            if let Some(text) = probe {
                self.send_hidden(cx, id, Purpose::Probe, &text);
            }
            return;
        }
        let own = auditing.names.iter().filter(|name| name.contains(&b'.')).cloned().collect::<Vec<_>>();
        let text = self.everything_of(cx.env, id, &own);
        self.send_hidden(cx, id, Purpose::Audit, &text);
    }

    /// Returns the statement that asks for everything a session holds. The settings `names` are in the answer whether or not they are set.
    pub(crate) fn everything_of(&mut self, env: &Env, id: ServerId, names: &[Box<[u8]>]) -> Vec<u8> {
        let server = &self.servers[id];
        let pool = &mut self.state;
        let due = pool.routines.is_due(env.now.mono_us, env.shared.routines());
        let mut text = EVERYTHING.to_vec();
        // The settings that it held, and those that routines may have set: no list of PostgreSQL shows them.
        let held = server.session.settings().map(|setting| &setting.name).filter(|name| name.contains(&b'.'));
        let mut others: Vec<_> =
            held.chain(pool.routines.settings()).filter(|name| !names.contains(name)).collect();
        others.sort_unstable();
        others.dedup();
        if due || !others.is_empty() || !names.is_empty() {
            text.extend_from_slice(DEFAULTS);
            quote_literal(&mut text, pool.user.as_bytes());
            text.extend_from_slice(DEFAULTS_END);
        }
        let asked = names.iter().map(|name| (b'm', name)).chain(others.into_iter().map(|name| (b'n', name)));
        let mut opening = CUSTOM;
        for (kind, name) in asked {
            text.extend_from_slice(std::mem::replace(&mut opening, b","));
            text.extend_from_slice(&[b'(', b'\'', kind, b'\'', b',']);
            quote_literal(&mut text, name);
            text.push(b')');
        }
        if opening != CUSTOM {
            text.extend_from_slice(CUSTOM_END);
        }
        let client = self.servers[id].state.client().and_then(|client| self.clients.get(client));
        if client.is_some_and(Client::has_exposed_names) {
            text.extend_from_slice(BY_PROTOCOL);
        }
        let version = self.servers[id].at.version;
        if due {
            text.push(b';');
            plan_as_usual(&mut text, version);
            text.extend_from_slice(NO_ROUTINE);
            text.extend_from_slice(routines::SETTINGS_QUESTION);
            if self.state.policy.sequences != SequenceAffinity::Off {
                text.extend_from_slice(routines::QUESTION);
            }
        }
        question(version, Asks::Session, &text)
    }

    /// Takes a row of the answer to an audit. If the client has left meanwhile, nothing reads the row.
    pub(crate) fn audit_row(&mut self, id: ServerId, row: &DataRow<'_>, bytes: usize) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some(auditing) = server.state.auditing_mut() {
            auditing.answer.add(row, bytes, auditing.question == Question::Everything);
        }
    }

    /// Takes the row that tells the effect of a SET statement.
    pub(crate) fn probe_row(&mut self, id: ServerId, row: &DataRow<'_>) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some(auditing) = server.state.auditing_mut()
            && let Some(probe) = &mut auditing.probe
        {
            probe.value = row.columns().next().flatten().map(Box::from);
        }
    }

    /// Notes that the server refuses to tell what its client's session holds.
    pub(crate) fn audit_refused(&mut self, id: ServerId, code: SqlState, text: &str) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some(auditing) = server.state.auditing_mut() {
            auditing.answer.fail(code, text);
        }
    }

    /// Reads the complete answer to an audit, and returns the result. `None` if the server was asked once more.
    pub(crate) fn audited<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> Option<Audited> {
        let state = &mut self.servers.get_mut(id)?.state;
        let client_id = state.client()?;
        let auditing = state.auditing_mut()?;
        let again = auditing.answer.failed.is_some() && auditing.attempts < AUDIT_ATTEMPTS_MAX;
        if let Some(Probe { set, value: Some(value) }) = auditing.probe.take() {
            self.state.known.known_sets.insert(&set.text, value);
        }
        if again {
            cx.driver.reached(RarePath::AuditAgain);
            self.ask_session(cx, id);
            return None;
        }
        let (question, sticky, reshaped) = (auditing.question, auditing.sticky, auditing.reshaped);
        let prepared = (auditing.parse_context, auditing.prepares);
        let names = std::mem::take(&mut auditing.names);
        let answer = std::mem::take(&mut auditing.answer);
        let reasons = match (&answer.failed, question) {
            (None, Question::Everything) => {
                self.learn_everything(cx.env, id, client_id, &answer, reshaped, prepared)
            }
            (None, Question::Values) => self.learn_values(cx.env, id, client_id, &names, &answer),
            (Some((_, text)), _) => {
                let server = &self.servers[id];
                let line =
                    format!("{} does not tell what its session holds: {text}", self.server_log_name(server));
                cx.log(Level::Warning, &line);
                Reasons::UNKNOWN
            }
        };
        let is_told = answer.failed.is_none() && question == Question::Everything;
        Some(Audited { reasons: reasons.with(sticky), is_told, answer })
    }

    fn learn_values(
        &mut self,
        env: &Env,
        id: ServerId,
        client_id: ClientId,
        names: &[Box<[u8]>],
        answer: &Replies,
    ) -> Reasons {
        let Some(values) = answer.rows.first().filter(|row| row.len() == names.len()) else {
            return Reasons::UNKNOWN;
        };
        let mut session = (*self.servers[id].session).clone();
        for (name, value) in names.iter().zip(values) {
            self.learn_value(env, &mut session, name, value.as_deref());
        }
        self.keep_session(id, client_id, session, Reasons::NONE)
    }

    fn learn_everything(
        &mut self,
        env: &mut Env,
        id: ServerId,
        client_id: ClientId,
        answer: &Replies,
        reshaped: bool,
        (parse_context, prepares): (Option<ParseContext>, bool),
    ) -> Reasons {
        self.learn_routines(answer);
        match self.read_everything(env, id, answer, reshaped) {
            Some((mut session, reasons)) => {
                session.reread(|prepared| match prepared.parse_context {
                    // PostgreSQL does not tell: by now it may be another one of the same name and text.
                    ParseContext::UNDETERMINED => parse_context.unwrap_or_else(|| env.parse_contexts.alone()),
                    known if prepares && parse_context != Some(known) => env.parse_contexts.alone(),
                    known => known,
                });
                let names = session.settings().map(|setting| &setting.name);
                self.state.known.note_settable(names);
                let hidden = match self.state.routines.has_new_composers() {
                    true => Reasons::UNKNOWN_NAMES,
                    false => Reasons::NONE,
                };
                self.keep_session(id, client_id, session, reasons.with(hidden))
            }
            None => Reasons::UNKNOWN,
        }
    }

    /// Notes the names of routines that ask for drawn values, and of the settings that routines set, in an answer.
    pub(crate) fn learn_routines(&mut self, answer: &Replies) {
        let routines = &mut self.state.routines;
        for row in &answer.rows {
            match row.as_slice() {
                [Some(kind), Some(name), _] if **kind == *b"f" => routines.learn_currval_routine(name),
                [Some(kind), Some(name), _] if **kind == *b"u" => routines.learn_setting(name),
                [Some(kind), Some(sum), _] if **kind == *b"y" => routines.learn_composers(sum),
                _ => {}
            }
        }
    }

    /// Returns the contents of the answer to the question for everything; `None` if it cannot be read.
    pub(crate) fn read_everything(
        &self,
        env: &Env,
        id: ServerId,
        answer: &Replies,
        reshaped: bool,
    ) -> Option<(Session, Reasons)> {
        if answer.bytes > SERVER_MESSAGE_BYTES_MAX {
            return None;
        }
        let mut session = Session::default();
        let mut channels = Vec::new();
        let mut reasons = Reasons::NONE;
        for row in &answer.rows {
            let [Some(kind), name, value] = row.as_slice() else { return None };
            match (&**kind, name) {
                // The server's previous client may have left it empty: that is as near as PostgreSQL comes to taking it
                // away.
                (b"n" | b"u", Some(_)) if value.as_ref().is_none_or(|value| value.is_empty()) => {}
                (b"n" | b"u", Some(name)) if answer.default_of(name) == value.as_deref() => {}
                (b"s" | b"m" | b"n" | b"u", Some(name)) => {
                    self.learn_value(env, &mut session, name, value.as_deref());
                }
                (b"p", Some(name)) => {
                    match self.read_prepared(id, name, value.as_deref().unwrap_or_default()) {
                        Some(prepared) if !reshaped => session.prepare(prepared),
                        _ => reasons = reasons.with(Reasons::PREPARED),
                    }
                }
                (b"c", _) => reasons = reasons.with(Reasons::CURSORS),
                (b"l", Some(name)) => channels.push(name.clone()),
                (b"t", _) => reasons = reasons.with(Reasons::TEMPORARY),
                (b"a", _) => reasons = reasons.with(Reasons::LOCKS),
                (b"r", _) => reasons = reasons.with(Reasons::SLOTS),
                (b"o", _) => reasons = reasons.with(Reasons::SETTINGS),
                // Statements prepared through the protocol are asked for if the server has the client's own names.
                (b"f" | b"d" | b"h" | b"y", _) => {}
                _ => return None,
            }
        }
        let server = self.servers.get(id)?;
        if !server.branch.is_primary() {
            // A standby knows of no channels: they are those of the session that it was brought to. If it names some, it was promoted
            // meanwhile, and the client has begun to listen to them there.
            channels.extend_from_slice(server.session.channels());
        }
        session.listen(channels);
        Some((session, reasons))
    }

    /// Returns a statement that was prepared by SQL. Its parse context was known before, or is still undetermined.
    fn read_prepared(&self, id: ServerId, name: &[u8], text: &[u8]) -> Option<Prepared> {
        let mut known = self.servers[id].session.prepared();
        let known = known.find(|known| *known.name == *name && *known.text == *text);
        Prepared::movable(name, text, known.map_or(ParseContext::UNDETERMINED, |known| known.parse_context))
    }

    /// Takes over the value of one setting of the server's session.
    pub(crate) fn learn_value(&self, env: &Env, session: &mut Session, name: &[u8], value: Option<&[u8]>) {
        let user = self.state.user.as_bytes();
        match (name, value) {
            _ if self.state.is_tracked(&env.tracked, name) || OF_TRANSACTIONS.contains(&name) => {}
            (b"role", Some(b"none")) => session.unset(name),
            (b"session_authorization", Some(value)) if value == user => session.unset(name),
            (_, Some(value)) => session.set(name, value),
            (_, None) => session.unset(name),
        }
    }

    /// Takes over the session of the server, which is now known, as the client's session. Returns the reasons for which the client keeps
    /// the server.
    pub(crate) fn keep_session(
        &mut self,
        id: ServerId,
        client_id: ClientId,
        session: Session,
        mut reasons: Reasons,
    ) -> Reasons {
        let on = session.get(b"pgweir.pin").is_some_and(is_true);
        let hand = if on { Reasons::HAND } else { Reasons::NONE };
        reasons = reasons.with(hand);
        if session.get(b"search_path").is_some_and(|path| path.windows(7).any(|name| name == b"pg_temp")) {
            // An object made without a schema's name is temporary then.
            reasons = reasons.with(Reasons::TEMPORARY);
        }
        let own = session.settings().filter(|setting| setting.name.contains(&b'.')).count();
        if own > CUSTOM_SETTINGS_MAX || session.bytes() > SESSION_BYTES_MAX {
            reasons = reasons.with(Reasons::SETTINGS);
        }
        let server = &mut self.servers[id];
        let pool = &mut self.state;
        server.session = pool.known.sessions.share(session);
        let Some(account) = self.clients.get_mut(client_id).map(|client| &mut client.account) else {
            return reasons;
        };
        account.session = Arc::clone(&server.session);
        reasons
    }
}

/// Returns `SELECT pg_catalog.current_setting('a',true),...`. The value is NULL for a setting that does not exist.
pub(crate) fn values_of(names: &[Box<[u8]>]) -> Vec<u8> {
    let mut text = b"SELECT ".to_vec();
    for (at, name) in names.iter().enumerate() {
        text.extend_from_slice(if at == 0 { b"" } else { b"," });
        text.extend_from_slice(b"pg_catalog.current_setting(");
        quote_literal(&mut text, name);
        text.extend_from_slice(b",true)");
    }
    text
}

/// Whether PostgreSQL reads this value as true, for a boolean that is spelled out.
fn is_true(value: &[u8]) -> bool {
    [&b"on"[..], b"true", b"yes", b"1", b"t", b"y"].iter().any(|word| value.eq_ignore_ascii_case(word))
}
