//! What the catalog of a pool's database says of names, so that of a text it is known whether it only reads: which names stand
//! for something that runs code which may do more (a volatile function, a view or policy that calls one, a view that locks
//! rows, a foreign table), and which functions are known to be less. Values only; `query.rs` has the catalog asked.

use pgweir_sql::{NameRole, Traits, Verb, certainly_reads, name_hash};

use crate::limits::{REACH_NAMES_BYTES_MAX, REACH_NAMES_MAX};

/// Another part of the question for routines: one row of names that may do more (`v`), one of functions that do not (`r`), and one
/// (`x`) if code that may do more runs without being named. Built-in functions are not in it, `pgweir_sql` knows those; in views and
/// policies they are found by their numbers in the stored expression, as PostgreSQL notes no dependency on what is built in.
/// NULL instead of names: there are too many.
pub(crate) const QUESTION: &[u8] = include_bytes!("reach.sql");

/// What is known of a database's names. It is compared by [`Reach::identity`], which is never that of one that says something else.
#[derive(Default, Debug)]
pub(crate) struct Reach {
    /// Hashes, in order.
    barred: Box<[u64]>,
    known: Box<[u64]>,
    /// It is even; 0: nothing is known, so nothing only reads.
    identity: u64,
}

/// Whether a text only reads, as it was found once under one [`Reach`]: that one's identity, and 1 more if it does.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Verdict(u64);

impl Verdict {
    /// What was found, if it was found under this one.
    #[inline]
    pub(crate) fn under(self, reach: &Reach) -> Option<bool> {
        (self.0 ^ reach.identity <= 1).then_some(self.0 & 1 == 1)
    }
}

impl Reach {
    /// From the rows of the answer: kind and names.
    pub(crate) fn of(rows: &[Vec<Option<Box<[u8]>>>]) -> Reach {
        let (mut barred, mut known) = (None, None);
        for row in rows {
            match row.as_slice() {
                [Some(kind), Some(names), _] if **kind == *b"v" => barred = hashes(names, true),
                [Some(kind), Some(names), _] if **kind == *b"r" => known = hashes(names, false),
                [Some(kind), ..] if **kind == *b"x" => return Reach::default(),
                _ => {}
            }
        }
        match (barred, known) {
            (Some(barred), Some(known)) => {
                let mix = |hash: u64, name: &u64| (hash ^ name).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let identity = (barred.iter().chain(&[u64::MAX]).chain(&known).fold(1, mix) & !1).max(2);
                Reach { barred: barred.into(), known: known.into(), identity }
            }
            _ => Reach::default(),
        }
    }

    /// That of a database without any code of users.
    #[cfg(test)]
    pub(crate) fn of_nothing_special() -> Reach {
        let row = |kind: &[u8]| vec![Some(kind.into()), Some(Box::default()), None];
        Reach::of(&[row(b"v"), row(b"r")])
    }

    /// Whether `text` certainly only reads. `before` is what was found in it before, and is kept up to date. `traits` are the text's.
    #[inline]
    pub(crate) fn certainly_reads(&self, text: &[u8], traits: &Traits, before: &mut Verdict) -> bool {
        before.under(self).unwrap_or_else(|| {
            let reads = self.look(text, traits);
            *before = Verdict(self.identity | u64::from(reads));
            reads
        })
    }

    #[cold]
    fn look(&self, text: &[u8], traits: &Traits) -> bool {
        self.identity != 0
            && traits.certainly_self_contained
            && matches!(traits.verb, Verb::Select | Verb::Values | Verb::Table | Verb::With)
            && certainly_reads(text, |role, name| match role {
                NameRole::Mentioned => self.barred.binary_search(&name).is_err(),
                NameRole::Called => self.known.binary_search(&name).is_ok(),
            })
    }
}

/// `None` if there are too many. Names beyond ASCII have one hash together, so nothing is known of one of them.
fn hashes(names: &[u8], foreign: bool) -> Option<Vec<u64>> {
    if names.len() > REACH_NAMES_BYTES_MAX {
        return None;
    }
    let names = names.split(|byte| *byte == b'\n').filter(|name| !name.is_empty());
    let mut hashes: Vec<u64> = names.map(name_hash).filter(|&hash| foreign || hash != 0).collect();
    hashes.sort_unstable();
    hashes.dedup();
    (hashes.len() <= REACH_NAMES_MAX).then_some(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(of: &[(&str, Option<&str>)]) -> Vec<Vec<Option<Box<[u8]>>>> {
        let bytes = |text: &str| Box::from(text.as_bytes());
        of.iter().map(|(kind, names)| vec![Some(bytes(kind)), names.map(bytes), None]).collect()
    }

    fn ask(reach: &Reach, text: &str, before: &mut Verdict) -> bool {
        reach.certainly_reads(text.as_bytes(), &pgweir_sql::traits(text.as_bytes()), before)
    }

    fn reads(reach: &Reach, text: &str) -> bool {
        ask(reach, text, &mut Verdict::default())
    }

    #[test]
    fn names_decide() {
        let reach = Reach::of(&rows(&[("v", Some("note_it\nBig")), ("r", Some("total\ngröße"))]));
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
        let foreign = Reach::of(&rows(&[("v", Some("größe")), ("r", Some(""))]));
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
            rows(&[("v", Some("")), ("r", Some("")), ("x", None)]),
            rows(&[("v", Some(&many)), ("r", Some(""))]),
        ] {
            assert!(!reads(&Reach::of(&rows), "select 1"), "{rows:?}");
        }
        assert!(!reads(&Reach::default(), "select 1"));
    }

    #[test]
    fn what_was_found_holds_as_long_as_the_catalog_says_the_same() {
        let one = Reach::of(&rows(&[("v", Some("f")), ("r", Some("g"))]));
        let same = Reach::of(&rows(&[("r", Some("g")), ("v", Some("f\nf"))]));
        let other = Reach::of(&rows(&[("v", Some("g")), ("r", Some("f"))]));
        let mut verdict = Verdict::default();
        assert!(ask(&one, "select g(1)", &mut verdict));
        // The text is not looked at again ...
        assert!(ask(&same, "select f(1)", &mut verdict));
        // ... until it must be.
        assert!(!ask(&other, "select g(1)", &mut verdict));
        assert!(!ask(&Reach::default(), "select g(1)", &mut verdict));
    }
}
