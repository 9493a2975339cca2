//! The sources that are read after the configuration file: further ini texts, and variables that are named
//! after settings.
//!
//! A layer changes single lines of the sources before it. The caller collects the layers: this file must
//! never open a file or read the environment.

use crate::config::Place;
use crate::syntax::slips::did_you_mean;
use crate::table::{MAIN_ROWS, row};

/// The prefix of variables that are named after settings.
const OURS: &str = "PGWEIR_";

/// The prefix that images of PgBouncer use.
const THEIRS: &str = "PGBOUNCER_";

/// The variable whose value is ini text: a variable cannot be named `*` or `my-db`.
const INI: &str = "PGWEIR_INI";

/// Settings that a variable cannot set: the name of the file is known before the variables are read.
const NOT_BY_VARIABLE: [&str; 1] = ["conffile"];

/// Variables that the image of pgweir sets itself (deploy/Dockerfile). With a mounted file they have no effect, and no warning names them.
const OF_OUR_IMAGE: [(&str, &str); 2] = [("HTTP_LISTEN", "0.0.0.0:9127"), ("SHUTDOWN_DRAIN_SECONDS", "1")];

/// One source that is read after the configuration file.
#[derive(Clone, PartialEq, Eq)]
pub struct Layer {
    /// The file or the variable, for messages.
    pub name: String,
    /// The setting whose value the text is; `None` if the text is ini.
    pub setting: Option<&'static str>,
    /// The text. It may hold secrets.
    pub text: String,
}

/// Shows no text: a password may be in it.
impl std::fmt::Debug for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The sources as another process needs them: directories, each with an empty name, and variables with their texts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HandedOver(pub Vec<(String, String)>);

/// Shows no text: a password may be in it.
impl std::fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// The changes that one layer made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerEffect {
    /// The file or the variable.
    pub name: String,
    /// The settings that have another value now, in the order of the layer.
    pub changed: Vec<Changed>,
}

/// A setting or an entry that a layer changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The setting, or `[section] name`.
    pub what: String,
    /// The place of the value that no longer counts; `None` if that was the default, or if there was no such
    /// entry.
    pub replaced: Option<Place>,
}

impl LayerEffect {
    /// The names of the changed settings and entries, for a line of the log.
    #[must_use]
    pub fn summary(&self) -> String {
        match self.changed.as_slice() {
            [] => format!("{} changes nothing", self.name),
            changed => {
                let names: Vec<&str> = changed.iter().map(|changed| changed.what.as_str()).collect();
                format!("{} sets {}", self.name, names.join(", "))
            }
        }
    }
}

/// The variables of a process that complete a configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables {
    /// The layers of the variables: `PGWEIR_INI` first, then settings in the order of their names.
    pub layers: Vec<Layer>,
    /// Variables that look as if they were meant for pgweir and have no effect, each with what may be meant.
    pub remarks: Vec<Remark>,
}

/// A variable without effect that seems to be meant for pgweir.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The variable.
    pub variable: String,
    /// A warning about the variable. The text does not have the variable's value.
    pub text: String,
}

impl Variables {
    /// Sorts the variables of a process. Variables that mean nothing to pgweir are skipped.
    #[must_use]
    pub fn of(variables: &[(String, String)]) -> Variables {
        let mut sorted: Vec<&(String, String)> =
            variables.iter().filter(|(key, text)| !is_of_kubernetes(key, text)).collect();
        sorted.sort();
        let mut found = Variables::default();
        for (key, text) in sorted {
            if key == INI {
                let layer = Layer { name: key.clone(), setting: None, text: text.clone() };
                // Ini text comes first, so a variable for a single setting overrides it.
                found.layers.insert(0, layer);
            } else if let Some(setting) = setting_of(key) {
                let layer = Layer { name: key.clone(), setting: Some(setting), text: text.clone() };
                found.layers.push(layer);
            } else {
                let is_of_image = OF_OUR_IMAGE.contains(&(key.as_str(), text.as_str()));
                let text = remark(key).filter(|_| !is_of_image);
                found.remarks.extend(text.map(|text| Remark { variable: key.clone(), text }));
            }
        }
        found
    }

    /// Adds the layers of another process's variables, except for those that this process has itself.
    pub fn inherit(&mut self, layers: Vec<Layer>) {
        for layer in layers {
            if !self.layers.iter().any(|own| own.name == layer.name) {
                let at = if layer.setting.is_none() { 0 } else { self.layers.len() };
                self.layers.insert(at, layer);
            }
        }
    }
}

impl Layer {
    /// Returns the layer of a variable with this name; `None` if it neither names a setting nor is
    /// `PGWEIR_INI`.
    #[must_use]
    pub fn of_variable(name: &str, text: String) -> Option<Layer> {
        let setting = if name == INI { None } else { Some(setting_of(name)?) };
        Some(Layer { name: name.to_owned(), setting, text })
    }
}

/// Returns the setting that a variable is named after.
fn setting_of(variable: &str) -> Option<&'static str> {
    let name = variable.strip_prefix(OURS)?;
    let is_upper = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    let row = row(MAIN_ROWS, &name.to_ascii_lowercase()).filter(|_| is_upper)?;
    (!NOT_BY_VARIABLE.contains(&row.name)).then_some(row.name)
}

