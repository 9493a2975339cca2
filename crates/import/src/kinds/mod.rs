//! The configurations that can be read, with a file for each.

pub(crate) mod environment;
mod odyssey;
mod pg_doorman;
mod pgcat;
mod pgdog;
mod pgpool;
pub(crate) mod process;
pub(crate) mod replicas;
mod zalando;

use crate::mapping::Table;
use crate::plan::{Database, Plan};
use crate::reader::Reader;
use crate::tree::{self, Broken};

/// A pooler, or the images of one that are configured by their environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// pgpool-II: `pgpool.conf`, `pool_hba.conf`, `pool_passwd`.
    Pgpool,
    /// Odyssey: `odyssey.conf`.
    Odyssey,
    /// PgCat: `pgcat.toml`.
    PgCat,
    /// PgDog: `pgdog.toml` and `users.toml`.
    PgDog,
    /// pg_doorman: TOML or YAML.
    PgDoorman,
    /// The environment of edoburu's or Bitnami's image of PgBouncer, with one variable per line.
    Environment,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 6] =
        [Kind::Pgpool, Kind::Odyssey, Kind::PgCat, Kind::PgDog, Kind::PgDoorman, Kind::Environment];

    /// Returns the kind's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pgpool => "pgpool",
            Kind::Odyssey => "odyssey",
            Kind::PgCat => "pgcat",
            Kind::PgDog => "pgdog",
            Kind::PgDoorman => "pg_doorman",
            Kind::Environment => "env",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the kind of a file by its contents; `None` if it looks like none of the kinds, or like
    /// several.
    #[must_use]
    pub fn of(text: &str) -> Option<Kind> {
        let signs: [(Kind, bool); 6] = [
            (Kind::Pgpool, pgpool::looks_like(text)),
            (Kind::Odyssey, odyssey::looks_like(text)),
            (Kind::PgCat, pgcat::looks_like(text)),
            (Kind::PgDog, pgdog::looks_like(text)),
            (Kind::PgDoorman, pg_doorman::looks_like(text)),
            (Kind::Environment, environment::looks_like(text)),
        ];
        let mut found = signs.into_iter().filter(|(_, looks)| *looks).map(|(kind, _)| kind);
        let kind = found.next()?;
        found.next().is_none().then_some(kind)
    }
}

/// Reads a configuration into the reader's plan.
pub(crate) fn read(kind: Kind, text: &str, reader: &mut Reader<'_, '_>) {
    match kind {
        Kind::Pgpool => pgpool::read(text, reader),
        Kind::Odyssey => odyssey::read(text, reader),
        Kind::PgCat => pgcat::read(text, reader),
        Kind::PgDog => pgdog::read(text, reader),
        Kind::PgDoorman => pg_doorman::read(text, reader),
        Kind::Environment => environment::read(text, reader),
    }
}

pub(crate) fn tables() -> Vec<Table> {
    vec![
        Table { name: "pgpool.conf", rows: pgpool::ROWS },
        Table { name: "odyssey.conf", rows: odyssey::ROWS },
        Table { name: "pgcat.toml", rows: pgcat::ROWS },
        Table { name: "pgdog.toml", rows: pgdog::ROWS },
        Table { name: "users.toml", rows: pgdog::USER_ROWS },
        Table { name: "pg_doorman", rows: pg_doorman::ROWS },
        Table { name: "environment", rows: environment::ROWS },
    ]
}

/// Returns whether a line of the text begins with `begins`.
fn has_line(text: &str, begins: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with(begins))
}

/// Reads TOML; reports a fault and returns `None` if the text is something else.
fn toml(text: &str, reader: &mut Reader<'_, '_>) -> Option<tree::Table> {
    parsed(tree::toml(text), reader)
}

fn parsed(read: Result<tree::Table, Broken>, reader: &mut Reader<'_, '_>) -> Option<tree::Table> {
    match read {
        Ok(table) => Some(table),
        Err((line, why)) => {
            reader.fault(line, why);
            None
        }
    }
}

/// Adds a database unless its name is taken.
fn add_database(plan: &mut Plan, database: Database) {
    if !plan.databases.iter().any(|known| known.name == database.name) {
        plan.databases.push(database);
    }
}

#[cfg(test)]
mod tests;
