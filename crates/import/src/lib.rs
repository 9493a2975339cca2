//! Reads the configurations of other poolers and writes them as PgBouncer's ini, a list of users and rules of
//! access.
//!
//! A reader for each kind (`kinds/`) turns text into one neutral form ([`plan`]), and one writer ([`write`])
//! turns that into files. The kind's table of [`Row`]s says what each key becomes; the pages in
//! `docs/migrate` are made from the same tables.
//!
//! This crate must never open a file, read the environment, or put a secret into a message: file contents
//! come through a function that the caller passes in, and messages name keys and lines.

mod dialect;
mod finding;
mod kinds;
pub mod limits;
mod mapping;
mod plan;
mod reader;
mod resolve;
mod tree;
mod write;

pub use finding::{Fault, Finding, FindingKind};
pub use kinds::Kind;
pub use mapping::{Outcome, Row, Table, markdown, tables};
pub use write::Places;

use pgweir_settings::Config;
use plan::Plan;

/// A function that reads a further file by its name in the configuration. The error says why it cannot be
/// read.
pub type Read<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// The files of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Source<'a> {
    /// The name of the main file, for messages.
    pub name: &'a str,
    /// The text of the main file.
    pub text: &'a str,
    /// The file of users and passwords, if it is not where the main file places it (`pool_passwd`,
    /// `users.toml`).
    pub users: Option<&'a str>,
    /// The file of access rules, if it is not where the main file places it (`pool_hba.conf`).
    pub rules: Option<&'a str>,
    /// The `pool_mode` of all pools, which overrides the configuration's.
    pub pool_mode: Option<&'a str>,
}

/// A configuration that was read.
pub struct Import {
    plan: Plan,
    findings: Vec<Finding>,
    /// The command that the files name as their author.
    written_by: &'static str,
}

/// Reads a configuration of this kind. `read` returns the text of further files that it names.
///
/// # Errors
///
/// All faults: a text that is not a configuration of this kind, and values that its own pooler would not
/// accept.
pub fn import(kind: Kind, source: &Source<'_>, read: &mut Read<'_>) -> Result<Import, Vec<Fault>> {
    let mut reader = reader::Reader::new(kind, source, read);
    if source.text.len() > limits::TEXT_LEN_MAX {
        reader.fault(0, format!("the file has more than {} bytes", limits::TEXT_LEN_MAX));
    } else {
        kinds::read(kind, source.text, &mut reader);
    }
    finish(reader, source.name, "pgweir import")
}

/// Reads the environment of a process in a container. `defaults` are settings that a variable can override,
/// `read` returns the text of files that variables name. Variables that mean nothing to a pooler are ignored.
///
/// # Errors
///
/// All faults; they name variables and contain no secret.
pub fn import_environment(
    variables: &[(String, String)],
    defaults: &[(&'static str, String)],
    read: &mut Read<'_>,
) -> Result<Import, Vec<Fault>> {
    let source = Source { name: "environment", ..Source::default() };
    let mut reader = reader::Reader::new(Kind::Environment, &source, read);
    for (name, text) in defaults {
        reader.set(name, text.clone());
    }
    kinds::process::read(variables, &mut reader);
    finish(reader, source.name, "pgweir entrypoint")
}

/// Returns whether a variable of a process is meant for a pooler, by its name.
#[must_use]
pub fn is_variable(key: &str) -> bool {
    kinds::process::is_variable(key)
}

fn finish(
    reader: reader::Reader<'_, '_>,
    name: &str,
    written_by: &'static str,
) -> Result<Import, Vec<Fault>> {
    let (plan, findings, mut faults) = reader.finish();
    if faults.is_empty() && plan.databases.is_empty() {
        faults.push(Fault::of_file(name, "it names no server that pgweir could use"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let import = Import { plan, findings, written_by };
    import.check(name)?;
    Ok(import)
}

impl Import {
    /// Returns the findings about keys that were not carried over, or mean something else, in the order of
    /// the files.
    #[must_use]
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Returns the configuration file.
    #[must_use]
    pub fn ini(&self, places: &Places) -> String {
        write::ini(&self.plan, places, self.written_by)
    }

    /// Returns the list of users, if the configuration has any.
    #[must_use]
    pub fn users(&self) -> Option<String> {
        write::users(&self.plan)
    }

    /// Returns the rules of access, if `auth_type = hba` is needed.
    #[must_use]
    pub fn rules(&self) -> Option<String> {
        write::rules(&self.plan, self.written_by)
    }

    /// Returns whether the configuration file names a certificate for clients that does not exist yet: the
    /// caller must make one, self-signed, at [`Places::certificate`] and [`Places::key`].
    #[must_use]
    pub fn needs_certificate(&self) -> bool {
        self.plan.needs_certificate
    }

    /// Returns whether the configuration file has a password in it: one that a database or a cluster needs
    /// and the list of users cannot have.
    #[must_use]
    pub fn ini_has_secret(&self) -> bool {
        let has_secret =
            |database: &plan::Database| database.password.is_some() || database.written.is_some();
        self.plan.databases.iter().any(has_secret)
            || self.plan.clusters.iter().any(|cluster| cluster.check_password.is_some())
    }

    /// Reads the written files again, so that none is returned that pgweir would refuse.
    fn check(&self, name: &str) -> Result<(), Vec<Fault>> {
        let unwritable = write::unwritable(&self.plan);
        if !unwritable.is_empty() {
            return Err(unwritable.iter().map(|what| Fault::of_file(name, what)).collect());
        }
        let ini = self.ini(&Places::default());
        let mut faults = Vec::new();
        if let Err(errors) = Config::load("pgweir.ini", &mut |_| Ok(ini.clone())) {
            faults.extend(errors.iter().map(|error| format!("the result is not valid: {}", error.text)));
        }
        if let Some(users) = self.users() {
            faults.extend(pgweir_auth::UserList::parse(&users).1);
        }
        if let Some(rules) = self.rules() {
            faults.extend(pgweir_auth::Hba::parse(&rules, &mut |_| Err("it was not imported".to_owned())).1);
        }
        if faults.is_empty() {
            return Ok(());
        }
        Err(faults.iter().map(|what| Fault::of_file(name, what)).collect())
    }
}
