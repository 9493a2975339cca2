//! What a pool shows: rows of SHOW, snapshots for the control plane, what its statements took.

pub(crate) mod descriptors;
pub(crate) mod measure;
pub(crate) mod rows;
pub(crate) mod snapshot;
