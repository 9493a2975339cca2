//! The four SCRAM messages (RFC 5802 section 7), read and written.
//!
//! Readers borrow from the message and keep the exact bytes that go into AuthMessage.

use super::stored::parse_salt;
use crate::crypto::{Key, base64_encode, base64_key};
use crate::fault::ProtocolFault;
use crate::limits::{ITERATIONS_MAX, NONCE_LEN_MAX, RAW_NONCE_LEN, SASL_MESSAGE_LEN_MAX};

/// Returns a fresh, printable nonce.
pub(crate) fn nonce(random: &mut dyn FnMut(&mut [u8])) -> String {
    let mut raw = [0; RAW_NONCE_LEN];
    random(&mut raw);
    base64_encode(&raw)
}

/// The client's support of channel binding, as its gs2 header says (RFC 5802 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Binding {
    /// `n`: the client does not support it.
    Unsupported,
    /// `y`: the client supports it, and assumes that the server does not.
    NotOffered,
    /// `p=tls-server-end-point`: the proof covers the server's certificate (RFC 5929 section 4).
    EndPoint,
}

impl Binding {
    /// Returns the gs2 header with the flag, without an authorization identity.
    fn header(self) -> &'static str {
        match self {
            Self::Unsupported => "n,,",
            Self::NotOffered => "y,,",
            Self::EndPoint => "p=tls-server-end-point,,",
        }
    }

    /// Returns the value of `c=`: the header, followed by the hash of the certificate if the proof covers it.
    pub(crate) fn echo(self, end_point: &[u8]) -> String {
        let bound = if self == Self::EndPoint { end_point } else { &[] };
        base64_encode(&[self.header().as_bytes(), bound].concat())
    }
}

/// The client's first message. Its user name is ignored, as in PostgreSQL: the one in the startup packet
/// counts.
#[derive(Debug)]
pub(crate) struct ClientFirst<'a> {
    pub(crate) binding: Binding,
    /// The message without gs2 header.
    pub(crate) bare: &'a [u8],
    pub(crate) nonce: &'a [u8],
}

impl<'a> ClientFirst<'a> {
    pub(crate) fn parse(message: &'a [u8]) -> Result<Self, ProtocolFault> {
        check_whole(message)?;
        let binding = match message.first() {
            Some(b'n') => Binding::Unsupported,
            Some(b'y') => Binding::NotOffered,
            Some(b'p') if message.starts_with(b"p=tls-server-end-point,") => Binding::EndPoint,
            Some(b'p') => return Err(ProtocolFault::BindingType),
            _ => return Err(ProtocolFault::BindingFlag),
        };
        let Some(bare) = message.strip_prefix(binding.header().as_bytes()) else {
            let flag_len = binding.header().len() - 2;
            let has_identity = message.get(flag_len..).is_some_and(|rest| rest.starts_with(b",a="));
            let fault = ProtocolFault::ExpectedAttribute { expected: 'n' };
            return Err(if has_identity { ProtocolFault::AuthorizationIdentity } else { fault });
        };
        let mut attributes = Attributes::new(bare);
        attributes.refuse_mandatory_extension()?;
        attributes.expect('n')?;
        let nonce = check_nonce(attributes.expect('r')?)?;
        attributes.ignore_extensions()?;
        Ok(Self { binding, bare, nonce })
    }

    /// Returns the gs2 header and the bare message. The user name is left out, as in libpq.
    pub(crate) fn encode(binding: Binding, nonce: &str) -> (&'static str, String) {
        (binding.header(), format!("n=,r={nonce}"))
    }
}

/// The server's first message.
#[derive(Debug)]
pub(crate) struct ServerFirst<'a> {
    pub(crate) nonce: &'a [u8],
    pub(crate) salt: Vec<u8>,
    /// The count, from 1 to [`ITERATIONS_MAX`]. It is not limited yet to what is computed here.
    pub(crate) iterations: u32,
}

impl<'a> ServerFirst<'a> {
    /// Reads the message. `own_nonce` is the nonce we sent, which the server's must continue.
    pub(crate) fn parse(message: &'a [u8], own_nonce: &[u8]) -> Result<Self, ProtocolFault> {
        check_whole(message)?;
        let mut attributes = Attributes::new(message);
        attributes.refuse_mandatory_extension()?;
        let nonce = check_nonce(attributes.expect('r')?)?;
        if !nonce.starts_with(own_nonce) || nonce.len() == own_nonce.len() {
            return Err(ProtocolFault::NonceMismatch);
        }
        let salt = parse_salt(attributes.expect('s')?).ok_or(ProtocolFault::Salt)?;
        let iterations = parse_iterations(attributes.expect('i')?)?;
        attributes.ignore_extensions()?;
        Ok(Self { nonce, salt, iterations })
    }

    pub(crate) fn encode(nonce: &str, salt: &[u8], iterations: u32) -> String {
        format!("r={nonce},s={},i={iterations}", base64_encode(salt))
    }
}

/// The client's final message.
#[derive(Debug)]
pub(crate) struct ClientFinal<'a> {
    /// The message up to the proof, without the comma.
    pub(crate) without_proof: &'a [u8],
    pub(crate) proof: Key,
}

impl<'a> ClientFinal<'a> {
    /// Reads the message and checks it against what was agreed before: `echo` is [`Binding::echo`].
    pub(crate) fn parse(message: &'a [u8], echo: &str, nonce: &[u8]) -> Result<Self, ProtocolFault> {
        check_whole(message)?;
        let mut attributes = Attributes::new(message);
        if attributes.expect('c')? != echo.as_bytes() {
            return Err(ProtocolFault::BindingMismatch);
        }
        if check_nonce(attributes.expect('r')?)? != nonce {
            return Err(ProtocolFault::NonceMismatch);
        }
        attributes.ignore_extensions_until(b'p')?;
        let without_proof_len = attributes.offset_in(message).saturating_sub(1);
        let proof = base64_key(attributes.expect('p')?).ok_or(ProtocolFault::Proof)?;
        attributes.expect_end()?;
        Ok(Self { without_proof: &message[..without_proof_len], proof })
    }

