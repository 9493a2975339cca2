//! Hints: comments in which a client says where a text is to run.
//!
//! What this file is for: to read `/* pgweir: primary */`, `/* pgweir: standby */` and `/* pgweir: after=<token> */` at the front or
//! at the end of a text, and pgpool-II's `/*NO LOAD BALANCE*/` at its front. It must never look into the text itself: a hint is
//! looked for only where a text begins or ends with a comment, so that other texts cost two comparisons.

/// The node that a hint asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintedRoute {
    /// The primary.
    Primary,
    /// A standby.
    Standby,
}

/// What the hints of a text say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints<'a> {
    /// Where the text is to run.
    pub route: Option<HintedRoute>,
    /// The token of a position that the text must see, as it stands there.
    pub after: Option<&'a [u8]>,
}

/// The hints of a text: those of the comment at its front, and, for what that does not say, those of the comment at its end. A
/// comment with a word that is no hint says nothing.
///
/// Only comments between `/*` and `*/` count. A comment is at the end, too, if only semicolons and blanks follow.
#[must_use]
pub fn hints(sql: &[u8]) -> Hints<'_> {
    let front = at_front(sql).map(read).unwrap_or_default();
    let end = at_end(sql).map(read).unwrap_or_default();
    Hints { route: front.route.or(end.route), after: front.after.or(end.after) }
}

/// What stands in the comment that the text begins with.
fn at_front(sql: &[u8]) -> Option<&[u8]> {
    let inside = sql.trim_ascii_start().strip_prefix(b"/*")?;
    let len = inside.windows(2).position(|pair| pair == b"*/")?;
    Some(&inside[..len]).filter(|inside| !inside.windows(2).any(|pair| pair == b"/*"))
}

/// What stands in the comment that the text ends with. What begins with `/*` and ends the text with `*/` is a comment, or part of one,
/// or the text is one that PostgreSQL refuses: strings and names end with other characters.
fn at_end(sql: &[u8]) -> Option<&[u8]> {
    let mut sql = sql.trim_ascii_end();
    while let Some(rest) = sql.strip_suffix(b";") {
        sql = rest.trim_ascii_end();
    }
    let inside = sql.strip_suffix(b"*/")?;
    let at = inside.windows(2).rposition(|pair| pair == b"/*")?;
    Some(&inside[at + 2..]).filter(|inside| !inside.windows(2).any(|pair| pair == b"*/"))
}

fn read(comment: &[u8]) -> Hints<'_> {
    let comment = comment.trim_ascii();
    if comment.eq_ignore_ascii_case(b"NO LOAD BALANCE") {
        return Hints { route: Some(HintedRoute::Primary), after: None };
    }
    let Some((ours, words)) = comment.split_at_checked(PREFIX.len()) else { return Hints::default() };
    if !ours.eq_ignore_ascii_case(PREFIX) {
        return Hints::default();
    }
    let mut hints = Hints::default();
    for word in words.split(|byte| byte.is_ascii_whitespace() || *byte == b',') {
        match word {
            b"" => {}
            _ if word.eq_ignore_ascii_case(b"primary") => hints.route = Some(HintedRoute::Primary),
            _ if word.eq_ignore_ascii_case(b"standby") => hints.route = Some(HintedRoute::Standby),
            _ => match word.split_at_checked(AFTER.len()) {
                Some((key, token)) if key.eq_ignore_ascii_case(AFTER) => hints.after = Some(token),
                _ => return Hints::default(),
            },
        }
    }
    hints
}

const PREFIX: &[u8] = b"pgweir:";
const AFTER: &[u8] = b"after=";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route(sql: &str) -> Option<HintedRoute> {
        hints(sql.as_bytes()).route
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
            assert_eq!(route(sql), Some(HintedRoute::Primary), "{sql}");
        }
        assert_eq!(route("select 1 /* pgweir: standby */;"), Some(HintedRoute::Standby));
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
        ] {
            assert_eq!(hints(sql.as_bytes()), Hints::default(), "{sql}");
        }
    }

    #[test]
    fn a_token_stands_as_it_is() {
        let found = hints(b"/* pgweir: after=00000002-0/404C6B0 standby */ select 1");
        let route = Some(HintedRoute::Standby);
        assert_eq!(found, Hints { route, after: Some(b"00000002-0/404C6B0") });
        let found = hints(b"/* pgweir: primary */ select 1 /* pgweir: AFTER=0/1 */");
        assert_eq!(found, Hints { route: Some(HintedRoute::Primary), after: Some(b"0/1") });
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(pieces in prop::collection::vec(prop::sample::select(vec![
            "/*", "*/", "/", "*", " ", ";", "pgweir:", "primary", "after=", "x", "'", "\n",
        ]), 0..12)) {
            let sql = pieces.concat();
            let found = hints(sql.as_bytes());
            prop_assert!(found == Hints::default() || sql.contains("/*"));
        }
    }
}
