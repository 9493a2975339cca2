//! What the catalog of a pool's database says of names, so that of a text it is known whether it only reads: which names stand
//! for something that runs code which may do more (a volatile function, a view or policy that calls one, a view that locks
//! rows, a foreign table), and which functions are known to be less. Values only; `query.rs` has the catalog asked.
//!
//! Rows of its answer: names that may do more than read (`v`), names that mean something else on a standby (`s`), and functions of users that
//! are not volatile (`r`), one in a line; and the isolation level of transactions that name none (`i`). No names instead of none: there are too
//! many, or such code runs without being named.
//! PostgreSQL's own functions are not among them: `pgweir_sql` knows those.

use std::collections::VecDeque;

use pgweir_sql::{
    AtStandby, NameRole, Traits, Verb, at_standby, certainly_reads, doubtful_part, find_name, name_hash,
};

use crate::limits::{BARRED_TEXTS_MAX, REACH_NAMES_BYTES_MAX, REACH_NAMES_MAX};
use crate::pool::catalog::graph::{Effects, Graph};

/// Words that stand for something else on a standby, whatever the catalog says: the settings of the server, and what a sequence
/// holds.
const OTHER_AT_STANDBYS: [&[u8]; 4] = [b"current_setting", b"is_called", b"last_value", b"log_cnt"];

/// The names of a database, with what they may do in a text. Two values are compared by `Reach::identity`: if it is the same, both
/// say the same.
#[derive(Default, Debug)]
pub(crate) struct Reach {
    /// Hashes, in order.
    barred: Box<[u64]>,
    known: Box<[u64]>,
    /// Hashes of the names that mean something else on a standby. `None`: these names are not known.
    at_primary: Option<Box<[u64]>>,
    /// The operators among the names, with what they may do. They are looked for as they are written.
    symbols: Vec<(Reads, Box<[u8]>)>,
    /// Whether new connections begin transactions with READ COMMITTED. `false` also if the server has not told.
    pub(crate) begins_read_committed: bool,
    /// A number that identifies the contents. Its two lowest bits are 0. The value 0 means that nothing is known, so no text counts
    /// as a read.
    identity: u64,
    lists: NameLists,
    /// Texts that were taken for reads and were none, by fingerprint: those that were found last.
    barred_texts: VecDeque<u64>,
}

/// The finding whether a text only reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reads {
    /// The text may do more than read, or its effects are not known.
    InDoubt,
    /// The text certainly only reads, but a standby might give another answer.
    AtPrimary,
    /// The text certainly only reads, and a standby with the same data gives the same answer.
    Anywhere,
}

/// The finding about a text under one [`Reach`]: that one's identity, and the finding in the two lowest bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Verdict(u64);

const IN_DOUBT: u64 = 0;
const AT_PRIMARY: u64 = 1;
const ANYWHERE: u64 = 2;

impl Reads {
    /// Whether the text certainly only reads.
    #[inline]
    pub(crate) fn certainly(self) -> bool {
        self != Reads::InDoubt
    }
}

impl Verdict {
    /// Returns the finding if it was made under this `Reach`; otherwise `None`.
    #[inline]
    pub(crate) fn under(self, reach: &Reach) -> Option<Reads> {
        match self.0 ^ reach.identity {
            IN_DOUBT => Some(Reads::InDoubt),
            AT_PRIMARY => Some(Reads::AtPrimary),
            ANYWHERE => Some(Reads::Anywhere),
            _ => None,
        }
    }

    fn of(reads: Reads, reach: &Reach) -> Verdict {
        Verdict(
            reach.identity
                | match reads {
                    Reads::InDoubt => IN_DOUBT,
                    Reads::AtPrimary => AT_PRIMARY,
                    Reads::Anywhere => ANYWHERE,
                },
        )
    }
}

/// The configuration's lists of names, which take precedence over the catalog.
#[derive(Default, Debug)]
pub(crate) struct NameLists {
    /// Functions that only read.
    reads: Patterns,
    /// Functions and operators that may do more than read.
    writes: Patterns,
    /// Names whose contents must be read from the primary.
    at_primary: Patterns,
}

