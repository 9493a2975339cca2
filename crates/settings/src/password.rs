//! Secrets in the configuration.

use std::fmt;

/// A secret: a password, or a text that holds one. Neither `Debug` nor an error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Wraps a secret.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Returns the secret itself, for the code that has to prove or to check it. It must not be logged.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(***)")
    }
}

/// The text that replaces a secret.
const HIDDEN: &str = "***";

/// Returns the part of `text` that may be shown. Everything from the value of the first key with "pass" in
/// its name on is hidden, and so are the user and password of a URL.
///
/// The function is for texts that did not parse, so it does not rely on quotes.
pub(crate) fn masked(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    // "pass" is in `password`, `ldapbindpasswd` and `etcd_password`.
    let secret = lower.find("pass").and_then(|at| lower[at..].find('=').map(|eq| at + eq + 1));
    match secret {
        Some(from) => format!("{}{HIDDEN}", without_accounts(&text[..from])),
        None => without_accounts(text),
    }
}

/// Hides the user and password of each URL: `scheme://***@host`.
fn without_accounts(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        shown.push_str(before);
        let end = after.find(|c: char| c.is_ascii_whitespace()).unwrap_or(after.len());
        // A password may have any character in it, also `/` and `@`, so the last `@` ends it.
        rest = match after[..end].rfind('@') {
            Some(host) => {
                shown.push_str(HIDDEN);
                &after[host..]
            }
            None => after,
        };
    }
    shown + rest
}

/// The part of a connection string that may be shown: its pairs up to the first whose key is secret or unknown,
/// because an unknown key may be a misspelled `password`. The name of that key is shown, its value is not.
/// A plain value that holds what looks like a password's key is hidden from there on.
pub(crate) fn masked_pairs(text: &str, is_plain: impl Fn(&str) -> bool) -> String {
    masked(&shown_pairs(text, is_plain))
}

fn shown_pairs(text: &str, is_plain: impl Fn(&str) -> bool) -> String {
    let mut from = 0;
    loop {
        let rest = &text[from..];
        let key_at = from + (rest.len() - rest.trim_start_matches(' ').len());
        let key_len = text[key_at..].find([' ', '=']).unwrap_or(text.len() - key_at);
        let key = &text[key_at..key_at + key_len];
        if key.is_empty() {
            return if key_at == text.len() {
                text.to_owned()
            } else {
                format!("{}{HIDDEN}", &text[..key_at])
            };
        }
        let after = &text[key_at + key_len..];
        let value =
            after.trim_start_matches(' ').strip_prefix('=').map(|value| value.trim_start_matches(' '));
        let value = value.filter(|_| is_plain(key));
        let Some(value) = value else {
            let is_name = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
            let end = if is_name && after.trim_start_matches(' ').starts_with('=') {
                key_at + key_len + after.find('=').map_or(0, |at| at + 1)
            } else {
                key_at
            };
            return format!("{}{HIDDEN}", &text[..end]);
        };
        from = text.len() - value.len() + value_len(value);
    }
}

/// The length of a value with its quotes. A value without its closing quote goes on to the end.
fn value_len(value: &str) -> usize {
    let Some(quoted) = value.strip_prefix('\'') else {
        return value.find(' ').unwrap_or(value.len());
    };
    let mut at = 0;
    while let Some(quote) = quoted[at..].find('\'') {
        at += quote + 1;
        if !quoted[at..].starts_with('\'') {
            return at + 1;
        }
        at += 1;
    }
    value.len()
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

    #[test]
    fn the_account_of_a_url_is_hidden() {
        assert_eq!(masked("postgres://u:s3cret@h:1/d"), "postgres://***@h:1/d");
        assert_eq!(masked("a://u:p/w@x@h b://c http://t0ken@e"), "a://***@h b://c http://***@e");
        assert_eq!(masked("http://h/p"), "http://h/p");
    }

    #[test]
    fn pairs_are_shown_up_to_the_first_that_may_be_secret() {
        assert_eq!(masked_pairs("host=x\u{b}password=s port=1", |_| true), "host=x\u{b}password=***");
        let is_plain = |key: &str| matches!(key, "host" | "port");
        for (text, shown) in [
            ("", ""),
            ("host=a  port = 1 ", "host=a  port = 1 "),
            ("host='a ''b' port=x", "host='a ''b' port=x"),
            ("host=a pasword=s3cret port=1", "host=a pasword=***"),
            ("host=a password = s3cret", "host=a password =***"),
            ("host=a s3cret port=1", "host=a ***"),
            ("postgres://u:s3cret@h/d", "***"),
            ("postgres://u:s3cret@h/d?sslmode=x", "***"),
            ("host='a s3cret", "host='a s3cret"),
            ("=s3cret", "***"),
        ] {
            assert_eq!(masked_pairs(text, is_plain), shown, "{text}");
        }
    }
}
