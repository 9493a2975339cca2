//! Turns files into a configuration: knows what sections and keys mean, and reports all faults of one run.

use std::collections::BTreeMap;

use crate::FALLBACK_DATABASE;
use crate::clusters;
use crate::config::{Config, Place};
use crate::error::{LoadError, Warning};
use crate::overlay::{Changed, Layer, LayerEffect};
use crate::password::masked;
use crate::rules::{cache, routes};
use crate::syntax::connstr;
use crate::syntax::entries::{self, Entry, Outcome, not_yet};
use crate::syntax::ini::{self, Visitor};
use crate::syntax::slips::did_you_mean;
use crate::table::{MAIN_ROWS, Main, Origin, Status, row};

impl Config {
    /// Reads the file `path` and the files that it includes. `read` returns the contents of a file by its
    /// name, or the reason why it cannot be read.
    ///
    /// # Errors
    ///
    /// All faults of all files, in their order. A configuration with a fault is rejected as a whole.
    pub fn load(
        path: &str,
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> Result<Config, Vec<LoadError>> {
        let (config, faults) = Config::survey(path, &[], read);
        if faults.is_empty() { Ok(config) } else { Err(faults) }
    }

    /// Reads the file and the layers that follow it, and returns everything that can be understood, with all
    /// faults. A configuration with faults is good for a report only: for further faults, and for the place
    /// of the log.
    ///
    /// In a layer, a line replaces the line of that name as a whole, and `name += key=value` adds keys to it.
    pub fn survey(
        path: &str,
        layers: &[Layer],
        read: &mut dyn FnMut(&str) -> Result<String, String>,
    ) -> (Config, Vec<LoadError>) {
        let mut loader = Loader::new(path);
        let whole_file =
            |text: String| LoadError { file: path.to_owned(), line: 0, problem: text.clone(), text };
        match read(path) {
            Err(why) => loader.errors.push(whole_file(format!("could not load file \"{path}\": {why}"))),
            Ok(text) => {
                ini::walk(path, &text, read, &mut loader);
                if !loader.main_seen {
                    let text =
                        format!("main section missing from config file ({path}): it needs [pgbouncer]");
                    loader.errors.push(whole_file(text));
                }
            }
        }
        // Layers are read even after faults of the file, so one run reports all of them.
        layers.iter().for_each(|layer| loader.layer(layer, read));
        let mut config = loader.config;
        warn_of_main(&mut config);
        let mut errors = loader.errors;
        errors.extend(clusters::faults(&config));
        errors.extend(routes::faults(&config));
        errors.extend(cache::faults(&config));
        let warnings = clusters::warnings(&config);
        config.warnings.extend(warnings);
        let warnings = cache::warnings(&config);
        config.warnings.extend(warnings);
        (config, errors)
    }
}

const SECTIONS: [&str; 9] =
    ["databases", "users", "clusters", "nodes", "routes", "cache", "peers", "pgbouncer", "pgweir"];

/// The section that the next entries belong to.
#[derive(Clone, Copy)]
enum Section {
    /// No section: before the first header.
    None,
    /// A header that is not a section. It is reported once, and its entries are skipped.
    Unknown,
    Main,
    Databases,
    Users,
    Clusters,
    Nodes,
    Routes,
    Cache,
    Peers,
}

struct Loader {
    config: Config,
    section: Section,
    /// `true` after a `[pgbouncer]` or `[pgweir]` header.
    main_seen: bool,
    /// `true` if another `[pgbouncer]` header would be a repeated one.
    pgbouncer_seen: bool,
    errors: Vec<LoadError>,
    /// The values of the entries as they are written, with their places, by section and name: for lines that
    /// add to them.
    written: BTreeMap<(&'static str, String), (String, Place)>,
    /// The changes by the layer that is being read; `None` while the file itself is read.
    effect: Option<LayerEffect>,
}

impl Visitor for Loader {
    fn section(&mut self, name: &str, place: Place) {
        self.section = match name {
            "pgbouncer" => {
                // A layer adds single lines, so its header does not reset earlier values.
                if self.pgbouncer_seen && self.effect.is_none() {
                    self.reset(&place);
                }
                self.pgbouncer_seen |= self.effect.is_none();
                Section::Main
            }
            "pgweir" => Section::Main,
            "databases" => Section::Databases,
            "users" => Section::Users,
            "clusters" => Section::Clusters,
            "nodes" => Section::Nodes,
            "routes" => Section::Routes,
            "cache" => Section::Cache,
            "peers" => Section::Peers,
            _ => {
                let known =
                    "there are databases, users, clusters, nodes, routes, cache, peers, pgbouncer and pgweir";
                let meant = did_you_mean(name, SECTIONS.into_iter());
                let text = format!("invalid section \"{name}\" in configuration ({place}): {known}{meant}");
                let problem = format!("unknown section \"{name}\": {known}{meant}");
                self.errors.push(place.error(text, problem));
                Section::Unknown
            }
        };
        self.main_seen |= matches!(self.section, Section::Main);
    }

