//! Sets of names that texts are searched for, as words and without regard to case: a name too many is found, never one too few.

use crate::limits::WORD_BYTES_MAX;

/// Names of objects.
#[derive(Default, Debug)]
pub(crate) struct Names {
    /// Names that are single words, in lower case, in order.
    words: Vec<Box<[u8]>>,
    /// Operators, and names that are no single word, as they stand in a text.
    others: Vec<Box<[u8]>>,
    /// Whether one of the names has letters beyond ASCII. The bytes of such a name depend on the encoding of the client, as does how
    /// PostgreSQL folds them. So every text with such letters counts as one that contains the name.
    has_foreign: bool,
}

impl Names {
    /// The set of these names. Empty ones name nothing.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a [u8]>) -> Names {
        let mut set = Names::default();
        names.for_each(|name| set.add(name));
        for list in [&mut set.words, &mut set.others] {
            list.sort_unstable();
            list.dedup();
        }
        set
    }

    /// Adds a name, unless there are `max`.
    pub(crate) fn learn(&mut self, name: &[u8], max: usize) {
        if self.len() >= max
            || self.stand_in(name) && self.words.iter().any(|known| known.eq_ignore_ascii_case(name))
        {
            return;
        }
        self.add(name);
        self.words.sort_unstable();
    }

    /// Adds a name to the end of its list.
    fn add(&mut self, name: &[u8]) {
        let name = name.to_ascii_lowercase();
        if name.is_empty() {
            return;
        }
        if !name.is_ascii() {
            self.has_foreign = true;
        } else if name.iter().all(|byte| is_word(*byte)) {
            self.words.push(name.into());
        } else {
            // A quote in a quoted name stands there twice.
            let doubled =
                name.iter().flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'"')));
            self.others.push(doubled.collect());
        }
    }

    /// The number of names.
    pub(crate) fn len(&self) -> usize {
        self.words.len() + self.others.len() + usize::from(self.has_foreign)
    }

    /// Whether one of the names is in these bytes, in upper or lower case.
    #[inline]
    pub(crate) fn are_named_in(&self, bytes: &[u8]) -> bool {
        self.len() > 0 && self.stand_in(bytes)
    }

    fn stand_in(&self, bytes: &[u8]) -> bool {
        let mut lower = [0; WORD_BYTES_MAX];
        let mut is_known = |word: &[u8]| {
            let lower = &mut lower[..word.len().min(WORD_BYTES_MAX)];
            lower.copy_from_slice(&word[..lower.len()]);
            lower.make_ascii_lowercase();
            self.words.binary_search_by(|known| (**known).cmp(lower)).is_ok()
                || lower.len() > CUT_BYTES_MIN && self.is_cut_to_one(lower)
        };
        let words = !self.words.is_empty() && bytes.split(|byte| !is_word(*byte)).any(&mut is_known);
        let stands = |name: &[u8]| bytes.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
        words || self.others.iter().any(|name| stands(name)) || self.has_foreign && !bytes.is_ascii()
    }

    /// Whether PostgreSQL cuts a longer word to one of these names.
    #[cold]
    fn is_cut_to_one(&self, word: &[u8]) -> bool {
        self.words.iter().any(|name| name.len() >= CUT_BYTES_MIN && word.starts_with(name))
    }
}

/// A word that is too long is cut to 63 bytes, and before a character that would be cut in two (`truncate_identifier` in
/// `scansup.c`).
const CUT_BYTES_MIN: usize = 60;

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Names {
        Names::of(of.iter().map(|name| name.as_bytes()))
    }

    #[test]
    fn a_name_is_a_whole_word_in_any_case() {
        let set = names(&["last_id", "Last_Id", "", "Of Quotes", "a\"b", "###"]);
        assert_eq!(set.len(), 4);
        for text in ["select app.LAST_ID()", "\"of quotes\"", "select \"A\"\"b\"()", "select 1###2"] {
            assert!(set.are_named_in(text.as_bytes()), "{text}");
        }
        for text in ["", "last()", "last_ids, a_last_id", "select größe", "select 1 ## 2"] {
            assert!(!set.are_named_in(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn of_letters_beyond_ascii_nothing_is_known() {
        let set = names(&["größe", "a"]);
        // As LATIN1, and as PostgreSQL folds it.
        for text in [&b"select gr\xd6\xdfe()"[..], "select GRÖSSE()".as_bytes(), b"a"] {
            assert!(set.are_named_in(text));
        }
        assert!(!set.are_named_in(b"select b"));
    }

    #[test]
    fn a_word_that_is_too_long_is_the_name_that_it_is_cut_to() {
        let name = "n".repeat(63);
        let set = names(&[&name, "short"]);
        assert!(set.are_named_in(name.as_bytes()) && !set.are_named_in(&name.as_bytes()[1..]));
        for more in ["s", "_of_a_tenant", &"x".repeat(300)] {
            assert!(set.are_named_in(format!("select {name}{more}()").to_uppercase().as_bytes()), "{more}");
        }
        assert!(!set.are_named_in(b"select shorts()") && !set.are_named_in("x".repeat(400).as_bytes()));
    }

    #[test]
    fn there_are_no_more_than_are_kept() {
        let mut set = Names::default();
        (0..20).for_each(|number| set.learn(format!("f{}", number % 12).as_bytes(), 10));
        assert_eq!(set.len(), 10);
    }
}
