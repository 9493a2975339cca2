//! The messages of a server while a client logs in.

use std::fmt;

use crate::error::WireError;
use crate::limits::{SASL_MECHANISMS_MAX, UNSUPPORTED_OPTIONS_MAX};
use crate::reader::Reader;
use crate::startup::PROTOCOL_MAJOR;

/// The codes of the `Authentication...` messages.
pub(super) mod code {
    pub(crate) const OK: u32 = 0;
    pub(crate) const CLEARTEXT: u32 = 3;
    pub(crate) const MD5: u32 = 5;
    pub(crate) const SASL: u32 = 10;
    pub(crate) const SASL_CONTINUE: u32 = 11;
    pub(crate) const SASL_FINAL: u32 = 12;
}

/// One of the `Authentication...` messages.
#[derive(Clone, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// The client is authenticated.
    Ok,
    /// The server asks for the password itself.
    Cleartext,
    /// The server asks for the password's md5 hash.
    Md5 {
        /// The salt of the hash.
        salt: [u8; 4],
    },
    /// The server asks for a SASL exchange.
    Sasl {
        /// The mechanisms that the server offers, the best one first.
        mechanisms: Vec<&'a [u8]>,
    },
    /// A message of the exchange.
    SaslContinue(&'a [u8]),
    /// The last message of the exchange.
    SaslFinal(&'a [u8]),
    /// A method that this crate does not support (GSSAPI, SSPI, Kerberos, ...), with its code.
    Unsupported(u32),
}

impl<'a> Authentication<'a> {
    /// Reads the body of an `Authentication...` message.
    ///
    /// # Errors
    ///
    /// The body does not fit its code, or offers more than [`SASL_MECHANISMS_MAX`] mechanisms.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("Authentication", body);
        let authentication = match reader.u32("code")? {
            code::OK => Self::Ok,
            code::CLEARTEXT => Self::Cleartext,
            code::MD5 => Self::Md5 { salt: reader.four("salt")? },
            code::SASL => Self::Sasl { mechanisms: parse_mechanisms(&mut reader)? },
            code::SASL_CONTINUE => return Ok(Self::SaslContinue(reader.rest())),
            code::SASL_FINAL => return Ok(Self::SaslFinal(reader.rest())),
            other => return Ok(Self::Unsupported(other)),
        };
        reader.finish()?;
        Ok(authentication)
    }
}

fn parse_mechanisms<'a>(reader: &mut Reader<'a>) -> Result<Vec<&'a [u8]>, WireError> {
    let mut mechanisms = Vec::new();
    loop {
        let mechanism = reader.text("mechanism")?;
        if mechanism.is_empty() {
            return Ok(mechanisms);
        }
        if mechanisms.len() == SASL_MECHANISMS_MAX {
            return Err(reader.refuse("number of mechanisms", "at most 32", 33));
        }
        mechanisms.push(mechanism);
    }
}

const _: () = assert!(SASL_MECHANISMS_MAX == 32, "the text of the error above");

impl fmt::Debug for Authentication<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => f.write_str("Ok"),
            Self::Cleartext => f.write_str("Cleartext"),
            Self::Md5 { .. } => f.write_str("Md5"),
            Self::Sasl { mechanisms } => write!(f, "Sasl({})", mechanisms.len()),
            Self::SaslContinue(data) => write!(f, "SaslContinue({} bytes)", data.len()),
            Self::SaslFinal(data) => write!(f, "SaslFinal({} bytes)", data.len()),
            Self::Unsupported(code) => write!(f, "Unsupported({code})"),
        }
    }
}

/// `NegotiateProtocolVersion`: the server supports only an older minor version than the client asked for, or
/// does not know some of the `_pq_.` options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiate<'a> {
    /// The newest minor version of protocol 3 that the server supports.
    pub minor: u32,
    /// The options that the server does not know.
    pub unsupported: Vec<&'a [u8]>,
}

impl<'a> Negotiate<'a> {
    /// Reads the body of a `NegotiateProtocolVersion`. According to the documentation it has a minor version;
    /// PostgreSQL sends the whole version number (0x0003_0000 for 3.0). Both are accepted.
    ///
    /// # Errors
    ///
    /// The body is not exactly a version, a count and that number of texts, or names another major version.
    pub fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new("NegotiateProtocolVersion", body);
        let version = reader.u32("version")?;
        if version >> 16 != 0 && version >> 16 != u32::from(PROTOCOL_MAJOR) {
            return Err(reader.refuse("version", "3.x", version));
        }
        let count = reader.u32("number of options")?;
        if count > UNSUPPORTED_OPTIONS_MAX {
            return Err(reader.refuse("number of options", "at most 3333", count));
        }
        let unsupported = (0..count).map(|_| reader.text("option")).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(Self { minor: version & 0xffff, unsupported })
    }
}

const _: () = assert!(UNSUPPORTED_OPTIONS_MAX == 3333, "the text of the error above");
