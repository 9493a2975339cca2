//! Shows a text without its literals, for people to read.
//!
//! Statistics and the log show statements, and their readers must not learn a value from them. So a shown
//! text has no string, number or parameter in any spelling, no comment, no value of a SET, and nothing after
//! PASSWORD. It ends at the first place that cannot be lexed with certainty, and where a word directly
//! follows a string: there a quote may be missing or superfluous (`'O'Brien', 'secret'`), and the words may
//! be values. In doubt less is shown. Texts with the same fingerprint look alike otherwise, except for the
//! case of their words.

use crate::lexer::{Kind, Lexeme, Lexer};

/// The sign that replaces a literal, a parameter, or a list of them.
const VALUE: &[u8] = b"?";

/// The sign that replaces a rest that is not shown.
const REST: &[u8] = b"...";

/// Passes the pieces of `sql` without its literals to `put`, in order, until `put` returns `false`. Blanks
/// and comments become one blank, a list of literals in parentheses becomes one `?`. Takes time linear in the
/// length of `sql`.
pub fn without_literals(sql: &[u8], put: impl FnMut(&[u8]) -> bool) {
    let mut bare =
        Bare { put, more: true, held: Held::Nothing, gap: false, begun: false, place: Place::default() };
    let mut lexer = Lexer::new(sql);
    let mut behind_text = false;
    while bare.more {
        let rest = lexer.rest();
        let gap = begins_with_gap(rest);
        bare.gap |= gap;
        match lexer.next() {
            // A word that touches the string before it is a sign of broken quoting, so the rest is not shown.
            Some(Ok(lexeme)) if !(behind_text && !gap && is_word(lexeme.kind)) => {
                behind_text = is_text(lexeme.kind);
                bare.see(lexeme);
            }
            Some(Ok(_) | Err(_)) => {
                bare.gap = true;
                bare.release();
                bare.write(REST);
                return;
            }
            None => return bare.release(),
        }
    }
}