/// Names in lower case. A `*` at the end stands for any rest.
#[derive(Default, Debug)]
struct Patterns(Vec<String>);

impl Patterns {
    fn of(list: &[String]) -> Patterns {
        Patterns(list.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    fn match_name(&self, name: &[u8]) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(front) => {
                name.get(..front.len()).is_some_and(|own| own.eq_ignore_ascii_case(front.as_bytes()))
            }
            None => name.eq_ignore_ascii_case(pattern.as_bytes()),
        };
        self.0.iter().any(fits)
    }

    /// The first word of a text that is such a name.
    fn named_in<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        if self.0.is_empty() { None } else { find_name(text, |name| self.match_name(name)) }
    }
}

impl NameLists {
    /// Takes the lists of the settings `read_functions`, `write_functions` and `primary_names`.
    pub(crate) fn of([reads, writes, at_primary]: [&[String]; 3]) -> NameLists {
        let [reads, writes, at_primary] = [reads, writes, at_primary].map(Patterns::of);
        NameLists { reads, writes, at_primary }
    }

    /// A number that is another one for other lists.
    fn hashes(&self) -> impl Iterator<Item = u64> {
        let lists = [&self.reads, &self.writes, &self.at_primary];
        lists
            .into_iter()
            .flat_map(|list| list.0.iter().map(|name| name_hash(name.as_bytes())).chain([u64::MAX]))
    }
}

impl Reach {
    /// Builds the names from the rows of the catalog's answer, the code that changes sessions (`graph`), and the configuration's
    /// lists.
    pub(crate) fn of(rows: &[Vec<Option<Box<[u8]>>>], graph: &Graph<'_>, lists: NameLists) -> Reach {
        let names = |wanted: &[u8]| {
            rows.iter().find_map(|row| match row.as_slice() {
                [Some(kind), Some(names), _] if **kind == *wanted => Some(&**names),
                _ => None,
            })
        };
        let at_standbys = names(b"s");
        let (Some(more), Some(known)) = (names(b"v"), names(b"r")) else { return Reach::default() };
        if graph.unnamed() != Effects::default() || graph.is_cut {
            return Reach::default();
        }
        // Code that changes a session does more than read.
        let more = [more, &graph.changing().collect::<Vec<_>>().join(&b'\n')].join(&b'\n');
        let (Some(mut barred), Some(mut known)) = (hashes(&more, true), hashes(known, false)) else {
            return Reach::default();
        };
        let listed = lines(&more).filter(|name| lists.reads.match_name(name)).map(name_hash);
        let mut trusted: Vec<u64> = listed.collect();
        trusted.extend(lists.reads.0.iter().map(|name| name_hash(name.as_bytes())));
        trusted.retain(|name| *name != 0);
        barred.retain(|name| !trusted.contains(name));
        known.extend(trusted);
        known.sort_unstable();
        let at_primary = at_standbys.and_then(|names| hashes(names, true)).map(with_fixed_words);
        let mut symbols = symbols(Reads::InDoubt, &more);
        symbols.extend(self::symbols(Reads::AtPrimary, at_standbys.unwrap_or_default()));
        let mut reach = Reach {
            barred: barred.into(),
            known: known.into(),
            at_primary: at_primary.map(Vec::into),
            symbols,
            begins_read_committed: names(b"i")
                .is_some_and(|level| level.eq_ignore_ascii_case(b"read committed")),
            identity: 0,
            lists,
            barred_texts: VecDeque::new(),
        };
        reach.identity = reach.hash();
        reach
    }

