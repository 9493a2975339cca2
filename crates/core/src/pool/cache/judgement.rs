//! Whether the answer to a statement is kept, or why not, for the column `cache` of SHOW STATEMENTS.
//!
//! With a cache, the column tells what happened at the last execution (`relay/known_answers.rs` notes that). What the text alone decides is
//! judged when the column is asked for, by the rules of [`Group::obstacle`](crate::pool::relay::exchange::group::Group::obstacle), so a statement
//! that is executed pays nothing, and the column can be asked for before the cache is switched on.

use pgweir_sql::{Kind, Lexer, traits, varying_name};

use crate::context::Env;
use crate::pool::Pool;
use crate::pool::cache::wal::catalog::Outside;
use crate::pool::cache::{answer_bytes_max, share_bytes};
use crate::pool::catalog::reach::{Reads, Verdict};
use crate::pool::relay::exchange::group::obstacle_of_text;
use crate::stats::obstacle::{KeptUntil, Obstacle};
use crate::stats::statements::Known;

/// The length up to which a word of a text is shown in a reason: that of PostgreSQL's longest name.
const WORD_CHARS_MAX: usize = 63;

/// A reason why an answer is not kept, and the word of the text that is to blame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reason<'a> {
    obstacle: Obstacle,
    /// The word of the text that decides, and whether the text calls it as a function. `None` if no single word decides.
    word: Option<(&'a [u8], bool)>,
}

impl From<Obstacle> for Reason<'_> {
    fn from(obstacle: Obstacle) -> Self {
        Reason { obstacle, word: None }
    }
}

impl Reason<'_> {
    fn words(&self) -> String {
        let general = self.obstacle.words();
        let Some((word, is_called)) = self.word else { return general.to_owned() };
        let is_of_server = word.starts_with(b"pg_") || word.eq_ignore_ascii_case(b"information_schema");
        let word = String::from_utf8_lossy(word);
        let word = word.chars().take(WORD_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c });
        let word = word.collect::<String>();
        match self.obstacle {
            Obstacle::Varying => format!("function {word}()"),
            _ if is_called => format!("function {word}() {general}"),
            _ if is_of_server => format!("state of the server: {word}"),
            _ => format!("{general}: {word}"),
        }
    }
}

impl Pool {
    /// Returns the column `cache` of a statement of this pool: `yes`, with what the answer depends on if that is one row, or why its answer is not kept.
    pub(crate) fn cache_column(&self, env: &Env, known: &Known) -> Box<str> {
        let kept = known.kept.and_then(Result::ok).unwrap_or(KeptUntil::AgeOrTables);
        let reason = self.reason_not_kept(env, known);
        reason.map_or_else(|| kept.words().into(), |reason| reason.words().into_boxed_str())
    }

