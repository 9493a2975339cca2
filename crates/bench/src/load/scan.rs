//! Cuts what a server sends into messages. Bodies are shown whole if they are short or the caller looks at them; rows
//! and other long ones are only counted over.

use pgweir_wire::backend::tag;
use pgweir_wire::{HEADER_LEN, Header, WireError};

/// Longest body that is kept of a message that came in pieces: errors and questions of a login are shorter.
const KEPT_MAX: usize = 64 * 1024;

/// Where in the stream we are.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Part of a message whose body is looked at, or part of any header.
    kept: Vec<u8>,
    /// Bytes of a message that still come and are not looked at, and its tag.
    skipping: Option<(u8, usize)>,
}

impl Scanner {
    /// Takes what arrived; each message that is complete with it is shown as tag and body. The body is empty for the
    /// kinds that are not looked at.
    ///
    /// # Errors
    /// The stream is not the protocol.
    pub(super) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut on_message: impl FnMut(u8, &[u8]),
    ) -> Result<(), WireError> {
        if let Some((kind, left)) = self.skipping {
            let now = left.min(bytes.len());
            bytes = &bytes[now..];
            if now < left {
                self.skipping = Some((kind, left - now));
                return Ok(());
            }
            self.skipping = None;
            on_message(kind, &[]);
        }
        if self.kept.is_empty() {
            return self.cut(bytes, on_message);
        }
        let mut all = std::mem::take(&mut self.kept);
        all.extend_from_slice(bytes);
        self.cut(&all, on_message)
    }

    fn cut(&mut self, mut bytes: &[u8], mut on_message: impl FnMut(u8, &[u8])) -> Result<(), WireError> {
        while let Some(header) = Header::peek(bytes)? {
            let total = header.total();
            if let Some(message) = bytes.get(..total) {
                let body = if is_looked_at(header.tag) { &message[HEADER_LEN..] } else { &[][..] };
                on_message(header.tag, body);
                bytes = &bytes[total..];
            } else if is_looked_at(header.tag) && total <= KEPT_MAX {
                break;
            } else {
                self.skipping = Some((header.tag, total - bytes.len()));
                return Ok(());
            }
        }
        self.kept.extend_from_slice(bytes);
        Ok(())
    }
}

fn is_looked_at(kind: u8) -> bool {
    matches!(kind, tag::AUTHENTICATION | tag::ERROR | tag::READY)
}

#[cfg(test)]
mod tests {
    use pgweir_wire::backend::{TxStatus, encode_auth_ok, encode_data_row, encode_ready};

    use super::*;

    #[test]
    fn every_cut_gives_the_same_messages() {
        let mut stream = Vec::new();
        encode_auth_ok(&mut stream);
        encode_data_row(&mut stream, &[Some(&[b'x'; 300])]);
        encode_ready(&mut stream, TxStatus::Idle);
        for cut in 0..stream.len() {
            let (mut scanner, mut seen) = (Scanner::default(), Vec::new());
            for piece in [&stream[..cut], &stream[cut..]] {
                scanner.feed(piece, |kind, body| seen.push((kind, body.to_vec()))).expect("the protocol");
            }
            let expected =
                [(tag::AUTHENTICATION, vec![0; 4]), (tag::DATA_ROW, Vec::new()), (tag::READY, vec![b'I'])];
            assert_eq!(seen, expected, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        assert!(Scanner::default().feed(&[b'Z', 0, 0, 0, 1], |_, _| ()).is_err());
    }
}
