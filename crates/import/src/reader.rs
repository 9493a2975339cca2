//! The parts that all readers share: classifying the keys of a table by its rows, collecting faults and
//! findings, reading further files.

use pgweir_settings::{Kind as SettingKind, MAIN_ROWS, row as setting};

use crate::dialect::{self, Given, Takes};
use crate::finding::{Fault, Finding, FindingKind, shown};
use crate::kinds::{Kind, replicas};
use crate::limits::{FILES_MAX, FINDINGS_MAX, SHOWN_LEN_MAX, TEXT_LEN_MAX};
use crate::mapping::{Outcome, Row, row};
use crate::plan::{Plan, Pool, Secret};
use crate::resolve;
use crate::tree::{Node, Table, Value};
use crate::{Read, Source};

/// The replacement for a lifetime of 0, which means "never" elsewhere, and "used once" in pgweir.
const NEVER_S: &str = "315360000";

pub(crate) struct Reader<'a, 'r> {
    pub(crate) kind: Kind,
    pub(crate) plan: Plan,
    /// The file that is being read, for messages.
    pub(crate) file: String,
    source: &'a Source<'a>,
    read: &'a mut Read<'r>,
    files: usize,
    findings: Vec<Finding>,
    faults: Vec<Fault>,
}

/// A table's place in the configuration: the prefix of its rows, and its name in messages.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'s> {
    pub(crate) prefix: &'static str,
    pub(crate) shown: &'s str,
}

impl<'a, 'r> Reader<'a, 'r> {
    pub(crate) fn new(kind: Kind, source: &'a Source<'a>, read: &'a mut Read<'r>) -> Reader<'a, 'r> {
        let file = source.name.to_owned();
        let (findings, faults) = (Vec::new(), Vec::new());
        Reader { kind, plan: Plan::default(), file, source, read, files: 0, findings, faults }
    }

    pub(crate) fn finish(mut self) -> (Plan, Vec<Finding>, Vec<Fault>) {
        if let Some(mode) = self.source.pool_mode {
            self.plan.pools.iter_mut().for_each(|pool| drop(pool.settings.remove("pool_mode")));
            self.set("pool_mode", mode);
        }
        replicas::check_users(&mut self);
        for (line, what, why) in resolve::resolve(&mut self.plan) {
            self.finding(line, FindingKind::Differs, &what, &why);
        }
        if self.findings.len() > FINDINGS_MAX {
            self.findings.truncate(FINDINGS_MAX);
            let file = self.file.clone();
            let why = format!("only the first {FINDINGS_MAX} are listed");
            self.findings.push(Finding {
                file,
                line: 0,
                kind: FindingKind::Unknown,
                what: "more findings".to_owned(),
                why,
            });
        }
        (self.plan, self.findings, self.faults)
    }

