//! What the catalog of a pool's database says of its routines, because no text of a client does: which of
//! them ask for drawn values inside of their bodies, so that a text that names one may ask; which of them
//! change their session, so that the session is asked for after a text that names one; and which custom
//! settings (`app.tenant`) they set, as PostgreSQL has no list of those that a session has. Values only;
//! `catalog/query.rs` and `session/audit.rs` have the catalog asked.

use pgweir_sql::SettingNames;

use crate::limits::{CHANGERS_AGE_US, CHANGERS_MAX, ROUTINE_SETTINGS_MAX, ROUTINES_AGE_US, ROUTINES_MAX};

/// Another part of the question for everything: names of such routines. Those of a body in standard SQL are found by its text.
pub(crate) const QUESTION: &[u8] =
    b" UNION ALL SELECT 'f', routine.name, NULL FROM (SELECT DISTINCT proname::pg_catalog.text AS name \
FROM pg_catalog.pg_proc WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) \
AND CASE WHEN prosrc OPERATOR(pg_catalog.=) '' THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END \
OPERATOR(pg_catalog.~*) '(currval|lastval)' LIMIT 1000) AS routine";

/// Another part: settings of the users' own that routines set by a literal name, and their values in this session. No backslash
/// stands in it: what that means in a string is the session's own matter.
pub(crate) const SETTINGS_QUESTION: &[u8] =
    b" UNION ALL SELECT 'u', setting.name, pg_catalog.current_setting(setting.name, true) FROM (\
SELECT DISTINCT pg_catalog.lower(COALESCE(found.parts[1], found.parts[2])) AS name FROM pg_catalog.pg_proc, \
LATERAL pg_catalog.regexp_matches(CASE WHEN prosrc OPERATOR(pg_catalog.=) '' \
THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END, \
'set_config[[:space:]]*[(][[:space:]]*''([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)''\
|[[:<:]]set[[:space:]]+(?:session[[:space:]]+)?([a-z_][a-z0-9_$]*(?:[.][a-z_][a-z0-9_$]*)+)[[:space:]]*(?:=|to[[:>:]])', 'gi') \
AS found(parts) WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) LIMIT 500) AS setting \
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_settings AS known \
WHERE pg_catalog.lower(known.name) OPERATOR(pg_catalog.=) setting.name)";

/// Another part: routines that change their session beyond their transaction ('g'), those that call them or
/// run SQL that is put together ('e'), with their bodies in lower case (NULL: a body that is too long); and
/// tables with triggers that call them ('w'), each with the name of the routine. By words, as texts of
/// clients are read: what is only prepared to be undone (SET LOCAL, ON COMMIT DROP) is no change. A body
/// written in standard SQL is read as PostgreSQL spells it.
pub(crate) const CHANGES_QUESTION: &[u8] =
    b" UNION ALL SELECT changer.kind, changer.name, changer.value FROM (WITH RECURSIVE bodies AS (SELECT oid, proname::pg_catalog.text AS name, \
pg_catalog.lower(CASE WHEN prosrc OPERATOR(pg_catalog.=) '' THEN pg_catalog.pg_get_functiondef(oid) ELSE prosrc END) AS body \
FROM pg_catalog.pg_proc WHERE prolang OPERATOR(pg_catalog.<>) ALL ('{12,13}'::pg_catalog.oid[]) \
AND pronamespace OPERATOR(pg_catalog.<>) '11'), \
own AS (SELECT oid, name, body OPERATOR(pg_catalog.~) pg_catalog.concat(\
'set_config\"?[[:space:]]*[(](?!(?:(?!set_config)[^;])*,[[:space:]]*true[[:space:]]*[)])\
|(?:^|[;''$]|[[:<:]](?:begin|then|else|loop|as|return|do)[[:>:]])(?:[[:space:]]|--[^',pg_catalog.chr(10),']*',pg_catalog.chr(10),')*\
(?:set[[:space:]]+(?!(?:local|transaction|constraints)[[:>:]])|(?:reset|discard|listen|unlisten|prepare|deallocate)[[:space:]])\
|advisory_(?:un)?lock\
|[[:<:]](?:temp|temporary)[[:space:]]+(?:table|view|sequence)[[:>:]](?![^;]*on[[:space:]]+commit[[:space:]]+drop)\
|into[[:space:]]+(?:temp|temporary)[[:>:]]|[[:<:]]with[[:space:]]+hold[[:>:]]') AS changes, \
body OPERATOR(pg_catalog.~) '[[:<:]]execute[[:space:]]+(?!(?:on|function|procedure)[[:>:]])(?!(?:format[[:space:]]*[(][[:space:]]*)?[$e]*''[[:space:]]*\
(?:alter|analyze|cluster|comment|copy|create|delete|drop|grant|insert|lock|merge|notify|refresh|reindex|revoke|truncate|update|vacuum|with|select)[[:>:]])' \
AS runs FROM bodies), \
changing AS (SELECT oid, name FROM own WHERE changes OR runs \
UNION SELECT caller.oid, caller.name FROM bodies AS caller, changing WHERE pg_catalog.length(changing.name) OPERATOR(pg_catalog.>) 2 \
AND pg_catalog.strpos(caller.body, pg_catalog.lower(changing.name)) OPERATOR(pg_catalog.>) 0) \
SELECT CASE WHEN own.changes THEN 'g' ELSE 'e' END AS kind, own.name, CASE WHEN pg_catalog.sum(pg_catalog.octet_length(bodies.body)) \
OVER (ORDER BY pg_catalog.octet_length(bodies.body), own.oid) OPERATOR(pg_catalog.<) '500000' THEN bodies.body END AS value \
FROM own, bodies WHERE bodies.oid OPERATOR(pg_catalog.=) own.oid AND own.oid IN (SELECT changing.oid FROM changing) \
UNION ALL SELECT DISTINCT 'w', relname::pg_catalog.text, changing.name FROM pg_catalog.pg_trigger, pg_catalog.pg_class, changing \
WHERE tgfoid OPERATOR(pg_catalog.=) changing.oid AND pg_class.oid OPERATOR(pg_catalog.=) tgrelid LIMIT 3000) AS changer";