    /// A number that is another one for other names.
    fn hash(&self) -> u64 {
        let mix = |hash: u64, name: &u64| (hash ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = self.at_primary.as_deref().unwrap_or(&[0, u64::MAX]);
        let all = [&self.barred[..], &[u64::MAX], &self.known, &[u64::MAX], words].concat();
        let said: Vec<u64> = self.lists.hashes().collect();
        (all.iter().chain(&said).fold(1, mix) & !3).max(4)
    }

    /// Takes over a new answer of the catalog. If it is the same as before, barred texts stay barred.
    pub(crate) fn follow(&mut self, new: Reach) {
        let barred_texts = std::mem::take(&mut self.barred_texts);
        let says_the_same = self.identity == new.identity;
        *self = new;
        if says_the_same {
            self.barred_texts = barred_texts;
        }
    }

    /// Bars a text that was taken for a read and is none: it runs on the primary until the catalog's answer changes.
    pub(crate) fn bar(&mut self, text: u64) {
        if self.barred_texts.len() >= BARRED_TEXTS_MAX {
            self.barred_texts.pop_front();
        }
        self.barred_texts.push_back(text);
    }

    /// Whether a text was barred with [`Reach::bar`].
    pub(crate) fn is_barred(&self, text: u64) -> bool {
        self.barred_texts.contains(&text)
    }

    /// The reach in a database without any code of users.
    #[cfg(test)]
    pub(crate) fn of_nothing_special() -> Reach {
        let row = |kind: &[u8]| vec![Some(kind.into()), Some(Box::default()), None];
        Reach::of(&[row(b"v"), row(b"r")], &Graph::default(), NameLists::default())
    }

    /// Returns whether `text` only reads. `before` is the earlier finding about the text, and is updated. `traits` are the text's.
    #[inline]
    pub(crate) fn reads(&self, text: &[u8], traits: &Traits, before: &mut Verdict) -> Reads {
        before.under(self).unwrap_or_else(|| {
            let reads = self.look(text, traits);
            *before = Verdict::of(reads, self);
            reads
        })
    }

    /// The word of a text for which it does not certainly read, or for which a standby might give another answer; and which of both.
    /// `None`: it reads anywhere. A text that is no single query has no such word.
    pub(crate) fn doubt<'a>(&self, text: &'a [u8]) -> Option<(Reads, &'a [u8])> {
        let symbol = self.symbol_in(text);
        let barred = symbol.filter(|(reads, _)| *reads == Reads::InDoubt).map(|(_, symbol)| symbol);
        if let Some(word) = self.lists.writes.named_in(text).or(barred) {
            return Some((Reads::InDoubt, word));
        }
        let mut other = None;
        let doubtful = doubtful_part(text, |role, name| self.allows(role, name, &mut other));
        let at_primary = || {
            let listed = self.lists.at_primary.named_in(text);
            let named = |hash| find_name(text, |name| has_hash(name, hash)).unwrap_or_default();
            let word = listed.or(other.map(named)).or(symbol.map(|(_, symbol)| symbol))?;
            Some((Reads::AtPrimary, word))
        };
        doubtful.map(|part| (Reads::InDoubt, part)).or_else(at_primary)
    }