    fn entry(&mut self, key: String, value: &str, place: Place) {
        let entry = Entry { name: &key, value, place: &place };
        if let Some(section) = self.section.name() {
            self.note_entry(section, &key, value, &place);
        }
        match self.section {
            Section::None => {
                let text = format!("value without section: {key} in configuration ({place})");
                let problem = format!("\"{key}\" stands before the first section header");
                self.errors.push(place.error(text, problem));
            }
            Section::Unknown => {}
            Section::Main => self.main(&entry),
            Section::Databases => {
                if let Some(options) = self.keep(entries::database(&entry)) {
                    self.config.database_places.insert(key.clone(), place);
                    if key == FALLBACK_DATABASE {
                        self.config.fallback = Some(options);
                    } else {
                        self.config.databases.insert(key, options);
                    }
                }
            }
            Section::Users => {
                if let Some(options) = self.keep(entries::user(&entry)) {
                    self.config.user_places.insert(key.clone(), place);
                    self.config.users.insert(key, options);
                }
            }
            Section::Clusters => {
                if let Some(options) = self.keep(entries::cluster(&entry)) {
                    self.config.cluster_places.insert(key.clone(), place);
                    self.config.clusters.insert(key, options);
                }
            }
            Section::Nodes => {
                if let Some(options) = self.keep(entries::node(&entry)) {
                    self.config.node_places.insert(key.clone(), place);
                    self.config.nodes.insert(key, options);
                }
            }
            Section::Routes => {
                if let Some(line) = self.keep(entries::route(&entry)) {
                    let is_layer = self.effect.is_some();
                    match put_line(&mut self.config.routes, line, is_layer, |line| &line.name) {
                        Ok(()) => drop(self.config.route_places.insert(key, place)),
                        Err(Twice) => {
                            let fault = twice(&entry, "route", self.config.route_places.get(&key));
                            self.errors.push(fault);
                        }
                    }
                }
            }
            Section::Cache => {
                if let Some(rule) = self.keep(entries::cache_rule(&entry)) {
                    let is_layer = self.effect.is_some();
                    match put_line(&mut self.config.cache, rule, is_layer, |rule| &rule.name) {
                        Ok(()) => drop(self.config.cache_places.insert(key, place)),
                        Err(Twice) => {
                            let fault = twice(&entry, "rule", self.config.cache_places.get(&key));
                            self.errors.push(fault);
                        }
                    }
                }
            }
            Section::Peers => {
                if let Some(peer) = self.keep(entries::peer(&entry)) {
                    self.config.peers.insert(peer.id, peer);
                }
            }
        }
    }

    fn merge(&mut self, key: String, value: &str, place: Place) {
        let (Some(section), Some(_)) = (self.section.name(), &self.effect) else {
            return self.refuse_merge(&key, &place);
        };
        let Some((known, _)) = self.written.get(&(section, key.clone())) else {
            let problem = format!("[{section}] has no entry \"{key}\" that += could add to");
            return self.errors.push(place.error(format!("{problem} ({place})"), problem));
        };
        match connstr::merged(known, value) {
            Ok(merged) => self.entry(key, &merged, place),
            // Neither text is shown, because a value may be a password.
            Err(reason) => {
                let problem = format!("[{section}] {key} +=: {reason}");
                self.errors.push(place.error(format!("{problem} ({place})"), problem));
            }
        }
    }

