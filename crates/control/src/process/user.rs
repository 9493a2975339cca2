//! `user` and `-u`: leave root's rights behind.

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{User, geteuid, getuid, initgroups, setgid, setuid};

/// Why the process could not become another user.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum UserError {
    /// No such user on this machine.
    #[error("could not find user '{0}'")]
    Unknown(String),
    /// The system's user list could not be read.
    #[error("could not look up user '{user}': {errno}")]
    LookUp {
        /// The user asked for.
        user: String,
        /// What the system says.
        errno: Errno,
    },
    /// Not root, so the system refuses.
    #[error("cannot change to user '{user}': {errno} (only root can; start as root or without 'user')")]
    Refused {
        /// The user asked for.
        user: String,
        /// What the system says.
        errno: Errno,
    },
    /// The calls went well, but the rights of before are still there.
    #[error("failed to change to user '{0}': the old rights are still in effect")]
    NotInEffect(String),
}

/// `true` if the process has root's rights.
#[must_use]
pub fn is_root() -> bool {
    geteuid().is_root() || getuid().is_root()
}

/// Becomes `name` with its groups, for good. Does nothing if the process is that user already.
///
/// # Errors
/// See [`UserError`]; the process must then end, as it may be halfway.
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