    fn reason_not_kept<'a>(&self, env: &Env, known: &'a Known) -> Option<Reason<'a>> {
        if let Some(obstacle) = self.state.session_obstacle() {
            return Some(obstacle.into());
        }
        let unused = self.state.cache_obstacle(env);
        let last = known.kept.filter(|_| unused.is_none());
        match known.whole_text() {
            Ok(text) => {
                if let Some(reason) = self.judge_text(env, known.fingerprint, text) {
                    return Some(reason);
                }
            }
            Err(obstacle) if last.is_none() => return Some(obstacle.into()),
            Err(_) => {}
        }
        let obstacle = match unused {
            None => last.unwrap_or(Err(Obstacle::NotExecuted)).err(),
            Some(unused) => Some(self.expected_obstacle(env, known).unwrap_or(unused)),
        };
        obstacle.map(|obstacle| match (obstacle, known.whole_text()) {
            (Obstacle::Outside, Ok(text)) => {
                let stream = env.followed.state(&self.state.database).and_then(|state| state.stream());
                let outside = stream.and_then(|stream| stream.catalog().outside(text, b""));
                let word = match outside {
                    Some(Outside::Word(word)) if !word.is_empty() => Some((word, is_called(text, word))),
                    _ => None,
                };
                Reason { obstacle, word }
            }
            _ => Reason::from(obstacle),
        })
    }

    /// Returns what would probably keep the cache from keeping the answer to a statement whose text allows it. Without a cache, pgweir knows
    /// only how the statement was executed first, and how long its answers were.
    fn expected_obstacle(&self, env: &Env, known: &Known) -> Option<Obstacle> {
        let config = &env.rules.config;
        let bytes_max = answer_bytes_max(config, share_bytes(config, &env.shared)) as u64;
        let mean_bytes = known.bytes.checked_div(known.calls).unwrap_or(0);
        match () {
            () if known.began_in_transaction => Some(Obstacle::InTransaction),
            () if mean_bytes > bytes_max => Some(Obstacle::LongAnswer),
            () => None,
        }
    }

    /// Returns why no answer to a text can be kept, for any client; `None` if the text is no obstacle.
    fn judge_text<'a>(&self, env: &Env, fingerprint: u64, text: &'a [u8]) -> Option<Reason<'a>> {
        let pool = &self.state;
        // While the catalog is read once more, for example after a RELOAD, its last answer counts.
        let (traits, reach) = (traits(text), &pool.reach);
        let reads = reach.reads(text, &traits, &mut Verdict::default());
        match obstacle_of_text(&traits, reads) {
            Some(Obstacle::MayWrite) if !reach.is_known() => return Some(Obstacle::Catalog.into()),
            Some(Obstacle::MayWrite) => {
                let word = reach.doubt(text).filter(|(reads, _)| *reads == Reads::InDoubt);
                let word = word.map(|(_, word)| word).filter(|word| !word.is_empty());
                let word = word.map(|word| (word, is_called(text, word)));
                return Some(Reason { obstacle: Obstacle::MayWrite, word });
            }
            Some(obstacle) => return Some(obstacle.into()),
            None => {}
        }
        // `look_at_group` finds no group then.
        let touches = pool.routines.are_named_in(text) || self.is_watched(env, fingerprint);
        if touches {
            return Some(Obstacle::Session.into());
        }
        let word = varying_name(text).map(|name| (name, true));
        word.map(|word| Reason { obstacle: Obstacle::Varying, word: Some(word) })
    }
}

/// Returns whether the text calls `word` as a function.
fn is_called(text: &[u8], word: &[u8]) -> bool {
    let mut is_word = false;
    Lexer::new(text).map_while(Result::ok).any(|lexeme| {
        let is_call = is_word && lexeme.kind == Kind::Symbol && lexeme.text == b"(";
        is_word = matches!(lexeme.kind, Kind::Word | Kind::QuotedWord) && lexeme.text == word;
        is_call
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_its_word() {
        let words = |obstacle, word: &str, is_called| {
            Reason { obstacle, word: Some((word.as_bytes(), is_called)) }.words()
        };
        assert_eq!(words(Obstacle::Varying, "random", true), "function random()");
        assert_eq!(words(Obstacle::MayWrite, "f", true), "function f() may change data");
        assert_eq!(words(Obstacle::MayWrite, "update", false), "may change data: update");
        assert_eq!(words(Obstacle::MayWrite, "pg_class", false), "state of the server: pg_class");
        assert_eq!(words(Obstacle::MayWrite, &"x\n".repeat(99), true).chars().count(), 63 + 27);
        assert_eq!(Reason::from(Obstacle::NoRule).words(), "no rule");
    }

    #[test]
    fn a_call_is_a_word_before_a_parenthesis() {
        for (text, expected) in [
            ("select f (1)", true),
            ("select f, g(f)", false),
            ("select a.f(1)", true),
            ("select 'f('", false),
        ] {
            assert_eq!(is_called(text.as_bytes(), b"f"), expected, "{text}");
        }
    }
}
