//! Text cut into pieces: chunks of bytes, words, identifiers.
//!
//! Nothing here may know what a statement does.

pub(crate) mod chunks;
pub(crate) mod identifiers;
pub(crate) mod words;
