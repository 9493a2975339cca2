//! The possible effects of a client's messages on its session, noted while they pass.

use pgweir_sql::{Kind, Lexeme, Lexer, Marks, SettingNames, Traits, assignments, traits};
use pgweir_wire::frontend::{BindHead, Parse, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Env;
use crate::ids::{ClientId, StatementId};
use crate::limits::LEXED_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::catalog::routines::Routines;
use crate::pool::client::state::{ClientState, Link};
use crate::pool::server::state::SchemaChanges;
use crate::pool::session::content::{IDENTITY, Session, Setting};
use crate::pool::session::known_sets::PlainSet;
use crate::pool::session::partial_text::{behind_names, bound_values};
use crate::pool::session::pins::{PutBack, Reasons, Told, Touched, Values, may_change_pin, may_touch};

impl Pool {
    /// Notes the possible effects of a Query, a Parse, a Bind or a FunctionCall that goes to the client's server. `message` may be only its
    /// beginning. `noted` is its text, if it has one.
    #[inline]
    pub(crate) fn note_message(
        &mut self,
        env: &mut Env,
        id: ClientId,
        header: Header,
        message: &[u8],
        noted: Option<(&[u8], Traits)>,
    ) {
        let body = &message[HEADER_LEN..message.len().min(header.total())];
        match header.tag {
            tag::BIND => {
                self.measure_bind(env, id, body);
                return self.note_values(id, behind_names(body));
            }
            tag::FUNCTION_CALL => return self.note_function(env, id, body),
            _ => {}
        }
        let Some((text, traits)) = noted else { return };
        self.measure_text(env, id, header.tag, body, &traits, text);
        if body.len() < header.body_len as usize {
            return self.note_beginning(env, id, traits.marks, body);
        }
        let mut marks = self.marks_of(env, text, &traits);
        let types = || Parse::parse(body).ok().map(|parse| parse.param_types);
        if header.tag == tag::PARSE && self.state.routines.run_with(types) {
            marks.add(Marks::ROUTINES);
        }
        if !marks.is_empty() {
            self.note_marks(env, id, marks, text, header.tag == tag::QUERY);
        }
    }

    /// Returns the marks of a client's text for the code that the text may run.
    #[inline]
    pub(crate) fn marks_inside(&self, env: &Env, text: &[u8], marks: Marks) -> Marks {
        let routines = &self.state.routines;
        let inside = routines.marks_in(text, marks);
        // Code that its transaction makes is not in the catalog yet, and may run in it.
        let makes = marks.contains(Marks::READS_LOCALLY) && spells_change(text);
        let is_doubted = makes || routines.are_outdated(env.shared.routines());
        if is_doubted { inside.and(Marks::ROUTINES) } else { inside }
    }

    /// Notes the possible effects of a text that came earlier and is executed now.
    #[cold]
    pub(crate) fn note_text(&mut self, env: &Env, id: ClientId, text: &[u8], traits: &Traits) {
        let marks = self.marks_of(env, text, traits);
        if !marks.is_empty() {
            self.note_marks(env, id, marks, text, false);
        }
    }

    #[inline]
    fn marks_of(&self, env: &Env, text: &[u8], traits: &Traits) -> Marks {
        let mut marks = traits.marks.and(self.marks_inside(env, text, traits.marks));
        if self.is_watched(env, traits.fingerprint) {
            // It is known that the words do not tell.
            marks.add(Marks::ROUTINES);
        }
        marks
    }

    /// Notes the possible effects of a message of which only the beginning is here. The rest, still to come, is not known yet.
    #[cold]
    fn note_beginning(&mut self, env: &Env, id: ClientId, marks: Marks, body: &[u8]) {
        self.note_marks(env, id, marks.and(Marks::ROUTINES), b"", false);
        let Some(client) = self.clients.get_mut(id) else { return };
        if let ClientState::Linked(link) = &mut client.state
            && let Some(touched) = link.touched.as_deref_mut()
        {
            touched.more = true;
            touched.part.begin();
            touched.read_piece(body, false, &self.state.routines);
        }
    }

    /// Notes the possible effects of a function that is called by its number.
    fn note_function(&mut self, env: &Env, id: ClientId, body: &[u8]) {
        self.note_marks(env, id, Marks::ROUTINES, b"", false);
        let number = body.first_chunk::<4>().map(|number| u32::from_be_bytes(*number));
        if !number.is_some_and(|number| LARGE_OBJECT_FUNCTIONS.contains(&number)) {
            self.doubt_names(id);
        }
    }

    /// Notes the values that are bound: in a transaction that sets settings by calls, they may be names of settings.
    pub(crate) fn note_values(&mut self, id: ClientId, values: &[u8]) {
        let Some(touched) = self.touched_mut(id) else { return };
        if touched.parameters.is_empty() && touched.values == Values::Data {
            return;
        }
        let Some(values) = bound_values(values) else { return touched.doubt_names() };
        for (at, value) in values.into_iter().enumerate() {
            let Some(value) = value else { continue };
            if touched.parameters.contains(&(at + 1)) {
                let mut named = SettingNames::default();
                named.add(value);
                touched.learn(&named);
            }
            if touched.values == Values::Run {
                touched.learn(&SettingNames::of_value(value));
            }
        }
    }

    fn touched_mut(&mut self, id: ClientId) -> Option<&mut Touched> {
        match &mut self.clients.get_mut(id)?.state {
            ClientState::Linked(link) => link.touched.as_deref_mut(),
            _ => None,
        }
    }

    /// Notes that there may be settings in the client's session whose names are not known.
    fn doubt_names(&mut self, id: ClientId) {
        if let Some(touched) = self.touched_mut(id) {
            touched.doubt_names();
        }
    }

    /// Notes the possible effects of a prepared statement that is bound.
    pub(crate) fn note_statement(&mut self, env: &mut Env, id: ClientId, statement: StatementId) {
        self.measure_statement(env, id, statement);
        let Some(known) = env.statements.get(statement) else { return };
        let watched = known.traits.is_some_and(|traits| self.is_watched(env, traits.fingerprint));
        let marks = known.marks().and(self.marks_inside(env, &known.query, known.marks()));
        let is_doubted = watched || self.state.routines.run_with(|| Some(&known.types));
        let marks = if is_doubted { marks.and(Marks::ROUTINES) } else { marks };
        if marks.is_empty() {
            return;
        }
        let query = known.query.clone();
        self.note_marks(env, id, marks, &query, false);
    }

    /// Notes the possible effects of a message of a client whose names are exposed.
    #[cold]
    pub(crate) fn note_exposed(&mut self, env: &mut Env, id: ClientId, message: u8, body: &[u8]) {
        match message {
            tag::CLOSE if body.first() == Some(&b'S') => {
                self.note_marks(env, id, Marks::PREPARED, b"", false);
            }
            tag::BIND => {
                let name = BindHead::parse_prefix(body).map(|head| head.statement);
                let Some(name) = name.filter(|name| !name.is_empty()) else { return };
                let account = self.clients.get(id).map(|client| &client.account);
                match account.and_then(|account| account.statement(name)) {
                    Some(statement) => self.note_statement(env, id, statement),
                    // It was prepared since.
                    None => self.note_marks(env, id, Marks::ROUTINES, b"", false),
                }
            }
            _ => {}
        }
    }

    /// Notes a text with these marks. `runs_once` is true if the text runs exactly once, and now, if nothing fails.
    pub(crate) fn note_marks(&mut self, env: &Env, id: ClientId, marks: Marks, text: &[u8], runs_once: bool) {
        let beyond = self.names_beyond(env, id, marks, text);
        let Some(client) = self.clients.get_mut(id) else { return };
        let account = &client.account;
        let ClientState::Linked(link) = &mut client.state else { return };
        let marks = match &link.touched {
            None => {
                let routines = &self.state.routines;
                executed(&account.session, text, marks, routines).unwrap_or(marks)
            }
            // The prepared statement may be another one by now.
            Some(_) => marks,
        };
        let keeps = self.state.policy.keeps_sessions();
        link.reads_locally |= marks.contains(Marks::READS_LOCALLY);
        link.makes.note(marks, text);
        if link.makes.may_make_by_query(marks, text)
            && let Some(server) = self.servers.get_mut(link.server)
        {
            server.work.changes.add(SchemaChanges::BY_QUERY, true);
        }
        if keeps && (link.pin.is_some() && may_change_pin(marks) || may_touch(marks)) {
            let is_first = link.touched.is_none();
            let touched = link.touched.get_or_insert_default();
            note_touched(touched, marks, text);
            touched.set(runs_once.then(|| PlainSet::of(text, marks)).flatten());
            touched.learn(&beyond);
            if touched.told == Told::Known && is_first && runs_once && clears_settings(text) {
                touched.told = Told::Cleared;
            }
        }
        if let Some(startup) = &account.startup
            && (marks.contains(Marks::RESETS) || !keeps && marks.intersects(MAY_RESET))
        {
            let Some(server) = self.servers.get_mut(link.server) else { return };
            server.resets = true;
            let exact = server.opened.asked.is_some();
            note_restore(link, startup, marks, text);
            if !keeps {
                restore_if_reset(link, startup, marks);
            }
            if exact && let Some(touched) = &mut link.touched {
                // Its server goes back to them by itself; the name may be that of the client before it.
                touched.restore.retain(|(name, _)| **name == *b"application_name");
            }
        }
    }
}

impl Pool {
    /// Notes that the client changed tables or similar objects, which the statements that it prepared by SQL may be about. Those statements
    /// stay on their server, as PostgreSQL prepares nothing whose table is gone.
    pub(crate) fn note_schema_changed(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &client.account) else { return };
        if account.session.prepared().next().is_some() || link.touched.is_some() {
            let touched = link.touched.get_or_insert_default();
            touched.marks.add(Marks::ROUTINES);
            touched.reshaped = true;
        }
    }

    /// Notes that a statement of the client failed, or a transaction was rolled back to an earlier point: its settings may be gone.
    pub(crate) fn doubt_session(&mut self, id: ClientId) {
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state)
            && let Some(touched) = &mut link.touched
        {
            // A setting that it named may be as it was, or this user may never be able to set it: only PostgreSQL knows.
            touched.more = true;
            if touched.told == Told::Cleared {
                touched.told = Told::Known;
            }
        }
    }

    /// Notes that DISCARD ALL has succeeded, by whichever protocol it was sent: no setting is left of the former session. The effects of
    /// later statements of the transaction are noted already.
    pub(crate) fn settings_discarded(&mut self, id: ClientId) {
        if let Some(touched) = self.touched_mut(id)
            && touched.told == Told::Known
        {
            touched.told = Told::Cleared;
        }
    }

    /// Whether a text may set settings whose names are not known. A client that has run it keeps its server.
    pub(crate) fn hides_settings(&self, env: &Env, id: ClientId, text: &[u8], traits: &Traits) -> bool {
        let marks = self.marks_of(env, text, traits);
        if !may_touch(marks) {
            return false;
        }
        let mut touched = Touched::default();
        note_touched(&mut touched, marks, text);
        touched.learn(&self.names_beyond(env, id, marks, text));
        touched.told == Told::Unknown
    }

    /// Returns the names of settings that a text may set and that do not occur in it.
    fn names_beyond(&self, env: &Env, id: ClientId, marks: Marks, text: &[u8]) -> SettingNames {
        let mut found = SettingNames::default();
        if clears_settings(text) {
            // It ends statements that were prepared by SQL, and executes none.
            return found;
        }
        let Some(client) = self.clients.get(id) else { return found };
        let account = &client.account;
        let routines = &self.state.routines;
        found.unreadable = marks.contains(Marks::ROUTINES) && routines.hides_in(text);
        if marks.contains(Marks::PREPARED.and(Marks::CALLS_SETTINGS)) {
            // The values come with an EXECUTE.
            found.unreadable |= !SettingNames::of(text, false).parameters.is_empty();
        }
        if !marks.contains(Marks::PREPARED.and(Marks::ROUTINES)) {
            return found;
        }
        // An EXECUTE of a statement that was prepared before.
        let pinned = matches!(&client.state, ClientState::Linked(link)
            if link.pin.as_ref().is_some_and(|pin| pin.reasons.has(Reasons::PREPARED)));
        found.unreadable |= pinned;
        let mut learn = |query: &[u8], marks: Marks| {
            found.unreadable |= routines.hides_in(query);
            if marks.contains(Marks::CALLS_SETTINGS) {
                let names = SettingNames::of(query, true);
                found.unreadable |= names.unreadable || !names.parameters.is_empty();
                names.names.iter().for_each(|name| found.add(name));
            }
        };
        for known in account.session.prepared() {
            learn(&known.text, traits(&known.text).marks);
        }
        for (_, statement) in account.statements.iter().flat_map(|statements| statements.iter()) {
            if let Some(known) = env.statements.get(statement) {
                // A text that was not looked at may do anything.
                learn(&known.query, known.traits.map_or(Marks::CALLS_SETTINGS, |traits| traits.marks));
            }
        }
        found
    }
}

