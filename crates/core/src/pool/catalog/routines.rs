//! What the catalog of a pool's database says of its code, because no text of a client does: which names lead to code that changes
//! sessions, so that the session is asked for after a text with such a name; which routines ask for drawn values, so that a text
//! that names one may ask; and which custom settings (`app.tenant`) code sets, as PostgreSQL has no list of those that a session
//! has. Values only; `catalog/query.rs` and `session/audit.rs` have the catalog asked.

use pgweir_sql::Marks;
use pgweir_wire::frontend::{Parse, tag};

use crate::limits::{
    CATALOG_REST, CATALOG_REST_US_MAX, CHANGERS_AGE_US, CHANGERS_MAX, ROUTINE_SETTINGS_MAX, ROUTINES_AGE_US,
    ROUTINES_MAX,
};
use crate::pool::catalog::graph::{Effects, Graph};
use crate::pool::catalog::names::Names;
use crate::pool::relay::exchange::whole_messages;

/// Another part of the question for everything: names of such routines. Those of a body in standard SQL are found by its text.
pub(crate) const QUESTION: &[u8] =
    b" UNION ALL SELECT 'f', routine.name, NULL FROM (SELECT DISTINCT proname::pg_catalog.text AS name \
FROM pg_catalog.pg_proc WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) \
AND CASE WHEN prosrc OPERATOR(pg_catalog.=) '' THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END \
OPERATOR(pg_catalog.~*) '(currval|lastval)' LIMIT 1000) AS routine";

/// Another part: settings of the users' own that routines set by a literal name, and their values in this session; and a sum over the routines
/// that may set others, by names that they put together. The text has no backslash: its meaning in a string depends on the session's settings.
pub(crate) const SETTINGS_QUESTION: &[u8] =
    b" UNION ALL SELECT 'u', setting.name, pg_catalog.current_setting(setting.name, true) FROM (\
SELECT DISTINCT pg_catalog.lower(COALESCE(found.parts[1], found.parts[2])) AS name FROM pg_catalog.pg_proc, \
LATERAL pg_catalog.regexp_matches(CASE WHEN prosrc OPERATOR(pg_catalog.=) '' \
THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END, \
'set_config[[:space:]]*[(][[:space:]]*''([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)''\
|[[:<:]]set[[:space:]]+(?:session[[:space:]]+)?([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)[[:space:]]*(?:=|to[[:>:]])', 'gi') \
AS found(parts) WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) LIMIT 500) AS setting \
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS known \
WHERE pg_catalog.lower(known.name) OPERATOR(pg_catalog.=) setting.name) \
UNION ALL SELECT 'y', COALESCE(pg_catalog.sum(pg_catalog.hashtext(pg_catalog.concat(oid, '.', xmin))::pg_catalog.int8)::pg_catalog.text, ''), NULL \
FROM pg_catalog.pg_proc WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) \
AND CASE WHEN prosrc OPERATOR(pg_catalog.=) '' THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END OPERATOR(pg_catalog.~*) \
'[[:<:]]execute[[:space:](]|set_config[[:space:]]*[(](?![[:space:]]*''[^'']*''[[:space:]]*,)|set_config[[:space:]]*[^([:space:]]|u&[\"]'";

/// The names that lead to code with an effect.
#[derive(Default)]
struct Leading {
    /// The names that have the effect in any statement.
    always: Names,
    /// The names that have the effect in statements that change rows, by triggers, defaults or constraints.
    on_change: Names,
}

impl Leading {
    fn to(graph: &Graph<'_>, effect: Effects) -> Leading {
        let (always, on_change) = graph.names(effect);
        Leading { always, on_change }
    }

    fn len(&self) -> usize {
        self.always.len() + self.on_change.len()
    }

    #[inline]
    fn are_named_in(&self, bytes: &[u8]) -> bool {
        self.always.are_named_in(bytes) || self.on_change.are_named_in(bytes) && may_change_rows(bytes)
    }
}

