//! The first packets of a connection, which have no tag.
//!
//! The file tells a startup packet from the requests that may come instead of it or before it. It accepts
//! what PostgreSQL's `ProcessStartupPacket` (`src/backend/tcop/backend_startup.c`) accepts, and is stricter
//! only about bytes that PostgreSQL ignores (those after an `SSLRequest`). It must never believe a length
//! beyond [`STARTUP_PACKET_LEN_MAX`]: at this point the client has not proved its identity.

use std::fmt;

use crate::error::WireError;
use crate::limits::{CANCEL_KEY_LEN_MAX, STARTUP_PACKET_LEN_MAX};
use crate::reader::{Reader, split_text};

mod options;

pub use options::{Setting, parse_options};

/// The "version number" of a request for TLS.
pub(crate) const SSL_REQUEST: u32 = 80_877_103;
/// The "version number" of a request for GSSAPI encryption.
pub(crate) const GSS_REQUEST: u32 = 80_877_104;
/// The "version number" of a request to cancel a statement.
pub(crate) const CANCEL_REQUEST: u32 = 80_877_102;

/// The only major version in use.
pub const PROTOCOL_MAJOR: u16 = 3;

/// The first byte of a TLS handshake record, which a client sends that does not ask for TLS first.
const TLS_HANDSHAKE: u8 = 0x16;
/// The size of the length field and the version number, in bytes.
const FIRST_WORDS_LEN: usize = 8;

/// A first packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Initial<'a> {
    /// A request for TLS. The answer is one byte, `S` or `N`.
    Ssl,
    /// A request for GSSAPI encryption. The answer is one byte, `G` or `N`.
    Gss,
    /// A request to cancel a backend's statement. There is no answer; the connection is closed.
    Cancel {
        /// The process id that the backend gave out.
        pid: u32,
        /// The key for that backend, of 1 to [`CANCEL_KEY_LEN_MAX`] bytes.
        key: &'a [u8],
    },
    /// A request to log in.
    Startup(StartupPacket<'a>),
    /// A protocol older than version 3, which no server speaks any more.
    OldProtocol,
    /// The beginning of a TLS handshake without a request before it (`sslnegotiation=direct`). No bytes are
    /// consumed.
    DirectTls,
}

impl fmt::Debug for Initial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ssl => f.write_str("Ssl"),
            Self::Gss => f.write_str("Gss"),
            Self::Cancel { pid, .. } => f.debug_struct("Cancel").field("pid", pid).finish_non_exhaustive(),
            Self::Startup(packet) => packet.fmt(f),
            Self::OldProtocol => f.write_str("OldProtocol"),
            Self::DirectTls => f.write_str("DirectTls"),
        }
    }
}

/// Reads the first packet at the start of `buf`. Returns it with its length in bytes, or `None` if more bytes
/// are needed. A length or a version that cannot be right is reported as soon as it can be seen.
///
/// # Errors
///
/// The fault of the packet; the connection cannot go on.
pub fn peek_initial(buf: &[u8]) -> Result<Option<(Initial<'_>, usize)>, WireError> {
    if buf.first() == Some(&TLS_HANDSHAKE) {
        return Ok(Some((Initial::DirectTls, 0)));
    }
    let Some(len) = buf.first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_be_bytes(*len);
    if !(8..=STARTUP_PACKET_LEN_MAX + 4).contains(&len) {
        return Err(WireError::StartupLength { got: len });
    }
    let Some(words) = buf.first_chunk::<FIRST_WORDS_LEN>() else { return Ok(None) };
    let [_, _, _, _, version @ ..] = *words;
    let version = Version::try_from(u32::from_be_bytes(version))?;
    let Some(body) = buf.get(FIRST_WORDS_LEN..len as usize) else { return Ok(None) };
    let initial = match version {
        Version::Ssl => Reader::new("SSLRequest", body).finish().map(|()| Initial::Ssl)?,
        Version::Gss => Reader::new("GSSENCRequest", body).finish().map(|()| Initial::Gss)?,
        Version::Cancel => parse_cancel(body)?,
        Version::Old => Initial::OldProtocol,
        Version::Three { minor } => Initial::Startup(StartupPacket::parse(minor, body)?),
    };
    Ok(Some((initial, len as usize)))
}

/// The meaning of the second word of a first packet.
enum Version {
    Ssl,
    Gss,
    Cancel,
    Old,
    Three { minor: u16 },
}

impl TryFrom<u32> for Version {
    type Error = WireError;

    fn try_from(word: u32) -> Result<Self, WireError> {
        let [a, b, c, d] = word.to_be_bytes();
        let (major, minor) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match word {
            SSL_REQUEST => Ok(Self::Ssl),
            GSS_REQUEST => Ok(Self::Gss),
            CANCEL_REQUEST => Ok(Self::Cancel),
            _ if major == PROTOCOL_MAJOR => Ok(Self::Three { minor }),
            _ if major == 1 || major == 2 => Ok(Self::Old),
            _ => Err(WireError::UnsupportedProtocol { major, minor }),
        }
    }
}

fn parse_cancel(body: &[u8]) -> Result<Initial<'_>, WireError> {
    let mut reader = Reader::new("CancelRequest", body);
    let pid = reader.u32("process id")?;
    let key = crate::reader::cancel_key(reader)?;
    Ok(Initial::Cancel { pid, key })
}

/// A request to log in, of protocol version 3. Its parameters have been checked as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StartupPacket<'a> {
    /// The major version, which is always [`PROTOCOL_MAJOR`].
    pub major: u16,
    /// The minor version that the client asks for, which can be any number.
    pub minor: u16,
    /// Pairs of texts, without the last terminator.
    raw: &'a [u8],
}

impl<'a> StartupPacket<'a> {
    fn parse(minor: u16, body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("StartupMessage", body);
        loop {
            let name = reader.text("parameter name")?;
            if name.is_empty() {
                break;
            }
            reader.text("parameter value")?;
        }
        reader.finish()?;
        let raw = body.split_last().map_or(body, |(_, pairs)| pairs);
        Ok(Self { major: PROTOCOL_MAJOR, minor, raw })
    }

    /// Returns the parameters, name and value, in the client's order. A name may come more than once.
    #[must_use]
    pub fn params(&self) -> Params<'a> {
        Params { rest: self.raw }
    }

    /// Returns the value of a parameter. If the name comes more than once, the last one counts, as in
    /// PostgreSQL.
    #[must_use]
    pub fn param(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.params().filter(|(key, _)| *key == name).last().map(|(_, value)| value)
    }
}

impl fmt::Debug for StartupPacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartupPacket")
            .field("major", &self.major)
            .field("minor", &self.minor)
            .field("params", &self.params().count())
            .finish()
    }
}

/// An iterator over the parameters of a [`StartupPacket`].
#[derive(Clone)]
pub struct Params<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Params<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (name, rest) = split_text(self.rest)?;
        let (value, rest) = split_text(rest)?;
        self.rest = rest;
        Some((name, value))
    }
}

const _: () = assert!(CANCEL_KEY_LEN_MAX < STARTUP_PACKET_LEN_MAX as usize);

#[cfg(test)]
mod tests;
