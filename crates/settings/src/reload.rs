//! Reload as a diff: what a new configuration changes, and what it cannot change while the process runs.

use std::collections::BTreeMap;

use crate::FALLBACK_DATABASE;
use crate::config::Config;
use crate::error::Warning;
use crate::table::{Change, DATABASE_ROWS, Database, MAIN_ROWS};

/// The settings that keep their value when the new file does not have them: they come from the command line
/// or from a `SET` that is meant to last. PgBouncer keeps all settings without a default; for the other settings that
/// is an accident that no user can want.
const KEPT_WHEN_ABSENT: [&str; 3] = ["conffile", "user", "verbose"];

/// What a reload changes.
#[derive(Clone, Debug)]
pub struct Diff {
    /// The configuration to use from now on: the new one, with the old values of what cannot change.
    pub merged: Config,
    /// The settings of the process that have a new value now.
    pub main: Vec<&'static str>,
    /// The settings of the process that the new file changes, but that need a restart. They keep their old
    /// value.
    pub restart: Vec<&'static str>,
    /// The databases that are new. The `*` entry is among them as "*", here and in the next lists.
    pub added: Vec<String>,
    /// The databases that are gone: their clients are sent away ("database removed"), their servers closed.
    pub removed: Vec<String>,
    /// The databases that changed so that their servers cannot be used any longer. For "*": all databases
    /// made from it.
    pub recycled: Vec<String>,
    /// The databases that changed, and whose servers can stay.
    pub changed: Vec<String>,
    /// The users whose options are new, changed or gone.
    pub users: Vec<String>,
    /// The peers that are new, changed or gone.
    pub peers: Vec<u32>,
    /// The clusters that are new, changed or gone.
    pub clusters: Vec<String>,
    /// The nodes that are new, changed or gone.
    pub nodes: Vec<String>,
    /// Whether lines of `[routes]` are new, changed, gone or in another order.
    pub routes: bool,
    /// What the administrator should know: that of the new file, and what could not be changed.
    pub warnings: Vec<Warning>,
}

impl Diff {
    /// Whether nothing changed.
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
    }

    /// Whether a TLS setting changed. Files of certificates can change without it.
    pub fn tls_changed(&self) -> bool {
        self.main.iter().any(|name| name.contains("_tls_") || name.contains("_tls13_"))
    }
}

impl Config {
    /// What changes when `new` takes the place of this configuration.
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
            warnings: new.warnings.clone(),
        };
        self.diff_main(&mut diff);
        self.diff_databases(&mut diff);
        diff
    }

    fn diff_main(&self, diff: &mut Diff) {
        for row in MAIN_ROWS {
            let given = diff.merged.given.get(row.name);
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

/// The keys that only one of the maps has, or that have other values in them.
fn changed_keys<K: Ord + Clone, V: PartialEq>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> Vec<K> {
    let gone = old.keys().filter(|key| !new.contains_key(key));
    let other = new.iter().filter(|(key, value)| old.get(key) != Some(value)).map(|(key, _)| key);
    let mut keys: Vec<K> = gone.chain(other).cloned().collect();
    keys.sort();
    keys
}
