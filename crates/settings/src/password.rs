//! Secrets that stand in the configuration.

use std::fmt;

/// A secret: a password, or a text that holds one. It never shows itself, neither with `Debug` nor in an
/// error.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// The secret itself, for the one who has to prove or to check it. Must not be logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(***)")
    }
}

/// The part of `text` that may be shown: from the value of the first key that has "pass" in its name on,
/// everything is hidden.
///
/// Made for texts that did not parse, so it trusts no quoting.
pub(crate) fn masked(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let secret = lower.find("pass").and_then(|at| lower[at..].find('=').map(|eq| at + eq + 1));
    match secret {
        Some(from) => format!("{}***", &text[..from]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_never_shows_itself() {
        let secret = Password::new("hunter2");
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn masking_hides_from_the_first_password_on() {
        assert_eq!(masked("host=a port=x"), "host=a port=x");
        assert_eq!(masked("host=a password=x port=1"), "host=a password=***");
        assert_eq!(masked("host=a PASSWORD = 'x"), "host=a PASSWORD =***");
        assert_eq!(masked("ldapbindpasswd=x"), "ldapbindpasswd=***");
    }
}