    pub(crate) fn encode_without_proof(echo: &str, nonce: &str) -> String {
        format!("c={echo},r={nonce}")
    }

    pub(crate) fn encode(without_proof: &str, proof: &Key) -> String {
        format!("{without_proof},p={}", base64_encode(proof.as_bytes()))
    }
}

/// The server's last message.
#[derive(Debug)]
pub(crate) enum ServerFinal {
    /// `v=`: the server's signature.
    Signature(Key),
    /// `e=`: the server reports a failure.
    Error,
}

impl ServerFinal {
    pub(crate) fn parse(message: &[u8]) -> Result<Self, ProtocolFault> {
        check_whole(message)?;
        let mut attributes = Attributes::new(message);
        if attributes.next_is(b'e') {
            return Ok(Self::Error);
        }
        let signature = base64_key(attributes.expect('v')?).ok_or(ProtocolFault::Proof)?;
        attributes.ignore_extensions()?;
        Ok(Self::Signature(signature))
    }

    pub(crate) fn encode(signature: &Key) -> String {
        format!("v={}", base64_encode(signature.as_bytes()))
    }
}

/// Returns AuthMessage (RFC 5802 section 3), in pieces for HMAC.
pub(crate) fn auth_message<'a>(
    bare: &'a [u8],
    server_first: &'a [u8],
    without_proof: &'a [u8],
) -> [&'a [u8]; 5] {
    [bare, b",", server_first, b",", without_proof]
}

/// Reads an iteration count: decimal digits only, from 1 to [`ITERATIONS_MAX`].
pub(crate) fn parse_iterations(digits: &[u8]) -> Result<u32, ProtocolFault> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ProtocolFault::Iterations);
    }
    let number = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok());
    number.filter(|number| (1..=ITERATIONS_MAX).contains(number)).ok_or(ProtocolFault::Iterations)
}

fn check_whole(message: &[u8]) -> Result<(), ProtocolFault> {
    if message.len() > SASL_MESSAGE_LEN_MAX {
        return Err(ProtocolFault::MessageTooLong { len: message.len() });
    }
    if message.contains(&0) {
        return Err(ProtocolFault::ZeroByte);
    }
    Ok(())
}

/// Checks for RFC 5802's `printable`, within the limit. A comma cannot be in a nonce: it has ended the
/// attribute.
fn check_nonce(nonce: &[u8]) -> Result<&[u8], ProtocolFault> {
    let printable = nonce.iter().all(u8::is_ascii_graphic);
    if (1..=NONCE_LEN_MAX).contains(&nonce.len()) && printable {
        Ok(nonce)
    } else {
        Err(ProtocolFault::Nonce)
    }
}

/// The comma-separated list of `letter=value` that every message consists of.
struct Attributes<'a> {
    /// The rest of the list; `None` after the last attribute.
    rest: Option<&'a [u8]>,
}

impl<'a> Attributes<'a> {
    fn new(message: &'a [u8]) -> Self {
        Self { rest: Some(message) }
    }

    fn next_is(&self, letter: u8) -> bool {
        self.rest.is_some_and(|rest| rest.starts_with(&[letter, b'=']))
    }

    /// Takes the next piece up to a comma. The caller has checked its first two bytes.
    fn take(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        match rest.iter().position(|&byte| byte == b',') {
            Some(comma) => {
                self.rest = Some(&rest[comma + 1..]);
                Some(&rest[..comma])
            }
            None => self.rest.take(),
        }
    }

    fn expect(&mut self, letter: char) -> Result<&'a [u8], ProtocolFault> {
        let piece = if self.next_is(letter as u8) { self.take() } else { None };
        piece.map(|piece| &piece[2..]).ok_or(ProtocolFault::ExpectedAttribute { expected: letter })
    }

    fn refuse_mandatory_extension(&self) -> Result<(), ProtocolFault> {
        if self.next_is(b'm') { Err(ProtocolFault::MandatoryExtension) } else { Ok(()) }
    }

    /// Skips optional extensions. None of them is known here, and RFC 5802 allows to ignore them.
    fn ignore_extensions(&mut self) -> Result<(), ProtocolFault> {
        while let Some(piece) = self.take() {
            check_extension(piece)?;
        }
        Ok(())
    }

    fn ignore_extensions_until(&mut self, letter: u8) -> Result<(), ProtocolFault> {
        while !self.next_is(letter) {
            check_extension(
                self.take().ok_or(ProtocolFault::ExpectedAttribute { expected: letter.into() })?,
            )?;
        }
        Ok(())
    }

    fn expect_end(&self) -> Result<(), ProtocolFault> {
        if self.rest.is_none() { Ok(()) } else { Err(ProtocolFault::TrailingBytes) }
    }

    /// Returns the place in `message`, which this list reads, where the rest begins.
    fn offset_in(&self, message: &[u8]) -> usize {
        message.len() - self.rest.map_or(0, <[u8]>::len)
    }
}

fn check_extension(piece: &[u8]) -> Result<(), ProtocolFault> {
    match piece {
        [letter, b'=', ..] if letter.is_ascii_alphabetic() => Ok(()),
        _ => Err(ProtocolFault::ExtensionShape),
    }
}

#[cfg(test)]
mod tests;
