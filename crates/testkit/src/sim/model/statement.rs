//! The small SQL that the model server understands.
//!
//! The words are SQL's own, so that a pooler that reads statements classifies them as it would in life. What the model is
//! to do beyond the words stands in a comment or in the first parameter, as `k=v` pairs ([`Tag`]):
//! `SELECT who /*c=3 n=7 d=200 r=2*/` is statement 7 of client 3, takes 200 µs and answers two rows.

use pgweir_core::own_settings;

/// The beginning of the question which server a session is at.
const IDENTIFY: &str = "SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time())";
/// The beginning of a question for the tables of a statement: it begins a transaction.
const ANALYSE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL lock_timeout";

/// The name of what is another thing on a standby, as the catalog says.
pub const SEQUENCE: &str = "a_seq";

/// The data that a statement carries besides its words: its client, and the behaviour of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tag {
    /// `c`: the client. Absent in shared prepared texts (the parameter names the client) and in a pooler's own statements.
    pub client: Option<u32>,
    /// `n`: the client's number for this execution.
    pub number: u32,
    /// `t`: which shared text this is; 0 for none.
    pub text: u32,
    /// `d`: how long it runs, in microseconds.
    pub duration_us: u64,
    /// `r`: rows (or copy lines, or notices) to produce; how long a COMMIT is answered after it is committed.
    pub rows: u32,
    /// `b`: filler bytes in each row.
    pub bytes: u32,
    /// `l`: the lock of a row or table that it needs: a change takes it until its transaction ends, a query only waits for it. 0 is none.
    pub lock: u64,
}

impl Tag {
    /// Returns the text for a comment or parameter.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut put = |key: char, value: u64| {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&format!("{key}={value}"));
        };
        if let Some(client) = self.client {
            put('c', u64::from(client));
            put('n', u64::from(self.number));
        }
        for (key, value) in [
            ('t', u64::from(self.text)),
            ('d', self.duration_us),
            ('r', self.rows.into()),
            ('b', self.bytes.into()),
            ('l', self.lock),
        ] {
            if value > 0 {
                put(key, value);
            }
        }
        text
    }

    /// The pairs in `text`.
    #[must_use]
    pub fn of(text: &str) -> Tag {
        let mut tag = Tag::default();
        tag.absorb(text);
        tag
    }

    /// Takes over the pairs in `text`; anything else in it is ignored.
    pub fn absorb(&mut self, text: &str) {
        for word in text.split([' ', ',', '\0']) {
            let Some((key, value)) = word.split_once('=') else { continue };
            let Ok(value) = value.parse::<u64>() else { continue };
            let small = u32::try_from(value).unwrap_or(u32::MAX);
            match key {
                "c" => self.client = Some(small),
                "n" => self.number = small,
                "t" => self.text = small,
                "d" => self.duration_us = value,
                "r" => self.rows = small,
                "b" => self.bytes = small,
                "l" => self.lock = value,
                _ => {}
            }
        }
    }

    /// `true` when a client wrote the statement; a pooler's own statements carry no pair.
    #[must_use]
    pub fn is_clients(&self) -> bool {
        self.client.is_some() || self.text > 0
    }
}

