//! Processes and what they need: programs, directories, the machine, and an end that leaves nothing behind.
//!
//! Nothing here may know which process is a pooler.

pub(crate) mod install;
pub(crate) mod interrupt;
pub(crate) mod keeper;
pub(crate) mod machine;
pub(crate) mod process;
pub(crate) mod sampler;
pub(crate) mod scratch;
pub(crate) mod tools;