/// Returns a warning about a variable that has no effect on a configuration file, if it seems to be meant for
/// pgweir. The variable's value is never shown.
fn remark(variable: &str) -> Option<String> {
    let settings = || MAIN_ROWS.iter().map(|row| row.name);
    let lower = variable.to_ascii_lowercase();
    if let Some(name) = lower.strip_prefix("pgweir_").filter(|_| variable.starts_with(OURS)) {
        if NOT_BY_VARIABLE.contains(&name) {
            return Some(format!("{variable} has no effect: name the file on the command line"));
        }
        let meant = did_you_mean(name, settings())
            .to_ascii_uppercase()
            .replace("; DID YOU MEAN \"", "; did you mean \"PGWEIR_");
        return Some(format!("unknown variable {variable}{meant}"));
    }
    let name = lower.strip_prefix("pgbouncer_").filter(|_| variable.starts_with(THEIRS)).unwrap_or(&lower);
    // Names of one word are used by many programs.
    if !name.contains('_') || variable.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return None;
    }
    if let Some(row) = row(MAIN_ROWS, name) {
        let ours = row.name.to_ascii_uppercase();
        return Some(format!(
            "{variable} has no effect, as there is a configuration file; {OURS}{ours} changes what the file says"
        ));
    }
    let meant = did_you_mean(name, settings());
    let meant = meant.strip_prefix("; did you mean \"")?.trim_end_matches("\"?").to_ascii_uppercase();
    Some(format!("unknown variable {variable}; did you mean \"{OURS}{meant}\"?"))
}

/// Returns whether Kubernetes or Docker has set the variable for a service of that name:
/// `DB_PORT=tcp://10.0.0.1:5432`, `PGBOUNCER_SERVICE_HOST`, `PGWEIR_PORT_6432_TCP_ADDR`.
#[must_use]
pub fn is_of_kubernetes(key: &str, text: &str) -> bool {
    let is_link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| text.starts_with(scheme));
    let is_numbered = key
        .split_once("_PORT_")
        .is_some_and(|(_, rest)| rest.starts_with(|first: char| first.is_ascii_digit()));
    key.ends_with("_PORT") && is_link
        || key.contains("_SERVICE_HOST")
        || key.contains("_SERVICE_PORT")
        || is_numbered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Variables {
        let owned = |(key, text): &(&str, &str)| ((*key).to_owned(), (*text).to_owned());
        Variables::of(&variables.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn variables_by_the_names_of_settings() {
        let found = of(&[
            ("PGWEIR_POOL_MODE", "session"),
            ("PGWEIR_INI", "[databases]"),
            ("PGWEIR_AUTH_TYPE", "trust"),
            ("PGWEIR_PORT", "tcp://10.0.0.1:6432"),
            ("PGWEIR_SERVICE_HOST", "10.0.0.1"),
            ("PGWEIR_PORT_6432_TCP_ADDR", "10.0.0.1"),
            ("PATH", "/bin"),
            ("USER", "root"),
            ("HOME", "/"),
        ]);
        let names: Vec<&str> = found.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["PGWEIR_INI", "PGWEIR_AUTH_TYPE", "PGWEIR_POOL_MODE"]);
        assert_eq!(found.layers[2].setting, Some("pool_mode"));
        assert_eq!(found.remarks, []);
        assert!(!format!("{found:?}").contains("trust"), "texts may be secrets");
    }

    #[test]
    fn variables_that_have_no_effect_are_told_without_their_values() {
        let found = of(&[
            ("DEFAULT_POOLSIZE", "5"),
            ("MAX_CLIENT_CON", "5"),
            ("PGBOUNCER_POOL_MODE", "session"),
            ("PGWEIR_CONFFILE", "/x"),
            ("PGWEIR_POOL_MOD", "hunter2"),
            ("PGWEIR_XYZ", "1"),
            ("POOL_MODE", "session"),
            ("HTTP_LISTEN", "0.0.0.0:9127"),
            ("SOME_OTHER_THING", "1"),
            ("pool_mode", "session"),
        ]);
        assert!(found.layers.is_empty());
        let told: Vec<&str> = found.remarks.iter().map(|remark| remark.text.as_str()).collect();
        assert_eq!(
            told,
            [
                "unknown variable DEFAULT_POOLSIZE; did you mean \"PGWEIR_DEFAULT_POOL_SIZE\"?",
                "unknown variable MAX_CLIENT_CON; did you mean \"PGWEIR_MAX_CLIENT_CONN\"?",
                "PGBOUNCER_POOL_MODE has no effect, as there is a configuration file; PGWEIR_POOL_MODE changes what the file says",
                "PGWEIR_CONFFILE has no effect: name the file on the command line",
                "unknown variable PGWEIR_POOL_MOD; did you mean \"PGWEIR_POOL_MODE\"?",
                "unknown variable PGWEIR_XYZ",
                "POOL_MODE has no effect, as there is a configuration file; PGWEIR_POOL_MODE changes what the file says",
            ]
        );
    }

    #[test]
    fn what_is_inherited_gives_way() {
        let mut own = of(&[("PGWEIR_POOL_MODE", "session")]);
        own.inherit(
            of(&[("PGWEIR_POOL_MODE", "statement"), ("PGWEIR_INI", "[users]"), ("PGWEIR_AUTH_TYPE", "any")])
                .layers,
        );
        let found: Vec<(&str, &str)> = own.layers.iter().map(|layer| (&*layer.name, &*layer.text)).collect();
        assert_eq!(
            found,
            [("PGWEIR_INI", "[users]"), ("PGWEIR_POOL_MODE", "session"), ("PGWEIR_AUTH_TYPE", "any")]
        );
    }
}