/// The effect of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verb {
    /// No effect: an empty string or only a comment.
    Empty,
    /// SELECT: rows that say which client asked, and what the session looked like.
    Select,
    /// `SELECT a_seq`, `SELECT nextval()`, `SELECT lastval()`: as SELECT, of what a standby has otherwise.
    SelectState,
    /// `SELECT none`: no row.
    SelectNone,
    /// The pooler asks the catalog for routines, and for names that may do more than read.
    Catalog,
    /// The pooler asks a primary for its position, or (`replayed`) a standby for its.
    Position {
        /// `true` if the statement asks for the position that was replayed.
        replayed: bool,
    },
    /// `SELECT fail`: rows, then an error.
    Fail,
    /// INSERT, UPDATE, DELETE: no rows.
    Write,
    /// `DO`: notices.
    Notices,
    /// SET, SET LOCAL, RESET.
    Set {
        /// SET LOCAL.
        local: bool,
        /// The name as it was written.
        name: String,
        /// `None` is DEFAULT or RESET.
        value: Option<String>,
    },
    /// RESET ALL.
    ResetAll,
    /// BEGIN.
    Begin,
    /// BEGIN READ ONLY.
    BeginReadOnly,
    /// `SELECT "pgweir:..."`, by the pooler: a column that is not there.
    NoColumn(String),
    /// START TRANSACTION.
    Start,
    /// ROLLBACK TO SAVEPOINT; there never is one.
    RollbackTo,
    /// COMMIT, END.
    Commit,
    /// ROLLBACK, ABORT.
    Rollback,
    /// COPY ... FROM STDIN.
    CopyIn,
    /// COPY ... TO STDOUT.
    CopyOut,
    /// DISCARD ALL.
    DiscardAll,
    /// DISCARD SEQUENCES, by the pooler; the model has none.
    DiscardSequences,
    /// The same, by the pooler, unless the transaction drew.
    CheckSequences,
    /// DEALLOCATE ALL.
    DeallocateAll,
    /// The pooler asks for values of settings, by name.
    Values(Vec<String>),
    /// The pooler asks for all that a session holds, and for the values of these settings.
    Everything(Vec<String>),
    /// The pooler sets settings: name, value (`None` is NULL), until the end of the transaction or not.
    SetConfig(Vec<(String, Option<String>, bool)>),
    /// The pooler sets settings that are not the session's own: name, value.
    PutBack(Vec<(String, String)>),
    /// State besides settings is created, used or ended.
    Hold(Hold),
    /// The pooler asks for a transaction, or for the server.
    Inquire(Inquiry),
    /// The pooler asks for the tables that the session has locked.
    Locks,
}

/// A question of the pooler about a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inquiry {
    /// The number of the open transaction, the position of the log, the end of a record with that number,
    /// which is written for it, and the place where recovery had ended.
    Number,
    /// The server that the session is at.
    Node,
    /// The outcome of another transaction, the place where recovery ended, and the run of the server.
    Outcome {
        /// The number of that transaction.
        xid: u64,
        /// `true` if the answer comes after a moment.
        waits: bool,
    },
}

/// A statement about what a session holds besides settings; what it does is in `holdings.rs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hold {
    /// LISTEN.
    Listen(String),
    /// UNLISTEN; `None` is all channels.
    Unlisten(Option<String>),
    /// NOTIFY: channel and payload.
    Notify(String, String),
    /// CREATE TEMP TABLE.
    CreateTable(String),
    /// DROP TABLE.
    DropTable(String),
    /// PREPARE ... AS.
    Prepare {
        /// The name under which the statement is executed.
        name: String,
        /// The effect of the statement.
        verb: Box<Verb>,
        /// The whole query string, which `pg_prepared_statements` shows.
        source: String,
    },
    /// EXECUTE.
    Execute(String),
    /// DEALLOCATE.
    Deallocate(String),
    /// `SELECT pg_advisory_lock(key)`, or `pg_try_advisory_lock` if it does not wait.
    Lock {
        /// The lock's key.
        key: u64,
        /// `true` if the statement waits until it gets the lock.
        waits: bool,
    },
    /// `SELECT pg_advisory_unlock(key)`; `None` is `pg_advisory_unlock_all()`.
    Unlock(Option<u64>),
    /// DECLARE ... CURSOR WITH HOLD.
    Declare(String),
    /// FETCH: so many rows of a cursor.
    Fetch(String, u32),
    /// CLOSE.
    Close(String),
}

impl Hold {
    /// Returns whether the statement returns rows.
    fn returns_rows(&self) -> bool {
        matches!(self, Hold::Lock { .. } | Hold::Unlock(_) | Hold::Fetch(..))
    }
}

/// One parsed statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The effect of the statement.
    pub verb: Verb,
    /// The tag of the statement, which names its client.
    pub tag: Tag,
    /// Parameters it takes: 0 or 1.
    pub params: u16,
}

