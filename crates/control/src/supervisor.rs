//! What the service manager wants to know (systemd's `Type=notify` and `Type=notify-reload`, sd_notify(3)): ready, reloading, stopping.
//! Without `NOTIFY_SOCKET` in the environment nothing is said.

use pgweir_core::driver::Level;
use sd_notify::NotifyState;

use crate::log::Log;

/// A turn in the process's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News<'a> {
    /// It serves. After an online restart the process is another one, which it says too.
    Ready,
    /// It reads its files; [`News::Reloaded`] follows.
    Reloading,
    /// It has read them.
    Reloaded,
    /// It ends when those that it waits for are gone.
    Stopping,
    /// What it does, for people.
    Status(&'a str),
}

/// Tells the service manager. A failure is no reason to stop; the log reports it.
pub fn tell(log: &Log, news: News<'_>) {
    let pid = std::process::id();
    let said = match news {
        News::Ready => sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready]),
        News::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        News::Reloaded => sd_notify::notify(&[NotifyState::Ready]),
        News::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        // The micro sign keeps the line short where it is read: in one column of `systemctl status`.
        News::Status(line) => sd_notify::notify(&[NotifyState::Status(&line.replace(" us", " µs"))]),
    };
    if let Err(error) = said {
        log.write(Level::Warning, &format!("could not tell the service manager ({news:?}): {error}"));
    }
}
