//! `pgweir entrypoint`: a container's start. A mounted configuration file is used as it is; without one, the environment becomes a
//! configuration file and a list of users, and those are used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pgweir_control::log::Log;
use pgweir_core::driver::Level;

use crate::command_line::{EntrypointOptions, RunOptions};
use crate::{import, run};

/// Where a file is mounted: ours, then the one that PgBouncer's images read.
const MOUNTED: [&str; 2] = ["/etc/pgweir/pgweir.ini", "/etc/pgbouncer/pgbouncer.ini"];

/// Where written files go unless the command line names a directory.
const FOLDER: &str = "/run/pgweir";

/// Finds or writes the configuration, then pools connections until the end.
pub(crate) fn entrypoint(options: EntrypointOptions) -> ExitCode {
    let log = Log::to_stderr();
    let found = match &options.config {
        Some(path) => path.exists().then(|| path.clone()),
        None => MOUNTED.iter().map(PathBuf::from).find(|path| path.exists()),
    };
    let config = match found {
        Some(path) => path,
        None => match write(options.output.as_deref().unwrap_or(Path::new(FOLDER)), &log) {
            Ok(path) => path,
            Err(faults) => {
                faults.iter().for_each(|fault| log.write(Level::Error, fault));
                log.write(Level::Fatal, "cannot make a configuration from the environment");
                log.flush();
                return ExitCode::FAILURE;
            }
        },
    };
    run::run(RunOptions { config, ..options.run })
}

/// Writes the configuration that the environment describes, and gives the path of its main file.
fn write(folder: &Path, log: &Log) -> Result<PathBuf, Vec<String>> {
    let failed = |path: &Path, error: std::io::Error| {
        let text = format!(
            "could not write {}: {error}; mount a directory that this user can write",
            path.display()
        );
        vec![text]
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    let folder = folder.canonicalize().map_err(|error| failed(folder, error))?;
    let defaults = [("unix_socket_dir", folder.display().to_string())];
    let made = pgweir_import::import_environment(&variables()?, &defaults, &mut |name| {
        import::read(Path::new(name))
    });
    let made = made.map_err(|faults| faults.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    for finding in made.findings() {
        log.write(Level::Warning, &finding.to_string());
    }
    for (name, text, _) in import::files(&made, &folder) {
        let path = folder.join(name);
        import::replace(&path, &text, import::SECRET_MODE).map_err(|error| failed(&path, error))?;
    }
    let path = folder.join(import::INI);
    log.write(
        Level::Log,
        &format!("no configuration file is mounted: {} was written from the environment", path.display()),
    );
    Ok(path)
}

/// The environment as text. What is not UTF-8 is a fault only in a variable whose name could be ours.
fn variables() -> Result<Vec<(String, String)>, Vec<String>> {
    let mut faults = Vec::new();
    let mut found = Vec::new();
    for (key, text) in std::env::vars_os() {
        let Ok(key) = key.into_string() else { continue };
        match text.into_string() {
            Ok(text) => found.push((key, text)),
            Err(_) if pgweir_import::is_variable(&key) => {
                faults.push(format!("environment: {key} is not UTF-8 text"));
            }
            Err(_) => {}
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}