    /// Returns the word of a text that a standby treats differently from the primary without an error, and whether the text may end
    /// the transaction.
    pub(crate) fn at_standby<'a>(&self, text: &'a [u8]) -> AtStandby<'a> {
        let found = at_standby(text, |name| self.is_other_at_standbys(name));
        let listed = || self.lists.writes.named_in(text).or_else(|| self.lists.at_primary.named_in(text));
        let symbol = || self.symbol_in(text).map(|(_, symbol)| symbol);
        AtStandby { differs: found.differs.or_else(listed).or_else(symbol), ..found }
    }

    /// The operator in a text that decides what is known of it: one that may do more than read, else one that means something else on a
    /// standby.
    fn symbol_in<'a>(&self, text: &'a [u8]) -> Option<(Reads, &'a [u8])> {
        self.symbols.iter().find_map(|(reads, symbol)| {
            let part = text.windows(symbol.len()).find(|part| **part == **symbol)?;
            Some((*reads, part))
        })
    }

    /// The catalog says of a name that it may do more than read, or is another thing on a standby. Settings are the client's own.
    fn is_other_at_standbys(&self, name: u64) -> bool {
        let at_primary = self.at_primary.as_deref().unwrap_or_default();
        let is_listed = at_primary.binary_search(&name).is_ok()
            && !OTHER_AT_STANDBYS.iter().any(|word| name_hash(word) == name);
        is_listed || self.barred.binary_search(&name).is_ok()
    }

    /// Whether the catalog was read, so that texts can certainly read.
    pub(crate) fn is_known(&self) -> bool {
        self.identity != 0
    }

    /// Whether the names that mean something else on a standby are known.
    pub(crate) fn knows_standbys(&self) -> bool {
        self.at_primary.is_some()
    }

    /// Whether a name may be in a text that only reads, in this role. `other` is set to the first name that means something else on a
    /// standby.
    fn allows(&self, role: NameRole, name: u64, other: &mut Option<u64>) -> bool {
        match role {
            NameRole::Mentioned => {
                let at_primary = self.at_primary.as_deref().unwrap_or_default();
                if at_primary.binary_search(&name).is_ok() {
                    other.get_or_insert(name);
                }
                self.barred.binary_search(&name).is_err()
            }
            NameRole::Called => self.known.binary_search(&name).is_ok(),
        }
    }

    #[cold]
    fn look(&self, text: &[u8], traits: &Traits) -> Reads {
        let mut other = None;
        let certainly = self.identity != 0
            && traits.certainly_self_contained
            && matches!(traits.verb, Verb::Select | Verb::Values | Verb::Table | Verb::With)
            && certainly_reads(text, |role, name| self.allows(role, name, &mut other))
            && self.lists.writes.named_in(text).is_none();
        let is_same_at_standbys = self.at_primary.is_some() && other.is_none();
        let is_same_at_standbys = is_same_at_standbys && self.lists.at_primary.named_in(text).is_none();
        let symbol =
            if self.symbols.is_empty() { None } else { self.symbol_in(text).map(|(reads, _)| reads) };
        let is_same_at_standbys = is_same_at_standbys && symbol.is_none();
        match (certainly && symbol != Some(Reads::InDoubt), is_same_at_standbys) {
            (false, _) => Reads::InDoubt,
            (true, false) => Reads::AtPrimary,
            (true, true) => Reads::Anywhere,
        }
    }
}

/// Whether a name in a text has this hash, as written or in lower case.
fn has_hash(name: &[u8], hash: u64) -> bool {
    name_hash(name) == hash || name_hash(&name.to_ascii_lowercase()) == hash
}

/// Adds the hashes of [`OTHER_AT_STANDBYS`], and sorts.
fn with_fixed_words(mut hashes: Vec<u64>) -> Vec<u64> {
    hashes.extend(OTHER_AT_STANDBYS.map(name_hash));
    hashes.sort_unstable();
    hashes
}

/// `None` if there are too many. Names beyond ASCII have one hash together, so nothing is known of one of them.
fn hashes(names: &[u8], foreign: bool) -> Option<Vec<u64>> {
    if names.len() > REACH_NAMES_BYTES_MAX {
        return None;
    }
    let mut hashes: Vec<u64> = lines(names).map(name_hash).filter(|&hash| foreign || hash != 0).collect();
    hashes.sort_unstable();
    hashes.dedup();
    (hashes.len() <= REACH_NAMES_MAX).then_some(hashes)
}

fn lines(names: &[u8]) -> impl Iterator<Item = &[u8]> {
    names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty())
}

