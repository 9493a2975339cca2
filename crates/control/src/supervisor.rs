//! Notifications to the service manager (systemd's `Type=notify` and `Type=notify-reload`, sd_notify(3)):
//! ready, reloading, stopping. Without `NOTIFY_SOCKET` in the environment nothing is sent.

use pgweir_core::driver::Level;
use sd_notify::NotifyState;

use crate::log::Log;

/// A change in the process's life that the service manager is notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notification<'a> {
    /// The process serves. After an online restart this comes from another process, so its id is sent, too.
    Ready,
    /// The process reads its files; [`Notification::Reloaded`] follows.
    Reloading,
    /// The process has read its files.
    Reloaded,
    /// The process ends when the connections that it waits for are closed.
    Stopping,
    /// A description of the process's activity, for people.
    Status(&'a str),
}

/// Notifies the service manager. A failure is only logged.
pub fn tell(log: &Log, notification: Notification<'_>) {
    let pid = std::process::id();
    let said = match notification {
        Notification::Ready => sd_notify::notify(&[NotifyState::MainPid(pid), NotifyState::Ready]),
        Notification::Reloading => NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now])),
        Notification::Reloaded => sd_notify::notify(&[NotifyState::Ready]),
        Notification::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        // The micro sign keeps the line short for `systemctl status`, which shows it in one column.
        Notification::Status(line) => sd_notify::notify(&[NotifyState::Status(&line.replace(" us", " µs"))]),
    };
    if let Err(error) = said {
        log.write(Level::Warning, &format!("could not tell the service manager ({notification:?}): {error}"));
    }
}
