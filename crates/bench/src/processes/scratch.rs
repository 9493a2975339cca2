//! A temporary directory that is gone when its owner is, and the user that servers run as.
//!
//! PostgreSQL and the poolers refuse to run as root; started by root, the tools give what they start to an unprivileged user.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{Gid, Uid, User, chown, geteuid, mkdtemp};

use crate::error::BenchError;
use crate::processes::keeper::{self, Kept};
use crate::report::progress::note;

/// Longest path of a unix socket that the kernel takes is 107 bytes; this much of it is ours: `/pg/.s.PGSQL.65535`.
const SOCKET_PATH_MAX: usize = 107 - 20;

/// Room for a report with its raw series.
const REPORT_MB: u64 = 10;
/// How much a user should free if the disk filled up in the middle of a run.
const RUN_MB: u64 = 1000;

/// Whom servers are started as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunAs(Option<Other>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    uid: Uid,
    gid: Gid,
    name: String,
}

impl RunAs {
    /// Ourselves; or, when we are root, the user `postgres`, else `nobody`.
    ///
    /// # Errors
    /// We are root and neither user exists.
    pub(crate) fn detect() -> Result<Self, BenchError> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        for name in ["postgres", "nobody"] {
            if let Ok(Some(user)) = User::from_name(name) {
                return Ok(Self(Some(Other { uid: user.uid, gid: user.gid, name: name.to_owned() })));
            }
        }
        Err(BenchError::Missing(
            "PostgreSQL refuses to run as root, and there is neither a user \"postgres\" nor \"nobody\" here"
                .to_owned(),
        ))
    }

    /// The user's name if it is not ourselves: what a pooler's `-u` takes.
    #[must_use]
    pub(crate) fn other_user(&self) -> Option<&str> {
        self.0.as_ref().map(|other| other.name.as_str())
    }

    /// Makes `command` start as that user.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Some(other) = &self.0 {
            command.uid(other.uid.as_raw()).gid(other.gid.as_raw());
        }
    }

    fn give(&self, path: &Path) -> Result<(), BenchError> {
        let Some(other) = &self.0 else { return Ok(()) };
        chown(path, Some(other.uid), Some(other.gid)).map_err(|errno| BenchError::Io {
            what: format!("chown {}", path.display()),
            source: errno.into(),
        })
    }
}

/// A temporary directory. Dropping it removes it with everything in it.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    run_as: RunAs,
    /// If we are killed.
    _kept: Option<Kept>,
}

impl Scratch {
    /// Makes the directory in `TMPDIR` (or `/tmp` where a unix socket's path would become too long there).
    ///
    /// # Errors
    /// No directory could be made, or its file system has less than `needed_mb` megabytes free.
    pub(crate) fn create(run_as: RunAs, needed_mb: u64) -> Result<Self, BenchError> {
        let mut parent = std::env::temp_dir();
        if parent.as_os_str().len() + "/pgweir-XXXXXX".len() > SOCKET_PATH_MAX {
            parent = PathBuf::from("/tmp");
        }
        check_room(&parent, needed_mb, "TMPDIR")?;
        let path = mkdtemp(&parent.join("pgweir-XXXXXX")).map_err(|errno| BenchError::Io {
            what: format!("a directory in {}", parent.display()),
            source: errno.into(),
        })?;
        let _kept = keeper::keep_folder(&path);
        let scratch = Self { path, run_as, _kept };
        // Other users may pass through (the unprivileged user must reach its folders), not list.
        fs::set_permissions(&scratch.path, fs::Permissions::from_mode(0o711))
            .map_err(BenchError::io("chmod of the temporary directory"))?;
        Ok(scratch)
    }

    /// The directory.
    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of what [`Scratch::folder`] makes.
    #[must_use]
    pub(crate) fn run_as(&self) -> &RunAs {
        &self.run_as
    }

    /// Makes a folder in it that only the user of [`Scratch::run_as`] (and root) can enter.
    ///
    /// # Errors
    /// The folder could not be made or given away.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.path.join(name);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(BenchError::io(format!("mkdir {}", path.display())))?;
        self.run_as.give(&path)?;
        Ok(path)
    }

    /// Writes a file into one of the folders, readable by the user of [`Scratch::run_as`].
    ///
    /// # Errors
    /// The file could not be written or given away.
    pub(crate) fn write(&self, path: &Path, content: &str) -> Result<(), BenchError> {
        fs::write(path, content).map_err(|source| disk_error(path, source))?;
        self.run_as.give(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            note!("could not remove {}: {error}", self.path.display());
        }
    }
}

