//! Every limit of this crate, by name.

/// Longest file that is read, in bytes.
pub const TEXT_LEN_MAX: usize = 1 << 20;

/// Maximum number of further files that one configuration names.
pub const FILES_MAX: usize = 64;

/// Maximum depth of tables and lists. No pooler's documentation has more than six levels.
pub const DEPTH_MAX: usize = 32;

/// Maximum number of keys and values in a file.
pub const NODES_MAX: usize = 20_000;

/// Longest part of a key or value that a message repeats, in characters.
pub const SHOWN_LEN_MAX: usize = 80;

/// Maximum number of findings that are kept; those after them are counted as one.
pub const FINDINGS_MAX: usize = 1_000;