    fn fault(&mut self, fault: LoadError) {
        self.errors.push(fault);
    }
}

/// There is a line of this name in the same source already.
struct Twice;

/// Puts a line of a section whose lines have an order into its place. A layer's line replaces the one of its name.
fn put_line<T>(lines: &mut Vec<T>, line: T, is_layer: bool, name: fn(&T) -> &str) -> Result<(), Twice> {
    match lines.iter().position(|known| name(known) == name(&line)) {
        Some(at) if is_layer => lines[at] = line,
        Some(_) => return Err(Twice),
        None => lines.push(line),
    }
    Ok(())
}

fn twice(entry: &Entry<'_>, what: &str, other: Option<&Place>) -> LoadError {
    let other = other.map_or_else(String::new, ToString::to_string);
    entry.fault(entry.value, &format!("there is a {what} of this name in {other} already"))
}

impl Section {
    /// The name of a section whose lines are entries with keys.
    fn name(self) -> Option<&'static str> {
        match self {
            Section::None | Section::Unknown | Section::Main => None,
            Section::Databases => Some("databases"),
            Section::Users => Some("users"),
            Section::Clusters => Some("clusters"),
            Section::Nodes => Some("nodes"),
            Section::Routes => Some("routes"),
            Section::Cache => Some("cache"),
            Section::Peers => Some("peers"),
        }
    }
}

impl Loader {
    fn new(path: &str) -> Self {
        let main = Main { conffile: Some(path.to_owned()), ..Main::default() };
        Self {
            config: Config { main, ..Config::default() },
            section: Section::None,
            main_seen: false,
            pgbouncer_seen: false,
            errors: Vec::new(),
            written: BTreeMap::new(),
            effect: None,
        }
    }

    /// Reads one layer over the values of the sources before it.
    fn layer(&mut self, layer: &Layer, read: &mut ini::Read<'_>) {
        self.effect = Some(LayerEffect { name: layer.name.clone(), changed: Vec::new() });
        match layer.setting {
            None => {
                self.section = Section::None;
                ini::walk(&layer.name, &layer.text, read, self);
            }
            Some(setting) => {
                self.section = Section::Main;
                let place = Place::outside(&layer.name);
                // A value in a file cannot have these characters either.
                if layer.text.contains(['\n', '\r', '\0']) {
                    self.errors.push(ini::broken(&place));
                } else {
                    self.entry(setting.to_owned(), layer.text.trim(), place);
                }
            }
        }
        self.config.overlay.extend(self.effect.take());
    }

    /// Reports a `+=` on a setting, which is allowed for entries only.
    fn refuse_merge(&mut self, key: &str, place: &Place) {
        if self.effect.is_none() {
            return self.errors.push(ini::broken(place));
        }
        let known = "+= adds key=value pairs to an entry; a setting is replaced with =";
        let problem = format!("\"{key}\": {known}");
        self.errors.push(place.error(format!("{problem} ({place})"), problem));
    }

    /// Keeps an entry as it is written, and notes the value that it replaced.
    fn note_entry(&mut self, section: &'static str, key: &str, value: &str, place: &Place) {
        let known = self.written.insert((section, key.to_owned()), (value.to_owned(), place.clone()));
        let (before, replaced) = known.unzip();
        // Two lines of one name in `[routes]` or `[cache]` are an error of their own.
        if !matches!(section, "routes" | "cache") {
            self.note_twice(&format!("[{section}] \"{key}\""), replaced.as_ref(), place);
        }
        if let Some(effect) = &mut self.effect
            && before.as_deref() != Some(value)
        {
            effect.changed.push(Changed { what: format!("[{section}] {key}"), replaced });
        }
    }

    /// Warns if one file has two lines of one name: the last one counts, as in PgBouncer. An included file,
    /// or a layer, may replace lines of another file on purpose.
    fn note_twice(&mut self, what: &str, replaced: Option<&Place>, place: &Place) {
        let Some(first) = replaced.filter(|first| self.effect.is_none() && first.file == place.file) else {
            return;
        };
        let text = format!("{what} is set twice: line {} has no effect", first.line);
        self.config.warnings.push(place.warning(text));
    }

