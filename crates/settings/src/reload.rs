//! Reload as a diff: the changes that a new configuration makes, and those it cannot make while the process
//! runs.

use std::collections::BTreeMap;

use crate::FALLBACK_DATABASE;
use crate::config::Config;
use crate::error::Warning;
use crate::table::{Change, DATABASE_ROWS, Database, MAIN_ROWS};

/// The settings that keep their value if the new file does not have them: they come from the command line or
/// from a `SET` that is meant to last. PgBouncer keeps all settings without a default; for the others that is
/// an accident that no user can want.
const KEPT_WHEN_ABSENT: [&str; 3] = ["conffile", "user", "verbose"];

/// The changes that a reload makes.
#[derive(Clone, Debug)]
pub struct Diff {
    /// The configuration to use from now on: the new one, but with the old values of settings that cannot
    /// change.
    pub merged: Config,
    /// The settings of the process that have a new value.
    pub main: Vec<&'static str>,
    /// The settings of the process that the new file changes, but that need a restart. They keep their old
    /// value.
    pub restart: Vec<&'static str>,
    /// The names of new databases. The `*` entry is among them as "*", here and in the next lists.
    pub added: Vec<String>,
    /// The names of databases without an entry in the new file: their clients are disconnected ("database
    /// removed"), their servers closed.
    pub removed: Vec<String>,
    /// The names of databases whose change makes their servers unusable. For "*": all databases made from it.
    pub recycled: Vec<String>,
    /// The names of other databases that changed; their servers stay.
    pub changed: Vec<String>,
    /// The users whose options are new, changed or gone.
    pub users: Vec<String>,
    /// The peers that are new, changed or gone.
    pub peers: Vec<u32>,
    /// The clusters that are new, changed or gone.
    pub clusters: Vec<String>,
    /// The nodes that are new, changed or gone.
    pub nodes: Vec<String>,
    /// `true` if lines of `[routes]` are new, changed, gone or in another order.
    pub routes: bool,
    /// Whether lines of `[cache]` are new, changed, gone or in another order.
    pub cache: bool,
    /// Warnings for the administrator: those of the new file, and one for each setting that could not be
    /// changed.
    pub warnings: Vec<Warning>,
}

impl Diff {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.main.is_empty()
            && self.restart.is_empty()
            && self.added.is_empty()
            && self.removed.is_empty()
            && self.recycled.is_empty()
            && self.changed.is_empty()
            && self.users.is_empty()
            && self.peers.is_empty()
            && self.clusters.is_empty()
            && self.nodes.is_empty()
            && !self.routes
            && !self.cache
    }

    /// Returns whether a TLS setting changed. The contents of certificate files can change without that.
    pub fn tls_changed(&self) -> bool {
        self.main.iter().any(|name| name.contains("_tls_") || name.contains("_tls13_"))
    }
}

impl Config {
    /// Returns the changes that replacing this configuration with `new` makes.
    pub fn diff(&self, new: &Config) -> Diff {
        let mut diff = Diff {
            merged: new.clone(),
            main: Vec::new(),
            restart: Vec::new(),
            added: Vec::new(),
            removed: Vec::new(),
            recycled: Vec::new(),
            changed: Vec::new(),
            users: changed_keys(&self.users, &new.users),
            peers: changed_keys(&self.peers, &new.peers),
            clusters: changed_keys(&self.clusters, &new.clusters),
            nodes: changed_keys(&self.nodes, &new.nodes),
            routes: self.routes != new.routes,
            cache: self.cache != new.cache,
            warnings: new.warnings.clone(),
        };
        self.diff_main(&mut diff);
        self.diff_databases(&mut diff);
        diff
    }

    fn diff_main(&self, diff: &mut Diff) {
        for row in MAIN_ROWS {
            let given = diff.merged.given.get(row.name);
            // The value of the command line or of SET outlives a file that does not mention the setting.
            if given.is_none() && KEPT_WHEN_ABSENT.contains(&row.name) {
                row.adopt(&mut diff.merged.main, &self.main);
            }
            if row.same(&self.main, &diff.merged.main) {
                continue;
            }
            if row.change != Change::Restart {
                diff.main.push(row.name);
                continue;
            }
            let text = format!("setting {} can only be changed by a restart; it keeps its value", row.name);
            let warning = match given {
                Some(place) => place.warning(text),
                None => Warning { file: String::new(), line: 0, text },
            };
            diff.warnings.push(warning);
            diff.restart.push(row.name);
            row.adopt(&mut diff.merged.main, &self.main);
        }
    }

    fn diff_databases(&self, diff: &mut Diff) {
        let old = self.all_databases();
        let mut kept_users = Vec::new();
        for (name, entry) in diff.merged.all_databases_mut() {
            let Some(before) = old.get(name.as_str()) else {
                diff.added.push(name);
                continue;
            };
            // A reload cannot take a forced user away, as in PgBouncer.
            if entry.user.is_none() && before.user.is_some() {
                entry.user.clone_from(&before.user);
                entry.password.clone_from(&before.password);
                kept_users.push(name.clone());
            }
            let changes = || DATABASE_ROWS.iter().filter(|row| !row.same(before, entry));
            if changes().any(|row| row.change == Change::Recycle) {
                diff.recycled.push(name);
            } else if changes().next().is_some() {
                diff.changed.push(name);
            }
        }
        let new = diff.merged.all_databases();
        diff.removed =
            old.keys().filter(|name| !new.contains_key(**name)).map(|name| (*name).to_owned()).collect();
        for name in kept_users {
            let text = format!(
                "cannot remove the forced user of database \"{name}\" without a restart; it keeps the old one"
            );
            diff.warnings.push(Warning { file: String::new(), line: 0, text });
        }
    }

    fn all_databases(&self) -> BTreeMap<&str, &Database> {
        let named = self.databases.iter().map(|(name, entry)| (name.as_str(), entry));
        named.chain(self.fallback.iter().map(|entry| (FALLBACK_DATABASE, entry))).collect()
    }

    fn all_databases_mut(&mut self) -> impl Iterator<Item = (String, &mut Database)> {
        let named = self.databases.iter_mut().map(|(name, entry)| (name.clone(), entry));
        named.chain(self.fallback.iter_mut().map(|entry| (FALLBACK_DATABASE.to_owned(), entry)))
    }
}

/// Returns the keys that only one of the maps has, or that have other values in them.
fn changed_keys<K: Ord + Clone, V: PartialEq>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> Vec<K> {
    let gone = old.keys().filter(|key| !new.contains_key(key));
    let other = new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(key, _)| key);
    let mut keys: Vec<K> = gone.chain(other).cloned().collect();
    keys.sort();
    keys
}