/// Words without which no statement changes rows. A routine that a query calls may do so: then its own name leads there.
const CHANGE_ROWS: [&[u8]; 15] = [
    b"alter",
    b"analyze",
    b"call",
    b"copy",
    b"create",
    b"delete",
    b"do",
    b"execute",
    b"insert",
    b"merge",
    b"refresh",
    b"reindex",
    b"truncate",
    b"update",
    b"vacuum",
];

/// Whether a text, or the message that carries it, may change rows.
fn may_change_rows(bytes: &[u8]) -> bool {
    let mut words =
        bytes.split(|byte| !byte.is_ascii_alphanumeric() && !matches!(byte, b'_' | b'$' | 0x80..));
    words.any(|word| CHANGE_ROWS.iter().any(|known| known.eq_ignore_ascii_case(word)))
}

/// The state of the catalog's answer about routines that change their sessions.
#[derive(Clone, Copy, Default)]
enum Changes {
    /// No server was asked yet.
    #[default]
    Unread,
    /// The catalog has answered.
    Read,
    /// The servers have refused the question.
    Refused,
}

/// The catalog's information about code that changes sessions or reads drawn values, as last learned.
#[derive(Default)]
pub(crate) struct Routines {
    currval_routines: Names,
    /// Names that lead to code which changes sessions.
    changers: Leading,
    /// Names that lead to code which sets settings whose names cannot be told.
    hiders: Leading,
    /// Names that lead to code which changes state that PostgreSQL does not tell.
    unseen: Leading,
    /// The effects that any text may have, because code runs without being named.
    unnamed: Effects,
    /// The effects of commands that event triggers follow.
    commands: Effects,
    /// Settings of the users' own that routines set, letters in lower case.
    settings: Vec<Box<[u8]>>,
    /// The catalog's sum over the routines that put names of settings together. `None` until a server has told it.
    composers: Option<Box<[u8]>>,
    /// Whether the sum has changed since the catalog was read. If so, any code may set any setting until the catalog is read again.
    has_new_composers: bool,
    /// Whether the catalog has more names than are kept.
    are_cut: bool,
    changes: Changes,
    /// The time at which the catalog must be read again if no code is made before (monotonic, µs).
    due_us: u64,
    /// The age of code at the last answer. `None`: the answer is in doubt.
    known_age: Option<u64>,
    /// The age of code at the last answer about changes of sessions. `None`: the catalog was not asked for them.
    changes_age: Option<u64>,
    /// The time at which a server was last asked. No other one is asked before `rests_until_us` (monotonic, µs).
    begun_us: u64,
    rests_until_us: u64,
    /// The time at which a server was last asked for the routines that read drawn values, and the age of code then.
    asked: Option<(u64, u64)>,
}

impl Routines {
    /// Whether the catalog must be asked again for the routines that read drawn values, and for the settings that routines set: the last
    /// answer is old, or code was made since. If so, it counts as asked from now on, whatever the result.
    pub(crate) fn is_due(&mut self, now_us: u64, age: u64) -> bool {
        let due = self
            .asked
            .is_none_or(|(asked_us, of)| of != age || now_us.saturating_sub(asked_us) >= ROUTINES_AGE_US);
        if due {
            self.asked = Some((now_us, age));
        }
        due
    }

    /// Whether a server must be asked which routines change their session before a client may have a server, or because the last
    /// answer is old.
    #[inline]
    pub(crate) fn are_to_be_read(&self, now_us: u64, age: u64) -> bool {
        (now_us >= self.due_us || self.known_age != Some(age)) && now_us >= self.rests_until_us
    }

    /// Whether the last answer holds for a statement that comes now: no code was made through the pooler since a server was asked.
    #[inline]
    pub(crate) fn are_current(&self, age: u64) -> bool {
        self.known_age == Some(age)
    }

    /// Whether any text may run code that changes its session, because code was made since a server was asked.
    #[inline]
    pub(crate) fn are_outdated(&self, age: u64) -> bool {
        self.changes_age.is_some_and(|changes_age| changes_age != age)
    }

