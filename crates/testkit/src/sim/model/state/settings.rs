//! Run-time parameters of a model session: values that follow transactions, and which of them are reported.

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::network::proto::{Body, Message};

/// Parameters reported with ParameterStatus that a client may set, with PostgreSQL's defaults (and its spelling).
pub const TRACKED: [(&str, &str); 6] = [
    ("application_name", ""),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("standard_conforming_strings", "on"),
    ("TimeZone", "Etc/UTC"),
];

/// Parameters that are reported but never change in the model.
const FIXED: [(&str, &str); 3] =
    [("integer_datetimes", "on"), ("server_encoding", "UTF8"), ("server_version", "17.2 (model)")];

/// Parameters that exist and are not reported; all default to "off".
pub const SILENT: [&str; 4] = ["pgweir.route", "search_path", "statement_timeout", "work_mem"];

/// The settings of one session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The values to which RESET returns: defaults and the startup packet.
    initial: BTreeMap<&'static str, String>,
    session: BTreeMap<&'static str, String>,
    /// The settings that the session itself has set, as `pg_settings.source` shows.
    own: BTreeSet<&'static str>,
    /// SET LOCAL: gone at the end of the transaction.
    local: BTreeMap<&'static str, String>,
    /// `session` as it was when the open transaction began.
    before: Option<(BTreeMap<&'static str, String>, BTreeSet<&'static str>)>,
    reported: BTreeMap<&'static str, String>,
}

/// A name PostgreSQL has no parameter for.
#[derive(Debug, PartialEq, Eq)]
pub struct Unknown;

impl Settings {
    /// The settings a connection starts with. Unknown startup parameters are ignored here; the caller refuses them.
    #[must_use]
    pub fn new(startup: &[(String, String)]) -> Self {
        let mut initial: BTreeMap<&'static str, String> =
            TRACKED.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        initial.extend(SILENT.iter().map(|&name| (name, "off".to_owned())));
        for (name, value) in startup {
            if let Some(known) = known(name) {
                initial.insert(known, canonical(known, value));
            }
        }
        Settings {
            session: initial.clone(),
            initial,
            own: BTreeSet::new(),
            local: BTreeMap::new(),
            before: None,
            reported: BTreeMap::new(),
        }
    }

    /// A transaction begins, unless one is open.
    pub fn begin(&mut self) {
        if self.before.is_none() {
            self.before = Some((self.session.clone(), self.own.clone()));
        }
    }

    /// The open transaction ends; with `keep` its SETs stay.
    pub fn end(&mut self, keep: bool) {
        self.local.clear();
        match self.before.take() {
            Some((session, own)) if !keep => (self.session, self.own) = (session, own),
            _ => {}
        }
    }

    /// SET, SET LOCAL, RESET (`value` is `None`).
    pub fn set(&mut self, name: &str, value: Option<&str>, local: bool) -> Result<(), Unknown> {
        let name = known(name).ok_or(Unknown)?;
        let sets = value.is_some();
        let value = match value {
            Some(value) => canonical(name, value),
            None => self.initial[name].clone(),
        };
        if local {
            self.local.insert(name, value);
        } else {
            self.local.remove(name);
            self.session.insert(name, value);
            if sets {
                self.own.insert(name);
            } else {
                self.own.remove(name);
            }
        }
        Ok(())
    }

    /// RESET ALL, and what DISCARD ALL does to settings.
    pub fn reset_all(&mut self) {
        self.local.clear();
        self.session.clone_from(&self.initial);
        self.own.clear();
    }

    /// Returns whether the session itself has set it.
    pub fn is_own(&self, name: &'static str) -> bool {
        self.own.contains(name) || self.local.contains_key(name)
    }

    /// Returns the settings that the session itself has set, with their values.
    pub fn own(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.own.iter().map(|name| (*name, self.session[name].as_str()))
    }