impl Statement {
    /// `true` for statements that answer rows.
    #[must_use]
    pub fn returns_rows(&self) -> bool {
        match &self.verb {
            Verb::Select | Verb::SelectState | Verb::SelectNone | Verb::Fail => true,
            Verb::Hold(hold) => hold.returns_rows(),
            _ => false,
        }
    }

    /// `true` for what may run in a failed transaction block.
    #[must_use]
    pub fn ends_transaction(&self) -> bool {
        matches!(self.verb, Verb::Commit | Verb::Rollback)
    }
}

/// Parses a query string: statements between semicolons. An empty string is no statement at all.
///
/// # Errors
/// What PostgreSQL would call a syntax error, with the words it stumbled over.
pub fn parse(text: &str) -> Result<Vec<Statement>, String> {
    let text = without_own_settings(text);
    if text.starts_with("DO $pgweir$") {
        return Ok(vec![Statement { verb: Verb::CheckSequences, tag: Tag::default(), params: 0 }]);
    }
    if text.starts_with(IDENTIFY) {
        let verb = Verb::Inquire(Inquiry::Node);
        return Ok(vec![Statement { verb, tag: Tag::default(), params: 0 }]);
    }
    if text.starts_with(ANALYSE) {
        return Ok(vec![Statement { verb: Verb::BeginReadOnly, tag: Tag::default(), params: 0 }]);
    }
    let mut statements = Vec::new();
    let mut tag = Tag::default();
    let mut words: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("/*") {
            let (inside, after) = comment.split_once("*/").ok_or("unterminated comment")?;
            tag.absorb(inside);
            rest = after;
        } else if first == ';' {
            finish(&mut words, &mut tag, &mut statements)?;
            rest = &rest[1..];
        } else if first.is_whitespace() {
            rest = rest.trim_start();
        } else {
            let (word, after) = word(rest)?;
            words.push(word);
            rest = after;
        }
    }
    finish(&mut words, &mut tag, &mut statements)?;
    for statement in &mut statements {
        if let Verb::Hold(Hold::Prepare { source, .. }) = &mut statement.verb {
            text.clone_into(source);
        }
    }
    Ok(statements)
}

/// A question of the pooler's: without the settings that go ahead of it, and without what it asks of the catalog beside the session, which
/// the model does not have.
fn without_own_settings(text: &str) -> &str {
    let question = own_settings::question_in(text);
    if question.len() == text.len() {
        return text;
    }
    question.split_once(";SET LOCAL ").map_or(question, |(session, _)| session)
}

fn finish(words: &mut Vec<String>, tag: &mut Tag, statements: &mut Vec<Statement>) -> Result<(), String> {
    let words = std::mem::take(words);
    if words.is_empty() {
        // A comment alone belongs to no statement, but the query string as a whole still has its owner.
        if tag.is_clients() && statements.is_empty() {
            statements.push(Statement { verb: Verb::Empty, tag: std::mem::take(tag), params: 0 });
        }
        return Ok(());
    }
    let params = u16::from(words.iter().any(|w| w.contains("$1")));
    statements.push(Statement { verb: verb(&words)?, tag: std::mem::take(tag), params });
    Ok(())
}

/// A quoted string (returned with a leading quote), a quoted name, or a run of other characters.
fn word(text: &str) -> Result<(String, &str), String> {
    let (quote, start) = match text.as_bytes() {
        [b'\'', ..] => (b'\'', 1),
        [b'E' | b'e', b'\'', ..] => (b'\'', 2),
        [b'"', ..] => (b'"', 1),
        [b'=' | b',' | b'(' | b')', ..] => return Ok((text[..1].to_owned(), &text[1..])),
        _ => {
            let stop = |c: char| c.is_whitespace() || matches!(c, ';' | '=' | ',' | '(' | ')' | '\'' | '"');
            let end = text.find(stop).unwrap_or(text.len());
            let end = text[..end].find("/*").unwrap_or(end);
            return Ok((text[..end].to_owned(), &text[end..]));
        }
    };
    let mut value = if quote == b'\'' { String::from("'") } else { String::new() };
    let escapes = start == 2;
    let mut chars = text[start..].char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if c == '\\' && escapes {
            value.extend(chars.next().map(|(_, c)| c));
        } else if c != char::from(quote) {
            value.push(c);
        } else if chars.peek().is_some_and(|&(_, next)| next == c) {
            value.push(c);
            chars.next();
        } else {
            return Ok((value, &text[start + at + 1..]));
        }
    }
    Err("unterminated quoted string".to_owned())
}

