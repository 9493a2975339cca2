//! The parts of a pool that are shown: rows of SHOW, snapshots for the control plane, the times of its statements.

pub(crate) mod cache;
pub(crate) mod descriptors;
pub(crate) mod measure;
pub(crate) mod rows;
pub(crate) mod snapshot;
