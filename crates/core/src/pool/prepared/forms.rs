//! The traits of texts that come again and again with other literals.
//!
//! Programs that write values into their statements send texts that are all new and all alike. Their traits are remembered together with
//! one of the texts, so that such a text is compared and not lexed again. This file must never return the traits of a text of another form:
//! everything is compared except the literals that, as [`exchangeable`] says, change nothing.

use std::ops::Range;

use pgweir_sql::{Literal, Statements, Traits, exchangeable, literal_len};

use crate::limits::{FORM_LITERALS_MAX, FORMS_MAX};
use crate::pool::catalog::reach::Verdict;

/// The number of forms in a row. Forms that begin alike share a row.
const ROW: usize = 4;

/// The largest number of other texts after which a row takes another form, if forms came and went in it without being of use.
const BACKOFF_MAX: u16 = 4096;

/// A text that has the traits of all texts that differ from it in these literals only.
struct Form {
    text: Box<[u8]>,
    literals: Box<[(Literal, Range<usize>)]>,
    traits: Traits,
    verdict: Verdict,
}

impl Form {
    /// Returns the form of a text; `None` if no literal of it can be exchanged, or too many.
    fn of(text: &[u8], traits: Traits) -> Option<Self> {
        let mut literals = Vec::new();
        exchangeable(text, |literal, place| literals.push((literal, place))).ok()?;
        let usable = (1..=FORM_LITERALS_MAX).contains(&literals.len());
        let verdict = Verdict::default();
        usable.then(|| Self { text: text.into(), literals: literals.into(), traits, verdict })
    }

    /// Whether `text` differs from the form's text only in the literals.
    #[inline]
    fn is_of(&self, text: &[u8]) -> bool {
        let (mut rest, mut from) = (text, 0);
        for (literal, place) in &self.literals {
            let Some(behind) = self.text.get(from..place.start).and_then(|same| rest.strip_prefix(same))
            else {
                return false;
            };
            let Some(len) = literal_len(*literal, behind) else { return false };
            rest = behind.get(len..).unwrap_or_default();
            from = place.end;
        }
        self.text.get(from..) == Some(rest)
    }
}

/// A row of forms that begin alike.
#[derive(Default)]
struct Row {
    forms: [Option<Form>; ROW],
    /// The place of the newest form in the row.
    newest: usize,
    /// The fingerprint of the last text that was of no form here: one that comes again is worth a form.
    seen: u64,
    /// The number of texts of no form here that are not learnt from. It grows with each form that was of no use.
    backoff: u16,
    waiting: u16,
}

impl Row {
    #[inline]
    fn find(&mut self, text: &[u8]) -> Option<(&Traits, &mut Verdict)> {
        let at = self.forms.iter().position(|form| form.as_ref().is_some_and(|form| form.is_of(text)))?;
        if at == self.newest {
            (self.backoff, self.waiting) = (0, 0);
        }
        self.forms[at].as_mut().map(|form| (&form.traits, &mut form.verdict))
    }

    fn learn(&mut self, text: &[u8], traits: Traits) {
        if std::mem::replace(&mut self.seen, traits.fingerprint) != traits.fingerprint {
            return;
        }
        if self.waiting > 0 {
            self.waiting -= 1;
            return;
        }
        let Some(form) = Form::of(text, traits) else { return };
        self.backoff = (self.backoff * 2 + 1).min(BACKOFF_MAX);
        self.waiting = self.backoff;
        self.newest = (self.newest + 1) % ROW;
        self.forms[self.newest] = Some(form);
    }
}

/// The table of forms.
#[derive(Default)]
pub(crate) struct Forms {
    /// The rows; empty until there is a text.
    rows: Vec<Row>,
}

impl Forms {
    /// Returns the traits and the verdict of a text of the same form. No literal that is exchanged has a say in the verdict.
    #[inline]
    pub(crate) fn find(&mut self, text: &[u8]) -> Option<(&Traits, &mut Verdict)> {
        self.rows.get_mut(row(text))?.find(text)
    }