fn begins_with_gap(rest: &[u8]) -> bool {
    matches!(rest, [b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r', ..] | [b'-', b'-', ..] | [b'/', b'*', ..])
}

fn is_text(kind: Kind) -> bool {
    matches!(kind, Kind::Text | Kind::EscapeText | Kind::UnicodeText | Kind::DollarText)
}

fn is_word(kind: Kind) -> bool {
    matches!(kind, Kind::Word | Kind::QuotedWord | Kind::UnicodeWord)
}

/// Lexemes that are held back because they may turn out to be the inside of a list of literals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    /// A literal in parentheses, which has been written as `?`.
    Literal,
    /// A comma after such a literal; the comma has not been written.
    Comma,
    /// A sign after such a comma; neither has been written.
    Sign(u8),
}

/// The place in a statement, as far as it decides whether a value without quotes can follow.
#[derive(Clone, Copy, Default)]
struct Place {
    /// `true` if the statement's first word is SET, ALTER or CREATE.
    configures: bool,
    /// `true` after the statement's first word.
    begun: bool,
    /// `true` after a SET in such a statement.
    sets: bool,
    /// `true` if the word before was PASSWORD in such a statement.
    password: bool,
    /// `true` if everything up to the next semicolon is a value.
    value: bool,
    depth: usize,
}

struct Bare<F> {
    put: F,
    more: bool,
    held: Held,
    /// `true` if a blank precedes the next piece that is written.
    gap: bool,
    begun: bool,
    place: Place,
}

impl<F: FnMut(&[u8]) -> bool> Bare<F> {
    fn see(&mut self, lexeme: Lexeme<'_>) {
        if lexeme.kind == Kind::Symbol && lexeme.text == b";" {
            self.release();
            self.place = Place::default();
            return self.write(lexeme.text);
        }
        if self.place.value {
            self.gap = false;
            return;
        }
        let password = std::mem::take(&mut self.place.password);
        match lexeme.kind {
            Kind::Text
            | Kind::EscapeText
            | Kind::UnicodeText
            | Kind::DollarText
            | Kind::Number
            | Kind::Param => self.literal(),
            // PASSWORD NULL removes a password; any other word after PASSWORD may be one without its quotes.
            Kind::Word if password && !lexeme.text.eq_ignore_ascii_case(b"null") => self.literal(),
            Kind::QuotedWord | Kind::UnicodeWord if password => self.literal(),
            Kind::Word => self.word(lexeme.text),
            Kind::QuotedWord => self.quoted(b"\"", lexeme.text),
            Kind::UnicodeWord => self.quoted(b"U&\"", lexeme.text),
            Kind::Symbol => self.symbol(lexeme.text),
            Kind::Operator => self.operator(lexeme.text),
        }
    }

    fn literal(&mut self) {
        self.place.begun = true;
        // After a comma that was held back, the `?` of the first literal is shown for this one, too.
        if !matches!(self.held, Held::Comma | Held::Sign(_)) {
            self.release();
            self.write(VALUE);
        }
        self.gap = false;
        self.held = if self.place.depth > 0 { Held::Literal } else { Held::Nothing };
    }

    fn word(&mut self, word: &[u8]) {
        self.release();
        self.write(word);
        let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
        let place = &mut self.place;
        if !std::mem::replace(&mut place.begun, true) {
            place.configures = is(b"set") || is(b"alter") || is(b"create");
        }
        if !place.configures {
            return;
        }
        if is(b"set") {
            place.sets = true;
        } else if is(b"to") {
            self.assigned();
        } else {
            place.password = is(b"password");
        }
    }

    fn quoted(&mut self, opening: &[u8], name: &[u8]) {
        self.place.begun = true;
        self.release();
        self.write(opening);
        self.gap = false;
        self.write(name);
        self.write(b"\"");
    }

    fn symbol(&mut self, text: &[u8]) {
        if text == b"," && self.held == Held::Literal {
            self.held = Held::Comma;
            self.gap = false;
            return;
        }
        self.release();
        match text {
            b"(" | b"[" => self.place.depth += 1,
            b")" | b"]" => self.place.depth = self.place.depth.saturating_sub(1),
            _ => {}
        }
        self.write(text);
    }

    fn operator(&mut self, text: &[u8]) {
        if let (Held::Comma, [sign @ (b'-' | b'+')]) = (self.held, text) {
            self.held = Held::Sign(*sign);
            self.gap = false;
            return;
        }
        self.release();
        self.write(text);
        if text.first() == Some(&b'=') {
            self.assigned();
        }
    }

    /// Handles `=` or TO: in a SET, a value follows that needs no quotes.
    fn assigned(&mut self) {
        if self.place.sets && self.place.depth == 0 {
            self.gap = true;
            self.write(VALUE);
            self.place.value = true;
        }
    }

    /// Writes what was held back: it is not inside a list of literals.
    fn release(&mut self) {
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Nothing | Held::Literal => {}
            Held::Comma => {
                self.write_at_once(b",");
                self.gap = true;
            }
            Held::Sign(sign) => {
                self.write_at_once(b", ");
                self.write_at_once(&[sign]);
                self.gap = false;
            }
        }
    }

    fn write(&mut self, piece: &[u8]) {
        if std::mem::take(&mut self.gap) && std::mem::replace(&mut self.begun, true) {
            self.write_at_once(b" ");
        }
        self.begun = true;
        self.write_at_once(piece);
    }

    fn write_at_once(&mut self, piece: &[u8]) {
        self.more = self.more && (self.put)(piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::traits;

    fn bare(sql: &[u8]) -> String {
        let mut out = Vec::new();
        without_literals(sql, |piece| {
            out.extend_from_slice(piece);
            true
        });
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn literals_comments_and_lists_are_gone() {
        for (sql, expected) in [
            ("select * from t where id = 7", "select * from t where id = ?"),
            ("  SELECT 'a',\n\t\"B\" -- secret\n FROM t;", "SELECT ?, \"B\" FROM t;"),
            ("/* secret */ select 1", "select ?"),
            ("select a from t where id in (1, -2 , 'x', $4)", "select a from t where id in (?)"),
            (
                "insert into t (a,b) values (1, a, 2), ($1,now(),E'\\'')",
                "insert into t (a,b) values (?, a, ?), (?, now(),?)",
            ),
            ("select (1, -a)", "select (?, -a)"),
            ("select a[1], x::int, 1.5e3", "select a[?], x::int, ?"),
            ("select $$x$$, $q$ $$ $q$, U&'\\0041' UESCAPE '!', B'101'", "select ?, ?, ? UESCAPE ?, B?"),
            ("do $$ begin perform 'secret'; end $$", "do ?"),
            ("", ""),
            ("-- nothing", ""),
            ("select 1; select 2", "select ?; select ?"),
        ] {
            assert_eq!(bare(sql.as_bytes()), expected, "{sql}");
        }
    }

    #[test]
    fn secrets_need_no_quotes_to_be_hidden() {
        for sql in [
            "ALTER ROLE a PASSWORD 'secret'",
            "alter role a with encrypted password \"secret\" valid until 'tomorrow'",
            "CREATE USER a PASSWORD secret",
            "create role a login password U&\"secret\"",
            "SET app.token = secret",
            "set local app.token to secret, \"secret\"",
            "alter role a in database b set app.token = secret",
            "alter system set app.token to secret",
            "select 1 where a = 'secret",
            "select $tag$ secret",
            "select E'secret",
            "select 'a\\' secret '",
            "select U&\"secret",
            "select /* secret",
            "select 0xsecret",
            "select 12secret",
            "select $1secret",
            "select 'a'\x01secret",
            "insert into t values ('O'Brien', 'secret')",
            "insert into t values ('O'Brien', 'secret', 'x')",
            "insert into t values ('x, 'secret')",
            "insert into t values ('x'', 'secret')",
            "insert into t values (x', 'secret')",
            "select E'x'a, 'secret'",
            "select 'x'\"y\", 'secret'",
        ] {
            let shown = bare(sql.as_bytes());
            assert!(!shown.contains("secret"), "{sql} | {shown}");
        }
        assert_eq!(bare(b"alter role a password null"), "alter role a password null");
        assert_eq!(bare(b"select 'a' b, N'c'::text, x'1f'"), "select ? b, N?::text, x?");
        assert_eq!(bare(b"insert into t values ('O'Brien', 'secret')"), "insert into t values (? ...");
        assert_eq!(bare(b"select password from users"), "select password from users");
        assert_eq!(bare(b"update t set a = b, c = 1 where d"), "update t set a = b, c = ? where d");
        assert_eq!(bare(b"set a to b; select c"), "set a to ?; select c");
        assert_eq!(
            bare(b"alter table t set (fillfactor = 70), rename a to b"),
            "alter table t set (fillfactor = ?), rename a to ?"
        );
    }

    #[test]
    fn it_stops_when_told_to() {
        let mut pieces = 0;
        without_literals(b"select a, b, c", |_| {
            pieces += 1;
            pieces < 3
        });
        assert_eq!(pieces, 3);
    }

    proptest! {
        #[test]
        fn no_value_is_shown_however_it_is_written(
            before in "[a-z ,()=]{0,20}",
            secret in "[QWZ]{6,12}",
            form in 0..7usize,
            after in "[a-z0-9 ,()'$\\\\\"=;-]{0,20}",
        ) {
            let value = match form {
                0 => format!("'{secret}'"),
                1 => format!("E'{secret}'"),
                2 => format!("U&'{secret}'"),
                3 => format!("$${secret}$$"),
                4 => format!("$t${secret}$t$"),
                5 => format!("'x''{secret}'"),
                _ => format!("/* {secret} */"),
            };
            let shown = bare(format!("{before} {value}{after}").as_bytes());
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }

        #[test]
        fn any_bytes_are_fine(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _shown = bare(&bytes);
        }

        #[test]
        fn what_is_shown_has_the_same_shape(sql in "(select|insert|a|b|'x'|\\$1|12|-|\\+|=|,|\\(|\\)| |\n|;|\"Q\"){0,20}") {
            let shown = bare(sql.as_bytes());
            if !shown.ends_with(REST.escape_ascii().to_string().as_str()) {
                // `?` is an operator to the lexer: put a literal in its place.
                let again = shown.replace('?', " 1 ");
                prop_assert_eq!(traits(sql.as_bytes()).fingerprint, traits(again.as_bytes()).fingerprint, "{}", shown);
            }
        }
    }
}