    /// Notes that a server is asked. As long as the first question has no answer, other servers are asked as well.
    pub(crate) fn begin_reading(&mut self, now_us: u64) {
        self.begun_us = now_us;
        if let Changes::Read = self.changes {
            self.due_us = now_us.saturating_add(CHANGERS_AGE_US);
        }
    }

    /// Notes that a server has answered. [`Routines::learn`] takes in the answer.
    pub(crate) fn read(&mut self, now_us: u64, age: u64) {
        // While code is made all the time, servers are busy with this question for a part of the time only.
        let took_us = now_us.saturating_sub(self.begun_us).min(CATALOG_REST_US_MAX / CATALOG_REST);
        let follows = matches!(self.changes, Changes::Read);
        self.rests_until_us = if follows { now_us.saturating_add(took_us * CATALOG_REST) } else { 0 };
        self.changes = Changes::Read;
        (self.due_us, self.known_age) = (now_us.saturating_add(CHANGERS_AGE_US), Some(age));
        self.learn(&Graph::default());
        self.changes_age = None;
        self.settings.clear();
        (self.composers, self.has_new_composers) = (None, false);
    }

    /// A server could not answer: for a while no other one is asked. Returns whether that is news.
    pub(crate) fn give_up(&mut self, now_us: u64, age: u64) -> bool {
        let news = matches!(self.changes, Changes::Unread);
        if let Changes::Read = self.changes {
            self.rests_until_us = now_us.saturating_add(CATALOG_REST_US_MAX);
        } else {
            self.changes = Changes::Refused;
            (self.due_us, self.known_age) = (now_us.saturating_add(ROUTINES_AGE_US), Some(age));
        }
        news
    }

    /// Whether the catalog may have more routines that change their session than were learned.
    pub(crate) fn are_too_many(&self) -> bool {
        self.are_cut
    }

    /// Whether a server has told which routines change their session.
    pub(crate) fn are_read(&self) -> bool {
        matches!(self.changes, Changes::Read)
    }

    /// The configuration was read again: so is the catalog.
    pub(crate) fn doubt(&mut self) {
        (self.due_us, self.rests_until_us, self.known_age) = (0, 0, None);
    }

    /// Adds the name of a routine that reads drawn values (`currval`, `lastval`).
    pub(crate) fn learn_currval_routine(&mut self, name: &[u8]) {
        self.currval_routines.learn(name, ROUTINES_MAX);
    }

    /// Whether it is certain that no code changes sessions.
    #[inline]
    pub(crate) fn none_changes(&self) -> bool {
        let effects = self.unnamed == Effects::default() && self.commands == Effects::default();
        self.changers.len() + self.unseen.len() == 0 && effects && !self.are_unknown()
    }

    /// Takes in the catalog's information about code that changes sessions.
    pub(crate) fn learn(&mut self, graph: &Graph<'_>) {
        self.changers = Leading::to(graph, Effects::CHANGES);
        self.hiders = Leading::to(graph, Effects::HIDES);
        self.unseen = Leading::to(graph, Effects::UNSEEN);
        (self.unnamed, self.commands) = (graph.unnamed(), graph.commands());
        self.are_cut = graph.is_cut || self.changers.len() >= CHANGERS_MAX;
        self.changes_age = self.known_age;
        graph.settings.iter().for_each(|name| self.learn_setting(name));
    }

    /// Notes that the catalog has more names than an answer can hold.
    pub(crate) fn cut(&mut self) {
        self.are_cut = true;
    }

    /// Adds a custom setting that a routine sets.
    pub(crate) fn learn_setting(&mut self, name: &[u8]) {
        let name = name.to_ascii_lowercase();
        if self.settings.len() < ROUTINE_SETTINGS_MAX && !self.settings.iter().any(|known| **known == *name) {
            self.settings.push(name.into());
        }
    }

