//! The few primitives that the methods need, over `aws-lc-rs` and `md-5`.

use aws_lc_rs::{digest, hmac, pbkdf2};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use std::fmt;
use std::hint::black_box;
use std::num::NonZeroU32;

/// Bytes in a SHA-256 digest, and so in every SCRAM key.
pub(crate) const KEY_LEN: usize = 32;

/// A SCRAM key or digest: 32 bytes that are cleared on drop and never printed.
#[derive(Clone)]
pub(crate) struct Key([u8; KEY_LEN]);

impl Key {
    pub(crate) fn new(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Returns HMAC-SHA-256 with this key over the parts, one after the other.
    pub(crate) fn hmac(&self, parts: &[&[u8]]) -> Self {
        hmac_sha256(&self.0, parts)
    }

    /// Returns SHA-256 of this key.
    pub(crate) fn digest(&self) -> Self {
        let digest = digest::digest(&digest::SHA256, &self.0);
        Self(digest.as_ref().try_into().expect("SHA-256 gives 32 bytes"))
    }

    pub(crate) fn xor(&self, other: &Self) -> Self {
        let mut out = [0; KEY_LEN];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.0[i] ^ other.0[i];
        }
        Self(out)
    }

    pub(crate) fn same(&self, other: &Self) -> bool {
        same(&self.0, &other.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// Returns SHA-256 of bytes that are not secret.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; KEY_LEN] {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().expect("SHA-256 gives 32 bytes")
}

/// Returns HMAC-SHA-256 over the parts, one after the other.
pub(crate) fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    for part in parts {
        context.update(part);
    }
    Key(context.sign().as_ref().try_into().expect("HMAC-SHA-256 gives 32 bytes"))
}

/// Computes `Hi()` of RFC 5802: PBKDF2 with HMAC-SHA-256.
pub(crate) fn hi(password: &[u8], salt: &[u8], iterations: NonZeroU32) -> Key {
    let mut out = [0; KEY_LEN];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password, &mut out);
    Key(out)
}

/// Returns whether two byte strings are the same, in a time that does not reveal where they differ.
///
/// HMACs of both are compared, so that lengths do not show either, with the constant-time `verify` of
/// `aws-lc-rs`: its bare comparison function is deprecated for outside use.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"pgweir comparison");
    hmac::verify(&key, b, hmac::sign(&key, a).as_ref()).is_ok()
}

/// Returns MD5 of the parts, one after the other, in lower-case hexadecimal digits.
pub(crate) fn md5_hex(parts: &[&[u8]]) -> [u8; 32] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut hasher = Md5::new();
    for part in parts {
        hasher.update(part);
    }
    let mut out = [0; 32];
    for (pair, byte) in out.chunks_exact_mut(2).zip(hasher.finalize()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    out
}

pub(crate) fn base64_encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes canonical, padded base64. The caller has bounded the text's length.
pub(crate) fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Decodes a base64 text of exactly one key.
pub(crate) fn base64_key(text: &[u8]) -> Option<Key> {
    const TEXT_LEN: usize = KEY_LEN.div_ceil(3) * 4;
    if text.len() != TEXT_LEN {
        return None;
    }
    let mut bytes = base64_decode(text)?;
    let key = bytes.as_slice().try_into().ok().map(Key);
    wipe(&mut bytes);
    key
}

/// Overwrites a secret. The black box keeps the compiler from dropping writes that are never read.
pub(crate) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
    black_box(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_hex_knows_the_rfc_1321_vectors() {
        assert_eq!(&md5_hex(&[b""]), b"d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(&md5_hex(&[b"message ", b"digest"]), b"f96b697d7cb7938d525a2f31aaf161d0");
    }

    #[test]
    fn same_compares_contents_and_lengths() {
        assert!(same(b"abc", b"abc"));
        assert!(same(b"", b""));
        assert!(!same(b"abc", b"abd"));
        assert!(!same(b"abc", b"ab"));
        assert!(!same(b"", b"\0"));
    }

    #[test]
    fn base64_is_canonical_only() {
        assert_eq!(base64_decode(b"YQ==").as_deref(), Some(&b"a"[..]));
        assert_eq!(base64_decode(b"YQ"), None, "padding is required");
        assert_eq!(base64_decode(b"YR=="), None, "stray bits are refused");
        assert_eq!(base64_decode(b"YQ==\n"), None);
        assert!(base64_key(base64_encode(&[7; 32]).as_bytes()).is_some());
        assert!(base64_key(base64_encode(&[7; 31]).as_bytes()).is_none());
        assert!(base64_key(base64_encode(&[7; 33]).as_bytes()).is_none());
    }

    #[test]
    fn a_key_does_not_show_itself() {
        assert_eq!(format!("{:?}", Key::new([65; 32])), "Key(redacted)");
    }
}
