//! The faults of a peer's authentication message: a closed list, without any byte that the peer sent.

use crate::limits::{ITERATIONS_MAX, NONCE_LEN_MAX, SALT_LEN_MAX, SASL_MESSAGE_LEN_MAX, SECRET_LEN_MAX};
use thiserror::Error;

/// A message that breaks the protocol. The text is for the log; the peer gets the caller's
/// [`Refusal::text`](crate::Refusal::text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ProtocolFault {
    /// A password message is not one string that ends in the message's last byte.
    #[error("password message is not one zero-terminated string")]
    PasswordShape,
    /// A password longer than [`SECRET_LEN_MAX`].
    #[error("password is longer than {SECRET_LEN_MAX} bytes: {len}")]
    PasswordTooLong {
        /// The number of bytes in the message.
        len: usize,
    },
    /// The first SASL message is not a mechanism name, a length and as many bytes.
    #[error("SASLInitialResponse is not a mechanism name, a length and that many bytes")]
    InitialShape,
    /// The client chose a mechanism that was not offered.
    #[error("client selected a SASL mechanism that was not offered")]
    MechanismNotOffered,
    /// A SASL message longer than [`SASL_MESSAGE_LEN_MAX`].
    #[error("SASL message is longer than {SASL_MESSAGE_LEN_MAX} bytes: {len}")]
    MessageTooLong {
        /// The number of bytes in the message.
        len: usize,
    },
    /// A SCRAM message is not a list of `letter=value`, or another attribute must come next.
    #[error("malformed SCRAM message: expected attribute \"{expected}\"")]
    ExpectedAttribute {
        /// The attribute's letter as RFC 5802 section 5.1 names it.
        expected: char,
    },
    /// A SCRAM message has a piece that is not `letter=value`.
    #[error("malformed SCRAM message: an extension is not \"letter=value\"")]
    ExtensionShape,
    /// A SCRAM message goes on after its last attribute.
    #[error("malformed SCRAM message: bytes behind the last attribute")]
    TrailingBytes,
    /// A SCRAM message holds a zero byte.
    #[error("malformed SCRAM message: zero byte inside")]
    ZeroByte,
    /// The gs2 header does not begin with `n`, `y` or `p`.
    #[error("malformed SCRAM message: the channel binding flag must be \"n\", \"y\" or \"p\"")]
    BindingFlag,
    /// The client wants channel binding of another type than `tls-server-end-point`.
    #[error(
        "client requires a SCRAM channel binding type that is not supported (only tls-server-end-point is)"
    )]
    BindingType,
    /// The client's channel binding flag is not that of the mechanism it chose.
    #[error("SCRAM channel binding flag does not suit the mechanism that the client selected")]
    BindingMechanism,
    /// The client could bind the channel and assumes that the server cannot, although it was offered: an
    /// attacker in between may have removed the offer.
    #[error(
        "client supports SCRAM channel binding but thinks that the server does not: the offer did not reach it"
    )]
    BindingDowngrade,
    /// `c=` of the final message does not repeat the gs2 header.
    #[error("SCRAM channel binding check failed")]
    BindingMismatch,
    /// The client names an authorization identity.
    #[error("client uses a SCRAM authorization identity, which is not supported")]
    AuthorizationIdentity,
    /// The peer uses a mandatory extension (`m=`), which no standard defines yet.
    #[error("peer requires an unsupported SCRAM extension")]
    MandatoryExtension,
    /// A nonce is empty, longer than [`NONCE_LEN_MAX`] or not printable.
    #[error("SCRAM nonce is not 1 to {NONCE_LEN_MAX} printable characters")]
    Nonce,
    /// The peer's nonce does not begin with ours, has nothing after it, or is not the one agreed.
    #[error("SCRAM nonce does not match")]
    NonceMismatch,
    /// A salt is not base64 of 1 to [`SALT_LEN_MAX`] bytes.
    #[error("SCRAM salt is not base64 of 1 to {SALT_LEN_MAX} bytes")]
    Salt,
    /// An iteration count is not a number of 1 to [`ITERATIONS_MAX`].
    #[error("SCRAM iteration count is not a number from 1 to {ITERATIONS_MAX}")]
    Iterations,
    /// A proof or signature is not base64 of 32 bytes.
    #[error("SCRAM proof or signature is not base64 of 32 bytes")]
    Proof,
}