    /// Notes the catalog's sum over the routines that put names of settings together. The first sum after the catalog was read belongs to the
    /// names that were read; a later one that differs means that such code was made since.
    pub(crate) fn learn_composers(&mut self, sum: &[u8]) {
        match &self.composers {
            Some(known) => self.has_new_composers |= **known != *sum,
            None => self.composers = Some(sum.into()),
        }
    }

    /// Whether code that puts names of settings together was made since the catalog was read. pgweir cannot tell which settings it sets.
    pub(crate) fn has_new_composers(&self) -> bool {
        self.has_new_composers
    }

    /// Custom settings that routines set: after a call of one of them, its server is asked for these.
    pub(crate) fn settings(&self) -> &[Box<[u8]>] {
        &self.settings
    }

    /// Whether a text, or the message that carries it, may call a routine that reads drawn values.
    #[inline]
    pub(crate) fn asks_in(&self, bytes: &[u8]) -> bool {
        self.currval_routines.are_named_in(bytes) || self.currval_routines.len() >= ROUTINES_MAX
    }

    /// Whether a text, or the message that carries it, may run code that changes its session.
    #[inline]
    pub(crate) fn changes_in(&self, bytes: &[u8]) -> bool {
        self.changers.are_named_in(bytes)
            || self.unseen.are_named_in(bytes)
            || self.unnamed != Effects::default()
            || self.are_unknown()
    }

    /// The marks that a text has for the code that it may run; `marks` are those of its words.
    #[inline]
    pub(crate) fn marks_in(&self, bytes: &[u8], marks: Marks) -> Marks {
        let mut inside = Marks::NONE;
        if self.none_changes() {
            return inside;
        }
        let follows = self.commands != Effects::default() && marks.contains(Marks::READS_LOCALLY);
        if follows || self.changes_in(bytes) {
            inside.add(Marks::ROUTINES);
        }
        let effects = if follows { self.commands } else { self.unnamed };
        if effects.has(Effects::UNSEEN) || self.unseen.are_named_in(bytes) {
            inside.add(Marks::SEED);
        }
        inside
    }

    /// Whether a text, or the message that carries it, may run code that sets settings of unknown names.
    pub(crate) fn hides_in(&self, bytes: &[u8]) -> bool {
        let many = self.settings.len() >= ROUTINE_SETTINGS_MAX;
        let unnamed = self.unnamed.has(Effects::HIDES) || self.commands.has(Effects::HIDES);
        self.hiders.are_named_in(bytes)
            || unnamed
            || many && self.changers.are_named_in(bytes)
            || self.are_unknown()
    }

    /// Whether any text may run code that changes its session: the catalog has more names than are kept, or the servers have refused
    /// the question.
    #[inline]
    fn are_unknown(&self) -> bool {
        self.are_too_many() || matches!(self.changes, Changes::Refused)
    }

    /// Whether messages of a client may run code that changes its session or reads drawn values, by the names in them or by the types
    /// of their values.
    #[inline]
    pub(crate) fn may_run_in(&self, messages: &[u8]) -> bool {
        self.names_any() && self.may_any_run(messages)
    }

    /// Whether there is code that changes sessions or reads drawn values, so that texts must be searched for its names.
    #[inline]
    fn names_any(&self) -> bool {
        !self.none_changes() || self.currval_routines.len() > 0
    }

    fn may_any_run(&self, messages: &[u8]) -> bool {
        // The bytes of a header could be taken for the beginning of a word.
        whole_messages(messages).any(|message| {
            let types = || Parse::parse(message.body()).ok().map(|parse| parse.param_types);
            self.are_named_in(message.body()) || message.tag() == tag::PARSE && self.run_with(types)
        })
    }

