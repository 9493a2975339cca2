//! Hints: comments in which a client says where a text is to run, and whether its answer may come from the query
//! cache.
//!
//! The file reads `/* pgweir: primary */`, `/* pgweir: standby */`, `/* pgweir: after=0/3000100 */`,
//! `/* pgweir: cache 30s */` and `/* pgweir: no cache */` at the front or at the end of a text, and pgpool-II's
//! `/*NO LOAD BALANCE*/` and `/*NO QUERY CACHE*/` at its front. It must never look into
//! the text itself: only a text that begins or ends with a comment is searched, so other texts cost two
//! comparisons.

/// The node that a hint asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint<'a> {
    /// The primary.
    Primary,
    /// A standby.
    Standby,
    /// A node that has replayed the WAL up to this position, which is written as in the text.
    After(&'a [u8]),
}

/// Returns the hint of a text: the one in the comment at its front, or else the one in the comment at its
/// end.
///
/// Only comments between `/*` and `*/` count. Semicolons and blanks may follow a comment at the end.
#[must_use]
pub fn hint(sql: &[u8]) -> Option<Hint<'_>> {
    let of_pgpool = |comment: &[u8]| {
        comment.trim_ascii().eq_ignore_ascii_case(b"NO LOAD BALANCE").then_some(Hint::Primary)
    };
    let front = at_front(sql).and_then(|comment| read(comment).or_else(|| of_pgpool(comment)));
    front.or_else(|| at_end(sql).and_then(read))
}

/// The effect of a hint on the query cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheHint {
    /// The statement goes to a server, and its answer is not kept.
    Never,
    /// The answer may be kept and given again, up to the age that the rules allow.
    Any,
    /// The answer may be kept and given again up to this age in milliseconds, and up to the age that the rules allow.
    AtMost(u64),
}

/// Returns what the comments of a text say of the query cache: the one at its front, or else the one at its end.
#[must_use]
pub fn cache_hint(sql: &[u8]) -> Option<CacheHint> {
    let of_pgpool = |comment: &[u8]| {
        comment.trim_ascii().eq_ignore_ascii_case(b"NO QUERY CACHE").then_some(CacheHint::Never)
    };
    let front = at_front(sql).and_then(|comment| read_cache(comment).or_else(|| of_pgpool(comment)));
    front.or_else(|| at_end(sql).and_then(read_cache))
}

fn read_cache(comment: &[u8]) -> Option<CacheHint> {
    let mut words = said_to_us(comment)?.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is = |word: Option<&[u8]>, wanted: &[u8]| word.is_some_and(|word| word.eq_ignore_ascii_case(wanted));
    let (first, second) = (words.next(), words.next());
    match () {
        () if words.next().is_some() => None,
        () if is(first, b"no") && is(second, b"cache") => Some(CacheHint::Never),
        () if !is(first, b"cache") => None,
        () => second.map_or(Some(CacheHint::Any), |age| Some(CacheHint::AtMost(milliseconds(age)?))),
    }
}

/// Reads a number with a unit of time, as `30s`.
fn milliseconds(age: &[u8]) -> Option<u64> {
    let digits = age.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = age.split_at(digits);
    let number: u64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let units: [(&[u8], u64); 4] = [(b"ms", 1), (b"s", 1000), (b"min", 60_000), (b"h", 3_600_000)];
    let (_, factor) = units.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    number.checked_mul(*factor)
}

/// Returns the inside of the comment that the text begins with.
fn at_front(sql: &[u8]) -> Option<&[u8]> {
    let inside = sql.trim_ascii_start().strip_prefix(b"/*")?;
    let len = inside.windows(2).position(|pair| pair == b"*/")?;
    // PostgreSQL nests comments: with an inner one, the first `*/` is not the end.
    Some(&inside[..len]).filter(|inside| !inside.windows(2).any(|pair| pair == b"/*"))
}

/// Returns the inside of the comment that the text ends with. A `/* ... */` at the end is a comment or part
/// of one, or PostgreSQL refuses the text: strings and names end with other characters.
fn at_end(sql: &[u8]) -> Option<&[u8]> {
    let mut sql = sql.trim_ascii_end();
    while let Some(rest) = sql.strip_suffix(b";") {
        sql = rest.trim_ascii_end();
    }
    let inside = sql.strip_suffix(b"*/")?;
    let at = inside.windows(2).rposition(|pair| pair == b"/*")?;
    Some(&inside[at + 2..]).filter(|inside| !inside.windows(2).any(|pair| pair == b"*/"))
}

fn read(comment: &[u8]) -> Option<Hint<'_>> {
    let word = said_to_us(comment)?;
    match () {
        () if word.eq_ignore_ascii_case(b"primary") => Some(Hint::Primary),
        () if word.eq_ignore_ascii_case(b"standby") => Some(Hint::Standby),
        () => {
            let (name, position) = word.split_at_checked(AFTER.len())?;
            name.eq_ignore_ascii_case(AFTER).then_some(Hint::After(position))
        }
    }
}

