//! The contents of a session that can move to another server connection: settings (role and session user among them), and statements that
//! were prepared by SQL. A client's session and the session on a server are both a [`Session`]; if the two are the same object, nothing is
//! compared.
//!
//! The parameters that servers report by themselves are not here but in `params.rs`: they are known without asking. This file is values and
//! texts; it must never decide when something is asked or sent.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::limits::KNOWN_SESSIONS_MAX;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::relay::own_settings::ISOLATION;
use crate::pool::session::params::quote_literal;

/// A setting that has the client's value instead of that of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name, letters in lower case.
    pub name: Box<[u8]>,
    /// The value, as `current_setting` gives it.
    pub value: Box<[u8]>,
}

/// The contents of a session that a new connection does not have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Session {
    /// The settings, sorted by name.
    settings: Vec<Setting>,
    /// The prepared statements, sorted by name.
    prepared: Vec<Prepared>,
    /// The channels that the session listens to, sorted by name.
    channels: Vec<Box<[u8]>>,
}

/// A statement that was prepared by SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The name, as `pg_prepared_statements` has it.
    pub name: Box<[u8]>,
    /// The PREPARE as it was written.
    pub text: Box<[u8]>,
    /// The parse context of the session that prepared the statement.
    pub parse_context: ParseContext,
}

impl Prepared {
    /// Returns the statement if its text can prepare it again on another server.
    #[must_use]
    pub fn movable(name: &[u8], text: &[u8], parse_context: ParseContext) -> Option<Prepared> {
        let statement = text.trim_ascii();
        let statement = statement.strip_suffix(b";").unwrap_or(statement);
        // Letters mean what client_encoding says, and a backslash what standard_conforming_strings says; what
        // follows a semicolon is no part of PREPARE.
        let plain = |byte: &u8| byte.is_ascii() && *byte != b';' && *byte != b'\\';
        let prepares = statement.get(..7).is_some_and(|verb| verb.eq_ignore_ascii_case(b"prepare"));
        let ours = name.starts_with(b"PGWEIR_");
        (prepares && !ours && statement.iter().all(plain) && name.is_ascii()).then(|| Prepared {
            name: name.into(),
            text: text.into(),
            parse_context,
        })
    }

    /// Returns the DEALLOCATE for the statement.
    fn deallocate(&self) -> Vec<u8> {
        let mut text = b"DEALLOCATE \"".to_vec();
        for &byte in &self.name {
            text.push(byte);
            if byte == b'"' {
                text.push(byte);
            }
        }
        text.extend_from_slice(b"\";");
        text
    }
}

/// The settings that decide what the others may become. On the way to another session they change last, and go back first.
pub(crate) const IDENTITY: [&[u8]; 2] = [b"session_authorization", b"role"];

/// The timeouts that may interrupt a statement of pgweir's own.
const TIMEOUTS: [&[u8]; 2] = [b"statement_timeout", b"transaction_timeout"];