    /// Whether values of these types may run code that changes the session. For a domain, the text need not contain a name.
    #[inline]
    pub(crate) fn run_with<'a>(&self, types: impl FnOnce() -> Option<&'a [u8]>) -> bool {
        !self.none_changes() && types().is_some_and(|types| !pgweir_wire::types::are_built_in(types))
    }

    /// Whether a text contains the name of code that changes sessions or reads drawn values.
    #[inline]
    pub(crate) fn are_named_in(&self, bytes: &[u8]) -> bool {
        self.names_any() && (self.asks_in(bytes) || self.changes_in(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rows = Vec<Vec<Option<Box<[u8]>>>>;

    fn rows(of: &[[&str; 3]]) -> Rows {
        let row = |row: &[&str; 3]| row.iter().map(|value| Some(Box::from(value.as_bytes()))).collect();
        of.iter().map(row).collect()
    }

    /// Rows with objects that have their names as ids.
    fn changing(names: &[&str]) -> Rows {
        let row = |name: &&str| [["o", *name, *name].map(str::to_owned), ["g", *name, ""].map(str::to_owned)];
        let all =
            names.iter().flat_map(row).map(|row| row.map(|value| Some(value.into_bytes().into())).to_vec());
        all.collect()
    }

    impl Routines {
        fn learn_rows(&mut self, rows: &Rows) {
            self.learn(&Graph::of(rows));
        }
    }

    #[test]
    fn code_that_puts_names_together_is_known_by_its_sum() {
        let mut routines = Routines::default();
        for sum in [b"7", b"7"] {
            routines.learn_composers(sum);
            assert!(!routines.has_new_composers());
        }
        for sum in [b"8", b"7"] {
            routines.learn_composers(sum);
            assert!(routines.has_new_composers(), "until the catalog is read again");
        }
        routines.read(1, 1);
        routines.learn_composers(b"8");
        assert!(!routines.has_new_composers());
    }

    #[test]
    fn a_text_that_asks_is_found() {
        let mut routines = Routines::default();
        assert!(routines.is_due(5, 7) && !routines.is_due(6, 7) && routines.is_due(6, 8));
        assert!(!routines.is_due(5 + ROUTINES_AGE_US, 8) && routines.is_due(6 + ROUTINES_AGE_US, 8));
        assert!(!routines.asks_in(b"select last_id()"));
        for name in [&b"last_id"[..], b"last_id", b"", b"Of Quotes"] {
            routines.learn_currval_routine(name);
        }
        assert!(routines.asks_in(b"select app.LAST_ID()") && routines.asks_in(b"select \"of quotes\"()"));
        assert!(!routines.asks_in(b"select last()") && !routines.changes_in(b"select last_id()"));
        for number in 0..ROUTINES_MAX - 2 {
            assert!(!routines.asks_in(b"select 1"), "{number}");
            routines.learn_currval_routine(format!("f{number}").as_bytes());
        }
        assert!(routines.asks_in(b"select 1"));
    }

    #[test]
    fn those_that_change_sessions_are_read_before_anything_else_and_again_when_there_are_others() {
        let mut routines = Routines::default();
        assert!(routines.are_to_be_read(5, 0), "nothing is known");
        routines.begin_reading(5);
        assert!(routines.are_to_be_read(6, 0), "an answer may never come");
        routines.read(7, 0);
        routines.learn_rows(&changing(&["Set_Tenant"]));
        assert!(routines.changes_in(b"select SET_tenant('x')") && routines.are_named_in(b"set_tenant"));
        assert!(!routines.are_to_be_read(8, 0) && routines.are_to_be_read(8, 1), "others were made");
        routines.begin_reading(8);
        assert!(routines.changes_in(b"set_tenant"), "what is known counts meanwhile");
        assert!(
            routines.are_current(0) && !routines.are_current(1) && routines.are_outdated(1),
            "and more may count"
        );
        routines.read(10, 1);
        assert!(
            routines.are_current(1) && !routines.are_outdated(2),
            "no server was asked which code changes sessions"
        );
        assert!(!routines.changes_in(b"set_tenant") && routines.none_changes(), "it is gone");
        assert!(routines.are_to_be_read(10 + CHANGERS_AGE_US, 1) && !routines.give_up(12, 1));
        routines.doubt();
        assert!(routines.are_to_be_read(11 + CHANGERS_AGE_US, 1));
        assert!(!routines.are_current(1), "it is doubted");
        let mut refused = Routines::default();
        assert!(refused.give_up(5, 7) && !refused.are_to_be_read(6, 7));
        assert!(refused.are_to_be_read(5 + ROUTINES_AGE_US, 7) && !refused.give_up(6, 7));
        refused.doubt();
        assert!(refused.are_to_be_read(CHANGERS_AGE_US, 7) && !refused.are_too_many());
        assert!(
            refused.changes_in(b"select 1") && refused.hides_in(b"select 1"),
            "any text may change its session"
        );
    }

    #[test]
    fn continuous_changes_leave_servers_some_time() {
        let mut routines = Routines::default();
        routines.begin_reading(0);
        routines.read(1000, 0);
        assert!(routines.are_to_be_read(1000, 1), "the first change is looked at now");
        routines.begin_reading(1000);
        routines.read(2000, 1);
        assert!(!routines.are_to_be_read(2000 + 1000 * CATALOG_REST - 1, 2));
        assert!(routines.are_to_be_read(2000 + 1000 * CATALOG_REST, 2) && !routines.are_current(2));
        routines.begin_reading(5_000_000);
        routines.read(600_000_000, 2);
        assert!(routines.are_to_be_read(600_000_000 + CATALOG_REST_US_MAX, 3), "not for long");
    }

    #[test]
    fn with_more_than_are_kept_any_text_may_name_one() {
        let mut routines = Routines::default();
        let names: Vec<_> = (0..CHANGERS_MAX).map(|number| format!("f{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        routines.learn_rows(&changing(&names[1..]));
        assert!(!routines.are_too_many() && !routines.changes_in(b"select 1") && !routines.none_changes());
        assert!(routines.changes_in(b"select f2999()") && !routines.hides_in(b"select f2999()"));
        let more = rows(&[["z", "", ""]]);
        for rows in [&changing(&names), &more] {
            routines.learn_rows(rows);
            assert!(
                routines.are_too_many() && routines.changes_in(b"select 1") && routines.hides_in(b"select 1")
            );
        }
        routines.learn_rows(&changing(&names[1..2]));
        (0..ROUTINE_SETTINGS_MAX).for_each(|number| routines.learn_setting(format!("a.{number}").as_bytes()));
        assert!(routines.hides_in(b"select f1()") && !routines.hides_in(b"select 1"));
    }

    #[test]
    fn code_of_triggers_runs_when_rows_change() {
        let mut routines = Routines::default();
        routines.learn_rows(&rows(&[["g", "f", ""], ["d", "t", "wf"], ["o", "t", "Visits"]]));
        for text in [
            "insert into visits values (1)",
            "with a as (DELETE FROM \"visits\") select 1",
            "copy visits from stdin",
        ] {
            assert!(routines.changes_in(text.as_bytes()), "{text}");
        }
        for text in ["select * from visits", "select updated from visits", "insert into visit values (1)"] {
            assert!(!routines.changes_in(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn code_that_is_not_named_is_run_by_any_text() {
        let mut routines = Routines::default();
        routines.learn_rows(&rows(&[["g", "f", ""], ["d", "0.0", "rf"]]));
        assert!(
            routines.changes_in(b"select 1") && !routines.hides_in(b"select 1") && !routines.none_changes()
        );
        routines.learn_rows(&rows(&[
            ["g", "f", ""],
            ["l", "f", ""],
            ["d", "0.3", "rf"],
            ["o", "0.3", "comment"],
        ]));
        let both = Marks::ROUTINES.and(Marks::SEED);
        assert_eq!(routines.marks_in(b"select a into b", Marks::READS_LOCALLY), both);
        assert_eq!(routines.marks_in(b"comment on table a is 'x'", Marks::NONE), both);
        assert_eq!(routines.marks_in(b"select 1", Marks::NONE), Marks::NONE);
    }
}
