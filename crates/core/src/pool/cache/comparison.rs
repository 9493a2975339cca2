//! Comparisons of kept answers with those of a server (`query_cache_verify`). The answer to each hit of a certain number is asked of a server,
//! too, and so is each answer that a client may not be given yet. If a server's answer is another one than the kept answer, a table may have
//! changed in between. Whatever the server's answer has seen, a probe that is sent behind it confirms: if the kept answer still counts then, and
//! the definitions were read once more, it is wrong.
//!
//! Values only: `relay/known_answers` sends statements to servers, and counts.

use pgweir_sql::{Kind, Lexer};
use pgweir_wire::Messages;

use crate::limits::SUSPECTS_MAX;
use crate::pool::cache::capture::{Capture, Heard, SentAt};
use crate::pool::cache::wal::{Dependence, Progress};

/// The words of statements whose rows may be others each time, although no table has changed: which rows they take, which of several equal values
/// they show (`1.0` and `1.00`), or how they put values together, depends on an order that the statement need not fix. So do the words that
/// [`is_aggregate`] finds.
const ORDER_DECIDES: [&[u8]; 14] = [
    b"limit",
    b"offset",
    b"fetch",
    b"over",
    b"distinct",
    b"group",
    b"union",
    b"intersect",
    b"except",
    b"tablesample",
    b"array",
    b"any_value",
    b"sum",
    b"avg",
];

/// The beginnings of names of aggregates that calculate, as `sum` and `avg` do: of `real` and `double precision` the last digit of their results
/// depends on the order of the rows, which is another one each time that PostgreSQL reads a table with several processes.
const CALCULATE: [&[u8]; 6] = [b"stddev", b"var_", b"variance", b"covar_", b"corr", b"regr_"];

/// Whether a word is the name of an aggregate that calculates, or that puts values together, such as `array_agg`, `xmlagg`, `json_arrayagg` or
/// `jsonb_agg_strict`. The others (`count`, `max`) have no such names.
fn is_aggregate(word: &[u8]) -> bool {
    let word = word.to_ascii_lowercase();
    word.ends_with(b"agg")
        || word.windows(4).any(|part| part == b"agg_")
        || CALCULATE.iter().any(|start| word.starts_with(start))
}

/// The choice of the hits whose answers are compared.
#[derive(Default)]
pub(crate) struct Sampling {
    /// The number of hits since the last one that was chosen.
    hits: u32,
}

impl Sampling {
    /// Counts a hit. Returns `true` if the hit is to be compared: at least `every` hits have come since the last one that was, and `is_possible`.
    /// With 0, no hit is compared.
    #[inline]
    pub(crate) fn chooses(&mut self, every: u32, is_possible: bool) -> bool {
        if every == 0 {
            return false;
        }
        self.hits = self.hits.saturating_add(1);
        let is_chosen = self.hits >= every && is_possible;
        if is_chosen {
            self.hits = 0;
        }
        is_chosen
    }
}

/// The meaning of a difference between a kept answer and a server's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Difference {
    /// A table has changed, or the kept answer is wrong.
    Counts,
    /// Nothing: the statement may have other rows each time.
    MayBe,
}

impl Difference {
    /// Returns the meaning of a difference between two answers to a statement with this text.
    pub(crate) fn of(text: &[u8]) -> Difference {
        let is_known = |word: &[u8]| ORDER_DECIDES.iter().any(|known| known.eq_ignore_ascii_case(word));
        let decides = |word: &[u8]| is_known(word) || is_aggregate(word);
        let is_word = |kind| matches!(kind, Kind::Word | Kind::QuotedWord);
        let mut lexemes = Lexer::new(text).map_while(Result::ok);
        match lexemes.any(|lexeme| is_word(lexeme.kind) && decides(lexeme.text)) {
            true => Difference::MayBe,
            false => Difference::Counts,
        }
    }
}

/// A kept answer that differs from a server's: it is wrong, or a table has changed in between.
pub(crate) struct Suspect {
    /// The statement's text without literals, for the log; `None` if it is not known.
    pub(crate) text: Option<Box<str>>,
    /// The time at which the statement of the kept answer was sent.
    pub(crate) sent: SentAt,
    pub(crate) dependence: Box<Dependence>,
    /// The progress of the stream when the server's answer was there.
    pub(crate) since: Progress,
}

