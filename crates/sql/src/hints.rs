//! Hints: comments in which a client says where a text is to run.
//!
//! The file reads `/* pgweir: primary */`, `/* pgweir: standby */` and `/* pgweir: after=0/3000100 */` at the
//! front or at the end of a text, and pgpool-II's `/*NO LOAD BALANCE*/` at its front. It must never look into
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
    let (ours, word) = comment.trim_ascii().split_at_checked(PREFIX.len())?;
    let word = word.trim_ascii();
    match () {
        () if !ours.eq_ignore_ascii_case(PREFIX) => None,
        () if word.eq_ignore_ascii_case(b"primary") => Some(Hint::Primary),
        () if word.eq_ignore_ascii_case(b"standby") => Some(Hint::Standby),
        () => {
            let (name, position) = word.split_at_checked(AFTER.len())?;
            name.eq_ignore_ascii_case(AFTER).then_some(Hint::After(position))
        }
    }
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