    /// Returns the name of the file of users, if the caller named one.
    pub(crate) fn users_file(&self) -> Option<&'a str> {
        self.source.users
    }

    /// Returns the name of the file of rules, if the caller named one.
    pub(crate) fn rules_file(&self) -> Option<&'a str> {
        self.source.rules
    }

    /// Returns the mode of all pools, if the caller named one.
    pub(crate) fn pool_mode(&self) -> Option<&'a str> {
        self.source.pool_mode
    }

    pub(crate) fn fault(&mut self, line: u32, text: impl Into<String>) {
        self.faults.push(Fault { file: self.file.clone(), line, text: text.into() });
    }

    pub(crate) fn finding(&mut self, line: u32, kind: FindingKind, what: &str, why: &str) {
        // One more finding than the limit is kept, which shows that there are more.
        if self.findings.len() <= FINDINGS_MAX {
            let (file, what, why) = (self.file.clone(), what.to_owned(), why.to_owned());
            self.findings.push(Finding { file, line, kind, what, why });
        }
    }

    pub(crate) fn missing(&mut self, line: u32, what: &str, why: &str) {
        self.finding(line, FindingKind::Missing, what, why);
    }

    pub(crate) fn differs(&mut self, line: u32, what: &str, why: &str) {
        self.finding(line, FindingKind::Differs, what, why);
    }

    /// Reads a further file.
    pub(crate) fn open(&mut self, name: &str) -> Result<String, String> {
        self.files += 1;
        if self.files > FILES_MAX {
            return Err(format!("the configuration has more than {FILES_MAX} files"));
        }
        let text = (self.read)(name)?;
        if text.len() > TEXT_LEN_MAX {
            return Err(format!("the file has more than {TEXT_LEN_MAX} bytes"));
        }
        Ok(text)
    }

    /// Sets a setting of the process, in pgweir's form.
    pub(crate) fn set(&mut self, name: &'static str, text: impl Into<String>) {
        let text = text.into();
        let text = if name == "server_lifetime" && text == "0" { NEVER_S.to_owned() } else { text };
        self.plan.settings.insert(name, text);
    }

    pub(crate) fn set_given(&mut self, name: &'static str, given: &Given) {
        let kind = setting(MAIN_ROWS, name).map_or(SettingKind::Text, |row| row.kind);
        self.set(name, given.write(kind));
    }

    /// Sets a user's secret. A second, different secret for the same user is reported.
    pub(crate) fn secret(&mut self, line: u32, user: &str, secret: &str) {
        let secret = Secret::new(secret);
        match self.plan.secrets.get(user) {
            Some(known) if *known != secret => {
                let why = "the same user has another password elsewhere in the configuration; pgweir's list of users has one for each \
                           user: the first one holds";
                self.differs(line, &format!("password of {user}"), why);
            }
            Some(_) => {}
            None => {
                self.plan.secrets.insert(user.to_owned(), secret);
            }
        }
    }

    /// Classifies the keys of a table. Settings of the process go into the plan, those of pools into `pool`.
    pub(crate) fn table(
        &mut self,
        rows: &'static [Row],
        scope: Scope<'_>,
        table: &Table,
        mut pool: Option<&mut Pool>,
    ) {
        for (key, node) in &table.0 {
            let full = format!("{}{key}", scope.prefix);
            let label = format!("{}{key}", scope.shown);
            let Some(row) = row(rows, &full) else {
                let why = "pgweir does not know this key, so nothing was carried over for it";
                // After a misplaced quote, a key may contain a password.
                let label = if is_key(key) { label } else { format!("{}(not a name)", scope.shown) };
                self.finding(node.line, FindingKind::Unknown, &label, why);
                continue;
            };
            self.key(rows, row, &label, node, table, scope, pool.as_deref_mut());
        }
        self.defaults(rows, scope, table, pool);
    }

    #[expect(clippy::too_many_arguments, reason = "one key in its surroundings")]
    fn key(
        &mut self,
        rows: &'static [Row],
        row: &'static Row,
        label: &str,
        node: &Node,
        table: &Table,
        scope: Scope<'_>,
        pool: Option<&mut Pool>,
    ) {
        let given = match dialect::understand(row.takes, self.kind, node) {
            Ok(given) => given,
            Err(right) => return self.fault(node.line, wrong(label, node, row.takes, &right)),
        };
        match row.outcome {
            Outcome::Setting(name) => self.set_given(name, &given),
            Outcome::Pool(name) => {
                if let Some(pool) = pool {
                    pool.settings.insert(name, given);
                } else {
                    self.set_given(resolve::global_name(name), &given);
                }
            }
            Outcome::Missing(why) if self.asks(row, node) => {
                let why = format!("{why}{}", along(rows, row.key, scope, table));
                self.missing(node.line, label, &why);
            }
            // A key that belongs to another one is reported with that one.
            Outcome::With(_) | Outcome::Reader(_) | Outcome::Needless(_) | Outcome::Missing(_) => {}
        }
    }

    /// Returns whether a key without counterpart asks for anything.
    fn asks(&self, row: &Row, node: &Node) -> bool {
        let Some(text) = node.text() else { return !matches!(node.value, Value::Null) };
        let is_off = row.takes == Takes::Flag && dialect::flag(self.kind, text) == Ok(false);
        let usual_on = row.usual.iter().any(|usual| dialect::flag(self.kind, usual) == Ok(true));
        let usual = row.usual.iter().any(|usual| usual.eq_ignore_ascii_case(text));
        !(usual || is_off && !usual_on && row.usual.is_empty())
    }

    /// Writes the other pooler's defaults for keys that are carried over but not in the table.
    fn defaults(
        &mut self,
        rows: &'static [Row],
        scope: Scope<'_>,
        table: &Table,
        mut pool: Option<&mut Pool>,
    ) {
        let here = |row: &&Row| {
            row.key
                .strip_prefix(scope.prefix)
                .is_some_and(|key| !key.contains('.') && table.get(key).is_none())
        };
        for row in rows.iter().filter(here) {
            let Some(default) = row.usual.first() else { continue };
            let Ok(given) = dialect::understand_text(row.takes, self.kind, default) else { continue };
            match (row.outcome, pool.as_deref_mut()) {
                (Outcome::Setting(name), _) if !self.plan.settings.contains_key(name) => {
                    self.set_given(name, &given);
                }
                (Outcome::Pool(name), Some(pool)) => {
                    pool.settings.entry(name).or_insert(given);
                }
                (Outcome::Pool(name), None) => self.set_given(resolve::global_name(name), &given),
                _ => {}
            }
        }
    }
}

/// Returns the message about a value that its own pooler would not accept. Texts are not repeated, because
/// they may be secrets.
fn wrong(label: &str, node: &Node, takes: Takes, right: &str) -> String {
    let value = match (takes, node.text()) {
        (Takes::Text | Takes::List | Takes::Anything, _) | (_, None) => String::new(),
        (_, Some(text)) => format!(" \"{}\"", shown(text, SHOWN_LEN_MAX)),
    };
    format!("invalid value{value} for {}: {right}", shown(label, SHOWN_LEN_MAX))
}

/// Returns the number of further keys that belong to one that is not carried over, for the end of its
/// finding.
fn along(rows: &'static [Row], master: &str, scope: Scope<'_>, table: &Table) -> String {
    let belongs = |key: &str| {
        let found = row(rows, &format!("{}{key}", scope.prefix));
        found.is_some_and(|row| matches!(row.outcome, Outcome::With(key) if key == master))
    };
    match table.0.iter().filter(|(key, _)| belongs(key)).count() {
        0 => String::new(),
        1 => ". One more key belongs to it".to_owned(),
        count => format!(". {count} more keys belong to it"),
    }
}

/// Returns whether a text can be the name of a key in any pooler's configuration.
fn is_key(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.*".contains(&byte))
}
