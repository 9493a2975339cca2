//! `-d`: the process goes on in the background.

use nix::errno::Errno;

/// The process could not leave its terminal.
#[derive(Debug, thiserror::Error)]
#[error("could not go to the background: {0}")]
pub struct BackgroundError(#[from] Errno);

/// Goes on as a daemon: in a child process with its own session, standard streams on `/dev/null`, working directory
/// kept (names in the configuration may be relative to it). The caller's process ends here, with exit code 0.
///
/// Must be called while there is one thread only: other threads do not survive.
///
/// # Errors
/// No process could be made, or `/dev/null` not be opened.
pub fn go_to_background() -> Result<(), BackgroundError> {
    let keep_working_directory = true;
    let keep_standard_streams = false;
    Ok(nix::unistd::daemon(keep_working_directory, keep_standard_streams)?)
}