/// Returns what a comment says that is meant for pgweir.
fn said_to_us(comment: &[u8]) -> Option<&[u8]> {
    let (ours, word) = comment.trim_ascii().split_at_checked(PREFIX.len())?;
    ours.eq_ignore_ascii_case(PREFIX).then(|| word.trim_ascii())
}

const PREFIX: &[u8] = b"pgweir:";
const AFTER: &[u8] = b"after=";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(sql: &str) -> Option<Hint<'_>> {
        hint(sql.as_bytes())
    }

    #[test]
    fn hints_stand_at_the_front_or_at_the_end() {
        for sql in [
            "/* pgweir: primary */ select 1",
            "  \n/*pgweir:primary*/select 1",
            "select 1 /* pgweir: PRIMARY */",
            "select 1 /* PgWeir:  primary */ ; ; \n",
            "/*NO LOAD BALANCE*/ select 1",
            "/* no load balance */ select 1",
            "/* pgweir: primary */ select 1 /* pgweir: standby */",
            "/* by our ORM */ select 1 /* pgweir: primary */",
            "/* pgweir: primary */",
        ] {
            assert_eq!(read(sql), Some(Hint::Primary), "{sql}");
        }
        assert_eq!(read("select 1 /* pgweir: standby */;"), Some(Hint::Standby));
        for sql in ["/* pgweir: after=0/3000100 */ select 1", "select 1 /*PGWEIR:After=0/3000100*/;"] {
            assert_eq!(read(sql), Some(Hint::After(b"0/3000100")), "{sql}");
        }
        assert_eq!(read("select 1 /* pgweir: after=nonsense */"), Some(Hint::After(b"nonsense")));
    }

    #[test]
    fn hints_say_what_the_cache_may_do() {
        let said = |sql: &str| cache_hint(sql.as_bytes());
        for (sql, hint) in [
            ("/* pgweir: cache */ select 1", Some(CacheHint::Any)),
            ("select 1 /* PGWEIR:  Cache 30s */;", Some(CacheHint::AtMost(30_000))),
            ("/*pgweir:cache 500ms*/ select 1", Some(CacheHint::AtMost(500))),
            ("/* pgweir: cache 2min */ select 1", Some(CacheHint::AtMost(120_000))),
            ("/* pgweir: cache 0s */ select 1", Some(CacheHint::AtMost(0))),
            ("select 1 /* pgweir: no  cache */", Some(CacheHint::Never)),
            ("/*NO QUERY CACHE*/ select 1", Some(CacheHint::Never)),
            ("/* pgweir: primary */ select 1 /* pgweir: no cache */", Some(CacheHint::Never)),
            ("/* pgweir: no cache */ select 1 /* pgweir: cache */", Some(CacheHint::Never)),
            ("select 1 /*NO QUERY CACHE*/", None),
            ("select '/* pgweir: cache */'", None),
            ("select /* pgweir: cache */ 1", None),
            ("/* pgweir: cache 30 */ select 1", None),
            ("/* pgweir: cache 30s please */ select 1", None),
            ("/* pgweir: cache s */ select 1", None),
            ("/* pgweir: cache 99999999999999999999h */ select 1", None),
            ("/* pgweir: cache 9999999999999999999h */ select 1", None),
            ("/* pgweir: cached */ select 1", None),
            ("/* pgweir: */ select 1", None),
        ] {
            assert_eq!(said(sql), hint, "{sql}");
        }
        assert_eq!(hint(b"/* pgweir: cache */ select 1"), None);
    }

    #[test]
    fn other_comments_and_strings_say_nothing() {
        for sql in [
            "",
            "/*",
            "*/",
            "/*/",
            "/* pgweir */ select 1",
            "/* pgweir: replica */ select 1",
            "/* pgweir: primary, now */ select 1",
            "-- pgweir: primary\nselect 1",
            "select '/* pgweir: primary */'",
            "select /* pgweir: primary */ 1",
            "select \"a\" from \"/* pgweir: primary */\"",
            "/* a /* pgweir: primary */ */ select 1",
            "select 1 /* pgweir: primary /* a */ */",
            "select 1 /* NO LOAD */",
            "select 1 /*NO LOAD BALANCE*/",
            "/* pgweir: primary standby */ select 1",
            "/* pgweir: after */ select 1",
        ] {
            assert_eq!(read(sql), None, "{sql}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(pieces in prop::collection::vec(prop::sample::select(vec![
            "/*", "*/", "/", "*", " ", ";", "pgweir:", "primary", "x", "'", "\n",
        ]), 0..12)) {
            let sql = pieces.concat();
            prop_assert!(hint(sql.as_bytes()).is_none() || sql.contains("/*"));
        }
    }
}