/// The operators among the names.
fn symbols(reads: Reads, names: &[u8]) -> Vec<(Reads, Box<[u8]>)> {
    let is_operator = |name: &&[u8]| name.iter().all(|byte| b"+-*/<>=~!@#%^&|`?".contains(byte));
    lines(names).filter(is_operator).map(|name| (reads, name.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configuration says nothing.
    fn plain(rows: &[Vec<Option<Box<[u8]>>>]) -> Reach {
        Reach::of(rows, &Graph::of(rows), NameLists::default())
    }

    fn rows(of: &[(&str, Option<&str>)]) -> Vec<Vec<Option<Box<[u8]>>>> {
        let bytes = |text: &str| Box::from(text.as_bytes());
        of.iter().map(|(kind, names)| vec![Some(bytes(kind)), names.map(bytes), None]).collect()
    }

    fn ask(reach: &Reach, text: &str, before: &mut Verdict) -> Reads {
        reach.reads(text.as_bytes(), &pgweir_sql::traits(text.as_bytes()), before)
    }

    fn reads(reach: &Reach, text: &str) -> bool {
        ask(reach, text, &mut Verdict::default()).certainly()
    }

    #[test]
    fn names_decide() {
        let reach = plain(&rows(&[("v", Some("note_it\nBig")), ("r", Some("total\ngröße"))]));
        assert!(reads(&reach, "select total(a), lower(b), big from t"));
        for text in [
            "select note_it()",
            "select t.NOTE_IT from t",
            "select \"Big\"",
            "select other()",
            "select größe()",
        ] {
            assert!(!reads(&reach, text), "{text}");
        }
        assert!(reads(&reach, "select größe from t"));
        let foreign = plain(&rows(&[("v", Some("größe")), ("r", Some(""))]));
        assert!(!reads(&foreign, "select länge from t") && reads(&foreign, "select a from t"));
    }

    #[test]
    fn where_nothing_is_known_nothing_only_reads() {
        let many: String = (0..=REACH_NAMES_MAX).map(|number| format!("{number}\n")).collect();
        for rows in [
            rows(&[]),
            rows(&[("v", Some(""))]),
            rows(&[("r", Some(""))]),
            rows(&[("v", None), ("r", Some(""))]),
            rows(&[("v", Some("")), ("r", None)]),
            rows(&[("v", Some("")), ("r", Some("")), ("z", None)]),
            rows(&[("v", Some(&many)), ("r", Some(""))]),
        ] {
            assert!(!reads(&plain(&rows), "select 1"), "{rows:?}");
        }
        assert!(!reads(&Reach::default(), "select 1"));
    }

    #[test]
    fn what_was_found_holds_as_long_as_the_catalog_says_the_same() {
        let one = plain(&rows(&[("v", Some("f")), ("r", Some("g"))]));
        let same = plain(&rows(&[("r", Some("g")), ("v", Some("f\nf"))]));
        let other = plain(&rows(&[("v", Some("g")), ("r", Some("f"))]));
        let mut verdict = Verdict::default();
        assert_eq!(ask(&one, "select g(1)", &mut verdict), Reads::AtPrimary);
        // The text is not looked at again ...
        assert_eq!(ask(&same, "select f(1)", &mut verdict), Reads::AtPrimary);
        // ... until it must be.
        assert_eq!(ask(&other, "select g(1)", &mut verdict), Reads::InDoubt);
        assert_eq!(ask(&Reach::default(), "select g(1)", &mut verdict), Reads::InDoubt);
    }

    #[test]
    fn only_what_is_the_same_at_a_standby_may_be_read_there() {
        let [more, less] = [("v", Some("f")), ("r", Some("g\nh"))];
        let reach = plain(&rows(&[more, less, ("s", Some("a_seq\nh"))]));
        let found = |text: &str| ask(&reach, text, &mut Verdict::default());
        for text in ["select 1", "select g(b) from t", "with a as (select 1) select * from a"] {
            assert_eq!(found(text), Reads::Anywhere, "{text}");
        }
        for text in [
            "select h(1)",
            "select * from public.a_seq",
            "select \"a_seq\".b from t",
            "select Current_Setting('work_mem')",
            "select last_value from other_seq",
        ] {
            assert_eq!(found(text), Reads::AtPrimary, "{text}");
        }
        assert_eq!(found("select f(1) from a_seq"), Reads::InDoubt);
        // Where that is not known, or there are too many, nothing is.
        let many: String = (0..=REACH_NAMES_MAX).map(|number| format!("{number}\n")).collect();
        for other in
            [rows(&[more, less]), rows(&[more, less, ("s", Some(&many))]), rows(&[more, less, ("s", None)])]
        {
            assert_eq!(ask(&plain(&other), "select 1", &mut Verdict::default()), Reads::AtPrimary);
        }
        let mut verdict = Verdict::default();
        assert_eq!(ask(&reach, "select 1", &mut verdict), Reads::Anywhere);
        assert_eq!(ask(&plain(&rows(&[more, less])), "select 1", &mut verdict), Reads::AtPrimary);
    }

    #[test]
    fn code_that_changes_sessions_does_more_than_read() {
        let row = |kind: &str, id: &str, value: &str| {
            [kind, id, value].iter().map(|value| Some(Box::from(value.as_bytes()))).collect::<Vec<_>>()
        };
        let mut all = rows(&[("v", Some("")), ("r", Some("set_tenant\nother")), ("s", Some(""))]);
        all.extend([
            row("g", "f", ""),
            row("o", "f", "set_tenant"),
            row("d", "t", "wf"),
            row("o", "t", "visits"),
        ]);
        let found = |rows: &[Vec<Option<Box<[u8]>>>], text| ask(&plain(rows), text, &mut Verdict::default());
        assert_eq!(found(&all, "select set_tenant()"), Reads::InDoubt);
        assert_eq!(found(&all, "select other() from visits"), Reads::Anywhere);
        all.push(row("d", "0.0", "rf"));
        assert_eq!(found(&all, "select 1"), Reads::InDoubt);
    }

    #[test]
    fn operators_are_names_too() {
        let reach = plain(&rows(&[("v", Some("###\n<>")), ("r", Some("")), ("s", Some("@@@"))]));
        for (text, expected, part) in [
            ("select a ### b from t", Reads::InDoubt, "###"),
            ("select a operator(s.###) b", Reads::InDoubt, "###"),
            ("select a<>b", Reads::InDoubt, "<>"),
            ("select a @@@ b", Reads::AtPrimary, "@@@"),
            ("select a # b", Reads::Anywhere, ""),
        ] {
            assert_eq!(ask(&reach, text, &mut Verdict::default()), expected, "{text}");
            let doubt = reach.doubt(text.as_bytes());
            assert_eq!(doubt.map_or(Reads::Anywhere, |(reads, _)| reads), expected, "{text}");
            assert_eq!(doubt.map_or(&b""[..], |(_, part)| part), part.as_bytes());
            assert_eq!(reach.at_standby(text.as_bytes()).differs.is_some(), expected != Reads::Anywhere);
        }
    }

    #[test]
    fn the_configuration_has_the_last_word() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (reads, writes) = (list(&["Note_*", "other"]), list(&["total"]));
        let lists = NameLists::of([&reads, &writes, &list(&["audit*", "log"])]);
        let catalog = rows(&[("v", Some("note_it\nsend")), ("r", Some("total\ncount_it")), ("s", Some(""))]);
        let reach = Reach::of(&catalog, &Graph::default(), lists);
        let found = |text: &str| ask(&reach, text, &mut Verdict::default());
        for (text, expected) in [
            ("select note_it(a), OTHER(b), count_it(c) from t", Reads::Anywhere),
            ("select note_that()", Reads::InDoubt),
            ("select send()", Reads::InDoubt),
            ("select Total(a) from t", Reads::InDoubt),
            ("select a from Audit_2024", Reads::AtPrimary),
            ("select a from s.\"log\"", Reads::AtPrimary),
            ("select a from logs", Reads::Anywhere),
        ] {
            assert_eq!(found(text), expected, "{text}");
            let doubt = reach.doubt(text.as_bytes()).map_or(Reads::Anywhere, |(reads, _)| reads);
            assert_eq!(doubt, expected, "{text}");
        }
        let mut verdict = Verdict::default();
        assert_eq!(ask(&reach, "select note_it()", &mut verdict), Reads::Anywhere);
        assert_eq!(ask(&plain(&catalog), "select note_it()", &mut verdict), Reads::InDoubt);
    }
}
