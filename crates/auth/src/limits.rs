//! Every limit of this crate, by name, with the reason for its size.

/// Longest user name in an `auth_file`, in bytes (PgBouncer stops reading at 128).
pub const USER_LEN_MAX: usize = 127;

/// Longest secret in an `auth_file`, and longest password in a password message, in bytes.
pub const SECRET_LEN_MAX: usize = 65_530;

/// Longest SASL message of either peer, in bytes. With the two limits below, an honest message stays under 4
/// KiB.
pub const SASL_MESSAGE_LEN_MAX: usize = 8_192;

/// Longest nonce (for a server's or a final message: both halves together), in bytes. PostgreSQL's halves are
/// 24.
pub const NONCE_LEN_MAX: usize = 1_024;

/// Longest salt after decoding, in bytes. PostgreSQL's is 16.
pub const SALT_LEN_MAX: usize = 1_024;

/// Most iterations that are *computed* here, because a server or a stored secret asks for them.
///
/// A worker does nothing else while it derives a key: a million take a few tenths of a second, and a hostile
/// server could otherwise ask for two thousand million. PostgreSQL's default is 4,096; OWASP's advice of 2023
/// is 600,000. Stored secrets with more can still be used with SCRAM, where the client does the computing.
pub const DERIVE_ITERATIONS_MAX: u32 = 1_000_000;

/// Most iterations that a secret or a server may name: PostgreSQL keeps them in a signed 32-bit integer.
pub const ITERATIONS_MAX: u32 = i32::MAX as u32;

/// Number of derivations that a password keeps: the guard's own, and one for each cluster that the user has
/// servers of, as each has its own salt.
pub const DERIVATIONS_KEPT: usize = 32;

/// Random bytes in a nonce of ours, before base64 (PostgreSQL's `SCRAM_RAW_NONCE_LEN`).
pub const RAW_NONCE_LEN: usize = 18;

/// Bytes in a salt of ours (PostgreSQL's `SCRAM_DEFAULT_SALT_LEN`).
pub const SALT_LEN: usize = 16;

/// Rules in an `auth_hba_file`. Each login looks at them one by one.
pub const ACCESS_RULES_MAX: usize = 100_000;

/// Files of names that the rules of one `auth_hba_file` may name with `@`.
pub const ACCESS_FILES_MAX: usize = 1_000;

/// Fields in a line of `auth_hba_file` or `auth_ident_file`.
pub const ACCESS_FIELDS_MAX: usize = 64;

/// Longest word in such a line, in bytes: names have 63, paths up to 4,096.
pub const ACCESS_WORD_LEN_MAX: usize = 4_096;
