//! The traits of texts that come again and again.
//!
//! Drivers send the same few texts over and over, with separate parameters. Their traits are remembered, in a bounded number of bytes, so
//! that such a text is looked at once. This file must never return the traits of another text: whole texts are compared (see `forms.rs` for
//! texts that differ in their literals).

use pgweir_sql::{Traits, traits};

use crate::limits::{TEXT_BYTES_MAX, TEXTS_MAX};
use crate::pool::catalog::reach::Verdict;
use crate::pool::prepared::forms::Forms;

/// The place for a text. The text is kept after it was seen twice in a row there.
#[derive(Clone, Default)]
struct Place {
    hash: u64,
    /// Empty if the text was seen only once: most of those never come again, because values are written in them.
    text: Box<[u8]>,
    traits: Option<Traits>,
    verdict: Verdict,
}

/// The table of texts: a text has one place in it, where a newer text replaces an older one.
#[derive(Default)]
pub(crate) struct Texts {
    /// The places; empty until there is a text.
    places: Vec<Place>,
    /// Texts that come again with other literals.
    forms: Forms,
}

impl Texts {
    /// Returns the traits of a text, as [`traits()`] does.
    pub(crate) fn traits(&mut self, text: &[u8]) -> Traits {
        self.look(text, |traits, _| *traits)
    }

    /// Calls `take` with the text's traits, and with the place for the verdict of
    /// [`Reach::reads`](crate::pool::catalog::reach::Reach::reads). Returns what `take` returns.
    #[inline]
    pub(crate) fn look<T>(&mut self, text: &[u8], take: impl FnOnce(&Traits, &mut Verdict) -> T) -> T {
        if text.len() <= TEXT_BYTES_MAX
            && let Some((known, verdict)) = self.forms.find(text)
        {
            return take(known, verdict);
        }
        let (known, verdict) = self.look_among_places(text);
        let mut fresh = Verdict::default();
        take(&known, verdict.unwrap_or(&mut fresh))
    }

    /// Returns the traits of a text that has no known form, and the place for the verdict if the text was seen before.
    fn look_among_places(&mut self, text: &[u8]) -> (Traits, Option<&mut Verdict>) {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return (traits(text), None);
        }
        if self.places.is_empty() {
            self.places.resize(TEXTS_MAX, Place::default());
        }
        let hash = hash(text);
        let Some(place) = self.places.get_mut(hash as usize % TEXTS_MAX) else { return (traits(text), None) };
        if place.hash == hash
            && *place.text == *text
            && let Some(known) = place.traits
        {
            return (known, Some(&mut place.verdict));
        }
        let found = traits(text);
        self.forms.learn(text, found);
        let again = place.hash == hash;
        *place = Place {
            hash,
            text: if again { text.into() } else { Box::default() },
            traits: again.then_some(found),
            verdict: Verdict::default(),
        };
        (found, again.then_some(&mut place.verdict))
    }
}

/// Returns a hash that spreads texts over the places. A client that finds two texts with the same hash only has them looked at each time.
fn hash(text: &[u8]) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, chunk: [u8; 8]| {
        let mixed = (hash ^ u64::from_le_bytes(chunk)).wrapping_mul(SPREAD);
        mixed ^ (mixed >> 32)
    };
    let (chunks, _) = text.as_chunks();
    let hash = chunks.iter().fold(text.len() as u64, |hash, chunk| mix(hash, *chunk));
    // The last bytes, some of them a second time; of a shorter text, all of them.
    let last = text.last_chunk().copied().unwrap_or_else(|| {
        let mut bytes = [0; 8];
        for (to, from) in bytes.iter_mut().zip(text) {
            *to = *from;
        }
        bytes
    });
    mix(hash, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_was_found() {
        let mut texts = Texts::default();
        let long = format!("select '{}'", "x".repeat(TEXT_BYTES_MAX));
        let all = ["select 1", "select a from t where b = $1", "begin", "set x = 1", "s", "", &long];
        for _ in 0..4 {
            for text in all {
                assert_eq!(texts.traits(text.as_bytes()), traits(text.as_bytes()), "{text}");
            }
        }
    }

    #[test]
    fn a_text_is_kept_when_it_comes_again() {
        let mut texts = Texts::default();
        let kept = |texts: &Texts| texts.places.iter().filter(|place| place.traits.is_some()).count();
        texts.traits(b"select a");
        assert_eq!(kept(&texts), 0);
        texts.traits(b"select a");
        assert_eq!(kept(&texts), 1);
    }

    #[test]
    fn two_texts_at_one_place_are_two_texts() {
        let mut texts = Texts::default();
        let place = |text: &str| hash(text.as_bytes()) as usize % TEXTS_MAX;
        let other = (0..).map(|n| format!("listen a{n}")).find(|text| place(text) == place("select 1"));
        let other = other.expect("numbers do not end");
        for _ in 0..3 {
            for text in ["select 1", "select 1", &other, &other] {
                assert_eq!(texts.traits(text.as_bytes()), traits(text.as_bytes()));
            }
        }
    }

    #[test]
    fn texts_are_spread() {
        let hashes = |texts: &mut dyn Iterator<Item = String>| {
            texts
                .map(|text| hash(text.as_bytes()) as usize % TEXTS_MAX)
                .collect::<std::collections::BTreeSet<_>>()
        };
        let places = hashes(&mut (0..TEXTS_MAX).map(|n| format!("select a from table_{n} where b = $1")));
        assert!(places.len() > TEXTS_MAX / 2, "{}", places.len());
        let places = hashes(&mut (0..8).map(|len| "x".repeat(len)));
        assert!(places.len() >= 6);
    }
}
