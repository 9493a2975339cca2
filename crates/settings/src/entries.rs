//! The entries of `[databases]`, `[users]` and `[peers]`: from one line to one options struct.

use std::collections::BTreeMap;

use crate::ADMIN_DATABASE;
use crate::config::{DATABASE_NAME_MAX, Place};
use crate::connstr;
use crate::error::{LoadError, Warning};
use crate::password::masked;
use crate::table::{
    DATABASE_ROWS, Database, PEER_ID_MAX, PEER_ROWS, Peer, Row, Status, USER_ROWS, UserOptions, row,
};

/// A `name = value` line.
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a str,
    pub(crate) value: &'a str,
    pub(crate) place: &'a Place,
}

impl Entry<'_> {
    /// The fault in PgBouncer's words, with the reason behind them and with secrets hidden.
    pub(crate) fn fault(&self, reason: &str) -> LoadError {
        let Self { name, value, place } = self;
        let value = masked(value);
        let remark = if [" ;", " #"].iter().any(|sign| value.contains(sign)) {
            " (a comment is a line of its own)"
        } else {
            ""
        };
        let text = format!(
            "invalid value \"{value}\" for parameter {name} in configuration ({place}): {reason}{remark}"
        );
        place.error(text)
    }
}

/// What was read from an entry.
pub(crate) struct Outcome<T> {
    /// `None` when the entry as a whole is refused.
    pub(crate) options: Option<T>,
    pub(crate) faults: Vec<LoadError>,
    pub(crate) warnings: Vec<Warning>,
}

impl<T> Outcome<T> {
    fn refused(fault: LoadError) -> Self {
        Self { options: None, faults: vec![fault], warnings: Vec::new() }
    }
}

/// The warning about a setting that does nothing yet.
pub(crate) fn not_yet(what: &str) -> String {
    format!("setting {what} is accepted, not yet in effect")
}

pub(crate) fn database(entry: &Entry<'_>) -> Outcome<Database> {
    let name = entry.name;
    if name == ADMIN_DATABASE {
        return Outcome::refused(entry.fault(&format!("database name \"{name}\" is reserved")));
    }
    if name.len() > DATABASE_NAME_MAX {
        let reason = format!("too long db name: it has more than {DATABASE_NAME_MAX} bytes");
        return Outcome::refused(entry.fault(&reason));
    }
    let empty = Database { name: name.to_owned(), ..Database::default() };
    options(entry, empty, DATABASE_ROWS, "connection")
}

pub(crate) fn user(entry: &Entry<'_>) -> Outcome<UserOptions> {
    options(entry, UserOptions::default(), USER_ROWS, "user")
}

pub(crate) fn peer(entry: &Entry<'_>) -> Outcome<Peer> {
    let id = entry.name.parse().ok().filter(|id| (1..=PEER_ID_MAX).contains(id));
    let Some(id) = id else {
        let reason = format!("the id of a peer has to be between 1 and {PEER_ID_MAX}");
        return Outcome::refused(entry.fault(&reason));
    };
    let mut outcome = options(entry, Peer { id, ..Peer::default() }, PEER_ROWS, "peer");
    if outcome.faults.is_empty() && outcome.options.as_ref().is_some_and(|peer| peer.host.is_empty()) {
        outcome.faults.push(entry.fault("a peer needs a host"));
    }
    outcome
}

/// Reads the pairs of an entry into its struct.
fn options<T: Clone>(entry: &Entry<'_>, empty: T, rows: &'static [Row<T>], what: &str) -> Outcome<T> {
    let pairs = match connstr::pairs(entry.value) {
        Ok(pairs) => pairs,
        Err(reason) => return Outcome::refused(entry.fault(reason)),
    };
    let shown = masked(entry.value);
    let mut options = empty.clone();
    let mut faults = Vec::new();
    let mut given = BTreeMap::new();
    for (key, text) in pairs {
        let key = if key == "reserve_pool" { "reserve_pool_size" } else { key };
        let Some(row) = row(rows, key) else {
            faults.push(entry.fault(&format!("unrecognized {what} parameter: {}", visible(key, &shown))));
            continue;
        };
        match row.assign(&mut options, &text) {
            Ok(()) => {
                given.insert(row.name, row);
            }
            Err(reason) => faults.push(entry.fault(&wrong_value(key, visible(&text, &shown), &reason))),
        }
    }
    let silent = given.values().filter(|row| row.status == Status::NotYet && !row.same(&options, &empty));
    let warning = |row: &&Row<T>| entry.place.warning(not_yet(&format!("{} of {}", row.name, entry.name)));
    Outcome { warnings: silent.map(warning).collect(), options: Some(options), faults }
}

/// A password with a space in it and without quotes goes on in what looks like the next key: only what stands
/// before the password is repeated in a message.
fn visible<'a>(text: &'a str, shown: &str) -> &'a str {
    if shown.contains(text) { text } else { "***" }
}

/// The words for a bad value inside an entry; two of them are PgBouncer's.
fn wrong_value(key: &str, text: &str, reason: &str) -> String {
    // "invalid pool mode: x", "invalid port: x"
    let key = if key == "pool_mode" { "pool mode" } else { key };
    format!("invalid {key}: {text}: {reason}")
}
