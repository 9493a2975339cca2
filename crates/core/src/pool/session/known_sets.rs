//! The effects of SET statements that servers were asked about: if the same text runs again and is committed, its server need not be asked.
//! Values and texts only.
//!
//! This file tells which value a setting has after a text that a server was asked about before. It must not know a text that may have
//! another effect on another server, or the next time: an unknown text costs a question, never correctness.

use std::collections::HashMap;

use pgweir_sql::{Marks, assignments};

use crate::limits::{KNOWN_SETS_MAX, SET_BYTES_MAX};
use crate::pool::session::params::quote_literal;

/// The settings whose values depend on more than the text: on the user that asks, or on what can be found.
const DEPENDENT: [&[u8]; 4] =
    [b"role", b"session_authorization", b"default_text_search_config", b"transaction_isolation"];

/// The texts that a pool knows.
#[derive(Default)]
pub(crate) struct KnownSets {
    /// The values as `current_setting` gives them. `None` if the text was seen once; many texts are never seen again.
    known: HashMap<Box<[u8]>, Option<Box<[u8]>>>,
}

impl KnownSets {
    pub(crate) fn get(&self, text: &[u8]) -> Option<&[u8]> {
        self.known.get(text)?.as_deref()
    }

    /// Notes that a text that is not known was seen. Returns `true` if it was seen before: then it is worth asking for its effect.
    pub(crate) fn note(&mut self, text: &[u8]) -> bool {
        if self.known.contains_key(text) {
            return true;
        }
        self.keep(text, None);
        false
    }

    pub(crate) fn insert(&mut self, text: &[u8], value: Box<[u8]>) {
        self.keep(text, Some(value));
    }

    fn keep(&mut self, text: &[u8], value: Option<Box<[u8]>>) {
        if self.known.len() >= KNOWN_SETS_MAX {
            self.known.clear();
        }
        self.known.insert(text.into(), value);
    }

    /// Forgets all texts: the same text may have another effect from here on.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}

/// A SET statement that does the same wherever it runs.
pub(crate) struct PlainSet {
    /// The text without comment and semicolon.
    pub(crate) text: Box<[u8]>,
    /// The name of the setting, letters in lower case.
    pub(crate) name: Box<[u8]>,
}

impl PlainSet {
    /// Returns the statement if the text only gives its session a value for one setting.
    pub(crate) fn of(text: &[u8], marks: Marks) -> Option<PlainSet> {
        if marks != Marks::SETTINGS || text.len() > SET_BYTES_MAX {
            return None;
        }
        let text = without_end(text);
        // A backslash may end a string or not, and letters mean what client_encoding says.
        let plain = text.iter().all(|&byte| byte.is_ascii() && byte != b';' && byte != b'\\');
        let sets = text.get(..3).is_some_and(|verb| verb.eq_ignore_ascii_case(b"set"));
        if !plain || !sets || text.windows(2).any(|pair| pair == b"/*" || pair == b"--") {
            return None;
        }
        let (mut name, mut many) = (None, false);
        let read = assignments(text, |assignment| {
            many |= name.is_some() || assignment.local || assignment.to_default;
            name = assignment.name;
        });
        let name = name.filter(|_| read.is_ok() && !many)?.to_ascii_lowercase();
        let depends = DEPENDENT.contains(&&*name);
        (!depends).then(|| PlainSet { text: text.into(), name: name.into() })
    }

    /// Returns the text that tells the value and leaves no trace: PostgreSQL runs both statements in one transaction.
    pub(crate) fn probe(&self) -> Vec<u8> {
        let rest = self.text.get(3..).unwrap_or_default().trim_ascii_start();
        let rest = match rest.get(..8) {
            Some(word) if word.eq_ignore_ascii_case(b"session ") => &rest[8..],
            _ => rest,
        };
        let mut probe = [b"SET LOCAL ", rest, b";SELECT pg_catalog.current_setting("].concat();
        quote_literal(&mut probe, &self.name);
        probe.extend_from_slice(b",true)");
        probe
    }
}

/// Returns a text without the comment (tools add one to each statement, another one each time) and the semicolon at its end.
fn without_end(text: &[u8]) -> &[u8] {
    let mut text = text.trim_ascii_end();
    if text.ends_with(b"*/")
        && let Some(at) = text.windows(2).rposition(|pair| pair == b"/*")
    {
        text = text[..at].trim_ascii_end();
    }
    text.strip_suffix(b";").unwrap_or(text).trim_ascii_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<String> {
        let marks = pgweir_sql::traits(text.as_bytes()).marks;
        let set = PlainSet::of(text.as_bytes(), marks)?;
        Some(String::from_utf8_lossy(&set.name).into_owned())
    }

    #[test]
    fn a_plain_set_is_one() {
        for (text, name) in [
            ("SET search_path = a, b", "search_path"),
            ("set work_mem to '1MB' ; ", "work_mem"),
            ("SET SESSION app.tenant = '42'", "app.tenant"),
            ("set schema 'a'", "search_path"),
            ("set Work_Mem = 1 /* by: it's me; */", "work_mem"),
        ] {
            assert_eq!(of(text).as_deref(), Some(name), "{text}");
        }
    }

    #[test]
    fn a_probe_leaves_no_trace() {
        let probe = |text: &str| {
            let set = PlainSet::of(text.as_bytes(), Marks::SETTINGS).expect("plain");
            String::from_utf8(set.probe()).expect("text")
        };
        let asks = "SELECT pg_catalog.current_setting('x',true)";
        assert_eq!(probe("set x = 1 ; /* 2 */ "), format!("SET LOCAL x = 1;{asks}"));
        assert_eq!(probe("SET Session x TO 'a'"), format!("SET LOCAL x TO 'a';{asks}"));
    }

    #[test]
    fn what_depends_on_more_than_its_text_is_none() {
        for text in [
            "SET LOCAL work_mem = 1",
            "set work_mem = 1; set work_mem = 2",
            "set work_mem to default",
            "set role bob",
            "set session authorization bob",
            "SET default_text_search_config = english",
            "set session characteristics as transaction read only",
            "set a.b = 'x\\y'",
            "set a.b = 'é'",
            "set seed = 0.5",
            "begin; set work_mem = 1",
            "select set_config('a.b', 'c', false)",
            "/* x */ set work_mem = 1",
            "set work_mem = 1 /* a /* b */ */",
            "set work_mem = 1 -- a /* b */",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
