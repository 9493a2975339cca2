//! `-d`: moves the process to the background.

use nix::errno::Errno;

/// The process could not leave its terminal.
#[derive(Debug, thiserror::Error)]
#[error("could not go to the background: {0}")]
pub struct BackgroundError(#[from] Errno);

/// Continues as a daemon: in a child process with its own session, with standard streams on `/dev/null` and
/// the same working directory (names in the configuration may be relative to it). The caller's process ends
/// here, with exit code 0.
///
/// Call it while there is only one thread: other threads do not survive.
///
/// # Errors
///
/// No process could be created, or `/dev/null` could not be opened.
pub fn go_to_background() -> Result<(), BackgroundError> {
    let keep_working_directory = true;
    let keep_standard_streams = false;
    Ok(nix::unistd::daemon(keep_working_directory, keep_standard_streams)?)
}
