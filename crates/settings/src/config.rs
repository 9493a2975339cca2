//! The whole configuration, and the console's commands on it: `SHOW CONFIG` and `SET`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::error::{LoadError, SetError, Warning};
use crate::overlay::{HandedOver, LayerEffect};
use crate::password::masked;
use crate::table::{
    CacheRule, Change, ClusterOptions, Database, MAIN_ROWS, Main, NodeOptions, Peer, RouteLine, UserOptions,
    row,
};

/// Maximum length of a database's name in bytes: PostgreSQL's limit for names.
pub const DATABASE_NAME_MAX: usize = 63;

/// A configuration: the file, and the sources that were read after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The settings of the whole process.
    pub main: Main,
    /// The entries of `[databases]` by name, without `*`.
    pub databases: BTreeMap<String, Database>,
    /// The entries of `[users]` by name.
    pub users: BTreeMap<String, UserOptions>,
    /// The entries of `[peers]` by id.
    pub peers: BTreeMap<u32, Peer>,
    /// The entries of `[clusters]` by name.
    pub clusters: BTreeMap<String, ClusterOptions>,
    /// The entries of `[nodes]` by name.
    pub nodes: BTreeMap<String, NodeOptions>,
    /// The lines of `[routes]`, in the order of the file.
    pub routes: Vec<RouteLine>,
    /// The lines of `[cache]`, in the order of the file.
    pub cache: Vec<CacheRule>,
    /// The `*` entry: what databases without their own entry are made from.
    pub fallback: Option<Database>,
    /// Warnings for the administrator about this configuration.
    pub warnings: Vec<Warning>,
    /// The place of each setting of the process that a source sets.
    pub given: BTreeMap<&'static str, Place>,
    /// The places of the entries of `[databases]`, including `*`.
    pub database_places: BTreeMap<String, Place>,
    /// The places of the entries of `[users]`.
    pub user_places: BTreeMap<String, Place>,
    /// The places of the entries of `[clusters]`.
    pub cluster_places: BTreeMap<String, Place>,
    /// The places of the entries of `[nodes]`.
    pub node_places: BTreeMap<String, Place>,
    /// The places of the lines of `[routes]`.
    pub route_places: BTreeMap<String, Place>,
    /// The places of the lines of `[cache]`.
    pub cache_places: BTreeMap<String, Place>,
    /// The sources that were read after the file, in that order, each with its changes.
    pub overlay: Vec<LayerEffect>,
    /// The sources, for a process that replaces this one.
    pub handed_over: HandedOver,
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file as it was named, the variable, or the command (`SET`) that sets the value.
    pub file: String,
    /// The line, from 1; 0 if the source has no lines.
    pub line: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl Place {
    /// Returns the place of a value that is not in a line of a file: a variable, the command line, `SET`.
    #[must_use]
    pub fn outside(source: &str) -> Place {
        Place { file: source.to_owned(), line: 0 }
    }

    /// Returns a fault of this line: `text` in PgBouncer's words, with the place; `problem` in ours, without
    /// it.
    pub(crate) fn error(&self, text: String, problem: String) -> LoadError {
        LoadError { file: self.file.clone(), line: self.line, text, problem }
    }

    pub(crate) fn warning(&self, text: String) -> Warning {
        Warning { file: self.file.clone(), line: self.line, text }
    }
}

/// One row of `SHOW CONFIG`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRow {
    /// The setting's name.
    pub key: &'static str,
    /// The setting's value; `None` is NULL.
    pub value: Option<String>,
    /// The setting's default, as the table has it; `None` is NULL.
    pub default: Option<&'static str>,
    /// `true` if `SET` and `RELOAD` can change the setting.
    pub changeable: bool,
    /// The source of the value: a file with its line, a variable, the command line, `SET`, or `default`.
    pub source: String,
}

/// The effect of a `SET` without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetOutcome {
    /// The value is in effect.
    Applied,
    /// No effect, because the setting can only change at a start. PgBouncer reports success in this case,
    /// too.
    NeedsRestart,
}

impl Config {
    /// Returns the database that a client asks for: its entry, or one made from the `*` entry. `None` means
    /// "no such database", also for the console's own database.
    pub fn database(&self, name: &str) -> Option<Cow<'_, Database>> {
        if let Some(entry) = self.databases.get(name) {
            return Some(Cow::Borrowed(entry));
        }
        if name.is_empty() || name.len() > DATABASE_NAME_MAX || name == crate::ADMIN_DATABASE {
            return None;
        }
        let fallback = self.fallback.as_ref()?;
        Some(Cow::Owned(Database { name: name.to_owned(), ..fallback.clone() }))
    }

    /// Changes one setting of the process until the next `RELOAD`: `SET key = value` on the console.
    ///
    /// # Errors
    ///
    /// The setting does not exist or does not take the value; then nothing is changed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<SetOutcome, SetError> {
        let row = row(MAIN_ROWS, key).ok_or_else(|| SetError::Unknown { key: key.to_owned() })?;
        let invalid = |reason| SetError::Invalid { key: key.to_owned(), value: masked(value), reason };
        if value.contains('\0') {
            return Err(invalid("it must not have NUL bytes".to_owned()));
        }
        let mut next = self.main.clone();
        row.assign(&mut next, value).map_err(invalid)?;
        // The value was checked first, so a wrong one is an error even if it would change nothing.
        if row.change == Change::Restart {
            return Ok(SetOutcome::NeedsRestart);
        }
        self.main = next;
        self.given.insert(row.name, Place::outside("SET"));
        Ok(SetOutcome::Applied)
    }

    /// Returns the rows of `SHOW CONFIG`, sorted by name, with PgBouncer's one exception of `pool_mode`
    /// before `pool_idle_timeout`.
    pub fn show(&self) -> Vec<ConfigRow> {
        let mut rows: Vec<ConfigRow> = MAIN_ROWS
            .iter()
            .map(|row| ConfigRow {
                key: row.name,
                value: row.render(&self.main),
                default: row.default,
                changeable: row.change != Change::Restart,
                source: self.given.get(row.name).map_or_else(|| "default".to_owned(), Place::to_string),
            })
            .collect();
        rows.sort_by_key(|row| match row.key {
            "pool_mode" => ("pool_idle_timeout", 0),
            key => (key, 1),
        });
        rows
    }
}