/// The words that code contains if it changes a session, or hides what it does.
const CHANGE: [&[u8]; 17] = [
    b"set_config",
    b"advisory_",
    b"setseed",
    b"temp",
    b"execute",
    b"listen",
    b"prepare",
    b"deallocate",
    b"discard",
    b"reset",
    b"_to_xml",
    b"ts_stat",
    b"with hold",
    b"language c",
    b"language internal",
    b"spi",
    b"plpy",
];

/// Whether a text that makes an object contains code that may change a session: in a body, a default, a constraint.
#[cold]
fn spells_change(text: &[u8]) -> bool {
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word));
    let is_word = |word: &[u8]| text.split(|byte| !is_name(*byte)).any(|own| own.eq_ignore_ascii_case(word));
    (is_word(b"create") || is_word(b"alter")) && (is_word(b"set") || CHANGE.iter().any(|word| has(word)))
}

/// The functions of large objects, which libpq and drivers call by number (`pg_proc.dat`): they set nothing.
const LARGE_OBJECT_FUNCTIONS: [u32; 13] =
    [715, 764, 952, 953, 954, 955, 956, 957, 958, 964, 1004, 3170, 3171];

/// Whether a text resets all settings of the session, and does nothing else.
fn clears_settings(text: &[u8]) -> bool {
    let is = |lexeme: &Lexeme<'_>, word: &[u8]| {
        lexeme.kind == Kind::Word && lexeme.text.eq_ignore_ascii_case(word)
    };
    let Ok(said) = Lexer::new(text).take(4).collect::<Result<Vec<_>, _>>() else { return false };
    let said = said.strip_suffix(&[Lexeme { kind: Kind::Symbol, text: b";" }]).unwrap_or(&said);
    matches!(said, [verb, all] if (is(verb, b"discard") || is(verb, b"reset")) && is(all, b"all"))
}