    /// Remembers the traits of a text that has no known form.
    pub(crate) fn learn(&mut self, text: &[u8], traits: Traits) {
        if traits.statements == Statements::Unknown {
            return;
        }
        if self.rows.is_empty() {
            self.rows.resize_with(FORMS_MAX / ROW, Row::default);
        }
        if let Some(row) = self.rows.get_mut(row(text)) {
            row.learn(text, traits);
        }
    }
}

/// Returns the number of the row for texts that begin as `text` does.
#[inline]
fn row(text: &[u8]) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let chunk = |at: usize| {
        text.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |chunk| u64::from_le_bytes(*chunk))
    };
    let mixed = (chunk(0) ^ chunk(8).rotate_left(23)).wrapping_mul(SPREAD);
    (mixed >> 40) as usize % (FORMS_MAX / ROW)
}

#[cfg(test)]
mod tests {
    use pgweir_sql::traits;

    use super::*;

    /// Returns the traits that the table has for a text, and lets the table learn the text.
    fn ask(forms: &mut Forms, text: &str) -> Option<Traits> {
        let found = forms.find(text.as_bytes()).map(|found| *found.0);
        let right = traits(text.as_bytes());
        match found {
            Some(found) => assert_eq!(found, right, "{text}"),
            None => forms.learn(text.as_bytes(), right),
        }
        found
    }

    #[test]
    fn a_text_with_other_literals_is_known_once_two_were_seen() {
        let mut forms = Forms::default();
        let text =
            |n: u32| format!("UPDATE accounts SET balance = balance + {n} WHERE name = 'n{n}' AND id = {n};");
        assert!(ask(&mut forms, &text(1)).is_none());
        assert!(ask(&mut forms, &text(22)).is_none());
        for n in [1, 22, 333, 4_000_000] {
            assert!(ask(&mut forms, &text(n)).is_some());
        }
    }

    #[test]
    fn what_differs_in_more_is_another_text() {
        let mut forms = Forms::default();
        for n in 0..4 {
            ask(&mut forms, &format!("select a from t where id = {n} and b = 'x'"));
        }
        for other in [
            "select a from t where id = 1 and b = 'x';set a = 1",
            "select a from t where id = 1 and b = 'x' ",
            "select a from t where id = 1 and b = ''",
            "select a from t where id = 1 and b = 'x''y'",
            "select a from t where id = 1 and b = 'x\\'",
            "select a from t where id = 1e5 and b = 'x'",
            "select a from t where id = 1 and b = 'x",
            "select a from t where id = x and b = 'x'",
            "select a from t where id =  and b = 'x'",
            "select a from t where id = ",
            "select a from t",
            "",
        ] {
            let known = forms.find(other.as_bytes());
            assert_eq!(known.is_some(), other.ends_with("b = ''"), "{other}");
        }
    }

    #[test]
    fn forms_that_begin_alike_are_told_apart() {
        let mut forms = Forms::default();
        let text = |n: usize| format!("select something from t where {} = {n}", ["a", "b", "c", "d"][n % 4]);
        for n in 0..400 {
            for _ in 0..2 {
                ask(&mut forms, &text(n));
            }
        }
        assert!((0..4).all(|n| ask(&mut forms, &text(n)).is_some()));
    }

    #[test]
    fn texts_that_are_never_of_a_form_are_learnt_from_less_and_less() {
        let mut forms = Forms::default();
        let mut learnt = 0;
        for n in 0..10_000 {
            // The same fingerprint each time, and never the same beside the literals.
            let text = format!("select something from t where a = {} /*{n}*/", n % 7);
            let before = forms.rows.get(row(text.as_bytes())).map(|row| row.newest);
            assert!(ask(&mut forms, &text).is_none());
            learnt += usize::from(forms.rows[row(text.as_bytes())].newest != before.unwrap_or(0));
        }
        assert!(learnt < 20, "{learnt}");
    }

    #[test]
    fn what_cannot_be_lexed_has_no_form() {
        let mut forms = Forms::default();
        for n in 0..9 {
            assert!(ask(&mut forms, &format!("select something, {n}, 'x")).is_none());
        }
    }
}
