//! Every limit of this crate, by name.

/// Longest file that is read, in bytes.
pub const TEXT_LEN_MAX: usize = 1 << 20;

/// How many further files one configuration may name.
pub const FILES_MAX: usize = 64;

/// How deep tables and lists may be nested. No pooler's documentation has more than six levels.
pub const DEPTH_MAX: usize = 32;

/// How many keys and values a file may have.
pub const NODES_MAX: usize = 20_000;

/// Longest part of a key or value that a message repeats, in characters.
pub const SHOWN_LEN_MAX: usize = 80;

/// How many findings are kept; those after them are counted as one.
pub const FINDINGS_MAX: usize = 1_000;
