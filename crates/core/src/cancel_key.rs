//! What a client must show to cancel its statement: process id and secret, as BackendKeyData gave them.

use crate::limits::CANCEL_KEY_BYTES;

/// Process id and four bytes of secret: the whole key in protocol 3.0.
pub(crate) type KeyHead = [u8; 8];

const REST_BYTES: usize = CANCEL_KEY_BYTES - 4;

/// A key of ours. Its head is unique on a worker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CancelKey {
    head: KeyHead,
    /// The longer secret of protocol 3.2.
    rest: Option<Box<[u8; REST_BYTES]>>,
}

impl CancelKey {
    /// A key for a client of this minor protocol version, from random bytes.
    pub(crate) fn new(minor: u16, random: impl FnOnce(&mut [u8])) -> CancelKey {
        let mut bytes = [0; 4 + CANCEL_KEY_BYTES];
        random(&mut bytes);
        // A process id is positive: some drivers hold it in a signed number.
        bytes[0] &= 0x7f;
        let (head, rest) = bytes.split_first_chunk::<8>().expect("the array is longer than its head");
        let rest = rest.first_chunk().filter(|_| minor >= 2).map(|rest| Box::new(*rest));
        CancelKey { head: *head, rest }
    }

    pub(crate) fn head(&self) -> KeyHead {
        self.head
    }

    pub(crate) fn pid(&self) -> u32 {
        let [a, b, c, d, ..] = self.head;
        u32::from_be_bytes([a, b, c, d])
    }

    /// What BackendKeyData carries behind the process id.
    pub(crate) fn secret(&self) -> Vec<u8> {
        self.head[4..].iter().chain(self.rest.iter().flat_map(|rest| rest.iter())).copied().collect()
    }

    /// Whether a cancel request (process id, then secret) shows this key.
    pub(crate) fn is_shown_by(&self, shown: &[u8]) -> bool {
        let Some((head, rest)) = shown.split_first_chunk::<8>() else { return false };
        *head == self.head && rest == self.rest.as_deref().map_or(&[][..], |own| &own[..])
    }
}

/// The head of what a cancel request shows.
pub(crate) fn head_of(shown: &[u8]) -> Option<KeyHead> {
    shown.first_chunk::<8>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_the_key() {
        for minor in [0, 2] {
            let key = CancelKey::new(minor, |bytes| bytes.fill(0xff));
            let shown: Vec<u8> = key.pid().to_be_bytes().into_iter().chain(key.secret()).collect();
            assert_eq!(shown.len(), if minor == 0 { 8 } else { 4 + CANCEL_KEY_BYTES });
            assert!(key.pid() < 1 << 31);
            assert!(key.is_shown_by(&shown));
            assert!(!key.is_shown_by(&shown[..shown.len() - 1]));
            assert!(!key.is_shown_by(&[&shown[..], &[0]].concat()));
            assert_eq!(head_of(&shown), Some(key.head()));
        }
    }
}