    /// The value now in effect.
    #[must_use]
    pub fn get(&self, name: &'static str) -> &str {
        self.local.get(name).or_else(|| self.session.get(name)).map_or("", String::as_str)
    }

    /// The reported parameters, as one line for a result row.
    #[must_use]
    pub fn tracked_line(&self) -> String {
        TRACKED.map(|(name, _)| format!("{name}={}", self.get(name))).join(";")
    }

    /// The unreported parameters, as one line for a result row.
    #[must_use]
    pub fn silent_line(&self) -> String {
        SILENT.map(|name| format!("{name}={}", self.get(name))).join(";")
    }

    /// ParameterStatus messages for everything reported, as sent once after authentication.
    pub fn report_all(&mut self) -> Vec<Message> {
        self.reported.clear();
        let fixed = FIXED.map(|(name, value)| status(name, value));
        fixed.into_iter().chain(self.report()).collect()
    }

    /// ParameterStatus messages for what changed since the last report.
    pub fn report(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for (name, _) in TRACKED {
            let value = self.get(name).to_owned();
            if self.reported.get(name) != Some(&value) {
                messages.push(status(name, &value));
                self.reported.insert(name, value);
            }
        }
        messages
    }
}

fn status(name: &str, value: &str) -> Message {
    Body::new().text(name).text(value).message(b'S')
}

/// The parameter's own spelling; names are case-insensitive.
#[must_use]
pub fn known(name: &str) -> Option<&'static str> {
    let all = TRACKED.iter().map(|&(name, _)| name).chain(SILENT);
    all.into_iter().find(|known| known.eq_ignore_ascii_case(name))
}

/// The value PostgreSQL shows for one that was set: some parameters have a canonical spelling.
fn canonical(name: &str, value: &str) -> String {
    let lower = value.to_ascii_lowercase();
    match (name, lower.as_str()) {
        ("client_encoding", "utf8" | "utf-8" | "unicode") => "UTF8".to_owned(),
        ("client_encoding", "latin1" | "iso88591") => "LATIN1".to_owned(),
        ("DateStyle", "iso") => "ISO, MDY".to_owned(),
        ("DateStyle", "german") => "German, DMY".to_owned(),
        ("DateStyle", "sql") => "SQL, MDY".to_owned(),
        ("standard_conforming_strings", "true" | "1" | "yes") => "on".to_owned(),
        ("standard_conforming_strings", "false" | "0" | "no") => "off".to_owned(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(messages: &[Message]) -> Vec<String> {
        messages.iter().map(|m| String::from_utf8_lossy(&m.body).replace('\0', "|")).collect()
    }

    #[test]
    fn a_rollback_takes_settings_back_and_says_so() {
        let mut settings = Settings::new(&[("application_name".to_owned(), "a".to_owned())]);
        assert_eq!(settings.report_all().len(), TRACKED.len() + FIXED.len());
        settings.begin();
        settings.set("APPLICATION_NAME", Some("b"), false).expect("known");
        settings.set("timezone", Some("Asia/Tokyo"), true).expect("known");
        assert_eq!(names(&settings.report()), ["application_name|b|", "TimeZone|Asia/Tokyo|"]);
        settings.end(false);
        assert_eq!(names(&settings.report()), ["application_name|a|", "TimeZone|Etc/UTC|"]);
    }

    #[test]
    fn set_local_ends_with_its_transaction_and_set_stays() {
        let mut settings = Settings::new(&[]);
        settings.begin();
        settings.set("work_mem", Some("1"), false).expect("known");
        settings.set("search_path", Some("x"), true).expect("known");
        settings.end(true);
        assert_eq!(
            settings.silent_line(),
            "pgweir.route=off;search_path=off;statement_timeout=off;work_mem=1"
        );
        settings.reset_all();
        assert_eq!(settings.get("work_mem"), "off");
        assert_eq!(settings.set("nonsense", None, false), Err(Unknown));
    }
}
