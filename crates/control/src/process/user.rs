//! `user` and `-u`: gives up the privileges of root.

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

/// The reason why the process could not become another user.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UserError {
    /// The machine has no such user.
    #[error("could not find user '{0}'")]
    Unknown(String),
    /// The system's user list could not be read.
    #[error("could not look up user '{user}': {errno}")]
    LookUp {
        /// The user that was asked for.
        user: String,
        /// The system's error.
        errno: Errno,
    },
    /// The process is not root, so the system refuses.
    #[error("cannot change to user '{user}': {errno} (only root can; start as root or without 'user')")]
    Refused {
        /// The user that was asked for.
        user: String,
        /// The system's error.
        errno: Errno,
    },
    /// The calls succeeded, but the old privileges are still in effect.
    #[error("failed to change to user '{0}': the old rights are still in effect")]
    NotInEffect(String),
}

/// Returns whether the process has the privileges of root.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root() || getuid().is_root()
}

/// Becomes the user `name` with its groups, permanently. Does nothing if the process is that user already.
///
/// # Errors
///
/// See [`UserError`]. The process must end then, as the change may be half done.
pub fn switch_user(name: &str) -> Result<(), UserError> {
    let user = User::from_name(name)
        .map_err(|errno| UserError::LookUp { user: name.to_owned(), errno })?
        .ok_or_else(|| UserError::Unknown(name.to_owned()))?;
    if getuid() == user.uid && geteuid() == user.uid {
        return Ok(());
    }
    let c_name = CString::new(name).map_err(|_| UserError::Unknown(name.to_owned()))?;
    initgroups(&c_name, user.gid)
        .and_then(|()| setgid(user.gid))
        .and_then(|()| setuid(user.uid))
        .map_err(|errno| UserError::Refused { user: name.to_owned(), errno })?;
    // If root's privileges can be taken back, they were not given up.
    let root_is_back = !user.uid.is_root() && setuid(0.into()).is_ok();
    if root_is_back || getuid() != user.uid || geteuid() != user.uid {
        return Err(UserError::NotInEffect(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_users_are_named() {
        assert_eq!(switch_user("no-such-user-here"), Err(UserError::Unknown("no-such-user-here".to_owned())));
    }

    #[test]
    fn becoming_oneself_needs_no_rights() {
        let me = User::from_uid(getuid()).expect("user list").expect("the tests run as a known user");
        assert_eq!(switch_user(&me.name), Ok(()));
    }
}
