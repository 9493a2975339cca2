//! The limits that this crate enforces on peers, each with its source.

/// Largest first packet of a connection, in bytes, without its length field: `MAX_STARTUP_PACKET_LENGTH` in
/// PostgreSQL's `src/include/libpq/pqcomm.h`.
pub const STARTUP_PACKET_LEN_MAX: u32 = 10_000;

/// Longest cancel key, in bytes. Protocol 3.2 allows 4 to 256; the older ones have exactly 4.
pub const CANCEL_KEY_LEN_MAX: usize = 256;

/// Largest value of a message's length field (which counts itself): it is a signed 32-bit number.
pub const MESSAGE_LEN_MAX: u32 = i32::MAX as u32;

/// Smallest value of a message's length field: the field itself.
pub const MESSAGE_LEN_MIN: u32 = 4;

/// Maximum number of SASL mechanisms that a server offers. PostgreSQL 18 knows three.
pub const SASL_MECHANISMS_MAX: usize = 32;

/// Maximum number of unsupported options that a server names in a `NegotiateProtocolVersion`. A startup packet of
/// [`STARTUP_PACKET_LEN_MAX`] bytes cannot ask for more: each is at least a name and two terminators.
pub const UNSUPPORTED_OPTIONS_MAX: u32 = STARTUP_PACKET_LEN_MAX / 3;

/// Maximum number of columns that an encoder puts into one row: the protocol counts them in a signed 16-bit number.
pub const COLUMNS_MAX: usize = i16::MAX as usize;

/// Maximum number of tables in one TRUNCATE of a replication stream. PostgreSQL has no limit of its own but its locks.
pub const TRUNCATED_TABLES_MAX: u32 = 10_000;

/// Maximum length of a message in a replication stream that must be read whole: that of the longest TRUNCATE.
pub const STREAM_MESSAGE_BYTES_MAX: usize = 64 * 1024;

const _: () = assert!(UNSUPPORTED_OPTIONS_MAX < STARTUP_PACKET_LEN_MAX);
const _: () = assert!(MESSAGE_LEN_MIN < MESSAGE_LEN_MAX);
