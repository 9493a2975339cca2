//! EXECUTE in the body of a routine: tells whether the SQL that it runs stands in the body itself, where it
//! has been read as one of the strings.

use super::Text;
use crate::lexer::Kind;

/// First words of statements that, whatever text is appended to them, set nothing.
const HARMLESS: [&[u8]; 16] = [
    b"alter",
    b"analyze",
    b"cluster",
    b"comment",
    b"create",
    b"delete",
    b"drop",
    b"grant",
    b"insert",
    b"lock",
    b"notify",
    b"refresh",
    b"reindex",
    b"revoke",
    b"truncate",
    b"vacuum",
];

impl Text<'_, '_> {
    /// Returns `true` if the statement that this EXECUTE runs begins with a string of the body, or if the
    /// EXECUTE is not PL/pgSQL's.
    pub(super) fn is_known_statement(self, at: usize) -> bool {
        // GRANT EXECUTE ON, CREATE TRIGGER ... EXECUTE FUNCTION.
        let grants =
            at.checked_sub(1).is_some_and(|before| self.is(before, b"grant") || self.is(before, b"revoke"));
        let defines = [&b"on"[..], b"function", b"procedure"];
        grants
            || defines.iter().any(|word| self.is(at + 1, word))
            || self.begins_with_string(at + 1)
            || self.is_variable_of_strings(at + 1)
    }

    /// Returns whether the expression at `at` has a value that begins with a string of the body.
    fn begins_with_string(self, at: usize) -> bool {
        let formats = self.is(at, b"format") && self.is_symbol(at + 1, b"(");
        let at = if formats { at + 2 } else { at };
        let Some(string) = self.get(at) else { return false };
        let text = string.text.trim_ascii();
        let is_string = matches!(string.kind, Kind::Text | Kind::DollarText | Kind::EscapeText);
        // If the string is a single word (`'SET '`), the text appended to it decides what the statement does.
        let whole = formats || !self.is_operator(at + 1, b"||") || text.iter().any(u8::is_ascii_whitespace);
        let harmless = whole || HARMLESS.iter().any(|verb| text.eq_ignore_ascii_case(verb));
        is_string && harmless && !text.is_empty() && !(formats && text.starts_with(b"%"))
    }

    /// Returns whether the variable at `at` gets its values only from strings of the body, with more
    /// appended.
    fn is_variable_of_strings(self, at: usize) -> bool {
        let Some(name) = self.get(at).filter(|name| name.kind == Kind::Word).map(|name| name.text) else {
            return false;
        };
        if self.is_symbol(at + 1, b".") || self.is_symbol(at + 1, b"(") {
            return false;
        }
        let mut assigned = false;
        for place in (0..self.lexemes.len()).filter(|place| self.is(*place, name)) {
            let sign = self.assignment_sign(place);
            let filled = place.checked_sub(1).is_some_and(|before| {
                self.is(before, b"into")
                    || self.is(before, b"strict")
                    || self.is(before, b"for")
                    || self.is_symbol(before, b",")
            });
            if filled && !self.is(place + 1, b":") && sign.is_none() {
                return false;
            }
            let Some(value) = sign else { continue };
            let grows = self.is(value, name) && self.is_operator(value + 1, b"||");
            if !grows && !self.begins_with_string(value) {
                return false;
            }
            assigned |= !grows;
        }
        assigned
    }

    /// Returns the place of the value that is assigned to the variable at `at`, if one is: `v := ...`, `v
    /// text := ...`.
    fn assignment_sign(self, at: usize) -> Option<usize> {
        let begins = |at: usize| self.is_symbol(at, b":") && self.is_operator(at + 1, b"=");
        if begins(at + 1) {
            return Some(at + 3);
        }
        let declares = self.get(at + 1).is_some_and(|kind| kind.kind == Kind::Word);
        if declares && begins(at + 2) {
            return Some(at + 4);
        }
        (self.is_operator(at + 1, b"=") && self.begins_statement(at)).then_some(at + 2)
    }
}