/// Refuses to start what would fill the disk.
fn check_room(path: &Path, needed_mb: u64, option: &'static str) -> Result<(), BenchError> {
    let stat = nix::sys::statvfs::statvfs(path).map_err(|errno| BenchError::Io {
        what: format!("looking at {}", path.display()),
        source: errno.into(),
    })?;
    let free_mb = stat.blocks_available().saturating_mul(stat.fragment_size()) / (1024 * 1024);
    if free_mb < needed_mb {
        return Err(BenchError::DiskFull { path: path.to_owned(), needed_mb, option });
    }
    Ok(())
}

/// Makes the folder for a report. Refuses to measure what could not be reported afterwards.
///
/// # Errors
/// There is no such folder and none can be made, it cannot be written to, or its file system has no room for a report. A folder that
/// was made is gone then.
pub(crate) fn prepare_output(folder: &Path) -> Result<(), BenchError> {
    let made = !folder.exists();
    fs::create_dir_all(folder).map_err(BenchError::io(format!("making {}", folder.display())))?;
    let usable = check_writable(folder).and_then(|()| check_room(folder, REPORT_MB, "--output"));
    if usable.is_err() && made {
        let _ = fs::remove_dir(folder);
    }
    usable
}

fn check_writable(folder: &Path) -> Result<(), BenchError> {
    let path = folder.join(format!(".pgweir-{}", std::process::id()));
    let tried = fs::File::create(&path).and_then(|_| fs::remove_file(&path));
    tried.map_err(|source| match source.kind() {
        std::io::ErrorKind::StorageFull => output_full(folder),
        _ => BenchError::Io { what: format!("--output: writing to {}", folder.display()), source },
    })
}

/// Writes a file of a report.
///
/// # Errors
/// It cannot be written; [`BenchError::DiskFull`] where there is no room for it.
pub(crate) fn write_output(folder: &Path, name: &str, content: &str) -> Result<(), BenchError> {
    let path = folder.join(name);
    fs::write(&path, content).map_err(|source| match source.kind() {
        std::io::ErrorKind::StorageFull => output_full(folder),
        _ => BenchError::Io { what: format!("writing {}", path.display()), source },
    })
}

/// A report could not be written.
#[must_use]
fn output_full(folder: &Path) -> BenchError {
    BenchError::DiskFull { path: folder.to_owned(), needed_mb: REPORT_MB, option: "--output" }
}

/// What was to be written into the temporary directory could not be.
#[must_use]
pub(crate) fn temporary_full() -> BenchError {
    BenchError::DiskFull { path: std::env::temp_dir(), needed_mb: RUN_MB, option: "TMPDIR" }
}

/// Whether nothing more fits where this file is.
#[must_use]
pub(crate) fn is_full(file: &Path) -> bool {
    check_room(file, 1, "TMPDIR").is_err()
}

fn disk_error(path: &Path, source: std::io::Error) -> BenchError {
    if source.kind() == std::io::ErrorKind::StorageFull {
        return temporary_full();
    }
    BenchError::Io { what: format!("writing {}", path.display()), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_directory_is_removed_with_its_content() {
        let scratch = Scratch::create(RunAs(None), 1).expect("a temporary directory");
        let path = scratch.path().to_owned();
        let folder = scratch.folder("data").expect("a folder");
        scratch.write(&folder.join("file"), "content").expect("a file");
        assert!(folder.join("file").exists());
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn where_no_report_can_be_written_it_is_said_before() {
        let scratch = Scratch::create(RunAs(None), 1).expect("a temporary directory");
        let file = scratch.path().join("file");
        fs::write(&file, "").expect("written");
        assert!(prepare_output(&file).is_err() && prepare_output(&file.join("deeper")).is_err());
        // Not even root can make files there.
        let error = prepare_output(Path::new("/proc/self")).expect_err("no files there");
        assert!(error.to_string().starts_with("--output: writing to /proc/self: "), "{error}");
        let folder = scratch.path().join("new/folder");
        prepare_output(&folder).expect("it can be made");
        assert_eq!(fs::read_dir(&folder).expect("made").count(), 0);
    }

    #[test]
    fn too_little_room_is_said_before_anything_is_written() {
        let error = Scratch::create(RunAs(None), u64::MAX).expect_err("no disk is that large");
        assert!(matches!(error, BenchError::DiskFull { .. }));
        assert_eq!(error.exit_code(), 5);
    }
}