/// Names that texts are searched for.
#[derive(Default)]
struct Names {
    /// In lower case, in order.
    words: Vec<Box<[u8]>>,
    /// The names that are no single word.
    others: Vec<Box<[u8]>>,
}

impl Names {
    fn len(&self) -> usize {
        self.words.len() + self.others.len()
    }

    fn learn(&mut self, name: &[u8], max: usize) {
        let name = name.to_ascii_lowercase();
        if name.is_empty() || self.len() >= max {
            return;
        }
        let names = if name.iter().all(|byte| is_word(*byte)) { &mut self.words } else { &mut self.others };
        if let Err(place) = names.binary_search_by(|known| (**known).cmp(&*name)) {
            names.insert(place, name.into());
        }
    }

    /// What calls one of them is one, too: names and bodies.
    fn learn_callers(&mut self, mut callers: Vec<(&[u8], &[u8])>) {
        let mut known = 0;
        while self.len() > known {
            known = self.len();
            callers.retain(|(name, body)| {
                let calls = self.are_named_in(body);
                if calls {
                    self.learn(name, CHANGERS_MAX);
                }
                !calls
            });
        }
    }

    /// One of them stands in it, in whatever case.
    #[inline]
    fn are_named_in(&self, bytes: &[u8]) -> bool {
        self.len() > 0 && self.stand_in(bytes)
    }

    fn stand_in(&self, bytes: &[u8]) -> bool {
        let mut lower = [0; NAME_BYTES_MAX];
        let mut is_known = |word: &[u8]| {
            let lower = &mut lower[..word.len().min(NAME_BYTES_MAX)];
            lower.copy_from_slice(&word[..lower.len()]);
            lower.make_ascii_lowercase();
            self.words.binary_search_by(|known| (**known).cmp(lower)).is_ok()
                || lower.len() > CUT_BYTES_MIN && self.is_cut_to_one(lower)
        };
        let words = !self.words.is_empty() && bytes.split(|byte| !is_word(*byte)).any(&mut is_known);
        let stands = |name: &[u8]| bytes.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
        words || self.others.iter().any(|name| stands(name))
    }

    /// PostgreSQL cuts a longer word to one of these.
    #[cold]
    fn is_cut_to_one(&self, word: &[u8]) -> bool {
        self.words.iter().any(|name| name.len() >= CUT_BYTES_MIN && word.starts_with(name))
    }
}

/// A word longer than PostgreSQL's names (`NAMEDATALEN`), unless it was built for that, is looked at up to
/// here.
const NAME_BYTES_MAX: usize = 256;

