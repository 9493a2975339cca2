//! The tools for operators: `pgweir ctl` sends commands to a running pooler's console, `pgweir cache` has its kept answers compared, `pgweir
//! top` shows what the console tells, `pgweir pair` sets two poolers side by side, `pgweir node` makes standbys nodes of a cluster, and `pgweir
//! adopt` says how pgweir takes the place of a PgBouncer.

pub(crate) mod adopt;
pub(crate) mod cache;
pub(crate) mod ctl;
mod interrupt;
pub(crate) mod node;
pub(crate) mod pair;
pub(crate) mod top;