impl Session {
    /// Whether the session has only the contents of a new connection.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.settings.is_empty() && self.prepared.is_empty() && self.channels.is_empty()
    }

    /// Whether a timeout of the session may end a statement of pgweir's own.
    pub(crate) fn has_timeout(&self) -> bool {
        TIMEOUTS.iter().any(|name| self.place(name).is_ok())
    }

    /// Returns the statements that were prepared by SQL, sorted by name.
    pub fn prepared(&self) -> impl Iterator<Item = &Prepared> {
        self.prepared.iter()
    }

    /// Adds a statement. A statement of the same name is replaced.
    pub fn prepare(&mut self, prepared: Prepared) {
        self.deallocate(&prepared.name);
        let at = self.prepared.partition_point(|known| known.name < prepared.name);
        self.prepared.insert(at, prepared);
    }

    /// Removes the statement of this name.
    pub fn deallocate(&mut self, name: &[u8]) {
        self.prepared.retain(|known| *known.name != *name);
    }

    /// Sets the parse context of each statement to the one that `parse_context` returns.
    pub(crate) fn reread(&mut self, mut parse_context: impl FnMut(&Prepared) -> ParseContext) {
        self.prepared.iter_mut().for_each(|prepared| prepared.parse_context = parse_context(prepared));
    }

    /// Returns the statements that must be prepared on a server with this session before it has the session `wanted`.
    pub(crate) fn lacking<'a>(&'a self, wanted: &'a Session) -> impl Iterator<Item = &'a Prepared> {
        wanted.prepared.iter().filter(|wants| !self.prepared.contains(wants))
    }

    /// Returns the channels that the session listens to, sorted by name.
    #[must_use]
    pub fn channels(&self) -> &[Box<[u8]>] {
        &self.channels
    }

    /// Makes the session listen to these channels, and to no others.
    pub fn listen(&mut self, mut channels: Vec<Box<[u8]>>) {
        channels.sort_unstable();
        channels.dedup();
        self.channels = channels;
    }

    /// Returns the value of a setting, by name in any case.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        if self.settings.is_empty() {
            return None;
        }
        self.place(&name.to_ascii_lowercase()).ok().map(|at| &*self.settings[at].value)
    }

    /// Sets the value of a setting.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let name = name.to_ascii_lowercase();
        match self.place(&name) {
            Ok(at) => self.settings[at].value = value.into(),
            Err(at) => self.settings.insert(at, Setting { name: name.into(), value: value.into() }),
        }
    }

    /// Removes a setting, which then has the value of a new connection.
    pub fn unset(&mut self, name: &[u8]) {
        if let Ok(at) = self.place(&name.to_ascii_lowercase()) {
            self.settings.remove(at);
        }
    }

    /// Whether all values of settings are the same bytes in every encoding.
    pub(crate) fn has_ascii_values(&self) -> bool {
        self.settings.iter().all(|setting| setting.value.is_ascii())
    }

    /// Returns all settings, sorted by name.
    pub fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter()
    }

    /// Returns this session with all settings of another one.
    #[must_use]
    pub fn with(mut self, other: &Session) -> Session {
        other.settings.iter().for_each(|setting| self.set(&setting.name, &setting.value));
        self
    }

    /// Returns this session without the statements that `other` does not have.
    #[must_use]
    pub(crate) fn prepared_as_in(mut self, other: &Session) -> Session {
        self.prepared.retain(|wants| other.prepared.contains(wants));
        self
    }

    /// Returns the number of bytes of all names and values.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let settings = self.settings.iter().map(|setting| setting.name.len() + setting.value.len());
        let prepared = self.prepared.iter().map(|prepared| prepared.name.len() + prepared.text.len());
        let channels = self.channels.iter().map(|channel| channel.len());
        settings.chain(prepared).chain(channels).sum()
    }

    fn place(&self, lower: &[u8]) -> Result<usize, usize> {
        self.settings.binary_search_by(|setting| (*setting.name).cmp(lower))
    }

    /// Returns the names of the settings that differ in `wanted`.
    pub(crate) fn changed<'a>(&'a self, wanted: &'a Session) -> Vec<&'a [u8]> {
        self.changes(wanted).into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the names and values of the settings that differ in `wanted`. A value is `None` if `wanted` does not have the setting.
    fn changes<'a>(&'a self, wanted: &'a Session) -> Vec<(&'a [u8], Option<&'a [u8]>)> {
        let gone = self.settings.iter().filter(|has| wanted.place(&has.name).is_err());
        let new = wanted.settings.iter().filter(|wants| match self.place(&wants.name) {
            Ok(at) => self.settings[at].value != wants.value,
            Err(_) => true,
        });
        gone.map(|setting| (&*setting.name, None))
            .chain(new.map(|setting| (&*setting.name, Some(&*setting.value))))
            .collect()
    }

    /// Returns the statements that bring a server with this session to `wanted`, except for prepared statements that it lacks
    /// ([`Session::lacking`]). There are none if there is nothing to change. With [`Listening::Nowhere`] the channels stay as they are.
    ///
    /// `set_config` takes a value as `current_setting` gives it, lists among them; NULL is RESET. All names are qualified: the session may
    /// have any `search_path`.
    pub(crate) fn sync_statements(&self, wanted: &Session, listening: Listening) -> Vec<Vec<u8>> {
        let mut statements = match listening {
            Listening::Here => self.listen_statements(wanted),
            Listening::Nowhere => Vec::new(),
        };
        let mut changes = self.changes(wanted);
        let surplus = self.prepared.iter().filter(|has| !wanted.prepared.contains(has));
        statements.extend(surplus.map(Prepared::deallocate));
        if changes.is_empty() {
            return statements;
        }
        // A statement's time is measured from its start: this one's by the setting that is to go.
        for name in TIMEOUTS {
            if self.place(name).is_ok() {
                statements.push([b"SET ", name, b"=0;"].concat());
                if wanted.place(name).is_ok() && !changes.iter().any(|(changed, _)| *changed == name) {
                    changes.push((name, wanted.get(name)));
                }
            }
        }
        statements.splice(0..0, self.own_settings());
        // What a session may set depends on its user: back to the user of the connection first.
        let identity = |name: &[u8]| IDENTITY.iter().position(|known| *known == name);
        let other_identity = changes.iter().any(|(name, _)| identity(name).is_some());
        let holds_identity = IDENTITY.iter().any(|name| self.place(name).is_ok());
        let mut calls: Vec<(&[u8], Option<&[u8]>)> = Vec::with_capacity(changes.len() + 4);
        if holds_identity {
            calls.extend([(IDENTITY[1], None), (IDENTITY[0], None)]);
        }
        calls.extend(changes.iter().filter(|(name, _)| identity(name).is_none()));
        if holds_identity || other_identity {
            calls.extend(IDENTITY.iter().filter_map(|name| Some((*name, Some(wanted.get(name)?)))));
        }
        let mut text = Vec::new();
        set_config(&mut text, calls.iter().map(|&(name, value)| (name, value, false)));
        statements.push(text);
        statements
    }

    /// Returns the statements that go ahead of a query in a session with settings under which PostgreSQL would compile the query by JIT, or
    /// make it wait for other transactions.
    fn own_settings(&self) -> impl Iterator<Item = Vec<u8>> {
        let holds = |prefix: &[u8]| self.settings.iter().any(|setting| setting.name.starts_with(prefix));
        let isolation = holds(b"default_transaction_").then(|| ISOLATION.to_vec());
        isolation.into_iter().chain(holds(b"jit").then(|| b"SET LOCAL jit=off;".to_vec()))
    }

    fn listen_statements(&self, wanted: &Session) -> Vec<Vec<u8>> {
        let mut statements = Vec::new();
        if wanted.channels.is_empty() && !self.channels.is_empty() {
            statements.push(b"UNLISTEN *;".to_vec());
            return statements;
        }
        let gone = self.channels.iter().filter(|channel| !wanted.channels.contains(channel));
        let new = wanted.channels.iter().filter(|channel| !self.channels.contains(channel));
        let words = [(&b"UNLISTEN "[..], gone.collect::<Vec<_>>()), (b"LISTEN ", new.collect())];
        for (word, channel) in words.iter().flat_map(|(word, of)| of.iter().map(move |name| (word, name))) {
            let mut text = word.to_vec();
            pgweir_sql::quote_identifier(&mut text, channel);
            text.push(b';');
            statements.push(text);
        }
        statements
    }
}