    /// Resets every setting of PgBouncer's that has a default, as PgBouncer does at each repeated header. Our
    /// own settings keep their values, as no file of PgBouncer's has them.
    fn reset(&mut self, place: &Place) {
        let defaults = Main::default();
        let mut lost = Vec::new();
        for row in MAIN_ROWS.iter().filter(|row| row.default.is_some() && row.origin == Origin::PgBouncer) {
            if self.config.given.remove(row.name).is_some() && !row.same(&self.config.main, &defaults) {
                lost.push(row.name);
            }
            row.adopt(&mut self.config.main, &defaults);
        }
        if !lost.is_empty() {
            let text = format!(
                "a repeated [pgbouncer] header sets earlier values back to their defaults: {}",
                lost.join(", ")
            );
            self.config.warnings.push(place.warning(text));
        }
    }

    fn main(&mut self, entry: &Entry<'_>) {
        let Some(row) = row(MAIN_ROWS, entry.name) else {
            let meant = did_you_mean(entry.name, MAIN_ROWS.iter().map(|row| row.name));
            let text = format!(
                "unknown parameter: pgbouncer/{} in configuration ({}){meant}",
                entry.name, entry.place
            );
            let problem = format!("unknown setting \"{}\"{meant}", entry.name);
            return self.errors.push(entry.place.error(text, problem));
        };
        let before = self.effect.is_some().then(|| self.config.main.clone());
        match row.assign(&mut self.config.main, entry.value) {
            Ok(()) => {
                let replaced = self.config.given.insert(row.name, entry.place.clone());
                self.note_twice(row.name, replaced.as_ref(), entry.place);
                if let (Some(effect), Some(before)) = (&mut self.effect, before)
                    && !row.same(&before, &self.config.main)
                {
                    effect.changed.push(Changed { what: row.name.to_owned(), replaced });
                }
            }
            Err(reason) => self.errors.push(entry.fault(&masked(entry.value), &reason)),
        }
    }

    /// Collects the faults and warnings of an entry, and returns its options.
    fn keep<T>(&mut self, read: Outcome<T>) -> Option<T> {
        self.errors.extend(read.faults);
        self.config.warnings.extend(read.warnings);
        read.options
    }
}

/// Warns of settings of the process that are set to a value without effect.
fn warn_of_main(config: &mut Config) {
    let defaults = Main::default();
    let mut warnings: Vec<Warning> = Vec::new();
    for row in MAIN_ROWS {
        let Some(place) = config.given.get(row.name) else { continue };
        let changed = !row.same(&config.main, &defaults)
            && !means_default(row.name, row.render(&config.main).as_deref());
        if row.status == Status::NotYet && changed {
            warnings.push(place.warning(not_yet(row.name)));
        }
    }
    for (name, list) in [
        ("client_tls_protocols", &config.main.client_tls_protocols),
        ("server_tls_protocols", &config.main.server_tls_protocols),
    ] {
        let old = |word: &str| ["tlsv1.0", "tlsv1.1"].iter().any(|old| word.trim().eq_ignore_ascii_case(old));
        if list.split([',', ':']).any(old)
            && let Some(place) = config.given.get(name)
        {
            warnings.push(
                place.warning(format!("{name}: tlsv1.0 and tlsv1.1 are never spoken, only 1.2 and 1.3 are")),
            );
        }
    }
    config.warnings.append(&mut warnings);
}

/// Returns whether a value is another word for the default, as in PgBouncer's own files of earlier years.
fn means_default(name: &str, value: Option<&str>) -> bool {
    match name {
        "client_tls_ciphers" | "server_tls_ciphers" => {
            matches!(value, Some("default" | "secure" | "fast" | "normal"))
        }
        // rustls has no finite-field Diffie-Hellman.
        "client_tls_dheparams" => matches!(value, Some("auto" | "none" | "")),
        "client_tls_protocols" | "server_tls_protocols" => matches!(value, Some("secure" | "default")),
        _ => false,
    }
}
