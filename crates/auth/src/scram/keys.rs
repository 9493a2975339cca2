//! The two keys that a password gives for one salt and iteration count.

use super::prep::saslprep;
use crate::crypto::{KEY_LEN, Key, hi};
use std::fmt;
use std::num::NonZeroU32;

/// ClientKey and ServerKey (RFC 5802 section 3). Knowing them is enough to log in wherever the same secret is
/// stored.
///
/// A [`Guard`](crate::Guard) learns them from a client that proves to know a stored SCRAM secret, and a
/// [`Prover`](crate::Prover) logs in to the server with them ("pass-through"), which works only if the server
/// stores the secret with the same salt and iteration count. They are cleared on drop and never printed.
#[derive(Clone)]
pub struct ScramKeys {
    client_key: Key,
    server_key: Key,
    salt: Box<[u8]>,
    iterations: u32,
}

impl ScramKeys {
    /// Creates keys from the values of the accessors, for instance after a transfer to another process.
    pub fn new(client_key: [u8; KEY_LEN], server_key: [u8; KEY_LEN], salt: &[u8], iterations: u32) -> Self {
        Self::from_keys(Key::new(client_key), Key::new(server_key), salt, iterations)
    }

    pub(crate) fn from_keys(client_key: Key, server_key: Key, salt: &[u8], iterations: u32) -> Self {
        Self { client_key, server_key, salt: salt.into(), iterations }
    }

    /// Derives the keys of a password, which is the expensive part of SCRAM.
    pub(crate) fn derive(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Self {
        let salted = hi(&saslprep(password), salt, iterations);
        let client_key = salted.hmac(&[b"Client Key"]);
        let server_key = salted.hmac(&[b"Server Key"]);
        Self::from_keys(client_key, server_key, salt, iterations.get())
    }

    /// Returns the key with which a client proves its knowledge. It is a secret.
    pub fn client_key(&self) -> &[u8; KEY_LEN] {
        self.client_key.as_bytes()
    }

    /// Returns the key with which a server proves its knowledge. It is a secret.
    pub fn server_key(&self) -> &[u8; KEY_LEN] {
        self.server_key.as_bytes()
    }

    /// Returns the salt that the keys are derived with.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the iteration count that the keys are derived with.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns whether these keys are for this salt and iteration count.
    pub(crate) fn fits(&self, salt: &[u8], iterations: u32) -> bool {
        self.iterations == iterations && *self.salt == *salt
    }

    /// Returns StoredKey, with which a server checks the client.
    pub(crate) fn stored_key(&self) -> Key {
        self.client_key.digest()
    }

    pub(crate) fn cloned_server_key(&self) -> Key {
        self.server_key.clone()
    }

    /// Returns the proof for this conversation: ClientKey with a mask that only a holder of StoredKey can
    /// remove.
    pub(crate) fn proof(&self, auth_message: &[&[u8]]) -> Key {
        self.client_key.xor(&self.stored_key().hmac(auth_message))
    }

    /// Returns the signature with which the server must answer this conversation.
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