/// Whether a server listens to the channels of the session that it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Listening {
    /// The server listens to the channels.
    Here,
    /// The server does not listen: PostgreSQL refuses LISTEN at a standby, where there are no notifications. The session has its channels,
    /// and the server does not know of them.
    Nowhere,
}

/// Writes `SELECT pg_catalog.set_config(...), ...;`.
pub(crate) fn set_config<'a>(
    out: &mut Vec<u8>,
    calls: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>, bool)>,
) {
    for (at, (name, value, local)) in calls.enumerate() {
        out.extend_from_slice(if at == 0 { b"SELECT " } else { b"," });
        out.extend_from_slice(b"pg_catalog.set_config(");
        quote_literal(out, name);
        out.push(b',');
        match value {
            Some(value) => quote_literal(out, value),
            None => out.extend_from_slice(b"NULL"),
        }
        out.extend_from_slice(if local { b",true)" } else { b",false)" });
    }
    out.push(b';');
}

/// The sessions seen last, the newest at the end: clients and servers that have the same share one object.
#[derive(Default)]
pub(crate) struct KnownSessions {
    known: VecDeque<Arc<Session>>,
    /// The session of a new connection.
    plain: Arc<Session>,
    /// The session with which clients begin, and which most clients have.
    beginning: Arc<Session>,
}

impl KnownSessions {
    /// Sets the session with which clients begin from here on.
    pub(crate) fn begin_with(&mut self, session: &Arc<Session>) {
        self.beginning = Arc::clone(session);
    }

    /// Returns the shared object for a session.
    pub(crate) fn share(&mut self, session: Session) -> Arc<Session> {
        if session.is_plain() {
            return Arc::clone(&self.plain);
        }
        if session == *self.beginning {
            return Arc::clone(&self.beginning);
        }
        if let Some(known) = self.known.iter().rev().find(|known| ***known == session) {
            return Arc::clone(known);
        }
        if self.known.len() >= KNOWN_SESSIONS_MAX {
            self.known.pop_front();
        }
        let session = Arc::new(session);
        self.known.push_back(Arc::clone(&session));
        session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pairs: &[(&str, &str)]) -> Session {
        let mut session = Session::default();
        for (name, value) in pairs {
            session.set(name.as_bytes(), value.as_bytes());
        }
        session
    }