fn verb(words: &[String]) -> Result<Verb, String> {
    let upper: Vec<String> = words.iter().map(|w| w.to_ascii_uppercase()).collect();
    let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
    Ok(match upper.as_slice() {
        ["SELECT", "PG_CATALOG.CURRENT_SETTING", ..] => Verb::Values(literals(words).collect()),
        ["SELECT", "PG_CATALOG.SET_CONFIG", "(", "BEGAN.NAME", ..] => Verb::PutBack(put_back(words)),
        ["SELECT", "PG_CATALOG.SET_CONFIG", ..] => set_config(words)?,
        ["SELECT", "PG_CATALOG.TXID_CURRENT_IF_ASSIGNED", ..] => Verb::Inquire(Inquiry::Number),
        ["SELECT", "PG_CATALOG.TXID_STATUS", "(", xid, ..] => {
            let xid = xid.trim_start_matches('\'').parse();
            let xid = xid.map_err(|_| "invalid input syntax for type bigint".to_owned())?;
            Verb::Inquire(Inquiry::Outcome { xid, waits: upper.contains(&"PG_CATALOG.PG_SLEEP") })
        }
        ["SELECT", "AT::PG_CATALOG.TEXT", ..] => Verb::Position { replayed: false },
        ["SELECT", "PG_CATALOG.PG_LAST_WAL_REPLAY_LSN", ..] => Verb::Position { replayed: true },
        ["SELECT", "PG_CATALOG.PG_IS_IN_RECOVERY", ..] => Verb::Locks,
        ["SELECT", "'G", ..] => Verb::Catalog,
        ["SELECT", "'S", ..] => Verb::Everything(asked_by_name(words)),
        ["SELECT", name, "(", ..] if name.contains("ADVISORY") => locks(&upper)?,
        ["SELECT", name] if name.starts_with("PGWEIR:") => Verb::NoColumn(words[1].clone()),
        ["SELECT", "FAIL", ..] => Verb::Fail,
        ["SELECT", "NONE", ..] => Verb::SelectNone,
        ["SELECT", name, ..] if name.eq_ignore_ascii_case(SEQUENCE) => Verb::SelectState,
        ["SELECT", "NEXTVAL" | "CURRVAL" | "LASTVAL", ..] => Verb::SelectState,
        ["SELECT", ..] => Verb::Select,
        ["INSERT" | "UPDATE" | "DELETE", ..] => Verb::Write,
        ["DO", ..] => Verb::Notices,
        ["SET", "SESSION" | "LOCAL", ..] => assignment(upper[1] == "LOCAL", &words[2..])?,
        ["SET", ..] => assignment(false, &words[1..])?,
        ["RESET", "ALL"] => Verb::ResetAll,
        ["RESET", _] => Verb::Set { local: false, name: words[1].clone(), value: None },
        ["BEGIN", "READ", "ONLY", ..] => Verb::BeginReadOnly,
        ["BEGIN", ..] => Verb::Begin,
        ["START", "TRANSACTION", ..] => Verb::Start,
        ["ROLLBACK", "TO", ..] => Verb::RollbackTo,
        ["COMMIT" | "END", ..] => Verb::Commit,
        ["ROLLBACK" | "ABORT", ..] => Verb::Rollback,
        ["COPY", .., "FROM", "STDIN"] => Verb::CopyIn,
        ["COPY", .., "TO", "STDOUT"] => Verb::CopyOut,
        ["DISCARD", "ALL"] => Verb::DiscardAll,
        ["DISCARD", "SEQUENCES"] => Verb::DiscardSequences,
        ["DEALLOCATE", "ALL"] => Verb::DeallocateAll,
        _ => return holds(&upper, words).map(Verb::Hold),
    })
}

