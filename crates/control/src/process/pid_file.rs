//! The pid file. It names the running process, and keeps a second one from starting with the same
//! configuration.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Permissions of the file: other users may read it.
const MODE: u32 = 0o644;

/// The reason why there can be no pid file.
#[derive(Debug, thiserror::Error)]
pub enum PidFileError {
    /// The file belongs to a live process, or to something that cannot be checked.
    #[error("pidfile '{}' exists, another instance running?", .0.display())]
    Taken(PathBuf),
    /// Reading, creating or removing the file failed.
    #[error("could not {what} pidfile '{}': {error}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
}

/// The state of the place where the pid file is to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No file exists.
    Free,
    /// The file belongs to a process that has ended, and may be replaced.
    Stale,
}

/// The pid file of this process. The file is removed when the value is dropped.
#[derive(Debug)]
pub struct PidFile {
    path: PathBuf,
}

impl PidFile {
    /// Checks whether a pid file can be created at `path`, without changing anything. Call it before anything
    /// else is started.
    ///
    /// # Errors
    ///
    /// [`PidFileError::Taken`], or the file cannot be read.
    pub fn look(path: &Path) -> Result<Standing, PidFileError> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Standing::Free),
            // The contents are not text, so they are not a number either.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(PidFileError::io("read", path, error)),
        };
        let taken = || PidFileError::Taken(path.to_owned());
        let pid: i32 = text.trim().parse().map_err(|_| taken())?;
        // 0 and negative numbers are process groups.
        if pid < 1 {
            return Err(taken());
        }
        if is_alive(pid) { Err(taken()) } else { Ok(Standing::Stale) }
    }

    /// Creates the file with this process's id, and replaces a stale one. Call it after the process has
    /// become a daemon.
    ///
    /// # Errors
    ///
    /// See [`PidFileError`]. The file is created with `O_EXCL`, so of two processes that start at once one
    /// gets [`PidFileError::Taken`].
    pub fn create(path: &Path) -> Result<PidFile, PidFileError> {
        if PidFile::look(path)? == Standing::Stale {
            fs::remove_file(path).map_err(|error| PidFileError::io("remove stale", path, error))?;
        }
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(MODE).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(PidFileError::Taken(path.to_owned()));
            }
            Err(error) => return Err(PidFileError::io("create", path, error)),
        };
        let ours = PidFile { path: path.to_owned() };
        writeln!(file, "{}", std::process::id()).map_err(|error| PidFileError::io("write", path, error))?;
        Ok(ours)
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file may be gone, or this user may not remove it; both are harmless.
        let _ = fs::remove_file(&self.path);
    }
}

impl PidFileError {
    fn io(what: &'static str, path: &Path, error: io::Error) -> PidFileError {
        PidFileError::Io { what, path: path.to_owned(), error }
    }
}

/// Returns whether another process has this number. Our own number in an old file is left from an earlier
/// run, as in containers, where every run has the same number.
fn is_alive(pid: i32) -> bool {
    if u32::try_from(pid) == Ok(std::process::id()) {
        return false;
    }
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    /// Returns a number that no process has: that of a child that has been waited for.
    fn dead_pid() -> u32 {
        let mut child = std::process::Command::new("true").spawn().expect("`true` runs");
        let pid = child.id();
        child.wait().expect("it ends");
        pid
    }

    #[test]
    fn lives_as_long_as_its_owner() {
        let scratch = Scratch::new("pid-life");
        let path = scratch.path("pid");
        let pid_file = PidFile::create(&path).expect("free");
        assert_eq!(fs::read_to_string(&path).expect("readable"), format!("{}\n", std::process::id()));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777 & !MODE, 0);
        drop(pid_file);
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_or_our_own_number_is_stale() {
        let scratch = Scratch::new("pid-stale");
        for pid in [dead_pid(), std::process::id()] {
            let path = scratch.write("pid", &format!("{pid}\n"));
            assert_eq!(PidFile::look(&path).expect("stale"), Standing::Stale);
            let _ours = PidFile::create(&path).expect("replaces it");
            assert_eq!(fs::read_to_string(&path).expect("readable"), format!("{}\n", std::process::id()));
        }
    }

    #[test]
    fn anything_else_counts_as_taken() {
        let scratch = Scratch::new("pid-taken");
        let mut parent = std::process::Command::new("sleep").arg("60").spawn().expect("`sleep` runs");
        let live = parent.id().to_string();
        for text in [live.as_str(), "", "\n", "abc\n", "0\n", "-1\n", "99999999999\n"] {
            let path = scratch.write("pid", text);
            let error = PidFile::create(&path).expect_err("taken");
            let expected = format!("pidfile '{}' exists, another instance running?", path.display());
            assert_eq!(error.to_string(), expected, "content {text:?}");
            assert_eq!(fs::read_to_string(&path).expect("still there"), text);
        }
        parent.kill().expect("our child");
        parent.wait().expect("it ends");
    }

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let scratch = Scratch::new("pid-folder");
        let path = scratch.folder().join("missing/pid");
        assert_eq!(PidFile::look(&path).expect("nothing there"), Standing::Free);
        let text = PidFile::create(&path).expect_err("no folder").to_string();
        assert!(text.starts_with("could not create pidfile '"), "{text}");
        assert!(text.contains("missing/pid"), "{text}");
    }
}
