//! Finds the programs that the tools drive: a PostgreSQL installation, pgbench, psql, PgBouncer.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::BenchError;
use crate::processes::install;
use crate::processes::interrupt::Interrupt;
use crate::processes::process;

/// Where Debian and Ubuntu put one directory per major version.
const DEBIAN_ROOT: &str = "/usr/lib/postgresql";
/// Places outside of most users' PATH.
const SYSTEM_BINS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Asking a program for its version takes no longer.
const VERSION_LIMIT: Duration = Duration::from_secs(10);

/// The programs of one PostgreSQL installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresTools {
    /// The server.
    pub(crate) postgres: PathBuf,
    /// Makes a cluster.
    pub(crate) initdb: PathBuf,
    /// The load generator.
    pub(crate) pgbench: PathBuf,
    /// The terminal client.
    pub(crate) psql: PathBuf,
}

/// Finds PostgreSQL as [`find`] does, or installs it as [`install::packages`] does.
///
/// # Errors
/// [`BenchError::Missing`] with what is missing and how to get it.
pub(crate) fn find_or_install(
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<PostgresTools, BenchError> {
    let missing = match find() {
        Ok(tools) => return Ok(tools),
        Err(missing) => missing,
    };
    let hint = format!(
        "{missing} not found: install PostgreSQL's server and client programs (Debian: apt install postgresql)"
    );
    install::packages(&["postgresql"], &hint, interrupt, say)?;
    find().map_err(|missing| {
        BenchError::Missing(format!("{missing} not found, though the packages were installed"))
    })
}

/// Looks in `pg_config --bindir`, Debian's directories (newest version first) and PATH. pgbench and psql may come from
/// elsewhere than the server.
///
/// # Errors
/// The name of the first program that is nowhere.
pub(crate) fn find() -> Result<PostgresTools, &'static str> {
    let mut places = Vec::new();
    places.extend(pg_config_bindir());
    places.extend(debian_bindirs(Path::new(DEBIAN_ROOT)));
    places.extend(path_dirs());
    find_in(&places)
}

/// pgbench alone, for loads on servers that are not ours.
///
/// # Errors
/// [`BenchError::Missing`], with how to get it.
pub(crate) fn find_pgbench() -> Result<PathBuf, BenchError> {
    let places =
        pg_config_bindir().into_iter().chain(debian_bindirs(Path::new(DEBIAN_ROOT))).chain(path_dirs());
    let mut paths = places.map(|dir| dir.join("pgbench"));
    paths.find(|path| is_program(path)).ok_or_else(|| {
        BenchError::Missing(
            "pgbench not found: install it (Debian: apt install postgresql-contrib)".to_owned(),
        )
    })
}

fn find_in(places: &[PathBuf]) -> Result<PostgresTools, &'static str> {
    let server = places
        .iter()
        .find(|dir| is_program(&dir.join("postgres")) && is_program(&dir.join("initdb")))
        .ok_or("PostgreSQL server (postgres, initdb)")?;
    let client = |name: &'static str| {
        std::iter::once(server)
            .chain(places)
            .map(|dir| dir.join(name))
            .find(|path| is_program(path))
            .ok_or(name)
    };
    Ok(PostgresTools {
        postgres: server.join("postgres"),
        initdb: server.join("initdb"),
        pgbench: client("pgbench")?,
        psql: client("psql")?,
    })
}

/// A program by name in PATH or one of the system's directories.
#[must_use]
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    path_dirs()
        .into_iter()
        .chain(SYSTEM_BINS.map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| is_program(path))
}

/// The first line of `program --version`, wherever it is said; an empty text if there is none.
#[must_use]
pub(crate) fn version_of(program: &Path) -> String {
    let interrupt = Interrupt::default();
    process::run(Command::new(program).arg("--version"), "--version", VERSION_LIMIT, &interrupt, &mut |_| {})
        .map(|finished| {
            let said = finished.stdout.lines().chain(finished.stderr.lines()).next();
            said.unwrap_or_default().trim().to_owned()
        })
        .unwrap_or_default()
}

fn pg_config_bindir() -> Option<PathBuf> {
    let interrupt = Interrupt::default();
    let mut command = Command::new("pg_config");
    let finished =
        process::run(command.arg("--bindir"), "pg_config", VERSION_LIMIT, &interrupt, &mut |_| {}).ok()?;
    let dir = finished.stdout.trim();
    (finished.status.success() && !dir.is_empty()).then(|| PathBuf::from(dir))
}

/// `/usr/lib/postgresql/<major>/bin`, newest first.
fn debian_bindirs(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(root) else { return Vec::new() };
    let mut majors: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    majors.sort_unstable_by(|a, b| b.cmp(a));
    majors.into_iter().map(|major| root.join(major.to_string()).join("bin")).collect()
}

fn path_dirs() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

/// A file that at least one user may execute.
pub(crate) fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::scratch::{RunAs, Scratch};
    use std::os::unix::fs::PermissionsExt;

    fn program(dir: &Path, name: &str) {
        std::fs::create_dir_all(dir).expect("mkdir");
        std::fs::write(dir.join(name), "").expect("write");
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    #[test]
    fn the_newest_major_comes_first_and_clients_may_live_elsewhere() {
        let scratch = Scratch::create(RunAs::detect().expect("a user"), 1).expect("scratch");
        let root = scratch.path();
        for major in ["9", "15", "17"] {
            program(&root.join(major).join("bin"), "postgres");
            program(&root.join(major).join("bin"), "initdb");
        }
        let mut places = debian_bindirs(root);
        assert_eq!(places[0], root.join("17/bin"));
        assert_eq!(find_in(&places), Err("pgbench"));
        program(&root.join("client"), "pgbench");
        program(&root.join("client"), "psql");
        places.push(root.join("client"));
        let tools = find_in(&places).expect("all there");
        assert_eq!(tools.postgres, root.join("17/bin/postgres"));
        assert_eq!(tools.psql, root.join("client/psql"));
    }

    #[test]
    fn a_directory_without_a_server_is_passed_over() {
        assert_eq!(find_in(&[PathBuf::from("/nonexistent")]), Err("PostgreSQL server (postgres, initdb)"));
    }
}
