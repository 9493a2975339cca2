//! A stored SCRAM secret, in PostgreSQL's format.

use super::MECHANISM;
use super::keys::ScramKeys;
use super::message::parse_iterations;
use crate::crypto::{Key, base64_decode, base64_encode, base64_key};
use crate::limits::SALT_LEN_MAX;
use crate::password::PlainPassword;
use std::fmt;

/// The secret that a server stores for a SCRAM user: enough to check a client and to prove itself, not enough
/// to log in.
///
/// The text form (`pg_authid.rolpassword`) is `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`,
/// with salt and keys in base64.
#[derive(Clone)]
pub struct ScramSecret {
    stored_key: Key,
    server_key: Key,
    salt: Box<[u8]>,
    iterations: u32,
}

impl ScramSecret {
    /// Reads the text form; `None` if the text has another form. Iterations are limited to
    /// [`ITERATIONS_MAX`](crate::limits::ITERATIONS_MAX).
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(MECHANISM)?.strip_prefix('$')?;
        let (head, keys) = rest.split_once('$')?;
        let (iterations, salt) = head.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let salt = parse_salt(salt.as_bytes())?;
        Some(Self {
            stored_key: base64_key(stored_key.as_bytes())?,
            server_key: base64_key(server_key.as_bytes())?,
            salt: salt.into(),
            iterations: parse_iterations(iterations.as_bytes()).ok()?,
        })
    }

    /// Returns the text form. It is a secret and must not be logged.
    pub fn format(&self) -> String {
        let salt = base64_encode(&self.salt);
        let stored_key = base64_encode(self.stored_key.as_bytes());
        let server_key = base64_encode(self.server_key.as_bytes());
        format!("{MECHANISM}${}:{salt}${stored_key}:{server_key}", self.iterations)
    }

    /// Returns the secret of a password. It costs a derivation, unless the password has kept the keys. `None`
    /// if the iteration count is 0 or above [`DERIVE_ITERATIONS_MAX`](crate::limits::DERIVE_ITERATIONS_MAX).
    pub fn derive(password: &PlainPassword, salt: &[u8], iterations: u32) -> Option<Self> {
        let keys = password.scram_keys(salt, iterations)?;
        Some(Self {
            stored_key: keys.stored_key(),
            server_key: keys.cloned_server_key(),
            salt: salt.into(),
            iterations,
        })
    }

    /// Creates a secret without a known password, for a mock exchange.
    pub(crate) fn unknowable(stored_key: Key, salt: &[u8], iterations: u32) -> Self {
        Self { server_key: stored_key.clone(), stored_key, salt: salt.into(), iterations }
    }

    /// Returns the salt that clients get.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the iteration count that clients get.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns whether this is the secret of that password; `false` also if it has more iterations than are
    /// computed here.
    pub(crate) fn verify(&self, password: &PlainPassword) -> bool {
        match password.scram_keys(&self.salt, self.iterations) {
            Some(keys) => self.stored_key.same(&keys.stored_key()),
            None => false,
        }
    }

    /// Checks a client's proof. Returns the keys that the proof reveals to the holder of the secret.
    pub(crate) fn check(&self, proof: &Key, auth_message: &[&[u8]]) -> Option<ScramKeys> {
        let client_key = proof.xor(&self.stored_key.hmac(auth_message));
        if !client_key.digest().same(&self.stored_key) {
            return None;
        }
        Some(ScramKeys::from_keys(client_key, self.server_key.clone(), &self.salt, self.iterations))
    }
}

/// Decodes a salt of 1 to [`SALT_LEN_MAX`] bytes. The length is checked before decoding.
pub(crate) fn parse_salt(text: &[u8]) -> Option<Vec<u8>> {
    const TEXT_LEN_MAX: usize = SALT_LEN_MAX.div_ceil(3) * 4;
    if text.len() > TEXT_LEN_MAX {
        return None;
    }
    base64_decode(text).filter(|salt| (1..=SALT_LEN_MAX).contains(&salt.len()))
}

impl fmt::Debug for ScramSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramSecret(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pencil() -> ScramSecret {
        ScramSecret::derive(&PlainPassword::new("pencil"), b"0123456789abcdef", 4).expect("4 are computed")
    }

    #[test]
    fn the_text_form_comes_back() {
        let text = pencil().format();
        assert!(text.starts_with("SCRAM-SHA-256$4:MDEyMzQ1Njc4OWFiY2RlZg==$"), "{text}");
        let again = ScramSecret::parse(&text).expect("our own text");
        assert_eq!(again.format(), text);
        assert!(again.verify(&PlainPassword::new("pencil")));
        assert!(!again.verify(&PlainPassword::new("pencils")));
    }

    #[test]
    fn what_is_nearly_a_secret_is_none() {
        let text = pencil().format();
        let broken = [
            text.replace("$4:", "$0:"),
            text.replace("$4:", "$-4:"),
            text.replace("$4:", "$+4:"),
            text.replace("$4:", "$2147483648:"),
            text.replace("$4:", "$:"),
            text.replace("$4:", "$4$"),
            text.replace("==$", "=$"),
            text.replace("MDEyMzQ1Njc4OWFiY2RlZg==", ""),
            text.replace("SCRAM", "scram"),
            format!("{text} "),
            format!("{text}:"),
        ];
        for text in broken {
            assert!(ScramSecret::parse(&text).is_none(), "{text}");
        }
        assert!(ScramSecret::parse(&text.replace("$4:", "$2147483647:")).is_some());
    }

    #[test]
    fn the_salt_has_a_limit() {
        let with_salt = |len: usize| {
            let salt = base64_encode(&vec![7; len]);
            pencil().format().replace("MDEyMzQ1Njc4OWFiY2RlZg==", &salt)
        };
        assert!(ScramSecret::parse(&with_salt(SALT_LEN_MAX)).is_some());
        assert!(ScramSecret::parse(&with_salt(SALT_LEN_MAX + 1)).is_none());
    }

    #[test]
    fn a_secret_with_too_many_iterations_to_compute_verifies_nothing() {
        let text = pencil().format().replace("$4:", "$2147483647:");
        let secret = ScramSecret::parse(&text).expect("well-formed");
        assert!(!secret.verify(&PlainPassword::new("pencil")));
    }

    proptest! {
        #[test]
        fn any_text_is_a_secret_or_not(text in "(SCRAM-SHA-256\\$)?[0-9:$A-Za-z+/=]{0,120}") {
            if let Some(secret) = ScramSecret::parse(&text) {
                let again = ScramSecret::parse(&secret.format()).map(|secret| secret.format());
                prop_assert_eq!(again, Some(secret.format()));
            }
        }
    }
}
