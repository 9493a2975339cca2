//! The two keys that a password gives for one salt and iteration count.

use super::prep::saslprep;
use crate::crypto::{KEY_LEN, Key, hi};
use std::fmt;
use std::num::NonZeroU32;

/// ClientKey and ServerKey (RFC 5802 section 3): knowing them is enough to log in wherever the same secret is stored.
///
/// A [`Guard`](crate::Guard) learns them from a client that proves to know a stored SCRAM secret, and a
/// [`Prover`](crate::Prover) logs in to the server with them ("pass-through"), which works only where the
/// server stores the secret with the same salt and iteration count. Cleared on drop, never printed.
#[derive(Clone)]
pub struct ScramKeys {
    client_key: Key,
    server_key: Key,
    salt: Box<[u8]>,
    iterations: u32,
}

impl ScramKeys {
    /// Puts keys together that were taken apart by the accessors, for instance to travel to another process.
    pub fn new(client_key: [u8; KEY_LEN], server_key: [u8; KEY_LEN], salt: &[u8], iterations: u32) -> Self {
        Self::from_keys(Key::new(client_key), Key::new(server_key), salt, iterations)
    }

    pub(crate) fn from_keys(client_key: Key, server_key: Key, salt: &[u8], iterations: u32) -> Self {
        Self { client_key, server_key, salt: salt.into(), iterations }
    }

    /// Derives the keys of a password; the expensive part of SCRAM.
    pub(crate) fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Self {
        let salted = hi(&saslprep(password), salt, iterations);
        let client_key = salted.hmac(&[b"Client Key"]);
        let server_key = salted.hmac(&[b"Server Key"]);
        Self::from_keys(client_key, server_key, salt, iterations.get())
    }

    /// The key that proves the client's knowledge. A secret.
    pub fn client_key(&self) -> &[u8; KEY_LEN] {
        self.client_key.as_bytes()
    }

    /// The key that proves the server's knowledge. A secret.
    pub fn server_key(&self) -> &[u8; KEY_LEN] {
        self.server_key.as_bytes()
    }

    /// The salt the keys are derived with.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The iteration count the keys are derived with.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Whether these keys are for this salt and iteration count.
    pub(crate) fn fits(&self, salt: &[u8], iterations: u32) -> bool {
        self.iterations == iterations && *self.salt == *salt
    }

    /// StoredKey: what a server keeps in order to check the client.
    pub(crate) fn stored_key(&self) -> Key {
        self.client_key.digest()
    }

    pub(crate) fn cloned_server_key(&self) -> Key {
        self.server_key.clone()
    }

    /// The proof for this conversation: ClientKey masked by what only a holder of StoredKey can take off.
    pub(crate) fn proof(&self, auth_message: &[&[u8]]) -> Key {
        self.client_key.xor(&self.stored_key().hmac(auth_message))
    }

    /// What the server must answer to this conversation.
    pub(crate) fn server_signature(&self, auth_message: &[&[u8]]) -> Key {
        self.server_key.hmac(auth_message)
    }

    #[cfg(test)]
    pub(crate) fn client_key_equals(&self, other: &Self) -> bool {
        self.client_key.same(&other.client_key)
    }
}

impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramKeys(redacted)")
    }
}
