//! The PostgreSQL frontend/backend protocol, version 3, as bytes.
//!
//! The crate finds where one message ends and the next begins ([`header`]), reads messages into typed values
//! that borrow from the buffer ([`startup`], [`frontend`], [`backend`]), appends messages to a buffer, and
//! gives errors their SQLSTATE ([`error`]). It has both roles, because a pooler is a server to its clients
//! and a client to its servers. It follows
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
//!
//! The crate must never wait, read a socket, know a clock, keep state between messages, or panic on a peer's bytes.
//! Every length is checked before it is used, and every limit is named in [`limits`]. Values that may be
//! secret (passwords, keys, statement texts) are not in `Debug` output, and no error repeats a peer's text.
//!
//! Parsers take the *body* of a message, without tag and length field, and require that it ends exactly where
//! the last field ends. Encoders append a whole message to a `Vec<u8>` and do not fail: see [`header`] for
//! values that the protocol cannot carry.

pub mod backend;
pub mod error;
pub mod frontend;
pub mod header;
pub mod limits;
pub mod messages;
pub mod replication;
pub mod startup;
pub mod types;

mod reader;
#[cfg(test)]
mod testing;
mod writer;

pub use error::{Report, Severity, SqlState, WireError, encode_error, encode_notice};
pub use header::{HEADER_LEN, Header};
pub use messages::{Message, Messages};
pub use reader::split_text;
pub use writer::until_nul;
