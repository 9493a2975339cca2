//! Installs Debian packages where that is allowed (root, apt-get), without unwanted side effects: no service
//! is started and no default cluster is made.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::unistd::geteuid;

use crate::error::BenchError;
use crate::processes::interrupt::Interrupt;
use crate::processes::process;
use crate::processes::tools::find_program;

/// Tells the package scripts not to start services (Debian Policy, section 9.3.3.2).
const SERVICE_POLICY: &str = "/usr/sbin/policy-rc.d";
/// Tells postgresql-common not to make a cluster `main`.
const NO_CLUSTER_DIR: &str = "/etc/postgresql-common/createcluster.d";
const NO_CLUSTER: &str = "/etc/postgresql-common/createcluster.d/pgweir-tools.conf";
/// A slow mirror is given this long.
const APT_LIMIT: Duration = Duration::from_secs(900);

/// Installs `names`. Where that is not possible the error is `hint`.
///
/// # Errors
/// [`BenchError::Missing`] with `hint`, extended by apt's last words if it was tried.
pub(crate) fn packages(
    names: &[&str],
    hint: &str,
    interrupt: &Interrupt,
    say: &mut dyn FnMut(&str),
) -> Result<(), BenchError> {
    let apt = find_program("apt-get").filter(|_| geteuid().is_root());
    let Some(apt) = apt else { return Err(BenchError::Missing(hint.to_owned())) };
    say(&format!("installing {}", names.join(" ")));
    let _no_service = TemporaryFile::create(SERVICE_POLICY, "#!/bin/sh\nexit 101\n", 0o755);
    let _ = fs::create_dir_all(NO_CLUSTER_DIR);
    let _no_cluster = TemporaryFile::create(NO_CLUSTER, "create_main_cluster = false\n", 0o644);
    let missing = |error| match error {
        BenchError::Failed { detail, .. } => BenchError::Missing(format!("{hint}; apt-get said: {detail}")),
        other => other,
    };
    if install(&apt, names, interrupt).is_ok() {
        return Ok(());
    }
    apt_get(&apt, &["update"], interrupt).map_err(missing)?;
    install(&apt, names, interrupt).map_err(missing)
}

fn install(apt: &Path, names: &[&str], interrupt: &Interrupt) -> Result<(), BenchError> {
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(names);
    apt_get(apt, &arguments, interrupt)
}

fn apt_get(apt: &Path, arguments: &[&str], interrupt: &Interrupt) -> Result<(), BenchError> {
    let mut command = Command::new(apt);
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    process::expect_success(&mut command, "apt-get", APT_LIMIT, interrupt).map(drop)
}

/// A file that did not exist before and does not afterwards; one that exists is left alone.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn create(path: &str, content: &str, mode: u32) -> Option<Self> {
        let path = PathBuf::from(path);
        if path.exists() {
            return None;
        }
        fs::write(&path, content).ok()?;
        let file = Self(path);
        fs::set_permissions(&file.0, fs::Permissions::from_mode(mode)).ok()?;
        Some(file)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::scratch::{RunAs, Scratch};

    #[test]
    fn a_temporary_file_leaves_an_existing_one_alone() {
        let scratch = Scratch::create(RunAs::detect().expect("a user"), 1).expect("scratch");
        let path = scratch.path().join("policy");
        let name = path.to_str().expect("utf-8");
        drop(TemporaryFile::create(name, "x", 0o644).expect("made"));
        assert!(!path.exists());
        fs::write(&path, "the owner's").expect("write");
        assert!(TemporaryFile::create(name, "x", 0o644).is_none());
        assert_eq!(fs::read_to_string(&path).expect("still there"), "the owner's");
    }
}