/// Notes what a text with these marks may change, as far as the text says it.
fn note_touched(touched: &mut Touched, marks: Marks, text: &[u8]) {
    touched.marks.add(marks);
    if marks.intersects(Marks::CALLS_SETTINGS.and(Marks::ROUTINES)) {
        let runs_strings = marks.contains(Marks::ROUTINES) && traits(text).marks.contains(Marks::ROUTINES);
        touched.learn(&match text.len() {
            ..=LEXED_BYTES_MAX => SettingNames::of(text, runs_strings),
            _ => SettingNames::of_part(text, 0),
        });
        if runs_strings {
            touched.values = Values::Run;
        }
    }
    // Only values that were set can be told one by one: a RESET may go back to a value that is not the session's at all.
    let mut resets = false;
    let read = assignments(text, |assignment| match &assignment.name {
        Some(name) if !assignment.to_default => {
            if !assignment.local {
                touched.name(name);
            }
        }
        _ => resets |= !assignment.local,
    });
    touched.more |= resets;
    if read.is_err() {
        touched.learn(&SettingNames::of_part(text, 0));
        touched.more = true;
    }
}

/// Notes which of the client's startup values must be put back.
fn note_restore(link: &mut Link, startup: &Session, marks: Marks, text: &[u8]) {
    let touched: &mut Touched = link.touched.get_or_insert_default();
    let mut add = |name: &[u8], local: bool| {
        if startup.get(name).is_some() {
            let how = if local { PutBack::Transaction } else { PutBack::Session };
            touched.restore.push((name.to_ascii_lowercase().into(), how));
        }
    };
    let mut all = false;
    let read = assignments(text, |assignment| match &assignment.name {
        Some(name) if assignment.to_default => add(name, assignment.local),
        None => all = true,
        Some(_) => {}
    });
    // Text that cannot be read is left to the audit. RESET ALL, but not DISCARD ALL, leaves role and session user as they
    // are.
    if all && read.is_ok() {
        let stays = |name: &[u8]| !marks.contains(Marks::DISCARDS) && IDENTITY.contains(&name);
        let settings = startup.settings().filter(|setting| !stays(&setting.name));
        settings.for_each(|setting| add(&setting.name, false));
    }
}