    fn settle(has: &[(&str, &str)], wanted: &[(&str, &str)]) -> String {
        let out = session(has).sync_statements(&session(wanted), Listening::Here).concat();
        String::from_utf8(out).expect("text").replace("pg_catalog.set_config", "set")
    }

    fn movable(name: &[u8], text: &[u8]) -> Option<Prepared> {
        Prepared::movable(name, text, ParseContext::of_statement(1))
    }

    #[test]
    fn only_the_difference_is_set() {
        assert_eq!(settle(&[("a", "1"), ("B", "2")], &[("A", "1"), ("b", "2")]), "");
        assert_eq!(settle(&[("a", "1")], &[("a", "2")]), "SELECT set('a','2',false);");
        assert_eq!(
            settle(&[("a", "1")], &[("b", "x'y")]),
            "SELECT set('a',NULL,false),set('b','x''y',false);"
        );
    }

    #[test]
    fn channels_are_left_and_joined() {
        let listens = |channels: &[&str]| {
            let mut session = Session::default();
            session.listen(channels.iter().map(|channel| channel.as_bytes().into()).collect());
            session
        };
        let settle = |has: &[&str], wanted: &[&str]| {
            let out = listens(has).sync_statements(&listens(wanted), Listening::Here).concat();
            String::from_utf8(out).expect("text")
        };
        let statements = listens(&["a"]).sync_statements(&listens(&["b"]), Listening::Nowhere);
        assert!(statements.is_empty(), "a standby");
        assert_eq!(settle(&["a", "b"], &["b", "a"]), "");
        assert_eq!(settle(&["a", "b"], &["b", "c\"d"]), "UNLISTEN \"a\";LISTEN \"c\"\"d\";");
        assert_eq!(settle(&["a", "b"], &[]), "UNLISTEN *;");
    }

    #[test]
    fn identity_goes_back_first_and_changes_last() {
        assert_eq!(
            settle(&[("role", "r"), ("a", "1")], &[("role", "r"), ("z", "1")]),
            "SELECT set('role',NULL,false),set('session_authorization',NULL,false),set('a',NULL,false),\
             set('z','1',false),set('role','r',false);"
        );
        assert_eq!(
            settle(&[], &[("role", "r"), ("session_authorization", "s"), ("z", "1")]),
            "SELECT set('z','1',false),set('session_authorization','s',false),set('role','r',false);"
        );
    }

    #[test]
    fn prepared_statements_that_are_not_wanted_go_first() {
        let mut has = session(&[("a", "1")]);
        has.prepare(movable(b"p\"q", b"PREPARE x AS SELECT 1").expect("plain"));
        has.prepare(movable(b"kept", b"prepare kept as select 2").expect("plain"));
        let mut wanted = session(&[]);
        wanted.prepare(movable(b"kept", b"prepare kept as select 2").expect("plain"));
        wanted.prepare(movable(b"new", b"prepare new as select 3").expect("plain"));
        let statements = has.sync_statements(&wanted, Listening::Here);
        assert_eq!(statements[0], b"DEALLOCATE \"p\"\"q\";");
        assert_eq!(statements.len(), 2, "and the setting");
        let lacking: Vec<_> = has.lacking(&wanted).map(|prepared| &*prepared.name).collect();
        assert_eq!(lacking, [b"new"]);
        assert!(movable(b"p", b"prepare p as select 1; select 2").is_none());
        assert!(movable(b"p", b"begin").is_none());
    }

    #[test]
    fn a_timeout_of_the_old_session_does_not_hit_the_change() {
        assert_eq!(
            settle(&[("statement_timeout", "1ms")], &[]),
            "SET statement_timeout=0;SELECT set('statement_timeout',NULL,false);"
        );
        assert_eq!(
            settle(&[("statement_timeout", "1ms"), ("a", "1")], &[("statement_timeout", "1ms")]),
            "SET statement_timeout=0;SELECT set('a',NULL,false),set('statement_timeout','1ms',false);"
        );
    }

    #[test]
    fn a_text_that_was_prepared_under_other_settings_is_another_statement() {
        let prepared = |parse_context| {
            let mut session = Session::default();
            let text = b"prepare p as select '1/2/2024'::date";
            session.prepare(Prepared::movable(b"p", text, parse_context).expect("plain"));
            session
        };
        let (one, other) = (prepared(ParseContext::of_statement(1)), prepared(ParseContext::of_statement(2)));
        assert_eq!(one.sync_statements(&other, Listening::Here), [b"DEALLOCATE \"p\";"]);
        assert_eq!(one.lacking(&other).count(), 1);
        assert_eq!(one.lacking(&prepared(ParseContext::of_statement(1))).count(), 0);
    }
}
