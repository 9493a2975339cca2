//! The configurations that can be read: a file for each.

pub(crate) mod environment;
mod odyssey;
mod pg_doorman;
mod pgcat;
mod pgdog;
mod pgpool;
mod pgpool_cluster;
mod pgpool_reads;
mod pgpool_rows;
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
    /// The environment of edoburu's or Bitnami's image of PgBouncer, a variable a line.
    Environment,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Pgpool, Kind::Odyssey, Kind::PgCat, Kind::PgDog, Kind::PgDoorman, Kind::Environment];

    /// Its name on the command line.
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

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The kind of a file by what is in it; `None` if it looks like none of them, or like several.
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
        Table { name: "pgpool.conf", rows: pgpool_rows::ROWS },
        Table { name: "odyssey.conf", rows: odyssey::ROWS },
        Table { name: "pgcat.toml", rows: pgcat::ROWS },
        Table { name: "pgdog.toml", rows: pgdog::ROWS },
        Table { name: "users.toml", rows: pgdog::USER_ROWS },
        Table { name: "pg_doorman", rows: pg_doorman::ROWS },
        Table { name: "environment", rows: environment::ROWS },
    ]
}

/// A line of the text begins so.
fn has_line(text: &str, begins: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with(begins))
}

/// TOML or nothing; says why it is neither.
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
