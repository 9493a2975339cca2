//! The tools for a running pooler: `pgweir ctl` sends commands to its console, `pgweir pair` sets two of them side by side.

pub(crate) mod ctl;
pub(crate) mod pair;