/// Advisory locks.
fn locks(upper: &[&str]) -> Result<Verb, String> {
    let key = upper[3].parse().map_err(|_| format!("syntax error at or near \"{}\"", upper[3]));
    Ok(Verb::Hold(match upper[1] {
        "PG_ADVISORY_LOCK" => Hold::Lock { key: key?, waits: true },
        "PG_TRY_ADVISORY_LOCK" => Hold::Lock { key: key?, waits: false },
        "PG_ADVISORY_UNLOCK" => Hold::Unlock(Some(key?)),
        "PG_ADVISORY_UNLOCK_ALL" => Hold::Unlock(None),
        other => return Err(format!("function {other} does not exist")),
    }))
}

/// Reads a statement about a session's own state.
fn holds(upper: &[&str], words: &[String]) -> Result<Hold, String> {
    let at = |place: usize| words.get(place).cloned().unwrap_or_default();
    Ok(match upper {
        ["LISTEN", _] => Hold::Listen(at(1)),
        ["UNLISTEN", "*"] => Hold::Unlisten(None),
        ["UNLISTEN", _] => Hold::Unlisten(Some(at(1))),
        ["NOTIFY", _, ",", _] => Hold::Notify(at(1), at(3).trim_start_matches('\'').to_owned()),
        ["NOTIFY", _] => Hold::Notify(at(1), String::new()),
        ["CREATE", "TEMP", "TABLE", _, ..] => Hold::CreateTable(at(3)),
        ["DROP", "TABLE", _] => Hold::DropTable(at(2)),
        ["PREPARE", _, "AS", ..] => {
            Hold::Prepare { name: at(1), verb: Box::new(verb(&words[3..])?), source: String::new() }
        }
        ["EXECUTE", _] => Hold::Execute(at(1)),
        ["DEALLOCATE", _] => Hold::Deallocate(at(1)),
        ["DECLARE", _, "CURSOR", "WITH", "HOLD", ..] => Hold::Declare(at(1)),
        ["FETCH", count, "FROM", _] => Hold::Fetch(at(3), count.parse().unwrap_or(1)),
        ["CLOSE", _] => Hold::Close(at(1)),
        _ => {
            let first = words.first().map_or("", String::as_str);
            return Err(format!("syntax error at or near \"{first}\""));
        }
    })
}

/// The settings that are asked for whether or not they are set: behind a row's kind, which is `m`.
fn asked_by_name(words: &[String]) -> Vec<String> {
    let names = words.windows(3).filter(|window| window[0] == "'m" && window[1] == ",");
    names.filter_map(|window| window[2].strip_prefix('\'').map(str::to_owned)).collect()
}

/// The string literals among these words.
fn literals(words: &[String]) -> impl Iterator<Item = String> + '_ {
    words.iter().filter_map(|word| word.strip_prefix('\'').map(str::to_owned))
}

/// The pairs of a list of VALUES.
fn put_back(words: &[String]) -> Vec<(String, String)> {
    let pair = |window: &[String]| match window {
        [open, name, comma, value, close] if open == "(" && comma == "," && close == ")" => {
            Some((name.strip_prefix('\'')?.to_owned(), value.strip_prefix('\'')?.to_owned()))
        }
        _ => None,
    };
    words.windows(5).filter_map(pair).collect()
}

fn set_config(words: &[String]) -> Result<Verb, String> {
    let mut calls = Vec::new();
    for call in words.split(|word| word == "pg_catalog.set_config").skip(1) {
        let ["(", name, ",", value, ",", local, ")", ..] =
            call.iter().map(String::as_str).collect::<Vec<_>>()[..]
        else {
            return Err("syntax error in set_config".to_owned());
        };
        let literal = |text: &str| text.strip_prefix('\'').map(str::to_owned);
        let name = literal(name).ok_or("set_config needs a name")?;
        calls.push((name, literal(value), local == "true"));
    }
    Ok(Verb::SetConfig(calls))
}