/// The present knowledge of a [`Suspect`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The stream has not come far enough to tell whether a table had changed.
    NotYet,
    /// A table has changed, or the answer did not count any more for another reason.
    Void,
    /// Nothing has changed: the kept answer is wrong.
    Wrong,
}

/// Whether a kept answer and a server's are the same. `None` if that is not known: the server's answer was not captured as a whole, or it tells
/// something besides the rows, or an error that may be over when the statement is sent again.
pub(crate) fn compare(kept: &[u8], capture: &Capture, heard: &Heard) -> Option<bool> {
    match heard {
        Heard::Plain => Some(is_same(kept, capture.answer())),
        Heard::TooLong => (capture.answer().len() > kept.len()).then_some(false),
        Heard::Unfit => capture.is_refused().then_some(false),
        Heard::More => None,
    }
}

/// Whether two answers to the same statement have the same messages. The order of rows does not count.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one == other || one.len() == other.len() && sorted(one) == sorted(other)
}

fn sorted(answer: &[u8]) -> Vec<(u8, &[u8])> {
    let mut messages: Vec<(u8, &[u8])> =
        Messages::of(answer).whole().map(|message| (message.tag(), message.body())).collect();
    messages.sort_unstable();
    messages
}

/// The suspects of a pool.
#[derive(Default)]
pub(crate) struct Suspects(Vec<Suspect>);

impl Suspects {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a suspect; if there are as many as there may be, this one is not looked at further.
    pub(crate) fn add(&mut self, suspect: Suspect) {
        if self.0.len() < SUSPECTS_MAX {
            self.0.push(suspect);
        }
    }

    /// Asks for a verdict about each suspect, and returns those that are wrong. The others leave, unless nothing is known yet.
    pub(crate) fn judge(&mut self, mut verdict: impl FnMut(&Suspect) -> Verdict) -> Vec<Suspect> {
        let mut wrong = Vec::new();
        for suspect in std::mem::take(&mut self.0) {
            match verdict(&suspect) {
                Verdict::NotYet => self.0.push(suspect),
                Verdict::Void => {}
                Verdict::Wrong => wrong.push(suspect),
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(tag: u8, body: &str) -> Vec<u8> {
        [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body.as_bytes()].concat()
    }

    fn answer(rows: &[&str]) -> Vec<u8> {
        let rows: Vec<u8> = rows.iter().flat_map(|row| message(b'D', row)).collect();
        [message(b'T', "columns"), rows, message(b'C', "SELECT"), message(b'Z', "I")].concat()
    }

    #[test]
    fn the_order_of_rows_is_no_difference() {
        let one = answer(&["a", "b", "b"]);
        assert!(is_same(&one, &one));
        assert!(is_same(&one, &answer(&["b", "a", "b"])));
        for other in [&["a", "b"][..], &["a", "a", "b"], &["a", "b", "c"], &["a", "bb"]] {
            assert!(!is_same(&one, &answer(other)), "{other:?}");
        }
    }

    #[test]
    fn a_statement_that_takes_some_rows_may_have_others() {
        for text in [
            "select * from t limit 1",
            "table t FETCH first row only",
            "select array_agg(a) from t",
            "select Any_Value(a) from t",
            "select json_agg_strict(a), jsonb_object_agg_unique(a, b) from t",
            "select json_arrayagg(a) from t",
            "select xmlagg(a) from t",
            "select a, count(*) from t group by a",
            "select a from t union select a from u",
            "select Avg(a), round(sum(b)) from t",
            "select stddev_pop(a), VARIANCE(a), var_samp(a), covar_pop(a, b), corr(a, b), regr_slope(a, b) from t",
        ] {
            assert_eq!(Difference::of(text.as_bytes()), Difference::MayBe, "{text}");
        }
        for text in [
            "select * from t order by a",
            "select 'limit' from t",
            "select count(aggregate), max(a::varchar) from t",
        ] {
            assert_eq!(Difference::of(text.as_bytes()), Difference::Counts, "{text}");
        }
    }

    #[test]
    fn one_hit_of_a_number_is_chosen() {
        let mut sampling = Sampling::default();
        assert!(!(0..5).any(|_| sampling.chooses(0, true)));
        let chosen = [(); 7].map(|()| sampling.chooses(3, true));
        assert_eq!(chosen, [false, false, true, false, false, true, false]);
        // What was not possible is done as soon as it is.
        assert_eq!(
            [false, false, true, true].map(|is_possible| sampling.chooses(3, is_possible)),
            [false, false, true, false]
        );
    }
}
