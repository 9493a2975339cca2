//! The secret stored for a user: a password, its md5 hash, or a SCRAM secret.

use crate::crypto::{md5_hex, same, wipe};
use crate::password::PlainPassword;
use crate::scram::ScramSecret;
use std::fmt;

/// A stored secret, of one of the three kinds that PostgreSQL and PgBouncer know. It is never printed.
#[derive(Clone)]
pub enum Secret {
    /// The password itself. An empty one never matches.
    Plain(PlainPassword),
    /// `md5` and 32 hexadecimal digits, as in `pg_authid`.
    Md5(Md5Secret),
    /// `SCRAM-SHA-256$…`, as in `pg_authid`.
    Scram(ScramSecret),
}

impl Secret {
    /// Returns whether both are the same: the same password, or the same hash of one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(one), Self::Plain(other)) => one.as_bytes() == other.as_bytes(),
            (Self::Md5(one), Self::Md5(other)) => one.format() == other.format(),
            (Self::Scram(one), Self::Scram(other)) => one.format() == other.format(),
            _ => false,
        }
    }

    /// Reads a secret. The text's form tells the kind, as in PostgreSQL's `get_password_type` (crypt.c): a
    /// text that is neither exactly an md5 hash nor exactly a SCRAM secret is a password.
    pub fn parse(text: &str) -> Self {
        if let Some(secret) = Md5Secret::parse(text) {
            Self::Md5(secret)
        } else if let Some(secret) = ScramSecret::parse(text) {
            Self::Scram(secret)
        } else {
            Self::Plain(PlainPassword::new(text))
        }
    }

    /// Reads a secret from bytes. Bytes that are not text can only be a password.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::parse(text),
            Err(_) => Self::Plain(PlainPassword::new(bytes)),
        }
    }

    /// Returns whether the secret can serve to log in to a server. A SCRAM secret only checks passwords, and
    /// an empty password matches nowhere.
    pub fn opens_servers(&self) -> bool {
        self.can_match() && !matches!(self, Self::Scram(_))
    }

    /// Returns whether a client can ever prove to know this secret.
    pub(crate) fn can_match(&self) -> bool {
        !matches!(self, Self::Plain(password) if password.is_empty())
    }

    /// Returns whether this is the secret of `user` with this password. For a SCRAM secret it costs a
    /// derivation.
    pub(crate) fn verify(&self, user: &str, password: &PlainPassword) -> bool {
        match self {
            Self::Plain(stored) => self.can_match() && same(stored.as_bytes(), password.as_bytes()),
            Self::Md5(stored) => stored.same(&Md5Secret::derive(password, user)),
            Self::Scram(stored) => stored.verify(password),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Secret::Plain(redacted)",
            Self::Md5(_) => "Secret::Md5(redacted)",
            Self::Scram(_) => "Secret::Scram(redacted)",
        })
    }
}

/// PostgreSQL's md5 hash of password and user name. It is a secret itself, because knowing it is enough to
/// log in by md5.
#[derive(Clone)]
pub struct Md5Secret {
    /// 32 lower-case hexadecimal digits.
    hex: [u8; 32],
}

impl Md5Secret {
    const PREFIX: &'static str = "md5";

    /// Reads `md5` and 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let hex: [u8; 32] = text.strip_prefix(Self::PREFIX)?.as_bytes().try_into().ok()?;
        hex.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')).then_some(Self { hex })
    }

    /// Returns the hash that PostgreSQL would store for this user and password.
    pub fn derive(password: &PlainPassword, user: &str) -> Self {
        Self { hex: md5_hex(&[password.as_bytes(), user.as_bytes()]) }
    }

    /// Returns the text as in `pg_authid`. It is a secret and must not be logged.
    pub fn format(&self) -> String {
        let digits = std::str::from_utf8(&self.hex).expect("hexadecimal digits are ASCII");
        format!("{}{digits}", Self::PREFIX)
    }

    /// Returns the password string that answers a challenge with this salt (protocol documentation,
    /// "AuthenticationMD5Password").
    pub(crate) fn answer(&self, salt: [u8; 4]) -> [u8; 35] {
        let mut out = [0; 35];
        out[..3].copy_from_slice(Self::PREFIX.as_bytes());
        out[3..].copy_from_slice(&md5_hex(&[&self.hex, &salt]));
        out
    }

    fn same(&self, other: &Self) -> bool {
        same(&self.hex, &other.hex)
    }
}

impl Drop for Md5Secret {
    fn drop(&mut self) {
        wipe(&mut self.hex);
    }
}

impl fmt::Debug for Md5Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Md5Secret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `select 'md5' || md5('pencil' || 'user')`
    const PENCIL_OF_USER: &str = "md520c46e3762c864548e296b33c3406aa9";

    #[test]
    fn the_kind_is_told_by_shape() {
        let md5 = "md50123456789abcdef0123456789abcdef";
        assert!(matches!(Secret::parse(md5), Secret::Md5(_)));
        let upper = "md50123456789ABCDEF0123456789ABCDEF";
        for plain in
            ["", "md5", "pencil", "SCRAM-SHA-256$", "SCRAM-SHA-256$1:x$y:z", upper, &md5[1..], &md5[..34]]
        {
            assert!(matches!(Secret::parse(plain), Secret::Plain(_)), "{plain}");
        }
        let scram = ScramSecret::derive(&PlainPassword::new("pencil"), b"salt", 7).expect("7 are computed");
        assert!(matches!(Secret::parse(&scram.format()), Secret::Scram(_)));
    }

    #[test]
    fn md5_is_postgresqls() {
        let secret = Md5Secret::derive(&PlainPassword::new("pencil"), "user");
        assert_eq!(secret.format(), PENCIL_OF_USER);
        assert_eq!(Md5Secret::parse(PENCIL_OF_USER).expect("well-formed").format(), PENCIL_OF_USER);
    }

    #[test]
    fn every_kind_verifies_its_password_and_no_other() {
        let right = PlainPassword::new("pencil");
        let scram = ScramSecret::derive(&right, b"salt", 7).expect("7 are computed");
        for text in ["pencil", PENCIL_OF_USER, &scram.format()] {
            let secret = Secret::parse(text);
            assert!(secret.verify("user", &right), "{text}");
            for wrong in ["", "Pencil", "pencil ", PENCIL_OF_USER] {
                assert!(!secret.verify("user", &PlainPassword::new(wrong)), "{text} {wrong}");
            }
        }
        assert!(!Secret::parse(PENCIL_OF_USER).verify("another", &right));
        assert!(!Secret::parse("").verify("user", &PlainPassword::new("")));
    }

    #[test]
    fn debug_is_redacted() {
        for text in ["pencil", PENCIL_OF_USER] {
            let shown = format!("{:?}", Secret::parse(text));
            assert!(
                shown.contains("redacted") && !shown.contains("pencil") && !shown.contains("20c4"),
                "{shown}"
            );
        }
    }
}
