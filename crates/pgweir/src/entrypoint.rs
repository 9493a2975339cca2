//! `pgweir entrypoint`: a container's start. A mounted configuration file is used as it is; without one, the environment becomes a
//! configuration file and a list of users, and those are used.

mod certificate;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::unistd::{AccessFlags, access, geteuid};
use pgweir_control::log::Log;
use pgweir_core::driver::Level;

use crate::command_line::{EntrypointOptions, RunOptions};
use crate::{check, import, run};

/// Where a file is mounted: ours, then those that PgBouncer's images read (edoburu's, Bitnami's).
const MOUNTED: [&str; 3] =
    ["/etc/pgweir/pgweir.ini", "/etc/pgbouncer/pgbouncer.ini", "/bitnami/pgbouncer/conf/pgbouncer.ini"];

/// Where other images look for scripts that they run before the start.
const SCRIPTS: [&str; 2] = ["/docker-entrypoint-initdb.d", "/docker-entrypoint-preinitdb.d"];

/// Where written files go unless the command line names a directory.
const FOLDER: &str = "/run/pgweir";

/// The line of the log if the operator has mounted no certificate.
const NO_CERTIFICATE: &str = "no certificate is mounted: a self-signed one was made, which encrypts connections but does not prove to \
                              clients which pooler they are connected to";

/// Finds or writes the configuration, then pools connections until the end.
pub(crate) fn entrypoint(options: EntrypointOptions) -> ExitCode {
    let log = Log::to_stderr();
    refuse_scripts(&log);
    let found = match &options.config {
        Some(path) => path.exists().then(|| path.clone()),
        None => MOUNTED.iter().map(PathBuf::from).find(|path| path.exists()),
    };
    let mut run = options.run;
    run.overlay.is_file_from_environment = found.is_none();
    let config = match found {
        Some(path) => {
            tell_unused(&path, &log);
            path
        }
        None => match folder(options.output).and_then(|folder| write(&folder, &log)) {
            Ok(path) => path,
            Err(faults) => {
                faults.iter().for_each(|fault| log.write(Level::Error, fault));
                log.write(Level::Fatal, "cannot make a configuration from the environment");
                log.flush();
                return ExitCode::FAILURE;
            }
        },
    };
    // A container has no administrator who runs pgweir check before the start.
    for warning in check::advice_of(&config, &run.overlay) {
        log.write(Level::Warning, &warning.to_string());
    }
    run::run(RunOptions { config, ..run })
}

/// Warns that mounted scripts are not run: an administrator who mounts them expects them to run.
fn refuse_scripts(log: &Log) {
    for folder in SCRIPTS {
        let mut names = fs::read_dir(folder).into_iter().flatten().flatten();
        if names.any(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".")) {
            let line = format!(
                "{folder} has files, and pgweir runs no scripts: put what they change into /etc/pgweir/conf.d, or run them in an init \
                 container"
            );
            log.write(Level::Warning, &line);
        }
    }
}

/// Where files are written to: the directory of the command line, the image's, or, if this user may not write there, one of its own below
/// the directory for temporary files. Operators run the image as users that it does not know.
fn folder(named: Option<PathBuf>) -> Result<PathBuf, Vec<String>> {
    let usual = Path::new(FOLDER);
    match named {
        Some(folder) => Ok(folder),
        None if fs::create_dir_all(usual).is_ok() && access(usual, AccessFlags::W_OK).is_ok() => {
            Ok(usual.to_owned())
        }
        None => own_folder(&std::env::temp_dir()),
    }
}

/// A directory that only this user can enter. A directory that exists counts only if no other user can have made or changed it.
fn own_folder(parent: &Path) -> Result<PathBuf, Vec<String>> {
    let user = geteuid().as_raw();
    let folder = parent.join(format!("pgweir-{user}"));
    let failed = |why: String| {
        vec![format!("could not use {}: {why}; name a directory with --output", folder.display())]
    };
    if let Err(error) = DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(failed(error.to_string()));
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| failed(error.to_string()))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(failed("another user could write there".to_owned()));
    }
    Ok(folder)
}

/// The variables of images that have no effect beside a file. Those that are named after settings are told at the start.
fn tell_unused(config: &Path, log: &Log) {
    let is_setting = |name: &str| {
        let name = name.strip_prefix("PGBOUNCER_").unwrap_or(name).to_ascii_lowercase();
        pgweir_settings::row(pgweir_settings::MAIN_ROWS, &name).is_some()
    };
    let variables = variables().unwrap_or_default();
    let unused = variables.iter().filter(|(key, text)| {
        pgweir_import::is_variable(key)
            && !key.starts_with("PGWEIR_")
            // psql's own.
            && !matches!(key.as_str(), "PGHOST" | "PGPORT" | "PGUSER" | "PGPASSWORD" | "TZ")
            && !is_setting(key)
            && !pgweir_settings::is_of_kubernetes(key, text)
    });
    let names: Vec<&str> = unused.map(|(key, _)| key.as_str()).collect();
    if !names.is_empty() {
        let line =
            format!("{} is used, so these variables have no effect: {}", config.display(), names.join(", "));
        log.write(Level::Warning, &line);
    }
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
    if made.needs_certificate() {
        let (certificate, key) = certificate::self_signed()
            .map_err(|error| vec![format!("could not make a certificate for clients: {error}")])?;
        for (name, text, mode) in
            [(import::CERTIFICATE, certificate, import::FILE_MODE), (import::KEY, key, import::SECRET_MODE)]
        {
            let path = folder.join(name);
            import::replace(&path, &text, mode).map_err(|error| failed(&path, error))?;
        }
        log.write(Level::Log, NO_CERTIFICATE);
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_could_have_made_is_not_used() {
        let parent = std::env::temp_dir().join(format!("pgweir-entrypoint-{}", std::process::id()));
        fs::create_dir_all(&parent).expect("a directory");
        let own = own_folder(&parent).expect("it is made");
        assert_eq!(fs::metadata(&own).expect("it is there").mode() & 0o777, 0o700);
        assert_eq!(own_folder(&parent), Ok(own.clone()), "at a restart");
        fs::set_permissions(&own, fs::Permissions::from_mode(0o770)).expect("it is ours");
        assert!(own_folder(&parent).expect_err("refused")[0].contains("another user could write there"));
        fs::remove_dir(&own).expect("it is empty");
        symlink("/tmp", &own).expect("a link");
        assert!(own_folder(&parent).is_err(), "a link may lead anywhere");
        fs::remove_dir_all(&parent).expect("it is ours");
    }
}
