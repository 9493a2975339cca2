//! The key that a client must show to cancel its statement: process id and secret, as BackendKeyData gave them.
//!
//! If processes are peers, a key says which of them gave it, in PgBouncer's way, so that pgweir and PgBouncer can be in one group: bytes 1
//! and 2 are the peer's id, little-endian; the lowest two bits of byte 7 say how often a request with this key may still be forwarded.

use crate::limits::CANCEL_KEY_BYTES;

/// The process id and four bytes of secret: the whole key in protocol 3.0.
pub(crate) type KeyHead = [u8; 8];

/// The position of the byte that holds the hops.
const HOPS_AT: usize = 7;

/// The bits for the number of hops. A key is made with as many hops as there can be; requests come with fewer.
const HOPS: u8 = 0b11;

const REST_BYTES: usize = CANCEL_KEY_BYTES - 4;

/// A key of pgweir's. Its head is unique on a worker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CancelKey {
    head: KeyHead,
    /// The rest of the longer secret of protocol 3.2. `None` in protocol 3.0.
    rest: Option<Box<[u8; REST_BYTES]>>,
}

impl CancelKey {
    /// Returns a key for a client of this minor protocol version, from random bytes. `peer_id` is that of this process, 0 outside a group.
    pub(crate) fn new(minor: u16, peer_id: u32, random: impl FnOnce(&mut [u8])) -> CancelKey {
        let mut bytes = [0; 4 + CANCEL_KEY_BYTES];
        random(&mut bytes);
        // A process id is positive: some drivers hold it in a signed number.
        bytes[0] &= 0x7f;
        bytes[HOPS_AT] |= HOPS;
        if let Ok(id @ 1..) = u16::try_from(peer_id) {
            bytes[1..3].copy_from_slice(&id.to_le_bytes());
        }
        let (head, rest) = bytes.split_first_chunk::<8>().expect("the array is longer than its head");
        let rest = rest.first_chunk().filter(|_| minor >= 2).map(|rest| Box::new(*rest));
        CancelKey { head: *head, rest }
    }

    /// Returns the same key with another process id.
    #[must_use]
    pub(crate) fn with_pid(mut self, pid: u32) -> CancelKey {
        self.head[..4].copy_from_slice(&pid.to_be_bytes());
        self
    }

    /// Returns a key that another process gave: process id, then secret. `None` if the length is wrong.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<CancelKey> {
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let rest = match rest.len() {
            0 => None,
            _ => Some(Box::new(rest.try_into().ok()?)),
        };
        Some(CancelKey { head: *head, rest })
    }

    /// Returns the process id and the secret, in the form that [`CancelKey::from_bytes`] reads.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [&self.head[..4], &self.secret()].concat()
    }

    /// Returns the minor protocol version that the key was made for.
    pub(crate) fn minor(&self) -> u16 {
        if self.rest.is_some() { 2 } else { 0 }
    }

    pub(crate) fn head(&self) -> KeyHead {
        self.head
    }

    /// Returns a number that the client keeps for its life, also over an online restart: the first half of its secret.
    pub(crate) fn number(&self) -> u64 {
        let [.., a, b, c, d] = self.head;
        u32::from_be_bytes([a, b, c, d]).into()
    }

    pub(crate) fn pid(&self) -> u32 {
        let [a, b, c, d, ..] = self.head;
        u32::from_be_bytes([a, b, c, d])
    }

    /// Returns the secret, which BackendKeyData has after the process id.
    pub(crate) fn secret(&self) -> Vec<u8> {
        let mut secret = self.head[4..].to_vec();
        secret.extend_from_slice(self.rest.as_deref().map_or(&[], |rest| &rest[..]));
        secret
    }

    /// Whether a cancel request (process id, then secret; see [`own_form`]) shows this key.
    pub(crate) fn is_shown_by(&self, shown: &[u8]) -> bool {
        let Some((head, rest)) = shown.split_first_chunk::<8>() else { return false };
        *head == self.head && rest == self.rest.as_deref().map_or(&[][..], |own| &own[..])
    }
}

/// Returns the head of the key that a cancel request shows.
pub(crate) fn head_of(shown: &[u8]) -> Option<KeyHead> {
    shown.first_chunk::<8>().copied()
}

/// Returns the key that a cancel request shows, in its form before it was forwarded.
pub(crate) fn own_form(shown: &[u8]) -> Option<Vec<u8>> {
    let mut key = shown.to_vec();
    *key.get_mut(HOPS_AT)? |= HOPS;
    Some(key)
}

/// Returns the process that gave the key of a cancel request, if there are peers.
pub(crate) fn peer_of(shown: &[u8]) -> Option<u32> {
    let head = head_of(shown)?;
    Some(u32::from(u16::from_le_bytes([head[1], head[2]])))
}

/// Returns the key to forward; `None` if it was forwarded too often.
pub(crate) fn one_hop_less(shown: &[u8]) -> Option<Vec<u8>> {
    let mut key = shown.to_vec();
    let hops = key.get_mut(HOPS_AT)?;
    if *hops & HOPS == 0 {
        return None;
    }
    *hops -= 1;
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_is_the_key() {
        for minor in [0, 2] {
            let key = CancelKey::new(minor, 0, |bytes| bytes.fill(0xff));
            let shown: Vec<u8> = key.pid().to_be_bytes().into_iter().chain(key.secret()).collect();
            assert_eq!(shown.len(), if minor == 0 { 8 } else { 4 + CANCEL_KEY_BYTES });
            assert!(key.pid() < 1 << 31);
            assert!(key.is_shown_by(&shown));
            assert!(!key.is_shown_by(&shown[..shown.len() - 1]));
            assert!(!key.is_shown_by(&[&shown[..], &[0]].concat()));
            assert_eq!(head_of(&shown), Some(key.head()));
            assert!(
                CancelKey::from_bytes(&key.bytes()).is_some_and(|same| same == key && same.minor() == minor)
            );
        }
    }
    #[test]
    fn a_key_names_its_peer_and_survives_three_hops() {
        let key = CancelKey::new(0, 0x1234, |bytes| bytes.fill(0x55));
        let shown: Vec<u8> = key.pid().to_be_bytes().into_iter().chain(key.secret()).collect();
        assert_eq!(shown[..3], [0x55, 0x34, 0x12]);
        assert_eq!(peer_of(&shown), Some(0x1234));
        let mut travelled = shown;
        for _ in 0..3 {
            travelled = one_hop_less(&travelled).expect("it may go on");
            assert!(key.is_shown_by(&own_form(&travelled).expect("long enough")));
        }
        assert_eq!(one_hop_less(&travelled), None);
    }

    #[test]
    fn what_is_too_short_is_no_clients() {
        for length in 0..8 {
            assert_eq!((peer_of(&vec![1; length]), own_form(&vec![1; length])), (None, None));
        }
    }
}
