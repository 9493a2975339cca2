//! A password in clear, and the keys derived from it.

use crate::crypto::wipe;
use crate::limits::{DERIVATIONS_KEPT, DERIVE_ITERATIONS_MAX};
use crate::scram::ScramKeys;
use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

/// A password in clear text. It is cheap to clone, is cleared when the last clone is dropped, and is never
/// printed.
///
/// The value keeps the SCRAM keys of its last few derivations, because those cost milliseconds (PBKDF2) and the same
/// salt comes again: at each login of that user, and at each new connection to the same server. All clones
/// share these keys, so a password in a [`UserList`](crate::UserList) is derived once.
#[derive(Clone)]
pub struct PlainPassword(Arc<Inner>);

struct Inner {
    bytes: Box<[u8]>,
    /// The derived keys, the last used at the end. The lock is never held while keys are derived.
    derived: Mutex<VecDeque<Arc<ScramKeys>>>,
}

impl PlainPassword {
    /// Keeps a password. An empty one is allowed, and never matches.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(Arc::new(Inner { bytes: bytes.as_ref().into(), derived: Mutex::default() }))
    }

    /// Returns the password itself: in UTF-8 if it came from a file, as sent if it came from a client.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Returns whether the password is empty.
    pub fn is_empty(&self) -> bool {
        self.0.bytes.is_empty()
    }

    /// Returns the SCRAM keys for this salt and iteration count, kept or derived. `None` if this number of
    /// iterations is not computed here (0, or more than [`DERIVE_ITERATIONS_MAX`]).
    pub(crate) fn scram_keys(&self, salt: &[u8], iterations: u32) -> Option<Arc<ScramKeys>> {
        let count = NonZeroU32::new(iterations).filter(|count| count.get() <= DERIVE_ITERATIONS_MAX)?;
        if let Some(keys) = self.remembered(salt, iterations) {
            return Some(keys);
        }
        let keys = Arc::new(ScramKeys::derive(self.as_bytes(), salt, count));
        let mut derived = self.0.derived.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have derived the same keys in the meantime.
        if !derived.iter().any(|known| known.fits(salt, iterations)) {
            if derived.len() >= DERIVATIONS_KEPT {
                derived.pop_front();
            }
            derived.push_back(Arc::clone(&keys));
        }
        Some(keys)
    }

    /// Returns whether the keys for this salt and iteration count need not be derived, or cannot be.
    pub(crate) fn has_scram_keys(&self, salt: &[u8], iterations: u32) -> bool {
        !(1..=DERIVE_ITERATIONS_MAX).contains(&iterations) || self.remembered(salt, iterations).is_some()
    }

    fn remembered(&self, salt: &[u8], iterations: u32) -> Option<Arc<ScramKeys>> {
        let mut derived = self.0.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let place = derived.iter().position(|keys| keys.fits(salt, iterations))?;
        // The keys move to the end, because they were used last.
        let keys = derived.remove(place)?;
        derived.push_back(Arc::clone(&keys));
        Some(keys)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        wipe(&mut self.bytes);
    }
}

impl fmt::Debug for PlainPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PlainPassword(redacted)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derivation_is_done_once_for_all_clones() {
        let password = PlainPassword::new("pencil");
        let first = password.scram_keys(b"salt", 10).expect("10 iterations are computed");
        let again = password.clone().scram_keys(b"salt", 10).expect("10 iterations are computed");
        assert!(Arc::ptr_eq(&first, &again));
        let other = password.scram_keys(b"salt", 11).expect("11 iterations are computed");
        assert!(!first.client_key_equals(&other));
    }

    #[test]
    fn only_the_newest_derivations_are_kept() {
        let password = PlainPassword::new("pencil");
        let first = password.scram_keys(b"0", 1).expect("1 iteration is computed");
        for i in 1..=DERIVATIONS_KEPT {
            password.scram_keys(&[i as u8], 1).expect("1 iteration is computed");
        }
        assert_eq!(password.0.derived.lock().expect("no thread panicked").len(), DERIVATIONS_KEPT);
        assert!(password.remembered(b"0", 1).is_none());
        let derived = password.scram_keys(b"0", 1).expect("1 iteration is computed");
        assert!(!Arc::ptr_eq(&first, &derived));
        assert!(first.client_key_equals(&derived));
    }

    #[test]
    fn what_is_in_use_is_not_forgotten_for_what_is_new() {
        let password = PlainPassword::new("pencil");
        let first = password.scram_keys(b"0", 1).expect("1 iteration is computed");
        for i in 1..=DERIVATIONS_KEPT {
            password.scram_keys(&[i as u8], 1).expect("1 iteration is computed");
            let again = password.scram_keys(b"0", 1).expect("1 iteration is computed");
            assert!(Arc::ptr_eq(&first, &again), "with {i} other salts");
        }
        assert_eq!(password.0.derived.lock().expect("no thread panicked").len(), DERIVATIONS_KEPT);
    }

    #[test]
    fn iterations_are_bounded_before_any_work() {
        let password = PlainPassword::new("pencil");
        assert!(password.scram_keys(b"salt", 0).is_none());
        assert!(password.scram_keys(b"salt", DERIVE_ITERATIONS_MAX + 1).is_none());
        assert!(password.scram_keys(b"salt", u32::MAX).is_none());
    }

    #[test]
    fn debug_is_redacted() {
        assert_eq!(format!("{:?}", PlainPassword::new("pencil")), "PlainPassword(redacted)");
    }
}