fn assignment(local: bool, words: &[String]) -> Result<Verb, String> {
    let [name, operator, values @ ..] = words else { return Err("syntax error in SET".to_owned()) };
    if values.is_empty() || !(operator == "=" || operator.eq_ignore_ascii_case("to")) {
        return Err(format!("syntax error at or near \"{operator}\""));
    }
    let mut value = String::new();
    for part in values {
        match part.as_str() {
            "," => value.push_str(", "),
            part => value.push_str(part.strip_prefix('\'').unwrap_or(part)),
        }
    }
    let is_default =
        values.len() == 1 && value.eq_ignore_ascii_case("default") && !values[0].starts_with('\'');
    Ok(Verb::Set { local, name: name.clone(), value: (!is_default).then_some(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Statement {
        let mut parsed = parse(text).expect("parses");
        assert_eq!(parsed.len(), 1, "{text}");
        parsed.remove(0)
    }

    #[test]
    fn tags_travel_in_comments() {
        let tag = Tag { client: Some(3), number: 7, text: 0, duration_us: 200, rows: 2, bytes: 10, lock: 0 };
        let parsed = one(&format!("SELECT who /*{}*/", tag.render()));
        assert_eq!(parsed, Statement { verb: Verb::Select, tag, params: 0 });
    }

    #[test]
    fn hidden_statements_carry_no_tag() {
        for text in ["SELECT 1", "DISCARD ALL", "SET application_name='a b'"] {
            assert!(!one(text).tag.is_clients(), "{text}");
        }
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse(" ; "), Ok(vec![]));
        assert_eq!(one("/*c=1 n=2*/").verb, Verb::Empty);
    }

    #[test]
    fn settings_are_read_with_all_their_quotes() {
        let set = |name: &str, value: Option<&str>| Verb::Set {
            local: false,
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        assert_eq!(one("SET a='it''s'").verb, set("a", Some("it's")));
        assert_eq!(one("set \"DateStyle\" to 'ISO, MDY'").verb, set("DateStyle", Some("ISO, MDY")));
        assert_eq!(one("SET DateStyle = ISO, MDY").verb, set("DateStyle", Some("ISO, MDY")));
        assert_eq!(one("SET a = DEFAULT").verb, set("a", None));
        assert_eq!(one("SET a = 'default'").verb, set("a", Some("default")));
        assert_eq!(one("SET a = E'b\\\\c'").verb, set("a", Some("b\\c")));
        assert_eq!(one("RESET a").verb, set("a", None));
        assert_eq!(parse("SET a='x;y';SET b='z';").map(|all| all.len()), Ok(2));
    }

    #[test]
    fn what_a_session_holds_has_its_own_words() {
        let hold = |text: &str| match one(text).verb {
            Verb::Hold(hold) => hold,
            other => panic!("{text}: {other:?}"),
        };
        let name = || "a".to_owned();
        assert_eq!(hold("LISTEN \"a\";"), Hold::Listen(name()));
        assert_eq!(hold("UNLISTEN *"), Hold::Unlisten(None));
        assert_eq!(hold("NOTIFY a, 'c=1 n=2' /*c=1 n=2*/"), Hold::Notify(name(), "c=1 n=2".to_owned()));
        assert_eq!(hold("SELECT pg_advisory_lock(7)"), Hold::Lock { key: 7, waits: true });
        assert_eq!(hold("SELECT pg_advisory_unlock_all()"), Hold::Unlock(None));
        assert_eq!(hold("DECLARE a CURSOR WITH HOLD FOR SELECT who"), Hold::Declare(name()));
        let text = "PREPARE a AS SELECT who /*c=1 n=2*/";
        let prepared = Hold::Prepare { name: name(), verb: Box::new(Verb::Select), source: text.to_owned() };
        assert_eq!(hold(text), prepared);
    }

    #[test]
    fn what_is_no_statement_is_a_syntax_error() {
        for text in ["SELEKT 1", "SET a", "SET a 1", "'open", "/* open", "COPY t"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