/// A word that is too long is cut to 63 bytes, and before a character that would be cut in two
/// (`truncate_identifier` in `scansup.c`).
const CUT_BYTES_MIN: usize = 60;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

/// What the catalog says of a routine.
pub(crate) struct Body<'a> {
    pub(crate) name: &'a [u8],
    /// `None`: it is too long.
    pub(crate) text: Option<&'a [u8]>,
    /// Its words say that it changes its session.
    pub(crate) changes: bool,
}

/// What is known of the routines that change their sessions.
#[derive(Clone, Copy, Default)]
enum Changes {
    /// Nothing: no server was asked.
    #[default]
    Unread,
    /// What the catalog said.
    Read,
    /// The servers did not say.
    Refused,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Routines {
    currval_routines: Names,
    changers: Names,
    /// The changers that set settings with names that their bodies do not tell.
    hiders: Names,
    /// Settings of the users' own that routines set, letters in lower case.
    settings: Vec<Box<[u8]>>,
    /// There are more than the known ones.
    are_cut: bool,
    changes: Changes,
    /// When the catalog is to be read again (monotonic, µs) ...
    due_us: u64,
    /// ... unless routines are of another age before.
    age: u64,
    asked_us: Option<u64>,
}

impl Routines {
    /// The catalog must be asked again for the routines that ask; it is taken as asked from here on, whatever
    /// comes of it.
    pub(crate) fn is_due(&mut self, now_us: u64) -> bool {
        let due = self.asked_us.is_none_or(|asked_us| now_us.saturating_sub(asked_us) >= ROUTINES_AGE_US);
        if due {
            self.asked_us = Some(now_us);
        }
        due
    }

    /// No client may have a server before one was asked which routines change their session; or it is time to
    /// ask again.
    #[inline]
    pub(crate) fn are_to_be_read(&self, now_us: u64, age: u64) -> bool {
        now_us >= self.due_us || age != self.age
    }

    /// A server is asked, at this age of routines. As long as there is no answer to the first question, others are asked, too.
    pub(crate) fn begin_reading(&mut self, now_us: u64, age: u64) {
        if let Changes::Read = self.changes {
            (self.due_us, self.age) = (now_us.saturating_add(CHANGERS_AGE_US), age);
        }
    }

    /// A server has answered; [`Routines::learn_bodies`] is told what.
    pub(crate) fn read(&mut self, now_us: u64, age: u64) {
        self.changes = Changes::Read;
        (self.due_us, self.age) = (now_us.saturating_add(CHANGERS_AGE_US), age);
        self.changers = Names::default();
        self.hiders = Names::default();
        self.settings.clear();
        self.are_cut = false;
    }

    /// A server could not answer: for a while no other one is asked. Returns whether that is news.
    pub(crate) fn give_up(&mut self, now_us: u64, age: u64) -> bool {
        let news = matches!(self.changes, Changes::Unread);
        if !matches!(self.changes, Changes::Read) {
            self.changes = Changes::Refused;
            (self.due_us, self.age) = (now_us.saturating_add(ROUTINES_AGE_US), age);
        }
        news
    }

    /// There may be more that change their session than were learned.
    pub(crate) fn are_too_many(&self) -> bool {
        self.are_cut
    }

    /// A server has said which they are.
    pub(crate) fn are_read(&self) -> bool {
        matches!(self.changes, Changes::Read)
    }

    /// The configuration was read again: so is the catalog.
    pub(crate) fn doubt(&mut self) {
        self.due_us = 0;
    }

    /// This one asks for drawn values.
    pub(crate) fn learn_currval_routine(&mut self, name: &[u8]) {
        self.currval_routines.learn(name, ROUTINES_MAX);
    }

    /// There is none that changes its session.
    pub(crate) fn none_changes(&self) -> bool {
        self.changers.len() == 0 && !self.are_unknown()
    }