/// The marks of texts that may reset a setting without a word that tells which.
const MAY_RESET: Marks = Marks::ROUTINES.and(Marks::CALLS_SETTINGS).and(Marks::PREPARED);

/// Notes startup values that must be put back if PostgreSQL finds them reset. Session pooling asks no server for the contents of its
/// session, so this is done for each startup value if no word tells what was reset.
fn restore_if_reset(link: &mut Link, startup: &Session, marks: Marks) {
    let touched: &mut Touched = link.touched.get_or_insert_default();
    if marks.intersects(MAY_RESET) {
        for Setting { name, .. } in startup.settings() {
            if !touched.restore.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                touched.restore.push((name.to_ascii_lowercase().into(), PutBack::IfReset));
            }
        }
    }
}

/// Returns the effects of an EXECUTE, if the executed statement is known.
fn executed(session: &Session, text: &[u8], marks: Marks, routines: &Routines) -> Option<Marks> {
    if marks != Marks::PREPARED.and(Marks::ROUTINES) {
        return None;
    }
    let name = pgweir_sql::executed_name(text)?;
    let prepared = session.prepared().find(|prepared| *prepared.name == *name)?;
    if routines.changes_in(&prepared.text) {
        return None;
    }
    Some(pgweir_sql::traits(&prepared.text).marks.without(Marks::PREPARED))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