    /// Takes in what the catalog says of routines and of tables with triggers that call them. The routines
    /// that change their session, that set settings of unknown names, and all that call one of them, are
    /// known from here on.
    pub(crate) fn learn_bodies(&mut self, bodies: &[Body<'_>], tables: &[(&[u8], &[u8])]) {
        self.are_cut |= bodies.len() + tables.len() >= CHANGERS_MAX;
        let mut callers = Vec::new();
        for Body { name, text, changes } in bodies {
            let found = text.map(SettingNames::of_body);
            let hides = found.as_ref().is_none_or(|found| found.unreadable || !found.parameters.is_empty());
            if hides {
                self.hiders.learn(name, CHANGERS_MAX);
            }
            if hides || *changes {
                self.changers.learn(name, CHANGERS_MAX);
            }
            found.iter().flat_map(|found| &found.names).for_each(|name| self.learn_setting(name));
            callers.extend(text.map(|text| (*name, text)));
        }
        self.changers.learn_callers(callers.clone());
        self.hiders.learn_callers(callers);
        for (table, routine) in tables {
            for names in [&mut self.changers, &mut self.hiders] {
                if names.are_named_in(routine) {
                    names.learn(table, CHANGERS_MAX);
                }
            }
        }
    }

    /// The catalog has more than it could say.
    pub(crate) fn cut(&mut self) {
        self.are_cut = true;
    }

    /// A routine sets this setting of the users' own.
    pub(crate) fn learn_setting(&mut self, name: &[u8]) {
        let name = name.to_ascii_lowercase();
        if self.settings.len() < ROUTINE_SETTINGS_MAX && !self.settings.iter().any(|known| **known == *name) {
            self.settings.push(name.into());
        }
    }

    /// Custom settings that routines set: after a call of one of them, its server is asked for these.
    pub(crate) fn settings(&self) -> &[Box<[u8]>] {
        &self.settings
    }

    /// A text, or what carries one, may call one that asks.
    #[inline]
    pub(crate) fn asks_in(&self, bytes: &[u8]) -> bool {
        self.currval_routines.are_named_in(bytes) || self.currval_routines.len() >= ROUTINES_MAX
    }

    /// A text, or what carries one, may call one that changes its session.
    #[inline]
    pub(crate) fn changes_in(&self, bytes: &[u8]) -> bool {
        self.changers.are_named_in(bytes) || self.are_unknown()
    }

    /// A text, or what carries one, may call one that sets settings of unknown names.
    pub(crate) fn hides_in(&self, bytes: &[u8]) -> bool {
        let many = self.settings.len() >= ROUTINE_SETTINGS_MAX;
        self.hiders.are_named_in(bytes) || many && self.changers.are_named_in(bytes) || self.are_unknown()
    }

    /// Any text may call one: the catalog has more than are kept, or was not told.
    #[inline]
    fn are_unknown(&self) -> bool {
        self.are_too_many() || matches!(self.changes, Changes::Refused)
    }

    /// It is one of either kind.
    #[inline]
    pub(crate) fn are_named_in(&self, bytes: &[u8]) -> bool {
        self.asks_in(bytes) || self.changes_in(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Routines {
        fn learn_routine(&mut self, name: &[u8]) {
            self.learn_bodies(&[Body { name, text: Some(b""), changes: true }], &[]);
        }
    }

    #[test]
    fn a_text_that_names_one_is_found() {
        let mut routines = Routines::default();
        assert!(routines.is_due(5) && !routines.is_due(6) && routines.is_due(5 + ROUTINES_AGE_US));
        assert!(!routines.asks_in(b"select last_id()"));
        for name in [&b"last_id"[..], b"last_id", b"", b"Of Quotes"] {
            routines.learn_currval_routine(name);
        }
        assert!(routines.asks_in(b"select app.LAST_ID()") && !routines.asks_in(b"select last()"));
        assert!(!routines.asks_in(b"select last_ids, a_last_id"), "a name is a whole word");
        assert!(routines.asks_in(b"select \"of quotes\"()") && !routines.changes_in(b"select last_id()"));
        (0..2 * ROUTINES_MAX)
            .for_each(|number| routines.learn_currval_routine(format!("f{number}").as_bytes()));
        assert_eq!(routines.currval_routines.len(), ROUTINES_MAX);
    }

    #[test]
    fn a_word_that_is_too_long_is_the_name_that_it_is_cut_to() {
        let mut routines = Routines::default();
        let name = "n".repeat(63);
        routines.learn_routine(name.as_bytes());
        assert!(routines.changes_in(name.as_bytes()) && !routines.changes_in(&name.as_bytes()[1..]));
        for more in ["s", "_of_a_tenant", &"x".repeat(300)] {
            assert!(
                routines.changes_in(format!("select {name}{more}()").to_uppercase().as_bytes()),
                "{more}"
            );
        }
        routines.learn_routine(b"short");
        assert!(!routines.changes_in(b"select shorts()") && !routines.changes_in("x".repeat(400).as_bytes()));
    }

    #[test]
    fn those_that_change_sessions_are_read_before_anything_else_and_again_when_there_are_others() {
        let mut routines = Routines::default();
        assert!(routines.are_to_be_read(5, 0), "nothing is known");
        routines.begin_reading(5, 0);
        assert!(routines.are_to_be_read(6, 0), "an answer may never come");
        routines.read(7, 0);
        routines.learn_routine(b"Set_Tenant");
        assert!(routines.changes_in(b"select SET_tenant('x')") && routines.are_named_in(b"set_tenant"));
        assert!(!routines.are_to_be_read(8, 0) && routines.are_to_be_read(8, 1), "others were made");
        routines.begin_reading(8, 1);
        assert!(
            !routines.are_to_be_read(9, 1) && routines.changes_in(b"set_tenant"),
            "what is known counts meanwhile"
        );
        routines.read(10, 1);
        assert!(!routines.changes_in(b"set_tenant"), "it is gone");
        assert!(routines.are_to_be_read(10 + CHANGERS_AGE_US, 1) && !routines.give_up(12, 1));
        routines.doubt();
        assert!(routines.are_to_be_read(11 + CHANGERS_AGE_US, 1));
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
    fn with_more_than_are_kept_any_text_may_name_one() {
        let mut routines = Routines::default();
        routines.read(1, 0);
        let names: Vec<_> = (0..CHANGERS_MAX).map(|number| format!("f{number}")).collect();
        let body = |name| Body { name, text: Some(&b""[..]), changes: true };
        let bodies: Vec<_> = names.iter().map(|name| body(name.as_bytes())).collect();
        routines.learn_bodies(&bodies[1..], &[]);
        assert!(!routines.are_too_many() && !routines.changes_in(b"select 1") && !routines.none_changes());
        assert!(routines.changes_in(b"select f2999()") && !routines.hides_in(b"select f2999()"));
        routines.read(2, 0);
        routines.learn_bodies(&bodies, &[]);
        assert!(
            routines.are_too_many() && routines.changes_in(b"select 1") && routines.hides_in(b"select 1")
        );
        for number in 0..ROUTINES_MAX {
            assert!(!routines.asks_in(b"select 1"), "{number}");
            routines.learn_currval_routine(format!("g{number}").as_bytes());
        }
        assert!(routines.asks_in(b"select 1"));
        routines.read(3, 0);
        routines.learn_bodies(&bodies[1..2], &[]);
        (0..ROUTINE_SETTINGS_MAX).for_each(|number| routines.learn_setting(format!("a.{number}").as_bytes()));
        assert!(routines.hides_in(b"select f1()") && !routines.hides_in(b"select 1"));
    }

    #[test]
    fn what_a_body_hides_is_hidden_by_those_that_call_it() {
        let mut routines = Routines::default();
        routines.read(1, 0);
        let body = |name, text: &'static str, changes| Body { name, text: Some(text.as_bytes()), changes };
        routines.learn_bodies(
            &[
                body(b"outer", "select middle()", false),
                body(b"middle", "select inner_one('x')", false),
                body(b"inner_one", "select set_config('a.' || $1, 'x', false)", true),
                body(b"given", "select set_config($1, 'x', false)", true),
                body(b"plain", "select set_config('App.Tenant', 'x', false)", true),
                body(b"runs", "begin execute what; end", false),
                body(b"strings", "declare v text; begin v := 'drop table t'; execute v; end", false),
                Body { name: b"long", text: None, changes: false },
            ],
            &[(b"visits", b"plain"), (b"notes", b"outer"), (b"facts", b"strings")],
        );
        for name in ["outer", "middle", "inner_one", "given", "runs", "long", "notes"] {
            assert!(routines.hides_in(name.as_bytes()) && routines.changes_in(name.as_bytes()), "{name}");
        }
        for name in ["plain", "visits"] {
            assert!(!routines.hides_in(name.as_bytes()) && routines.changes_in(name.as_bytes()), "{name}");
        }
        for name in ["strings", "facts"] {
            assert!(!routines.changes_in(name.as_bytes()), "{name}");
        }
        assert_eq!(routines.settings(), [Box::from(&b"app.tenant"[..])]);
    }
}
